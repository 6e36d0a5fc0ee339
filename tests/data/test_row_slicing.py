"""Test how rows of functions are cut into blocks: by their bytes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.data import row_slicing
from dml.data.block import Block
from dml.data.row_slicing import (
    MOST_STEP,
    PART_BYTES,
    CallPace,
    NumberedRows,
    by_weight,
    in_parts,
    unfit,
    weighed,
)
from dml.data.schema import Schema, data_type, tensor
from dml.errors import DmlError, MemoryContractError
from dml.kernels.rows.ids import RowIds
from dml.ops.row import flat_map
from dml.udfs.calling.python_rows import to_list

TEXTS = Schema({"s": data_type("string")})
SIZES = st.lists(st.sampled_from([0, 1, 30, 500, 4000, 90_000]), min_size=1, max_size=200)
QUIET = {"telemetry_dir": "off", "executor": "sync", "optimize": False}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_slicing, "PART_BYTES", 5000)
    monkeypatch.setattr(row_slicing, "CALLS", 50)


def rows_of(sizes: list[int]) -> Block:
    values = pa.array(["x" * size for size in sizes], pa.string())
    return Block(TEXTS, (values,), RowIds.run(3, 0, len(sizes)))


@pytest.mark.law
@given(SIZES)
def test_all_rows_come_in_order_in_blocks_that_are_not_large(sizes: list[int]) -> None:
    block, steps = rows_of(sizes), list[tuple[int, int]]()

    def work(start: int, stop: int) -> Iterator[Block]:
        steps.append((start, stop))
        yield block.slice(start, stop)

    made = list(by_weight(block.n, TEXTS, work))
    assert [len(v) for each in made for v in to_list(each["s"])] == sizes
    assert [start for start, _ in steps] == [0, *(stop for _, stop in steps[:-1])]
    assert max(each.n for each in made) <= 50
    last = {stop for _, stop in steps}
    end = 0
    for each in made:  # without its last step a block is small
        end += each.n
        start = max(start for start, stop in steps if stop == end)
        assert sum(sizes[end - each.n : start]) < 5000
        assert end in last


@pytest.mark.law
@given(SIZES, st.integers(0, 199))
def test_what_was_made_before_an_error_comes_first(sizes: list[int], row: int) -> None:
    block = rows_of(sizes)

    def work(start: int, stop: int) -> Iterator[Block]:
        if start <= row < stop:
            if row > start:
                yield block.slice(start, row)
            raise DmlError("no")
        yield block.slice(start, stop)

    got: list[int] = []
    try:
        got.extend(each.n for each in by_weight(block.n, TEXTS, work))
    except DmlError:
        assert sum(got) == row
    else:
        assert sum(got) == len(sizes) <= row


@given(st.lists(st.integers(1, 9), max_size=9), st.lists(st.integers(1, 20), max_size=9))
def test_rows_are_taken_by_number(lengths: list[int], wanted: list[int]) -> None:
    block, ends = rows_of([0] * sum(lengths)), np.cumsum([0, *lengths]).tolist()
    parts = (block.slice(a, b) for a, b in pairwise(ends))
    rows, left = NumberedRows(parts), block.n
    for want in wanted:
        got = sum(each.n for each in rows.take(want))
        assert got == min(want, left)
        left -= got


def test_numbers_are_not_weighed_and_texts_begin_with_one() -> None:
    assert CallPace(Schema({"x": data_type("int64")})).step == 50
    pace = CallPace(TEXTS)
    assert pace.step == 1
    pace.record(1, 4)
    assert pace.step == 4
    pace.record(4, 40_000)
    assert pace.step == 1, "rows of 10 kB do not fit into a part"
    pace.record(1, 0)
    assert pace.step == 1, "others like them may come"


def test_rows_with_places_of_their_own_make_larger_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for nbytes, usual, placed in ((10 << 20, 1, 1), (4 << 20, 1, 2), (600_000, 4, 13)):
        schema = Schema({"x": tensor("u1", (nbytes,))})
        assert CallPace(schema).step == usual
        assert CallPace(schema, placed=True).step == placed


def test_a_block_is_divided_only_where_that_would_be_large() -> None:
    wide = Schema({"v": pa.fixed_shape_tensor(pa.float64(), (1000,))})
    block = rows_of([1] * 10_000)
    parts = list(in_parts(block, wide, lambda _: 0))
    assert [each.n for each in parts] == [1048] * 9 + [568]
    assert list(in_parts(block, TEXTS, lambda some: 10 * some.n)) == [block]
    grown = list(in_parts(block, TEXTS, lambda some: 100_000 * some.n))
    assert sum(each.n for each in grown) == 10_000
    assert len(grown) == 121


def test_values_are_weighed_however_deep_they_lie() -> None:
    assert weighed([{"a": "xx", "b": b"yyy"}] * 3) == 15
    assert weighed([{"a": np.zeros(4)}]) == 32
    assert weighed([{"a": ["xx", {"b": b"yyy"}]}]) == 5
    assert weighed([{"a": [1, 2]}, {"a": []}]) == 32
    assert weighed([{"a": [1.5, None]}, {"a": ["xx"]}]) == 34
    assert weighed([{"a": "xx"}, {"b": 1}, None]) > 0, "what others complain of has some weight"
    assert weighed([]) == 0


def test_a_row_that_is_too_large_is_found() -> None:
    rows = [{"s": "x" * n} for n in (1, 2, 90, 3)]
    assert unfit(rows, TEXTS, 50) == (2, 90)
    assert unfit(rows, TEXTS, 96) is None


# ----------------------------------------------------------------------- what pipelines make of it


def grown(row: dict[str, Any]) -> dict[str, Any]:
    return {"k": row["id"], "s": "x" * (row["id"] * 7919 % 6000)}


def several(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for child in range(row["id"] % 4):
        yield {"k": row["id"], "s": "x" * (child * 3000)}


def drawn(row: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {"k": row["id"], "s": "x" * (int(rng.integers(4)) * 2000)}


def some_raise(row: dict[str, Any]) -> dict[str, Any]:
    return {**grown(row), "never": 1 // (row["id"] % 5)}


PIPELINES: dict[str, Callable[[dml.Dataset], dml.Dataset]] = {
    "map": lambda ds: ds.map(grown),
    "map, filter": lambda ds: ds.map(grown).filter(lambda row: row["k"] % 3 > 0),
    "flat_map": lambda ds: ds.flat_map(several),
    "random_map": lambda ds: ds.random_map(drawn, seed=1),
    "skipping": lambda ds: ds.map(some_raise, on_error="skip"),
}


@pytest.mark.law
@pytest.mark.parametrize("name", PIPELINES)
def test_rows_are_the_same_however_they_are_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = PIPELINES[name](dml.range(0, 300, atom_rows=120)).with_options(**QUIET)
    cut = list(ds.epoch(0))
    monkeypatch.setattr(row_slicing, "PART_BYTES", PART_BYTES)
    monkeypatch.setattr(row_slicing, "MOST_STEP", 16 * MOST_STEP)
    monkeypatch.setattr(flat_map, "OUT_ROWS", 4096)
    assert list(ds.epoch(0)) == cut


def test_types_settle_by_more_rows_than_a_part_has() -> None:
    """The 20th row says that the column holds floats; the first part ends before it."""
    rows = dml.range(0, 40).map(lambda r: {"x": 0.5 if r["id"] == 20 else 1, "s": "x" * 1000})
    made = list(rows.with_options(**QUIET))
    assert [row["x"] for row in made[18:22]] == [1.0, 1.0, 0.5, 1.0]


@pytest.mark.parametrize("verb", ["map", "flat_map", "declared"])
def test_a_row_that_cannot_fit_is_a_named_error(verb: str) -> None:
    def large(row: dict[str, Any]) -> Any:
        found = {"k": row["id"], "b": b"1" * (9_000_000 if row["id"] == 70 else 1)}
        return [found] if verb == "flat_map" else found

    ds = dml.range(0, 100).with_options(**QUIET, memory_limit="16MiB")
    made = ds.flat_map(large) if verb == "flat_map" else ds.map(large)
    if verb == "declared":
        made = ds.map(large, schema={"k": "int64", "b": "binary"})
    given = list[Any]()
    with pytest.raises(MemoryContractError, match="returned does not fit into the memory") as found:
        given.extend(row["k"] for row in made)
    assert given == list(range(70)), "the rows before it come first"
    error = found.value
    assert "9000000 bytes" in error.why or "9000016 bytes" in error.why
    assert "row 70" in error.at
    assert error.try_
