"""``cache`` stores computed elements, so that later epochs do not compute them again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from dml.errors import PlanError
from dml.expr.facts import ResumeCost, Rows
from dml.expr.flow import WHOLE, CachedBlock
from dml.expr.node import Node, op
from dml.ops.slice.counting_flow import elements
from dml.ops.unary import SameColumns

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.expr.flow import At, Flow, KeptPrefix, Opener, Position

# The epoch in which the steps below a cache run.
FIRST = 0
MEMORY, DISK, AUTO = TIERS = ("memory", "disk", "auto")
# Why a run stopped storing elements.
UNTIMELY = (
    "keeps nothing from a row on whose function took longer than its timeout=: another run may have"
    " that row"
)


class Anchor:
    """Owns the elements that one ``cache()`` call stores, for the lifetime of the call's nodes.

    ``kept`` maps the name of a cached input to its elements; the executor fills it. A copy that is
    sent to another process is empty.
    """

    def __init__(self) -> None:
        self.kept: dict[bytes, Any] = {}
        # why nothing is stored: which variables of functions below changed, or the store's reason
        self.changed, self.warned = "", False

    def __reduce__(self) -> tuple[type[Anchor], tuple[()]]:
        return Anchor, ()


@op
class Cache(SameColumns):
    """Returns the input's elements of epoch 0 in every epoch, and stores them once computed.

    The longest prefix of the elements that fits is stored, in memory or on disk. The returned
    elements never depend on which are stored, only whether the input is computed again does. In the
    tier "auto" each run decides whether elements are stored on disk.
    """

    input: Node
    tier: str
    anchor: Anchor

    rows: ClassVar[Rows] = Rows.KEPT
    parameters_format = "tier={self.tier!r}"
    # A position is saved, an uncached block computed again.
    resume_cost = ResumeCost(state_bytes=32, work="one block, if it is not kept")
    total: bool = True

    def check(self) -> None:
        """Raise PlanError for an unknown tier."""
        if self.tier not in TIERS:
            raise PlanError(
                f"cache has no tier {self.tier!r}",
                why="elements are kept in memory, or on disk for every process that asks again",
                try_='cache(), cache(tier="disk"), or autocache()',
            )

    @property
    def keeps_in_memory(self) -> bool:  # type: ignore[override]
        """True for the tier "memory"."""
        return self.tier == MEMORY

    @property
    def decides(self) -> bool:
        """True for the tier "auto"."""
        return self.tier == AUTO

    def flow(self, open_input: Opener, _epoch: int, position: Position | None, at: At) -> Flow:
        """Open a flow that returns the cached elements, then the input from there on."""
        return _Caching(self, open_input, position, at)


def on_disk(node: Node) -> bool:
    """Return True for a cache whose tier is not "memory"."""
    return isinstance(node, Cache) and node.tier != MEMORY


class _Caching:
    """A flow of elements block by block, from the cache or from the input.

    Whole blocks are pulled from the input, not the sizes that the consumer requests, since settled
    types must not depend on the first consumer. A position contains a position of the input, the
    number of elements before it, and the number of elements returned since. It stays valid in a run
    with other block boundaries. The input's position is the one before the current block, or for a
    cached block, possibly an earlier one.
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
        self.after: Position | None = start["in"]  # the input's, after the current block
        self.since: int = start["at"]
        self.until: int = start["at"]
        self.first: int = start["at"] + start["given"]
        self.given = 0

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` rows, or one batch; None at the end."""
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
        """Load the block with the next element; return False at the end."""
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

    def _stored(self, kept: KeptPrefix) -> bool:
        """Load the block with element ``first`` from the cache; return False if not cached."""
        found = kept.find_block(self.first)
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
        """Pull the next block of the input and offer it to the cache; return False at the end.

        If the input is not open, it is opened at the last element whose position is known.
        """
        if self.input is None:
            self.read = read_below(self.node) if self.read is None else self.read
            self.input, self.first = self.open_input(FIRST, self.before), self.since
        before = self.input.position()
        block = self.input.pull(WHOLE)
        kept = None if self.at.keep.refused else self.kept
        if block is None:
            if kept is not None:
                kept.end(self.first)
            return False
        self.before, self.since, self.block = before, self.first, block
        self.after = self.input.position()
        self.until = self.first + elements(block, self.batched)
        if kept is not None:
            entry = CachedBlock(self.first, before, block, self.after)
            known = self.at.schemas.copy().items()
            kept.offer(entry, {k: v for k, v in known if k in self.settled})
        return True

    def position(self) -> Position:
        """Return an input position before the current element, and the elements returned since."""
        return {"in": self.before, "at": self.since, "given": self.first - self.since + self.given}

    def close(self) -> None:
        """Close the input, and record which variables of functions below have changed."""
        if self.kept is not None:
            self.kept.leave()
        self._close_input()
        called = self.read is not None
        told = changed(self.read or {}, read_below(self.node)) if called else ""
        self.node.anchor.changed = told or (UNTIMELY if self.at.keep.refused else "")

    def _close_input(self) -> None:
        if self.input is not None:
            self.input.close()
            self.input = None


def read_below(cache: Node) -> dict[str, dict[str, bytes]]:
    """Return, for each function below a cache, digests of the outer variables that it reads."""
    from dml.udfs.identity.closure_walk import variables  # noqa: PLC0415

    functions = [fn for node in cache.inputs[0].walk() if (fn := node.calls) is not None]
    return {fn.name: variables(fn.code) for fn in functions if not (fn.asserted or fn.reason)}


def changed(
    before: Mapping[str, Mapping[str, bytes]], now: Mapping[str, Mapping[str, bytes]]
) -> str:
    """Return the names of functions' variables whose digests have changed, as text, or ""."""
    found = [
        f"{fn} reads the variable {name!r}, which has changed meanwhile"
        for fn, names in now.items()
        for name, value in names.items()
        if before.get(fn, {}).get(name, value) != value
    ]
    why = "; ".join(found)
    return f"has nothing of earlier runs: {why}, so that it is another function" if found else ""
