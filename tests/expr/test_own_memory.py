"""This file tests memory of one's own over mapped files: given once, and never seen in the rows."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.exec import channel
from dml.exec.channel import Sheet, mapped
from dml.exec.memory import counted_bytes
from dml.expr import own_memory
from dml.expr.arrays import views
from dml.expr.block import Block
from dml.expr.own_memory import LEAST, Offer, owned
from dml.kernels.ids import RowIds
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
    offer, seen = Offer(1000, memoryview(memory)), set[int]()
    for first, last in ((min(each), max(each)) for each in asked):
        found, wanted = offer.take(1000 + first, 1000 + last), set(range(first, last))
        if found is None:
            assert first < 0 or last > 50 or wanted & seen or not wanted
        else:
            assert bytes(found) == bytes(range(first, last))
            assert not wanted & seen
        seen |= wanted if 0 <= first <= last <= 50 else set()


@pytest.mark.law
def test_threads_that_ask_at_once_get_it_once() -> None:
    for _ in range(50):
        offer, found = Offer(0, memoryview(bytearray(8))), list[memoryview | None]()
        gate = threading.Barrier(4)

        def ask(
            gate: threading.Barrier = gate,
            offer: Offer = offer,
            found: list[memoryview | None] = found,
        ) -> None:
            gate.wait()
            found.append(offer.take(0, 8))

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
        lambda rows: rows[: len(rows) // own_memory.PART - 1],
    ],
)
def test_little_and_scattered_rows_are_copied(shown: Callable[[np.ndarray], np.ndarray]) -> None:
    rows = shown(array_over(np.arange(4 * N)))
    assert is_copied(owned(rows))
    assert np.array_equal(owned(rows), rows)


def test_rows_of_several_columns_share_an_offer() -> None:
    rows = array_over(np.arange(2 * N))
    first, second = owned(rows[:N]), owned(rows[N:])
    assert not is_copied(first)
    assert not is_copied(second)
    first[:], second[:] = 1, 2
    assert np.array_equal(rows, np.arange(2 * N))
    assert (first == 1).all()


@pytest.mark.law
def test_what_is_unmapped_is_offered_no_more() -> None:
    gc.collect()
    before = len(own_memory._OFFERS)
    rows = array_over(np.arange(N))
    assert len(own_memory._OFFERS) == len(own_memory._STARTS) == before + 1
    kept = owned(rows)
    del rows
    gc.collect()
    assert len(own_memory._OFFERS) == len(own_memory._STARTS) == before
    assert kept[-1] == N - 1, "what was given stays"


def test_files_that_grow_offer_nothing() -> None:
    """An array of the first rows would keep all that follow."""
    before, sheet = len(own_memory._OFFERS), Sheet()
    kept = [sheet.keep(lambda sink: sink.write(bytes(2 * LEAST))) for _ in range(3)]
    assert len(own_memory._OFFERS) == before
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
