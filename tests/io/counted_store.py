"""A store of files in memory that counts requests, and fails on demand, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dml.io.stores import stores

SCHEME = "counted"


class CountedStore(MemoryFileSystem):  # type: ignore[misc]
    """Files of ``counted://``, the same in all instances; ``faults`` come before answers."""

    protocol = SCHEME
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    requests: ClassVar[list[tuple[str, int, int]]] = []
    faults: ClassVar[list[Exception]] = []
    asked: ClassVar[list[str]] = []
    lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        found: str = super()._strip_protocol(str(path).removeprefix(f"{SCHEME}://"))
        return found

    def cat_file(self, path: str, start: int = 0, end: int | None = None, **_: Any) -> bytes:
        """One request, noted; a fault if there is one left."""
        with self.lock:
            self.requests.append((path, start, -1 if end is None else end))
            fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault
        found: bytes = super().cat_file(path, start=start, end=end)
        return found

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Noted apart: it moves no bytes."""
        self.asked.append(path)
        found: dict[str, Any] = super().info(path, **options)
        return found


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[CountedStore]]:
    """An empty store under ``counted://``; pauses are noted in ``CountedStore.asked``, not made."""
    fsspec.register_implementation(SCHEME, CountedStore, clobber=True)
    for held in (
        CountedStore.store,
        CountedStore.requests,
        CountedStore.faults,
        CountedStore.asked,
    ):
        held.clear()
    yield CountedStore
    CountedStore.store.clear()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between requests, which are not made."""
    made: list[float] = []
    monkeypatch.setattr(stores, "pause", made.append)
    return made


def uploaded(folder: Path, url: str) -> str:
    """Every file of ``folder`` under ``url``; gives ``url``."""
    system, root = fsspec.core.url_to_fs(url)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            system.pipe_file(f"{root}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return url


@contextmanager
def noted(store: type[CountedStore]) -> Iterator[list[tuple[str, int, int]]]:
    """The requests for bytes that are made in the block."""
    before = len(store.requests)
    found: list[tuple[str, int, int]] = []
    yield found
    found += store.requests[before:]
