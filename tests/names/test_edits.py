"""Test that an edit that can change a row changes the fingerprint, and is named.

Each case is an edit of a program, where the difference must be found, its kind, and a word that the
report must contain.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.base import library_code
from dml.errors import PlanError
from dml.optimize.explain.fingerprint_text import from_json, to_json
from dml.optimize.explain.name_differences import Difference, first_difference
from tests.names.programs import COLUMNS, PROGRAM, Edits, edited, files, loaded


class Case(NamedTuple):
    edits: Edits
    operator: str
    """How the operator begins, as it was written in one of the two."""
    kind: str
    word: str


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files(tmp_path_factory.mktemp("edits") / "data")


FILTERED = '    ds = ds.filter(col("x") > 2)\n'
TAKEN = "    ds = ds.take(40)\n"

EDITS: dict[str, Case] = {
    "a constant of a filter": Case(
        [('col("x") > 2', 'col("x") > 3')], "Filter((x", "constant", "3 there"
    ),
    "an int for a float": Case(
        [("< 90.0", "< 90")], "Filter((y", "constant", "90.0 here, 90 there"
    ),
    "a comparison": Case(
        [('col("x") > 2', 'col("x") >= 2')], "Filter((x", "operation", "(x >= 2) there"
    ),
    "a filter more": Case(
        [(FILTERED, FILTERED + '    ds = ds.filter(col("id") != 7)\n')],
        "Filter((id",
        "filters",
        "(id != 7)",
    ),
    "a filter less": Case([(FILTERED, "")], "Filter((x > 2))", "filters", "(x > 2)"),
    "another column": Case(
        [('col("x") * 2 +', 'col("id") * 2 +')], "WithColumns(z", "column", "x here, id there"
    ),
    "a factor": Case(
        [('col("x") * 2 +', 'col("x") * 3 +')], "WithColumns(z", "constant", "2 here, 3 there"
    ),
    "an output name": Case(
        [("with_columns(z=", "with_columns(q=")], "WithColumns(", "columns", "'q'"
    ),
    "a global": Case([("SCALE = 3", "SCALE = 4")], "MapRows(rows)", "global", "rows.helped.SCALE"),
    "the type of a global": Case(
        [("SCALE = 3", "SCALE = 3.0")], "MapRows(rows)", "global", "3 here, 3.0 there"
    ),
    "a helper of a helper": Case(
        [("return value + by", "return value - by")], "MapRows(rows)", "code", "rows.helped.shifted"
    ),
    "a default": Case([("by=1", "by=2")], "MapRows(rows)", "default", "shifted.__defaults__"),
    "a constant in a function": Case(
        [("2 * total", "3 * total")], "MapRows(rows)", "constant", "2 here, 3 there"
    ),
    "a method": Case(
        [("value * self.by +", "value + self.by +")], "MapRows(rows)", "code", "Scaler).scaled"
    ),
    "an attribute of an instance": Case(
        [("Scaler(5)", "Scaler(6)")], "MapRows(rows)", "attribute", "scaler.by"
    ),
    "an attribute of a class": Case(
        [("offset = 7", "offset = 8")], "MapRows(rows)", "attribute", "offset"
    ),
    "a method more": Case(
        [("    offset = 7\n", "    offset = 7\n\n    def __call__(self, x):\n        return x\n")],
        "MapRows(rows)",
        "method",
        "__call__",
    ),
    "a flag of a pattern": Case(
        [('compile("a+b")', 'compile("a+b", re.I)')], "MapRows(rows)", "global", "IGNORECASE"
    ),
    "a pattern": Case([('compile("a+b")', 'compile("a*b")')], "MapRows(rows)", "global", "PATTERN"),
    "a member of a set": Case(
        [('"blue", "green"', '"blue", "grey"')], "MapRows(rows)", "global", "WORDS"
    ),
    "an argument of a partial": Case(
        [("partial(powered, 2)", "partial(powered, 3)")], "MapRows(rows)", "argument", "cubed.args"
    ),
    "an output of a function": Case(
        [('"p": cubed', '"pp": cubed')], "MapRows(rows)", "constant", "'pp'"
    ),
    "an operation of a filter": Case([("!= 4", "== 4")], "FilterRows(good)", "code", "good"),
    "a constant of a row filter": Case(
        [("!= 4", "!= 5")], "FilterRows(good)", "constant", "4 here, 5 there"
    ),
    "a variable of a closure": Case(
        [("around(4)", "around(5)")], "MapRows(inner)", "closure", "factor"
    ),
    "an array": Case(
        [("[1.0, 2.0, 4.0]", "[1.0, 2.0, 4.5]")], "MapBatches(batches", "global", "TABLE"
    ),
    "the type of an array": Case(
        [("2.0, 4.0])", "2.0, 4.0], dtype=np.float32)")], "MapBatches(batches", "global", "float32"
    ),
    "a function of a library": Case(
        [("np.take(TABLE, batch", "np.full_like(TABLE, batch")],
        "MapBatches(batches",
        "code",
        "batches",
    ),
    "rows of a group": Case(
        [("map_batches(batches)", "map_batches(batches, batch_size=8)")],
        "MapBatches(batches",
        "option",
        "size",
    ),
    "a window of a shuffle": Case(
        [("buffer_size=16", "buffer_size=17")], "ShuffleWindow(", "option", "buffer_size"
    ),
    "a seed": Case(
        [("buffer_size=16", "buffer_size=16, seed=3")],
        "ShuffleWindow(",
        "seed",
        "None here, 3 there",
    ),
    "the default seed": Case(
        [("return ds", "return ds.with_options(seed=5)")], "ShuffleWindow(", "seed", "seed=5"
    ),
    "no shuffle": Case(
        [("    ds = ds.shuffle(buffer_size=16)\n", "")],
        "ShuffleWindow(",
        "operator",
        "nothing of the kind there",
    ),
    "rows taken": Case([("take(40)", "take(41)")], "Take(40)", "option", "40 here, 41 there"),
    "rows of a batch": Case([("batch(4)", "batch(5)")], "Batch(4", "option", "4 here, 5 there"),
    "an incomplete batch": Case(
        [("batch(4)", "batch(4, drop_last=True)")], "Batch(4", "option", "drop"
    ),
    "another operator": Case(
        [(TAKEN, "    ds = ds.skip(40)\n")], "Take(40)", "operator", "Skip(40) there"
    ),
    "what is done with errors": Case(
        [("ds.map(rows)", 'ds.map(rows, on_error="skip")')], "MapRows(rows", "option", "on_error"
    ),
    "the user's own name": Case(
        [("ds.map(rows)", 'ds.map(rows, fingerprint="mine")')],
        "MapRows(rows",
        "given name",
        "name of your own",
    ),
    "columns that are read": Case(
        [("read_parquet(root)", 'read_parquet(root, columns=["s", "id", "x", "y"])')],
        "ParquetSource(",
        "option",
        "columns",
    ),
    "rows of an atom": Case(
        [("read_parquet(root)", "read_parquet(root, atom_rows=7)")],
        "ParquetSource(",
        "option",
        "atom_rows",
    ),
}

LAWS: dict[str, Case] = {
    "take before filter": Case(
        [(TAKEN, ""), (FILTERED, TAKEN + FILTERED)], "", "order", "Take(40) before"
    ),
    "operands swapped": Case(
        [('col("y") + 1.0', 'col("y") - 1.0')], "WithColumns(", "operation", "(y - 1.0)"
    ),
    "true for floor division": Case(
        [('col("x") * 2', 'col("x") // 2')], "WithColumns(", "operation", "//"
    ),
    "an order of columns": Case([('"z", "u"', '"u", "z"')], "Select(", "columns", "'u', 'z'"),
    "a cast": Case(
        [("    ds = ds.take", '    ds = ds.cast(u="float32")\n    ds = ds.take')],
        "Cast(",
        "operation",
        "cast",
    ),
    "another type of a cast": Case(
        [('u=col("y") + 1.0', 'u=col("y").cast("int32")')], "WithColumns(", "operation", "cast"
    ),
    "repeated": Case(
        [("    return", "    ds = ds.repeat(2)\n    return")],
        "Repeat(2)",
        "operator",
        "nothing of the kind here",
    ),
    "sorted": Case(
        [("    return", '    ds = ds.sort("z")\n    return')],
        "Sort(",
        "operator",
        "nothing of the kind here",
    ),
    "a null filled": Case(
        [("    return", '    ds = ds.fill_null(s="x")\n    return')],
        "FillNull(",
        "expression",
        "fill_null",
    ),
}


@pytest.mark.law
@pytest.mark.parametrize("case", EDITS)
def test_an_edit_of_a_program_is_a_miss_and_is_named(case: str, data: Path, tmp_path: Path) -> None:
    edit(PROGRAM, EDITS[case], data, tmp_path)


@pytest.mark.law
@pytest.mark.parametrize("case", LAWS)
def test_an_edit_of_columns_is_a_miss_and_is_named(case: str, data: Path, tmp_path: Path) -> None:
    edit(COLUMNS, LAWS[case], data, tmp_path)


def edit(text: str, case: Case, data: Path, folder: Path) -> None:
    one, other = loaded(folder, text)(data), loaded(folder, edited(text, case.edits))(data)
    assert one.fingerprint() != other.fingerprint()
    found = dml.why_miss(one, other)
    named(found, case.operator, case.kind, case.word)
    turned = dml.why_miss(other, one)
    assert turned, "what differs does so from either side"
    assert {found.here, found.there} == {turned.here, turned.there}
    assert written_down(one, other) == found


def named(found: Difference, operator: str, kind: str, word: str) -> None:
    assert found.kind == kind, found
    assert f"{found.operator or found.other}".startswith(operator), found
    assert word in str(found), found
    assert len(str(found).splitlines()) == 4, found


def written_down(one: dml.Dataset, other: dml.Dataset) -> Difference:
    """The difference between what was written down of the one, and the other."""
    from dml.api.catalog import describe_pipeline

    kept = json.loads(json.dumps(to_json(describe_pipeline(one, "a", "why_miss"), plain=True)))
    return first_difference(from_json(kept), describe_pipeline(other, "b", "why_miss"))


# ------------------------------------------------------------------------- data, versions, moments


def _same_size_and_time(path: Path) -> None:
    """Another byte in the middle of the data, as large and as old as before."""
    before = path.stat()
    found = bytearray(path.read_bytes())
    found[100] ^= 1
    path.write_bytes(found)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _more_rows(path: Path) -> None:
    pq.write_table(pa.concat_tables([pq.read_table(path)] * 2), path)


@pytest.mark.parametrize("change", [_same_size_and_time, _more_rows], ids=lambda c: c.__name__)
def test_other_bytes_in_a_file_are_a_miss_that_names_it(
    change: Any, data: Path, tmp_path: Path
) -> None:
    make, there = loaded(tmp_path, PROGRAM), shutil.copytree(data, tmp_path / "there")
    change(there / "part-1.parquet")
    one, other = make(data), make(there)
    assert one.fingerprint() != other.fingerprint()
    named(dml.why_miss(one, other), "ParquetSource(", "content", "file 'part-1.parquet'")


def test_a_change_within_two_seconds_is_seen_by_the_process_that_looked_before(
    data: Path, tmp_path: Path
) -> None:
    there = shutil.copytree(data, tmp_path / "there")
    make = loaded(tmp_path, PROGRAM)
    before = make(there).fingerprint()
    _same_size_and_time(there / "part-0.parquet")
    assert make(there).fingerprint() != before


def test_a_file_more_is_a_miss_that_names_it(data: Path, tmp_path: Path) -> None:
    make, there = loaded(tmp_path, PROGRAM), shutil.copytree(data, tmp_path / "there")
    shutil.copy(there / "part-0.parquet", there / "part-2.parquet")
    found = dml.why_miss(make(data), make(there))
    named(found, "ParquetSource(", "file name", "part-2.parquet")


@pytest.mark.law
def test_a_file_renamed_is_a_miss_that_names_it(data: Path, tmp_path: Path) -> None:
    """Rows are called by the names of their files, and random draws by the rows."""
    make, there = loaded(tmp_path, PROGRAM), shutil.copytree(data, tmp_path / "there")
    (there / "part-1.parquet").rename(there / "last.parquet")
    found = dml.why_miss(make(data), make(there))
    named(found, "ParquetSource(", "file name", "part-1.parquet")


def test_another_type_in_a_file_is_a_miss_that_names_the_column(data: Path, tmp_path: Path) -> None:
    make, there = loaded(tmp_path, PROGRAM), shutil.copytree(data, tmp_path / "there")
    for path in there.iterdir():
        table = pq.read_table(path)
        y = table["y"].cast("float32")
        pq.write_table(table.set_column(2, "y", y), path)
    named(dml.why_miss(make(data), make(there)), "ParquetSource(", "type", "column 'y'")


def test_another_version_of_a_library_is_a_miss_that_names_it(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = loaded(tmp_path, PROGRAM)
    one = make(data)
    name, before = one.fingerprint(), written_down(one, one)
    assert not before
    from dml.api.catalog import describe_pipeline

    kept = to_json(describe_pipeline(one, "a", "why_miss"), plain=True)
    monkeypatch.setattr(np, "__version__", "99.0")
    library_code._library.cache_clear()
    try:
        other = make(data)
        assert other.fingerprint() != name
        named(
            first_difference(from_json(kept), describe_pipeline(other, "b", "why_miss")),
            *("MapBatches(batches", "library", "99.0 there"),
        )
    finally:
        library_code._library.cache_clear()


def test_a_global_that_changes_later_is_another_fingerprint() -> None:
    """The pipeline gives other rows from then on, whether or not its function can be lifted."""
    space: dict[str, Any] = {"K": 3}
    exec("def f(row):\n    return {'z': sorted([row['id'], K])}", space)
    made = dml.range(3).map(space["f"])
    before, rows = made.fingerprint(), made.take_rows(1)
    space["K"] = 4
    assert made.take_rows(1) != rows
    assert made.fingerprint() != before
    assert made.fingerprint() == dml.range(3).map(space["f"]).fingerprint()


def test_a_function_without_a_name_is_said_to_have_none() -> None:
    lock = __import__("threading").Lock()

    def held(row: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return row

    found = dml.why_miss(dml.range(3).map(held), dml.range(3).map(held))
    named(found, "MapRows(held)", "unnamed", "lock")


def test_in_what_stands_beside_a_chain_the_difference_is_found() -> None:
    def make(most: int) -> dml.Dataset:
        return dml.range(9).concat(dml.range(20).take(most)).batch(2)

    named(dml.why_miss(make(3), make(4)), "Take(3)", "option", "3 here, 4 there")


def test_order_of_operators_is_named() -> None:
    def plus(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": divmod(row["id"], 3)[0]}

    def minus(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": divmod(row["id"], 5)[1]}

    one, other = dml.range(9).map(plus).map(minus), dml.range(9).map(minus).map(plus)
    named(dml.why_miss(one, other), "MapRows(", "order", "before")


def test_values_in_memory_are_a_miss() -> None:
    one, other = dml.from_dict({"a": [1, 2]}), dml.from_dict({"a": [1, 3]})
    assert dml.why_miss(one, other).kind in {"content", "option"}
    assert one.filter(col("a") > 1).fingerprint() != other.filter(col("a") > 1).fingerprint()


@pytest.mark.parametrize("given", [None, 3, "abc", [1]])
def test_what_is_no_pipeline_is_an_error(given: Any) -> None:
    with pytest.raises(PlanError, match="why_miss needs a pipeline"):
        dml.why_miss(dml.range(3), given)
