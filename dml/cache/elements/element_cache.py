"""Implement ``cache()``: the first elements of streams, cached in memory by name."""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Set
from operator import attrgetter
from typing import TYPE_CHECKING, cast

from dml.base.user_line import warn
from dml.data.block_copy import own
from dml.data.schema import Schema
from dml.exec.memory.memory_shares import objects_bytes
from dml.expr.flow import CachedBlock, NothingKept
from dml.expr.node import Node
from dml.ops.cache.cache import Anchor, Cache, changed, on_disk, read_below
from dml.ops.cache.stored import Stored
from dml.physical.plan import Plan

if TYPE_CHECKING:
    from dml.cache.elements.disk_cache import OnDisk
    from dml.cache.parts.entry import EntryName, StoredEntry

# Bytes of a cached block besides its rows: its positions, whose states are below 4 kB.
POSITION_BYTES = 2048


class Prefix:
    """The first elements of one stream, for all pipelines of the process that contain the stream.

    Any run that makes the next block may add it. Blocks are never changed and are only removed from
    the end, so a flow that has read a block can continue after it, even if others are gone.
    """

    def __init__(self, name: bytes, lock: threading.RLock) -> None:
        self.name, self.lock = name, lock
        self.entries: list[CachedBlock] = []
        self.sizes: list[int] = []
        self.schemas: dict[str, Schema] = {}
        self.count = self.nbytes = 0
        self.whole = False

    def find_entry(self, place: int) -> CachedBlock | None:
        """Return the cached block with element ``place``, or None if it is not cached."""
        with self.lock:
            if place >= self.count:
                return None
            return self.entries[bisect_right(self.entries, place, key=attrgetter("first")) - 1]

    def add(self, entry: CachedBlock, count: int, nbytes: int) -> None:
        """Append a block of ``count`` elements that takes ``nbytes``."""
        self.entries.append(entry)
        self.sizes.append(nbytes)
        self.count += count
        self.nbytes += nbytes

    def shorten(self, most_bytes: int) -> None:
        """Remove blocks from the end until the rest takes at most ``most_bytes``."""
        with self.lock:
            while self.entries and self.nbytes > most_bytes:
                self.count = self.entries.pop().first
                self.nbytes -= self.sizes.pop()
                self.whole = False


class ElementStore:
    """All cached prefixes of a process; a prefix lives as long as it is referenced."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.known: weakref.WeakValueDictionary[bytes, Prefix] = weakref.WeakValueDictionary()

    def prefix(self, name: bytes) -> Prefix:
        """Return the prefix with ``name``, created empty if there is none."""
        with self.lock:
            return self.known.setdefault(name, Prefix(name, self.lock))

    @property
    def nbytes(self) -> int:
        """The bytes of all cached blocks."""
        return sum(each.nbytes for each in list(self.known.values()))


STORE = ElementStore()


class CacheShare:
    """The view that one run has of a prefix; adds blocks within the memory limit ``most_bytes``.

    ``hits`` and ``misses`` count blocks that were in the cache, and blocks that the input made.
    """

    def __init__(
        self, held: Prefix, most_bytes: int, store: ElementStore, *, batched: bool
    ) -> None:
        self.held, self.most_bytes, self.store, self.batched = held, most_bytes, store, batched
        self.hits = self.misses = 0
        self.swept = False

    elsewhere = False

    @property
    def schemas(self) -> dict[str, Schema]:
        """The schemas that had settled when the elements were made, by digest of the operator."""
        return self.held.schemas

    def find_block(self, place: int) -> CachedBlock | None:
        """Return the cached block with element ``place``, or None if it is not cached."""
        entry = self.held.find_entry(place)
        self.hits += entry is not None
        return entry

    def ends(self, place: int) -> bool:
        """Return True if the whole stream is cached and ends before element ``place``."""
        with self.store.lock:
            return self.held.whole and place >= self.held.count

    def offer(self, entry: CachedBlock, schemas: dict[str, Schema]) -> None:
        """Cache a copy of the next block, if it fits into the memory limit."""
        self.misses += 1
        block = entry.block
        size = block.nbytes + objects_bytes(1, len(block.schema)) + POSITION_BYTES
        if not self._fits(size):
            self._sweep()
        with self.store.lock:
            if entry.first != self.held.count or not self._fits(size):
                return
            self.held.schemas = {**self.held.schemas, **schemas}
            count = 1 if self.batched else block.n
            self.held.add(entry._replace(block=own(block)), count, size)

    def _fits(self, size: int) -> bool:
        return self.store.nbytes + size <= self.most_bytes

    def _sweep(self) -> None:
        """Collect garbage, once in a run, if other prefixes take memory: they may be unreachable.

        Pipelines that ran are in reference cycles, which Python may not collect for a long time.
        """
        if not self.swept and self.store.nbytes > self.held.nbytes:
            gc.collect()
        self.swept = True

    def end(self, place: int) -> None:
        """Mark the prefix as the whole stream if it ends right before element ``place``."""
        with self.store.lock:
            self.held.whole = self.held.whole or place == self.held.count

    def leave(self) -> None:
        """End a flow; its elements stay in the cache."""


@dataclasses.dataclass(frozen=True)
class CacheFigures:
    """What a cache stores, and what this run read: hits, misses, bytes from copies and store."""

    kept_elements: int
    kept_bytes: int
    whole: bool
    cache_hits: int = 0
    cache_misses: int = 0
    near_bytes: int = 0
    far_bytes: int = 0

    def __str__(self) -> str:
        share = "all" if self.whole else "the first"
        return f"keeps {share} {self.kept_elements:,} elements, {self.kept_bytes:,} bytes"


class Keeping(NothingKept):
    """The caches of one run, by name; those in memory take ``most_bytes`` in all.

    ``entries`` are the caches on disk, which have a name in ``names``, too. A copy sent to another
    process caches nothing: caches work where elements are delivered.
    """

    def __init__(
        self,
        names: Mapping[Node, bytes],
        most_bytes: int,
        store: ElementStore = STORE,
        *,
        entries: Mapping[Node, EntryName] | None = None,
    ) -> None:
        self.names, self.most_bytes, self.store = names, most_bytes, store
        self.entries = entries or {}
        self.shares: dict[Node, CacheShare | OnDisk] = {}

    def refuse(self) -> None:
        """Cache no further elements in this run."""
        self.refused = True

    def __reduce__(self) -> tuple[type[Keeping], tuple[dict[Node, bytes], int]]:
        return Keeping, ({}, 0)

    def __call__(self, node: Node) -> CacheShare | OnDisk | None:
        """Return the view of the cache ``node``, or None; its elements live as long as the node."""
        name = self.names.get(node)
        if name is None or not isinstance(node, Cache):
            return None
        share = self.shares.get(node)
        if share is None:
            share = self._on_disk(node) if on_disk(node) else self._in_memory(node, name)
            if share is None:
                return None
            share = self.shares.setdefault(node, share)
        if isinstance(share, CacheShare):
            node.anchor.kept[name] = share.held
        return share

    def _in_memory(self, node: Node, name: bytes) -> CacheShare:
        held = self.store.prefix(name)
        held.shorten(self.most_bytes)
        return CacheShare(held, self.most_bytes, self.store, batched=node.batched)

    def _on_disk(self, node: Node) -> OnDisk | None:
        entry = self.entry(node)
        if entry is None:
            return None
        # imported here: runs without a cache on disk do not load the module
        from dml.cache.elements import disk_cache  # noqa: PLC0415

        return disk_cache.OnDisk(entry, node)

    def entry(self, node: Node) -> StoredEntry | None:
        """Open the entry of the cache ``node``; return None if it is not on disk."""
        from dml.cache.parts.entry import entry_of  # noqa: PLC0415 (as above)

        return entry_of(self.entries[node]) if node in self.entries else None

    @property
    def fills_disk(self) -> bool:  # type: ignore[override]
        """True if this run computes elements for a cache on disk; it must stay in its thread."""
        on_disks = (each for each in self.shares.values() if not isinstance(each, CacheShare))
        return any(each.misses for each in on_disks)

    def kept_figures(self, node: Node) -> dict[str, int]:
        """Return the counts and bytes of a cache, by the names that account events use."""
        found = dataclasses.asdict(self.figures(node))
        del found["whole"]
        return found

    def figures(self, node: Node) -> CacheFigures:
        """Return the stored elements and bytes of cache ``node`` now, and its hits and misses."""
        if on_disk(node):
            self(node)
        share = self.shares.get(node)
        if share is None:
            found = self.store.known.get(self.names.get(node, b""))
            if found is None:
                return CacheFigures(0, 0, whole=False)
            return CacheFigures(found.count, found.nbytes, found.whole)
        if isinstance(share, CacheShare):
            held = share.held
            return CacheFigures(held.count, held.nbytes, held.whole, share.hits, share.misses)
        return CacheFigures(*share.shelf.reach(), share.hits, share.misses, *share.came)


def notice(plan: Plan) -> None:
    """Warn, once for each cache of ``plan``, if it stores nothing, and why."""
    for node in (each for one in plan.all for each in one.operators):
        anchor = node.anchor if isinstance(node, Cache | Stored) else None
        if anchor is not None and anchor.changed and not anchor.warned:
            anchor.warned = True
            warn(f"{node.label()} {anchor.changed}", UserWarning)


class CacheWatch:
    """Watches a cache whose rows workers store during a run; records why nothing was stored."""

    def __init__(self, node: Node) -> None:
        self._node, self._read = cast("Stored", node), read_below(node)

    def end(self, wrong: str, *, said: bool) -> None:
        """Record ``wrong``, why no part was stored; ``said`` is True after a warning of that."""
        anchor = self._node.anchor
        told = f"nothing is kept: {wrong}" if wrong else ""
        anchor.changed = changed(self._read, read_below(self._node)) or told
        anchor.warned |= said


def changed_below(node: Node) -> str:
    """Return why a cache stores nothing, or finds nothing of earlier runs; "" if it works."""
    return node.anchor.changed if isinstance(node, Cache | Stored) else ""


def forget(node: Node) -> None:
    """Drop the elements that the caches of a pipeline have in the memory of this process."""
    for each in node.walk():
        for held in each.anchor.kept.values() if isinstance(each, Cache) else ():
            held.shorten(-1)


def forget_alike(pipelines: Iterable[Node], digests: Set[bytes]) -> None:
    """Drop the elements of all caches in ``pipelines`` whose digest is in ``digests``."""
    for pipeline in pipelines:
        for each in pipeline.walk():
            if isinstance(each, Cache) and each.digest in digests:
                forget(each)


def anchors(pipeline: Node) -> list[Anchor]:
    """Return the anchors of a pipeline's caches, which own the cached elements, in order."""
    return [each.anchor for each in pipeline.walk() if isinstance(each, Cache)]


def handed_on(old: Iterable[Anchor], pipeline: Node) -> None:
    """Give the caches of ``pipeline`` the elements that an earlier version of it has cached.

    ``old`` are the anchors of that version. A cache finds the elements by name, if its input still
    computes the same.
    """
    for mine, before in zip(anchors(pipeline), old, strict=False):
        mine.kept.update(before.kept)
