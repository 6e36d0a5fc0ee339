"""The laws that every source must obey, whatever its format, are checks for its tests.

``check_source`` runs all checks of one source; ``check_same_data`` compares a source with the same
data in another place, ``check_other_process`` with itself in a fresh interpreter. Failures are
AssertionErrors that state the law.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from dml.base.fingerprint import digest
from dml.data.block import Block, concat, empty
from dml.data.id_columns import RUN, written
from dml.data.layouts import usual_column
from dml.io.source import Source, Unit
from dml.io.user.user_source import read_datasource
from dml.plugins import DataSource


def check_source(source: Source | DataSource, expected: pa.Table) -> None:
    """Check all laws for a source that should deliver ``expected`` (types as delivered).

    A user's source is passed as to ``dml.read_datasource``.
    """
    if isinstance(source, DataSource):
        source = read_datasource(source, b"laws")
    check_units_cover(source)
    check_rows(source, expected)
    check_ids(source)
    check_skipping(source)
    check_projection(source)
    check_repeated(source)
    addressed = source.addressed()
    if addressed is not None:
        check_rows_at(addressed)
        rows, same = everything(source), everything(addressed)
        assert named(rows) == named(same), "other units have the same rows and ids"


def units(source: Source) -> list[Unit]:
    """Return all read units in order."""
    return [source.unit(i) for i in range(source.unit_count)]


def blocks(source: Source, unit: Unit, skip_atoms: int = 0) -> list[Block]:
    """Read all columns of ``unit``."""
    return list(source.read(unit, source.schema.names, skip_atoms))


def everything(source: Source, columns: Sequence[str] | None = None) -> Block:
    """Read all rows in source order."""
    names = source.schema.names if columns is None else tuple(columns)
    found = [block for unit in units(source) for block in source.read(unit, names)]
    return concat(found) if found else empty(source.schema).select(names)


def id_pairs(block: Block) -> np.ndarray:
    """Return the row ids as (n, 2) u64."""
    hi, lo = block.ids.arrays()
    return np.stack([hi, lo], axis=1)


def named(block: Block) -> bytes:
    """Return a digest of a block: names, types, values (bit by bit, NaN and -0.0 too), ids."""
    arrays = [usual_column(array) for array in block.to_arrow().columns]
    return digest(block.n, block.schema.names, *arrays, id_pairs(block))


def check_units_cover(source: Source) -> None:
    """Check that units are contiguous, and that atoms are counted from unit to unit.

    Atoms and rows are not counted across an open unit.
    """
    atom: int | None = 0
    rows = 0
    for index, unit in enumerate(units(source)):
        assert unit.index == index, "a unit knows its index"
        assert unit.atom == atom, f"unit {index} begins with the atom after the unit before"
        assert unit.atom_rows >= 1, f"unit {index} has atoms with rows"
        assert unit.nbytes >= 0, f"unit {index} states its size"
        assert unit.is_open == (unit.atoms is None), f"unit {index} is open, or is counted"
        if unit.rows is None or unit.atoms is None or atom is None:
            atom = None
            continue
        assert unit.rows >= 1, f"unit {index} has rows"
        assert unit.atoms == -(-unit.rows // unit.atom_rows), f"unit {index} is cut evenly"
        atom += unit.atoms
        rows += unit.rows
    assert source.atom_count == atom, "the atoms are those of all units, if all are counted"
    if atom is None:
        assert source.row_count is None, "the rows are not known where a unit is open"
        return
    assert source.row_count in (None, rows), "the rows are those of all units"


def check_rows(source: Source, expected: pa.Table) -> None:
    """Check that the blocks of all units, concatenated, are the expected rows."""
    for unit in units(source):
        sizes = [block.n for block in blocks(source, unit)]
        rows = sum(sizes) if unit.rows is None else unit.rows
        want = [min(unit.atom_rows, rows - start) for start in range(0, rows, unit.atom_rows)]
        assert sizes == want, f"unit {unit.index} gives one block per atom, got {sizes}"
    got = everything(source)
    assert got.schema == source.schema, "rows have the schema that was promised"
    assert list(got.schema.names) == expected.column_names, "columns are the expected ones"
    assert got.n == expected.num_rows, f"{expected.num_rows} rows expected, got {got.n}"
    for name, array in zip(got.schema.names, got.to_arrow().columns, strict=True):
        want_array = usual_column(expected[name].combine_chunks())
        if isinstance(want_array, pa.ChunkedArray):
            want_array = pa.concat_arrays(want_array.chunks)
        assert array.type == want_array.type, f"column {name!r} is {array.type}"
        assert digest(array) == digest(want_array), f"column {name!r} has the expected values"


def check_ids(source: Source) -> None:
    """Check that row ids are unique, and independent of the columns that are read."""
    whole = id_pairs(everything(source))
    assert len(np.unique(whole, axis=0)) == len(whole), "row ids are unique"
    bare = id_pairs(everything(source, ()))
    assert np.array_equal(whole, bare), "row ids do not depend on the columns read"
    if not source.ids_apart:
        every = (block.ids for unit in units(source) for block in blocks(source, unit))
        assert all(written(ids, RUN) is not None for ids in every), "row ids are consecutive"


def check_skipping(source: Source) -> None:
    """Check that reading from atom k on gives the blocks from k on, with ids, for every k."""
    for unit in units(source):
        want = [named(block) for block in blocks(source, unit)]
        for skip in _some(len(want) + 1):
            got = [named(block) for block in blocks(source, unit, skip)]
            assert got == want[skip:], f"unit {unit.index} from its atom {skip} on is the rest"


def _some(count: int) -> Iterator[int]:
    """Yield all numbers below a ``count`` of at most 8, else a few that include both ends."""
    yield from sorted({*range(count)} if count <= 8 else {0, 1, count // 2, count - 2, count - 1})


def check_projection(source: Source) -> None:
    """Check that reading some columns, in any order, changes neither values nor atoms."""
    names = source.schema.names
    whole = everything(source)
    for columns in (names[::-1], names[:1], names[1:], ()):
        got = everything(source, columns)
        assert got.n == whole.n, f"columns {columns} have all rows"
        assert got.schema.names == columns, f"columns are in the order asked for: {columns}"
        assert named(got) == named(whole.select(columns)), f"columns {columns} are unchanged"
        for unit in units(source):
            sizes = [block.n for block in source.read(unit, columns)]
            want = [block.n for block in blocks(source, unit)]
            assert sizes == want, "atoms do not depend on the columns read"


def check_repeated(source: Source) -> None:
    """Check that repeated and interleaved reads give equal bytes, and the identity stays."""
    first = named(everything(source))
    for unit in reversed(units(source)):
        one, two = (source.read(unit, source.schema.names) for _ in range(2))
        pairs = zip(one, two, strict=True)
        assert all(named(a) == named(b) for a, b in pairs), "two readers do not disturb each other"
    assert named(everything(source)) == first, "a second pass gives equal bytes"
    assert source.identity() == source.identity(), "the identity stays"


def check_rows_at(source: Source) -> None:
    """Check that random access gives the rows that reading gives, in any order, also twice."""
    whole = everything(source)
    n = whole.n
    backwards = np.arange(n, dtype=np.int64)[::-1]
    twice = np.arange(2 * n, dtype=np.int64) // 2
    for index in (backwards, twice, backwards[:0], backwards[::3]):
        for columns in (source.schema.names, source.schema.names[::-1][:1], ()):
            got = source.rows_at(index, columns)
            want = whole.select(columns).take(index)
            assert named(got) == named(want), "rows_at gives what read gives"
    before = 0
    for unit in units(source):
        assert before == (unit.atom or 0) * unit.atom_rows, "all units but the last are equal"
        before += unit.rows or 0


def check_same_data(source: Source, elsewhere: Source) -> None:
    """Check that the same data in another place has the same names, rows, ids and atoms."""
    assert source.digest == elsewhere.digest, "the digest does not depend on the place"
    assert source.identity() == elsewhere.identity(), "the identity does not depend on the place"
    for one, other in zip(units(source), units(elsewhere), strict=True):
        shape = (one.atom, one.atoms, one.rows, one.atom_rows)
        assert shape == (other.atom, other.atoms, other.rows, other.atom_rows), "same atoms"
        assert list(map(named, blocks(source, one))) == list(map(named, blocks(elsewhere, other)))


def check_other_process(source: Source, code: str) -> None:
    """Check that ``code`` makes the same ``source`` in a new interpreter with another hash seed."""
    tell = "\nprint(source.digest.hex(), source.identity().hex())"
    environ = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(  # noqa: S603 - the interpreter that runs this test
        [sys.executable, "-c", code + tell], env=environ, capture_output=True, text=True, check=True
    )
    want = f"{source.digest.hex()} {source.identity().hex()}"
    assert done.stdout.strip() == want, "digest and identity are equal in another process"
