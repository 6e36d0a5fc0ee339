"""This file holds ``cache``: elements that flowed past once, and are not computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from dml.errors import PlanError
from dml.expr.facts import Held, Rows
from dml.expr.flow import Entry, settled_by
from dml.expr.node import Node, op
from dml.expr.ops.take import elements
from dml.expr.schema import Schema

if TYPE_CHECKING:
    from dml.expr.block import Block
    from dml.expr.flow import At, Flow, Opener, Position

# The epoch of everything below a cache.
FIRST = 0
TIERS = ("memory",)


class Anchor:
    """Lives as long as any node that one written ``cache()`` became: what is kept hangs on it.

    ``kept`` is filled where pipelines are executed. In another process it is another, and empty.
    """

    def __init__(self) -> None:
        self.kept: dict[bytes, Any] = {}

    def __reduce__(self) -> tuple[type[Anchor], tuple[()]]:
        return Anchor, ()


@op
class Cache(Node):
    """The elements of the input in epoch 0, whatever the epoch here, kept once they were computed.

    What is kept is the longest run of elements from the first on that fits; it never decides what
    comes out, only whether the input is computed again. PlanError for a ``tier`` but "memory".
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
                why="elements are kept in memory; a cache on disk or for several processes is not"
                " there",
                try_='cache(), or cache(tier="memory")',
            )

    def infer(self) -> Schema:
        """The input's schema."""
        return self.input.schema

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


class _Caching:
    """Elements block by block, from what is kept or from the input.

    Blocks are those that the input gives when it is asked for no size, so that what settles types
    above does not depend on who asked first. A position is that of the input before the block at
    hand, its number of elements before, and how many of the block were given: wherever the block is
    cut elsewhere, these are the same elements.
    """

    def __init__(self, node: Cache, open_input: Opener, position: Position | None, at: At) -> None:
        start = position or {"in": None, "at": 0, "given": 0}
        self.open_input, self.at, self.batched = open_input, at, node.batched
        self.kept = at.keep(node)
        self.most = settled_by(node.input)
        self.settled = frozenset(each.digest.hex() for each in node.input.walk())
        self.input: Flow | None = None
        self.block: Block | None = None
        self.before: Position | None = start["in"]
        self.after: Position | None = start["in"]
        self.first: int = start["at"]
        self.given = 0
        self._to(start["given"])

    def _to(self, given: int) -> None:
        """Pass over so many elements, in what is kept where that reaches."""
        if self._stored(self.first + given):
            return
        while given:
            block = self.pull(given)
            given = 0 if block is None else given - elements(block, self.batched)

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` rows, or a batch."""
        if self.block is None and not self._next():
            return None
        block = out = cast("Block", self.block)
        if not self.batched:
            out = block.slice(self.given, self.given + min(most, block.n))
        self.given += elements(out, self.batched)
        if self.given >= elements(block, self.batched):
            self.first, self.before = self.first + self.given, self.after
            self.block, self.given = None, 0
        return out

    def _next(self) -> bool:
        """Make the next block the one at hand; False at the end."""
        if self.input is None and self.kept is not None:
            if self._stored(self.first):
                return True
            if self.kept.ends(self.first):
                return False
        return self._pulled()

    def _stored(self, place: int) -> bool:
        """Make the kept block with element number ``place`` the one at hand, if there is one."""
        if self.kept is None:
            return False
        self.at.schemas.update(self.kept.schemas)
        found = self.kept.found(place)
        if found is None:
            return False
        self.first, self.before, self.block, self.after = found
        self.given = place - found.first
        return True

    def _pulled(self) -> bool:
        """The same from the input, offered to be kept."""
        if self.input is None:
            self.input = self.open_input(FIRST, self.before)
        before = self.input.position()
        block = self.input.pull(self.most)
        if block is None:
            if self.kept is not None:
                self.kept.end(self.first)
            return False
        self.before, self.block, self.after = before, block, self.input.position()
        if self.kept is not None:
            entry = Entry(self.first, before, block, self.after)
            known = self.at.schemas.copy().items()
            self.kept.offer(entry, {k: v for k, v in known if k in self.settled})
        return True

    def position(self) -> Position:
        """The input's before the block at hand, and what was given since."""
        return {"in": self.before, "at": self.first, "given": self.given}

    def close(self) -> None:
        """Close the input, if it was needed."""
        if self.input is not None:
            self.input.close()
