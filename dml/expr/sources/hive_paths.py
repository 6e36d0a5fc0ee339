"""This file reads paths: which folders lie below what a user gave, and which keys they name."""

from __future__ import annotations

import dataclasses
import datetime as dt
import glob
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from dml.errors import SchemaError, SourceError
from dml.expr.schema import short
from dml.expr.sources.files import File
from dml.expr.sources.paths import Paths, each_of
from dml.expr.sources.stores import store_of

TEXT = pa.string()
# What Hive and Spark call the folder of rows without a value.
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
NUMBER, DATE = re.compile(r"-?[0-9]+"), re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
SMALLEST, LARGEST = -(1 << 63), (1 << 63) - 1
WITHOUT = "hive_partitioning=False, which makes no columns of folders"


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """What a user gave to a reader: paths and what opens them, and which columns of paths."""

    paths: Paths
    options: object
    hive_partitioning: bool | None
    path_column: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a file lies: its path as the user would write it, and what its folders name.

    A key without a value is None.
    """

    written: str
    keys: Mapping[str, str | None]


def placed(files: Sequence[File], given: Given) -> list[Place]:
    """Where each of ``files`` lies below what was given."""
    roots = _roots(given)
    whole = given.hive_partitioning is True
    return [_place(file, roots, named=whole) for file in files]


def _roots(given: Given) -> dict[str, str]:
    """What was given, as it was written, by the address of the file or folder in which it begins.

    A pattern begins in the last folder before its first wildcard.
    """
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
    """A web address without its query, in which a question mark is no wildcard."""
    return address.partition("?")[0] if address.startswith(("http:", "https:")) else address


def _place(file: File, roots: Mapping[str, str], *, named: bool) -> Place:
    """Below the nearest of ``roots``; a file that was given itself counts whole if ``named``."""
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
    return Place(written, _keys(below.split("/")[:-1], written))


def _keys(folders: Sequence[str], path: str) -> dict[str, str | None]:
    """What folders such as ``year=2024`` name, in their order."""
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
    """A name in which percent signs and two digits stand for bytes."""
    try:
        return checked(unquote(text, errors="strict"))
    except UnicodeDecodeError:
        raise _no_text(text, path) from None


def checked(text: str) -> str:
    """``text``; SourceError for the name of a file or folder that is no Unicode."""
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
    places: Sequence[Place], given: Given, columns: Sequence[str] | None
) -> tuple[str, ...]:
    """The keys that folders name, in the order of the first path; none where that is not wanted.

    SourceError if some paths have a key that others have not, unless only other ``columns`` are
    asked for.
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


def typed(key: str, places: Sequence[Place], kind: pa.DataType | None) -> pa.Array:
    """The values of a key for every file: of ``kind`` if the files have such a column.

    Else int64 or date32 if all values are such, and text if not.
    """
    texts = [place.keys[key] for place in places]
    if kind is not None:
        return _fitted(key, texts, places, kind)
    for read, guessed in ((_number, pa.int64()), (_date, pa.date32())):
        values = [None if text is None else read(text) for text in texts]
        if values.count(None) == texts.count(None) < len(texts):
            return pa.array(values, guessed)
    return pa.array(texts, TEXT)


def _number(text: str) -> int | None:
    if not NUMBER.fullmatch(text) or len(text) > len(str(SMALLEST)):
        return None
    value = int(text)
    return value if SMALLEST <= value <= LARGEST else None


def _date(text: str) -> dt.date | None:
    try:
        return dt.date.fromisoformat(text) if DATE.fullmatch(text) else None
    except ValueError:
        return None


def _fitted(
    key: str, texts: Sequence[str | None], places: Sequence[Place], kind: pa.DataType
) -> pa.Array:
    """The values in the type that the files have."""
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
