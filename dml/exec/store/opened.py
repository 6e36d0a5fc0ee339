"""This file opens stores: one for each place in a process, shared by its threads."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dml.errors import CacheError, DmlError
from dml.exec.probing import BUCKET, DISK, guessed, measured_cold
from dml.exec.store import layout, pins
from dml.exec.store.bucket import Bucket
from dml.exec.store.copies import BELOW, ON_DISK, Copies, Times, folder_of
from dml.exec.store.disk import Disk
from dml.exec.store.parts import PartStore
from dml.exec.store.primitives import Place, UnusableError
from dml.exec.store.standing import Standing
from dml.read_times import ReadTimes
from dml.settings import user_folder

TENTH = 10  # of the disk, for copies that nobody asked for by name
LEAST_BYTES = 1 << 28  # who may keep less does not measure with a tenth of it
RETRY_S = 60.0  # after which a store that failed is opened anew, by the next run that asks for it
_LOCK = threading.Lock()
_OPEN: dict[tuple[int, Where], PartStore] = {}


@dataclass(frozen=True)
class Local:
    """Where whoever opens a store keeps copies of its parts, of at most so many bytes.

    Without a ``folder`` it is the cache folder of the user there; without a number, a tenth of the
    disk that it lies on.
    """

    folder: str | None = None
    quota_bytes: int | None = None


@dataclass(frozen=True)
class Where:
    """Where a store is: a folder or a URL, and whose part of it, of at most so many bytes.

    ``local`` says where copies are kept for it; None keeps none.
    """

    root: str
    namespace: str = "default"
    quota_bytes: int | None = None
    local: Local | None = None


def store_at(where: Where) -> PartStore:
    """The store of this process there. PlanError if the namespace is no name of one.

    One that cannot be opened finds nothing and keeps nothing, which is said in a warning.
    """
    below = layout.namespace(where.namespace)
    with _LOCK:
        key = os.getpid(), where
        found = _OPEN.get(key)
        if found is None or found.failed_s > RETRY_S:
            found = _OPEN[key] = _opened(where, below)
        return found


def clear_here(entries: Iterable[tuple[Where, str, str]]) -> list[str]:
    """End entries as far as this process and its machine have them; why it cannot, of each.

    An entry is its store, its name and what unpins it.
    """
    wrong = []
    for where, name, unpin in entries:
        store = store_at(where)
        reason: DmlError | None = None
        try:
            if store.records(name) or store.quarantined(name) is not None:
                pins.must_not_hold(store.place, name, unpin)
                store.remove(name)
            elif store.tiers.copies is not None:
                store.tiers.copies.remove(name)
            reason = store.standing.unusable
        except (CacheError, UnusableError) as error:
            reason = error
        if reason is not None:
            wrong.append(f"{reason.what}: {reason.why}")
    return sorted(set(wrong))


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
        if pid == os.getpid():
            if isinstance(store.place, Disk):
                store.close()
            elif store.tiers.copies is not None:
                store.tiers.copies.close()


atexit.register(_tell)


def _opened(where: Where, below: str) -> PartStore:
    try:
        place: Place = Bucket(where.root, below) if "://" in where.root else Disk(where.root, below)
    except UnusableError as error:
        store = PartStore(Nowhere(error))
        store.give_up(error)
        return store
    return PartStore(place, quota_bytes=where.quota_bytes, copies=_copies(where))


def _copies(where: Where) -> Copies | None:
    """The copies that are kept for a store; None if nothing is nearer than the store itself."""
    if where.local is None:
        return None
    usual = where.local.folder or user_folder()
    if usual is None:
        return None
    try:
        folder = folder_of(usual)
        disk = Disk(folder, BELOW)
        with disk.told("read"):
            far = "://" in where.root or os.stat(where.root).st_dev != folder.stat().st_dev
            seen = os.statvfs(folder)
    except UnusableError as error:
        Standing(ON_DISK).give_up(error)
        return None
    if not far:  # one disk is not faster than itself
        return None
    most = where.local.quota_bytes or seen.f_blocks * seen.f_frsize // TENTH
    copies = Copies(disk, most, partial(_measured, where.root, str(folder), most))
    copies.clear()
    return copies


def _measured(root: str, folder: str, most_bytes: int) -> Times:
    """How long a disk of this machine takes, and a store: measured here, or believed."""
    measures = most_bytes >= LEAST_BYTES
    near, written = measured_cold(folder, folder) if measures else guessed(*DISK)
    far, _ = guessed(*BUCKET) if "://" in root else measured_cold(root, folder)
    return Times(*map(ReadTimes.measured, (near, written, far)))


class Nowhere:
    """A place that could not be opened."""

    maps = True

    def __init__(self, error: UnusableError) -> None:
        self._error = error

    def _raise(self, *_: Any, **__: Any) -> Any:
        raise self._error

    begin = put = put_if_absent = get = fetch = piece = names = delete = beat = stamp = found = (
        clear
    ) = _raise
