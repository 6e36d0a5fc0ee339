"""Test sorted runs on disk and ranges of them: each row once, in sorted order."""

from __future__ import annotations

import dataclasses
import gc
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml.cluster.exchange.sorted_runs
from dml.cluster.exchange.range_partition import Ranges, RunIndex, bounds_of, check_same
from dml.cluster.exchange.sorted_runs import (
    BatchSpan,
    ByColumns,
    ByKey,
    RunShelf,
    batches,
    bounded,
    received,
    run_path,
    sent,
    store_run,
)
from dml.data.block import Block, concat
from dml.data.schema import Schema
from dml.errors import NonDeterminismError
from dml.exec.memory.spill import PREFIX, DiskSpill
from dml.exec.tasks.partition import Piece
from dml.expr.flow import UNBOUNDED, At
from dml.kernels.compiled.tier_choice import KernelTiers
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec

KINDS = Schema({"x": pa.float64(), "s": pa.string(), "n": pa.int64()})
NAN = float("nan")


def rows_of(x: Sequence[float | None], s: Sequence[str | None], first: int) -> Block:
    """Rows with their numbers."""
    floats = np.array([0.0 if v is None else v for v in x], "f8")
    valid = np.array([v is not None for v in x], bool)
    numbers = np.arange(first, first + len(x))
    columns = (Vec(floats, valid), pa.array(s, pa.string()), Vec(numbers, None))
    return Block(KINDS, columns, RowIds.run(5, first, len(x)))


class Local:
    """Reads runs of one shelf."""

    def __init__(self, shelf: RunShelf, index: RunIndex) -> None:
        self.shelf, self.index = shelf, index

    def _each(self, span: BatchSpan) -> Iterator[Block]:
        path = run_path(self.shelf.path, self.index.names[span.run])
        return batches(path, self.index.schema, span.first, span.stop)

    def all(self, spans: Sequence[BatchSpan]) -> list[Block]:
        return [concat(list(self._each(span))) for span in spans]


AT = At(0, 0, KernelTiers(Path("unused"), "numpy"), {}, DiskSpill, 0)


def sorted_range(ranges: Ranges, number: int, reader: Local) -> Iterator[Block]:
    """The rows of a range in order, without a column of keys."""
    flow = ranges.rows(number, reader.all, AT)
    names = [name for name in ranges.index.schema.names if name in KINDS or name in WIDE]
    while (block := flow.pull(UNBOUNDED)) is not None:
        yield block.select(names)
    flow.close()


FEW = st.sampled_from([None, NAN, 0.0, -0.0, 1.5, -2.0, float("inf")])
TEXTS = st.sampled_from([None, "", "a", "b", "aa", "é"])


@st.composite
def partitions(draw: st.DrawFn) -> list[Block]:
    """Blocks of rows with few values, so that most keys are equal to others."""
    found, first = [], 0
    for _ in range(draw(st.integers(1, 5))):
        n = draw(st.integers(0, 40))
        x = draw(st.lists(FEW, min_size=n, max_size=n))
        s = draw(st.lists(TEXTS, min_size=n, max_size=n))
        found.append(rows_of(x, s, first))
        first += n
    return found


def mixed(ids: RowIds) -> np.ndarray:
    """Keys of which some are equal."""
    return (ids.low() * np.uint64(7919)) % np.uint64(61)


@st.composite
def orders(draw: st.DrawFn) -> ByColumns | ByKey:
    if draw(st.booleans()):
        return ByKey(mixed)
    names = draw(st.sampled_from([("x",), ("s",), ("x", "s"), ("s", "x"), ("n",)]))
    down = tuple(draw(st.lists(st.booleans(), min_size=len(names), max_size=len(names))))
    return ByColumns(names, down, draw(st.booleans()), together=draw(st.booleans()))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Batches of a few rows."""
    monkeypatch.setattr(dml.cluster.exchange.sorted_runs, "LEAST_BATCH", 150)
    return monkeypatch


def written(shelf: RunShelf, blocks: list[Block], by: ByColumns | ByKey) -> list[Block]:
    told = [store_run(shelf, [Piece(place, 0, block)], by) for place, block in enumerate(blocks)]
    return [each for each in told if each is not None]


def shown(blocks: list[Block]) -> list[tuple[Any, ...]]:
    """All that rows are: values and ids."""
    found: list[tuple[Any, ...]] = []
    for block in blocks:
        columns = [each.to_pylist() for each in block.to_arrow().columns]
        lows = block.ids.low().tolist()
        found += [tuple(map(repr, row)) for row in zip(*columns, lows, strict=True)]
    return found


@pytest.mark.law
def test_ranges_are_the_sorted_rows(small: pytest.MonkeyPatch) -> None:
    """Whatever the runs, the order, the ranges and what may be kept: rows of one stable sort."""

    @given(partitions(), orders(), st.integers(1, 5_000), st.sampled_from([1, 300, 2000, 1 << 20]))
    def holds(
        blocks: list[Block], by: ByColumns | ByKey, range_bytes: int, most_bytes: int
    ) -> None:
        with tempfile.TemporaryDirectory() as root:
            shelf = RunShelf(root)
            told = written(shelf, blocks, by)
            whole = by.stored(concat(blocks))
            if not told:
                assert not whole.n
                return
            index = RunIndex.of(told, by)
            stored = ByKey(None) if isinstance(by, ByKey) else by
            bounds = bounds_of(index, stored, range_bytes)
            ranges = Ranges(index, stored, bounds, range_bytes, most_bytes)
            reader = Local(shelf, index)
            parts = [list(sorted_range(ranges, number, reader)) for number in range(len(ranges))]
            got = [block for part in parts for block in part]
            names = KINDS.names
            assert shown(got) == shown([whole.take(by.order(whole)).select(names)])
            assert index.rows.sum() == whole.n
            if isinstance(by, ByColumns) and by.together:
                some = [concat(part) for part in parts if sum(b.n for b in part)]
                for one, following in pairwise(some):
                    assert by.keyed(one)[one.n - 1] != by.keyed(following)[0], "groups stay whole"
            shelf.close()

    holds()


LONG = st.lists(st.sampled_from(["a", "b", "é", chr(0x10FFFF), chr(0xD7FF)]), max_size=6)


@pytest.mark.law
@given(st.lists(LONG.map("".join), min_size=2, max_size=2), st.booleans(), st.booleans())
def test_bounds_of_long_keys_keep_the_order(values: list[str], down: bool, text: bool) -> None:
    """A value comes before a cut one exactly if it does so cut; a cut one is cut already."""
    letters = [value if text else value.encode() for value in values]
    with pytest.MonkeyPatch.context() as few:
        few.setattr(dml.cluster.exchange.sorted_runs, "LONGEST", 2)
        one, other = letters
        bound = bounded(other, down=down)
        assert bounded(bound, down=down) == bound
        before = one > bound if down else one < bound
        cut = bounded(one, down=down)
        assert before == (cut > bound if down else cut < bound)
        assert bound >= other if down else bound <= other
        some = [each for each in (chr(0x10FFFF), b"\xff") if isinstance(each, type(other))]
        assert len(bound) <= 2 or (down and other[:2] == some[0] * 2)


@pytest.mark.law
def test_ranges_by_bounds_of_long_keys(small: pytest.MonkeyPatch) -> None:
    """As ranges are with whole keys, by one column and by several."""
    small.setattr(dml.cluster.exchange.sorted_runs, "LONGEST", 1)
    test_ranges_are_the_sorted_rows(small)


@pytest.mark.law
def test_what_is_told_of_long_keys_is_short(tmp_path: Path) -> None:
    """A row for each batch, but not a row's bytes, whichever way the order goes."""
    texts = [f"{i * 7 % 50:03}" + "x" * 20_000 for i in range(50)]
    block = rows_of([1.0] * 50, texts, 0)
    for down in (False, True):
        shelf = RunShelf(str(tmp_path))
        by = ByColumns(("s", "n"), (down, False))
        (told,) = written(shelf, [block], by)
        assert told.n == 50
        assert told.nbytes < 50 * 600
        index = RunIndex.of([told], by)
        ranges = Ranges(index, by, bounds_of(index, by, 100_000), 100_000, 200_000)
        assert len(ranges) > 8, "they tell ranges apart"
        reader = Local(shelf, index)
        got = [
            part for number in range(len(ranges)) for part in sorted_range(ranges, number, reader)
        ]
        assert shown(got) == shown([block.take(by.order(block))])


@pytest.mark.law
def test_many_ranges_of_many_rows(small: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ranges are about as large as asked for, also where all keys are equal."""
    shelf = RunShelf(str(tmp_path))
    by = ByColumns(("x",), (False,))
    blocks = [rows_of([1.0] * 1000, ["t"] * 1000, 1000 * part) for part in range(8)]
    index = RunIndex.of(written(shelf, blocks, by), by)
    range_bytes = index.total_bytes // 10
    ranges = Ranges(index, by, bounds_of(index, by, range_bytes), range_bytes, 2 * range_bytes)
    reader = Local(shelf, index)
    sizes = [
        sum(b.n for b in sorted_range(ranges, number, reader)) for number in range(len(ranges))
    ]
    assert len(sizes) in (10, 11)
    assert max(sizes) < 1.5 * 8000 / 10
    together = dataclasses.replace(by, together=True)
    assert bounds_of(index, together, 1) == (), "all rows are of one group"


def test_a_run_has_the_same_name_wherever_it_is_made(tmp_path: Path) -> None:
    one, other = RunShelf(str(tmp_path)), RunShelf(str(tmp_path))
    by = ByColumns(("s",), (False,))
    pieces = [Piece(3, 1, rows_of([1.0, NAN, None], ["c", "a", "b"], 7))]
    told = [store_run(shelf, pieces, by) for shelf in (one, other, other)]
    assert told[0] is not None
    assert shown([told[0]]) == shown([each for each in told[1:2] if each is not None])
    assert one.names == other.names
    assert len(one.names) == 1
    changed = [Piece(3, 1, rows_of([2.0, NAN, None], ["c", "a", "b"], 7))]
    differing = store_run(one, changed, by)
    assert differing is not None
    index = RunIndex.of([told[0]], by)
    check_same(index, [told[0]])
    with pytest.raises(NonDeterminismError, match="not what they were"):
        check_same(index, [differing])


def test_nothing_is_told_of_no_rows(tmp_path: Path) -> None:
    shelf = RunShelf(str(tmp_path))
    by = ByColumns(("s",), (False,))
    assert store_run(shelf, [Piece(0, 0, ends=True)], by) is None
    assert store_run(shelf, [Piece(0, 0, rows_of([], [], 0))], by) is None
    assert shelf.names == []


def test_batches_travel(small: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What another worker is sent is what lies on the disk."""
    shelf = RunShelf(str(tmp_path))
    by = ByColumns(("x",), (False,))
    told = written(shelf, [rows_of([float(i % 9) for i in range(90)], ["x"] * 90, 0)], by)
    index = RunIndex.of(told, by)
    path = run_path(shelf.path, index.names[0])
    count = int(index.offsets[1])
    assert count > 4
    wanted = list(batches(path, index.schema, 1, 4))
    assert shown(list(received(sent([(path, 1, 3), (path, 3, 4)]), index.schema))) == shown(wanted)


def test_the_folder_goes_with_the_shelf(tmp_path: Path) -> None:
    closed, forgotten = RunShelf(str(tmp_path)), RunShelf(str(tmp_path))
    by = ByColumns(("x",), (False,))
    for shelf in (closed, forgotten):
        store_run(shelf, [Piece(0, 0, rows_of([1.0], ["a"], 0))], by)
    assert len(list(tmp_path.glob(f"{PREFIX}*/*.arrow"))) == 2
    closed.close()
    del forgotten, shelf
    gc.collect()
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------- what is in memory

WIDE = Schema({"n": pa.int64(), "b": pa.binary()})


def wide(keys: Sequence[int], width: int, first: int) -> Block:
    """Rows of a number and ``width`` bytes."""
    columns = (Vec(np.array(keys, "i8"), None), pa.array([bytes(width)] * len(keys), pa.binary()))
    return Block(WIDE, columns, RowIds.run(5, first, len(keys)))


class Watched(Local):
    """Reads runs of one shelf, and knows the most that Arrow held meanwhile, and what was read."""

    def __init__(self, shelf: RunShelf, index: RunIndex) -> None:
        super().__init__(shelf, index)
        self.before, self.most, self.read = pa.total_allocated_bytes(), 0, 0

    def look(self) -> None:
        self.most = max(self.most, pa.total_allocated_bytes() - self.before)

    def all(self, spans: Sequence[BatchSpan]) -> list[Block]:
        self.read += sum(span.stop - span.first for span in spans)
        blocks = super().all(spans)
        self.look()
        return blocks


RUNS = 40
# of a run, a row in it, and the number of its rows
KEYS: dict[str, Callable[[int, int, int], int]] = {
    "mixed": lambda run, row, n: (run * n + row) * 7919 % (RUNS * n),
    "alike": lambda _run, row, _n: row,  # rows of one key, and the next ones, are in all runs
    "one": lambda *_: 7,
}


@pytest.mark.sample(5)
@pytest.mark.law
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize(("width", "n"), [(900, 600), (40_000, 20)], ids=["narrow", "wide"])
def test_what_is_read_too_much_is_not_kept(
    tmp_path: Path, width: int, n: int, keys: str, together: bool
) -> None:
    """Also where a batch of each run is many times what may be kept: no run adds to it."""
    shelf = RunShelf(str(tmp_path))
    by = ByColumns(("n",), (False,), together=together)
    numbers = [[KEYS[keys](run, row, n) for row in range(n)] for run in range(RUNS)]
    blocks = [wide(some, width, n * run) for run, some in enumerate(numbers)]
    index = RunIndex.of(written(shelf, blocks, by), by)
    range_bytes, most_bytes = n * width // 2, 3 * n * width // 4
    bounds = bounds_of(index, by, range_bytes)
    ranges = Ranges(index, by, bounds, range_bytes, most_bytes)
    reader, got, rows = Watched(shelf, index), list[int](), 0
    for number in range(len(ranges)):
        for block in sorted_range(ranges, number, reader):
            reader.look()
            assert block.nbytes <= most_bytes
            got += np.asarray(block["n"][0]).tolist()
            rows += block.n
            del block
    assert got == sorted(each for some in numbers for each in some)
    assert reader.most <= ranges.working_bytes + most_bytes < n * width * RUNS // 5
    if width > index.batch_bytes // 2:
        assert reader.read <= 1.2 * rows + 2 * RUNS or together, "a row says all of a batch"


def test_bytes_of_batches_are_those_of_their_rows(tmp_path: Path) -> None:
    """One row that is large does not hide among little ones."""
    shelf = RunShelf(str(tmp_path))
    by = ByColumns(("n",), (False,))
    block = concat([wide(range(100), 400, 0), wide([100], 300_000, 100)])
    for _ in range(2):  # the second finds the run there
        (told,) = written(shelf, [block], by)
        sizes = RunIndex.of([told], by).nbytes
        assert sizes[-1] > 300_000 > 10 * max(sizes[:-1])
        file = run_path(shelf.path, shelf.names[0])
        assert 0.9 * file.stat().st_size < sizes.sum() <= file.stat().st_size
