"""Keep entries from being evicted, by pins, until they are unpinned."""

from __future__ import annotations

from dml.cache.store import layout
from dml.cache.store.primitives import StorePlace
from dml.errors import CacheError

FOREVER = "forever"


def pin(place: StorePlace, fingerprint: str) -> None:
    """Pin an entry until it is unpinned."""
    place.put(f"{_folder(fingerprint)}/{FOREVER}", b"")


def unpin(place: StorePlace, fingerprint: str) -> None:
    """Remove the pin that ``pin`` wrote."""
    place.delete(f"{_folder(fingerprint)}/{FOREVER}")


def must_not_hold(place: StorePlace, fingerprint: str, unpin: str) -> None:
    """Raise CacheError if an entry is pinned; ``unpin`` is the command that unpins it."""
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


def list_pinned(place: StorePlace) -> set[str]:
    """Return the pinned fingerprints."""
    names = (name.partition("/") for name in place.names(layout.PINS))
    return {fingerprint for fingerprint, _, who in names if who == FOREVER}


def _folder(fingerprint: str) -> str:
    layout.entry(fingerprint)  # PlanError if it is no fingerprint
    return f"{layout.PINS}/{fingerprint}"
