"""Test the number of chunks that are made ahead, on simulated makers and loops."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dml.exec.delivery.prefetch_depth import (
    DEPTH,
    DEPTHS,
    MOST_WINDOW,
    WINDOW,
    PrefetchDepth,
    replayed,
)
from tests.exec.delivery.shelves import (
    Chunk,
    Seconds,
    bursty,
    drawn,
    even,
    exponential,
    lognormal,
    now_and_then,
    simulated,
)

COUNT, KB = 6_000, 1_000


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefetchDepth, "known", {})


# Seconds of a chunk and of the loop: 20 pipelines.
PIPELINES: dict[str, tuple[Seconds, Seconds]] = {
    "even, the maker is faster": (even(0.008), even(0.010)),
    "even, the loop is faster": (even(0.010), even(0.008)),
    "as fast, noise of 5 %": (even(0.010, 0.05), even(0.010, 0.05)),
    "as fast, noise of 50 %": (even(0.010, 0.5), even(0.010, 0.5)),
    "as fast, exponential": (exponential(0.010), exponential(0.010)),
    "the maker a quarter faster, exponential": (exponential(0.008), exponential(0.010)),
    "the loop a quarter faster, exponential": (exponential(0.010), exponential(0.008)),
    "the maker twice as fast, exponential": (exponential(0.005), exponential(0.010)),
    "exponential, the loop is even": (exponential(0.009), even(0.010)),
    "the maker is even, the loop exponential": (even(0.009), exponential(0.010)),
    "lognormal": (lognormal(0.009, 1.0), even(0.010)),
    "long tail": (lognormal(0.008, 1.5), even(0.010)),
    "one slow in ten": (bursty(0.005, 10, 10), even(0.010)),
    "one slow in thirty": (bursty(0.005, 25, 30), even(0.010)),
    "three slow in a row": (bursty(0.004, 10, 30, 3), even(0.010)),
    "eight slow in a row of forty": (bursty(0.004, 6, 40, 8), even(0.010)),
    "one slow in ten at random": (now_and_then(0.005, 10, 0.1), even(0.010)),
    "one slow in a hundred": (bursty(0.005, 30, 100), even(0.010)),
    "a loop that saves now and then": (even(0.009), bursty(0.005, 20, 20)),
    "a quick maker": (even(0.0005), even(0.010, 0.1)),
}
# Factor on the seconds of a chunk, and bytes for those that wait: three machines.
MACHINES = {"small": (1.5, 4 * KB), "middle": (1.0, 20 * KB), "large": (0.75, 200 * KB)}


def best_fixed(chunks: list[Chunk], most_bytes: int) -> float:
    """The seconds with the best depth."""
    depths = (1, 5, 7, 10, 14, 20, 28, 40, *DEPTHS)
    return min(simulated(chunks, depth, most_bytes).seconds for depth in depths)


@pytest.mark.sample(20)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", PIPELINES)
def test_it_comes_near_the_best_depth(name: str, machine: str) -> None:
    times, most_bytes = MACHINES[machine]
    make, loop = PIPELINES[name]
    chunks = drawn(lambda draw, n: times * make(draw, n), loop, COUNT, seed=1)
    run = simulated(chunks, PrefetchDepth("f"), most_bytes)
    assert best_fixed(chunks, most_bytes) / run.seconds >= 0.97, run.depths
    assert run.most_bytes <= most_bytes


@pytest.mark.parametrize("ratio", [0.5, 0.9, 0.97, 1.0, 1.03, 1.1, 2.0])
def test_noise_flips_nothing(ratio: float) -> None:
    """In 100 decisions the depth is the same."""
    tuned = PrefetchDepth("f")
    tuned.begin(0, 0.0, KB, 64 * KB)
    for chunk in drawn(even(ratio * 0.01, 0.05), even(0.01, 0.05), 101 * MOST_WINDOW, seed=0):
        tuned.measured(chunk.make_s, chunk.loop_s, 0.0, 1, KB)
    assert len(tuned.changes) == 1


@given(
    slow=st.sampled_from([5, 10, 20]),
    every=st.sampled_from([5, 10, 16]),
    factor=st.sampled_from([0.5, 2.0]),
    share=st.floats(0.3, 0.9),
)
@example(slow=10, every=10, factor=0.5, share=0.9)
def test_a_loop_of_another_speed_is_settled_in_three_decisions(
    slow: int, every: int, factor: float, share: float
) -> None:
    """The maker takes a ``share`` of the slower loop's time, with one slow chunk in ``every``."""
    mean_s = 0.02 * share
    quick_s = mean_s * every / (every - 1 + slow)
    before, after = (0.02, 0.01) if factor == 0.5 else (0.01, 0.02)
    step = 12 * MOST_WINDOW
    make = bursty(quick_s, slow, every)
    loop: Seconds = lambda _, n: before if n < step else after  # noqa: E731
    chunks = drawn(make, loop, 2 * step, seed=0)
    run = simulated(chunks, PrefetchDepth("f"))
    # the decision after the step is on chunks of both speeds
    settled = step + (1 + 3) * MOST_WINDOW + DEPTHS[-1]
    best = simulated(chunks, DEPTHS[-1])
    assert run.seconds - run.taken[settled] <= 1.02 * (best.seconds - best.taken[settled])
    assert run.changes(settled) <= 1


SECONDS = st.lists(st.tuples(st.floats(1e-4, 0.1), st.floats(0.0, 0.1)), min_size=1, max_size=40)


@given(pairs=SECONDS, depth=st.integers(1, 12))
def test_a_replay_is_a_run_of_the_same_chunks_again_and_again(
    pairs: list[tuple[float, float]], depth: int
) -> None:
    chunks = [Chunk(*pair) for pair in pairs]
    run = simulated(chunks * 2, depth)
    makes, loops = zip(*pairs, strict=True)
    second = run.taken[-1] - run.taken[len(chunks) - 1]
    assert replayed(makes, loops, depth) == pytest.approx(second)
    # no depth is better than a maker and a loop that never wait, or worse than none
    least = min(replayed(makes, loops, n) for n in (depth, 64))
    assert least >= max(sum(makes), sum(loops)) * (1 - 1e-9) - sum(map(max, pairs))
    assert replayed(makes, loops, depth) <= replayed(makes, loops, 0) * (1 + 1e-9)


@given(
    pairs=SECONDS,
    sizes=st.lists(st.integers(0, 5 * KB), min_size=1, max_size=9),
    most_bytes=st.integers(1, 40 * KB),
)
def test_chunks_that_wait_stay_within_their_memory_while_the_depth_is_tuned(
    pairs: list[tuple[float, float]], sizes: list[int], most_bytes: int
) -> None:
    numbered = itertools.islice(zip(itertools.cycle(pairs), itertools.cycle(sizes)), 2_000)
    chunks = [Chunk(*pair, nbytes) for pair, nbytes in numbered]
    tuned = PrefetchDepth("f")
    run = simulated(chunks, tuned, most_bytes)
    assert run.most_bytes <= max(most_bytes, *sizes)
    for each in tuned.changes[1:]:
        assert (
            each.after == DEPTH or each.after * max(sizes) <= most_bytes or each.after < each.before
        )


def test_changes_are_told_with_their_reason() -> None:
    tuned = PrefetchDepth("f")
    simulated(drawn(*PIPELINES["one slow in ten"], 5 * WINDOW, seed=0), tuned)
    first, second = (each.text for each in tuned.changes)
    assert first == "prefetch: 0 to 2 chunks ahead: the loop waited 0% of its time"
    assert (
        second == "prefetch: 2 to 6 chunks ahead after 32 batches: the loop waited 24% of its time"
    )


def test_the_next_run_begins_where_this_one_ended() -> None:
    chunks = drawn(*PIPELINES["one slow in ten"], COUNT, seed=0)
    first = simulated(chunks, PrefetchDepth("f"))
    again = PrefetchDepth("f")
    run = simulated(chunks, again)
    assert first.depths[-1] == again.changes[0].after == run.depths[0] > DEPTH
    assert again.changes[0].text.endswith("as in the run before")
    assert simulated(chunks, PrefetchDepth("g")).depths[0] == DEPTH, "another pipeline"
    # a run of another process, and less memory than it had
    other = PrefetchDepth("h", 12)
    assert simulated(chunks, other, 8 * KB).depths[0] == 8
    assert other.changes[0].after == 8


def test_large_chunks_wait_ahead_once_the_missed_seconds_are_worth_their_memory() -> None:
    make, loop = PIPELINES["one slow in ten"]

    def raised_after(nbytes: int) -> int:
        chunks = drawn(make, loop, COUNT, seed=0, nbytes=nbytes)
        depths = simulated(chunks, PrefetchDepth(str(nbytes))).depths
        return next((n for n, depth in enumerate(depths) if depth > DEPTH), COUNT)

    assert raised_after(1_000) < raised_after(100_000_000) < COUNT
