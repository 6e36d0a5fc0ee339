"""This file keeps what ``cache()`` keeps: the first elements of streams, by name."""

from __future__ import annotations

import dataclasses
import gc
import math
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from dml.exec.budget import objects_bytes
from dml.exec.own import own
from dml.expr.doors import warn
from dml.expr.flow import Entry, Kept
from dml.expr.node import Node
from dml.expr.ops.cache import Anchor, Cache, changed, on_disk, read_below
from dml.expr.ops.stored import Stored
from dml.expr.schema import Schema
from dml.plan import Plan

if TYPE_CHECKING:
    from dml.exec.kept_on_disk import OnDisk, Told
    from dml.exec.store.opened import Where

# What an entry takes beside its block: positions, which states keep below 4 kB.
POSITION_BYTES = 2048


class Prefix:
    """The first elements of one stream, for all pipelines of the process that have it.

    Whoever makes the next block may add it; blocks are never changed and only ever leave from the
    end, so that a flow which was given one can go on from behind it whatever became of the others.
    """

    def __init__(self, name: bytes, lock: threading.RLock) -> None:
        self.name, self.lock = name, lock
        self.entries: list[Entry] = []
        self.places: list[int] = []  # the first element of each entry
        self.sizes: list[int] = []
        self.schemas: dict[str, Schema] = {}
        self.count = self.nbytes = 0
        self.whole = False

    def found(self, place: int) -> Entry | None:
        """The entry with element number ``place``."""
        with self.lock:
            if place >= self.count:
                return None
            return self.entries[bisect_right(self.places, place) - 1]

    def add(self, entry: Entry, count: int, nbytes: int) -> None:
        """One entry more, of ``count`` elements."""
        self.entries.append(entry)
        self.places.append(entry.first)
        self.sizes.append(nbytes)
        self.count += count
        self.nbytes += nbytes

    def shorten(self, most_bytes: int) -> None:
        """Let go of the last entries until the rest takes no more than ``most_bytes``."""
        with self.lock:
            while self.entries and self.nbytes > most_bytes:
                self.entries.pop()
                self.count = self.places.pop()
                self.nbytes -= self.sizes.pop()
                self.whole = False


class Store:
    """All that the caches of a process keep; a name lives for as long as it is held."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.known: weakref.WeakValueDictionary[bytes, Prefix] = weakref.WeakValueDictionary()

    def prefix(self, name: bytes) -> Prefix:
        """That of ``name``, empty if it is new."""
        with self.lock:
            found = self.known.get(name)
            if found is None:
                found = self.known[name] = Prefix(name, self.lock)
            return found

    @property
    def nbytes(self) -> int:
        """Bytes of everything that is kept."""
        return sum(each.nbytes for each in list(self.known.values()))


STORE = Store()


class Share:
    """What one run sees of elements that are kept: it adds to them within its part of the memory.

    ``hits`` and ``misses`` count blocks that were there, and that the input made.
    """

    def __init__(self, held: Prefix, most_bytes: int, store: Store, *, batched: bool) -> None:
        self.held, self.most_bytes, self.store, self.batched = held, most_bytes, store, batched
        self.hits = self.misses = 0
        self.swept = False

    elsewhere = False

    @property
    def schemas(self) -> dict[str, Schema]:
        """As they were settled when the elements were made."""
        return self.held.schemas

    def found(self, place: int) -> Entry | None:
        """The entry with element number ``place``."""
        entry = self.held.found(place)
        self.hits += entry is not None
        return entry

    def ends(self, place: int) -> bool:
        """True if everything is kept, and no element has this number."""
        with self.store.lock:
            return self.held.whole and place >= self.held.count

    def offer(self, entry: Entry, schemas: dict[str, Schema]) -> None:
        """Keep a copy of the next block, if all that is kept here then fits."""
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
        """Collect garbage, once a run, if others hold something: nobody may want it any more.

        Pipelines that ran are in reference cycles, which Python may leave alone for long.
        """
        if not self.swept and self.store.nbytes > self.held.nbytes:
            gc.collect()
        self.swept = True

    def end(self, place: int) -> None:
        """Everything is kept, if it reaches as far as ``place``."""
        with self.store.lock:
            self.held.whole = self.held.whole or place == self.held.count

    def leave(self) -> None:
        """A flow ends; what it has made stays."""


@dataclasses.dataclass(frozen=True)
class Figures:
    """What is kept of the input of a cache, and what this run found there."""

    elements: int
    nbytes: int
    whole: bool
    hits: int = 0
    misses: int = 0
    near_bytes: int = 0
    far_bytes: int = 0

    def __str__(self) -> str:
        share = "all" if self.whole else "the first"
        return f"keeps {share} {self.elements:,} elements, {self.nbytes:,} bytes"


NOTHING = Figures(0, 0, whole=False)


def nothing_told(_node: Node) -> Told:
    """Where nothing is said of what is kept."""
    return {}


def always(_node: Node) -> float:
    """Where nobody says how often something will be asked for."""
    return math.inf


class Keeping:
    """What the caches of one run keep, each under its name: in memory ``most_bytes`` in all.

    What is kept on disk lies in the store ``where``, which is told of each cache what ``describe``
    says, and how often it is asked for ``later``. Sent to another process, it keeps nothing: caches
    work where elements are delivered.
    """

    def __init__(
        self,
        names: Mapping[Node, bytes],
        most_bytes: int,
        store: Store = STORE,
        *,
        where: Where | None = None,
        describe: Callable[[Node], Told] = nothing_told,
        later: Callable[[Node], float] = always,
    ) -> None:
        self.names, self.most_bytes, self.store = names, most_bytes, store
        self.where, self.describe, self.later = where, describe, later
        self.shares: dict[Node, Share | OnDisk] = {}

    def __reduce__(self) -> tuple[type[Keeping], tuple[dict[Node, bytes], int]]:
        return Keeping, ({}, 0)

    def __call__(self, node: Node) -> Kept | None:
        """The elements of the input of ``node``, held for as long as that lives."""
        return self._share(node)

    def _share(self, node: Node) -> Share | OnDisk | None:
        name = self.names.get(node)
        if name is None or not isinstance(node, Cache):
            return None
        share = self.shares.get(node)
        if share is None:
            share = self._on_disk(node, name) if on_disk(node) else self._in_memory(node, name)
            if share is None:
                return None
            share = self.shares.setdefault(node, share)
        if isinstance(share, Share):
            node.anchor.kept[name] = share.held
        return share

    def _in_memory(self, node: Node, name: bytes) -> Share:
        held = self.store.prefix(name)
        held.shorten(self.most_bytes)
        return Share(held, self.most_bytes, self.store, batched=node.batched)

    def _on_disk(self, node: Node, name: bytes) -> OnDisk | None:
        if self.where is None:
            return None
        # what runs without it does not load it
        made: Any = import_module("dml.exec.kept_on_disk")
        share: OnDisk = made.OnDisk(
            self.where, name.hex(), node, partial(self.describe, node), self.later(node)
        )
        return share

    @property
    def fills_disk(self) -> bool:
        """True if the run has made what is put on disk, where others know it by its thread."""
        return any(not isinstance(each, Share) and each.misses for each in self.shares.values())

    def figures(self, node: Node) -> Figures:
        """What is kept for ``node`` now."""
        if on_disk(node):
            self._share(node)
        share = self.shares.get(node)
        if share is None:
            found = self.store.known.get(self.names.get(node, b""))
            return Figures(found.count, found.nbytes, found.whole) if found else NOTHING
        if isinstance(share, Share):
            held = share.held
            return Figures(held.count, held.nbytes, held.whole, share.hits, share.misses)
        return Figures(*share.shelf.reach(), share.hits, share.misses, *share.came)


def notice(plan: Plan) -> None:
    """Warn, once for each cache, of what has it keep nothing."""
    for node in (each for one in plan.all for each in one.operators):
        anchor = node.anchor if isinstance(node, Cache | Stored) else None
        if anchor is not None and anchor.changed and not anchor.warned:
            anchor.warned = True
            warn(f"{node.label()} {anchor.changed}", UserWarning)


class Watch:
    """A cache whose rows workers keep, during a run: at the end it learns what came of them."""

    def __init__(self, node: Node) -> None:
        self._node, self._read = cast("Stored", node), read_below(node)

    def end(self, wrong: str, *, said: bool) -> None:
        """The run is over; ``wrong`` is why no part is kept, of which a warning ``said`` so."""
        anchor = self._node.anchor
        told = f"nothing is kept: {wrong}" if wrong else ""
        anchor.changed = changed(self._read, read_below(self._node)) or told
        anchor.warned |= said


def changed_below(node: Node) -> str:
    """Why nothing is kept at a cache, or nothing of earlier runs is found there."""
    return node.anchor.changed if isinstance(node, Cache | Stored) else ""


def forget(node: Node) -> None:
    """Let go of what the caches of a pipeline keep, in this process."""
    for each in node.walk():
        for held in each.anchor.kept.values() if isinstance(each, Cache) else ():
            held.shorten(-1)


def forget_alike(pipelines: Iterable[Node], digests: Set[bytes]) -> None:
    """Let go of what caches keep that are written like those of ``digests``."""
    for pipeline in pipelines:
        for each in pipeline.walk():
            if isinstance(each, Cache) and each.digest in digests:
                forget(each)


def anchors(pipeline: Node) -> list[Anchor]:
    """What hangs on the caches of a pipeline is kept; in the order in which they stand."""
    return [each.anchor for each in pipeline.walk() if isinstance(each, Cache)]


def handed_on(old: Iterable[Anchor], pipeline: Node) -> None:
    """Let the caches of a pipeline have what was kept for it when it was another object.

    They find it if their inputs still do the same, which is a part of its name.
    """
    for mine, before in zip(anchors(pipeline), old, strict=False):
        mine.kept.update(before.kept)
