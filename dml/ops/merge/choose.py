"""``choose_from_datasets`` takes the next element from the input that a selector names."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from dml.data.block import Block, to_arrow
from dml.data.schema import Schema, code_of, shape_of
from dml.errors import CastError, DmlError, NullValueError, PlanError, SchemaError
from dml.expr.facts import ResumeCost, Rows
from dml.expr.flow import pass_over
from dml.expr.node import Node, op
from dml.ops.merge.merge import MOST_ROWS, Merging, Portion, agreed
from dml.ops.merge.turns import TurnInput, Weaving, count_complete_turns, in_turns

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position


@op
class Choose(Merging):
    """Choose takes the next element of the input that the next row of ``selector`` names by number.

    The output ends with the selector, or once every input is known to have ended. A row that names
    an ended input also ends the output (``stop``), or is skipped. Row ids are derived from the
    input row's id and the number of the input. Raises CastError for a number that no input has, and
    NullValueError for null.
    """

    input: Node
    others: tuple[Node, ...]
    selector: Node
    stop: bool = True

    verb: ClassVar[str] = "choose_from_datasets"
    mark: ClassVar[int] = Weaving.mark
    rows: ClassVar[Rows] = Rows.WOVEN

    @property
    def element_inputs(self) -> tuple[Node, ...]:
        """Return the inputs without the selector."""
        return (self.input, *self.others)

    def check(self) -> None:
        """Raise PlanError for a mix of rows and batches, a batched selector, or a bad ``stop``."""
        if len({node.batched for node in self.element_inputs}) > 1 or self.selector.batched:
            raise PlanError(
                f"{self.verb} of rows and batches",
                why="all inputs are batched or none, and the selector is not",
                try_=f"{self.verb} before .batch(), or .batch(...) of every input",
            )
        if not isinstance(self.stop, bool):
            raise PlanError(
                f"{self.verb} with stop_on_empty_dataset={self.stop!r}",
                why="it says whether the first input that is over ends it",
                try_="stop_on_empty_dataset=True or False",
            )

    def infer(self) -> Schema:
        """Return the inputs' schema; raise SchemaError unless the selector is an integer column."""
        if self.selector.schema.known:
            numbers_of(self.selector.schema)
        return super().infer()

    @property
    def endless(self) -> bool:
        """True if neither the selector nor the inputs that it may choose from ever end."""
        ends = [node.endless for node in self.element_inputs]
        return self.selector.endless and (all(ends) if self.stop else any(ends))

    @property
    def resume_cost(self) -> ResumeCost:
        """Return the cost of resuming: the open inputs are saved, buffered elements read again."""
        return ResumeCost(state_bytes=16 * len(self.inputs), work_rows=MOST_ROWS, work="one block")

    def merge(
        self, openers: Sequence[Opener], epoch: int, position: Position | None, at: At
    ) -> Flow:
        """Open all inputs and return the merged flow."""
        return _Chosen(self, openers, epoch, position, at)

    def parameters_text(self) -> str:
        """Return the sources of the other inputs and of the selector as text."""
        return f"{super().parameters_text()}{'' if self.stop else ', stop_on_empty_dataset=False'}"


def numbers_of(schema: Schema) -> tuple[str, pa.DataType]:
    """Return name and type of the selector's only column; raise SchemaError if not integer."""
    columns = list(schema.items())
    if len(columns) == 1 and code_of(columns[0][1])[0] in "iu" and not shape_of(columns[0][1]):
        return columns[0]
    raise SchemaError(
        "choose_from_datasets needs a selector of one column of whole numbers",
        why=f"the selector has {schema}",
        try_='selector.select("number"), or .cast({"number": "int64"})',
    )


class _Chosen:
    """A flow of chosen elements; ``before`` is its state before it last read choices.

    ``since`` counts the elements that were returned after that.
    """

    def __init__(
        self,
        node: Choose,
        openers: Sequence[Opener],
        epoch: int,
        position: Position | None,
        at: At,
    ) -> None:
        inputs = len(node.element_inputs)
        places, every = [None] * (inputs + 1), list(range(inputs))
        start: Position = position or {"in": places, "open": every, "row": 0, "drop": 0}
        self.node, self.at = node, at
        flows = [opener(epoch, place) for opener, place in zip(openers, start["in"], strict=True)]
        self.selector, self.sides = flows[-1], [TurnInput(flow) for flow in flows[:-1]]
        self.open, self.row = set(start["open"]), start["row"]
        self.picks: list[int] = []
        self.error: DmlError | None = None  # of the choice that follows ``picks``
        self.over = False
        self.before = self._here()
        self.since, self.portion = 0, Portion(at)
        pass_over(self, start["drop"], batched=node.batched)

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` elements, as they are chosen; None at the end."""
        wanted = 1 if self.node.batched else min(most, self.portion.rows)
        while not self.over and self.open:
            if not self.picks and not self._choose(wanted):
                break
            block = self._batch() if self.node.batched else self._rows(self.picks[:wanted])
            if block is not None:
                self.portion.learn(block)
                self.since += 1 if self.node.batched else block.n
                return block
        self.over = True
        return None

    def _choose(self, wanted: int) -> bool:
        """Read up to ``wanted`` choices; return False if the selector has no more."""
        if self.error is None:
            self.before, self.since = self._here(), 0
            block = self.selector.pull(wanted)
            self.picks = [] if block is None else self._valid(block)
        if not self.picks and self.error is not None:
            raise self.error
        return bool(self.picks)

    def _valid(self, block: Block) -> list[int]:
        """Return the choices in ``block`` before the first invalid one, whose error is stored."""
        name, kind = numbers_of(block.schema)
        numbers: list[int | None] = to_arrow(block[name], kind).to_pylist()
        inputs = len(self.sides)
        for place, number in enumerate(numbers):
            if number is None or not 0 <= number < inputs:
                self.error = _no_choice(number, self.row + place, inputs, self.node)
                numbers = numbers[:place]
                break
        self.row += len(numbers)
        return [number for number in numbers if number is not None]

    def _batch(self) -> Block | None:
        """Return the chosen batch; None if its input has ended."""
        number = self.picks.pop(0)
        block = self.sides[number].flow.pull(1) if number in self.open else None
        if block is None:
            self._ended(number)
            return None
        return self._of(block, number)

    def _rows(self, picks: list[int]) -> Block | None:
        """Return the chosen rows before the first whose input has ended; None if there are none."""
        counts = np.bincount(picks, minlength=len(self.sides)).tolist()
        have = [
            side.fetch(n) if n and i in self.open else 0
            for i, (side, n) in enumerate(zip(self.sides, counts, strict=True))
        ]
        good = count_complete_turns(picks, have)
        if good:
            del self.picks[:good]
            return self._gathered(np.asarray(picks[:good]))
        side = self.sides[picks[0]]
        if picks[0] in self.open and side.error is not None:
            raise side.error
        self._ended(self.picks.pop(0))
        return None

    def _ended(self, number: int) -> None:
        """Record that input ``number`` has ended; with ``stop`` the output ends, too."""
        self.over = self.node.stop
        self.open.discard(number)

    def _gathered(self, order: np.ndarray) -> Block:
        counts = enumerate(np.bincount(order).tolist())
        return in_turns(order, [self._of(self.sides[i].take(n), i) for i, n in counts if n])

    def _of(self, block: Block, number: int) -> Block:
        agreed(self.node, block, number + 1, self.at)
        return dataclasses.replace(block, ids=self.node.derived(block.ids, number), rows=None)

    def _here(self) -> dict[str, Any]:
        places = [side.flow.position() for side in self.sides] + [self.selector.position()]
        return {"in": places, "open": sorted(self.open), "row": self.row}

    def position(self) -> Position:
        """Return the last state without unused choices, and the elements returned after it."""
        if self.picks or self.error is not None or self.over:
            return {**self.before, "drop": self.since}
        return {**self._here(), "drop": 0}

    def close(self) -> None:
        """Close all inputs."""
        for side in self.sides:
            side.flow.close()
        self.selector.close()


def _no_choice(number: int | None, row: int, inputs: int, node: Node) -> DmlError:
    what = f"of {inputs} inputs, row {row} of the selector names"
    try_ = f"numbers from 0 to {inputs - 1}"
    if number is None:
        return NullValueError(
            f"{what} none: it is null", at=node.label(), why="a null chooses nothing", try_=try_
        )
    return CastError(
        f"{what} number {number}", at=node.label(), why="inputs are counted from 0", try_=try_
    )
