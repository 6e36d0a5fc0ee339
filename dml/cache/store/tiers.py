"""Read a part from the nearest place that has it: a disk of this machine, or the store.

The store decides what a part is and whether it exists; a copy only saves the transfer of its bytes.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from statistics import median

from dml.cache.parts.blob_digest import PIECE_BYTES
from dml.cache.parts.blobs import Beside, Blobs, PartRows
from dml.cache.parts.records import PartRecord
from dml.cache.store.local_copies import Copying, LocalCopies
from dml.cache.store.primitives import StorePlace

SEEN, FEW = 64, 3  # recent fetches that measure the store's speed; fewer are not used
LARGE_PIECE_BYTES = 32 << 20  # bytes of a request for a part that does not fit into memory
HAD = 1 << 16  # most parts that a process remembers to have read
LATER = math.inf  # expected later reads of a part, by default


class StoreTiers:
    """The places from which parts are read.

    A copy is made if it will save more time than writing it takes, and read if that takes less time
    than the store (Graur et al., ATC 2022, section 4.4, has one tier and its read time).
    """

    def __init__(
        self,
        place: StorePlace,
        blobs: Blobs,
        copies: LocalCopies | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._place, self._blobs, self.copies, self.clock = place, blobs, copies, clock
        self._slower: deque[float] = deque(maxlen=SEEN)
        self._lock = threading.Lock()
        self._had = set[str]()

    @property
    def maps(self) -> bool:
        """True if parts can be files that are mapped; some parts may be in memory all the same."""
        return self._place.maps or self.copies is not None

    def had(self, record: PartRecord) -> bool:
        """Return True if a part is in a local file that this process has read and found whole."""
        return record.blob in self._had

    def beside(self, entry: str, later: float) -> Beside | None:
        """Return a function that begins copies of new parts; None if copies do not pay."""
        if self.copies is None or not self._pays(self.copies, PIECE_BYTES, later):
            return None
        return partial(Copying, self.copies, entry)

    def near(self, entry: str, record: PartRecord) -> PartRows | None:
        """Return a part's rows from a local copy; None if it is missing, damaged or slower."""
        copies, size = self.copies, record.size
        if copies is None or copies.times.near(size) >= self._far_s(copies, size):
            return None
        rows = blob = None
        with copies.standing.failing():
            blob = copies.fetch(entry, record.blob)
            rows = None if blob is None else self._blobs.rows(blob, record, maps=True)
        if blob is not None and rows is None:
            copies.drop(entry, record.blob)
        return None if rows is None else rows._replace(copied=True)

    def far(self, entry: str, record: PartRecord, later: float) -> PartRows | None:
        """Return the rows of a record from the store, and make a copy if that pays."""
        begun = self.clock()
        blob = self._place.fetch(record.blob)
        rows = None if blob is None else self._blobs.rows(blob, record, maps=self._place.maps)
        copies = self.copies
        if rows is not None and self._place.maps:
            self._remember(record)
        if blob is None or rows is None or copies is None or not rows.read:
            return rows
        took_s = self.clock() - begun
        with self._lock:
            self._slower.append(took_s / copies.times.far(record.size))
        if not self._pays(copies, record.size, later, took_s):
            return rows
        made = copies.put(entry, record.blob, record.size, blob.piece, PIECE_BYTES)
        return self._now_near(entry, record) or rows if made else rows

    def _remember(self, record: PartRecord) -> None:
        if len(self._had) >= HAD:
            self._had.clear()
        self._had.add(record.blob)

    def through(
        self, entry: str, record: PartRecord, later: float, most_bytes: int
    ) -> PartRows | None:
        """Copy a part too large for memory to the local disk; return its mapped rows, or None."""
        copies, each = self.copies, min(LARGE_PIECE_BYTES, most_bytes)
        if copies is None or each <= 0 or not self._pays(copies, record.size, later):
            return None
        pieces = partial(self._place.piece, record.blob)
        made = copies.put(entry, record.blob, record.size, pieces, each)
        return self._now_near(entry, record) if made else None

    def _now_near(self, entry: str, record: PartRecord) -> PartRows | None:
        """Return rows mapped from a copy that was just made, counted as from the store."""
        rows = self.near(entry, record)
        return None if rows is None else rows._replace(copied=False)

    def _pays(
        self, copies: LocalCopies, nbytes: int, later: float, far_s: float | None = None
    ) -> bool:
        """Return True if a copy saves more seconds in ``later`` reads than writing it takes."""
        times = copies.times
        saved_s = (self._far_s(copies, nbytes) if far_s is None else far_s) - times.near(nbytes)
        return saved_s > 0 < later and later * saved_s > times.written(nbytes)

    def _far_s(self, copies: LocalCopies, nbytes: int) -> float:
        """Return the seconds to read ``nbytes`` from the store, at its recent speed."""
        with self._lock:
            late = list(self._slower)
        return copies.times.far(nbytes) * (median(late) if len(late) >= FEW else 1.0)
