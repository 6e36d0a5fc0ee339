"""This file keeps an index beside the entries of a store: which of them have rows of one step.

Whoever stores rows says by which filters they were kept of which step below, and by which names of
values their columns can be known. Who looks for some of these lists two folders: the sets of rows
of that step, and the entries of the sets that hold what is asked. What lies there is advice alone:
checked JSON, which names entries that may be gone.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dml.exec.store import layout
from dml.exec.store.primitives import UnusableError
from dml.exec.store.records import Unread, checked, unchecked
from dml.expr.implied import Conjunct, implied

if TYPE_CHECKING:
    from dml.exec.store.parts import PartStore
    from dml.exec.store.primitives import Place

# Sets of rows, and entries in each, that are looked at: a look-up stays one however many there are.
MOST_SETS, MOST_MEMBERS = 256, 256
MOST_KNOWN = 1 << 16  # files that a process remembers
RECUT = "RECUT.json"  # beside what an entry says of itself


Answer = TypeVar("Answer")
Listed = dict[str, list[str]]
"""Folders, and what is in them."""


class Family(NamedTuple):
    """Rows of the step named ``base`` that pass ``conjuncts``, known as ``rows``."""

    base: str
    rows: str
    conjuncts: tuple[Conjunct, ...]

    @property
    def names(self) -> frozenset[str]:
        """The names of the filters that they passed."""
        return frozenset(each.name for each in self.conjuncts)


class Member(NamedTuple):
    """An entry: its columns (their names there by the names of their values) of these rows."""

    fingerprint: str
    family: Family
    columns: Mapping[str, str]


def is_name(text: str) -> bool:
    """Whether a text is the name of an entry, and not just any file's."""
    return re.fullmatch(r"[0-9a-f]{32}", text) is not None


def say(place: Place, name: str, body: dict[str, Any]) -> None:
    """Write a note; one that says something else, or is damaged, is replaced."""
    text = checked(body)
    if not place.put_if_absent(name, text) and place.get(name) != text:
        place.put(name, text)


def _folder(base: str) -> str:
    return f"c/{base[:2]}/{base}"


class Index:
    """What is said beside one store, for all threads of a process; never raises for its sake."""

    def __init__(self, store: PartStore) -> None:
        self._store = weakref.ref(store)
        self._read: dict[str, Any] = {}  # files never change
        self._told = set[str]()

    def tell(self, member: Member) -> None:
        """Say what an entry holds; once in a process."""
        store, family = self._store(), member.family
        name = f"{_folder(family.base)}/of/{family.rows}/{member.fingerprint}"
        if store is None or name in self._told or not store.standing.whole:
            return
        self._told.add(name)
        rows = {"conjuncts": [list(each.kept) for each in sorted(family.conjuncts)]}
        try:
            say(store.place, f"{_folder(family.base)}/sets/{family.rows}", {"about": rows})
            columns = {"about": {"columns": dict(member.columns)}}
            say(store.place, name, columns)
        except UnusableError as error:
            store.give_up(error)

    def tell_recut(self, fingerprint: str) -> None:
        """Say that a run which looks for rows of others stores some in this entry."""
        name = f"{layout.entry(fingerprint)}/{RECUT}"
        self._answer(lambda store: store.place.put_if_absent(name, checked({})))

    def members(self, family: Family, listed: Listed) -> list[Member]:
        """Entries that hold all rows of ``family``: first those that hold no others.

        What is ``listed`` already is not listed again, and what is listed now is put there.
        """
        return self._answer(lambda store: list(self._members(store, family, listed))) or []

    def parts(self, fingerprint: str, listed: Listed) -> frozenset[int]:
        """Which parts of an entry are there."""
        folder = layout.entry(fingerprint)
        return frozenset(layout.viewed(folder, self._names(folder, listed)).live)

    def recut(self, fingerprint: str, listed: Listed) -> bool:
        """Whether some of its parts may have been stored by runs that look for those of others."""
        return RECUT in self._names(layout.entry(fingerprint), listed)

    def _names(self, folder: str, listed: Listed) -> list[str]:
        """What is in the folder of an entry."""

        def names(store: PartStore) -> list[str]:
            if folder not in listed:
                listed[folder] = store.place.names(folder)
            return listed[folder]

        return self._answer(names) or []

    def _answer(self, what: Callable[[PartStore], Answer]) -> Answer | None:
        """What the store answers; None if it cannot be asked."""
        store = self._store()
        if store is None or store.standing.unusable is not None:
            return None
        try:
            return what(store)
        except UnusableError as error:
            store.give_up(error)
            return None

    def _members(self, store: PartStore, family: Family, listed: Listed) -> Iterator[Member]:
        def names(folder: str) -> list[str]:
            if folder not in listed:
                listed[folder] = sorted(filter(is_name, store.place.names(folder)))
            return listed[folder]

        folder = _folder(family.base)
        found = [family, *self._wider(store, family, names(f"{folder}/sets")[:MOST_SETS])]
        for each in found:
            for name in names(f"{folder}/of/{each.rows}")[:MOST_MEMBERS]:
                columns = self._known(store, f"{folder}/of/{each.rows}/{name}", _columns)
                if columns is not None:
                    yield Member(name, each, columns)

    def _wider(self, store: PartStore, family: Family, every: Sequence[str]) -> Iterator[Family]:
        """Other sets of rows that have all of these."""
        for rows in every:
            name = f"{_folder(family.base)}/sets/{rows}"
            conjuncts = None if rows == family.rows else self._known(store, name, _conjuncts)
            if conjuncts is not None and implied(conjuncts, family.conjuncts):
                yield Family(family.base, rows, conjuncts)

    def _known(self, store: PartStore, name: str, parsed: Callable[[Any], Any]) -> Any:
        """What a file says; None if that cannot be read."""
        if name not in self._read:
            text = store.place.get(name)
            if text is None:
                return None
            body = unchecked(text)
            if len(self._read) >= MOST_KNOWN:
                self._read.clear()
            self._read[name] = None if isinstance(body, Unread) else parsed(body.get("about"))
        return self._read[name]


def _conjuncts(about: Any) -> tuple[Conjunct, ...] | None:
    kinds = (str, str, str)
    try:
        rows = [Conjunct(*row) for row in about["conjuncts"]]
    except (KeyError, TypeError):
        return None
    sure = all(
        tuple(map(type, row[:3])) == kinds and type(row.bound) in (int, float) for row in rows
    )
    return tuple(rows) if sure else None


def _columns(about: Any) -> dict[str, str] | None:
    columns = about.get("columns") if isinstance(about, dict) else None
    if not isinstance(columns, dict) or not all(type(name) is str for name in columns.values()):
        return None
    return columns


_INDEXES: weakref.WeakKeyDictionary[PartStore, Index] = weakref.WeakKeyDictionary()


def index_of(store: PartStore) -> Index:
    """The index beside a store, one in a process."""
    found = _INDEXES.get(store)
    if found is None:
        found = _INDEXES[store] = Index(store)
    return found
