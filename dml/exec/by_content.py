"""This file finds rows by the content of what they were made of, where names do not find them.

A stored step above another one is a function of the rows that this one has. A function further
below that was edited gives these rows another name; if they are the same all the same, what stood
above them is still true. So whoever stores a unit of the upper step also says, beside the entries,
of which content of the lower one it was made. Source: early cutoff; Mokhov, Mitchell and Peyton
Jones, Build Systems a la Carte, 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dml.exec.families import is_name, say
from dml.exec.store.primitives import UnusableError
from dml.exec.store.records import Record, Unread, checked, unchecked
from dml.expr.fingerprint import digest

if TYPE_CHECKING:
    from dml.exec.stored import Entry


class Rooted:
    """Entries of steps known as ``name``, by the content of what is below: that of ``lower``."""

    def __init__(self, name: str, upper: Entry, lower: Entry) -> None:
        self.upper, self.lower = upper, lower
        self._folder = _folder(name)
        self._records: Mapping[int, Record] = {}
        self._any: bool | None = None

    @property
    def any(self) -> bool:
        """Whether somebody has stored what these steps make, of whatever content."""
        if self._any is None:
            self._any = any_above(self.upper)
        return self._any

    def content(self, part: int) -> str | None:
        """The name of all that can be seen of a part of the lower entry, if it is there."""
        if part not in self._records:
            self._records = self.lower.store.records(self.lower.fingerprint)
        record = self._records.get(part)
        if record is None:
            return None
        about = {name: value for name, value in record.about.items() if name != "own"}
        return digest("content", part, record.digest, record.schema, checked(about)).hex()

    def found(self, part: int) -> str | None:
        """The entry that has what becomes of a part of the lower one, if its content is known."""
        content = self.content(part)
        text = content and self._asked(lambda place: place.get(f"{self._folder}/{content}"))
        body = unchecked(text) if text else Unread.DAMAGED
        about = {} if isinstance(body, Unread) else body.get("about")
        name = about.get("fingerprint") if isinstance(about, dict) else None
        return name if isinstance(name, str) and is_name(name) else None

    def tell(self, part: int) -> None:
        """Say that the upper entry has what becomes of a part.

        Whoever said so before made these rows again, or what he had is gone or damaged: else they
        would have been taken from there.
        """
        content, store = self.content(part), self.upper.store
        if content is not None and store.standing.whole:
            about = {"about": {"fingerprint": self.upper.fingerprint}}
            name = f"{self._folder}/{content}"
            self._asked(lambda place: say(place, name, about))

    def _asked(self, what: Any) -> Any:
        return _answer(self.upper, what)


def any_above(upper: Entry) -> bool:
    """Whether somebody has stored what the steps above a stored one make, of whatever content."""
    name = upper.asked.above if upper.asked else ""
    return bool(name and _answer(upper, lambda place: place.names(_folder(name))))


def _folder(name: str) -> str:
    return f"a/{name[:2]}/{name}"


def _answer(entry: Entry, what: Any) -> Any:
    """What the place of an entry answers; None if it cannot be asked."""
    store = entry.store
    try:
        return what(store.place) if store.standing.unusable is None else None
    except UnusableError as error:
        store.give_up(error)
        return None
