"""Schemas that are stored in files are compared and merged here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import pyarrow as pa

from dml.base.cached_property import cached_property
from dml.data.layouts import usual_column, usual_type
from dml.data.schema import Schema, code_of, short
from dml.errors import SourceError
from dml.expr.columns.promotion import wider
from dml.io.files.files import File, FileSet


@dataclasses.dataclass(frozen=True, eq=False)
class TypedFile(File):
    """A file with the Arrow schema that is stored in it."""

    arrow_schema: pa.Schema


SomeTyped = TypeVar("SomeTyped", bound=TypedFile)


class TypedFiles(FileSet, Generic[SomeTyped]):
    """Files of equal columns, whose schemas were read."""

    files: tuple[SomeTyped, ...]

    @cached_property
    def schema(self) -> Schema:
        """Schema of every file, without dictionary encoding."""
        return Schema(columns_in(self.files[0].arrow_schema))


def columns_in(schema: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the name of each column, and its type in blocks (see ``usual_type``)."""
    for field in schema:
        yield field.name, usual_type(field.type)


def check_columns(file: TypedFile) -> None:
    """Raise SourceError for duplicate column names, and for files without columns."""
    names = file.arrow_schema.names
    if not names:
        raise SourceError(f"{file.name} has no columns", at=file.path)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SourceError(
            f"{file.name} has two columns called {twice!r}",
            at=file.path,
            try_="write it again under different names",
        )


def check_same(first: TypedFile, other: TypedFile, remedy: str = "") -> None:
    """Raise SourceError if columns differ from the first file's; order and nullability may differ.

    ``remedy`` is the suggestion of the reader function for files whose columns differ.
    """
    types, others = (dict(columns_in(f.arrow_schema)) for f in (first, other))
    at = f"{first.path} and {other.path}"
    for name in (*types, *others):
        if name not in types or name not in others:
            has, lacks = (first, other) if name in types else (other, first)
            raise SourceError(
                f"{lacks.name} has no column {name!r}, {has.name} has",
                at=at,
                why="files of one source have the same columns",
                try_=remedy or "two sources with the columns they share, then concat",
            )
        if types[name] != others[name]:
            wide = remedy if common(types[name], others[name]) else ""
            raise _clash(name, (first, types[name]), (other, others[name]), wide)


def of_one_schema(files: Iterable[SomeTyped], remedy: str = "") -> tuple[SomeTyped, ...]:
    """Return ``files``; raise SourceError unless all have the columns of the first one."""
    found = tuple(files)
    check_columns(found[0])
    for file in found[1:]:
        check_same(found[0], file, remedy)
    return found


def _clash(
    name: str, one: tuple[TypedFile, pa.DataType], two: tuple[TypedFile, pa.DataType], remedy: str
) -> SourceError:
    (first, kind), (other, another) = one, two
    return SourceError(
        f"column {name!r} is {short(kind)} in {first.name} and {short(another)} in {other.name}",
        at=f"{first.path} and {other.path}",
        why="files of one source have the same types",
        try_=remedy or "two sources, .cast(...), then concat",
    )


def united(files: Sequence[TypedFile]) -> Schema:
    """Return the columns of all files, in order of first appearance, each with its widest type.

    Raise SourceError for a column of two types without a common type.
    """
    found: dict[str, tuple[TypedFile, pa.DataType]] = {}
    for file in files:
        for name, kind in columns_in(file.arrow_schema):
            first, held = found.setdefault(name, (file, kind))
            if held != kind:
                wide = common(held, kind)
                if wide is None:
                    raise _clash(name, (first, held), (file, kind), "")
                found[name] = (first, wide)
    return Schema((name, kind) for name, (_, kind) in found.items())


def common(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """Return the type that represents values of both types; None if there is none.

    Numbers follow NumPy's promotion, other types Arrow's: null becomes any type, times get the
    finest unit, and structs the fields of both.
    """
    if code_of(a) != "arrow" and code_of(b) != "arrow":
        return wider(a, b)
    each = [pa.schema([("x", kind)]) for kind in (a, b)]
    try:
        return usual_type(pa.unify_schemas(each, promote_options="permissive").field(0).type)
    except pa.ArrowException:
        return None


def fitted(batch: pa.RecordBatch, schema: Schema, place: str) -> pa.RecordBatch:
    """Convert rows of a file to the columns and types of all files; missing columns are null.

    Raise SourceError for a value that the wider type cannot represent, such as 2**53 + 1 as a
    float.
    """
    if batch.schema.names == list(schema) and batch.schema.types == list(schema.values()):
        return batch
    columns = []
    for name, kind in schema.items():
        number = batch.schema.get_field_index(name)
        if number < 0:
            columns.append(pa.nulls(batch.num_rows, kind))
            continue
        values = usual_column(batch.column(number), name)
        try:
            columns.append(values if values.type == kind else values.cast(kind))
        except pa.ArrowException as error:
            raise SourceError(
                f"column {name!r} is {short(values.type)} here, and does not fit {short(kind)}",
                at=place,
                why=" ".join(str(error).split()),
                try_="a source of its own for these files, .cast(...), then concat",
            ) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema.to_arrow())
