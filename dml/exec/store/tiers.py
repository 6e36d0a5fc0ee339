"""This file reads a part from the nearest place that has it: a disk of this machine, or the store.

What a part is, and whether it is there, the store says; a copy only spares its bytes the way.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from dml.exec.store.blobs import Blobs, Rows
from dml.exec.store.copies import Copies
from dml.exec.store.digests import PIECE_BYTES
from dml.exec.store.primitives import Place
from dml.exec.store.records import Record

if TYPE_CHECKING:
    from dml.exec.store.blobs import Beside

SEEN, FEW = 64, 3  # parts that were fetched last and tell how far the store is; fewer tell nothing
LARGE_PIECE_BYTES = 32 << 20  # of one request for a part that does not fit into memory as a whole
HAD = 1 << 16  # parts of which a process remembers that it had them
LATER = math.inf  # how often a part is asked for again, where nobody says


class Tiers:
    """Where parts are read, and how many bytes of them came from where.

    A copy is made if what it will save is more than what it takes to write, and read if that takes
    less than the store (Graur et al., ATC 2022, section 4.4, has one tier and its read time).
    """

    def __init__(
        self,
        place: Place,
        blobs: Blobs,
        copies: Copies | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._place, self._blobs, self.copies, self.clock = place, blobs, copies, clock
        self._slower: deque[float] = deque(maxlen=SEEN)
        self._lock = threading.Lock()
        self.copied_bytes = self.fetched_bytes = 0
        self._had = set[str]()

    @property
    def maps(self) -> bool:
        """Whether parts may be mapped; not all of them have to be."""
        return self._place.maps or self.copies is not None

    def had(self, record: Record) -> bool:
        """Whether a part lies in a file here that this process has had, and found whole."""
        return record.blob in self._had

    def counted(self, rows: Rows) -> Rows:
        """Rows that are handed on, with the tier that they came from counted."""
        with self._lock:
            if rows.copied:
                self.copied_bytes += rows.nbytes
            else:
                self.fetched_bytes += rows.nbytes
        return rows

    def beside(self, entry: str, later: float) -> Beside | None:
        """What makes a copy of parts of an entry while they are made; None if that does not pay."""
        if self.copies is None or not self._pays(self.copies, PIECE_BYTES, later):
            return None
        return partial(self.copies.begin, entry)

    def near(self, entry: str, record: Record) -> Rows | None:
        """The rows of a record, if there is a copy that is right, and takes less to read."""
        copies, size = self.copies, record.size
        if copies is None or copies.times.near(size) >= self._far_s(copies, size):
            return None
        rows = blob = None
        with copies.failing():
            blob = copies.fetch(entry, record.blob)
            rows = None if blob is None else self._blobs.rows(blob, record, maps=True)
        if blob is not None and rows is None:
            copies.drop(entry, record.blob)
        return None if rows is None else rows._replace(copied=True)

    def far(self, entry: str, record: Record, later: float) -> Rows | None:
        """The rows of a record from the store; a copy of them is made if that pays."""
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

    def _remember(self, record: Record) -> None:
        if len(self._had) >= HAD:
            self._had.clear()
        self._had.add(record.blob)

    def through(self, entry: str, record: Record, later: float, most_bytes: int) -> Rows | None:
        """The same of what does not fit into memory as a whole; None without a copy."""
        copies, each = self.copies, min(LARGE_PIECE_BYTES, most_bytes)
        if copies is None or each <= 0 or not self._pays(copies, record.size, later):
            return None
        pieces = partial(self._place.piece, record.blob)
        made = copies.put(entry, record.blob, record.size, pieces, each)
        return self._now_near(entry, record) if made else None

    def _now_near(self, entry: str, record: Record) -> Rows | None:
        """Over a copy that was just made, the rows that came from the store."""
        rows = self.near(entry, record)
        return None if rows is None else rows._replace(copied=False)

    def _pays(self, copies: Copies, nbytes: int, later: float, far_s: float | None = None) -> bool:
        """Whether a copy saves more than it takes, if it is read ``later`` so often."""
        times = copies.times
        saved_s = (self._far_s(copies, nbytes) if far_s is None else far_s) - times.near(nbytes)
        return saved_s > 0 < later and later * saved_s > times.written(nbytes)

    def _far_s(self, copies: Copies, nbytes: int) -> float:
        """Seconds for so many bytes of the store, as it has been of late."""
        with self._lock:
            late = list(self._slower)
        return copies.times.far(nbytes) * (median(late) if len(late) >= FEW else 1.0)
