"""Test channels: messages arrive unchanged, and leave no descriptors or memory."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dml.exec.process.channel import HEAD, LARGE, SMALL, Channel, MemoryNote, Message, Sheet, mapped
from tests.idle import descriptors, no_workers

HANG_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def nobody_else() -> None:
    """Workers of other tests do not go while these count descriptors."""
    no_workers(HANG_S)


def maps() -> int:
    with open("/proc/self/maps", encoding="ascii") as file:
        return sum("memfd:dml" in line for line in file)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = (Channel(end) for end in socket.socketpair())
    yield one, other
    one.close()
    other.close()


def crossed(value: Any, sheet: Sheet | None = None, *, writable: bool = False) -> Any:
    """What arrives at the other end; sent from a thread, as it may be larger than the socket."""
    one, other = (Channel(end, writable=writable) for end in socket.socketpair())
    sender = threading.Thread(target=one.send, args=(value, sheet))
    sender.start()
    try:
        return other.receive()
    finally:
        sender.join(HANG_S)
        one.close()
        other.close()


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        bits = a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
        return isinstance(b, np.ndarray) and bits
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


arrays = hnp.arrays(
    hnp.integer_dtypes() | hnp.floating_dtypes() | hnp.boolean_dtypes(),
    hnp.array_shapes(min_dims=0, min_side=0),
)
large = st.integers(0, 3 * SMALL).map(lambda n: np.arange(n, dtype=np.uint16))
leaves = (
    arrays
    | large
    | large.map(lambda a: a[::3])
    | large.map(lambda a: pa.py_buffer(a.tobytes()))
    | large.map(lambda a: pa.array(a)[1:])
    | hnp.arrays(np.float64, (60, 90)).map(np.asfortranarray)
    | st.binary()
    | st.text()
    | st.none()
    | st.integers()
)
nested = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@pytest.mark.law
@given(nested, st.booleans())
def test_what_arrives_is_what_was_sent(value: Any, writable: bool) -> None:
    assert same(crossed(value, writable=writable), value)


@pytest.fixture(scope="module")
def frozen() -> None:
    """Collections look at new objects alone: those of a whole process would take a second.

    They stay frozen, since to thaw them would thaw what the suite has frozen.
    """
    gc.collect()
    gc.freeze()


@pytest.mark.law
@pytest.mark.usefixtures("frozen")
@given(st.lists(st.sampled_from([0, 5, SMALL, LARGE - 1, LARGE, LARGE + 9]), max_size=6), st.data())
def test_every_array_is_the_receivers_own(sizes: list[int], data: st.DataObject) -> None:
    gc.collect()
    before = maps()
    value = [np.full(size, number, np.uint8) for number, size in enumerate(sizes)]
    got = crossed(value, writable=True)
    assert maps() == before + sum(size >= LARGE for size in sizes)
    for number in data.draw(st.permutations(range(len(sizes)))):
        assert (got[number] == number).all()
        got[number][:] = 99
    kept = [each for each in got if each.nbytes < LARGE]
    del got
    gc.collect()
    assert maps() == before, "what is small keeps nothing else"
    assert all((each == 99).all() for each in kept)


def test_the_rest_of_a_message_is_not_waited_for_blindly(ends: tuple[Channel, Channel]) -> None:
    """Who was suspended in the middle of a message sends no more of it."""
    one, other = ends
    message = Message(list(range(100)))
    one.socket.sendall(HEAD.pack(len(message.body), 0, 0) + message.body[:10])
    waits = list[bool]()

    def patient() -> None:
        waits.append(other.heard(0.0))
        if not waits[-1]:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        other.receive(patient)
    assert waits == [True, False]


def filled(content: bytes, sink: Any) -> None:
    sink.write(content)


@pytest.mark.law
@given(st.lists(st.integers(1, 3 * SMALL), min_size=1, max_size=5), st.data())
def test_what_lies_in_a_sheet_is_not_copied_again(sizes: list[int], data: st.DataObject) -> None:
    sheet = Sheet()
    kept = []
    for number, size in enumerate(sizes):
        kept.append(sheet.keep(partial(filled, bytes([number]) * size)))
    before = sheet.size
    extra = np.arange(data.draw(st.integers(0, 3 * SMALL)), dtype=np.uint8)
    got = crossed({"kept": kept, "extra": extra}, sheet)
    added = sheet.size - before
    large_enough = sum(sizes) + extra.nbytes > SMALL
    assert added == (-(-extra.nbytes // 64) * 64 if large_enough else 0)
    for number, (size, buffer) in enumerate(zip(sizes, got["kept"], strict=True)):
        assert bytes(buffer) == bytes([number]) * size
    assert same(got["extra"], extra)


@pytest.mark.law
def test_a_buffer_that_is_gone_is_not_taken_for_another_at_its_address() -> None:
    sheet = Sheet()
    sheet.keep(lambda sink: sink.write(b"a" * 2 * SMALL))
    gc.collect()
    value = [np.full(2 * SMALL, n, dtype=np.uint8) for n in range(9)]
    assert same(crossed(value, sheet), value)


@pytest.mark.law
def test_messages_leave_no_descriptor_and_no_memory() -> None:
    value = {"x": np.zeros(1 << 20), "small": np.zeros(3)}
    crossed(value)
    gc.collect()
    files, places = descriptors(), maps()
    held = [crossed(value) for _ in range(20)]
    assert not descriptors() - files, "what is received needs no descriptor"
    assert maps() == places + 40, "to read, and for whoever is given them to write in"
    del held
    gc.collect()
    assert maps() == places


@pytest.mark.law
def test_a_message_can_be_sent_many_times_and_lets_go_once_closed() -> None:
    files = descriptors()
    message = Message(np.arange(SMALL))
    assert len(descriptors() - files) == 1
    for _ in range(3):
        one, other = (Channel(end) for end in socket.socketpair())
        one.post(message)
        assert same(other.receive(), np.arange(SMALL))
        one.close()
        other.close()
    message.close()
    message.close()
    assert not descriptors() - files
    message = Message(np.arange(SMALL))
    del message
    gc.collect()
    assert not descriptors() - files


def test_what_cannot_be_pickled_sends_nothing(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    files = descriptors()
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        one.send([np.zeros(SMALL), lambda: 1])
    one.send("next")
    assert other.receive() == "next"
    assert not descriptors() - files


def test_a_broken_object_is_told_and_the_next_message_arrives(
    ends: tuple[Channel, Channel],
) -> None:
    one, other = ends
    one.send(Broken())
    one.send("next")
    with pytest.raises(ZeroDivisionError):
        other.receive()
    assert other.receive() == "next"


class Broken:
    """Can be written, and not be read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return divmod, (1, 0)


def test_hanging_up_is_told_to_both_sides(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    assert not other.heard(0)
    one.close()
    assert other.heard(HANG_S)
    with pytest.raises(EOFError):
        other.receive()
    with pytest.raises(OSError, match="Broken pipe"):
        other.send(np.zeros(1 << 20))


def test_half_a_message_is_the_end(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    message = Message("x" * 100)
    one.socket.sendall(b"\x64" + bytes(7))
    one.close()
    message.close()
    with pytest.raises(EOFError):
        other.receive()


def test_a_message_whose_file_was_lost_is_refused(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    message = Message(np.zeros(SMALL))
    one.socket.sendall(bytes([len(message.body), *bytes(7), 1, *bytes(7), 1, *bytes(7)]))
    one.socket.sendall(message.places + message.body)
    with pytest.raises(OSError, match="too many files"):
        other.receive()


def test_received_memory_cannot_be_written() -> None:
    assert not crossed(np.zeros(SMALL)).flags.writeable


def test_what_is_closed_hears_nothing_of_others(ends: tuple[Channel, Channel]) -> None:
    one, _ = ends
    number = one.socket.fileno()
    one.close()
    pair = socket.socketpair()
    assert number in {each.fileno() for each in pair}, "the lowest number that is free"
    for each, there in (pair, pair[::-1]):
        there.sendall(b"x")
        with pytest.raises(OSError, match="closed"):
            one.heard(0)
        assert each.recv(1) == b"x"
    for each in pair:
        each.close()


def test_a_note_outlives_who_wrote_it() -> None:
    files = descriptors()
    note = MemoryNote()
    assert note.read() == -1
    copy = MemoryNote(os.dup(note.file))
    copy.write(1 << 40)
    copy.close()
    assert note.read() == 1 << 40
    note.close()
    note.close()
    assert not descriptors() - files


def test_a_file_is_mapped_whole() -> None:
    sheet = Sheet()
    sheet.keep(lambda sink: sink.write(b"abc"))
    assert bytes(mapped(sheet.file))[:3] == b"abc"
    assert sheet.size == 64
