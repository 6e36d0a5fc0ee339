"""This file holds files that state their own columns, and refuses sets of them that differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pyarrow as pa

from dml.errors import SourceError
from dml.expr.layouts import usual_type
from dml.expr.schema import short
from dml.expr.sources.files import File


@dataclasses.dataclass(frozen=True, eq=False)
class TypedFile(File):
    """A file with the schema that it states."""

    arrow_schema: pa.Schema


def columns_in(schema: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    """Names and types as they are delivered."""
    for field in schema:
        yield field.name, usual_type(field.type)


def check_columns(file: TypedFile) -> None:
    """Refuse two columns of one name, and files without columns."""
    names = file.arrow_schema.names
    if not names:
        raise SourceError(f"{file.name} has no columns", at=file.path)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SourceError(
            f"{file.name} has two columns called {twice!r}",
            at=file.path,
            try_="write it again under different names",
        )


def check_same(first: TypedFile, other: TypedFile) -> None:
    """Refuse a file whose columns differ from the first file's (nullability aside)."""
    here, there = (list(columns_in(f.arrow_schema)) for f in (first, other))
    if here == there:
        return
    types, others = dict(here), dict(there)
    at = f"{first.path} and {other.path}"
    for name in (*types, *others):
        if name not in types or name not in others:
            has, lacks = (first, other) if name in types else (other, first)
            raise SourceError(
                f"{lacks.name} has no column {name!r}, {has.name} has",
                at=at,
                why="files of one source have the same columns",
                try_="two sources with the columns they share, then concat",
            )
        if types[name] != others[name]:
            raise SourceError(
                f"column {name!r} is {short(types[name])} in {first.name}"
                f" and {short(others[name])} in {other.name}",
                at=at,
                why="files of one source have the same types",
                try_="two sources, .cast(...), then concat",
            )
    name = next(b for (a, _), (b, _) in zip(here, there, strict=True) if a != b)
    raise SourceError(
        f"column {name!r} stands at another place in {other.name} than in {first.name}",
        at=at,
        why="files of one source have the same columns in the same order",
        try_="two sources with .select(...), then concat",
    )
