"""This file keeps what an iterator gives in a local file, since it gives it only once.

Rows are pulled when somebody asks for them, written behind those before, and read from there ever
after. The file lies in a private folder that goes with the last reference to the source.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from dml.errors import SourceError
from dml.expr.function import local_identity
from dml.expr.schema import Schema, schema_of
from dml.expr.sources.asking import Desk, UnansweredError, ask
from dml.expr.sources.generated import (
    GENERATED_ROWS,
    Generated,
    batches,
    row_of,
    schema_of_rows,
)
from dml.expr.unshared import owned_row
from dml.ownership import own_file
from dml.plugins import DataSource, SourcePart

ONCE = "an iterator gives its rows once, and to nobody else"
FOLDER = "dml-spool-"


class Spool:
    """Batches of an iterator: those that came lie in a file, the others are pulled when wanted.

    A pickled copy has the place of the file, and asks the first one for more: it serves on this
    host, as long as the first one lives.
    """

    _asked: tuple[Any, bytes] | None = None
    _desk: Desk | None = None

    def __init__(self, rows: Iterator[Mapping[str, Any]], schema: Schema, each: int) -> None:
        self.schema = schema.to_arrow()
        self._coming: Iterator[pa.RecordBatch] | None = batches(rows, schema, schema.names, each)
        self._places: list[tuple[int, int]] = []
        self._error: Exception | None = None
        self._lock, self._asking = threading.Lock(), threading.Lock()
        self._owner = os.getpid()
        folder = tempfile.mkdtemp(prefix=FOLDER)
        self._path = os.path.join(folder, "rows")
        weakref.finalize(self, _removed, folder, self._owner)

    def __getstate__(self) -> dict[str, Any]:
        """The file, and whom to ask for what is not in it."""
        with self._asking:
            if self._asked is None and self._desk is None:
                self._must_own()
                self._desk = Desk(self, os.path.dirname(self._path))
        desk = self._desk
        asked = self._asked if desk is None else (desk.address, desk.key)
        state = {"schema": self.schema, "_path": self._path, "_places": list(self._places)}
        return {**state, "_asked": asked}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A reader, which neither pulls nor owns the file."""
        self.__dict__.update(state, _coming=None, _error=None)
        self._lock, self._asking = threading.Lock(), threading.Lock()

    def answer(self, number: int) -> list[tuple[int, int]]:
        """The places from batch ``number`` on, to a copy that lacks it; none at the end."""
        if not self._has(number) and self._error is not None:
            raise self._error
        return self._places[number:]

    def batch(self, number: int) -> pa.RecordBatch | None:
        """Batch ``number``; None at the end. Raises what the iterator raised in its place."""
        try:
            if not self._has(number):
                if self._error is not None:
                    raise self._error
                return None
            at, size = self._places[number]
        except UnansweredError as error:
            raise self._lost(error) from error
        try:
            with open(self._path, "rb") as file:
                file.seek(at)
                return pa.ipc.read_record_batch(pa.py_buffer(file.read(size)), self.schema)
        except (OSError, pa.ArrowException) as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> SourceError:
        return SourceError(
            "rows of an iterator that were kept cannot be read",
            at=self._path,
            why=" ".join(str(error).split()),
            try_="workers on this host; or write_parquet(...) first, and read that",
        )

    def _has(self, number: int) -> bool:
        """True if batch ``number`` is in the file, after pulling until it is."""
        with self._lock:
            while len(self._places) <= number and self._coming is not None:
                self._pull(self._coming)
            if len(self._places) <= number and self._asked is not None:
                self._places += ask(*self._asked, len(self._places))
        return number < len(self._places)

    def _pull(self, coming: Iterator[pa.RecordBatch]) -> None:
        """Put the next batch behind the others; what cannot be kept ends the rows with an error."""
        self._must_own()
        try:
            batch = next(coming, None)
        except Exception as error:  # noqa: BLE001 - it is raised for whoever comes to its place
            self._error, batch = error, None
        if batch is None:
            self._coming = None
            return
        data = batch.serialize()
        try:
            with open(self._path, "ab", opener=own_file) as file:
                at = file.tell()
                file.write(data)
        except OSError as error:
            self._coming, self._error = None, self._unkept(error)
        else:
            self._places.append((at, data.size))

    def _must_own(self) -> None:
        if os.getpid() != self._owner:
            raise SourceError(
                "an iterator is pulled by the process that has it, and this is a fork of it",
                why="each would take its own rows, and write over those of the other",
                try_="executor='processes', or write_parquet(...) first, and read that",
            )

    def _unkept(self, error: OSError) -> SourceError:
        return SourceError(
            "rows of an iterator could not be kept",
            at=self._path,
            why=error.strerror or str(error),
            try_="TMPDIR= a folder on a disk with room",
        )


def _removed(folder: str, owner: int) -> None:
    """Remove the file, unless this is a copy of the process that has it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


class Spooled(DataSource):
    """Rows of an iterator that cannot be rewound."""

    unnamed = ONCE

    def __init__(self, rows: Iterator[Any], schema: Schema | None, atom_rows: int | None) -> None:
        self.name = type(rows).__name__
        self.atom_rows = GENERATED_ROWS if atom_rows is None else atom_rows
        # as they are now: what is looked at for a schema is read once more later
        made: Iterator[Mapping[str, Any]] = map(owned_row, map(row_of, rows))
        if schema is None:
            first, made = itertools.tee(made)
            schema = schema_of_rows(first, self.name)
            del first  # or it would keep every row
        self.columns = schema
        self.spool = Spool(made, schema, self.atom_rows)

    def schema(self) -> Schema:
        """As it was declared, or as the first rows say."""
        return self.columns

    def read(self, part: SourcePart, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Every batch, from the file."""
        for number in itertools.count():
            batch = self.spool.batch(number)
            if batch is None:
                return
            yield batch.select(list(columns))


def iterated(
    rows: Iterable[Any], schema: object, *, nonce: bytes, atom_rows: int | None
) -> DataSource:
    """The source of what is iterated once, or again and again; SourceError for what cannot be."""
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise SourceError(
            f"from_iterable needs rows, got a {type(rows).__name__}",
            why="it is iterated for rows: dicts, or values of one column",
            try_="from_items([...]) for a list, from_generator(f) for a function",
        )
    declared = None if schema is None else schema_of(schema)
    made = iter(rows)
    if made is rows:
        return Spooled(made, declared, atom_rows)
    known = local_identity(AGAIN, nonce, type(rows).__name__)
    return Generated(rows.__iter__, known, declared, atom_rows)


AGAIN = "what an object gives when it is iterated can be told by no name"
