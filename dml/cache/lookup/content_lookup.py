"""Find stored rows by the content of their input, where names do not find them.

A stored step above another stored step is a function of that step's rows. If a function further
below was edited, these rows get another name; if they are equal nevertheless, the rows stored above
are still valid. So a writer of a unit of the upper step also records, beside the entries, from
which content of the lower step the unit was made. Source: early cutoff; Mokhov, Mitchell and Peyton
Jones, Build Systems a la Carte, 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING

from dml.base.fingerprint import digest
from dml.cache.lookup.cache_index import is_name, say
from dml.cache.parts.records import PartRecord, about_in, checked

if TYPE_CHECKING:
    from dml.cache.parts.entry import StoredEntry


class Rooted:
    """Finds entries of the steps ``name`` by the content of ``lower``, which they are made from."""

    def __init__(self, name: str, upper: StoredEntry, lower: StoredEntry) -> None:
        self.upper, self.lower = upper, lower
        self._folder = _folder(name)
        self._records: Mapping[int, PartRecord] = {}

    @cached_property
    def any(self) -> bool:
        """True if any rows of these steps are stored, whatever the content below."""
        return any_above(self.upper)

    def content(self, part: int) -> str | None:
        """Return the digest of the rows and schemas of a part of the lower entry, or None."""
        if part not in self._records:
            self._records = self.lower.store.records(self.lower.fingerprint)
        record = self._records.get(part)
        if record is None:
            return None
        about = {name: value for name, value in record.about.items() if name != "own"}
        return digest("content", part, record.digest, record.schema, checked(about)).hex()

    def find_entry(self, part: int) -> str | None:
        """Return the entry made from the content of part ``part`` of the lower entry, or None."""
        content, store = self.content(part), self.upper.store
        if content is None:
            return None
        text = store.standing.answer(partial(store.place.get, f"{self._folder}/{content}"))
        name = (about_in(text or b"") or {}).get("fingerprint")
        return name if isinstance(name, str) and is_name(name) else None

    def tell(self, part: int) -> None:
        """Record that the upper entry holds the rows made from part ``part`` of the lower entry.

        An earlier record is replaced: the rows that it names are gone, damaged or remade, since
        otherwise they would have been used.
        """
        content, store = self.content(part), self.upper.store
        if content is not None and store.standing.whole:
            about = {"about": {"fingerprint": self.upper.fingerprint}}
            store.standing.answer(partial(say, store.place, f"{self._folder}/{content}", about))


def any_above(upper: StoredEntry) -> bool:
    """Return True if rows of the steps above a stored step are stored, for any content of it."""
    name, store = upper.asked.above if upper.asked else "", upper.store
    return bool(name and store.standing.answer(partial(store.place.names, _folder(name))))


def _folder(name: str) -> str:
    return f"a/{name[:2]}/{name}"
