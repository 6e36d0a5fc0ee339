"""This file keeps entries from being evicted: while a process lives, or until it is undone.

A pin of a process beats like a lease. One that has not been written for ``PIN_S``, by the clock of
where it lies, is that of a dead process and holds nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from dml.errors import CacheError
from dml.exec.store import layout
from dml.exec.store.leases import BEATS, Lease
from dml.exec.store.primitives import Place

PIN_S = 300.0
FOREVER = "forever"


@contextmanager
def pinned(place: Place, fingerprint: str, *, pin_s: float = PIN_S) -> Iterator[None]:
    """Nobody evicts an entry while the block runs; UnusableError if that cannot be written."""
    name = f"{_folder(fingerprint)}/{uuid.uuid4().hex}"
    place.put(name, b"")
    with Lease(place, name, pin_s / BEATS).held():
        yield


def pin(place: Place, fingerprint: str) -> None:
    """Nobody evicts an entry until it is unpinned."""
    place.put(f"{_folder(fingerprint)}/{FOREVER}", b"")


def unpin(place: Place, fingerprint: str) -> None:
    """What ``pin`` did is undone."""
    place.delete(f"{_folder(fingerprint)}/{FOREVER}")


def must_not_hold(place: Place, fingerprint: str, unpin: str) -> None:
    """CacheError, which says to ``unpin`` it first, for an entry that was pinned by hand."""
    folder = layout.entry(fingerprint)
    view = layout.viewed(folder, place.names(folder))
    if not (view.live or view.quarantined):
        return  # nothing of it is there
    if place.get(f"{_folder(fingerprint)}/{FOREVER}") is not None:
        raise stays(fingerprint, unpin)


def stays(fingerprint: str, unpin: str, at: str = "") -> CacheError:
    """The error where an entry is to go that was pinned; ``unpin`` is what undoes that."""
    return CacheError(
        f"{fingerprint} is pinned",
        at=at,
        why="pinned entries stay until they are unpinned",
        try_=f"{unpin} first",
    )


def held(place: Place, *, pin_s: float = PIN_S) -> set[str]:
    """The fingerprints that are pinned; pins of the dead are removed."""
    found = set()
    for each in place.found(layout.PINS):
        fingerprint, _, who = each.name.partition("/")
        if who == FOREVER or each.age_s < pin_s:
            found.add(fingerprint)
        else:
            place.delete(f"{layout.PINS}/{each.name}")
    return found


def _folder(fingerprint: str) -> str:
    layout.entry(fingerprint)  # PlanError for what is none
    return f"{layout.PINS}/{fingerprint}"
