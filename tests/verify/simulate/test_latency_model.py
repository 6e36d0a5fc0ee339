"""Test the model of waits for buffers by its formula, worked examples, and simulated pipelines."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.exec.delivery.prefetch_depth import Variation
from dml.verify.simulate.latency_model import ModelIterator, empty_probability, latency_s
from tests.exec.delivery.shelves import (
    Seconds,
    bursty,
    drawn,
    even,
    exponential,
    lognormal,
    now_and_then,
    simulated,
)
from tests.verify.simulate.iterators import waits

VECTORS = [
    (1, 0.5, 0.6667),
    (2, 0.5, 0.5714),
    (2, 2.0, 0.1429),
    (1, 2.0, 0.3333),
    (4, 1.0, 0.2),
    (8, 0.9, 0.1632),
    (8, 1.1, 0.0736),
    (0, 0.3, 1.0),
    (0, 3.0, 1.0),
]


@pytest.mark.parametrize(("size", "ratio", "probability"), VECTORS)
def test_the_formula_of_exponential_times(size: int, ratio: float, probability: float) -> None:
    assert round(empty_probability(size, ratio), 4) == probability


@given(
    size=st.integers(0, 64),
    apart=st.one_of(st.floats(-0.999, 5.0), st.floats(-1e-6, 1e-6)).filter(
        lambda a: abs(a) >= 1e-12
    ),
)
def test_no_digits_are_lost_where_rates_are_nearly_equal(size: int, apart: float) -> None:
    ratio = 1.0 + apart
    exact = 1 / sum(Fraction(ratio) ** power for power in range(size + 1))
    assert empty_probability(size, ratio) == pytest.approx(float(exact), rel=1e-9)
    assert empty_probability(size, 1.0) == pytest.approx(1 / (size + 1))


@given(
    size=st.integers(0, 100),
    ratio=st.floats(0, 1e6),
    variation=st.floats(0, 10),
)
def test_a_probability_falls_with_the_buffer_and_rises_with_variation(
    size: int, ratio: float, variation: float
) -> None:
    found = empty_probability(size, ratio, variation)
    assert 0.0 <= found <= 1.0
    assert empty_probability(size + 1, ratio, variation) <= found + 1e-12
    if variation:
        assert empty_probability(size, ratio, variation / 2) <= found + 1e-9


def pipeline(reads: int, maps: int, ahead: int) -> ModelIterator:
    """Reads of 5 ms, maps of 2 ms, batches of ten in 1 ms; 0 is in the thread of the consumer."""
    read = ModelIterator("interleave", 0.005, parallel=max(1, reads), buffer=reads)
    each = ModelIterator("map", 0.002, parallel=max(1, maps), buffer=maps, inputs=(read,))
    batch = ModelIterator("batch", 0.001, each=10, inputs=(each,))
    return ModelIterator("prefetch", buffer=ahead, inputs=(batch,)) if ahead else batch


def test_worked_examples_of_the_paper() -> None:
    in_turn = latency_s(pipeline(0, 0, 0))
    assert in_turn == pytest.approx((0.005 + 0.002) * 10 + 0.001)  # figure 3
    assert latency_s(pipeline(2, 10, 2)) == pytest.approx(0.025)  # figure 4: ten reads by two
    for tree in (pipeline(0, 0, 0), pipeline(2, 10, 2)):
        assert waits(tree, 0.0, lambda seconds: seconds) == pytest.approx(latency_s(tree))


def test_the_tree_of_figure_5_for_a_consumer_of_10_ms() -> None:
    """One read at a time, five maps, two batches ahead; computed here from the leaf to the root."""
    read_s = 0.005 * empty_probability(1 + 1, (0.002 / 5) / 0.005)
    map_s = 0.002 / 5 + read_s
    batch_s = 0.001 + 10 * map_s * empty_probability(5 + 5, (0.001 / 10) / map_s)
    wanted = batch_s * empty_probability(2 + 1, 0.010 / batch_s)
    read = ModelIterator("interleave", 0.005, parallel=1, buffer=1)
    each = ModelIterator("map", 0.002, parallel=5, buffer=5, inputs=(read,))
    batch = ModelIterator("batch", 0.001, each=10, inputs=(each,))
    root = ModelIterator("prefetch", buffer=2, inputs=(batch,))
    assert latency_s(root, 0.010, variation=1.0) == pytest.approx(wanted)
    # a read at a time takes 50 ms for a batch, of which the loop needs 10
    assert waits(root, 0.010, lambda seconds: seconds) == pytest.approx(0.040)
    assert latency_s(root, 0.010) == pytest.approx(0.040)


def drawn_pipeline(seed: int) -> tuple[ModelIterator, float]:
    """A pipeline of drawn seconds, threads and buffers, and the seconds of its consumer."""
    draw = np.random.default_rng(seed)

    def ahead(name: str, most: int, *inputs: ModelIterator) -> ModelIterator:
        threads = int(draw.integers(1, most + 1))
        buffer = int(draw.integers(2 if threads > 1 else 0, 9))
        own_s = float(draw.uniform(0.001, 0.01))
        return ModelIterator(name, own_s, parallel=threads, buffer=buffer, inputs=inputs)

    each = float(draw.choice([1, 4, 10]))
    inputs = (ahead("map", 8, ahead("read", 4)),)
    batch = ModelIterator("batch", float(draw.uniform(0, 0.005)), each=each, inputs=inputs)
    root = ModelIterator("prefetch", buffer=int(draw.integers(0, 9)), inputs=(batch,))
    return root, latency_s(root) * float(draw.choice([0.5, 0.8, 1.0, 1.25, 2.0]))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("variation", [0.0, 0.1])
def test_it_agrees_with_simulated_pipelines(seed: int, variation: float) -> None:
    root, consumer_s = drawn_pipeline(seed)
    draw = np.random.default_rng(seed)

    def seconds(mean: float) -> float:
        return float(draw.gamma(1 / variation, mean * variation)) if variation else mean

    found = latency_s(root, consumer_s, variation) + consumer_s
    assert found == pytest.approx(waits(root, consumer_s, seconds) + consumer_s, rel=0.15)


MAKERS: dict[str, Seconds] = {
    "even": even(0.010),
    "noise of 50 %": even(0.010, 0.5),
    "exponential": exponential(0.010),
    "lognormal": lognormal(0.010, 0.5),
    "long tail": lognormal(0.010, 1.0),
    "one slow in ten": bursty(0.010 * 10 / 19, 10, 10),
    "one slow in ten at random": now_and_then(0.010 * 10 / 19, 10, 0.1),
}


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("name", MAKERS)
def test_it_agrees_with_simulated_batches_ahead_of_a_loop(name: str, depth: int) -> None:
    """A shelf has one chunk more than its depth: it is made, and has no room yet."""
    for loop_s in (0.005, 0.008, 0.010, 0.0125, 0.020):
        chunks = drawn(MAKERS[name], even(loop_s), 5_000, seed=1)
        makes = Variation()
        for chunk in chunks:
            makes.add(chunk.make_s)
        make_s = makes.total / makes.count
        waited = make_s * empty_probability(depth + 1, loop_s / make_s, makes.squared / 2)
        simulated_s = simulated(chunks, depth).seconds / len(chunks)
        assert loop_s + waited == pytest.approx(simulated_s, rel=0.15)


@given(st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=50))
def test_variation_is_that_of_numpy(seconds: list[float]) -> None:
    found = Variation()
    for each in seconds:
        found.add(each)
    wanted = np.var(seconds) / np.mean(seconds) ** 2
    assert math.isclose(found.squared, float(wanted), rel_tol=1e-6, abs_tol=1e-9)
