"""Open stores: one for each place in a process, shared by its threads."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dml.base.read_times import ReadTimes
from dml.cache.eviction import pins
from dml.cache.parts.parts import PartStore
from dml.cache.store import layout
from dml.cache.store.bucket import Bucket
from dml.cache.store.disk import Disk
from dml.cache.store.health import Standing
from dml.cache.store.local_copies import BELOW, ON_DISK, LocalCopies, Times, folder_of
from dml.cache.store.primitives import UnusableError
from dml.cache.store.store_speed import BUCKET, DISK, guessed, measured_cold
from dml.errors import CacheError, DmlError
from dml.settings import user_folder

TENTH = 10  # divisor of the disk's size for copies without a quota
LEAST_BYTES = 1 << 28  # a smaller quota is not spent on measuring
RETRY_S = 60.0  # seconds after which the next run reopens a failed store
_LOCK = threading.Lock()
_OPEN: dict[tuple[int, Where], PartStore] = {}


@dataclass(frozen=True)
class LocalPlace:
    """The folder for local copies of a store's parts, and their quota in bytes.

    The defaults are the user's cache folder, and at most a tenth of the folder's disk.
    """

    folder: str | None = None
    quota_bytes: int | None = None


@dataclass(frozen=True)
class Where:
    """The location of a store: a folder or a URL, a namespace in it, and its quota in bytes.

    ``local`` is the place of its local copies; if it is None, no copies are made.
    """

    root: str
    namespace: str = "default"
    quota_bytes: int | None = None
    local: LocalPlace | None = None


def store_at(where: Where) -> PartStore:
    """Return the store at ``where``, one in a process; raise PlanError for an invalid namespace.

    If a store cannot be opened, a warning is given, and the result finds and stores nothing.
    """
    below = layout.namespace(where.namespace)
    with _LOCK:
        key = os.getpid(), where
        found = _OPEN.get(key)
        if found is None or found.failed_s > RETRY_S:
            found = _OPEN[key] = _opened(where, below)
        return found


def clear_here(entries: Iterable[tuple[Where, str, str]]) -> list[str]:
    """Remove entries from this process and machine, and return the reasons of failures.

    Each entry is given as its store, its name and the command that unpins it.
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
    """Replace the lock in a forked child, since the parent may have held the lock."""
    global _LOCK  # noqa: PLW0603
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_forked)


def _tell() -> None:
    """Write the remaining use counts at the end of the process.

    Counts are written to folders only: an exit that waits for a network costs more than some
    counts. A forked child also has its parent's stores, and does not write their counts.
    """
    for (pid, _), store in list(_OPEN.items()):
        if pid == os.getpid():
            if isinstance(store.place, Disk):
                store.close()
            elif store.tiers.copies is not None:
                store.tiers.copies.close()


atexit.register(_tell)


def _opened(where: Where, below: str) -> PartStore:
    kind: type[Bucket | Disk] = Bucket if "://" in where.root else Disk
    try:
        place = kind(where.root, below)
    except UnusableError as error:
        store = PartStore(Nowhere(error))
        store.standing.give_up(error)
        return store
    return PartStore(place, quota_bytes=where.quota_bytes, copies=_copies(where))


def _copies(where: Where) -> LocalCopies | None:
    """Return the local copies for a store; None if no local disk is nearer than the store."""
    if where.local is None:
        return None
    usual = where.local.folder or user_folder()
    if usual is None:
        return None
    try:
        folder = folder_of(usual)
        disk = Disk(folder, BELOW)
        with disk.translate_errors("read"):
            far = "://" in where.root or os.stat(where.root).st_dev != folder.stat().st_dev
            seen = os.statvfs(folder)
    except UnusableError as error:
        Standing(ON_DISK).give_up(error)
        return None
    if not far:  # the copy would be on the same disk
        return None
    most = where.local.quota_bytes or seen.f_blocks * seen.f_frsize // TENTH
    copies = LocalCopies(disk, most, partial(_measured, where.root, str(folder), most))
    copies.clear()
    return copies


def _measured(root: str, folder: str, most_bytes: int) -> Times:
    """Return the read and write times of local disk and store: measured here, or assumed."""
    measures = most_bytes >= LEAST_BYTES
    near, written = measured_cold(folder, folder) if measures else guessed(*DISK)
    far, _ = guessed(*BUCKET) if "://" in root else measured_cold(root, folder)
    return Times(*map(ReadTimes.measured, (near, written, far)))


class Nowhere:
    """A place that could not be opened: each operation raises the error."""

    maps = True

    def __init__(self, error: UnusableError) -> None:
        self._error = error

    def _raise(self, *_: Any, **__: Any) -> Any:
        raise self._error

    begin = put = put_if_absent = get = fetch = piece = names = delete = beat = stamp = (
        list_files
    ) = clear = _raise
