"""Flows deliver elements in order, from any saved position on; operators read their input as flows.

Operators whose outputs depend on one row alone only transform blocks (``run``). All other operators
read an ordered stream, a ``Flow``, which returns up to ``most`` elements at a time, and a position
from which a new flow returns exactly the remaining elements. Positions are plain JSON values: cuts
of the source, numbers of rows to discard, and small states. They never contain rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

from dml.data.batch_trays import Trays
from dml.data.block import Block, concat
from dml.data.row_slicing import SETTLING_ROWS
from dml.data.schema import Schema
from dml.errors import DmlError, MemoryContractError
from dml.expr.nested_pipelines import Nested, unopened
from dml.expr.node import Node

Position: TypeAlias = "dict[str, Any]"
# Rows that a flow requests of its input at once if their number does not affect the output.
CHUNK = 8192
UNBOUNDED = 1 << 62
# Memory factor of gathered rows: the blocks as they arrived, and the concatenated copy.
GATHERED = 2
# More rows than any block has: requests a whole atom.
WHOLE = 1 << 62


class Compute(Protocol):
    """Runs a flat program over columns; implemented by each tier of the kernels."""

    def run(self, program: Any, inputs: Any, n: int, sel: Any = None, *, rooms: Any = None) -> Any:
        """Run ``program`` on ``n`` rows of ``inputs``, or on rows ``sel``; return a ``Result``.

        Images may be written to the arrays ``rooms``.
        """


class Spill(Protocol):
    """Stores blocks outside of memory, to be read back in order; closed when garbage collected."""

    @property
    def count(self) -> int:
        """Number of stored runs that ``runs`` can still return."""

    def write(self, blocks: Iterator[Block]) -> None:
        """Append one sorted run."""

    def runs(self, most: int | None = None, *, keep: bool = False) -> list[Iterator[Block]]:
        """Return an iterator over the blocks of each of the first ``most`` runs (None: all runs).

        Unless ``keep``, these runs leave the store, and each is deleted when it has been read.
        """

    def close(self) -> None:
        """Delete all runs."""


class CachedBlock(NamedTuple):
    """A cached block: ``first`` elements precede it; ``before`` and ``after`` are positions.

    The positions are those of the cache's input right before and right after the block. If one of
    them was not recorded, it is replaced by an earlier position: the one before element ``since``
    (for ``before``) or before element ``until`` (for ``after``).
    """

    first: int
    before: Position | None
    block: Block
    after: Position
    since: int | None = None
    until: int | None = None


class KeptPrefix(Protocol):
    """The cached prefix of a stream of elements, which any number of flows may share."""

    @property
    def elsewhere(self) -> bool:
        """True if other processes also add elements, so that each read must look for new ones."""

    @property
    def schemas(self) -> dict[str, Schema]:
        """The settled schemas (as ``At.schemas``) with which the cached elements were computed."""

    def find_block(self, place: int) -> CachedBlock | None:
        """Return the block that contains element number ``place``, or None if not cached."""

    def ends(self, place: int) -> bool:
        """Return True if the stream is known to have no element number ``place``."""

    def offer(self, entry: CachedBlock, schemas: dict[str, Schema]) -> None:
        """Add a copy of ``entry`` if it continues the prefix and fits into the cache."""

    def end(self, place: int) -> None:
        """Record that the stream ends before element number ``place``."""

    def leave(self) -> None:
        """Release the cache at the end of a flow; elements that the flow added stay cached."""


class NothingKept:
    """Caches no elements of any operator; the base class of stores that cache elements."""

    fills_disk = False
    """True if the run computes elements for a cache on disk.

    Such a run must stay in its thread, by which other runs recognize who fills the cache.
    """
    refused = False
    """True once a row was lost to the time that a call took: elements from there on are not cached.

    Another run may have that row.
    """

    def refuse(self) -> None:
        """Cache no further elements in this run."""

    def __call__(self, node: Node) -> KeptPrefix | None:
        """Return the cached prefix of the input of the cache operator ``node``, or None."""
        del node
        return None

    def kept_figures(self, node: Node) -> dict[str, int]:
        """Return counts and byte sizes of the cache operator ``node``, by statistic name."""
        del node
        return {}


class NothingStored:
    """Stores no rows of any step; the base class of stores that cache the rows of steps.

    A level is a sequence of consecutive steps of a stage that ends with a stored step.
    """

    looks = False
    """True if, when this run began, the cache had rows of it that other runs stored."""

    def __call__(self, node: Node, epoch: int) -> Any:
        """Return the store's entry for the rows of ``node`` in ``epoch``; None if there is none."""
        del node, epoch

    def level(self, entry: Any, steps: Any, below: Any) -> Any:
        """Return the level of ``steps``, which reads the level ``below`` (None: the source).

        ``entry`` stores the rows of the last step; if that is no cache, it may find them in others.
        """
        raise NotImplementedError

    def served(self, job: Any, place: int, atom: int, tallies: Any, driven: Any) -> Any:
        """Return the feed of ``job`` from atom number ``atom`` of unit number ``place`` on.

        This class returns ``driven(place, atom)``, the partitions that a driver computes.
        """
        del job, tallies
        return driven(place, atom)


nothing_kept, nothing_stored = NothingKept(), NothingStored()


def nobody_counts(_error: DmlError, _rows: int) -> None:
    """Ignore an error that cost rows; the default of ``At.lost``."""


@dataclasses.dataclass(frozen=True, slots=True)
class At:
    """The context in which a block is computed: epoch, default seed, kernels, settled schemas.

    ``schemas`` is part of a checkpoint: for each function without a declared result type, it has
    the types that the first rows in source order settled, by the operator's digest in hex.
    ``budget`` is the number of bytes that one stream operator may hold before it spills.
    ``hold_bytes`` limits the memory of an operator that cannot spill, and the rows of one atom that
    a block operator gathers. ``keep`` returns the cached prefix of a cache operator's input, and
    ``store`` the entry for a stored step's rows in an epoch. ``lost`` is called with each error
    that cost rows and the number of these rows; if ``bounded``, this happens between the rows
    before and after the error. ``nested`` opens pipelines that a function returned; ``trays`` has
    preallocated memory for results of functions.
    """

    epoch: int
    seed: int
    compute: Compute
    schemas: dict[str, Schema]
    spill: Callable[[Schema], Spill]
    budget: int
    hold_bytes: int = UNBOUNDED
    keep: NothingKept = nothing_kept
    lost: Callable[[DmlError, int], None] = nobody_counts
    store: NothingStored = nothing_stored
    nested: Nested = unopened
    trays: Trays = dataclasses.field(default_factory=Trays)
    bounded: bool = False

    def key(self, seed: int | None) -> int:
        """Return an operator's parameter ``seed``; if it is None, the default seed of the run."""
        return self.seed if seed is None else seed


class Flow(Protocol):
    """An ordered stream of elements that starts at some position."""

    def pull(self, most: int) -> Block | None:
        """Return 1 to ``most`` rows (or exactly one batch); at the end None, on every call."""

    def position(self) -> Position:
        """Return the position from which a new flow returns exactly the elements still to come."""

    def close(self) -> None:
        """Stop work in progress; a second call does nothing."""


Opener: TypeAlias = Callable[[int, "Position | None"], Flow]
"""Opens an operator's input as a flow over an epoch, from a position (None: the start)."""


def pass_over(flow: Flow, count: int, *, batched: bool = False) -> None:
    """Pull and drop the next ``count`` rows, or batches if ``batched``; fewer only at the end."""
    while count and (block := flow.pull(count)) is not None:
        count -= 1 if batched else block.n


PieceReader: TypeAlias = Callable[[Flow], Iterator[Block] | None]
"""Reads the next piece of an input, such as a block, and starts computing its output; None at the
end of the input."""


class LocalFlow:
    """Rows computed from ``input`` piece by piece, where each piece is independent of the others.

    A position contains the input's position before the current piece, and the number of returned
    output rows of this piece, which a resumption computes again and discards.
    """

    def __init__(
        self, begin: PieceReader, open_input: Opener, epoch: int, position: Position | None
    ) -> None:
        start: Position = {"in": None, "drop": 0} if position is None else position
        self.begin = begin
        self.input = open_input(epoch, start["in"])
        self.before: Position = self.input.position()
        self.given = 0
        self.made: Iterator[Block] = iter(())
        self.rest: Block | None = None
        pass_over(self, start["drop"])

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` rows of output; None at the end."""
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
        """Return the position before the current piece, and how many of its rows are returned."""
        return {"in": self.before, "drop": self.given}

    def close(self) -> None:
        """Close the input."""
        self.made = iter(())
        self.input.close()


class Blockwise:
    """Runs row-local work on one block of the input after the other.

    ``run`` yields the output of a block. ``settling`` returns how many rows the next block must
    have to settle the types; 0 if they are settled.
    """

    def __init__(
        self, run: Callable[[Block], Iterator[Block]], settling: Callable[[], int]
    ) -> None:
        self.run, self.settling = run, settling
        self.error: DmlError | None = None  # raised after rows that are not returned yet

    def __call__(self, input_: Flow) -> Iterator[Block] | None:
        """Return the output of the next input block, run lazily; None at the end of the input."""
        block = self._next(input_)
        return None if block is None else self.run(block)

    def _next(self, input_: Flow) -> Block | None:
        """Return the next input block, or the rows that settle the types if these are unsettled."""
        if self.error is not None:
            raise self.error
        wanted = self.settling()
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
    """Return the number of rows that settle the types of ``node``; 0 if they are settled."""
    return SETTLING_ROWS if untyped(node, at) else 0


def untyped(node: Node, at: At) -> bool:
    """Return True if the function of ``node`` has no declared and no settled result types."""
    unknown = node.declares and not node.schema.known
    return unknown and node.digest.hex() not in at.schemas


class BatchFlow:
    """Batches of ``input``, each passed through ``run``; a batch without result rows is dropped."""

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
        """Return the whole output of the next batch; raise an error of any row, without output."""
        while (block := self.input.pull(1)) is not None:
            parts = [out for out in self.run(block) if out.n]
            if parts:
                return concat(parts)
        return None

    def position(self) -> Position:
        """Return the input's position, which is exact: nothing is buffered between batches."""
        return self.input.position()

    def close(self) -> None:
        """Close the input."""
        self.input.close()


class Again:
    """Elements computed by ``make`` from the whole input, which is always read from its start.

    A position counts the returned elements, which a resumption computes again and discards.
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
        pass_over(self, (position or {"given": 0})["given"], batched=batched)

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` rows, or one batch; None at the end."""
        while self.rest is None or not self.rest.n:
            self.rest = next(self.out, None)
            if self.rest is None:
                return None
        block = self.rest.slice(0, self.rest.n if self.batched else min(most, self.rest.n))
        self.rest = self.rest.slice(block.n, self.rest.n)
        self.given += 1 if self.batched else block.n
        return block

    def position(self) -> Position:
        """Return how many elements were returned."""
        return {"given": self.given}

    def close(self) -> None:
        """Close the input and drop the buffered rows."""
        self.input.close()
        self.out, self.rest = iter(()), None


def read_rows(flow: Flow, rows: int, room: GatherQuota | None = None) -> list[Block]:
    """Return blocks with the next ``rows`` rows of ``flow``, fewer only at its end.

    With ``room``, each block is counted in this quota, which may raise MemoryContractError.
    """
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


class GatherQuota:
    """The memory quota of an operator that gathers rows: ``most_bytes``."""

    def __init__(self, node: Node, most_bytes: int) -> None:
        self.node, self.most_bytes = node, most_bytes
        self.rows = self.held_bytes = 0

    def empty(self) -> GatherQuota:
        """Reset the count to zero."""
        self.rows = self.held_bytes = 0
        return self

    def take(self, block: Block) -> None:
        """Add the size of ``block``; raise MemoryContractError if the sum exceeds the quota."""
        self.rows += block.n
        self.held_bytes += GATHERED * block.nbytes
        if self.held_bytes > self.most_bytes:
            raise self.refused(self.rows, self.held_bytes, "to gather")

    def refused(self, rows: int, nbytes: int, what: str) -> MemoryContractError:
        """Return the error for ``rows`` rows of ``nbytes`` bytes that exceed the quota."""
        return MemoryContractError(
            f"the rows of {self.node.title()} do not fit into the memory number",
            at=self.node.label(),
            why=f"{rows} rows take {nbytes} bytes {what},"
            f" and its part of memory_limit is {self.most_bytes}",
            try_=f"at most {rows * self.most_bytes // nbytes} rows, or a larger memory_limit=",
        )
