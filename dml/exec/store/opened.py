"""This file opens stores: one for each place in a process, shared by its threads."""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import dataclass
from typing import Any

from dml.exec.store import layout
from dml.exec.store.bucket import Bucket
from dml.exec.store.disk import Disk
from dml.exec.store.parts import PartStore
from dml.exec.store.primitives import Place, UnusableError

RETRY_S = 60.0  # after which a store that failed is opened anew, by the next run that asks for it
_LOCK = threading.Lock()
_OPEN: dict[tuple[int, Where], PartStore] = {}


@dataclass(frozen=True)
class Where:
    """Where a store is: a folder or a URL, and whose part of it, of at most so many bytes."""

    root: str
    namespace: str = "default"
    quota_bytes: int | None = None


def store_at(where: Where) -> PartStore:
    """The store of this process there. PlanError if the namespace is no name of one.

    One that cannot be opened finds nothing and keeps nothing, which is said in a warning.
    """
    below = layout.namespace(where.namespace)
    with _LOCK:
        key = os.getpid(), where
        found = _OPEN.get(key)
        if found is None or found.standing.failed_s > RETRY_S:
            found = _OPEN[key] = _opened(where, below)
        return found


def _forked() -> None:
    """In a child: nobody opens a store there, whoever did in the parent."""
    global _LOCK  # noqa: PLW0603
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_forked)


def _tell() -> None:
    """Let others know, at the end of the process, what was used since they were last told.

    Only of folders: an exit that waits for a network costs more than some counts. A child of a fork
    has its parent's stores beside its own, and says nothing of them.
    """
    for (pid, _), store in list(_OPEN.items()):
        if pid == os.getpid() and isinstance(store.place, Disk):
            store.close()


atexit.register(_tell)


def _opened(where: Where, below: str) -> PartStore:
    try:
        place: Place = Bucket(where.root, below) if "://" in where.root else Disk(where.root, below)
    except UnusableError as error:
        store = PartStore(Nowhere(error))
        store.give_up(error)
        return store
    return PartStore(place, quota_bytes=where.quota_bytes)


class Nowhere:
    """A place that could not be opened."""

    maps = True

    def __init__(self, error: UnusableError) -> None:
        self._error = error

    def _raise(self, *_: Any) -> Any:
        raise self._error

    begin = put = put_if_absent = get = fetch = names = delete = beat = stamp = found = clear = (
        _raise
    )
