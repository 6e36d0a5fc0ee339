"""Paths given by users are expanded to files, with names that do not depend on the root folder."""

from __future__ import annotations

import dataclasses
import difflib
import glob
import os
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from dml.errors import SourceError

Paths: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"

TRY = "a file, a folder, a pattern such as 'data/*.parquet', or a list of these"


@dataclasses.dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file: its name in messages, and the suffixes to read in folders (empty: any)."""

    word: str
    endings: tuple[str, ...] = ()


def expand(paths: Paths, kind: FileKind) -> tuple[str, tuple[str, ...]]:
    """Return the common folder of the files that ``paths`` denote, and their sorted names in it.

    A folder denotes the files of this ``kind`` in and below it, except hidden ones: files and
    folders whose names begin with a dot or underscore. Names use "/" and do not depend on the
    location of the folder. Raises SourceError for paths that are missing, empty, or listed twice.
    """
    given = each_of(paths)
    files = [os.path.abspath(file) for path in given for file in _files(path, kind)]
    files.sort()
    for one, next_one in pairwise(files):
        if one == next_one:
            raise twice(one)
    root = os.path.commonpath([os.path.dirname(file) for file in files])
    names = sorted(os.path.relpath(file, root).replace(os.sep, "/") for file in files)
    return root, tuple(names)


def each_of(paths: Paths) -> list[str | os.PathLike[str]]:
    """Return the given paths, at least one; a ``file://`` prefix is removed."""
    if not isinstance(paths, str | os.PathLike | Iterable):
        raise _no_path(paths)
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise SourceError("no paths were given", why="the list of paths is empty", try_=TRY)
    return [plain(path) for path in given]


def plain(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return a local path without ``file://``; return other paths unchanged."""
    if not isinstance(path, str) or not path.startswith("file://"):
        return path
    parts = urlsplit(path)
    if parts.netloc not in ("", "localhost"):
        raise SourceError(
            f"{path} is on another machine",
            why=f"file:// is followed by the host {parts.netloc!r}",
            try_=f"file:///{parts.netloc}{parts.path}, if {parts.netloc!r} is a folder",
        )
    return unquote(path[len("file://") + len(parts.netloc) :])


def twice(path: str) -> SourceError:
    """Build the error for a file that is given twice."""
    return SourceError(
        f"{path} is listed twice",
        why="two rows of one source cannot have the same place",
        try_="concat or repeat, where rows shall come twice",
    )


def _no_path(given: object) -> SourceError:
    return SourceError(
        f"{given!r} is not a path", why=f"it is of type {type(given).__name__}", try_=TRY
    )


def _files(given: object, kind: FileKind) -> Iterator[str]:
    """Yield the files that one path denotes."""
    path = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(path, str):
        raise _no_path(given)
    if os.path.isdir(path):
        found = sorted(_below(path, kind.endings, (os.path.realpath(path),)))
        if not found:
            ends = f"files that end in {', '.join(kind.endings)}, or a pattern for other names"
            raise SourceError(
                f"{path} has no {kind.word} files",
                why=_contents(path),
                try_=ends if kind.endings else TRY,
            )
        yield from found
    elif os.path.exists(path):
        yield path
    elif glob.has_magic(path):
        found = sorted(p for p in glob.glob(path, recursive=True) if os.path.isfile(p))
        if not found:
            raise SourceError(f"no file matches {path}", why=_nearest(path), try_=TRY)
        yield from found
    else:
        raise missing(path)


def _below(folder: str, endings: tuple[str, ...], above: tuple[str, ...]) -> Iterator[str]:
    """Yield the files below a folder; links are followed unless they form a cycle."""
    for entry in os.scandir(folder):
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_dir():
            real = os.path.realpath(entry.path)
            if real not in above:
                yield from _below(entry.path, endings, (*above, real))
        elif not endings or entry.name.lower().endswith(endings):
            yield entry.path


def _contents(folder: str) -> str:
    entries = sorted(os.listdir(folder))
    if not entries:
        return "it is empty"
    more = f" and {len(entries) - 3} more" if len(entries) > 3 else ""
    return f"it has {', '.join(entries[:3])}{more}"


def missing(path: str) -> SourceError:
    """Build the error for a missing file, with the nearest existing folder and a similar name."""
    parent, name = os.path.split(os.path.abspath(path))
    near: list[str] = []
    if os.path.isdir(parent):
        near = difflib.get_close_matches(name, os.listdir(parent), n=1)
    try_ = f"did you mean {os.path.join(os.path.dirname(path), near[0])}?" if near else TRY
    return SourceError(f"{path} does not exist", why=_nearest(path), try_=try_)


def _nearest(path: str) -> str:
    """Describe the nearest existing folder above ``path``."""
    way = Path(os.path.abspath(path)).parents
    there = next(str(parent) for parent in way if parent.is_dir())
    return f"the nearest folder that exists is {there}; {_contents(there)}"
