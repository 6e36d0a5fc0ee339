"""Test zipping of columns from several entries: equal blocks, and an error for unequal row ids."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from dml.cache.lookup import column_zip
from dml.cache.lookup.column_zip import Cursor, all_beside, recut
from dml.data.block import Block, concat
from dml.data.schema import Schema
from dml.errors import NonDeterminismError, UDFError
from dml.kernels.rows.ids import RowIds

SIZES = st.lists(st.integers(0, 9), max_size=12)


def rows(count: int) -> Block:
    table = pa.record_batch(
        {
            "x": np.arange(count),
            "t": pa.array([None if n % 5 == 4 else "ab" * (n % 7) for n in range(count)]),
            "l": pa.array([None if n % 6 == 5 else [n, None] * (n % 3) for n in range(count)]),
        }
    )
    return Block.from_arrow(table, RowIds.run(7, 0, count))


def cut(block: Block, sizes: list[int]) -> list[Block]:
    """The rows in blocks of these sizes, the rest as one."""
    parts, start = [], 0
    for size in sizes:
        parts.append(block.slice(start, start + size))
        start = min(block.n, start + size)
    return [*parts, block.slice(start, block.n)] if start < block.n else parts


@settings(deadline=None)
@given(st.integers(0, 60), SIZES, SIZES, st.integers(1, 600))
def test_blocks_are_cut_alike_however_they_came(
    count: int, some: list[int], others: list[int], nbytes: int
) -> None:
    whole = rows(count)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(column_zip, "PART_BYTES", nbytes)
        first, second = ([*recut(cut(whole, sizes))] for sizes in (some, others))
    assert [block.n for block in first] == [block.n for block in second]
    assert sum(block.n for block in first) == count
    if count:
        assert concat(first).to_arrow().equals(whole.to_arrow())
    for block in first[:-1]:
        assert block.additive_weight >= nbytes
        assert block.n == 1 or block.slice(0, block.n - 1).additive_weight < nbytes


def test_what_came_before_an_error_comes_first() -> None:
    def failing() -> object:
        yield rows(3)
        raise UDFError("no", why="", try_="")

    made = recut(failing())  # type: ignore[arg-type]
    assert next(made).n == 3
    with pytest.raises(UDFError):
        next(made)


@settings(deadline=None)
@given(st.integers(0, 40), SIZES, SIZES)
def test_columns_of_equal_rows_stand_side_by_side(
    count: int, some: list[int], others: list[int]
) -> None:
    whole = rows(count)
    schema = Schema((name, whole.schema[name]) for name in ("l", "t", "x"))
    lists = [cut(whole.select(["x", "l"]), some), cut(whole.select(["t"]), others)]
    made = list(all_beside(lists, schema, "here"))
    computed = column_zip.beside([Cursor(lists[0])], lists[1], schema, "here")
    for found in (made, list(computed)):
        assert sum(block.n for block in found) == count
        if count:
            assert concat(found).to_arrow().equals(whole.select([*schema]).to_arrow())


@pytest.mark.parametrize("place", [0, 1])
def test_other_rows_are_an_error(place: int) -> None:
    whole = rows(10)
    schema = Schema((name, whole.schema[name]) for name in ("x", "t"))
    fewer = whole.slice(0, 9)
    other = Block(whole.schema, whole.columns, RowIds.run(8, 0, 10))
    for wrong in (fewer, other, whole.take(np.arange(9, -1, -1))):
        lists = [[whole.select(["x"])], [whole.select(["t"])]]
        lists[place] = [wrong.select(lists[place][0].schema.names)]
        with pytest.raises(NonDeterminismError):
            list(all_beside(lists, schema, "here"))
        with pytest.raises(NonDeterminismError):
            list(column_zip.beside([Cursor(lists[0])], lists[1], schema, "here"))
