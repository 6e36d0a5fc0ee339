"""This file holds ``cache``: elements that flowed past once, and are not computed again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from dml.errors import PlanError
from dml.expr.facts import Held, Rows
from dml.expr.flow import WHOLE, Entry
from dml.expr.node import Node, op
from dml.expr.ops.take import elements
from dml.expr.reach import variables
from dml.expr.schema import Schema

if TYPE_CHECKING:
    from dml.expr.block import Block
    from dml.expr.flow import At, Flow, Kept, Opener, Position

# The epoch of everything below a cache.
FIRST = 0
MEMORY, DISK, AUTO = TIERS = ("memory", "disk", "auto")


class Anchor:
    """Lives as long as any node that one written ``cache()`` became: what is kept hangs on it.

    ``kept`` is filled where pipelines are executed. In another process it is another, and empty.
    """

    def __init__(self) -> None:
        self.kept: dict[bytes, Any] = {}
        # why nothing is kept: variables that functions below read have changed, or the store
        self.changed, self.warned = "", False

    def __reduce__(self) -> tuple[type[Anchor], tuple[()]]:
        return Anchor, ()


@op
class Cache(Node):
    """The elements of the input in epoch 0, whatever the epoch here, kept once they were computed.

    What is kept is the longest run of elements from the first on that fits, in memory or in a store
    on disk; it never decides what comes out, only whether the input is computed again. In the tier
    "auto" a run decides whether they are kept, on disk. PlanError for another ``tier``.
    """

    input: Node
    tier: str
    anchor: Anchor

    rows: ClassVar[Rows] = Rows.KEPT
    total: bool = True

    def check(self) -> None:
        """A tier that is there."""
        if self.tier not in TIERS:
            raise PlanError(
                f"cache has no tier {self.tier!r}",
                why="elements are kept in memory, or on disk for every process that asks again",
                try_='cache(), cache(tier="disk"), or autocache()',
            )

    def infer(self) -> Schema:
        """The input's schema."""
        return self.input.schema

    @property
    def keeps_in_memory(self) -> bool:  # type: ignore[override]
        """In that tier."""
        return self.tier == MEMORY

    @property
    def decides(self) -> bool:
        """In that tier."""
        return self.tier == AUTO

    @property
    def held(self) -> Held:
        """Which block, and how much of it was given."""
        return Held(state_bytes=32, work="one block, if it is not kept")

    def flow(self, open_input: Opener, _epoch: int, position: Position | None, at: At) -> Flow:
        """What is kept, then the input from there on."""
        return _Caching(self, open_input, position, at)

    def shown(self) -> str:
        """The tier."""
        return f"tier={self.tier!r}"


def on_disk(node: Node) -> bool:
    """True for a cache that keeps nothing in memory."""
    return isinstance(node, Cache) and node.tier != MEMORY


class _Caching:
    """Elements block by block, from what is kept or from the input.

    Blocks are those that the input gives when it is asked for no size, so that what settles types
    above does not depend on who asked first. A position is one of the input, its number of elements
    before, and how many were given since: wherever blocks are cut elsewhere, these are the same
    elements. Mostly it is that before the block at hand; kept blocks may know an earlier one only.
    """

    def __init__(self, node: Cache, open_input: Opener, position: Position | None, at: At) -> None:
        start = position or {"in": None, "at": 0, "given": 0}
        self.open_input, self.at, self.batched = open_input, at, node.batched
        self.kept, self.node = at.keep(node), node
        self.read: Mapping[str, Mapping[str, bytes]] | None = None  # before a function was called
        self.settled = frozenset(each.digest.hex() for each in node.input.walk())
        self.input: Flow | None = None
        self.block: Block | None = None
        self.before: Position | None = start["in"]  # the input's, before element ``since``
        self.after: Position | None = start["in"]  # the same at the end of the block at hand
        self.since: int = start["at"]
        self.until: int = start["at"]
        self.first: int = start["at"] + start["given"]
        self.given = 0

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` rows, or a batch."""
        if self.block is None and not self._next():
            return None
        block = out = cast("Block", self.block)
        if not self.batched:
            out = block.slice(self.given, self.given + min(most, block.n))
        self.given += elements(out, self.batched)
        if self.given >= elements(block, self.batched):
            self.first += self.given
            self.before, self.since = self.after, self.until
            self.block, self.given = None, 0
        return out

    def _next(self) -> bool:
        """Make the block with the next element the one at hand; False at the end."""
        if self.kept is not None and (self.input is None or self.kept.elsewhere):
            if self._stored(self.kept):
                return True
            if self.kept.ends(self.first):
                return False
        wanted = self.first
        while self._pulled():
            if wanted < self.until:
                self.given = wanted - self.first
                return True
            self.first, self.before, self.since = self.until, self.after, self.until
            self.block = None
        return False

    def _stored(self, kept: Kept) -> bool:
        """The same from what is kept; False if that has no such block."""
        found = kept.found(self.first)
        self.at.schemas.update(kept.schemas)
        if found is None:
            return False
        self._close_input()
        size = elements(found.block, self.batched)
        self.given, self.first = self.first - found.first, found.first
        self.before, self.block, self.after = found.before, found.block, found.after
        self.since = found.first if found.since is None else found.since
        self.until = found.first + size if found.until is None else found.until
        return True

    def _pulled(self) -> bool:
        """The next block of the input, offered to be kept; False at its end.

        One that was not open begins at the last place where its position is known.
        """
        if self.input is None:
            self.read = read_below(self.node) if self.read is None else self.read
            self.input, self.first = self.open_input(FIRST, self.before), self.since
        before = self.input.position()
        block = self.input.pull(WHOLE)
        if block is None:
            if self.kept is not None:
                self.kept.end(self.first)
            return False
        self.before, self.since, self.block = before, self.first, block
        self.after, self.until = (
            self.input.position(),
            self.first + elements(block, self.batched),
        )
        if self.kept is not None:
            entry = Entry(self.first, before, block, self.after)
            known = self.at.schemas.copy().items()
            self.kept.offer(entry, {k: v for k, v in known if k in self.settled})
        return True

    def position(self) -> Position:
        """One of the input before the element at hand, and what was given since."""
        return {"in": self.before, "at": self.since, "given": self.first - self.since + self.given}

    def close(self) -> None:
        """Close the input, if it was needed."""
        if self.kept is not None:
            self.kept.leave()
        self._close_input()
        called = self.read is not None
        self.node.anchor.changed = changed(self.read or {}, read_below(self.node)) if called else ""

    def _close_input(self) -> None:
        if self.input is not None:
            self.input.close()
            self.input = None


def read_below(cache: Node) -> dict[str, dict[str, bytes]]:
    """The functions below a cache, with the variables outside of them that they read."""
    functions = [fn for node in cache.inputs[0].walk() if (fn := node.calls) is not None]
    return {fn.name: variables(fn.call) for fn in functions if not (fn.asserted or fn.reason)}


def changed(
    before: Mapping[str, Mapping[str, bytes]], now: Mapping[str, Mapping[str, bytes]]
) -> str:
    """Which variables of functions are others than before, whoever changed them; for people."""
    found = [
        f"{fn} reads the variable {name!r}, which has changed meanwhile"
        for fn, names in now.items()
        for name, value in names.items()
        if before.get(fn, {}).get(name, value) != value
    ]
    why = "; ".join(found)
    return f"has nothing of earlier runs: {why}, so that it is another function" if found else ""
