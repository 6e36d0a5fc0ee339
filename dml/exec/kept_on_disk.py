"""This file keeps what ``cache(tier="disk")`` keeps: runs of a stream's elements, in a store.

Parts follow each other: where one ends the next begins. Whoever comes to the end of what is there
makes the next part, and puts each block into it before it goes on; others take it from there.
"""

from __future__ import annotations

import threading
import time
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from dml.exec.ids_beside import FREE, form_of
from dml.exec.kept_parts import Packed, Packing, of_nothing, read
from dml.exec.kept_spans import Reach, Span, Spans
from dml.exec.own import own
from dml.exec.store.opened import Where, store_at
from dml.exec.store.parts import Filling, PartStore, Source
from dml.expr.flow import Entry
from dml.expr.node import Node
from dml.expr.schema import Schema

PART_BYTES = 16 << 20  # what a run that is killed computes again, at most; a seek and a file each
PART_ENTRIES = 1 << 14  # of which something is said
# While flows of a process follow each other, the last of them reads what is not written yet: so
# much of it is held in memory.
FOLLOWED_BYTES = 2 << 20
# One that is as large as what a store may keep would push out all others.
PARTS_OF_A_QUOTA = 8
OPEN = 4  # parts that are mapped at once
# For how long one thread waits for a block that another makes, and for one that has not begun: it
# may be waiting for this one.
PATIENCE_S, REST_S = 10.0, 1.0

Told = Mapping[str, Any]


class Making:
    """A part that is being made: from element ``first`` on, ``next`` is the one it lacks."""

    def __init__(
        self, number: int, first: int, filling: Filling, until: int | None, most_bytes: int
    ) -> None:
        self.number, self.first, self.next, self.filling = number, first, first, filling
        self.most_bytes = most_bytes
        self.until = until  # where the part after it begins, if that is there
        self.maker = threading.get_ident()  # the thread that makes its blocks
        self.works, self.moved = (
            True,
            time.monotonic(),
        )  # it makes one now; when that began or ended
        self.packing: Packing | None = None
        self.recent: list[Entry] | None = None
        self.behind: Any = None  # the position of the input behind what is in it
        self.schemas: dict[int, Schema] = {}

    def fitted(self, entry: Entry, *, batched: bool) -> Entry | None:
        """``entry`` from the element on that is wanted next; None if it does not hold that one."""
        if entry.first == self.next:
            return entry
        skipped = self.next - entry.first
        if batched or self.behind is None or not 0 < skipped < entry.block.n:
            return None
        rest = entry.block.slice(skipped, entry.block.n)
        return Entry(self.next, self.behind, rest, entry.after)

    def add(self, entry: Entry, form: int, schemas: Mapping[int, Schema], *, batched: bool) -> bool:
        """Put an entry into it; False if it cannot be in the same part."""
        if self.packing is None:
            form = form if self.until is None else FREE  # it cannot be ended before its time
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
        self.turn(works=False)
        return True

    def turn(self, *, works: bool) -> None:
        """The next block is being made from now on, by this thread, or the last one has been."""
        self.works, self.moved = works, time.monotonic()
        self.filling.resting = not works
        if works:
            self.maker = threading.get_ident()

    @property
    def awaited_s(self) -> float:
        """For how long this thread should leave the next block to the one that makes them."""
        if self.maker == threading.get_ident():
            return 0.0
        return self.moved + (PATIENCE_S if self.works else REST_S) - time.monotonic()

    @property
    def full(self) -> bool:
        """True if it is time to commit it."""
        if self.packing is None:
            return False
        if self.until is not None:  # nothing can be between it and the next one
            return self.next >= self.until
        return self.packing.nbytes >= self.most_bytes or len(self.packing.rows) >= PART_ENTRIES

    def held(self, place: int) -> Entry | None:
        """The entry with an element that is in it, if it is in memory, too."""
        entries = self.recent or []
        found = bisect_right(entries, place, key=lambda entry: entry.first) - 1
        return entries[found] if found >= 0 else None

    def commit(self, *, last: bool) -> Source:
        """Put it where all can find it; ``last`` if nothing comes behind it."""
        if self.packing is None:
            return self.filling.commit(of_nothing(self.first, self.schemas))
        for batch in self.packing.rest():
            self.filling.add(batch)
        return self.filling.commit(self.packing.about(self.schemas, last=last))


class Shelf:
    """The parts of one kept stream, for all flows of this process."""

    def __init__(self, store: PartStore, name: str, *, batched: bool) -> None:
        self.store, self.name, self.batched = store, name, batched
        self.changed = threading.Condition()
        self.claims = threading.Lock()
        self.spans = Spans()
        self.open: OrderedDict[int, Packed] = OrderedDict()
        self.schemas: dict[int, Schema] = {}
        self.making: Making | None = None
        self.made: Making | None = None  # the one before, as long as its maker may go on
        self.form = 0
        self.followed = False  # several flows are at work
        self.unsure = True  # others may have made parts that this process has not heard of
        self.frontier: int | None = None  # a part that nobody had when the one before was made here
        self.described = False

    # ------------------------------------------------------------------------------------ reading

    def found(self, place: int, describe: Callable[[], Told]) -> Entry | None:
        """The entry with element ``place``; None if whoever asks is to make it."""
        while True:
            with self.changed:
                if self._makes(place):
                    return None
                entry = self._behind(place) or self._there(place)
                if entry is not None or self.making is not None or self.spans.ended(place):
                    return entry
                number = self.spans.absent(place)
            if number is None or not self._claim(number, place, describe):
                return None

    def _makes(self, place: int) -> bool:
        """True if the caller makes the next element of the part in the making: nobody else does."""
        while (making := self.making or self.made) is not None and making.next == place:
            left_s = making.awaited_s
            if left_s > 0:
                self.changed.wait(left_s)
            elif making is self.made:
                self.made = None
            else:
                making.turn(works=True)
                return True
        return False

    def _behind(self, place: int) -> Entry | None:
        """The entry, if it is in the part in the making; from now on what follows can follow."""
        making = self.making
        if making is None or not making.first <= place < making.next:
            return None
        self.followed = True
        if making.recent is not None or making.until is not None:
            return making.held(place)
        self._commit()
        return None

    def _there(self, place: int) -> Entry | None:
        """The entry, if the store has it."""
        packed = None if self.spans.ended(place) else self._packed(place)
        if packed is None and self.unsure and place not in self.spans.ends:
            self._survey()
            packed = self._packed(place)
        return None if packed is None else packed.entry(place)

    def _packed(self, place: int) -> Packed | None:
        for packed in self.open.values():
            if packed.first <= place < packed.end:
                return packed
        while True:
            known = self.spans.covering(place)
            number = self.spans.absent(place) if known is None else known
            if number is None or (known is None and number == self.frontier):
                return None
            found = self._read(number)
            if found is None or found.first <= place < found.end:
                return found
            if known is None:  # the end, or what was there is other than what follows
                return None

    def _read(self, number: int) -> Packed | None:
        """Map a part; what is known of it is what it says itself."""
        rows = self.store.part(self.name, number)
        packed = None if rows is None else read(rows, batched=self.batched)
        self.open.pop(number, None)
        self.spans.forget(number)
        if packed is not None:
            self.spans.know(number, Span.of(packed.about))
            self.schemas |= packed.schemas
            self.open[number] = packed
            while len(self.open) > OPEN:
                self.open.popitem(last=False)
        return packed

    def _survey(self) -> None:
        """Hear of all parts that are there."""
        self.unsure = False
        for number, record in sorted(self.store.records(self.name).items()):
            if number not in self.spans.of and "kept" in record.about:
                self.spans.know(number, Span.of(record.about))

    def look_again(self) -> None:
        """A run begins: others may have made parts, and what was mapped may be damaged by now."""
        with self.changed:
            self.unsure, self.frontier = True, None
            self.open.clear()
            if self.making is None:
                self.spans = Spans()

    def reach(self) -> Reach:
        """How much is there."""
        with self.changed:
            if self.unsure:
                self._survey()
            return self.spans.reach()

    # ------------------------------------------------------------------------------------- making

    def _claim(self, number: int, place: int, describe: Callable[[], Told]) -> bool:
        """Begin a part, or wait for whoever does; True to look again."""
        with self.claims:
            with self.changed:
                if self.making is not None or self.spans.absent(place) != number:
                    return True
                if self.unsure:
                    self._survey()
            self.frontier = None
            if not self.described:
                self.described = True
                self.store.describe(self.name, describe())
            got = self.store.fill(self.name, number)
            if got is None:
                return False
            with self.changed:
                if not isinstance(got, Filling):
                    packed = self._read(number)
                    return packed is not None and (packed.end > place or packed.about["last"])
                self._begin(number, place, got)
        return False

    def _begin(self, number: int, place: int, filling: Filling) -> None:
        after, quota = self.spans.of.get(number + 1), self.store.quota
        fits = (
            PART_BYTES if quota is None else min(PART_BYTES, quota.most_bytes // PARTS_OF_A_QUOTA)
        )
        fits = min(fits, FOLLOWED_BYTES) if self.followed else fits
        self.making = Making(number, place, filling, None if after is None else after.first, fits)
        if self.followed:
            self.making.recent = []
        self.changed.notify_all()

    def offer(
        self, entry: Entry, schemas: Mapping[int, Schema], describe: Callable[[], Told]
    ) -> None:
        """Put a block into the part in the making, if it is the next one."""
        with self.changed:
            making = self.making
            fitted = None if making is None else making.fitted(entry, batched=self.batched)
            if making is None or fitted is None:
                return
            added = making.add(fitted, self.form, schemas, batched=self.batched)
            if added and making.full:
                self._commit()
                self.made, making.recent = making, None
            elif not added:
                self._commit()
                self.form = max(self.form, form_of(entry.block.ids))
            self.changed.notify_all()
            number = self.spans.absent(entry.first)
        if not added and number is not None:
            self._claim(number, entry.first, describe)
            self.offer(entry, schemas, describe)

    def end(self, place: int) -> None:
        """There is no element with this number."""
        with self.changed:
            if self.making is not None and self.making.next == place:
                self._commit(last=True)
            self.changed.notify_all()

    def leave(self) -> None:
        """A flow ends here: what it has made stays."""
        with self.changed:
            making = self.making
            if making is not None and (not making.works or making.awaited_s == 0.0):
                self._commit()
                self.made = None
            self.changed.notify_all()

    def _commit(self, *, last: bool = False) -> None:
        """Put what is made where all find it, unless it is too little to stand where it stands."""
        making, self.making = self.making, None
        if making is None:
            return
        short = making.until is not None and making.next < making.until
        if short or (making.packing is None and not last):
            making.filling.drop()
            return
        if making.commit(last=last) is Source.MADE:
            self.frontier = making.number + 1 if making.until is None else None
            nbytes = 0 if making.packing is None else making.packing.nbytes
            self.spans.know(making.number, Span(making.first, making.next, last, nbytes))
            self.schemas |= making.schemas
        else:
            self.unsure = True


SHELVES: weakref.WeakValueDictionary[tuple[Where, str], Shelf] = weakref.WeakValueDictionary()
LOCK = threading.Lock()


def shelf_of(where: Where, name: str, *, batched: bool) -> Shelf:
    """What this process knows of a kept stream, for all who ask while one of them lives."""
    with LOCK:
        found = SHELVES.get((where, name))
        if found is None:
            found = SHELVES[where, name] = Shelf(store_at(where), name, batched=batched)
        found.look_again()
        return found


class OnDisk:
    """What one run sees of elements that are kept in a store, and adds to them."""

    elsewhere = True

    def __init__(self, where: Where, name: str, node: Node, describe: Callable[[], Told]) -> None:
        self.shelf = shelf_of(where, name, batched=node.batched)
        self.describe = describe
        # Who writes a filter's parts in another order has other names for the same operators.
        self.operators = [each.digest.hex() for each in node.inputs[0].walk()]
        self.places = {name: place for place, name in enumerate(self.operators)}
        self.hits = self.misses = 0

    @property
    def schemas(self) -> dict[str, Schema]:
        """As they were settled when the elements were made."""
        return {self.operators[n]: schema for n, schema in self.shelf.schemas.copy().items()}

    def found(self, place: int) -> Entry | None:
        """The entry with element number ``place``; None if the caller is to make it."""
        entry = self.shelf.found(place, self.describe)
        self.hits += entry is not None
        return entry

    def ends(self, place: int) -> bool:
        """True if no element has this number."""
        with self.shelf.changed:
            return self.shelf.spans.ended(place)

    def offer(self, entry: Entry, schemas: dict[str, Schema]) -> None:
        """Put the next block into the store, as far as that takes it."""
        self.misses += 1
        known = {self.places[name]: schema for name, schema in schemas.items()}
        self.shelf.offer(entry, known, self.describe)

    def end(self, place: int) -> None:
        """There is no element number ``place``."""
        self.shelf.end(place)

    def leave(self) -> None:
        """A flow ends."""
        self.shelf.leave()
