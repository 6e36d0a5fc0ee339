"""Test which arrays over mapped or shared memory users may receive without a copy.

Each byte of shared memory is given to a user at most once, and writes to it never change rows.
Memory that one run alone reads is delivered without a copy.
"""

from __future__ import annotations

import ctypes
import gc
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.data import buffer_ownership
from dml.data.block import Block, concat
from dml.data.buffer_ownership import LEAST, Alone, Lent, owned
from dml.data.schema import Schema, tensor
from dml.exec.memory.memory_meter import counted_bytes
from dml.exec.process import channel
from dml.exec.process.channel import Sheet, mapped
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec
from dml.udfs.calling.array_results import views
from dml.udfs.calling.batch_arrays import batch_of, own_arrays_of
from tests.alone import alone

N = LEAST // 8


def array_over(wanted: np.ndarray) -> np.ndarray:
    """The elements of ``wanted`` in a mapped file of their own."""
    sheet = Sheet()
    sheet.place(memoryview(wanted.tobytes()))
    return np.frombuffer(mapped(sheet.file), wanted.dtype)[: len(wanted)]


def is_copied(array: np.ndarray) -> bool:
    return array.base is None


@pytest.mark.law
@given(st.lists(st.tuples(st.integers(-3, 60), st.integers(-3, 60)), max_size=12))
def test_no_byte_is_given_twice(asked: list[tuple[int, int]]) -> None:
    memory = bytearray(range(50))
    lent, seen = Lent(1000, memoryview(memory)), set[int]()
    for first, last in ((min(each), max(each)) for each in asked):
        found, wanted = lent.take(1000 + first, 1000 + last), set(range(first, last))
        if found is None:
            assert first < 0 or last > 50 or wanted & seen or not wanted
        else:
            assert bytes(found) == bytes(range(first, last))
            assert not wanted & seen
        seen |= wanted if 0 <= first <= last <= 50 else set()


@pytest.mark.law
def test_threads_that_ask_at_once_get_it_once() -> None:
    for _ in range(50):
        lent, found = Lent(0, memoryview(bytearray(8))), list[memoryview | None]()
        gate = threading.Barrier(4)

        def ask(
            gate: threading.Barrier = gate,
            lent: Lent = lent,
            found: list[memoryview | None] = found,
        ) -> None:
            gate.wait()
            found.append(lent.take(0, 8))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert sum(each is not None for each in found) == 1


def test_what_is_written_is_seen_by_nobody_else() -> None:
    wanted = np.arange(N)
    rows = array_over(wanted)
    first, second = owned(rows), owned(rows)
    assert not is_copied(first)
    assert is_copied(second), "the file's pages were given before"
    first[:] = -1
    assert np.array_equal(rows, wanted)
    assert np.array_equal(second, wanted)
    assert np.array_equal(owned(rows), wanted)


@pytest.mark.parametrize(
    "shown",
    [
        lambda rows: rows[: N // 2],
        lambda rows: rows[::2],
        lambda rows: rows[: len(rows) // buffer_ownership.PART - 1],
    ],
)
def test_little_and_scattered_rows_are_copied(shown: Callable[[np.ndarray], np.ndarray]) -> None:
    rows = shown(array_over(np.arange(4 * N)))
    assert is_copied(owned(rows))
    assert np.array_equal(owned(rows), rows)


def test_rows_of_several_columns_share_what_is_lent() -> None:
    rows = array_over(np.arange(2 * N))
    first, second = owned(rows[:N]), owned(rows[N:])
    assert not is_copied(first)
    assert not is_copied(second)
    first[:], second[:] = 1, 2
    assert np.array_equal(rows, np.arange(2 * N))
    assert (first == 1).all()


@pytest.mark.law
def test_what_is_unmapped_is_lent_no_more() -> None:
    gc.collect()
    before = len(buffer_ownership._PLACES)
    rows = array_over(np.arange(N))
    assert len(buffer_ownership._PLACES) == len(buffer_ownership._STARTS) == before + 1
    kept = owned(rows)
    del rows
    gc.collect()
    assert len(buffer_ownership._PLACES) == len(buffer_ownership._STARTS) == before
    assert kept[-1] == N - 1, "what was given stays"


def test_files_that_grow_lend_nothing() -> None:
    """An array of the first rows would keep all that follow."""
    before, sheet = len(buffer_ownership._PLACES), Sheet()
    kept = [sheet.keep(lambda sink: sink.write(bytes(2 * LEAST))) for _ in range(3)]
    assert len(buffer_ownership._PLACES) == before
    assert len(kept) == 3


def test_without_mappings_rows_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> memoryview:
        raise OSError("no mapping is left")

    monkeypatch.setattr(channel, "own", refused)
    rows = array_over(np.arange(N))
    assert is_copied(owned(rows))


def test_functions_cannot_reach_the_rows_that_they_are_given() -> None:
    """A flag that is set back and a second call, as when a task is done again."""
    column = pa.array(np.arange(N))
    block = Block.from_arrow(pa.record_batch({"x": column}), RowIds.run(0, 0, N))
    sheet = Sheet()
    sheet.keep(lambda sink: _written(sink, block.to_arrow()))
    (batch,) = pa.ipc.open_stream(mapped(sheet.file))
    lent = Block.from_arrow(batch, block.ids)
    for _ in range(3):
        given_ = views(lent)["x"]
        assert np.array_equal(given_, np.arange(N))
        assert not given_.flags.writeable
        given_.setflags(write=True)
        given_[:] = 7
    assert lent.to_arrow().column(0).equals(column)


def _written(sink: pa.NativeFile, batch: pa.RecordBatch) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


@pytest.mark.law
@alone
def test_pages_that_were_written_to_are_counted() -> None:
    rows = array_over(np.zeros(16 * N))
    first = owned(rows)
    before = counted_bytes()
    first[:] = 1
    after = counted_bytes()
    assert before is not None
    assert after is not None
    assert after - before > 12 * N * 8


# ------------------------------------------------------------------------ what one run has alone


@contextmanager
def of_its_own(count: int) -> Iterator[np.ndarray]:
    """An array over ``count`` bytes that are told to be read by one run."""
    owner = (ctypes.c_char * count)()
    buffer_ownership.alone(ctypes.addressof(owner), owner)
    data = np.frombuffer(pa.py_buffer(owner).slice(0, count), np.uint8)
    data.flags.writeable = False
    try:
        yield data
    finally:
        buffer_ownership.gone(ctypes.addressof(owner))


@given(cuts=st.lists(st.integers(0, 24), min_size=1, max_size=6).map(sorted), gap=st.booleans())
def test_neighbours_are_joined_without_a_copy(cuts: list[int], gap: bool) -> None:
    with of_its_own(24 * 4) as data:
        rows = data.view(np.int16).reshape(24, 2)
        edges = [0, *cuts, 24]
        parts = [rows[a:b] for a, b in pairwise(edges)]
        if gap and len(parts[-1]):
            parts[-1] = parts[-1][1:]
        found = buffer_ownership.joined(parts)
        wanted = np.concatenate(parts)
        follow = all(a.ctypes.data + a.nbytes == b.ctypes.data for a, b in pairwise(parts))
        assert (found is not None) == follow
        if found is not None:
            assert found.shape == wanted.shape
            assert (found == wanted).all()
            assert found.ctypes.data == parts[0].ctypes.data
            assert not found.flags.writeable
        assert buffer_ownership.joined([parts[0], rows.astype(np.int32)]) is None


@given(st.integers(-20, 40), st.integers(0, 40))
def test_no_array_reaches_beyond_it(start: int, count: int) -> None:
    """Memory that comes and goes meanwhile may be asked for what lies before it."""
    owner = (ctypes.c_char * 16)()
    place = ctypes.addressof(owner)
    found = Alone(place, owner).array(place + start, np.dtype(np.uint8), (count,))
    assert (found is not None) == (0 <= start < 16 and start + count <= 16)


def test_memory_that_another_thread_registers_meanwhile_hides_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = (ctypes.c_char * 16)()

    def meanwhile(starts: list[int], address: int) -> int:
        found = bisect_right(starts, address)
        buffer_ownership.alone(1, other)  # below all others
        return found

    with of_its_own(64) as data:
        monkeypatch.setattr(buffer_ownership, "bisect_right", meanwhile)
        try:
            assert buffer_ownership.handed(data) is not None
        finally:
            buffer_ownership.gone(1)


def test_what_is_not_such_memory_is_not_handed_out() -> None:
    with of_its_own(64) as data:
        assert buffer_ownership.handed(data) is not None
        assert buffer_ownership.handed(data[::2]) is None, "it has gaps"
        assert buffer_ownership.handed(np.zeros(64, np.uint8)) is None
        assert buffer_ownership.joined([np.zeros(4), np.zeros(4)]) is None


def test_one_sort_of_memory_is_not_taken_for_the_other() -> None:
    rows = array_over(np.zeros(N))
    assert buffer_ownership.handed(rows) is None, "others read it"
    buffer_ownership.finish(rows)
    assert not buffer_ownership.finished(rows)
    with of_its_own(LEAST) as data:
        assert is_copied(owned(data)), "a function may be given the same rows again"


def test_floats_are_looked_at_unless_none_is_nan_there() -> None:
    beyond = (ctypes.c_char * 64)()
    with of_its_own(64) as data:
        floats = data.view(np.float32)
        assert not buffer_ownership.finished(floats)
        for part in (floats[:1], floats[4:]):
            buffer_ownership.finish(part, part.nbytes)
            assert not buffer_ownership.finished(floats), "three of them may be NaN"
        buffer_ownership.finish(floats[1:4], 12)
        assert buffer_ownership.finished(floats)
    with of_its_own(64) as data:
        floats = data.view(np.float32)
        buffer_ownership.finish(floats[:1])
        assert buffer_ownership.finished(floats)
        assert buffer_ownership.finished(floats[3:5])
        assert not buffer_ownership.finished(np.frombuffer(memoryview(beyond), np.float32))
        assert not buffer_ownership.finished(np.zeros(4, np.float32))
    assert not buffer_ownership.finished(floats)
    buffer_ownership.finish(floats)
    assert not buffer_ownership.finished(floats)


def test_what_was_handed_out_keeps_the_memory() -> None:
    with of_its_own(64) as data:
        handed = buffer_ownership.handed(data[8:])
    assert handed is not None
    del data
    gc.collect()
    handed[:] = 5
    assert handed.sum() == 5 * 56


def block(**columns: np.ndarray) -> Block:
    kinds = {name: tensor(a.dtype.str[1:], a.shape[1:]) for name, a in columns.items()}
    rows = len(next(iter(columns.values())))
    return Block(Schema(kinds.items()), tuple(map(Vec, columns.values())), RowIds.run(0, 0, rows))


def test_columns_of_the_same_memory_are_copied() -> None:
    with of_its_own(64) as data:
        apart = own_arrays_of(block(a=data[:32], b=data[32:]), batch_of)
        assert np.shares_memory(apart["a"], data)
        assert np.shares_memory(apart["b"], data)
        for other in (data[:32], data[31:63]):
            both = own_arrays_of(block(a=data[:32], b=other), batch_of)
            assert not any(np.shares_memory(each, data) for each in both.values())
            assert not np.shares_memory(both["a"], both["b"])
        assert not np.shares_memory(batch_of(block(a=data[:32]))["a"], data)


def test_blocks_side_by_side_become_one_that_is_handed_out() -> None:
    with of_its_own(64) as data:
        whole = concat([block(a=data[:32]), block(a=data[32:])])
        out = own_arrays_of(whole, batch_of)["a"]
        assert out.ctypes.data == data.ctypes.data
        out[:] = 1
        assert data.sum() == 64
