"""Simulate a tree of iterators, each with threads and a buffer, on a clock of its own."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

from dml.verify.simulate.latency_model import ModelIterator

Drawn = Callable[[float], float]
"""Returns seconds with the given mean."""


class Running:
    """A running iterator, which is asked for its elements in order."""

    def __init__(self, iterator: ModelIterator, draw: Drawn) -> None:
        self.iterator, self.draw = iterator, draw
        self.inputs = [Running(each, draw) for each in iterator.inputs]
        self.threads = [0.0] * iterator.parallel  # when each of them is free
        room = iterator.parallel + iterator.buffer
        self.taken = deque([0.0] * room, maxlen=room)
        self.pulled = self.ready = 0.0

    def get(self, now: float) -> float:
        """Return when the next element, for which a consumer asks now, is there."""
        if not self.iterator.buffer:
            return self._inputs(now) + self._own()
        # threads pull one after the other, each when there is room for one more element
        started = max(self.pulled, heapq.heappop(self.threads), self.taken[0])
        self.pulled = self._inputs(started)
        ended = self.pulled + self._own()
        heapq.heappush(self.threads, ended)
        self.ready = max(self.ready, ended)
        self.taken.append(max(now, self.ready))
        return self.taken[-1]

    def _inputs(self, now: float) -> float:
        for each in self.inputs:
            for _ in range(int(self.iterator.each)):
                now = each.get(now)
        return now

    def _own(self) -> float:
        return self.draw(self.iterator.own_s) if self.iterator.own_s else 0.0


def waits(iterator: ModelIterator, consumer_s: float, draw: Drawn, count: int = 4_000) -> float:
    """Return how long a consumer waits for an element, once the buffers are filled."""
    running, now, begun, waited = Running(iterator, draw), 0.0, count // 5, 0.0
    for number in range(count):
        asked = now + (draw(consumer_s) if consumer_s else 0.0)
        now = running.get(asked)
        waited += (now - asked) * (number >= begun)
    return waited / (count - begun)
