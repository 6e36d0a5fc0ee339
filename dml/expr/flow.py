"""This file says how elements flow in order: pull, position, and what a run tells its operators.

Operators whose outputs depend on one row alone only transform blocks (``run``). The others see the
stream in order, as a ``Flow``: something that gives up to ``most`` elements at a time and can tell
a position from which a new flow would give exactly the rest. Positions are plain JSON values made
of cuts of the source, discards and small remainders; they never hold rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

from dml.errors import DmlError, MemoryContractError
from dml.expr.block import Block, concat
from dml.expr.cutting import SETTLING_ROWS
from dml.expr.nested import Nested, unopened
from dml.expr.node import Node
from dml.expr.schema import Schema
from dml.expr.trays import Trays

Position: TypeAlias = "dict[str, Any]"
# Rows that a flow asks of its input at once when it does not matter for what comes out.
CHUNK = 8192
UNBOUNDED = 1 << 62
# What rows take that an operator gathers: they as they came, and joined.
GATHERED = 2
# More rows than a block has: asks for an atom whole.
WHOLE = 1 << 62


class Compute(Protocol):
    """Runs a flat program over columns; some tier of the kernels."""

    def run(self, program: Any, inputs: Any, n: int, sel: Any = None) -> Any:
        """Outputs (and whether a check failed) of ``program`` on ``n`` rows, or on ``sel``."""


class Spill(Protocol):
    """Keeps blocks outside of memory and gives them back in order; closed when dropped."""

    @property
    def count(self) -> int:
        """Runs that wait to be read."""

    def write(self, blocks: Iterator[Block]) -> None:
        """Append one sorted run."""

    def runs(self, most: int | None = None, *, keep: bool = False) -> list[Iterator[Block]]:
        """The first ``most`` runs (None: all), to be read block by block: once, unless kept."""

    def close(self) -> None:
        """Forget everything."""


class Entry(NamedTuple):
    """A block that is kept: elements before it, the input's position before it, and behind it.

    Where these positions were not written down they are earlier ones: before elements ``since`` and
    ``until``.
    """

    first: int
    before: Position | None
    block: Block
    after: Position
    since: int | None = None
    until: int | None = None


class Kept(Protocol):
    """The first elements of a stream, as far as they are kept; any number of flows may share it."""

    @property
    def elsewhere(self) -> bool:
        """True if other processes keep elements here, too: worth a look where an input is open."""

    @property
    def schemas(self) -> dict[str, Schema]:
        """Schemas that were settled when these elements were made."""

    def found(self, place: int) -> Entry | None:
        """The block with element number ``place``, if it is kept."""

    def ends(self, place: int) -> bool:
        """True if it is known that there is no element number ``place``."""

    def offer(self, entry: Entry, schemas: dict[str, Schema]) -> None:
        """Keep one block more, if it is the next one and fits; none of its memory is shared."""

    def end(self, place: int) -> None:
        """There is no element number ``place``."""

    def leave(self) -> None:
        """A flow ends; what it has made stays."""


def nothing_kept(_node: Node) -> Kept | None:
    """Where nothing is kept."""
    return None


def nothing_stored(_node: Node, _epoch: int) -> Any:
    """Where nothing is stored."""
    return None


def nobody_counts(_error: DmlError, _rows: int) -> None:
    """Where nobody counts the rows that functions cost."""


@dataclasses.dataclass(frozen=True, slots=True)
class At:
    """When and with what a block is computed: epoch, default seed, kernels, settled schemas.

    ``schemas`` is filled by the first rows in source order of each function whose result type is
    not declared, keyed by the operator's digest, and is part of a checkpoint. ``budget`` is the
    bytes one stream operator may hold before it spills, ``hold_bytes`` what one may hold that
    cannot spill, or an operator on blocks may gather of an atom. ``keep`` gives what is kept of the
    input of a cache, ``store`` where the rows of a stored step are in an epoch, ``lost`` is told of
    errors that cost rows, and how many; with ``bounded`` each in its place among the rows that are
    given. ``nested`` opens the pipelines that a function gives, and ``trays`` have places for what
    functions return.
    """

    epoch: int
    seed: int
    compute: Compute
    schemas: dict[str, Schema]
    spill: Callable[[Schema], Spill]
    budget: int
    hold_bytes: int = UNBOUNDED
    keep: Callable[[Node], Kept | None] = nothing_kept
    lost: Callable[[DmlError, int], None] = nobody_counts
    store: Callable[[Node, int], Any] = nothing_stored
    nested: Nested = unopened
    trays: Trays = dataclasses.field(default_factory=Trays)
    bounded: bool = False

    def key(self, seed: int | None) -> int:
        """The seed that an operator written with ``seed`` uses."""
        return self.seed if seed is None else seed


class Flow(Protocol):
    """A stream of elements, in order, from some position on."""

    def pull(self, most: int) -> Block | None:
        """Between 1 and ``most`` rows (or exactly one batch); None at the end, again and again."""

    def position(self) -> Position:
        """From where a new flow gives exactly what this one has not given yet."""

    def close(self) -> None:
        """Stop work in progress; safe to call twice."""


class Opener(Protocol):
    """Makes the flow of an operator's input at an epoch, from a position (None: the start)."""

    def __call__(self, epoch: int, position: Position | None) -> Flow:
        """Open the input."""


class Local(Protocol):
    """What a flow of row-local work does with a block, and what its types settle by."""

    def run(self, block: Block) -> Iterator[Block]:
        """The output of one block."""

    def settling(self) -> int:
        """Rows that must be run together first; 0 if types are settled."""


class Begin(Protocol):
    """Takes the next piece of an input, such as a block, and begins what is made of it alone."""

    def __call__(self, input_: Flow) -> Iterator[Block] | None:
        """What the piece becomes; None at the end of the input."""


class LocalFlow:
    """Rows made of ``input`` piece by piece, none of which knows of another.

    A position is where the piece at hand began, and how many of its rows were given: those are made
    again, and dropped.
    """

    def __init__(
        self, begin: Begin, open_input: Opener, epoch: int, position: Position | None
    ) -> None:
        start: Position = {"in": None, "drop": 0} if position is None else position
        self.begin = begin
        self.input = open_input(epoch, start["in"])
        self.before: Position = self.input.position()
        self.given = 0
        self.made: Iterator[Block] = iter(())
        self.rest: Block | None = None
        drop = start["drop"]
        while drop:
            block = self.pull(drop)
            drop -= block.n if block is not None else drop

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` rows of output."""
        while self.rest is None or self.rest.n == 0:
            self.rest = next(self.made, None)
            if self.rest is None:
                self.before, self.given = self.input.position(), 0
                made = self.begin(self.input)
                if made is None:
                    return None
                self.made = made
        out = self.rest.slice(0, min(most, self.rest.n)).bare()
        self.rest = self.rest.slice(out.n, self.rest.n)
        self.given += out.n
        return out

    def position(self) -> Position:
        """Where the piece of input began, and how many of its outputs were given."""
        return {"in": self.before, "drop": self.given}

    def close(self) -> None:
        """Close the input."""
        self.made = iter(())
        self.input.close()


class Blockwise:
    """Begins ``work`` on one block of input after the other."""

    def __init__(self, work: Local) -> None:
        self.work = work
        self.error: DmlError | None = None  # came after rows that are not given yet

    def __call__(self, input_: Flow) -> Iterator[Block] | None:
        """The output of the next block."""
        block = self._next(input_)
        return None if block is None else self.work.run(block)

    def _next(self, input_: Flow) -> Block | None:
        """A block of input; while types are not settled, exactly the rows that settle them."""
        if self.error is not None:
            raise self.error
        wanted = self.work.settling()
        if not wanted:
            return input_.pull(CHUNK)
        parts: list[Block] = []
        try:
            while wanted and (block := input_.pull(wanted)) is not None:
                parts.append(block)
                wanted -= block.n
        except DmlError as error:
            if not parts:
                raise
            self.error = error
        return concat(parts) if parts else None


def settling(node: Node, at: At) -> int:
    """Rows that settle the types of ``node`` together, 0 where they are settled."""
    return SETTLING_ROWS if untyped(node, at) else 0


def untyped(node: Node, at: At) -> bool:
    """True if the types that a function of ``node`` returns are known only once it was called."""
    unknown = hasattr(node, "declared") and not node.schema.known
    return unknown and node.digest.hex() not in at.schemas


class BatchFlow:
    """Batches of ``input`` through an operator's ``run``, one by one; empty results vanish."""

    def __init__(
        self,
        run: Callable[[Block], Iterator[Block]],
        open_input: Opener,
        epoch: int,
        position: Position | None,
    ) -> None:
        self.run = run
        self.input = open_input(epoch, position)

    def pull(self, most: int) -> Block | None:
        """The next batch, whole: an error in any of its rows stands in its place."""
        while (block := self.input.pull(1)) is not None:
            parts = [out for out in self.run(block) if out.n]
            if parts:
                return concat(parts)
        return None

    def position(self) -> Position:
        """The input's: nothing is kept between batches."""
        return self.input.position()

    def close(self) -> None:
        """Close the input."""
        self.input.close()


class Again:
    """Elements made of a whole input, from its start each time: ``make`` gives them in order.

    A position is how many were given: those are made again, and dropped.
    """

    def __init__(
        self,
        open_input: Callable[[], Flow],
        make: Callable[[Flow], Iterator[Block]],
        position: Position | None,
        *,
        batched: bool = False,
    ) -> None:
        self.input, self.batched = open_input(), batched
        self.out = make(self.input)
        self.rest: Block | None = None
        self.given = 0
        left: int = (position or {"given": 0})["given"]
        while left:
            block = self.pull(left)
            left -= left if block is None else 1 if batched else block.n

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` rows, or one batch."""
        while self.rest is None or not self.rest.n:
            self.rest = next(self.out, None)
            if self.rest is None:
                return None
        block = self.rest.slice(0, self.rest.n if self.batched else min(most, self.rest.n))
        self.rest = self.rest.slice(block.n, self.rest.n)
        self.given += 1 if self.batched else block.n
        return block

    def position(self) -> Position:
        """How many elements were given."""
        return {"given": self.given}

    def close(self) -> None:
        """Drop everything."""
        self.input.close()
        self.out, self.rest = iter(()), None


def read_rows(flow: Flow, rows: int, room: Room | None = None) -> list[Block]:
    """Blocks that hold the next ``rows`` rows of ``flow``, fewer only at its end."""
    blocks = []
    while rows:
        block = flow.pull(rows)
        if block is None:
            break
        blocks.append(block)
        rows -= block.n
        if room is not None:
            room.take(block)
    return blocks


class Room:
    """What an operator that gathers rows may hold; says so before it is too late."""

    def __init__(self, node: Node, most_bytes: int) -> None:
        self.node, self.most_bytes = node, most_bytes
        self.rows = self.held_bytes = 0

    def empty(self) -> Room:
        """Nothing is held."""
        self.rows = self.held_bytes = 0
        return self

    def take(self, block: Block) -> None:
        """Count a block that is held from now on; MemoryContractError if it is too much."""
        self.rows += block.n
        self.held_bytes += GATHERED * block.nbytes
        if self.held_bytes > self.most_bytes:
            raise self.refused(self.rows, self.held_bytes, "to gather")

    def refused(self, rows: int, nbytes: int, what: str) -> MemoryContractError:
        """The error for so many rows that take so many bytes."""
        return MemoryContractError(
            f"the rows of {self.node.title()} do not fit into the memory number",
            at=self.node.label(),
            why=f"{rows} rows take {nbytes} bytes {what},"
            f" and its part of memory_limit is {self.most_bytes}",
            try_=f"at most {rows * self.most_bytes // nbytes} rows, or a larger memory_limit=",
        )
