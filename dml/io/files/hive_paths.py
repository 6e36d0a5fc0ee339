"""Paths are parsed for the folders below the given path and for the keys in folder names."""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from dml.data.schema import short
from dml.errors import SchemaError, SourceError
from dml.io.files.files import File
from dml.io.files.paths import Paths, each_of

TEXT = pa.string()
# The folder name of Hive and Spark for rows without a value.
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
# As many digits as int64 has, and no year 0, which Python's dates do not have.
NUMBER = re.compile(r"-?[0-9]{1,19}|[0-9]{20}")
DATE = re.compile(r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}")
WITHOUT = "hive_partitioning=False, which makes no columns of folders"


@dataclasses.dataclass(frozen=True, slots=True)
class PathArguments:
    """The arguments of a reader: paths, store options, and the requested path columns."""

    paths: Paths
    options: object
    hive_partitioning: bool | None
    path_column: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class FilePlace:
    """The location of a file: its path as the user would write it, and the keys of its folders.

    A key without a value is None.
    """

    written: str
    keys: Mapping[str, str | None]


def placed(files: Sequence[File], given: PathArguments) -> list[FilePlace]:
    """Return the location of each of ``files`` below the given paths."""
    roots = _roots(given)
    whole = given.hive_partitioning is True
    return [_place(file, roots, named=whole) for file in files]


def _roots(given: PathArguments) -> dict[str, str]:
    """Return a dict from the address of each given path to the path as written.

    For a pattern, both are those of the last folder before its first wildcard.
    """
    from dml.io.stores.stores import store_of  # noqa: PLC0415

    found: dict[str, str] = {}
    for each in each_of(given.paths):
        path = os.fspath(each)
        remote = "://" in path
        address = store_of(path, given.options).address if remote else path
        if not (not remote and os.path.exists(path)) and glob.has_magic(_bare(address)):
            path = address = os.path.dirname(re.split(r"[*?\[]", address, maxsplit=1)[0])
        found[_plain(address if remote else os.path.abspath(address))] = path
    return found


def _plain(address: str) -> str:
    return _bare(address).replace(os.sep, "/").rstrip("/")


def _bare(address: str) -> str:
    """Return a web address without its query, since its question mark is not a wildcard."""
    return address.partition("?")[0] if address.startswith(("http:", "https:")) else address


def _place(file: File, roots: Mapping[str, str], *, named: bool) -> FilePlace:
    """Locate a file below the nearest of ``roots``; a root that is a file has keys if ``named``."""
    there = file.remote
    address = _plain(file.path if there is None else there.address)
    root = address
    while root and root not in roots:
        root = root.rpartition("/")[0]
    below = address[len(root) :].strip("/")
    written = file.path
    if there is None and root in roots:
        written = os.path.join(roots[root], below) if below else roots[root]
    if not below and named:
        below = (written if there is None else address).replace(os.sep, "/")
    return FilePlace(written, _keys(below.split("/")[:-1], written))


def _keys(folders: Sequence[str], path: str) -> dict[str, str | None]:
    """Parse folder names such as ``year=2024`` into keys and values, in order."""
    found: dict[str, str | None] = {}
    for folder in folders:
        name, equals, value = folder.partition("=")
        if not equals or not name:
            continue
        key = _decoded(name, path)
        if key in found:
            raise SourceError(
                f"{path} has two folders for the key {key!r}",
                why="each would be the column's value",
                try_=WITHOUT,
            )
        found[key] = _decoded(value, path) if value not in ("", NO_VALUE) else None
    return found


def _decoded(text: str, path: str) -> str:
    """Decode percent-encoded bytes in a name; raise SourceError if they are not UTF-8."""
    try:
        return checked(unquote(text, errors="strict"))
    except UnicodeDecodeError:
        raise _no_text(text, path) from None


def checked(text: str) -> str:
    """Return ``text``; raise SourceError for a file or folder name that is not Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _no_text(text, text) from None
    return text


def _no_text(text: str, path: str) -> SourceError:
    return SourceError(
        f"{text!r} cannot be a value of a column",
        at=repr(path),
        why="it is no UTF-8",
        try_="another name of the folder, or no columns of paths",
    )


def keys_of(
    places: Sequence[FilePlace], given: PathArguments, columns: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the keys of folder names, in the order of the first path; empty if disabled.

    Raise SourceError if only some paths have a key, unless only other ``columns`` are selected.
    """
    if given.hive_partitioning is False:
        return ()
    every = dict.fromkeys(key for place in places for key in place.keys)
    if not every and given.hive_partitioning:
        raise SourceError(
            "hive_partitioning=True finds no key",
            at=places[0].written,
            why="no folder below what was given is called as in year=2024",
            try_="the folder above, or no hive_partitioning=",
        )
    if columns is not None and not every.keys() & set(columns):
        return ()
    for key in every:
        has = next(place for place in places if key in place.keys)
        lacks = next((place for place in places if key not in place.keys), None)
        if lacks is not None:
            raise SourceError(
                f"{lacks.written} has no folder {key}=..., {has.written} has",
                why=f"{key!r} would be a column, and files of one source have the same columns",
                try_=f"{WITHOUT}; or a source for each, then concat",
            )
    return tuple(every)


def typed(key: str, places: Sequence[FilePlace], kind: pa.DataType | None) -> pa.Array:
    """Return the values of key ``key`` for every file, of type ``kind`` if files have that column.

    Otherwise int64 or date32 if all values parse as such, else text.
    """
    texts = [place.keys[key] for place in places]
    if kind is not None:
        return _fitted(key, texts, places, kind)
    given = [text for text in texts if text is not None]
    for form, guessed in ((NUMBER, pa.int64()), (DATE, pa.date32())):
        if given and all(map(form.fullmatch, given)):
            with suppress(pa.ArrowInvalid):  # beyond int64, or a day that no month has
                return _cast(texts, guessed)
    return pa.array(texts, TEXT)


def _fitted(
    key: str, texts: Sequence[str | None], places: Sequence[FilePlace], kind: pa.DataType
) -> pa.Array:
    """Convert ``texts`` to the type in the files; raise SchemaError if one does not fit."""
    try:
        return _cast(texts, kind)
    except pa.ArrowException:
        bad = next(i for i, text in enumerate(texts) if not _fits(text, kind))
        raise SchemaError(
            f"column {key!r} is {short(kind)} in the files, and {texts[bad]!r} in a path",
            at=places[bad].written,
            why="a column of both is the path's, in the type that the files have",
            try_="hive_partitioning=False, which leaves it to the files",
        ) from None


def _cast(texts: Sequence[str | None], kind: pa.DataType) -> pa.Array:
    found: Any = pa.array(texts, TEXT).cast(kind)
    return found


def _fits(text: str | None, kind: pa.DataType) -> bool:
    try:
        _cast([text], kind)
    except pa.ArrowException:
        return False
    return True
