"""Run a plan over a few atoms alone, as if its sources had no other rows.

Every rule of the optimizer is valid for any data, and so for these rows: both plans of a pipeline
must make the same rows from them. Rows keep the ids, epochs and global positions that they have in
the run, so that random draws and orders are those of the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import Any, NamedTuple

from dml.data.block import Block
from dml.errors import DmlError, InternalError, MemoryContractError, worded
from dml.events import Tally
from dml.exec.delivery.meter import Tallies
from dml.exec.streams.plan_run import open_node
from dml.exec.streams.stream import Streaming
from dml.exec.tasks.skipped_rows import Noted
from dml.exec.tasks.steps import Steps
from dml.exec.tasks.unit_reader import Reading
from dml.expr.facts import Rows
from dml.expr.flow import CHUNK, At, Flow, GatherQuota, Opener, Position
from dml.expr.node import Node
from dml.io.source import Unit
from dml.ops.slice.seek import Seek
from dml.physical.plan import Plan, Stage


class MadeBlocks(NamedTuple):
    """Blocks in order, and the error that stopped them, if any."""

    blocks: Sequence[Block]
    error: DmlError | None = None


NOTHING = MadeBlocks(())
# Copies of an atom's blocks at one time: as read, as made by both plans, and in between.
COPIES = 6
# A sample is one atom, or several small atoms: up to so many rows, atoms and bytes.
LEAST_ROWS, MOST_ATOMS, MOST_BYTES = 4096, 64, 8 << 20
Bottom = Callable[[int], MadeBlocks]
"""Returns the output of a plan's stages for the sampled atoms in an epoch."""


Where = tuple[int, int]
"""A place in reading order, and an atom of the unit there."""


class AtomSpan:
    """Consecutive ``atoms`` of a chosen plan's source, with ``blocks`` of all columns by epoch."""

    def __init__(self, plan: Plan, at: At, atoms: Sequence[Where]) -> None:
        stage = plan.stage
        self.columns, self.predicate = stage.columns, stage.predicate
        self.every = Stage(stage.source, stage.source.schema.names, (), (), stage.order)
        self.at, self.atoms = at, tuple(atoms)
        self.blocks: dict[int, list[Block]] = {}
        self.matches: dict[int, list[bool]] = {}
        self.found: dict[int, list[Where]] = {}

    def reading(self, epoch: int) -> Reading:
        """Return the reading order of the source in ``epoch``."""
        return Reading(self.every, dataclasses.replace(self.at, epoch=epoch))

    def read(self, epoch: int) -> list[Block]:
        """Return the rows of ``epoch`` with all columns, a block per atom."""
        if epoch not in self.blocks:
            reading = self.reading(epoch)
            self.blocks[epoch], self.matches[epoch], self.found[epoch] = [], [], []
            for place, atoms in groupby(self.atoms, lambda each: each[0]):
                unit, wanted = reading.unit_at(place), list(atoms)
                blocks = list(islice(reading.read(unit, wanted[0][1]), len(wanted)))
                self.blocks[epoch] += blocks
                self.found[epoch] += wanted[: len(blocks)]
                self.matches[epoch] += [self._matches(reading, unit)] * len(blocks)
        return self.blocks[epoch]

    def read_chosen(self, epoch: int) -> list[Block]:
        """Return the rows as the chosen plan reads them, without units that statistics rule out."""
        return [block for blocks in self.chosen_by_atom(epoch).values() for block in blocks]

    def chosen_by_atom(self, epoch: int) -> dict[Where, list[Block]]:
        """Return by atom the rows as the chosen plan reads them; [] if statistics rule them out."""
        rows = zip(self.read(epoch), self.found[epoch], self.matches[epoch], strict=True)
        return {
            where: [block.select(self.columns)] if wanted else [] for block, where, wanted in rows
        }

    def _matches(self, reading: Reading, unit: Unit) -> bool:
        if not self.predicate or reading.rows_order is not None:
            return True
        return self.every.source.may_match(unit, self.predicate)

    def held_bytes(self, epoch: int) -> int:
        """Estimate the memory, in bytes, for reading and comparing the atoms in ``epoch``."""
        reading, source = self.reading(epoch), self.every.source
        units = {place: reading.unit_at(place) for place, _ in self.atoms}
        working = (source.working_bytes(unit, self.every.columns) for unit in units.values())
        sizes = (atom_bytes(units[place]) for place, _ in self.atoms)
        return max(working, default=0) + COPIES * sum(sizes)


def atom_bytes(unit: Unit) -> int:
    """Return the approximate bytes of an atom of ``unit``."""
    return unit.nbytes // max(1, unit.atoms or 1)


def span_from(reading: Reading, first: Where) -> list[Where]:
    """Return the atoms of a sample: ``first``, and the following ones until the rows suffice.

    Of an open unit, whose number of atoms is unknown, only the first atom is taken.
    """
    found: list[Where] = []
    rows = size = 0
    place, atom = first
    while place < reading.places and len(found) < MOST_ATOMS:
        unit = reading.unit_at(place)
        size += atom_bytes(unit)
        if found and size > MOST_BYTES:
            break
        found.append((place, atom))
        rows += unit.atom_rows
        if rows >= LEAST_ROWS:
            break
        place, atom = (place, atom + 1) if atom + 1 < (unit.atoms or 1) else (place + 1, 0)
    return found


def stepped(
    read: Callable[[], Sequence[Block]], nodes: Sequence[Node], at: At, epoch: int
) -> MadeBlocks:
    """Run ``nodes``, which work on blocks, on each block from ``read``, in ``epoch``."""
    at = dataclasses.replace(at, epoch=epoch)
    steps, tally = Steps(nodes, at, 1), Tally()

    def run_steps() -> Iterator[Block]:
        for block in read():
            yield from steps.run((block,), lambda: tally, Noted())

    return gathered(run_steps(), at.hold_bytes)


def gathered(blocks: Iterable[Block], most_bytes: int) -> MadeBlocks:
    """Return ``blocks`` up to the first error, and that error, if any.

    If they exceed ``most_bytes``, return no blocks and a MemoryContractError.
    """
    found: list[Block] = []
    held_bytes = 0
    try:
        for block in blocks:
            found.append(block)
            held_bytes += block.nbytes
            if held_bytes > most_bytes:
                why = f"it takes {held_bytes} bytes of {most_bytes}"
                return MadeBlocks(
                    [], MemoryContractError("what a sample becomes does not fit", why=why)
                )
    except DmlError as error:
        return MadeBlocks(found, error)
    except Exception as error:  # noqa: BLE001 - a bug of dml, which the check is to find
        wrong = InternalError(worded(error))
        wrong.__cause__ = error
        return MadeBlocks(found, wrong)
    return MadeBlocks(found)


class _Handed:
    """A flow of blocks in memory, which together are one piece; an error follows the last block."""

    def __init__(self, made: MadeBlocks) -> None:
        self.error = made.error
        self.blocks = [block for block in made.blocks if block.n]

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` rows; at the end return None, or raise the error, if any."""
        if not self.blocks:
            if self.error is not None:
                raise self.error
            return None
        block = self.blocks.pop(0)
        if block.n > most:
            self.blocks.insert(0, block.slice(most, block.n))
        return block.slice(0, min(most, block.n))

    def pull_piece(self, room: GatherQuota) -> list[Block] | None:
        """Return all rows, which count against ``room``; None if there are none."""
        out: list[Block] = []
        while (block := self.pull(CHUNK)) is not None:
            room.take(block)
            out.append(block)
        return out or None

    def position(self) -> Position:
        """Return an empty position, since no run resumes from it."""
        return {}

    def close(self) -> None:
        """Drop the rows."""
        self.blocks, self.error = [], None


class _PassOverError(Exception):
    """Raised when a ``repeat`` opens its input for a second pass."""


class _OnePass:
    """A flow of a ``repeat`` operator that ends after its pass number ``turn``."""

    def __init__(self, node: Any, below: Opener, epoch: int, turn: int, at: At) -> None:
        self.below, self.opened = below, False
        self.flow: Flow = node.flow(self._open, epoch, {"in": None, "pass": turn}, at)

    def _open(self, epoch: int, position: Position | None) -> Flow:
        if self.opened:
            raise _PassOverError
        self.opened = True
        return self.below(epoch, position)

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` elements of the pass."""
        try:
            return self.flow.pull(most)
        except _PassOverError:
            return None

    def position(self) -> Position:
        """Return an empty position, since no run resumes from it."""
        return {}

    def close(self) -> None:
        """Close the input."""
        self.flow.close()


@dataclasses.dataclass(frozen=True, eq=False)
class Apart(Streaming):
    """A plan over blocks in memory: ``bottom`` returns the output of its stages in an epoch.

    ``turns`` are the sampled passes, one for each ``repeat`` from the source on.
    """

    bottom: Bottom = lambda _: NOTHING
    turns: tuple[int, ...] = ()

    def opener(
        self, position: Position | None = None, *, finishing: bool = False, free: bool = False
    ) -> Opener:
        """Return a function that opens the flow of the whole plan, in order."""
        del position, finishing, free
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
        if isinstance(node, Seek):  # it would start reading at another place
            position = {"in": None, "left": node.n}
        return open_node(self, node, below, number, epoch, position)

    def read_elements(self, epoch: int) -> MadeBlocks:
        """Return all elements of ``epoch``: blocks of rows, or batches."""
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
    """Return the pass that each ``repeat`` is in while the stages are in epoch ``stage_epoch``.

    Above a cache the pass is unknown, since every epoch below a cache is the first: pass 0 is
    taken.
    """
    found: list[int] = []
    known = True
    for node in plan.stream:
        if node.rows is Rows.KEPT:
            known = False
        elif node.rows is Rows.REPEATED:
            each = max(1, node.passes)
            found.append(stage_epoch % each if known else 0)
            stage_epoch //= each
    return tuple(found)


def apart(plan: Plan, at: At, bottoms: Iterator[Bottom], turns: tuple[int, ...] = ()) -> Apart:
    """Return a run of ``plan`` over blocks in memory, with runs of the plans of its other inputs.

    Each run reads the next of ``bottoms``. ``turns`` are the sampled passes of ``plan``.
    """
    bottom = next(bottoms)
    beside = tuple(tuple(apart(each, at, bottoms) for each in plans) for plans in plan.beside)
    return Apart(plan, at, _unopened, 1, Tallies(), beside=beside, bottom=bottom, turns=turns)


def _unopened(*_given: Any, **_options: Any) -> Any:
    raise InternalError("rows that are at hand need no driver")
