"""``mix`` and ``interleave`` take elements of several inputs in turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from dml.data.block import Block, concat
from dml.errors import DmlError, InternalError
from dml.expr.facts import ResumeCost, Rows
from dml.expr.flow import pass_over
from dml.expr.node import Node
from dml.ops.merge.merge import MOST_ROWS, Merging, Portion, agreed

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position


class InputTurns(Protocol):
    """A sequence of turns: each is of one of the ``open`` inputs, which returns one element."""

    open: list[int]

    @property
    def over(self) -> bool:
        """True if no input is open."""
        return not self.open

    def copied(self) -> InputTurns:
        """Return an independent copy of the state."""

    def next(self) -> int:
        """Return the number of the input whose turn it is, and advance to the next turn."""

    def ended(self, number: int) -> None:
        """Record that input ``number`` had no element at its turn; the turn does not count."""

    def state(self) -> list[Any]:
        """Return the state as plain JSON, from which equal turns can be made."""


class Weaving(Merging):
    """The base of operators that take elements of their inputs in turns."""

    rows: ClassVar[Rows] = Rows.WOVEN
    mark: ClassVar[int] = int.from_bytes(b"weave", "big")
    input: Node
    others: tuple[Node, ...]

    def turns(self, state: list[Any] | None) -> InputTurns:
        """Return the turns from the saved ``state`` on; None: from the first."""
        raise InternalError(f"{type(self).__name__} has no turns")

    @property
    def resume_cost(self) -> ResumeCost:
        """Return the cost of resuming: the turn is saved, buffered elements are read again."""
        return ResumeCost(state_bytes=64 * len(self.inputs), work_rows=MOST_ROWS, work="one block")

    def merge(
        self, openers: Sequence[Opener], epoch: int, position: Position | None, at: At
    ) -> Flow:
        """Open all inputs and return the merged flow."""
        return _Woven(self, openers, epoch, position, at)


@dataclasses.dataclass(slots=True)
class TurnInput:
    """An input with its buffered rows ``rest``, and the error or end that follows them."""

    flow: Flow
    rest: Block | None = None
    error: DmlError | None = None
    ended: bool = False

    def fetch(self, wanted: int) -> int:
        """Buffer up to ``wanted`` elements; return how many are buffered."""
        have = 0 if self.rest is None else self.rest.n
        parts = [] if self.rest is None else [self.rest]
        while have < wanted and not self.ended and self.error is None:
            try:
                block = self.flow.pull(wanted - have)
            except DmlError as error:
                self.error = error
                break
            self.ended = block is None
            if block is not None:
                parts.append(block)
                have += block.n
        self.rest = concat(parts) if parts else None
        return have

    def take(self, n: int) -> Block:
        """Remove and return the first ``n`` buffered elements; raise IndexError without them."""
        block, self.rest = self.rest, None
        if block is None or n > block.n:
            raise IndexError(n)
        if n < block.n:
            self.rest = block.slice(n, block.n)
        return block.slice(0, n)


def count_complete_turns(picks: Sequence[int], have: Sequence[int]) -> int:
    """Return how many of the turns ``picks`` can be taken if input i has ``have[i]`` elements."""
    left = list(have)
    for turn, number in enumerate(picks):
        if not left[number]:
            return turn
        left[number] -= 1
    return len(picks)


def in_turns(order: np.ndarray, parts: Sequence[Block]) -> Block:
    """Return the rows of ``parts`` in turns: row i is the next one of input ``order[i]``.

    ``parts`` has a block for each input that occurs in ``order``, in ascending order of inputs.
    """
    if len(parts) == 1:
        return parts[0]
    places = np.empty(len(order), dtype=np.intp)
    places[np.argsort(order, kind="stable")] = np.arange(len(order))
    return concat(parts).take(places)


class _Woven:
    """A flow of elements in turns; ``before`` is its last state with empty buffers.

    ``given`` counts the elements that were returned after that state.
    """

    def __init__(
        self,
        node: Weaving,
        openers: Sequence[Opener],
        epoch: int,
        position: Position | None,
        at: At,
    ) -> None:
        start = position or {"in": [None] * len(openers), "turns": None, "drop": 0}
        self.node, self.at = node, at
        self.turns = node.turns(start["turns"])
        self.sides = [
            TurnInput(opener(epoch, place))
            for opener, place in zip(openers, start["in"], strict=True)
        ]
        self.before = self._here()
        self.given, self.portion = 0, Portion(at)
        pass_over(self, start["drop"], batched=node.batched)

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` elements, in turns; None at the end."""
        if not any(side.rest is not None for side in self.sides):
            self.before, self.given = self._here(), 0
        while not self.turns.over:
            block = self._one() if self.node.batched else self._some(min(most, self.portion.rows))
            if block is not None:
                self.portion.learn(block)
                self.given += 1 if self.node.batched else block.n
                return block
        return None

    def _one(self) -> Block | None:
        """Return the batch whose turn it is; None if that input has ended."""
        turns = self.turns.copied()
        number = turns.next()
        block = self.sides[number].flow.pull(1)
        if block is None:
            self.turns.ended(number)
            return None
        self.turns = turns
        return self._of(block, number)

    def _some(self, wanted: int) -> Block | None:
        """Return up to ``wanted`` rows; None if the input whose turn it is has no more."""
        turns = self.turns.copied()
        picks = [turns.next() for _ in range(wanted)]
        counts = np.bincount(picks, minlength=len(self.sides))
        have = [side.fetch(int(n)) if n else 0 for side, n in zip(self.sides, counts, strict=True)]
        good = count_complete_turns(picks, have)
        if good == wanted:
            self.turns = turns
        else:
            for _ in range(good):
                self.turns.next()
        if good:
            return self._gathered(picks[:good])
        side = self.sides[picks[0]]
        if side.error is not None:
            raise side.error
        self.turns.ended(picks[0])
        return None

    def _gathered(self, picks: list[int]) -> Block:
        order = np.asarray(picks)
        counts = np.bincount(order, minlength=len(self.sides)).tolist()
        each = enumerate(zip(self.sides, counts, strict=True))
        return in_turns(order, [self._of(side.take(n), i) for i, (side, n) in each if n])

    def _of(self, block: Block, number: int) -> Block:
        agreed(self.node, block, number + 1, self.at)
        return dataclasses.replace(block, ids=self.node.derived(block.ids, number), rows=None)

    def _here(self) -> dict[str, Any]:
        places = [side.flow.position() for side in self.sides]
        return {"in": places, "turns": self.turns.state()}

    def position(self) -> Position:
        """Return the last state with empty buffers, and the elements returned since."""
        if any(side.rest is not None for side in self.sides):
            return {**self.before, "drop": self.given}
        return {**self._here(), "drop": 0}

    def close(self) -> None:
        """Close all inputs."""
        for side in self.sides:
            side.flow.close()
