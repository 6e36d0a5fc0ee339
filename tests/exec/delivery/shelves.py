"""Simulate a loop whose chunks a thread makes ahead, with the clock of neither."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dml.exec.delivery.prefetch_depth import PrefetchDepth

NO_LIMIT = 1 << 60


class Chunk(NamedTuple):
    """Seconds to make a chunk, seconds of the loop before it asks for the chunk, and its bytes."""

    make_s: float
    loop_s: float
    nbytes: int = 1000


class ShelfRun(NamedTuple):
    """When each chunk was taken, the most bytes that waited, the depth at each chunk."""

    taken: list[float]
    most_bytes: int
    depths: list[int]

    @property
    def seconds(self) -> float:
        """How long the run took."""
        return self.taken[-1]

    def changes(self, since: int = 0) -> int:
        """How many times the depth was another one than before, from a chunk on."""
        depths = self.depths[since:]
        return sum(a != b for a, b in itertools.pairwise(depths))


def simulated(
    chunks: Sequence[Chunk], depth: int | PrefetchDepth, most_bytes: int = NO_LIMIT
) -> ShelfRun:
    """Run a loop over ``chunks``; a number of chunks ahead is kept, or tuned."""
    tuned = depth if isinstance(depth, PrefetchDepth) else None
    room = depth if isinstance(depth, int) else depth.begin(0, 0.0, chunks[0].nbytes, most_bytes)
    waiting = deque[tuple[float, int]]()  # when chunks on the shelf are taken, and their bytes
    given = deque[tuple[float, Chunk, float]]()  # chunks taken that the maker has not heard of
    now = got = 0.0
    held = most = 0
    depths, times = list[int](), list[float]()
    for chunk in chunks:
        now += chunk.make_s
        while given and given[0][0] <= now and tuned is not None:
            _, old, waited_s = given.popleft()
            room = tuned.measured(old.make_s, old.loop_s, waited_s, 1, old.nbytes)
        while len(waiting) >= room or (waiting and held + chunk.nbytes > most_bytes):
            taken, nbytes = waiting.popleft()
            now, held = max(now, taken), held - nbytes
        asked = got + chunk.loop_s
        got = max(now, asked)
        held += chunk.nbytes
        most = max(most, held)
        waiting.append((got, chunk.nbytes))
        given.append((got, chunk, got - asked))
        depths.append(room)
        times.append(got)
    return ShelfRun(times, most, depths)


Seconds = Callable[[np.random.Generator, int], float]
"""The seconds of the chunk of a number."""


def even(seconds: float, noise: float = 0.0) -> Seconds:
    return lambda draw, _: seconds * (1 + noise * draw.uniform(-1, 1))


def exponential(seconds: float) -> Seconds:
    return lambda draw, _: float(draw.exponential(seconds))


def lognormal(seconds: float, sigma: float) -> Seconds:
    return lambda draw, _: seconds * math.exp(sigma * draw.standard_normal() - sigma * sigma / 2)


def bursty(seconds: float, slow: float, every: int, row: int = 1) -> Seconds:
    """``row`` chunks in a row of each ``every`` take ``slow`` times as long."""
    return lambda _, n: seconds * (slow if n % every < row else 1.0)


def now_and_then(seconds: float, slow: float, share: float) -> Seconds:
    return lambda draw, _: seconds * (slow if draw.random() < share else 1.0)


def drawn(make: Seconds, loop: Seconds, count: int, seed: int, nbytes: int = 1000) -> list[Chunk]:
    draw = np.random.default_rng(seed)
    return [Chunk(make(draw, n), loop(draw, n), nbytes) for n in range(count)]
