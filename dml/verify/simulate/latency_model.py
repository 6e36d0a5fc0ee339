"""Estimate how long a loop waits for an element of a pipeline, from the seconds of its stages.

    batch = ModelIterator("batch", 0.001, each=10, inputs=(ModelIterator("read", 0.005),))
    latency_s(batch)                                    # 0.051: all of it when the loop asks
    ahead = ModelIterator("prefetch", buffer=2, inputs=(batch,))
    latency_s(ahead, consumer_s=0.06, variation=0.5)    # what a buffer leaves of that

Source: tf.data (Murray et al., VLDB 2021, 3.3.2). There, the wait for a buffer is the time to
produce an element times the probability that the buffer is empty, by the formula of a queue with
exponential times (M/M/1/k). Here the formula also holds for times that vary less, or more.
"""

from __future__ import annotations

import dataclasses
import math

# The logarithm of a larger number overflows in exp().
MOST_LOG = 700.0


def empty_probability(size: float, ratio: float, variation: float = 1.0) -> float:
    """Return the probability that a consumer finds a buffer for ``size`` elements empty.

    ``ratio`` is the rate of the producer divided by that of the consumer. ``variation`` is the mean
    of their squared coefficients of variation: 1 for exponential times, and 0 for times that are
    all the same, for which a buffer is empty only as far as the producer is slower.
    """
    if not size or not ratio:
        return 1.0
    if not variation:
        return max(0.0, 1.0 - ratio)
    places = 1.0 + size / variation
    log = math.log1p(ratio - 1.0) if 0.5 < ratio < 2.0 else math.log(ratio)
    if places * log > MOST_LOG:
        return 0.0
    return math.expm1(log) / math.expm1(places * log) if log else 1.0 / places


@dataclasses.dataclass(frozen=True)
class ModelIterator:
    """A stage of a pipeline, which works ``own_s`` seconds on each element that it delivers.

    For each of them it takes ``each`` elements of every input. With a ``buffer`` for so many
    elements, beside one that each of ``parallel`` threads may hold, these work ahead of the
    consumer; without a buffer, the consumer works itself.
    """

    name: str
    own_s: float = 0.0
    each: float = 1.0
    parallel: int = 1
    buffer: int = 0
    inputs: tuple[ModelIterator, ...] = ()


def latency_s(
    root: ModelIterator, consumer_s: float = 0.0, variation: float = 0.0, together: float = 1.0
) -> float:
    """Return how long a consumer waits for an element that it asks for every ``consumer_s``.

    It asks for so many elements ``together``, after a pause for all of them. On the way down, each
    input is told how often it is asked; on the way up, the waits for inputs are known.
    ``variation`` is that of ``empty_probability``, for all stages.
    """
    own_s = root.own_s / root.parallel if root.buffer else root.own_s
    gap_s = own_s if root.buffer else own_s + consumer_s
    waits = [latency_s(each, gap_s / root.each, variation, root.each) for each in root.inputs]
    produced_s = own_s + root.each * math.fsum(waits)
    if not root.buffer or not produced_s:
        return produced_s
    room = root.buffer + root.parallel
    empty = empty_probability(room, consumer_s / produced_s, variation)
    return produced_s * max(empty, 1.0 - room / together)
