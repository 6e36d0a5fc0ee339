"""This file holds ``interleave`` of a function: rows of the pipelines that it gives, in a cycle."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dml.errors import DmlError, UDFError
from dml.expr import rows as convert
from dml.expr.block import Block
from dml.expr.calls import UserFunction, blamed, each, raised
from dml.expr.facts import Held, Rows
from dml.expr.node import Node, op
from dml.expr.ops.merge import MOST_ROWS, Portion, same
from dml.expr.ops.take import count
from dml.expr.ops.weave import Side, in_turns, reached
from dml.expr.schema import UNKNOWN, Schema

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position
    from dml.kernels.ids import RowIds

CYCLE = int.from_bytes(b"cycle", "big")
VERB = "interleave"
# Bytes of a position beside that of the pipeline itself.
SLOT_BYTES = 512
# Rows that are read again rather than that the input is opened once more.
NEAR = 1024


@op
class InterleaveMap(Node):
    """The rows of the pipelines that ``fn`` gives for each row, of ``cycle_length`` in turns.

    A cycle has ``cycle_length`` places. At each place in turn up to ``block_length`` rows are taken
    of the pipeline that is open there. One that has no more rows leaves its place empty, and the
    next place has its turn; at an empty place the pipeline of the next input row is opened, while
    there is one. Source: tf.data's InterleaveDataset, not parallel.

    Row ids are made of the input row's id and of that of the row in its pipeline. All pipelines
    have the same columns: SchemaError. ``fn`` is called again for open pipelines by a resumed run.
    """

    input: Node
    fn: UserFunction
    cycle_length: int = 4
    block_length: int = 1
    declared: Schema | None = None

    rows: ClassVar[Rows] = Rows.WOVEN

    def check(self) -> None:
        """Both lengths count."""
        count("interleave cycle_length", self.cycle_length, least=1)
        count("interleave block_length", self.block_length, least=1)

    def infer(self) -> Schema:
        """What was declared."""
        return self.declared or UNKNOWN

    @property
    def held(self) -> Held:
        """A position of each open pipeline; rows that were fetched for turns to come come again."""
        return Held(SLOT_BYTES * self.cycle_length, work_rows=MOST_ROWS, work="one block")

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Pipelines are opened when their turn comes."""
        return _Cycle(self, open_input, epoch, position, at)

    def shown(self) -> str:
        """The function's name, and both lengths."""
        lengths = f"cycle_length={self.cycle_length}, block_length={self.block_length}"
        return f"{self.fn.name}, {lengths}"


@dataclasses.dataclass(slots=True)
class _Slot:
    """An open pipeline: of which row it is, and where the input stood in front of that row."""

    number: int
    before: Position
    parent: RowIds
    side: Side

    def position(self) -> dict[str, Any]:
        """What opens the same again."""
        return {"row": self.number, "in": self.before, "at": self.side.flow.position()}


class _Rereading:
    """The input in front of rows, in their order: read on, or opened again where that is far."""

    def __init__(self, open_input: Opener, epoch: int) -> None:
        self.open_input, self.epoch = open_input, epoch
        self.flow: Flow | None = None
        self.next = 0

    def at(self, number: int, position: Position | None) -> Flow:
        """The input in front of row ``number``, where it stood at ``position``."""
        if self.flow is None or number - self.next > NEAR:
            self.close()
            self.flow, self.next = self.open_input(self.epoch, position), number
        while self.next < number:
            self.next += self._pulled(self.flow, number - self.next).n
        return self.flow

    def row(self, number: int, position: Position | None) -> Block:
        """Row ``number``."""
        row = self._pulled(self.at(number, position), 1)
        self.next += 1
        return row

    @staticmethod
    def _pulled(flow: Flow, most: int) -> Block:
        block = flow.pull(most)
        if block is None:
            raise KeyError("in")  # which is said of a position that does not fit
        return block

    def close(self) -> None:
        """Close what is open."""
        if self.flow is not None:
            self.flow.close()


class _Cycle:
    """``before`` is where all stood when nothing was at hand, ``given`` what came since."""

    def __init__(
        self,
        node: InterleaveMap,
        open_input: Opener,
        epoch: int,
        position: Position | None,
        at: At,
    ) -> None:
        empty = [None] * node.cycle_length
        start = position or {"in": None, "slots": empty, "turn": [0, 0], "rows": 0, "drop": 0}
        self.node, self.epoch, self.at = node, epoch, at
        self.turn: tuple[int, int] = (start["turn"][0], start["turn"][1])
        self.rows: int = start["rows"]  # how many input rows had their pipelines opened
        self.slots: list[_Slot | None] = [None] * len(start["slots"])
        self.input = self._opened_again(start, _Rereading(open_input, epoch))
        self.over = bool(start.get("over"))
        self.portion, self.given = Portion(), 0
        self.before = self._here()
        drop = start["drop"]
        while drop and (block := self.pull(drop)) is not None:
            drop -= block.n

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` rows, in turns."""
        if not self._at_hand():
            self.before, self.given = self._here(), 0
        while self._placed():
            block = self._some(min(most, self.portion.rows))
            if block is not None:
                self.portion.learn(block)
                self.given += block.n
                return block
        return None

    def _placed(self) -> bool:
        """Have a pipeline open at the place whose turn it is; False if there are no more."""
        while (slot := self.slots[self.turn[0]]) is None:
            if not self.over:
                self._open_next()
            elif any(self.slots):
                self.turn = self._after(self.turn[0])
            else:
                return False
        return slot is not None

    def _after(self, place: int) -> tuple[int, int]:
        return (place + 1) % len(self.slots), 0

    def _open_next(self) -> None:
        """Open the pipeline of the next input row at the place whose turn it is."""
        before = self.input.position()
        row = self.input.pull(1)
        if row is None:
            self.over = True
            return
        self.slots[self.turn[0]] = self._opened(row, self.rows, before, None)
        self.rows += 1

    def _opened_again(self, start: Position, rereading: _Rereading) -> Flow:
        """Open the pipelines that were open when the position was told, and the input itself."""
        places = [place for place, slot in enumerate(start["slots"]) if slot is not None]
        for place in sorted(places, key=lambda each: start["slots"][each]["row"]):
            slot = start["slots"][place]
            row = rereading.row(slot["row"], slot["in"])
            self.slots[place] = self._opened(row, slot["row"], slot["in"], slot["at"])
        return rereading.at(self.rows, start["in"])

    def _opened(
        self, row: Block, number: int, before: Position, position: Position | None
    ) -> _Slot:
        most_bytes = self.at.hold_bytes // self.node.cycle_length
        pipeline = self._called(row)
        try:
            flow = self.at.nested(pipeline, self.epoch, position, most_bytes)
        except DmlError as error:
            raise blamed(error.under(self.node.label()), row.ids, 0) from error.__cause__
        return _Slot(number, before, row.ids, Side(flow))

    def _called(self, row: Block) -> Node:
        """The pipeline that the function gives for a row; UDFError if it gives none."""
        fn, out = self.node.fn, list[Any]()
        error = each(fn.call, convert.to_rows(row), out)
        if error is not None:
            raise raised(error, fn, row.ids, 0).located(self.node.label())
        given = out[0]
        if isinstance(given, Node) and not given.batched:
            return given
        batches = isinstance(given, Node)
        found = UDFError(
            f"{fn.name} returned {'a pipeline of batches' if batches else repr(given)}",
            why="interleave takes rows of the pipelines that its function gives",
            try_=".interleave(...).batch(n)" if batches else "return a Dataset, or flat_map(f)",
            operator=fn.name,
        )
        raise blamed(found.located(self.node.label()), row.ids, 0)

    def _some(self, wanted: int) -> Block | None:
        """Up to ``wanted`` rows; none if the pipeline whose turn it is has no more."""
        picks, turn = self._walk(wanted)
        counts = np.bincount(picks, minlength=len(self.slots))
        have = [0 if s is None or not n else s.side.fetch(int(n)) for s, n in self._each(counts)]
        good = reached(picks, have)
        if good:
            self.turn = turn if good == len(picks) else self._walk(good)[1]
            return self._gathered(picks[:good])
        place = self.turn[0]
        slot = self.slots[place]
        if slot is not None and slot.side.error is not None:
            raise slot.side.error
        if slot is not None:
            slot.side.flow.close()
        self.slots[place], self.turn = None, self._after(place)
        return None

    def _each(self, counts: np.ndarray) -> list[tuple[_Slot | None, int]]:
        return list(zip(self.slots, counts.tolist(), strict=True))

    def _walk(self, wanted: int) -> tuple[list[int], tuple[int, int]]:
        """The places of the next rows, as far as no pipeline must be opened; whose turn is next."""
        picks: list[int] = []
        place, taken = self.turn
        while len(picks) < wanted:
            if self.slots[place] is None and not self.over:
                break
            if self.slots[place] is not None:
                picks.append(place)
                taken += 1
            if self.slots[place] is None or taken == self.node.block_length:
                place, taken = self._after(place)
        return picks, (place, taken)

    def _gathered(self, picks: list[int]) -> Block:
        order = np.asarray(picks)
        counts = np.bincount(order, minlength=len(self.slots))
        parts = [
            self._of(slot.side.taken(n), slot)
            for slot, n in self._each(counts)
            if slot is not None and n
        ]
        return in_turns(order, parts)

    def _of(self, block: Block, slot: _Slot) -> Block:
        """The rows that a pipeline gave, with ids of their own."""
        self._agreed(block, slot.number)
        parents = slot.parent.take(np.zeros(block.n, dtype=np.intp))
        ids = parents.derive(*block.ids.arrays()).derive(CYCLE + self.node.level, 0)
        return dataclasses.replace(block, ids=ids, rows=None)

    def _agreed(self, block: Block, number: int) -> None:
        """Hold a block to the declared columns, or those of the first block."""
        known = self.node.schema
        if not known.known:
            known = self.at.schemas.setdefault(self.node.digest.hex(), block.schema)
        if block.schema != known:
            try:
                same(VERB, known, block.schema, number + 1)
            except DmlError as error:
                raise error.located(self.node.label()) from None

    def _at_hand(self) -> bool:
        return any(slot is not None and slot.side.rest is not None for slot in self.slots)

    def _here(self) -> dict[str, Any]:
        return {
            "in": self.input.position(),
            "slots": [None if slot is None else slot.position() for slot in self.slots],
            "turn": list(self.turn),
            "rows": self.rows,
            "over": self.over,
        }

    def position(self) -> Position:
        """Where all stood last with nothing at hand, and what was given since."""
        if self._at_hand():
            return {**self.before, "drop": self.given}
        return {**self._here(), "drop": 0}

    def close(self) -> None:
        """Close the input, and all pipelines that are open."""
        for slot in self.slots:
            if slot is not None:
                slot.side.flow.close()
        self.input.close()
