"""Write the rows of a pipeline to files of bounded size, while they are computed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from dml.base.open_tensors import OpenTensor
from dml.errors import PlanError, SchemaError
from dml.exec.delivery.tables import record_batches
from dml.exec.streams.stream import Streaming
from dml.expr.facts import Rows
from dml.io.files.paths import plain
from dml.io.files.staged_folder import located, staged, sync
from dml.io.files.write_formats import FileFormat, Writer
from dml.io.stores.store_errors import shown_url
from dml.io.stores.upload import uploading

MIB = 1 << 20
FILE_BYTES, MOST_FILES = 128 * MIB, 100_000
# A row group is written when it has so many bytes in memory, or so many rows.
GROUP_BYTES, GROUP_ROWS = 32 * MIB, 1 << 20
# Kinds of operators that keep their input's columns, so that no rows are needed to know them.
KEEPING = (Rows.FEWER, Rows.SLICE, Rows.PERMUTED, Rows.GROUPED, Rows.REPEATED)


@dataclasses.dataclass(frozen=True)
class Written:
    """The result of a write: the folder, numbers of ``files`` and ``rows``, ``nbytes`` on disk."""

    path: str
    files: int
    rows: int
    nbytes: int

    def __str__(self) -> str:
        files = f"{self.files} file{'s' * (self.files != 1)}"
        return f"{self.rows:,} rows in {files}, {self.nbytes / MIB:,.1f} MiB, in {self.path}"

    __repr__ = __str__


@dataclasses.dataclass(frozen=True)
class WriteRequest:
    """The arguments of a write; a number of rows that is None stands for the usual number."""

    path: str | os.PathLike[str]
    form: FileFormat
    group_rows: int | None
    file_rows: int | None
    overwrite: bool
    storage_options: Any


@dataclasses.dataclass(frozen=True, repr=False)
class Planned(Written):
    """A lazy write: no file is written until ``dml.collect_all`` performs it."""

    asked: WriteRequest
    dataset: Any

    def __str__(self) -> str:
        return f"nothing in {self.path} yet: dml.collect_all([...]) writes it"

    __repr__ = __str__


@dataclasses.dataclass(frozen=True)
class Cuts:
    """Bounds of row groups and files; a file ends at ``file_rows``; if None, at ``file_bytes``."""

    group_rows: int = GROUP_ROWS
    group_bytes: int = GROUP_BYTES
    file_rows: int | None = None
    file_bytes: int = FILE_BYTES

    def __post_init__(self) -> None:
        for name, value in (("row_group_size", self.group_rows), ("rows_per_file", self.file_rows)):
            whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and (not whole or value < 1):
                raise PlanError(
                    f"{name} must be a whole number of at least 1, got {value!r}",
                    why="it counts rows",
                    try_=f"leave {name} out to get what is usual",
                )

    def most(self, rows: int) -> int:
        """Return the most rows that the row group may have that begins after ``rows`` rows."""
        if self.file_rows is None:
            return self.group_rows
        return min(self.group_rows, self.file_rows - rows % self.file_rows)


def cuts_of(group_rows: int | None, file_rows: int | None, held_bytes: int) -> Cuts:
    """Return the requested sizes (None: usual ones); two row groups fit in ``held_bytes``."""
    group_bytes = max(1, min(GROUP_BYTES, held_bytes // 2))
    return Cuts(GROUP_ROWS if group_rows is None else group_rows, group_bytes, file_rows)


def write(
    streaming: Streaming,
    epoch: int,
    path: str | os.PathLike[str],
    form: FileFormat,
    cuts: Cuts,
    *,
    overwrite: bool,
    storage_options: Any = None,
) -> Written:
    """Write the rows of ``epoch`` into a folder that appears when it is complete.

    In a store (opened with ``storage_options``), files appear one by one after all are made. Raise
    PlanError or SchemaError, if possible before any work, and SourceError for errors of the disk.
    """
    check_columns(streaming, form)
    with made_in(path, storage_options, overwrite=overwrite) as folder:
        filling = FolderWriter(streaming, folder, form, cuts)
        try:
            for batch in record_batches(streaming, epoch):
                filling.add(batch)
            return filling.end(path)
        except BaseException:
            filling.abandon()
            raise


def check_columns(streaming: Streaming, form: FileFormat) -> None:
    """Raise SchemaError if files of this format cannot hold the columns, if these are known."""
    plan = streaming.plan
    if plan.schema.known:
        _check(plan.schema.to_arrow(), form, plan.operators[-1].label())


def made_in(
    path: str | os.PathLike[str], storage_options: Any, *, overwrite: bool
) -> AbstractContextManager[Path]:
    """Return a context that gives a folder; its files become those of ``path`` at the end."""
    place = plain(path)
    if isinstance(place, str) and "://" in place:
        return uploading(place, storage_options, overwrite=overwrite)
    return staged(place, overwrite=overwrite)


def display_path(path: Any) -> str:
    """Return ``path`` as text without secrets; raise PlanError if ``path`` is no path."""
    place = plain(path)
    if not (isinstance(place, str) and "://" in place):
        located(place)
    return shown_url(os.fspath(place))


def place_of(path: str | os.PathLike[str]) -> str:
    """Return a name of the folder ``path`` that is the same for all its spellings."""
    place = plain(path)
    if isinstance(place, str) and "://" in place:
        return place.rstrip("/")
    return str(located(place))


class FolderWriter:
    """Receives rows of a pipeline while they are computed, and writes them to files in a folder.

    The files are ``part-00000`` and so on; each is on disk before the next begins.
    """

    def __init__(self, streaming: Streaming, folder: Path, form: FileFormat, cuts: Cuts) -> None:
        self.streaming, self.folder, self.form, self.cuts = streaming, folder, form, cuts
        self.groups = RowGroups(cuts)
        self.schema: pa.Schema | None = None  # that of the first row group
        self.count = self.rows = self.nbytes = 0
        self._rows = 0  # of the current file
        self._path = folder
        self._sink: Any = None
        self._writer: Writer | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the rows of ``batch``, and write the row groups that are complete."""
        for group in self.groups.add(batch):
            self._write(group)

    def _write(self, group: pa.Table) -> None:
        """Write one row group, and end the file if it is large enough."""
        if self.schema is None:
            _check(group.schema, self.form, self.streaming.plan.operators[-1].label())
        writer = self._writer or self._begin(group.schema)
        writer.write(group)
        self._rows += group.num_rows
        full = self._rows == self.cuts.file_rows
        if full or (self.cuts.file_rows is None and self._sink.tell() >= self.cuts.file_bytes):
            self._end(writer)

    def _begin(self, schema: pa.Schema) -> Writer:
        if self.count == MOST_FILES:
            raise PlanError(
                f"more than {MOST_FILES} files",
                at=f"after {self.rows} rows",
                why="their names have five digits, and sort as their rows do",
                try_="a larger rows_per_file=, or leave it out",
            )
        self.schema = schema if self.schema is None else self.schema
        self._path = self.folder / f"part-{self.count:05d}.{self.form.suffix}"
        self._sink = pa.OSFile(str(self._path), "wb")
        self._writer = self.form.open(self._sink, self.schema)
        self._rows = 0
        return self._writer

    def _end(self, writer: Writer) -> None:
        """Finish the current file."""
        writer.close()
        self._sink.close()
        self._writer = None
        sync(self._path)
        self.count, self.rows = self.count + 1, self.rows + self._rows
        self.nbytes += self._path.stat().st_size

    def end(self, path: str | os.PathLike[str]) -> Written:
        """Write the remaining rows, and return the result of the write to ``path``.

        Without rows, one file is written.
        """
        for group in self.groups.rest():
            self._write(group)
        if self.schema is None:
            self._begin(columns_of_none(self.streaming))
        if self._writer is not None:
            self._end(self._writer)
        return Written(display_path(path), self.count, self.rows, self.nbytes)

    def abandon(self) -> None:
        """Close the current file without finishing it; the caller removes it."""
        for each in (self._writer, self._sink):
            with suppress(OSError, pa.ArrowException):
                if each is not None:
                    each.close()


class RowGroups:
    """Gathers rows into row groups."""

    def __init__(self, cuts: Cuts) -> None:
        self.cuts = cuts
        self.held = list[pa.RecordBatch]()
        self.rows = self.nbytes = self.done = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        """Yield the row groups that are completed by rows of ``batch``."""
        cuts = self.cuts
        while batch.num_rows:
            part = batch.slice(0, cuts.most(self.done) - self.rows)
            batch = batch.slice(part.num_rows)
            self.held.append(part)
            self.rows, self.nbytes = self.rows + part.num_rows, self.nbytes + part.nbytes
            if self.rows == cuts.most(self.done) or self.nbytes >= cuts.group_bytes:
                yield from self.rest()

    def rest(self) -> Iterator[pa.Table]:
        """Yield the gathered rows as one row group, unless there are none."""
        if self.held:
            held, self.held = self.held, []
            self.done, self.rows, self.nbytes = self.done + self.rows, 0, 0
            yield pa.Table.from_batches(held)


def groups(batches: Iterator[pa.RecordBatch], cuts: Cuts) -> Iterator[pa.Table]:
    """Yield the rows of ``batches`` in row groups."""
    gathered = RowGroups(cuts)
    for batch in batches:
        yield from gathered.add(batch)
    yield from gathered.rest()


def _check(schema: pa.Schema, form: FileFormat, label: str) -> None:
    """Raise SchemaError if files of this format cannot hold columns of ``schema``."""
    why = "" if len(schema) else "there are no columns, and rows without any leave no trace"
    try:
        if not why:
            form.open(pa.BufferOutputStream(), schema).close()
    # a user's extension type without serialization raises an error that is not Arrow's
    except (pa.ArrowException, NotImplementedError) as error:
        why = str(error)
    if why:
        raise SchemaError(
            f"{form.suffix} files cannot hold these columns",
            at=label,
            why=why.partition("\n")[0],
            try_=_instead(schema),
        )


def _instead(schema: pa.Schema) -> str:
    """Return the advice of an error for columns that the format cannot hold."""
    if any(isinstance(kind, OpenTensor) for kind in schema.types):
        return (
            "write_parquet() or write_arrow(), which hold arrays of any shape, or .map(f) that"
            " makes bytes of them, or arrays of one shape"
        )
    return ".select(...) or .cast(...) of what can be stored"


def columns_of_none(streaming: Streaming) -> pa.Schema:
    """Return the schema of a result without rows; raise SchemaError if only rows show it."""
    plan, schemas = streaming.plan, streaming.at.schemas
    if plan.schema.known:
        return plan.schema.to_arrow()
    for node in reversed(plan.operators):
        settled = schemas.get(node.digest.hex())
        if settled is not None:
            return settled.to_arrow()
        if node.declares or node.adds or node.rows not in KEEPING:
            break
    raise SchemaError(
        "no rows came out, and their columns are not known",
        at=plan.operators[-1].label(),
        why="the types of a function are settled by the first rows that it returns",
        try_="schema={...} where the function is given",
    )
