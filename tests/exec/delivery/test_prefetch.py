"""Test prefetched chunks: when prefetching begins, and that results do not change."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import dml
from dml.api import session
from dml.api.dataset import Dataset
from dml.api.run_telemetry import collector_of
from dml.errors import UDFError
from dml.exec.delivery import iterator, prefetch
from dml.exec.delivery.iterator import Elements
from dml.exec.delivery.prefetch import (
    LOOP_S,
    SLOW_CHUNKS,
    SLOW_S,
    Ahead,
    ChunkShelf,
    ElementChunk,
    PrefetchPace,
)
from dml.exec.delivery.prefetch_depth import DEPTH, DEPTHS, NEW_BYTE_S, PrefetchDepth
from dml.physical.operators import RunChoices
from dml.settings import Settings
from tests.cache.elements.kept_cases import logged

OFF: dict[str, Any] = {"telemetry_dir": "off"}
QUICK, SLOW = SLOW_S / 10, SLOW_S * 10
Made = tuple[int, float]
"""Elements of a chunk, and the seconds that each takes."""


class Clock:
    """A clock that stands still, but for what makers say they took."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Fake:
    """Makes what it is told, in no time but that of its clock; one caller at a time."""

    def __init__(self, chunks: list[Made], clock: Clock, error: Exception | None = None) -> None:
        self.chunks, self.clock, self.error = chunks, clock, error
        self.made = self.given = self.closed = 0
        self.busy = threading.Lock()

    def make(self) -> ElementChunk | None:
        assert self.busy.acquire(blocking=False), "two threads make at once"
        try:
            assert not self.closed
            if self.made == len(self.chunks):
                if self.error is not None:
                    raise self.error
                return None
            count, each_s = self.chunks[self.made]
            first = self.given
            self.made, self.given = self.made + 1, first + count
            self.clock.now += count * each_s
            elements = [{"at": at} for at in range(first, first + count)]
            between: Callable[[int], Any] = lambda n: {"at": first + n}  # noqa: E731
            end = {"at": first + count}
            return ElementChunk(elements, rows=count, nbytes=8 * count, base=end, between=between)
        finally:
            self.busy.release()

    def close(self) -> None:
        self.closed += 1


@contextlib.contextmanager
def run_of(
    chunks: list[Made], error: Exception | None = None, **options: Any
) -> Iterator[tuple[Elements, Fake]]:
    """An iterator that hands out what a fake makes; ``options`` are those of a user."""
    clock = Clock()
    fake = Fake(chunks, clock, error)
    it = iter(dml.range(3).batch(1).with_options(**OFF, **options))
    with (
        mock.patch.object(it, "_made_here", return_value=fake),
        mock.patch.object(iterator, "perf_counter", clock),
    ):
        yield it, fake
        it.close()


def is_ahead(it: Elements) -> bool:
    return isinstance(it._maker, Ahead)


def begins_at(chunks: list[Made], loop_s: float = SLOW_S, **options: Any) -> int | None:
    """How many chunks were given when the following began to be made ahead; None if never.

    The loop takes ``loop_s`` for each element.
    """
    with run_of(chunks, **options) as (it, fake):
        for number, (count, _) in enumerate(chunks):
            for _ in range(count):
                next(it)
                if is_ahead(it):
                    return number
                fake.clock.now += loop_s
        assert fake.made == len(chunks)
    return None


# ------------------------------------------------------------------------------- what is decided


@pytest.mark.parametrize(
    ("chunks", "begins"),
    [
        ([(1, SLOW)] * 9, SLOW_CHUNKS),
        ([(1, QUICK)] * 9, None),
        ([(1, SLOW)] + [(1, QUICK)] * 9, None),  # the first one of every run
        ([(1, SLOW), (1, QUICK)] * 9, None),  # half of them
        ([(1, SLOW), (1, SLOW), (1, QUICK)] * 9, 5),  # most of them
        ([(1, QUICK)] * 50 + [(1, SLOW)] * 9, 50 + SLOW_CHUNKS),  # from then on
        ([(64, QUICK)] * 9, None),  # 640 microseconds, for 64 of them
        ([(64, SLOW)] * 9, SLOW_CHUNKS),
        ([(1, SLOW_S / 2)] * 9, None),
    ],
)
def test_most_chunks_decide_by_what_an_element_of_them_takes(
    chunks: list[Made], begins: int | None
) -> None:
    assert begins_at(chunks) == begins
    assert begins_at(chunks, prefetch=0) is None
    assert begins_at(chunks, executor="sync") is None


def test_nothing_is_made_ahead_of_a_loop_that_takes_no_time() -> None:
    chunks = [(4, SLOW)] * 9
    assert begins_at(chunks, LOOP_S / 2) is None
    assert begins_at(chunks, LOOP_S * 2) == SLOW_CHUNKS


def test_a_loop_that_takes_some_batches_at_once_is_as_slow_as_it_is_in_the_middle() -> None:
    pace, now = PrefetchPace(SLOW_S), 0.0
    for number in range(3 * SLOW_CHUNKS):
        now += 20 * LOOP_S if number % 3 == 0 else 0.0  # a step of three batches
        pace.gave(1, 0, now, now + SLOW)
        now += SLOW
    assert pace.slow >= SLOW_CHUNKS


@pytest.mark.parametrize("loop_s", [SLOW / 2, SLOW, 1.0])
def test_large_chunks_are_made_ahead_once_what_was_missed_is_worth_their_memory(
    loop_s: float,
) -> None:
    """The memory of three chunks of 10 MB costs as much as 21 waits of a millisecond."""
    pace, now, missed_s = PrefetchPace(SLOW_S), 0.0, -min(loop_s, SLOW)
    while not pace.pays():
        pace.gave(1, 10_000_000, now, now + SLOW)
        now += SLOW + loop_s
        missed_s += min(loop_s, SLOW)
    costs_s = NEW_BYTE_S * (DEPTH + 1) * 10_000_000
    assert missed_s == pytest.approx(costs_s, abs=SLOW)


def test_a_pace_that_has_stopped_is_never_slow() -> None:
    pace = PrefetchPace(SLOW_S)
    for number in range(SLOW_CHUNKS):
        pace.gave(1, 0, 2.0 * number, 2.0 * number + 1.0)
    assert pace.slow == SLOW_CHUNKS
    pace.stop()
    assert not pace.slow
    assert pace.from_s > 1e9


# ------------------------------------------------------------------------- nobody can tell of it


Said = list[tuple[str, Any]]


def said(
    chunks: list[Made], actions: list[str], error: Exception | None, **options: Any
) -> tuple[Said, Fake, bool]:
    """All that a caller sees, what made it, and whether some of it was made ahead."""
    out: Said = []
    went = False
    with run_of(chunks, error, **options) as (it, fake):
        for action in actions:
            try:
                if action == "next":
                    out.append(("element", next(it)["at"]))
            except (StopIteration, ValueError) as end:
                out.append(("end", repr(end)))
            if action == "close":
                it.close()
            fake.clock.now += SLOW_S  # the loop
            went = went or is_ahead(it)
            state = it.state_dict()
            received = it.report.received
            out.append(("state", (state["position"], state["over"])))
            out.append(("received", (received.rows, received.batches, received.nbytes)))
    return out, fake, went


@pytest.mark.law
@given(
    chunks=st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from([QUICK, SLOW, SLOW])), max_size=12
    ),
    actions=st.lists(st.sampled_from(["next"] * 12 + ["state", "close"]), max_size=40),
    fails=st.booleans(),
)
@example(chunks=[(1, SLOW)] * 9, actions=["next"] * 11, fails=True)
@example(chunks=[(1, SLOW)] * 9, actions=[*["next"] * 4, "close", "next"], fails=False)
@example(chunks=[(3, SLOW)] * 9, actions=["next"] * 30, fails=False)
def test_elements_positions_and_errors_are_those_of_what_is_made_when_asked_for(
    chunks: list[Made], actions: list[str], *, fails: bool
) -> None:
    error = ValueError("here") if fails else None
    wanted, _, before = said(chunks, actions, error, prefetch=0)
    found, fake, _ = said(chunks, actions, error)
    assert found == wanted
    assert not before
    assert fake.closed <= 1
    made = fake.made
    gc.collect()
    assert fake.made == made, "nothing is made after the end"


@pytest.mark.law
@given(
    chunks=st.lists(st.tuples(st.integers(1, 4), st.just(SLOW)), max_size=20),
    depths=st.lists(st.sampled_from([1, *DEPTHS]), min_size=1),
    fails=st.booleans(),
)
def test_no_decision_on_the_depth_can_be_seen(
    chunks: list[Made], depths: list[int], *, fails: bool
) -> None:
    error, actions = (ValueError("here") if fails else None), ["next"] * 60
    wanted, *_ = said(chunks, actions, error, prefetch=0)
    measured = mock.Mock(side_effect=itertools.cycle(depths))
    with mock.patch.object(PrefetchDepth, "measured", measured):
        found, fake, ahead = said(chunks, actions, error)
    assert found == wanted
    assert ahead == (len(chunks) > SLOW_CHUNKS)
    assert fake.closed <= 1


def test_no_more_is_made_than_it_may_be() -> None:
    with run_of([(1, SLOW)] * 40) as (it, fake):
        for number in range(40):
            # what waits, one that has no room yet, and the one that is handed out
            assert fake.made <= number + DEPTH + 2
            assert next(it)["at"] == number


@pytest.mark.parametrize("most_bytes", [1, 16, 24, 1000])
def test_bytes_that_wait_are_bounded(most_bytes: int) -> None:
    fake = Fake([(1, 0.0)] * 30, Clock())
    ahead = Ahead(fake, ChunkShelf(4, most_bytes))
    fits = max(1, min(4, most_bytes // 8))
    for number in range(30):
        assert fake.made <= number + fits + 2
        assert ahead.make() is not None
    assert ahead.make() is None
    ahead.close()
    assert fake.closed == 1


@pytest.mark.parametrize("bucketed", [False, True])
def test_batches_wait_with_their_padding(*, bucketed: bool) -> None:
    rows = [{"l": [1] * (1000 if i % 8 == 0 else 1)} for i in range(32)]
    ds = dml.from_items(rows).with_options(**OFF)
    with iter(ds.bucket_by_length("l", [2000], 8) if bucketed else ds.padded_batch(8)) as it:
        batch = next(it)
        chunk = it._now[0]
        assert chunk is not None
        assert chunk.nbytes >= batch["l"].nbytes == 8 * 1000 * 8


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefetchDepth, "known", {})


# ---------------------------------------------------------------------------------- a real run


@pytest.fixture(autouse=True)
def _where_batches_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions are called by whoever makes batches, as operators are that see rows in order."""
    alone = RunChoices(sliced=False, whole_units=True)
    monkeypatch.setattr(session, "choices_of", lambda *_, **__: alone)


@pytest.fixture
def taking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops of tests are taken to do something."""
    monkeypatch.setattr("dml.exec.delivery.prefetch.LOOP_S", 0.0)


class Slow:
    """A function of batches that takes over 100 microseconds, and says when each began."""

    def __init__(self, n: int = 60, fails_at: int | None = None) -> None:
        self.begun = [threading.Event() for _ in range(n)]
        self.fails_at, self.calls = fails_at, list[int]()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        number = int(batch["id"][0])
        self.calls.append(number)
        self.begun[number].set()
        if number == self.fails_at:
            raise ValueError(number)
        time.sleep(5 * SLOW_S)
        return batch

    def dataset(self, **options: Any) -> Dataset:
        rows = dml.range(len(self.begun)).batch(1)
        return rows.map(self, fingerprint="slow").with_options(**OFF, **options)


def ahead_threads() -> int:
    return sum(each.name == "dml-ahead" for each in threading.enumerate())


def soon(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.005)
    return holds()


@pytest.mark.usefixtures("taking")
def test_the_next_batch_is_begun_before_it_is_asked_for() -> None:
    fn, before = Slow(), ahead_threads()
    with iter(fn.dataset()) as it:
        for number in range(SLOW_CHUNKS + 1):
            assert next(it)["id"] == [number]
        assert fn.begun[SLOW_CHUNKS + 1].wait(60)
        position = it.state_dict()["position"]
    assert it.state_dict()["position"] == position
    calls = list(fn.calls)
    assert calls == list(range(len(calls)))
    rest = iter(fn.dataset().epoch(0))
    rest.load_state_dict(it.state_dict())
    assert [int(batch["id"][0]) for batch in rest] == list(range(SLOW_CHUNKS + 1, 60))
    assert ahead_threads() == before


def heavy(batch: dict[str, Any]) -> dict[str, Any]:
    time.sleep(2 * SLOW_S)
    return batch


def bursty(tuned: PrefetchDepth, measured: Callable[..., int], *given: Any) -> int:
    make_s, waited_s = (0.02, 0.01) if tuned.elements % 10 == 0 else (2e-4, 0.0)
    return measured(tuned, make_s, 0.003, waited_s, *given[3:])


@pytest.mark.usefixtures("taking")
def test_changes_of_the_depth_are_shown_and_known_to_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch in ten is said to be slow, so that the load of the machine decides nothing."""
    monkeypatch.setattr("dml.exec.delivery.prefetch_depth.CHUNK_S", 0.0)

    def ran(**options: Any) -> tuple[Elements, list[dict[str, Any]]]:
        it = iter(ds.with_options(**options))
        return it, [batch["id"].tolist() for batch in it]

    monkeypatch.setattr(PrefetchDepth, "measured", partialmethod(bursty, PrefetchDepth.measured))
    ds = dml.range(100).batch(1).map(heavy).with_options(telemetry_dir=tmp_path)
    kept, before = ran(tune="off")
    assert "tuned" not in kept.stats().summary
    tuned, after = ran()
    assert after == before
    begun, *more = tuned.stats().summary["tuned"]
    assert (begun.before, begun.after, begun.batches) == (0, DEPTH, SLOW_CHUNKS)
    assert more[0].after > DEPTH
    assert f"prefetch: {DEPTH} to {more[0].after} chunks ahead after" in str(tuned.stats())
    collector = collector_of(Settings(telemetry_dir=tmp_path))  # type: ignore[arg-type]
    assert collector is not None
    assert collector.flush()
    for known in (PrefetchDepth.known, {}):  # in this process, and in another one
        monkeypatch.setattr(PrefetchDepth, "known", dict(known))
        again = ran()[0].stats().summary["tuned"][0]
        assert (again.after, again.reason) == (more[-1].after, "as in the run before")


def test_zero_makes_nothing_between_calls() -> None:
    fn = Slow()
    with iter(fn.dataset(prefetch=0)) as it:
        for _ in range(9):
            next(it)
    assert fn.calls == list(range(9))


def test_every_batch_is_made_once() -> None:
    fn = Slow()
    assert [int(batch["id"][0]) for batch in fn.dataset()] == list(range(60))
    assert fn.calls == list(range(60))


@pytest.mark.usefixtures("taking")
def test_an_error_comes_at_its_place() -> None:
    fn = Slow(fails_at=20)
    found, it, before = list[int](), iter(fn.dataset()), ahead_threads()
    with pytest.raises(UDFError, match="20"):
        found.extend(int(batch["id"][0]) for batch in it)
    assert found == list(range(20))
    assert it.state_dict() == it.state_dict()
    assert next(it, None) is None
    assert fn.calls == list(range(21))
    assert ahead_threads() == before


@pytest.mark.usefixtures("taking")
def test_what_is_left_ends() -> None:
    before, fn = ahead_threads(), Slow()
    it = iter(fn.dataset())
    for _ in range(SLOW_CHUNKS + 1):
        next(it)
    assert ahead_threads() == before + 1
    gone = weakref.ref(it)
    del it
    gc.collect()
    assert gone() is None
    assert soon(lambda: ahead_threads() == before)


class Stuck:
    """A function that does not return at row 25 until ``released`` is there."""

    def __init__(self, folder: Path) -> None:
        self.entered, self.released = folder / "entered", folder / "released"

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        if 25 in np.atleast_1d(row["id"]):
            self.entered.touch()
            while not self.released.exists():
                time.sleep(0.01)
        return row

    def left(self, ds: Dataset, executor: str) -> None:
        """Ask for a row, and close while another is made."""
        options = {"executor": executor, "prefetch": 2, "target_partition_bytes": 1, **OFF}
        it = iter(ds.with_options(**options))
        closing = threading.Thread(target=it.close)
        next(it)
        assert soon(self.entered.exists)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()


@pytest.mark.usefixtures("taking")
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_worker_that_does_not_return_is_left(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # workers call functions
    stuck, before = Stuck(tmp_path), ahead_threads()
    try:
        rows = dml.range(100, atom_rows=10)
        stuck.left(rows.map(stuck, schema={"id": "int64"}).batch(10), executor)
        assert ahead_threads() == before
    finally:
        stuck.released.touch()


@pytest.mark.usefixtures("taking")
def test_a_function_that_does_not_return_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "ENDING_S", 0.2)
    stuck, before = Stuck(tmp_path), ahead_threads()
    try:
        stuck.left(dml.range(100).batch(10).map(stuck, fingerprint="stuck"), "threads")
        assert ahead_threads() == before + 1
    finally:
        stuck.released.touch()
    assert soon(lambda: ahead_threads() == before)


@pytest.mark.usefixtures("taking")
def test_what_the_caller_has_set_holds_ahead() -> None:
    told: contextvars.ContextVar[int] = contextvars.ContextVar("told", default=0)
    seen = []

    def look(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append((threading.current_thread().name, told.get()))
        time.sleep(5 * SLOW_S)
        return batch

    told.set(7)
    for _ in dml.range(30).batch(1).map(look, fingerprint="look").with_options(**OFF):
        pass
    assert {value for _, value in seen} == {7}
    assert len({name for name, _ in seen}) == 2


@pytest.mark.usefixtures("taking")
@pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("begun", [True, False])
def test_a_thread_that_does_not_begin(
    raised: type[BaseException], monkeypatch: pytest.MonkeyPatch, *, begun: bool
) -> None:
    start = threading.Thread.start

    def failing(thread: threading.Thread) -> None:
        if thread.name == "dml-ahead":
            if begun and raised is KeyboardInterrupt:
                start(thread)
            raise raised("no thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", failing)
    fn, got, before = Slow(), list[int](), ahead_threads()
    it = iter(fn.dataset())
    with contextlib.suppress(KeyboardInterrupt):
        got.extend(int(batch["id"][0]) for batch in it)
    if raised is RuntimeError:  # there are no more threads: it goes on as it began
        assert got == list(range(60))
        assert "tuned" not in it.stats().summary  # as nothing was made ahead
        return
    assert got == list(range(SLOW_CHUNKS))
    rest = iter(fn.dataset(prefetch=0).epoch(0))
    rest.load_state_dict(it.state_dict())
    assert [int(batch["id"][0]) for batch in rest] == list(range(SLOW_CHUNKS, 60))
    assert soon(lambda: ahead_threads() == before)


# ------------------------------------------------------------------------------- who looks alone


class Never:
    """In place of ``Ahead``, where nothing may be made ahead."""

    def __init__(self, *_: Any) -> None:
        raise AssertionError("made ahead")


LOOKING: dict[str, Callable[[Dataset, Path], Any]] = {
    "take_rows": lambda ds, _: ds.take_rows(12),
    "first": lambda ds, _: ds.first(),
    "show": lambda ds, _: ds.show(12),
    "take_batch": lambda ds, _: ds.unbatch().take_batch(12),
    "count": lambda ds, _: ds.count(),
    "to_list": lambda ds, _: ds.to_list(),
    "to_numpy": lambda ds, _: ds.to_numpy(),
    "to_arrow": lambda ds, _: ds.to_arrow(),
    "write": lambda ds, folder: ds.unbatch().write_parquet(folder / "out"),
    "split": lambda ds, _: list(ds.streaming_split(1)[0]),
}


@pytest.mark.usefixtures("taking")
@pytest.mark.parametrize("verb", LOOKING)
def test_looking_costs_what_is_looked_at(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iterator, "Ahead", Never)
    LOOKING[verb](Slow(20).dataset(), tmp_path)
    with pytest.raises(AssertionError, match="made ahead"):
        list(Slow(20).dataset())


@pytest.mark.usefixtures("taking")
def test_what_fills_a_cache_on_disk_goes_on_in_its_thread(tmp_path: Path) -> None:
    ds, fn = logged(tmp_path, 40, executor="threads", prefetch="auto")
    cached = ds.cache("disk").batch(2)
    threads: list[set[str]] = []

    def look(batch: dict[str, Any]) -> dict[str, Any]:
        threads[-1].add(threading.current_thread().name)
        time.sleep(5 * SLOW_S)
        return batch

    for _ in range(2):
        threads.append(set())
        assert len(list(cached.map(look, fingerprint="look"))) == 20
    assert fn.calls == 40
    assert [len(names) for names in threads] == [1, 2]
