"""Rows of an iterator, which can be read only once, are spooled to a local file.

Rows are pulled on demand, appended to the file, and read from the file afterwards. The file is in a
private folder that is removed with the last reference to the source.
"""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import socket
import struct
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from typing import Any

import pyarrow as pa

from dml.base.ownership import FILE, own_file
from dml.data.escape_analysis import owned_row
from dml.data.schema import Schema, schema_of
from dml.errors import SourceError, worded
from dml.io.user.generator import GENERATED_ROWS, Generated, batches, row_of, schema_of_rows
from dml.plugins import DataSource, SourcePart
from dml.udfs.identity.function_fingerprint import local_identity

BROKEN = (EOFError, OSError, ValueError, AuthenticationError)
HANDSHAKE_S = 5
PAUSE_S = 0.05
# A socket's path has some hundred bytes at most.
LONGEST, SHORT = 90, "/tmp"  # noqa: S108 - a folder in it, private since mkdtemp makes it


class UnansweredError(Exception):
    """The process that should answer has ended, or is on another host."""


class ReadServer:
    """A server through which readers in other processes request more batches from one Spool.

    Readers need its address and its key. The server ends with the spool. The address is a socket in
    ``folder``, which must be private, so that no other user can connect. Each reader has its own
    thread; a silent reader times out after ``HANDSHAKE_S`` seconds and delays no other reader.
    """

    def __init__(self, asked: Spool, folder: str) -> None:
        self.key = os.urandom(32)
        if len(os.fsencode(folder)) > LONGEST:
            folder = tempfile.mkdtemp(prefix="dml-spool-", dir=SHORT)
            weakref.finalize(self, _removed, folder, os.getpid())
        self.address = os.path.join(folder, "ask")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.address)
        os.chmod(self.address, FILE)
        self._socket.listen(64)
        self._over = threading.Event()
        self._asked = weakref.ref(asked, lambda _: self.close())
        threading.Thread(target=self._work, name="dml-spool", daemon=True).start()

    def close(self) -> None:
        """Stop the server; a connection without a request wakes up the accepting thread."""
        self._over.set()
        with suppress(OSError), socket.socket(socket.AF_UNIX) as end:
            end.connect(self.address)

    def _work(self) -> None:
        with self._socket:
            while not self._over.is_set():
                try:
                    end, _ = self._socket.accept()
                except OSError:  # too many open files, for now
                    self._over.wait(PAUSE_S)
                    continue
                serving = threading.Thread(target=self._serve, args=(end,), daemon=True)
                try:
                    serving.start()
                except RuntimeError:  # too many threads, for now
                    end.close()

    def _serve(self, end: socket.socket) -> None:
        """Serve one reader: authentication, request, and response."""
        patience = struct.pack("ll", HANDSHAKE_S, 0)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        with suppress(*BROKEN), Connection(end.detach()) as reader:
            deliver_challenge(reader, self.key)
            answer_challenge(reader, self.key)
            number, asked = int(reader.recv_bytes()), self._asked()
            if asked is not None:
                try:
                    found: object = asked.answer(number)
                except Exception as error:  # noqa: BLE001 - raised in the process of the reader
                    found = error
                reader.send_bytes(_packed(found))


def _packed(found: object) -> bytes:
    """Pickle a result; if it cannot be unpickled, pickle a RuntimeError with the error's text."""
    try:
        data = pickle.dumps(found)
        pickle.loads(data)  # noqa: S301 - what was packed just now
    except BaseException as error:  # noqa: BLE001 - whatever a user's exception does when it is packed
        told = found if isinstance(found, BaseException) else error
        return pickle.dumps(RuntimeError(worded(told)))
    return data


def ask(address: Any, key: bytes, number: int) -> Any:
    """Return the answer to request ``number``; raise the server's exception or UnansweredError."""
    try:
        with Client(address, authkey=key) as desk:
            desk.send_bytes(b"%d" % number)
            found = pickle.loads(desk.recv_bytes())  # noqa: S301 - the sender knows the key
    except BROKEN as error:
        why = f"the process that has the iterator does not answer: {error!r}"
        raise UnansweredError(why) from error
    if isinstance(found, Exception):
        raise found
    return found


ONCE = "an iterator gives its rows once, and to nobody else"
FOLDER = "dml-spool-"


class Spool:
    """Batches of an iterator: pulled batches are in a file, the rest is pulled on demand.

    A pickled copy has the path of the file, and requests more batches from the original: a copy
    works on this host, as long as the original exists.
    """

    _asked: tuple[Any, bytes] | None = None
    _desk: ReadServer | None = None

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
        """Return the path of the file, and the address of the process that pulls more batches."""
        with self._asking:
            if self._asked is None and self._desk is None:
                self._must_own()
                self._desk = ReadServer(self, os.path.dirname(self._path))
        desk = self._desk
        asked = self._asked if desk is None else (desk.address, desk.key)
        state = {"schema": self.schema, "_path": self._path, "_places": list(self._places)}
        return {**state, "_asked": asked}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a reader, which neither pulls nor owns the file."""
        self.__dict__.update(state, _coming=None, _error=None)
        self._lock, self._asking = threading.Lock(), threading.Lock()

    def answer(self, number: int) -> list[tuple[int, int]]:
        """Return offset and size of each batch from ``number`` on, pulled if needed; [] at end."""
        if not self._has(number) and self._error is not None:
            raise self._error
        return self._places[number:]

    def batch(self, number: int) -> pa.RecordBatch | None:
        """Return batch ``number``; at the end, return None or raise the iterator's error."""
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
        """Pull until batch ``number`` is in the file; return False if the iterator ends first."""
        with self._lock:
            while len(self._places) <= number and self._coming is not None:
                self._pull(self._coming)
            if len(self._places) <= number and self._asked is not None:
                self._places += ask(*self._asked, len(self._places))
        return number < len(self._places)

    def _pull(self, coming: Iterator[pa.RecordBatch]) -> None:
        """Append the next batch to the file; a failed write ends the iteration with an error."""
        self._must_own()
        try:
            batch = next(coming, None)
        except Exception as error:  # noqa: BLE001 - raised for every reader that reaches its place
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
    """Remove ``folder`` if this process has the id ``owner``; a fork must not remove it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


class Spooled(DataSource):
    """A source over an iterator that cannot be rewound."""

    unnamed = ONCE

    def __init__(self, rows: Iterator[Any], schema: object, atom_rows: int | None) -> None:
        self.name = type(rows).__name__
        self.atom_rows = GENERATED_ROWS if atom_rows is None else atom_rows
        # copied now, since rows that are inspected for a schema are read again later
        made: Iterator[Mapping[str, Any]] = map(owned_row, map(row_of, rows))
        if schema is None:
            first, made = itertools.tee(made)
            schema = schema_of_rows(first, self.name)
            del first  # else tee would buffer every row
        self.columns = schema_of(schema)
        self.spool = Spool(made, self.columns, self.atom_rows)

    def schema(self) -> Schema:
        """Return the declared schema, or that of the first rows."""
        return self.columns

    def read(self, part: SourcePart, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Yield ``columns`` of every batch, from the file."""
        for number in itertools.count():
            batch = self.spool.batch(number)
            if batch is None:
                return
            yield batch.select(list(columns))


def iterated(
    rows: Iterable[Any], schema: object, *, nonce: bytes, atom_rows: int | None
) -> DataSource:
    """Build the source of an iterator or an iterable; raise SourceError for other objects."""
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise SourceError(
            f"from_iterable needs rows, got a {type(rows).__name__}",
            why="it is iterated for rows: dicts, or values of one column",
            try_="from_items([...]) for a list, from_generator(f) for a function",
        )
    made = iter(rows)
    if made is rows:
        return Spooled(made, schema, atom_rows)
    known = local_identity(AGAIN, nonce, type(rows).__name__)
    return Generated(rows.__iter__, known, schema, atom_rows)


AGAIN = "what an object gives when it is iterated can be told by no name"
