"""The rows of a lane are delivered as they complete, where a run leaves their order free.

A position is that of the input before the oldest slice that is not wholly delivered, and the spans
of the input behind it that were delivered: these are skipped when a run resumes there, without
calling functions. Of a partly delivered span the same slice is made again.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from dml.data.block import Block
from dml.exec.slicing.lanes import other_needs
from dml.exec.slicing.sliced_flow import LanePart, LaneWork, SlicedFlow
from dml.exec.tasks.partition import Piece
from dml.expr.batch_run import Between
from dml.expr.flow import Position

# Spans of a position: with this many, only the oldest slice is delivered.
MOST_SPANS = 64
ALL = -1


class Done(NamedTuple):
    """Rows of the input, and how many of their outputs were delivered (``ALL`` of them)."""

    start: int
    stop: int
    given: int = ALL


class UnorderedFlow(SlicedFlow):
    """The rows of a lane, slices in any order; each row once, from any position.

    Until types have settled, and until a position of an ordered run is passed, rows are in order.
    A lane whose order is kept reads such positions, and goes on in order.
    """

    def __init__(self, work: LaneWork, position: Position | None) -> None:
        super().__init__(work, position)
        saved = (position or {}).get("free")
        if saved is not None and saved["sections"] != self.lane.sections:
            raise other_needs(self.lane.nodes[-1])
        # spans of a saved position that are not reached yet, and spans delivered since
        self.saved = deque(Done(*each) for each in saved["given"]) if saved else deque[Done]()
        self.done: list[Done] = []
        self.place = self.origin = 0  # rows of the input that were taken; and before the last pull
        self.current: LanePart | None = None
        self.switched = not self.lane.free

    # Output

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` rows, or a batch."""
        self.origin = self._base
        return super().pull(most)

    def inside(self, before: Position, rows: int) -> Between:
        """Positions inside the last ``rows`` rows; the position before them was ``before``."""
        part = self.current
        if part is None or not part.loose:
            return lambda given: {**before, "drop": before["drop"] + given}
        start, first = part.start - self.origin, part.given - rows
        spans = [Done(*each) for each in before.get("free", {}).get("given", ())]
        others = [each for each in spans if each.start != start]
        stop = start + part.rows
        return lambda given: self._told(before, [*others, Done(start, stop, first + given)])

    def position(self) -> Position:
        """The input's position before the oldest slice, and the delivered spans behind it."""
        base, parts = self._base, self.parts
        partly = [
            Done(part.start, part.start + part.rows, part.given + part.skip)
            for part in parts
            if part.loose and part.given + part.skip
        ]
        before = parts[0].before if parts else self.taking.after
        bound = not parts or not parts[0].loose
        outer = self.lane.outer(before, self.given + self.skip if bound else 0)
        spans = [*self.done, *partly, *self.saved]
        return self._told(outer, [Done(a - base, b - base, given) for a, b, given in spans])

    def _told(self, outer: Position, spans: list[Done]) -> Position:
        if not spans:
            return outer
        given = [list(span) for span in sorted(spans)]
        return {**outer, "free": {"sections": self.lane.sections, "given": given}}

    @property
    def _base(self) -> int:
        """The place in the input that positions count from."""
        return self.parts[0].start if self.parts else self.place

    def _ready(self) -> LanePart | None:
        """The oldest part with output; an error waits for all parts before it."""
        self._switch()
        first = self.parts[0] if self.parts else None
        free = first is not None and first.loose and self.lane.free
        if not free or len(self.done) >= MOST_SPANS:
            self.current = super()._ready()
            return self.current
        able = (part for part in self.parts if part.pieces)
        usual = (part for part in able if part is first or part.pieces[0].error is None)
        self.current = next(usual, None)
        return self.current

    def _switch(self) -> None:
        """Take slices as they complete, once none of them is on its way to a gate."""
        if not self.switched and self._gate() is None:
            self.switched = all(part.gate is None for part in self.running.values())
            if self.switched:
                self.feed.unordered()

    def _gave(self, count: int) -> None:
        if self.current is not None and self.current.loose:
            self.current.given += count
        else:
            super()._gave(count)

    def _unskipped(self, block: Block | None) -> Block | None:
        part = self.current
        if part is None or not part.loose:
            return super()._unskipped(block)
        self.skip = part.skip
        left = super()._unskipped(block)
        part.skip, self.skip = self.skip, 0
        return left

    def _pass(self) -> None:
        """Remove parts that are wholly delivered, and record their spans."""
        if self.parts and not self.parts[0].loose:
            super()._pass()
        over = [part for part in self.parts if part.loose and part.over and not part.pieces]
        for part in over:
            self.parts.remove(part)
            self._handed_on(part)
            self.done.append(Done(part.start, part.start + part.rows))
        if over:
            base = self._base
            self.done = joined([span for span in self.done if span.stop > base])

    # Input

    def _taken(self, rows: int) -> tuple[LanePart, list[Piece]] | None:
        """The next rows that were not delivered before, or a slice that was partly delivered."""
        if not self._read_over():
            return None
        loose = self._gate() is None and not self.skip
        span = self.saved[0] if self.saved else None
        again = span is not None and span.start == self.place
        if span is not None:
            rows = span.stop - self.place if again else min(rows, span.start - self.place)
        found = super()._taken(rows)
        if found is None:
            return None
        part, pieces = found
        while again and part.rows < rows and (more := super()._taken(rows - part.rows)) is not None:
            part.rows += more[0].rows
            pieces += more[1]
        if again:
            part.skip = self.saved.popleft().given
        part.start, part.loose = self.place, loose
        self.place += part.rows
        return part, pieces

    def _read_over(self) -> bool:
        """Take and discard spans delivered before; False if the input ends in one."""
        while self.saved and self.saved[0].start == self.place and self.saved[0].given == ALL:
            span = self.saved[0]
            while self.place < span.stop:
                found = super()._taken(span.stop - self.place)
                if found is None:
                    return False
                self.place += found[0].rows
            self.done.append(self.saved.popleft())
        return True

    def _start(self, part: LanePart, pieces: Any, begin: int, first: int | None = None) -> None:
        del first  # its row in a batch is not known yet
        super()._start(part, pieces, begin)


def joined(spans: list[Done]) -> list[Done]:
    """The rows of ``spans`` in as few spans as possible, in order."""
    out: list[Done] = []
    for span in sorted(spans):
        if out and out[-1].stop == span.start:
            span = Done(out.pop().start, span.stop)  # noqa: PLW2901
        out.append(span)
    return out
