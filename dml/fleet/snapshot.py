"""A snapshot names the Parquet files of the telemetry store, and the event files they replace.

Snapshots are ``v1/snapshots/<number>.json``; the highest number is the state of the store. A file
is created under its number by one process only, so that of two compactions of the same events one
is thrown away. A reader lists the event files first and reads the snapshot second: whatever is
compacted in between, it counts each run once: events leave their files for Parquet only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from dml.base.ownership import make_folders, own_file
from dml.fleet.collector import LAYOUT, UNFINISHED

FOLDER: Final = "snapshots"
KEPT: Final = 4
"""Snapshots that stay: if the last one is damaged, the one before names nearly all files."""


class TableFile(NamedTuple):
    """One Parquet file: its path below ``v1``, the kind of its rows, their day, rows and bytes.

    ``columns`` is a digest of the names of its columns, which differ between versions of dml.
    """

    path: str
    kind: str
    day: str
    rows: int
    nbytes: int
    columns: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The Parquet files of a store, and the event files whose runs are in them."""

    number: int = 0
    parts: tuple[TableFile, ...] = ()
    folded: frozenset[str] = field(default_factory=frozenset)
    damaged: bool = False
    """Whether a later snapshot could not be read, so that files may be missing."""

    def of(self, kind: str) -> list[TableFile]:
        """Return the files with rows of one kind."""
        return [each for each in self.parts if each.kind == kind]

    def has(self, parts: Iterable[TableFile]) -> bool:
        """Return True if the snapshot names all of ``parts``."""
        return set(parts) <= set(self.parts)

    def next(
        self,
        added: Iterable[TableFile],
        removed: Iterable[TableFile] = (),
        folded: Iterable[str] = (),
    ) -> Snapshot:
        """Return the snapshot after this one, with files added and removed."""
        gone = set(removed)
        parts = (*(each for each in self.parts if each not in gone), *added)
        return Snapshot(self.number + 1, parts, frozenset(folded))


def event_files(root: Path) -> list[str]:
    """Return the paths of the files with events, below ``v1``, sorted: by day and by writer."""
    base = root / LAYOUT
    return sorted(str(each.relative_to(base)) for each in base.glob("day=*/*.jsonl"))


def snapshot(root: Path) -> Snapshot:
    """Return the snapshot with the highest number that can be read; an empty one if none can."""
    numbers = _numbers(root)
    for number in reversed(numbers):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            raw = json.loads(_path(root, number).read_text(encoding="ascii"))
            found = _of_json(raw, numbers[-1])
            return dataclasses.replace(found, damaged=number != numbers[-1])
    return Snapshot(max(numbers, default=0), damaged=bool(numbers))


def commit(root: Path, made: Snapshot) -> bool:
    """Make ``made`` the store's state; return False if another process took its number first.

    Raise OSError as the file system does.
    """
    final = _path(root, made.number)
    if final.exists():
        return False
    temporary = root / LAYOUT / UNFINISHED / f"{uuid.uuid4().hex}-snapshot.json"
    for folder in (final.parent, temporary.parent):
        make_folders(folder)
    try:
        with open(temporary, "x", encoding="ascii", opener=own_file) as file:
            json.dump(_to_json(made), file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, final)  # fails if the name exists
        if _numbers(root)[-1] != made.number:  # others were faster, and the number was free again
            final.unlink()
            return False
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    for number in _numbers(root)[:-KEPT]:
        _path(root, number).unlink(missing_ok=True)
    return True


def _path(root: Path, number: int) -> Path:
    return root / LAYOUT / FOLDER / f"{number:08d}.json"


def _numbers(root: Path) -> list[int]:
    names = (each.stem for each in (root / LAYOUT / FOLDER).glob("*.json"))
    return sorted(int(name) for name in names if name.isdecimal() and name.isascii())


def _to_json(made: Snapshot) -> dict[str, Any]:
    return {"parts": [list(each) for each in made.parts], "folded": sorted(made.folded)}


def _of_json(raw: Any, number: int) -> Snapshot:
    parts = tuple(_part(*each) for each in raw["parts"])
    folded = raw["folded"]
    if not isinstance(folded, list) or not all(isinstance(each, str) for each in folded):
        raise ValueError("a snapshot lists the files that it replaces")
    return Snapshot(number, parts, frozenset(folded))


def _part(*fields: Any) -> TableFile:
    """Return a file of a snapshot; raise ValueError for a path outside the store."""
    found = TableFile(*fields)
    below = Path(found.path)
    if below.is_absolute() or ".." in below.parts:
        raise ValueError(f"a file of a snapshot lies in the store, got {found.path!r}")
    return found
