"""End entries whose rows differ from the computed rows, and keep them unused.

A file in the entry has the finding: what differs, where, and when it was found. While the file
exists, no process reads or fills the entry; it is removed by hand, together with the entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dml.cache.eviction import janitor
from dml.cache.parts.records import about_in, checked
from dml.cache.store import layout
from dml.cache.store.primitives import StorePlace


def put(place: StorePlace, fingerprint: str, told: Mapping[str, Any]) -> bool:
    """Quarantine an entry; return True if this call did so, False if another process was first.

    ``told``, the finding, is written before the rows are removed: a reader that listed the entry
    earlier finds the rows gone, looks again, and sees the finding. The description of the entry
    stays.
    """
    folder = layout.entry(fingerprint)
    first = place.put_if_absent(f"{folder}/{layout.QUARANTINE}", checked({"about": dict(told)}))
    janitor.remove(place, fingerprint, "quarantined", keeping_names=True)
    return first


def read_finding(place: StorePlace, folder: str) -> dict[str, Any] | None:
    """Return why an entry is quarantined, {} if unreadable; None if it is not quarantined."""
    text = place.get(f"{folder}/{layout.QUARANTINE}")
    return None if text is None else about_in(text) or {}


def words(said: Mapping[str, Any] | None) -> str:
    """Return why an entry is quarantined, where and when, in one line; "" for None."""
    if said is None:
        return ""
    parts = [str(said.get(name, "")) for name in ("what", "at", "time")]
    return ", ".join(filter(None, parts)) or "nobody can read why"
