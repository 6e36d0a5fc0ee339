"""Implement ``cache(tier="disk")``: consecutive elements of a stream, cached in a store.

Each part of an entry begins where the previous part ends. The thread that reaches the end of the
stored elements makes the next part, and adds each block to the part before it delivers the block;
other threads read the block from the part.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from dml.cache.elements.element_parts import (
    PackedEntries,
    Packing,
    PartSpan,
    Spans,
    empty_part,
    read,
)
from dml.cache.parts.entry import StoredEntry
from dml.cache.parts.parts import PartFilling, PartSource
from dml.cache.store.open_stores import Where
from dml.data.block_copy import own
from dml.data.id_columns import FREE, form_of
from dml.data.schema import Schema
from dml.expr.flow import CachedBlock
from dml.expr.node import Node

PART_ENTRIES = 1 << 14  # most entries of one part
# Seconds for which a thread waits at first: for a maker that works on the block, and for one that
# rests, which may itself be waiting for this thread.
PATIENCE_S, REST_S = 10.0, 1.0


class PartWriter:
    """An unfinished part from element ``first`` on; ``next`` is the element to add next.

    The thread ``maker`` makes element ``next``, even after the part was committed. Other threads
    that need the element wait; a thread that has waited for too long becomes the maker.
    """

    def __init__(
        self, number: int, first: int, filling: PartFilling, until: int | None, most_bytes: int
    ) -> None:
        self.number, self.first, self.next, self.filling = number, first, first, filling
        self.most_bytes = most_bytes
        self.until = until  # element with which the next part begins, if that part is stored
        self.maker = threading.get_ident()  # the thread that makes the part's blocks
        self.works = True  # the maker is making a block now
        self.moved = time.monotonic()  # time at which ``works`` last changed
        self.overtaken: int | None = None  # the maker before, if it was replaced
        self.packing: Packing | None = None
        self.nbytes = 0  # bytes of the committed part
        self.recent: list[CachedBlock] | None = None
        self.behind: Any = None  # the position of the input behind the last entry
        self.schemas: dict[int, Schema] = {}

    def fitted(self, entry: CachedBlock, *, batched: bool) -> CachedBlock | None:
        """Return cached block ``entry``, cut to begin with element ``next``; None if impossible."""
        if entry.first == self.next:
            return entry
        skipped = self.next - entry.first
        if batched or self.behind is None or not 0 < skipped < entry.block.n:
            return None
        rest = entry.block.slice(skipped, entry.block.n)
        return CachedBlock(self.next, self.behind, rest, entry.after)

    def add(
        self, entry: CachedBlock, form: int, schemas: Mapping[int, Schema], *, batched: bool
    ) -> bool:
        """Add a cached block to the part; return False if its schema or row ids do not fit."""
        if self.packing is None:
            form = form if self.until is None else FREE  # the part cannot be committed early
            self.packing = Packing(entry.first, entry.block, form, batched=batched)
        elif not self.packing.takes(entry.block):
            return False
        self.filling.resting = False
        for batch in self.packing.packed(entry):
            self.filling.add(batch)
        if self.recent is not None:
            self.recent.append(entry._replace(block=own(entry.block)))
        self.next = self.first + self.packing.count
        self.schemas |= schemas
        self.behind = entry.after
        self.maker, self.overtaken = threading.get_ident(), None
        self._turned(works=False)
        return True

    def take(self) -> None:
        """Make the current thread the maker of the next block."""
        if not self.mine:
            self.maker, self.overtaken = threading.get_ident(), self.maker
        self._turned(works=True)

    def _turned(self, *, works: bool) -> None:
        self.works, self.moved = works, time.monotonic()
        self.filling.resting = not works

    @property
    def mine(self) -> bool:
        """True if the current thread is the maker of the next block."""
        return self.maker == threading.get_ident()

    def awaited_s(self, asked: float, times: int) -> float:
        """Return how many more seconds a thread should wait for the maker; if not positive, none.

        ``asked`` is the monotonic time at which the thread began to wait; ``times`` is a factor of
        the usual waiting time.
        """
        wait_s = times * (PATIENCE_S if self.works else REST_S)
        return 0.0 if self.mine else max(asked, self.moved) + wait_s - time.monotonic()

    def returned(self) -> bool:
        """Return True, once, if the current thread was replaced as maker but no block was made yet.

        This shows that the thread that replaced it has waited for too short a time.
        """
        found = self.overtaken == threading.get_ident()
        self.overtaken = None if found else self.overtaken
        return found

    @property
    def full(self) -> bool:
        """True if the part is to be committed now, because of its size or the part that follows."""
        if self.packing is None:
            return False
        if self.until is not None:  # the part must reach the next one without a gap
            return self.next >= self.until
        return self.packing.nbytes >= self.most_bytes or len(self.packing.rows) >= PART_ENTRIES

    def recent_entry(self, place: int) -> CachedBlock | None:
        """Return the cached block with element ``place``; None if it is not in memory any more."""
        entries = self.recent or []
        found = bisect_right(entries, place, key=lambda entry: entry.first) - 1
        return entries[found] if found >= 0 else None

    @property
    def fits(self) -> bool:
        """True if the part leaves no gap before the next stored part, or none follows."""
        return self.until is None or self.next >= self.until

    def commit(self, *, last: bool) -> PartSource:
        """Commit the part to the store; ``last`` is True if the stream ends with it."""
        self.recent, packing, self.packing = None, self.packing, None
        if packing is None:
            return self.filling.commit(empty_part(self.first, self.schemas, last=True))
        for batch in packing.rest():
            self.filling.add(batch)
        self.nbytes = packing.nbytes
        return self.filling.commit(packing.about(self.schemas, last=last))


PART_BYTES = 16 << 20  # most bytes that a killed run recomputes; a part costs a seek and a file
FOLLOWED_BYTES = 2 << 20  # most bytes of an unfinished part while several flows read the stream
PARTS_OF_A_QUOTA = 8  # a part as large as the quota would evict all other parts
OPEN = 4  # most parts that are mapped at once
MOST_TIMES = 64  # factor by which waiting times grow at most: to some ten minutes


class DiskShelf:
    """The parts of one cached stream, shared by all flows of this process."""

    def __init__(self, entry: StoredEntry, *, batched: bool) -> None:
        self.entry, self.batched = entry, batched
        self.changed = threading.Condition()
        self.claims = threading.Lock()
        self.spans = Spans()
        self.open: OrderedDict[int, PackedEntries] = OrderedDict()
        self.schemas: dict[int, Schema] = {}
        self.making: PartWriter | None = None
        self.made: PartWriter | None = None  # the previous part, while its maker may continue
        self.times = 1  # factor of the seconds that a thread waits for the maker
        self.form = 0
        self.followed = False  # several flows read this stream at once
        self.unsure = True  # other processes may have made parts since the last survey
        self.frontier: int | None = None  # a missing part whose predecessor was made here

    # ------------------------------------------------------------------------------------ reading

    def find_block(self, place: int) -> CachedBlock | None:
        """Return the cached block with element ``place``; None if the caller must make it."""
        while True:
            with self.changed:
                if self._makes(place):
                    return None
                entry = self._behind(place) or self._there(place)
                number = self.spans.absent(place)
                ended = entry is not None or self.spans.ended(place)
                if ended or number is None:
                    self._pass(place)
                if ended or number is None or self.making is not None:
                    return entry
            if not self._claim(number, place):
                return None

    def _makes(self, place: int) -> bool:
        """Wait while element ``place`` is the next one to make.

        Return True if the caller must make it. Between two parts, return False to a caller that
        becomes the maker, since it must begin a part.
        """
        asked = time.monotonic()
        while (making := self.making or self.made) is not None and making.next == place:
            self._wait_longer(making)
            left_s = making.awaited_s(asked, self.times)
            if left_s <= 0:
                making.take()
                return making is self.making
            self.changed.wait(left_s)
        return False

    def _wait_longer(self, making: PartWriter) -> None:
        """Double the waiting times if another thread became the maker and was no faster."""
        if making.returned():
            self.times = min(2 * self.times, MOST_TIMES)

    def _pass(self, place: int) -> None:
        """End the wait for a maker of element ``place``: it exists, or no part begins there."""
        if self.made is not None and self.made.next == place:
            self.made = None
            self.changed.notify_all()

    def _behind(self, place: int) -> CachedBlock | None:
        """Return the cached block with element ``place`` from the unfinished part, or None.

        An unfinished part that keeps no blocks in memory is committed, so that readers can follow.
        """
        making = self.making
        if making is None or not making.first <= place < making.next:
            return None
        self.followed = True
        if making.recent is not None or making.until is not None:
            return making.recent_entry(place)
        self._commit()
        return None

    def _there(self, place: int) -> CachedBlock | None:
        """Return the cached block with element ``place`` from a stored part, or None."""
        packed = None if self.spans.ended(place) else self._packed(place)
        if packed is None and self._news(place):
            packed = self._packed(place)
        return None if packed is None else packed.entry(place)

    def open_part(self, place: int) -> PackedEntries | None:
        """Return the part with element ``place`` if a recent read has left it open, else None."""
        with self.changed:
            return next((p for p in self.open.values() if p.first <= place < p.end), None)

    def _packed(self, place: int) -> PackedEntries | None:
        if (held := self.open_part(place)) is not None:
            return held
        while True:
            known = self.spans.covering(place)
            number = self.spans.absent(place) if known is None else known
            if number is None or (known is None and number == self.frontier):
                return None
            found = self._read(number)
            if found is None or found.first <= place < found.end:
                return found
            if known is None:  # the end, or the stored part does not continue this stream
                return None

    def _read(self, number: int) -> PackedEntries | None:
        """Map part ``number``, and record its span; return None if the store does not have it."""
        packed = self._mapped(number)
        self.open.pop(number, None)
        self.spans.forget(number)
        if packed is not None:
            self.spans.know(number, PartSpan.of(packed.about))
            self.schemas |= packed.schemas
            self.open[number] = packed
            while len(self.open) > OPEN:
                self.open.popitem(last=False)
        return packed

    def mapped(self, place: int) -> PackedEntries | None:
        """Map the part with element ``place`` again, for one run; return None if impossible."""
        with self.changed:
            number = self.spans.covering(place) if self.entry.store.tiers.maps else None
            known = None if number is None else self.open.get(number)
        loaded = known is not None and not known.mapped
        packed = None if number is None or loaded else self._mapped(number, 0)
        return packed if packed is not None and packed.first <= place < packed.end else None

    def _mapped(self, number: int, most_bytes: int = sys.maxsize) -> PackedEntries | None:
        rows = self.entry.part(number, most_bytes)
        return None if rows is None else read(rows, batched=self.batched)

    def _news(self, place: int) -> bool:
        """Survey the store, and return True, if new parts of other processes may hold ``place``."""
        if not self.unsure or place in self.spans.ends:
            return False
        self._survey()
        return True

    def _survey(self) -> None:
        """Record the spans of all parts in the store, without reading their rows."""
        self.unsure = False
        for number, record in sorted(self.entry.store.records(self.entry.fingerprint).items()):
            if number not in self.spans.of and "kept" in record.about:
                self.spans.know(number, PartSpan.of(record.about))

    def look_again(self) -> None:
        """Close all parts at the start of a run: parts may have been added or damaged since."""
        with self.changed:
            self.unsure, self.frontier = True, None
            self.open.clear()
            if self.making is None:
                self.spans = Spans()

    def reach(self) -> tuple[int, int, bool]:
        """Survey the store if needed, and return the same as ``Spans.reach``."""
        with self.changed:
            if self.unsure:
                self._survey()
            return self.spans.reach()

    # ------------------------------------------------------------------------------------- making

    def _claim(self, number: int, place: int) -> bool:
        """Begin part ``number``, or wait for the process that fills it.

        Return True if the caller must look for element ``place`` again, False if it must make it.
        """
        with self.claims:
            with self.changed:
                if self.making is not None or self.spans.absent(place) != number:
                    return True
            self.frontier = None
            got = self.entry.fill(number)
            with self.changed:
                if isinstance(got, PartFilling):
                    self._begin(number, place, got)
                    return False
                self._pass(place)
                packed = None if got is None else self._read(number)
                return packed is not None and (packed.end > place or packed.about["last"])

    def _begin(self, number: int, place: int, filling: PartFilling) -> None:
        if self.unsure:
            self._survey()
        after, quota, fits = self.spans.of.get(number + 1), self.entry.store.quota, PART_BYTES
        if quota is not None:
            fits = min(fits, quota.most_bytes // PARTS_OF_A_QUOTA)
        fits = min(fits, FOLLOWED_BYTES) if self.followed else fits
        until = None if after is None else after.first
        self.making = PartWriter(number, place, filling, until, fits)
        if self.followed:
            self.making.recent = []
        before, self.made = self.made, None
        if before is not None and before.next == place:
            self.making.overtaken = before.overtaken
        self.changed.notify_all()

    def offer(self, entry: CachedBlock, schemas: Mapping[int, Schema]) -> None:
        """Add a block to the unfinished part, if it is the next one.

        If the part was committed meanwhile, because a reader wanted its elements, the block begins
        a new part: otherwise all later blocks of this maker would fit no part.
        """
        with self.changed:
            making = self.making or self.made
            fitted = None if making is None else making.fitted(entry, batched=self.batched)
            if making is None or fitted is None:
                return
            self._wait_longer(making)
            if making is self.making:
                added = making.add(fitted, self.form, schemas, batched=self.batched)
                if not added or making.full:
                    self._commit()
                self.changed.notify_all()
                if added:
                    return
                self.form = max(self.form, form_of(entry.block.ids))
            number = self._absent(fitted.first)
            if number is None:
                self._pass(fitted.first)
        if number is not None:
            self._claim(number, fitted.first)
            self.offer(fitted, schemas)

    def _absent(self, place: int) -> int | None:
        """Return the number of the missing part that would begin with element ``place``, if any."""
        self._news(place)
        return self.spans.absent(place)

    def end(self, place: int) -> None:
        """Record that the stream ends before element ``place``, after its last element was made."""
        with self.changed:
            between = self.making is None and self.made is not None and self.made.next == place
            number = self._absent(place) if between else None
        if number is not None:
            self._claim(number, place)
        with self.changed:
            if self.making is not None and self.making.next == place:
                self._commit(last=True)
            self._pass(place)
            self.changed.notify_all()

    def leave(self) -> None:
        """End a flow: its elements stay, and any other flow may make the next element."""
        with self.changed:
            making = self.making
            if making is not None and (making.mine or (making.fits and not making.works)):
                self._commit()
            if self.made is not None and self.made.mine:
                self.made = None
            self.changed.notify_all()

    def _commit(self, *, last: bool = False) -> None:
        """Commit the unfinished part, or drop it if a gap to the next stored part would remain."""
        making = self.making
        if making is None:
            return
        self.making = self.made = None
        if not making.fits or not (last or making.next > making.first):
            making.filling.drop()
            return
        if making.commit(last=last) is PartSource.MADE:
            self.frontier = making.number + 1 if making.until is None else None
            self.spans.know(making.number, PartSpan(making.first, making.next, last, making.nbytes))
            self.schemas |= making.schemas
        else:
            self.unsure = True
        self.made = None if last else making


SHELVES: weakref.WeakValueDictionary[tuple[Where, str], DiskShelf] = weakref.WeakValueDictionary()
LOCK = threading.Lock()


def shelf_of(entry: StoredEntry, *, batched: bool) -> DiskShelf:
    """Return the parts of the cached stream of ``entry``, one object for all users in a process."""
    key = entry.where, entry.fingerprint
    with LOCK:
        found = SHELVES.get(key)
        if found is None:
            found = SHELVES[key] = DiskShelf(entry, batched=batched)
        found.entry = entry
        found.look_again()
        return found


class OnDisk:
    """The view that one run has of elements in a store, to which the run adds elements."""

    elsewhere = True

    def __init__(self, entry: StoredEntry, node: Node) -> None:
        self.shelf = shelf_of(entry, batched=node.batched)
        # Operators are identified by place: a filter with reordered conditions has another digest.
        self.operators = [each.digest.hex() for each in node.inputs[0].walk()]
        self.places = {name: place for place, name in enumerate(self.operators)}
        self.hits = self.misses = 0
        self.own: PackedEntries | None = None  # a part mapped for this run alone
        self.came = [0, 0]  # bytes from copies, and from the store
        self.last = -1  # first element of the part that was counted last

    @property
    def schemas(self) -> dict[str, Schema]:
        """The schemas that had settled when the elements were made, by digest of the operator."""
        return {self.operators[n]: schema for n, schema in self.shelf.schemas.copy().items()}

    def find_block(self, place: int) -> CachedBlock | None:
        """Return the cached block with element ``place``; None if the caller must make it."""
        entry, mine = None, self.own
        if mine is None or not mine.first <= place < mine.end:
            entry = self.shelf.find_block(place)
            self._count(place)
            self.own = mine = None if entry is None else self.shelf.mapped(place)
            if entry is not None and mine is None and self.shelf.entry.store.tiers.maps:
                entry = entry._replace(block=own(entry.block))  # other runs read that mapping
        entry = entry if mine is None else mine.entry(place)
        self.hits += entry is not None
        return entry

    def _count(self, place: int) -> None:
        """Count the bytes of the part with element ``place``, by origin: copies or store."""
        held = self.shelf.open_part(place)
        if held is not None and held.first != self.last:
            self.last, came = held.first, held.came
            self.came = [self.came[0] + came[0], self.came[1] + came[1]]

    def ends(self, place: int) -> bool:
        """Return True if the stream ends before element ``place``."""
        with self.shelf.changed:
            return self.shelf.spans.ended(place)

    def offer(self, entry: CachedBlock, schemas: dict[str, Schema]) -> None:
        """Offer the next block to the store, with the schemas that have settled."""
        self.misses += 1
        known = {self.places[name]: schema for name, schema in schemas.items()}
        self.shelf.offer(entry, known)

    def end(self, place: int) -> None:
        """Record that the stream ends before element ``place``."""
        self.shelf.end(place)

    def leave(self) -> None:
        """End a flow of this run; the elements stay in the store."""
        self.shelf.leave()
