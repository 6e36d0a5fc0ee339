"""This file runs a plan over a few atoms alone, as if its sources had no other rows.

Every law of the optimizer holds whatever the data is, so it holds for these rows too: both plans
of a pipeline must make the same of them. Rows keep the ids, epochs and global positions that they
have in the run, so that draws and orders are those of the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from dml.errors import DmlError, InternalError, MemoryContractError
from dml.events import Tally
from dml.exec.above import open_node
from dml.exec.losses import Noted
from dml.exec.meter import Tallies
from dml.exec.steps import Steps
from dml.exec.stream import Streaming
from dml.exec.work import Reading
from dml.expr.block import Block
from dml.expr.facts import Rows
from dml.expr.flow import CHUNK, At, Flow, Opener, Position, Room
from dml.expr.node import Node
from dml.expr.ops.repeat import ENDLESS
from dml.expr.ops.seek import Seek
from dml.expr.sources.source import Unit
from dml.plan import Plan, Stage


class Made(NamedTuple):
    """Blocks in order, and what stopped them."""

    blocks: Sequence[Block]
    error: DmlError | None = None


NOTHING = Made(())
Bottom = Callable[[int], Made]
"""What the stages of a plan give of its atom in an epoch."""


class Atom:
    """One atom of the source of a chosen plan, by its place in reading order.

    ``blocks`` are its rows with every column, by epoch, as far as they were read.
    """

    def __init__(self, plan: Plan, at: At, whole_bytes: int, place: int, atom: int) -> None:
        stage = plan.stage
        self.columns, self.predicate = stage.columns, stage.predicate
        self.every = Stage(stage.source, stage.source.schema.names, (), (), stage.order)
        self.at, self.whole_bytes, self.place, self.atom = at, whole_bytes, place, atom
        self.blocks: dict[int, Block | None] = {}

    def _reading(self, epoch: int) -> Reading:
        at = dataclasses.replace(self.at, epoch=epoch)
        return Reading(self.every, at, whole_bytes=self.whole_bytes)

    def unit(self, epoch: int) -> Unit:
        """The unit that it is part of."""
        return self._reading(epoch).unit_at(self.place)

    def read(self, epoch: int) -> Block | None:
        """Its rows, every column; None where there is no such atom."""
        if epoch not in self.blocks:
            reading = self._reading(epoch)
            blocks = iter(reading.read(reading.unit_at(self.place), self.atom))
            self.blocks[epoch] = next(blocks, None)
        return self.blocks[epoch]

    def read_chosen(self, epoch: int) -> Block | None:
        """Its rows as the chosen plan reads them: none where statistics rule them out."""
        if not self.matches(epoch):
            return None
        block = self.read(epoch)
        return None if block is None else block.select(self.columns)

    def matches(self, epoch: int) -> bool:
        """False if statistics say that none of its rows is wanted."""
        reading = self._reading(epoch)
        if not self.predicate or reading.rows_order is not None:
            return True
        return self.every.source.may_match(reading.unit_at(self.place), self.predicate)


def stepped(read: Callable[[int], Block | None], nodes: Sequence[Node], at: At, epoch: int) -> Made:
    """What ``nodes``, which run on blocks, make of an atom in ``epoch``."""
    at = dataclasses.replace(at, epoch=epoch)
    tally = Tally()
    return gathered(_run_on(read(epoch), Steps(nodes, at, 1), lambda: tally), at.hold_bytes)


def _run_on(block: Block | None, steps: Steps, mine: Callable[[], Tally]) -> Iterator[Block]:
    if block is not None:
        yield from steps.run((block,), mine, Noted())


def gathered(blocks: Iterable[Block], most_bytes: int) -> Made:
    """All of ``blocks``, or those before an error; MemoryContractError beyond ``most_bytes``."""
    found: list[Block] = []
    held_bytes = 0
    try:
        for block in blocks:
            found.append(block)
            held_bytes += block.nbytes
            if held_bytes > most_bytes:
                why = f"it takes {held_bytes} bytes of {most_bytes}"
                return Made([], MemoryContractError("what a sample becomes does not fit", why=why))
    except DmlError as error:
        return Made(found, error)
    except Exception as error:  # noqa: BLE001 - a bug of ours, which is what is looked for
        wrong = InternalError(f"{type(error).__name__}: {error}")
        wrong.__cause__ = error
        return Made(found, wrong)
    return Made(found)


class _Handed:
    """A flow of rows that are at hand; they are one piece of their source."""

    def __init__(self, made: Made) -> None:
        self.error = made.error
        self.blocks = [block for block in made.blocks if block.n]

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` rows."""
        if not self.blocks:
            if self.error is not None:
                raise self.error
            return None
        block = self.blocks.pop(0)
        if block.n > most:
            self.blocks.insert(0, block.slice(most, block.n))
        return block.slice(0, min(most, block.n))

    def pull_piece(self, room: Room) -> list[Block] | None:
        """All rows."""
        out: list[Block] = []
        while (block := self.pull(CHUNK)) is not None:
            room.take(block)
            out.append(block)
        return out or None

    def position(self) -> Position:
        """Nobody goes on from here."""
        return {}

    def close(self) -> None:
        """Forget the rows."""
        self.blocks, self.error = [], None


class _PassOverError(Exception):
    """A second pass is asked for."""


class _OnePass:
    """Pass number ``turn`` of a ``repeat``, and no other."""

    def __init__(self, node: Any, below: Opener, epoch: int, turn: int, at: At) -> None:
        self.below, self.opened = below, False
        self.flow: Flow = node.flow(self._open, epoch, {"in": None, "pass": turn}, at)

    def _open(self, epoch: int, position: Position | None) -> Flow:
        if self.opened:
            raise _PassOverError
        self.opened = True
        return self.below(epoch, position)

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` elements of the pass."""
        try:
            return self.flow.pull(most)
        except _PassOverError:
            return None

    def position(self) -> Position:
        """Nobody goes on from here."""
        return {}

    def close(self) -> None:
        """Close the input."""
        self.flow.close()


@dataclasses.dataclass(frozen=True, eq=False)
class Apart(Streaming):
    """A plan over rows that are at hand: ``bottom`` gives what its stages make of them.

    ``turns`` are the passes that are looked at, one for each ``repeat`` from the source on.
    """

    bottom: Bottom = lambda _: NOTHING
    turns: tuple[int, ...] = ()

    def opener(self, *, finishing: bool = False) -> Opener:
        """Makes the flow of the whole plan."""
        opener: Opener = self._open_bottom
        turns = iter(self.turns)
        for number, node in enumerate(self.plan.stream):
            turn = next(turns, 0) if node.rows is Rows.REPEATED else -1
            opener = partial(self._open_one, node, opener, number, turn)
        return opener

    def _open_bottom(self, epoch: int, position: Position | None) -> Flow:
        return _Handed(self.bottom(epoch))

    def _open_one(  # noqa: PLR0917 (an Opener, once the first four are bound)
        self,
        node: Node,
        below: Opener,
        number: int,
        turn: int,
        epoch: int,
        position: Position | None,
    ) -> Flow:
        if turn >= 0:
            return _OnePass(node, below, epoch, turn, self.at)
        if isinstance(node, Seek):  # it would begin to read elsewhere
            position = {"in": None, "left": node.n}
        return open_node(self, node, below, number, epoch, position)

    def made(self, epoch: int) -> Made:
        """All elements of ``epoch``: blocks of rows, or batches."""
        most = 1 if self.plan.batched else CHUNK

        def pulled() -> Iterator[Block]:
            flow = self.opener()(epoch, None)
            try:
                while (block := flow.pull(most)) is not None:
                    yield block
            finally:
                flow.close()

        return gathered(pulled(), self.at.hold_bytes)


def turns_of(plan: Plan, stage_epoch: int) -> tuple[int, ...]:
    """The passes of each ``repeat`` over a stage that was opened at ``stage_epoch``.

    Below a cache every epoch is the first; of what repeats it the first pass is taken.
    """
    found: list[int] = []
    known = True
    for node in plan.stream:
        if node.rows is Rows.KEPT:
            known = False
        elif node.rows is Rows.REPEATED:
            n: int | None = getattr(node, "n", None)
            each = ENDLESS if n is None else max(1, n)
            found.append(stage_epoch % each if known else 0)
            stage_epoch //= each
    return tuple(found)


def apart(plan: Plan, at: At, bottoms: Iterator[Bottom], turns: tuple[int, ...] = ()) -> Apart:
    """``plan`` over what ``bottoms`` give, one for it and each plan beside it in their order."""
    bottom = next(bottoms)
    beside = tuple(tuple(apart(each, at, bottoms) for each in plans) for plans in plan.beside)
    return Apart(plan, at, _unopened, 1, Tallies(), beside=beside, bottom=bottom, turns=turns)


def _unopened(*_given: Any, **_options: Any) -> Any:
    raise InternalError("rows that are at hand need no driver")
