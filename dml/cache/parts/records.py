"""Write and read records of parts: text with a checksum, never a pickle.

Damaged text reads as ``DAMAGED`` and the part is made again; text of a later version of this
program reads as ``NEWER`` and is left alone.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import xxhash

from dml.cache.parts.blob_digest import HASH
from dml.cache.store import layout

VERSION = 1
DIGESTS = re.compile(r"\b[0-9a-f]{32}\b|(?<=#)[0-9a-f]{8}|(?<=digest )[0-9a-f]{8}")


class Unread(enum.Enum):
    """Why the text of a record is not used: it is damaged, or of a later version."""

    DAMAGED = "damaged"
    NEWER = "newer"


@dataclasses.dataclass(frozen=True)
class PartRecord:
    """The description of one part's rows, with enough data to verify them."""

    blob: str
    size: int
    rows: int
    digest: str
    schema: str
    """A digest of the schema: names, types and metadata."""
    cost_s: float = 0.0
    """Seconds that it took to make the part."""
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    """Data of the maker of the part, as JSON."""


def written(record: PartRecord) -> bytes:
    """Return the text of a record."""
    return checked({"hash": HASH, **dataclasses.asdict(record)})


def read(text: bytes) -> PartRecord | Unread:
    """Parse the text of a record; return the reason if that is impossible."""
    body = unchecked(text)
    return body if isinstance(body, Unread) else _record(body)


def checked(body: Mapping[str, Any]) -> bytes:
    """Return ``body`` as JSON, with a version and a checksum."""
    whole = {"v": VERSION, **body}
    return _text({**whole, "check": xxhash.xxh3_64_hexdigest(_text(whole))})


def unchecked(text: bytes) -> dict[str, Any] | Unread:
    """Return the body of a text of ``checked``, or the reason if it is damaged or newer."""
    try:
        body = json.loads(text)
        told = body.pop("check")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return Unread.DAMAGED
    if not isinstance(body, dict) or told != xxhash.xxh3_64_hexdigest(_text(body)):
        return Unread.DAMAGED
    if _text({**body, "check": told}) != text:
        return Unread.DAMAGED
    return body if body.get("v") == VERSION else Unread.NEWER


def about_in(text: bytes) -> dict[str, Any] | None:
    """Return the field ``about`` of a text of ``checked``; None if missing or unreadable."""
    body = unchecked(text)
    about = body.get("about") if isinstance(body, dict) else None
    return about if isinstance(about, dict) else None


def keyed(text: str, secret: bytes | None) -> str:
    """Replace the digests in a text by digests that cannot be guessed without ``secret``.

    Digests are words of 32 hex digits, and 8 hex digits after ``#`` or ``digest``. If ``secret`` is
    None, the text is unchanged.
    """

    def under(found: re.Match[str]) -> str:
        name = hashlib.blake2b(found[0].encode(), key=(secret or b"")[:64], digest_size=16)
        return name.hexdigest()[: len(found[0])]

    return text if secret is None else DIGESTS.sub(under, text)


def _text(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _record(body: Mapping[str, Any]) -> PartRecord | Unread:
    if body.get("hash") != HASH:
        return Unread.NEWER
    kinds = {"blob": str, "size": int, "rows": int, "digest": str, "schema": str, "cost_s": float}
    if not all(type(body.get(name)) is kind for name, kind in kinds.items()):
        return Unread.DAMAGED
    if not layout.is_blob(body["blob"]):  # else another file might be read, and removed
        return Unread.DAMAGED
    about = body.get("about", {})  # early records do not have it
    if not isinstance(about, dict):
        return Unread.DAMAGED
    return PartRecord(**{name: body[name] for name in kinds}, about=about)
