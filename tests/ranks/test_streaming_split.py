"""Test splits in one process: each element once, to its rank, also after stops."""

from __future__ import annotations

import contextlib
import gc
import json
import pickle
import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.errors import DmlError, PlanError, UDFError, WorkerLostError
from dml.ranks.streaming_split import RankElements

OFF: dict[str, Any] = {"telemetry_dir": "off"}
SYNC: dict[str, Any] = {**OFF, "executor": "sync"}


def numbers(rows: int, size: int = 1, **options: Any) -> dml.Dataset:
    made = dml.range(rows, atom_rows=5).shuffle(8)
    return (made.batch(size) if size > 1 else made).with_options(**SYNC).with_options(**options)


def ids(elements: Iterable[Any]) -> list[Any]:
    return [element["id"] if isinstance(element["id"], int) else element["id"].tolist()
            for element in elements]  # fmt: skip


def saved(share: Any) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(share.state_dict()))
    return state


def shares(
    ds: dml.Dataset, n: int, state: dict[str, Any] | None = None, **how: Any
) -> list[RankElements]:
    made = [iter(part) for part in ds.streaming_split(n, **how)]
    for share in made if state is not None else ():
        share.load_state_dict(state)
    return made


def in_threads(parts: list[Any]) -> list[list[Any]]:
    """What each rank gets where each is drawn in a thread of its own."""
    got: list[list[Any]] = [[] for _ in parts]

    def draw(rank: int) -> None:
        got[rank] = ids(parts[rank])

    threads = [threading.Thread(target=draw, args=(rank,)) for rank in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return got


# --------------------------------------------------------------------------------- exactly once


@pytest.mark.law
@given(st.data(), st.integers(1, 6), st.integers(0, 40), st.sampled_from([1, 3]))
def test_any_interleaving_gives_each_rank_its_elements(
    data: st.DataObject, n: int, rows: int, size: int
) -> None:
    ds = numbers(rows, size)
    whole = ids(ds.epoch(0))
    its = shares(ds.epoch(0), n)
    got: list[list[Any]] = [[] for _ in its]
    alive = list(range(n))
    while alive:
        rank = data.draw(st.sampled_from(alive))
        element = next(its[rank], None)
        if element is None:
            alive.remove(rank)
        else:
            got[rank] += ids([element])
    assert got == [whole[rank::n] for rank in range(n)]


@pytest.mark.law
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=4),
    st.integers(0, 60),
    st.sampled_from([1, 3]),
    st.randoms(use_true_random=False),
)
def test_stopped_at_common_steps_and_resumed_on_other_ranks(
    legs: list[tuple[int, int]], rows: int, size: int, draw: Any
) -> None:
    """3, then 5, then 2 ranks: everything once, in turn, whoever ran ahead when it was killed."""
    ds = numbers(rows, size).epoch(0)
    whole = ids(ds)
    state, start = None, 0
    for n, steps in [*legs, (2, 100)]:
        its = shares(ds, n, state)
        states = []
        order = list(range(n))
        draw.shuffle(order)
        for rank in order:
            mine = ids(filter(None, (next(its[rank], None) for _ in range(steps))))
            assert mine == whole[start + rank :: n][:steps]
            states.append(saved(its[rank]))
        assert len({(each["at"], each["epoch"]) for each in states}) == 1
        state = draw.choice(states)
        start += n * steps


@pytest.mark.parametrize("rows", [1001, 1002, 2])
def test_threads_deliver_every_row(rows: int) -> None:
    ds = dml.range(rows).with_options(num_workers=2, **OFF)
    got = in_threads(list(ds.streaming_split(3)))
    assert got == [list(range(rank, rows, 3)) for rank in range(3)]


def test_one_thread_may_drain_ranks_in_turn_as_far_as_the_buffer_goes() -> None:
    parts = dml.range(1001).with_options(**OFF).streaming_split(3)
    assert [len(list(part)) for part in parts] == [334, 334, 333]


# ----------------------------------------------------------------------------------------- equal


@pytest.mark.law
@given(st.integers(1, 5), st.integers(0, 30), st.integers(0, 4))
def test_equal_ranks(n: int, rows: int, steps: int) -> None:
    ds = numbers(rows).epoch(0)
    whole = ids(ds)
    even = whole[: rows // n * n]
    dropped = shares(ds, n, equal="drop")
    assert [ids(each) for each in dropped] == [even[rank::n] for rank in range(n)]
    padded = whole + whole[-1:] * (-rows % n)
    assert [ids(each) for each in shares(ds, n, equal="pad")] == [padded[r::n] for r in range(n)]
    for how, wanted in (("drop", even), ("pad", padded)):
        its = shares(ds, n, equal=how)
        taken = [[next(each, None) for _ in range(steps)] for each in its]
        rest = shares(ds, n, saved(its[-1]), equal=how)
        got = [ids(filter(None, t)) + ids(r) for t, r in zip(taken, rest, strict=True)]
        assert got == [wanted[rank::n] for rank in range(n)]


def test_padding_is_a_copy() -> None:
    parts = dml.range(4).batch(1).with_options(**OFF).streaming_split(3, equal="pad")
    got = [list(part) for part in parts]
    assert [ids(each) for each in got] == [[[0], [3]], [[1], [3]], [[2], [3]]]
    for each in got:
        each[1]["id"] += 1
    assert [each[1]["id"].item() for each in got] == [4, 4, 4]


# ------------------------------------------------------------------------------------ the bounds


@pytest.mark.law
def test_a_slow_rank_stops_the_others_after_a_bounded_number_of_elements() -> None:
    parts = dml.range(20_000).with_options(**SYNC).streaming_split(2)
    fast: list[Any] = []
    thread = threading.Thread(target=lambda: fast.extend(parts[0]))
    thread.start()
    slow = iter(parts[1])
    settled, before = 0, 0
    while settled < 3:
        time.sleep(0.2)
        settled = settled + 1 if len(fast) == before > 1000 else 0
        before = len(fast)
    assert len(fast) < 1100
    assert len(list(slow)) == 10_000
    thread.join(60)
    assert len(fast) == 10_000


@pytest.mark.law
def test_a_slow_rank_stops_the_others_after_a_bounded_number_of_bytes() -> None:
    megabyte = dml.range(384).with_columns(x=dml.stack(*[dml.col("id") * 1.0] * 1000)).batch(128)
    parts = megabyte.repeat(20).with_options(memory_limit="64MiB", watchdog_s=0.5, **OFF)
    first, second = (iter(part) for part in parts.streaming_split(2))
    taken = [next(first)["id"][0], next(second)["id"][0]]
    with pytest.raises(PlanError, match="rank 0 cannot go on"):
        taken.extend(batch["id"][0] for batch in first)
    assert 3 <= len(taken) <= 12, "a tenth of 64 MiB, a megabyte each"


@pytest.mark.law
def test_ranks_that_nobody_draws_are_named() -> None:
    parts = numbers(5000, watchdog_s=0.3).streaming_split(3)
    with pytest.raises(WorkerLostError, match="rank 0 cannot go on, as rank 1, rank 2 takes"):
        list(parts[0])


@pytest.mark.law
def test_a_closed_or_forgotten_rank_stops_nobody() -> None:
    parts = numbers(9000, watchdog_s=5).streaming_split(3)
    closed, forgotten = iter(parts[1]), iter(parts[2])
    assert next(closed)
    assert next(forgotten)
    closed.close()
    assert next(closed, None) is None
    del forgotten
    gc.collect()
    assert len(list(parts[0])) == 3000
    assert parts[2].state_dict()["at"] == 3


def test_a_share_that_was_left_gives_nothing_and_its_state_stays() -> None:
    parts = numbers(40).streaming_split(2)
    old, other = iter(parts[1]), iter(parts[0])
    next(old)
    ids(next(other) for _ in range(5))
    state = saved(old)
    iter(parts[1])
    assert ids(old) == []
    assert saved(old) == state


@pytest.mark.law
def test_a_thread_that_dies_stops_nobody() -> None:
    parts = numbers(9000, watchdog_s=5).streaming_split(2)

    def dies() -> None:
        with contextlib.suppress(KeyError):
            for element in parts[1]:
                assert element["nothing"]

    thread = threading.Thread(target=dies)
    thread.start()
    thread.join()
    assert len(list(parts[0])) == 4500


@pytest.mark.law
def test_a_rank_whose_thread_is_gone_is_named() -> None:
    parts = numbers(5000, watchdog_s=0.3).streaming_split(2)
    kept = iter(parts[1])
    thread = threading.Thread(target=lambda: next(kept))
    thread.start()
    thread.join()
    with pytest.raises(WorkerLostError, match="rank 0 cannot go on, as rank 1 takes nothing"):
        list(parts[0])


@pytest.mark.law
def test_a_long_wait_for_somebody_who_lives_is_told(caplog: pytest.LogCaptureFixture) -> None:
    parts = numbers(3000, watchdog_s=0.2).streaming_split(2)
    go_on = threading.Event()

    def slow() -> None:
        with iter(parts[1]) as share:
            next(share)
            go_on.wait(30)

    thread = threading.Thread(target=slow)
    thread.start()
    got: list[Any] = []
    other = threading.Thread(target=lambda: got.extend(parts[0]))
    other.start()
    # On a busy machine, reads that stall are told as well.
    while not any("rank 0 waits for rank 1" in message for message in caplog.messages):
        assert thread.is_alive()
        time.sleep(0.01)
    go_on.set()
    thread.join()
    other.join()
    assert len(got) == 1500


# --------------------------------------------------------------------------------------- epochs


@pytest.mark.law
def test_every_iteration_is_the_next_epoch_of_all_ranks() -> None:
    ds = numbers(50)
    parts = ds.streaming_split(2)
    for epoch in range(3):
        assert in_threads(parts) == [ids(ds.epoch(epoch))[rank::2] for rank in range(2)]
    assert parts[0].state_dict()["epoch"] == 2
    assert "rows" in str(ds.stats())


def test_epochs_come_in_order_whoever_asks_first() -> None:
    parts = numbers(40).streaming_split(2)
    _, ahead, behind = iter(parts[0]), iter(parts[0]), iter(parts[1])
    assert [ahead.epoch, behind.epoch] == [1, 0]


def test_a_rank_may_be_an_epoch_ahead() -> None:
    ds = numbers(30)
    first, second = ds.streaming_split(2)
    assert [ids(first), ids(first)] == [ids(ds.epoch(e))[::2] for e in (0, 1)]
    assert [ids(second), ids(second)] == [ids(ds.epoch(e))[1::2] for e in (0, 1)]


def test_an_epoch_that_is_left_early_is_left_by_that_rank_alone() -> None:
    ds = numbers(40, watchdog_s=5)
    first, second = ds.streaming_split(2)
    for _ in first:
        break
    again = iter(first)
    whole = ids(second)
    assert whole == ids(ds.epoch(0))[1::2]
    assert ids(again) == ids(ds.epoch(1))[::2]


# --------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("equal", [None, "drop", "pad"])
def test_an_error_comes_to_each_rank_in_its_place(equal: str | None) -> None:
    def check(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 10:
            raise ValueError(row["id"])
        return row

    ds = dml.range(100, atom_rows=5).map(check, fingerprint="check").with_options(**SYNC)
    for rank, share in enumerate(shares(ds, 3, equal=equal)):
        got: list[int] = []
        with pytest.raises(UDFError):
            got.extend(element["id"] for element in share)
        assert got == list(range(rank, 9 if equal == "drop" else 10, 3))
        assert next(share, None) is None


def test_questions_without_an_answer() -> None:
    ds = numbers(10)
    for wrong in (0, -1, True, "2", None):
        with pytest.raises(PlanError):
            ds.streaming_split(wrong)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="equal='x'"):
        ds.streaming_split(2, equal="x")
    with pytest.raises(PlanError, match="without job_name"):
        ds.streaming_split(2, rank=1)
    with pytest.raises(PlanError, match="address= without job_name"):
        ds.streaming_split(2, address="127.0.0.1:29600")
    with pytest.raises(DmlError, match="another process"):
        pickle.dumps(ds.streaming_split(2)[0])
