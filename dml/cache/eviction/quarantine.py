"""End entries whose rows differ from the computed rows, and keep them unused.

The finding is a file in the entry. While that file exists, no process reads or fills the entry; it
is removed by hand, together with the entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dml.cache.eviction import janitor
from dml.cache.parts.records import about_in, checked
from dml.cache.store import layout
from dml.cache.store.primitives import StorePlace


def put(place: StorePlace, fingerprint: str, told: Mapping[str, Any]) -> bool:
    """End an entry for good; True if this call ended it, False if another process was first.

    The finding ``told`` is written before the rows are removed: a reader that listed the entry
    earlier finds the rows gone, looks again, and sees the finding. The description of the entry
    stays.
    """
    folder = layout.entry(fingerprint)
    first = place.put_if_absent(f"{folder}/{layout.QUARANTINE}", checked({"about": dict(told)}))
    janitor.remove(place, fingerprint, "quarantined", keeping_names=True)
    return first


def read_finding(place: StorePlace, folder: str) -> dict[str, Any] | None:
    """Return the finding of an entry, empty if unreadable; None without a quarantine."""
    text = place.get(f"{folder}/{layout.QUARANTINE}")
    return None if text is None else about_in(text) or {}


def words(said: Mapping[str, Any] | None) -> str:
    """Return a finding in one line, with place and time; "" if there is none."""
    if said is None:
        return ""
    parts = [str(said.get(name, "")) for name in ("what", "at", "time")]
    return ", ".join(filter(None, parts)) or "nobody can read why"
