"""``interleave(fn)`` takes rows in turns from pipelines that ``fn`` returns for input rows."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from weakref import WeakMethod

import numpy as np

from dml.checks import element_count
from dml.data.block import Block
from dml.data.schema import Schema
from dml.errors import DmlError, UDFError, text_of
from dml.expr.facts import Needs, ResumeCost, Rows
from dml.expr.flow import pass_over
from dml.expr.node import Node, op
from dml.expr.user_call import UserFunction, blamed, each, raised
from dml.kernels.rows.ids import U64, LateIds, RowIds
from dml.ops.merge.merge import MOST_ROWS, Portion, same
from dml.ops.merge.turns import TurnInput, count_complete_turns, in_turns
from dml.udfs.calling import python_rows as convert

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position

CYCLE = int.from_bytes(b"cycle", "big")
VERB = "interleave"
# Bytes of a slot's saved state, without the position of its pipeline.
SLOT_BYTES = 512
# Input rows pulled at once for each place of the cycle, where pipelines are prefetched.
AT_ONCE = 8
# Up to this many rows are skipped by reading; beyond them, the input is opened again.
NEAR = 1024


@op
class InterleaveMap(Node):
    """Takes rows in turns from the pipelines that ``fn`` returns, several of which are open.

    A cycle has ``cycle_length`` slots. From each slot in turn, up to ``block_length`` rows are
    taken of the pipeline in it. A slot whose pipeline is exhausted becomes empty, and the next slot
    follows; at an empty slot, the pipeline of the next input row is opened, if there is one.
    Source: tf.data's InterleaveDataset, not parallel.

    Row ids are derived from the id of the input row and the id of the row in its pipeline. Raises
    SchemaError if pipelines have different columns. A resumed run calls ``fn`` again for open
    pipelines.
    """

    input: Node
    fn: UserFunction
    cycle_length: int = 4
    block_length: int = 1
    declared: Schema | None = None
    needs: Needs = Needs()

    rows: ClassVar[Rows] = Rows.WOVEN

    def check(self) -> None:
        """Raise PlanError for lengths that are not positive integers."""
        element_count("interleave cycle_length", self.cycle_length, least=1)
        element_count("interleave block_length", self.block_length, least=1)

    @property
    def resume_cost(self) -> ResumeCost:
        """Return the cost of resuming: positions are saved, prefetched rows are read again."""
        return ResumeCost(SLOT_BYTES * self.cycle_length, work_rows=MOST_ROWS, work="one block")

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Open a flow that opens pipelines when their turn comes."""
        return _Cycle(self, open_input, epoch, position, at)

    def parameters_text(self) -> str:
        """Return the function's name, both lengths, and the resources that it needs as text."""
        lengths = f"cycle_length={self.cycle_length}, block_length={self.block_length}"
        return f"{self.fn.name}, {lengths}{self.needs.parameters_text()}"


class _Input:
    """Reads rows one by one from ``flow``, in blocks of ``most``; ``number`` is the next row."""

    def __init__(self, flow: Flow, number: int, most: int) -> None:
        self.flow, self.number, self.most = flow, number, most
        self.rest: Block | None = None
        self.block: tuple[Position, int] = (flow.position(), number)

    def next(self) -> _Row | None:
        """Return the next row; None at the end."""
        if self.rest is None:
            self.block = (self.flow.position(), self.number)
            self.rest = self.flow.pull(self.most)
        if self.rest is None:
            return None
        row = self.rest.slice(0, 1)
        self.rest = self.rest.slice(1, self.rest.n) if self.rest.n > 1 else None
        self.number += 1
        return _Row(row, self.number - 1, *self.block)

    def where(self) -> tuple[Position, int]:
        """Return an input position at or before the next row, and the row number there."""
        return (self.flow.position(), self.number) if self.rest is None else self.block


class _Row(NamedTuple):
    """An input row and its ``number``; ``before`` is the input's position before row ``since``."""

    row: Block
    number: int
    before: Position
    since: int


@dataclasses.dataclass(slots=True)
class _Slot:
    """An open pipeline ``side``, and the input row ``of`` for which it was returned."""

    of: _Row
    side: TurnInput

    def position(self) -> dict[str, Any]:
        """Return the state from which this pipeline is opened again at its next row."""
        row, flow = self.of, self.side.flow
        found = {"row": row.number, "in": row.before, "at": flow.position()}
        return found if row.since == row.number else {**found, "since": row.since}


class _Seat(TurnInput):
    """A prefetched pipeline: its rows are buffered by the prefetcher, not here."""

    def look(self, *, wait: bool) -> int:
        """Return the number of prefetched rows; with ``wait``, wait for some, or for the end."""
        flow: Any = self.flow
        found: int = flow.look(wait=wait)
        return found

    def fetch(self, wanted: int) -> int:
        """Return the number of prefetched rows, at most ``wanted``."""
        return min(wanted, self.look(wait=False))

    def take(self, n: int) -> Block:
        """Remove and return the first ``n`` prefetched rows; raise IndexError if fewer are left."""
        block = self.flow.pull(n)
        if block is None or block.n != n:
            raise IndexError(n)
        return block


@dataclasses.dataclass(frozen=True, eq=False)
class _Calling:
    """Opens the pipelines that ``fn`` returns, without references to the flow, for threads."""

    node: InterleaveMap
    epoch: int
    at: At
    most_bytes: int

    def opened(self, row: Block, position: Position | None) -> Flow:
        """Open the flow of the pipeline that ``fn`` returns for ``row``, from ``position`` on."""
        pipeline = self._called(row)
        try:
            flow: Flow = self.at.nested(pipeline, self.epoch, position, self.most_bytes)
        except DmlError as error:
            raise blamed(error.under(self.node.label()), row.ids, 0) from error.__cause__
        return flow

    def _called(self, row: Block) -> Node:
        """Return the pipeline that ``fn`` returns for ``row``; raise UDFError for other results."""
        fn, out = self.node.fn, list[Any]()
        error = each(*convert.readable(fn.call, row), out)
        if error is not None:
            raise raised(error, fn, row.ids, 0).located(self.node.label())
        given = out[0]
        if isinstance(given, Node) and not given.batched:
            return given
        batches = isinstance(given, Node)
        found = UDFError(
            f"{fn.name} returned {'a pipeline of batches' if batches else text_of(given, repr)}",
            why="interleave takes rows of the pipelines that its function gives",
            try_=".interleave(...).batch(n)" if batches else "return a Dataset, or flat_map(f)",
            operator=fn.name,
        )
        raise blamed(found.located(self.node.label()), row.ids, 0)


class _Rereading:
    """Reads input rows by ascending number; it reopens the input instead of skipping many rows."""

    def __init__(self, open_input: Opener, epoch: int) -> None:
        self.open_input, self.epoch = open_input, epoch
        self.flow: Flow | None = None
        self.next = 0

    def at(self, number: int, position: Position | None, since: int) -> Flow:
        """Return the input's flow, positioned before row ``number``.

        ``position`` is a saved position of the input before row ``since``, which is at most
        ``number``.
        """
        if self.flow is None or since - self.next > NEAR:
            self.close()
            self.flow, self.next = self.open_input(self.epoch, position), since
        while self.next < number:
            self.next += self._pulled(self.flow, number - self.next).n
        return self.flow

    def row(self, number: int, position: Position, since: int) -> _Row:
        """Return row ``number``; ``position`` is a saved position of the input before ``since``."""
        row = self._pulled(self.at(number, position, since), 1)
        self.next += 1
        return _Row(row, number, position, since)

    @staticmethod
    def _pulled(flow: Flow, most: int) -> Block:
        block = flow.pull(most)
        if block is None:
            raise KeyError("in")  # the caller reports a position that does not fit
        return block

    def close(self) -> None:
        """Close the input, if it is open."""
        if self.flow is not None:
            self.flow.close()


class _Cycle:
    """A flow of rows in turns; ``before`` is its last state with empty buffers.

    ``given`` counts the rows that were returned after that state.
    """

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
        self.node, self.at = node, at
        self.turn: tuple[int, int] = (start["turn"][0], start["turn"][1])
        self.rows: int = start["rows"]  # how many input rows have had a place in the cycle
        self.slots: list[_Slot | None] = [None] * len(start["slots"])
        # the pipelines that come next, which are prefetched
        self.coming = deque[_Slot]()
        self.reading = at.nested.reading(node.cycle_length, node.needs.concurrency)
        self.most_bytes = at.hold_bytes // node.cycle_length
        own_bytes = self.most_bytes
        if self.reading is not None:
            own_bytes = self.reading.own_bytes(self.most_bytes)
        self.calling = _Calling(node, epoch, at, own_bytes)
        self.input = self._opened_again(start, _Rereading(open_input, epoch))
        self.over = bool(start.get("over"))
        self.portion, self.given = Portion(at), 0
        self.before = self._here()
        pass_over(self, start["drop"])

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` rows, in turns; None at the end."""
        if self.reading is None and not self._at_hand():
            self.before, self.given = self._here(), 0
        self._go_ahead()
        while self._placed():
            block = self._some(min(most, self.portion.rows))
            if block is not None:
                self.portion.learn(block)
                self.given += block.n
                return block
        return None

    def _placed(self) -> bool:
        """Move the turn to a slot with an open pipeline, or open one; return False at the end."""
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
        """Open the pipeline of the next input row in the current slot."""
        if not self.coming and not self._begun():
            self.over = True
            return
        self.slots[self.turn[0]] = self.coming.popleft()
        self.rows += 1
        self._go_ahead()

    def _begun(self) -> bool:
        """Open or prefetch the next input row's pipeline; return False at the input's end."""
        row = self.input.next()
        if row is not None:
            self.coming.append(self._slot(row, partial(self.calling.opened, row.row, None), None))
        return row is not None

    def _go_ahead(self) -> None:
        """Start to prefetch pipelines of buffered input rows, after others were read completely.

        At most as many pipelines as the cycle has slots are prefetched at a time, and none is
        started while prefetched rows take more than a quarter of the operator's memory.
        """
        if self.reading is None:
            return
        while self.input.rest is not None and len(self.coming) < len(self.slots):
            flows: list[Any] = [each.side.flow for each in (*self.slots, *self.coming) if each]
            full = 4 * sum(flow.nbytes for flow in flows) > self.most_bytes * len(self.slots)
            if full or sum(not flow.over for flow in flows) >= len(self.slots):
                return
            self._begun()

    def _slot(self, row: _Row, opener: Callable[[], Flow], position: Position | None) -> _Slot:
        if self.reading is None:
            return _Slot(row, TurnInput(opener()))
        # called when a pipeline is exhausted, also while the consumer waits
        again = WeakMethod(self._go_ahead)
        return _Slot(row, _Seat(self.reading.open(opener, position, self.most_bytes, again)))

    def _opened_again(self, start: Position, rereading: _Rereading) -> _Input:
        """Open the pipelines of a saved position; return the input, positioned at its next row."""
        places = [place for place, slot in enumerate(start["slots"]) if slot is not None]
        for place in sorted(places, key=lambda each: start["slots"][each]["row"]):
            slot = start["slots"][place]
            number, position = slot["row"], slot["at"]
            row = rereading.row(number, slot["in"], slot.get("since", number))
            # opened here, where an error means that the position does not fit
            flow = self.calling.opened(row.row, position)
            self.slots[place] = self._slot(row, partial(_same, flow), position)
        flow = rereading.at(self.rows, start["in"], start.get("since", self.rows))
        one = self.reading is None or self.at.bounded
        return _Input(flow, self.rows, 1 if one else AT_ONCE * len(self.slots))

    def _some(self, wanted: int) -> Block | None:
        """Return up to ``wanted`` rows; None if the pipeline in the current slot is exhausted."""
        picks, turn = self._walk(wanted)
        counts = np.bincount(picks, minlength=len(self.slots))
        first = self.slots[picks[0]]
        if first is not None and isinstance(first.side, _Seat):
            first.side.look(wait=True)
        have = [0 if s is None or not n else s.side.fetch(int(n)) for s, n in self._each(counts)]
        good = count_complete_turns(picks, have)
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
        """Return the slots of the next ``wanted`` rows, and the turn after these rows.

        There are fewer slots if a pipeline must be opened first.
        """
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
            self._of(slot.side.take(n), slot)
            for slot, n in self._each(counts)
            if slot is not None and n
        ]
        return in_turns(order, parts)

    def _of(self, block: Block, slot: _Slot) -> Block:
        """Return ``block``, rows of the pipeline in ``slot``, with their ids in the output."""
        self._agreed(block, slot.of.number)
        made = partial(
            _ids_in_pipeline, slot.of.row.ids.arrays(), block.ids, CYCLE + self.node.level
        )
        # others may hold more than these rows, or a long chain of ids that were not read either
        late = isinstance(block.ids.lo, int) and block.ids.sel is None
        ids = LateIds(block.n, made) if late else RowIds.of_arrays(*made())
        return dataclasses.replace(block, ids=ids, rows=None)

    def _agreed(self, block: Block, number: int) -> None:
        """Raise SchemaError if columns differ from the declared ones, or from the first block's."""
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
        coming = self.coming[0].of if self.coming else None
        before, since = (coming.before, coming.since) if coming else self.input.where()
        return {
            "in": before,
            **({} if since == self.rows else {"since": since}),
            "slots": [None if slot is None else slot.position() for slot in self.slots],
            "turn": list(self.turn),
            "rows": self.rows,
            "over": self.over,
        }

    def position(self) -> Position:
        """Return the last state with empty buffers, and the number of rows returned since."""
        if self._at_hand():
            return {**self.before, "drop": self.given}
        return {**self._here(), "drop": 0}

    def close(self) -> None:
        """Close the input, and all open pipelines."""
        for slot in (*self.slots, *self.coming):
            if slot is not None:
                slot.side.flow.close()
        self.input.flow.close()


def _same(flow: Flow) -> Flow:
    return flow


def _ids_in_pipeline(row: tuple[U64, U64], within: RowIds, key: int) -> tuple[U64, U64]:
    """Return the ids, in the output, of rows with the ids ``within`` the pipeline of one row."""
    high, low = (np.repeat(half, within.count) for half in row)
    return RowIds.of_arrays(high, low).derive(*within.arrays()).derive(key, 0).arrays()
