"""Keep entries from being evicted, by pins: while a process lives, or until they are unpinned.

The pin of a process has a heartbeat like a lease. A pin that was not written for ``PIN_S`` seconds,
by the clock of the storage, is that of a dead process and has no effect.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from dml.cache.store import layout
from dml.cache.store.leases import BEATS, Lease
from dml.cache.store.primitives import StorePlace
from dml.errors import CacheError

PIN_S = 300.0
FOREVER = "forever"


@contextmanager
def pinned(place: StorePlace, fingerprint: str, *, pin_s: float = PIN_S) -> Iterator[None]:
    """Pin an entry during the ``with`` block; raise UnusableError if the pin cannot be written."""
    name = f"{_folder(fingerprint)}/{uuid.uuid4().hex}"
    place.put(name, b"")
    with Lease(place, name, pin_s / BEATS).hold():
        yield


def pin(place: StorePlace, fingerprint: str) -> None:
    """Pin an entry until it is unpinned."""
    place.put(f"{_folder(fingerprint)}/{FOREVER}", b"")


def unpin(place: StorePlace, fingerprint: str) -> None:
    """Remove the pin that ``pin`` wrote."""
    place.delete(f"{_folder(fingerprint)}/{FOREVER}")


def must_not_hold(place: StorePlace, fingerprint: str, unpin: str) -> None:
    """Raise CacheError if an entry is pinned by hand; ``unpin`` is the command that unpins it."""
    folder = layout.entry(fingerprint)
    view = layout.viewed(folder, place.names(folder))
    if not (view.live or view.quarantined):
        return  # nothing of the entry is stored
    if place.get(f"{_folder(fingerprint)}/{FOREVER}") is not None:
        raise stays(fingerprint, unpin)


def stays(fingerprint: str, unpin: str, at: str = "") -> CacheError:
    """Return the error for removing a pinned entry; ``unpin`` is the command that unpins it."""
    return CacheError(
        f"{fingerprint} is pinned",
        at=at,
        why="pinned entries stay until they are unpinned",
        try_=f"{unpin} first",
    )


def list_pinned(place: StorePlace, *, pin_s: float = PIN_S) -> set[str]:
    """Return the pinned fingerprints, and remove the pins of dead processes."""
    found = set()
    for each in place.list_files(layout.PINS):
        fingerprint, _, who = each.name.partition("/")
        if who == FOREVER or each.age_s < pin_s:
            found.add(fingerprint)
        else:
            place.delete(f"{layout.PINS}/{each.name}")
    return found


def _folder(fingerprint: str) -> str:
    layout.entry(fingerprint)  # PlanError if it is no fingerprint
    return f"{layout.PINS}/{fingerprint}"
