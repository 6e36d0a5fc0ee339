"""This file opens a plan as one ordered flow: the stage on a driver, the stream operators above."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from dml.errors import DmlError, InternalError, ResumeMismatchError
from dml.events import Tally
from dml.exec.slices import Outcome
from dml.exec.work import Piece, Reading, Task, partitions
from dml.expr.block import Block
from dml.expr.facts import Rows
from dml.expr.flow import SETTLING, WHOLE, At, BatchFlow, Flow, LocalFlow, Opener, Position
from dml.expr.node import Node
from dml.plan import Plan, Stage

START: Position = {"unit": 0, "atom": 0, "drop": 0}


class Feed(Protocol):
    """Partitions in order, from some driver."""

    def next(self) -> Outcome | None:
        """The next partition; None at the end."""

    def release(self) -> None:
        """The partition given last is not held any more."""

    def settled(self) -> None:
        """Every schema is known: units may be read out of turn."""

    def close(self) -> None:
        """Stop."""


class Open(Protocol):
    """A driver, told everything but what to do."""

    def __call__(self, tasks: Sequence[Any], start: Any, *, settling: bool) -> Feed:
        """Begin the tasks."""


class Tallies:
    """One tally per thread, so that counting takes no lock."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._all: list[Tally] = []

    def mine(self) -> Tally:
        """The tally of this thread."""
        found: Tally | None = getattr(self._local, "tally", None)
        if found is None:
            found = self._local.tally = Tally()
            self._all.append(found)
        return found

    def total(self) -> Tally:
        """The sums of all threads."""
        return Tally().merge(*self._all)


@dataclasses.dataclass(frozen=True, slots=True)
class TaskList:
    """Tasks of ``each`` units from place ``first`` on, made when asked for."""

    first: int
    places: int
    each: int
    skip_atoms: int

    def __len__(self) -> int:
        return -(-(self.places - self.first) // self.each) if self.places > self.first else 0

    def __getitem__(self, i: int) -> Task:
        start = self.first + i * self.each
        stop = min(start + self.each, self.places)
        return Task(start, stop, 0 if i else self.skip_atoms)


class StageFlow:
    """The rows of one epoch of a stage, in reading order."""

    def __init__(self, reading: Reading, feed: Feed, position: Position | None) -> None:
        self.reading, self.feed = reading, feed
        start = position or START
        self.pieces: list[Piece] = []
        self.blocks: list[Block] = []
        self.place: int = start["unit"]
        self.atom: int = start["atom"]
        self.drop: int = start["drop"]  # rows of the atom at hand that were given, or never will be
        self.to_drop = self.drop
        self.error: DmlError | None = None
        self.held = False
        self.unsettled = True

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` rows."""
        while not self.blocks:
            if not self._next_piece():
                return None
        return self._given(most)

    def _given(self, most: int) -> Block:
        block = self.blocks[0]
        if block.n > most:
            self.blocks[0] = block.slice(most, block.n)
            block = block.slice(0, most)
        else:
            self.blocks.pop(0)
        self.drop += block.n
        return block

    def pull_piece(self) -> list[Block] | None:
        """All rows of the unit at hand, from where it was left; None at the end."""
        place, out = self.place, []
        while self.place == place:
            while self.blocks:
                out.append(self._given(self.blocks[0].n))
            if not self._next_piece():
                return out or None
        return out

    def _next_piece(self) -> bool:
        """Make the next piece the one at hand; False at the end. Raises the piece's error."""
        while not self.pieces:
            if self.error is not None:
                raise self.error
            if not self._next_partition():
                return False
        piece = self.pieces.pop(0)
        if (piece.place, piece.atom) != (self.place, self.atom):
            self.place, self.atom, self.drop, self.to_drop = piece.place, piece.atom, 0, 0
        if piece.error is not None:
            self.error = piece.error
            self.feed.close()
            raise piece.error
        if piece.ends:
            self.place, self.atom, self.drop, self.to_drop = piece.place + 1, 0, 0, 0
        else:
            self.blocks = [b for block in piece.blocks if (b := self._undropped(block)).n]
        return True

    def _undropped(self, block: Block) -> Block:
        """The rows of ``block`` that a resumed flow has not given before."""
        cut = min(self.to_drop, block.n)
        self.to_drop -= cut
        return block.slice(cut, block.n) if cut else block

    def _next_partition(self) -> bool:
        if self.held:
            self.feed.release()
            self.held = False
        outcome = self.feed.next()
        if outcome is None:
            return False
        self.held = True
        if self.unsettled and outcome.rows:
            self.unsettled = False
            self.feed.settled()
        self.pieces = list(outcome.value)
        return True

    def position(self) -> Position:
        """Place of the unit, atom in it, rows of that atom given."""
        return {"unit": self.place, "atom": self.atom, "drop": self.drop}

    def close(self) -> None:
        """Stop the driver."""
        self.pieces, self.blocks = [], []
        self.feed.close()


@dataclasses.dataclass(frozen=True, eq=False)
class Streaming:
    """How a plan is run: everything that decides when, and nothing that decides what."""

    plan: Plan
    at: At
    open: Open
    target_bytes: int
    tallies: Tallies

    def flow(self, epoch: int, position: Position | None) -> Flow:
        """The plan's elements of ``epoch`` from ``position`` on."""
        opener: Opener = self._open_stage
        for number, node in enumerate(self.plan.stream):
            opener = partial(_open_node, self, node, opener, number)
        try:
            return opener(epoch, position)
        except (KeyError, TypeError, ValueError) as error:
            raise ResumeMismatchError(
                "the saved position does not fit this pipeline", why=f"{type(error).__name__}"
            ) from error

    def _open_stage(self, epoch: int, position: Position | None) -> Flow:
        at = dataclasses.replace(self.at, epoch=epoch)
        reading = Reading(self.plan.stage, at)
        start = position or START
        tasks = TaskList(start["unit"], reading.places, self._units_each(reading), start["atom"])

        def begin(task: Task) -> Any:
            return partitions(reading, task, self.target_bytes, self.tallies.mine())

        feed = self.open(tasks, begin, settling=unsettled(self.plan.stage, at))
        return StageFlow(reading, feed, position)

    def _units_each(self, reading: Reading) -> int:
        """Units of one task: as many as make about one partition, judged by the average unit."""
        if not reading.places:
            return 1
        sample = [reading.unit_at(p).nbytes for p in (0, reading.places // 2)]
        return max(1, self.target_bytes // max(1, *sample))


def unsettled(stage: Stage, at: At) -> bool:
    """True if a function's result type is known only once its first rows have been made."""
    return any(_unsettled(node, at) for node in stage.steps)


def _unsettled(node: Node, at: At) -> bool:
    unknown = hasattr(node, "declared") and not node.schema.known
    return unknown and node.digest.hex() not in at.schemas


def _run(node: Any, at: At, block: Block) -> Iterator[Block]:
    """The blocks that ``node`` makes of one; errors name it."""
    try:
        yield from node.run(block, at)
    except DmlError as error:
        raise error.under(node.label()) from error.__cause__


def _open_node(
    run: Streaming, node: Node, open_input: Opener, number: int, epoch: int,
    position: Position | None,
) -> Flow:
    at = dataclasses.replace(run.at, epoch=epoch)
    if hasattr(node, "flow"):
        flow: Flow = node.flow(open_input, epoch, position, at)
        return flow
    if not hasattr(node, "run"):
        raise InternalError(f"{node.title()} cannot be executed", why=f"operator {number}")
    if node.inputs[0].batched:
        return BatchFlow(partial(_run, node, at), open_input, epoch, position)
    return LocalFlow(_Local(node, at), open_input, epoch, position)


@dataclasses.dataclass(frozen=True, eq=False)
class _Local:
    """A row-local operator over the stream; which rows settle its types is written in the pipeline.

    Those are the first atom's that has any, or 8192 where a shuffle below has mixed the atoms.
    """

    node: Node
    at: At

    def run(self, block: Block) -> Iterator[Block]:
        """The operator's output."""
        return _run(self.node, self.at, block)

    def settling(self) -> int:
        """Rows that settle its types together, 0 where they are settled."""
        if not _unsettled(self.node, self.at):
            return 0
        mixed = any(node.rows is Rows.PERMUTED for node in self.node.inputs[0].chain())
        return SETTLING if mixed else WHOLE
