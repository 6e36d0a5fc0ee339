"""This file keeps what ``cache(tier="disk")`` keeps: runs of a stream's elements, in a store.

Parts follow each other: where one ends the next begins. Whoever comes to the end of what is there
makes the next part, and puts each block into it before it goes on; others take it from there.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from dml.exec.ids_beside import form_of
from dml.exec.kept_making import Making
from dml.exec.kept_parts import Packed, read
from dml.exec.kept_spans import Reach, Span, Spans
from dml.exec.own import own
from dml.exec.store.opened import Where, store_at
from dml.exec.store.parts import Filling, PartStore, Source
from dml.exec.store.tiers import LATER
from dml.expr.flow import Entry
from dml.expr.node import Node
from dml.expr.schema import Schema

PART_BYTES = 16 << 20  # what a run that is killed computes again, at most; a seek and a file each
FOLLOWED_BYTES = 2 << 20  # held of what is not written yet, while flows follow each other
PARTS_OF_A_QUOTA = 8  # one that is as large as what a store may keep would push out all others
OPEN = 4  # parts that are mapped at once
MOST_TIMES = 64  # so much longer than at first threads wait for each other: some ten minutes

Told = Mapping[str, Any]


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
        self.times = 1  # so much longer than at first one waits for another's turn
        self.form = 0
        self.followed = False  # several flows are at work
        self.unsure = True  # others may have made parts that this process has not heard of
        self.frontier: int | None = None  # a part that nobody had when the one before was made here
        self.described = False
        self.later = LATER  # how often each part will be asked for again

    # ------------------------------------------------------------------------------------ reading

    def found(self, place: int, describe: Callable[[], Told]) -> Entry | None:
        """The entry with element ``place``; None if whoever asks is to make it."""
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
            if not self._claim(number, place, describe):
                return None

    def _makes(self, place: int) -> bool:
        """True if the caller makes the next element of the part in the making: nobody else does.

        Between two parts it has the turn from here on, too, and begins the next one.
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

    def _wait_longer(self, making: Making) -> None:
        """From now on, if somebody took this thread's turn and has not been any faster."""
        if making.returned():
            self.times = min(2 * self.times, MOST_TIMES)

    def _pass(self, place: int) -> None:
        """Nobody has to make an element: it is there, or has no place among what is."""
        if self.made is not None and self.made.next == place:
            self.made = None
            self.changed.notify_all()

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
        if packed is None and self._news(place):
            packed = self._packed(place)
        return None if packed is None else packed.entry(place)

    def held(self, place: int) -> Packed | None:
        """The part with an element, if it was read a moment ago."""
        with self.changed:
            return next((p for p in self.open.values() if p.first <= place < p.end), None)

    def _packed(self, place: int) -> Packed | None:
        if (held := self.held(place)) is not None:
            return held
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
        packed = self._mapped(number)
        self.open.pop(number, None)
        self.spans.forget(number)
        if packed is not None:
            self.spans.know(number, Span.of(packed.about))
            self.schemas |= packed.schemas
            self.open[number] = packed
            while len(self.open) > OPEN:
                self.open.popitem(last=False)
        return packed

    def mapped(self, place: int) -> Packed | None:
        """The part with an element, mapped once more; None if it is not in the store."""
        with self.changed:
            number = self.spans.covering(place) if self.store.tiers.maps else None
            known = None if number is None else self.open.get(number)
        loaded = known is not None and not known.mapped
        packed = None if number is None or loaded else self._mapped(number, 0)
        return packed if packed is not None and packed.first <= place < packed.end else None

    def _mapped(self, number: int, most_bytes: int = sys.maxsize) -> Packed | None:
        rows = self.store.part(self.name, number, most_bytes, self.later)
        return None if rows is None else read(rows, batched=self.batched)

    def _news(self, place: int) -> bool:
        """Hear of parts that others have made, if one of them may have an element; True if so."""
        if not self.unsure or place in self.spans.ends:
            return False
        self._survey()
        return True

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
            self.frontier = None
            if not self.described:
                self.described = True
                self.store.describe(self.name, describe())
            got = self.store.fill(self.name, number, later=self.later)
            with self.changed:
                if isinstance(got, Filling):
                    self._begin(number, place, got)
                    return False
                self._pass(place)
                packed = None if got is None else self._read(number)
                return packed is not None and (packed.end > place or packed.about["last"])

    def _begin(self, number: int, place: int, filling: Filling) -> None:
        if self.unsure:
            self._survey()
        after, quota, fits = self.spans.of.get(number + 1), self.store.quota, PART_BYTES
        if quota is not None:
            fits = min(fits, quota.most_bytes // PARTS_OF_A_QUOTA)
        fits = min(fits, FOLLOWED_BYTES) if self.followed else fits
        self.making = Making(number, place, filling, None if after is None else after.first, fits)
        if self.followed:
            self.making.recent = []
        before, self.made = self.made, None
        if before is not None and before.next == place:
            self.making.overtaken = before.overtaken
        self.changed.notify_all()

    def offer(
        self, entry: Entry, schemas: Mapping[int, Schema], describe: Callable[[], Told]
    ) -> None:
        """Put a block into the part in the making, if it is the next one.

        If that was committed meanwhile, since somebody wanted what was in it, the block is the
        first of another: else whoever made it would be ahead of all parts from there on.
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
            self._claim(number, fitted.first, describe)
            self.offer(fitted, schemas, describe)

    def _absent(self, place: int) -> int | None:
        """The part that would begin with an element, also of parts that others have made."""
        self._news(place)
        return self.spans.absent(place)

    def end(self, place: int, describe: Callable[[], Told]) -> None:
        """There is no element with this number: whoever made the one before it says so."""
        with self.changed:
            between = self.making is None and self.made is not None and self.made.next == place
            number = self._absent(place) if between else None
        if number is not None:
            self._claim(number, place, describe)
        with self.changed:
            if self.making is not None and self.making.next == place:
                self._commit(last=True)
            self._pass(place)
            self.changed.notify_all()

    def leave(self) -> None:
        """A flow ends here: what it has made stays, and what it would make is for others."""
        with self.changed:
            making = self.making
            if making is not None and (making.mine or (making.fits and not making.works)):
                self._commit()
            if self.made is not None and self.made.mine:
                self.made = None
            self.changed.notify_all()

    def _commit(self, *, last: bool = False) -> None:
        """Put what is made where all find it, unless it is too little to stand where it stands."""
        making = self.making
        if making is None:
            return
        self.making = self.made = None
        if not making.fits or not (last or making.next > making.first):
            making.filling.drop()
            return
        if making.commit(last=last) is Source.MADE:
            self.frontier = making.number + 1 if making.until is None else None
            self.spans.know(making.number, Span(making.first, making.next, last, making.nbytes))
            self.schemas |= making.schemas
        else:
            self.unsure = True
        self.made = None if last else making


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

    def __init__(
        self,
        where: Where,
        name: str,
        node: Node,
        describe: Callable[[], Told],
        later: float = LATER,
    ) -> None:
        self.shelf = shelf_of(where, name, batched=node.batched)
        self.shelf.later = later
        self.describe = describe
        # Who writes a filter's parts in another order has other names for the same operators.
        self.operators = [each.digest.hex() for each in node.inputs[0].walk()]
        self.places = {name: place for place, name in enumerate(self.operators)}
        self.hits = self.misses = 0
        self.own: Packed | None = None  # whose memory no other run reads
        self.came = [0, 0]  # bytes from copies, and from the store
        self.last = -1  # where the part begins that was counted last

    @property
    def schemas(self) -> dict[str, Schema]:
        """As they were settled when the elements were made."""
        return {self.operators[n]: schema for n, schema in self.shelf.schemas.copy().items()}

    def found(self, place: int) -> Entry | None:
        """The entry with element number ``place``; None if the caller is to make it."""
        entry, mine = None, self.own
        if mine is None or not mine.first <= place < mine.end:
            entry = self.shelf.found(place, self.describe)
            self._count(place)
            self.own = mine = None if entry is None else self.shelf.mapped(place)
            if entry is not None and mine is None and self.shelf.store.tiers.maps:
                entry = entry._replace(block=own(entry.block))  # others read what the shelf maps
        entry = entry if mine is None else mine.entry(place)
        self.hits += entry is not None
        return entry

    def _count(self, place: int) -> None:
        """Count where a part came from that is read now, if an element is in one."""
        held = self.shelf.held(place)
        if held is not None and held.first != self.last:
            self.last, came = held.first, held.came
            self.came = [self.came[0] + came[0], self.came[1] + came[1]]

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
        self.shelf.end(place, self.describe)

    def leave(self) -> None:
        """A flow ends."""
        self.shelf.leave()
