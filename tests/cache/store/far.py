"""A folder that is read like an object store, and counts requests and bytes, for tests."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, ClassVar

from dml.base.read_times import ReadTimes
from dml.cache.parts.parts import PartStore
from dml.cache.store.disk import Disk
from dml.cache.store.local_copies import BELOW, LocalCopies, Times
from dml.cache.store.primitives import Fetched


def linear(latency_s: float, bytes_per_s: float) -> ReadTimes:
    """The curve of a latency and a bandwidth."""
    sizes = [4.0**power for power in range(18)]
    return ReadTimes.measured((size, latency_s + size / bytes_per_s) for size in sizes)


FAST, SLOW = linear(1e-9, 1e15), linear(1.0, 1e6)
PAYS, LOSES = Times(FAST, FAST, SLOW), Times(SLOW, FAST, FAST)


class Far(Disk):
    """A folder that is read as an object store is; ``sent`` are the bytes of blobs, by folder."""

    maps = False
    sent: ClassVar[dict[Path, int]] = {}
    asked: ClassVar[dict[Path, int]] = {}
    lock: ClassVar[threading.Lock] = threading.Lock()

    def fetch(self, name: str) -> Any:
        data = self.get(name)
        self._count(0 if data is None else len(data))
        return None if data is None else Fetched(data)

    def piece(self, name: str, start: int, count: int) -> memoryview | None:
        data = self.get(name)
        if data is None:
            return None
        found = memoryview(data)[start : start + count]
        self._count(len(found))
        return found

    def stamp(self, name: str) -> str | None:
        with self.lock:
            self.asked[self._top] = self.asked.get(self._top, 0) + 1
        return super().stamp(name)

    def _count(self, nbytes: int) -> None:
        with self.lock:
            self.sent[self._top] = self.sent.get(self._top, 0) + nbytes


def far(root: Path) -> Far:
    return Far(root / "far", "v1/shared")


def sent(root: Path) -> int:
    """Bytes of blobs that were read of the store."""
    return Far.sent.get(Path(os.path.abspath(root / "far")), 0)


def copies_in(root: Path, most_bytes: int = 1 << 30, times: Times = PAYS) -> LocalCopies:
    return LocalCopies(Disk(root / "near", BELOW), most_bytes, lambda: times)


def opened(root: Path, most_bytes: int = 1 << 30, times: Times = PAYS, **options: Any) -> PartStore:
    """A store as another process would open it, with copies beside it."""
    return PartStore(far(root), copies=copies_in(root, most_bytes, times), **options)


def files(root: Path) -> list[Path]:
    """The copies that are there."""
    return sorted((root / "near").rglob("*.arrow"))


def left(root: Path) -> list[Path]:
    """Files of who writes a copy right now."""
    return [*(root / "near" / BELOW / "tmp").glob("*")]


def announced(root: Path) -> list[Path]:
    """Room that somebody asked for."""
    return [*(root / "near" / BELOW / "announced").glob("*")]
