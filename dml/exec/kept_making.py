"""This file makes a part of what a cache keeps on disk, and knows whose turn its next block is."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from dml.exec.ids_beside import FREE
from dml.exec.kept_parts import Packing, of_nothing
from dml.exec.own import own
from dml.exec.store.parts import Filling, Source
from dml.expr.flow import Entry
from dml.expr.schema import Schema

PART_ENTRIES = 1 << 14  # of which something is said
# For how long one thread waits at first for a block that another makes, and for one that has not
# begun: it may be waiting for this one.
PATIENCE_S, REST_S = 10.0, 1.0


class Making:
    """A part that is being made: from element ``first`` on, ``next`` is the one it lacks.

    That one is for the thread ``maker`` to make, also once the part is committed: whatever happens
    to the part, others that want it wait, until they have waited for too long and take the turn.
    """

    def __init__(
        self, number: int, first: int, filling: Filling, until: int | None, most_bytes: int
    ) -> None:
        self.number, self.first, self.next, self.filling = number, first, first, filling
        self.most_bytes = most_bytes
        self.until = until  # where the part after it begins, if that is there
        self.maker = threading.get_ident()  # the thread that makes its blocks
        self.works = True  # it makes one now
        self.moved = time.monotonic()  # when that began or ended
        self.overtaken: int | None = None  # the thread whose turn it was before
        self.packing: Packing | None = None
        self.nbytes = 0  # of what was committed
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
        self.maker, self.overtaken = threading.get_ident(), None
        self._turned(works=False)
        return True

    def take(self) -> None:
        """The next block is being made from now on, by this thread."""
        if not self.mine:
            self.maker, self.overtaken = threading.get_ident(), self.maker
        self._turned(works=True)

    def _turned(self, *, works: bool) -> None:
        self.works, self.moved = works, time.monotonic()
        self.filling.resting = not works

    @property
    def mine(self) -> bool:
        """True if it is this thread's turn."""
        return self.maker == threading.get_ident()

    def awaited_s(self, asked: float, times: int) -> float:
        """For how long this thread, which ``asked`` then, leaves the next block to its maker."""
        wait_s = times * (PATIENCE_S if self.works else REST_S)
        return 0.0 if self.mine else max(asked, self.moved) + wait_s - time.monotonic()

    def returned(self) -> bool:
        """True, once, if this thread comes back to a block that another has not made in its turn.

        That one should have waited for longer.
        """
        found = self.overtaken == threading.get_ident()
        self.overtaken = None if found else self.overtaken
        return found

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

    @property
    def fits(self) -> bool:
        """True if it can stand where it is: it reaches as far as the part after it begins."""
        return self.until is None or self.next >= self.until

    def commit(self, *, last: bool) -> Source:
        """Put it where all can find it; ``last`` if nothing comes behind it."""
        self.recent, packing, self.packing = None, self.packing, None
        if packing is None:
            return self.filling.commit(of_nothing(self.first, self.schemas))
        for batch in packing.rest():
            self.filling.add(batch)
        self.nbytes = packing.nbytes
        return self.filling.commit(packing.about(self.schemas, last=last))
