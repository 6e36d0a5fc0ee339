"""Record in an index beside the entries of a store which entries hold rows of the same step.

A writer of rows records the step below from which they were selected, the filters that selected
them, and the names of the values in their columns: equal names mean equal values. A look-up lists
two folders: the row sets of that step, and the entries of the row sets that contain the wanted
rows. The index is advice alone: checked JSON, which may name entries that are gone.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from dml.cache.parts.records import Unread, checked, unchecked
from dml.cache.store import layout
from dml.ops.implication import Conjunct, implied

if TYPE_CHECKING:
    from dml.cache.parts.parts import PartStore
    from dml.cache.store.health import Standing
    from dml.cache.store.primitives import StorePlace

# Most row sets, and entries of each, that are read: this bounds the cost of a look-up.
MOST_SETS, MOST_MEMBERS = 256, 256
MOST_KNOWN = 1 << 16  # most files that a process remembers
RECUT = "RECUT.json"  # name of a file beside the description of an entry

Listed = dict[str, list[str]]
"""Names in each listed folder."""


class Family(NamedTuple):
    """A row set named ``rows``: the rows of the step ``base`` that pass all ``conjuncts``."""

    base: str
    rows: str
    conjuncts: tuple[Conjunct, ...]

    @property
    def names(self) -> frozenset[str]:
        """The names of the filters that the rows passed."""
        return frozenset(each.name for each in self.conjuncts)


class IndexMember(NamedTuple):
    """An entry that holds the row set ``family``; ``columns`` maps value names to its columns."""

    fingerprint: str
    family: Family
    columns: Mapping[str, str]


def is_name(text: str) -> bool:
    """Return True if ``text`` is the name of an entry, and not of another file."""
    return re.fullmatch(r"[0-9a-f]{32}", text) is not None


def say(place: StorePlace, name: str, body: dict[str, Any]) -> None:
    """Write a note, the JSON file ``name``; replace it if it is damaged or has another content."""
    text = checked(body)
    if not place.put_if_absent(name, text) and place.get(name) != text:
        place.put(name, text)


def _folder(base: str) -> str:
    return f"c/{base[:2]}/{base}"


class CacheIndex:
    """The index of one store, for all threads of a process; store failures raise no error."""

    def __init__(self, place: StorePlace, standing: Standing) -> None:
        self._place, self._standing = place, standing
        self._read: dict[str, Any] = {}  # files never change
        self._told = set[str]()

    def tell(self, member: IndexMember) -> None:
        """Record the rows and columns that the entry of ``member`` holds, once in a process."""
        family = member.family
        name = f"{_folder(family.base)}/of/{family.rows}/{member.fingerprint}"
        if name in self._told or not self._standing.whole:
            return
        rows = {"conjuncts": [list(each.stored_form) for each in sorted(family.conjuncts)]}
        with self._standing.failing():
            say(self._place, f"{_folder(family.base)}/sets/{family.rows}", {"about": rows})
            say(self._place, name, {"about": {"columns": dict(member.columns)}})
            self._told.add(name)

    def tell_recut(self, fingerprint: str) -> None:
        """Mark an entry as filled by a run that reuses rows of other entries."""
        name = f"{layout.entry(fingerprint)}/{RECUT}"
        self._standing.answer(partial(self._place.put_if_absent, name, checked({})))

    def members(self, family: Family, listed: Listed) -> list[IndexMember]:
        """Return the entries whose rows include all rows of ``family``; equal row sets come first.

        Folders in ``listed`` are not listed again, and new listings are added to ``listed``.
        """
        return self._standing.answer(lambda: list(self._members(family, listed))) or []

    def parts(self, fingerprint: str, listed: Listed) -> frozenset[int]:
        """Return the numbers of the stored parts of an entry."""
        folder = layout.entry(fingerprint)
        return frozenset(layout.viewed(folder, self._names(folder, listed)).live)

    def recut(self, fingerprint: str, listed: Listed) -> bool:
        """Return True if an entry may have parts from runs that reused rows of other entries."""
        return RECUT in self._names(layout.entry(fingerprint), listed)

    def _names(self, folder: str, listed: Listed) -> list[str]:
        """Return the names in the folder of an entry."""

        def names() -> list[str]:
            if folder not in listed:
                listed[folder] = self._place.names(folder)
            return listed[folder]

        return self._standing.answer(names) or []

    def _members(self, family: Family, listed: Listed) -> Iterator[IndexMember]:
        def names(folder: str) -> list[str]:
            if folder not in listed:
                listed[folder] = sorted(filter(is_name, self._place.names(folder)))
            return listed[folder]

        folder = _folder(family.base)
        found = [family, *self._wider(family, names(f"{folder}/sets")[:MOST_SETS])]
        for each in found:
            for name in names(f"{folder}/of/{each.rows}")[:MOST_MEMBERS]:
                columns = self._read_note(f"{folder}/of/{each.rows}/{name}", _columns)
                if columns is not None:
                    yield IndexMember(name, each, columns)

    def _wider(self, family: Family, every: Sequence[str]) -> Iterator[Family]:
        """Yield the other row sets of the step, among names ``every``, that contain ``family``."""
        for rows in every:
            name = f"{_folder(family.base)}/sets/{rows}"
            conjuncts = None if rows == family.rows else self._read_note(name, _conjuncts)
            if conjuncts is not None and implied(conjuncts, family.conjuncts):
                yield Family(family.base, rows, conjuncts)

    def _read_note(self, name: str, parsed: Callable[[Any], Any]) -> Any:
        """Return the content of a note as ``parsed`` returns it; None if it cannot be read."""
        if name not in self._read:
            text = self._place.get(name)
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


_INDEXES: weakref.WeakKeyDictionary[PartStore, CacheIndex] = weakref.WeakKeyDictionary()


def index_of(store: PartStore) -> CacheIndex:
    """Return the index of a store, which exists once in a process."""
    return _INDEXES.setdefault(store, CacheIndex(store.place, store.standing))
