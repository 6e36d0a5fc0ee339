"""This file ends entries whose rows are not those that are computed, so that none come after them.

What is written into such an entry says what was found. It stays, and keeps everybody from reading
and from filling the entry, until somebody removes the entry by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dml.exec.store import janitor, layout
from dml.exec.store.primitives import Place
from dml.exec.store.records import checked, unchecked


def put(place: Place, fingerprint: str, told: Mapping[str, Any]) -> bool:
    """End an entry for good; True if this did, and not another who was first.

    It is said first, and then its rows go: who has listed the entry before finds them gone, looks
    again, and finds this. What is said of the entry itself stays.
    """
    folder = layout.entry(fingerprint)
    first = place.put_if_absent(f"{folder}/{layout.QUARANTINE}", checked({"about": dict(told)}))
    janitor.remove(place, fingerprint, "quarantined", keeping_names=True)
    return first


def told(place: Place, folder: str) -> dict[str, Any] | None:
    """What was found; nothing but that, if it cannot be read; None of an entry like any other."""
    text = place.get(f"{folder}/{layout.QUARANTINE}")
    if text is None:
        return None
    body = unchecked(text)
    about = body.get("about") if isinstance(body, dict) else None
    return about if isinstance(about, dict) else {}


def words(said: Mapping[str, Any] | None) -> str:
    """In one line what was found, where and when; "" if nothing was."""
    if said is None:
        return ""
    parts = [str(said.get(name, "")) for name in ("what", "at", "time")]
    return ", ".join(filter(None, parts)) or "nobody can read why"
