"""ORC files are read by stripe: each is a unit, decoded as a whole in another process.

The library that decodes ORC terminates its process for some damaged files. So it runs in a pool of
worker processes that threads share: if a worker is terminated, the caller gets an error, and the
next request a new worker.
"""

from __future__ import annotations

import atexit
import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, cast

import pyarrow as pa

from dml.base.cached_property import cached_property
from dml.base.fingerprint import digest
from dml.errors import SourceError
from dml.expr.node import op
from dml.io.files.file_schemas import TypedFile, TypedFiles, of_one_schema
from dml.io.files.files import (
    File,
    FilePart,
    FileSource,
    chosen,
    listed,
    numbered_parts,
    unreadable,
)
from dml.io.files.paths import FileKind, Paths
from dml.io.source import Unit

KIND = FileKind("ORC", (".orc",))
MAGIC = b"ORC"
# Copies of a stripe: stored and decoded in the worker process, and received from it.
COPIES = 3
AGAIN = "copy or write the file again"
WORKER, READY = "dml.io.orc.orc_worker", b"ready\n"
# Stripes decoded at a time: more processes would only use memory that decoding needs.
MOST = 4
# Seconds that a worker may take to end after its input is closed; then it is killed.
ENDING_S = 5.0
LAST_WORDS = 2000
# Signals that end a process from outside, whatever it reads.
OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Answer = tuple[dict[str, Any], pa.Table]


@dataclasses.dataclass(frozen=True, eq=False)
class OrcFile(TypedFile):
    """An ORC file whose tail was read: row counts of the stripes, and average bytes of a row."""

    stripes: tuple[int, ...]
    width: float


@dataclasses.dataclass(frozen=True, slots=True)
class Stripe(FilePart):
    """A stripe with at least one row."""

    file: OrcFile
    word: ClassVar[str] = "stripe"


@op
class OrcSource(FileSource):
    """Rows of ORC files in order of file name, stripe, row.

    A unit is a stripe, divided into atoms of equally many rows (the last may have fewer).
    """

    files: TypedFiles[OrcFile]
    columns: tuple[str, ...] | None = None
    atom_rows: int | None = None
    word: ClassVar[str] = "orc"

    @cached_property
    def parts(self) -> tuple[Stripe, ...]:
        """The stripes that have rows."""
        found: list[Stripe] = []
        for file in self.files.files:
            sizes = ((rows, int(rows * file.width)) for rows in file.stripes)
            found += numbered_parts(Stripe, file, sizes, self.atom_rows)
        return tuple(found)

    def decoded(self, index: int, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Return ``columns`` of a stripe, decoded by a worker process and validated by Arrow."""
        part = self.parts[index]
        at = f"{part.file.path}, rows {part.first_row} to {part.first_row + part.rows - 1}"
        what = f"stripe {part.number} of {part.file.name}"
        found = _answer(part.file, what, at, stripe=part.number, columns=columns)[1]
        try:
            found.validate(full=True)
        except pa.ArrowException as error:
            raise _damaged(what, at, error) from None
        types = [part.file.arrow_schema.field(name).type for name in columns]
        batches = found.to_batches()
        if found.num_rows != part.rows or found.schema.types != types or len(batches) != 1:
            raise _damaged(what, at, f"it has {found.num_rows} rows of {found.schema.types}")
        return batches[0]

    def likeness(self) -> bytes:
        """Return a digest of the sizes of the files and row counts of their stripes."""
        return digest("stripes", [(file.size, file.stripes) for file in self.files.files])

    def working_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Estimate a whole stripe: stored, decoded in the worker, and received."""
        return COPIES * self.parts[unit.index].nbytes


def _answer(file: File, what: str, at: str, **request: Any) -> Answer:
    """Send a request about ``file`` to a worker process, and return the answer.

    Raise SourceError, with object ``what`` and location ``at``, if the file cannot be read.
    """
    try:
        return answer({"path": file.path, **request})
    except UndecodedError as error:
        file.check_unchanged()
        if isinstance(error, EndedError) and error.outside:
            raise SourceError(
                f"{what} could not be read",
                at=at,
                why=f"{error}, from outside; memory may have run out",
                try_="again, with more memory, or files of smaller stripes",
            ) from None
        raise _damaged(what, at, error) from None


def _damaged(what: str, at: str, why: object) -> SourceError:
    return SourceError(f"{what} is damaged", at=at, why=str(why), try_=AGAIN)


def _opened(file: File) -> OrcFile:
    """Read the tail of a file; raise SourceError for a damaged file or another format."""
    try:
        head = file.fetch([(0, len(MAGIC))])[0]
    except OSError as error:
        raise unreadable(file.path, error) from None
    if head != MAGIC:
        raise SourceError(
            f"{file.path} is not an ORC file",
            why=f"it begins with {head!r}, ORC files begin with {MAGIC!r}",
            try_="the reader of its own format",
        )
    said, none = _answer(file, file.path, "")
    rows = tuple(said["rows"])
    own = (file.path, file.name, file.size, file.mtime_ns, none.schema)
    return OrcFile(*own, rows, said["nbytes"] / max(1, sum(rows)))


def read_orc(
    paths: Paths,
    columns: Iterable[str] | None = None,
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> OrcSource:
    """Read rows of ORC files: a file, a folder, a pattern, or a list of these, sorted by name.

    Footers are read now, stripes as a whole on demand, both in a separate process: the library that
    reads ORC terminates its process for some damaged files. At most four of these processes are
    started; each takes half a second to start and some 70 MB, and ends with this process.

    Raise SourceError for files that are absent, damaged, of differing schemas, or in a store;
    SchemaError for an absent column.
    """
    root, plain, given = listed(paths, KIND, storage_options)
    if plain[0].remote is not None:
        raise SourceError(
            "ORC files cannot be read out of a store",
            at=plain[0].path,
            why="the process that decodes them opens files of this machine alone",
            try_="a copy in a folder, or Parquet files",
        )
    files: TypedFiles[OrcFile] = TypedFiles(root, of_one_schema(map(_opened, plain)), given)
    return OrcSource(files, chosen(columns, "read_orc"), atom_rows)


# ---------------------------------------------------------------------------- the worker processes


class UndecodedError(Exception):
    """A worker could not fulfil a request; the message gives the reason."""


class EndedError(UndecodedError):
    """The worker ended during the request; ``outside`` is True if an external signal ended it."""

    def __init__(self, code: int) -> None:
        by = signal.Signals(-code).name if code < 0 else f"status {code}"
        self.outside = -code in OUTSIDE
        super().__init__(f"the process that decodes ORC was ended by {by}")


class OrcProcess:
    """A worker process that decodes ORC; ``fresh`` is True until its first request.

    Raise SourceError if the process cannot be started.
    """

    def __init__(self) -> None:
        self.fresh = True
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process is
        root = str(Path(__file__).resolve().parents[3])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            self.process = subprocess.Popen(  # noqa: S603 - this interpreter
                [sys.executable or "python", "-P", "-m", WORKER],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._noise,
                start_new_session=True,  # so that an interrupt reaches only the parent
            )
        except OSError as error:
            self._noise.close()
            raise not_started(str(error)) from None
        self._to = cast("io.BufferedWriter", self.process.stdin)
        self._from = cast("io.BufferedReader", self.process.stdout)
        if self._from.readline() != READY:
            said = self._last_words()
            ended = EndedError(self.end())
            raise not_started(said or str(ended))

    def answer(self, request: dict[str, Any]) -> Answer:
        """Send a request, and return the metadata and the rows of the answer.

        Raise UndecodedError if the worker reports an error, EndedError if it exits.
        """
        self.fresh = False
        try:
            self._to.write(json.dumps(request).encode() + b"\n")
            self._to.flush()
            said = json.loads(self._from.readline())
            rows = None if "error" in said else self._rows()
        except (OSError, ValueError, pa.ArrowException):
            raise EndedError(self.end()) from None
        if rows is None:
            raise UndecodedError(said["error"])
        return said, rows

    def _rows(self) -> pa.Table:
        """Read the rows that follow the metadata."""
        with pa.ipc.open_stream(self._from) as stream:
            return stream.read_all()

    def end(self) -> int:
        """End the process if it still runs, and return its exit code."""
        with suppress(OSError):
            self._to.close()
        try:
            code = self.process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._from.close()
        self._noise.close()
        return code

    def leave(self) -> None:
        """Close the inherited pipes in a forked process; the worker belongs to the parent."""
        self._to.raw.close()
        self._from.raw.close()
        self.process.returncode = 0  # only the parent can know the real one

    def _last_words(self) -> str:
        self._noise.seek(0)
        return self._noise.read().decode(errors="replace")[-LAST_WORDS:].strip()


class Children:
    """The pool of ORC worker processes of this process; a worker serves one thread at a time."""

    def __init__(self) -> None:
        self.all: list[OrcProcess] = []
        self.idle: list[OrcProcess] = []
        self._taken = 0
        self._changed = threading.Condition()

    @contextmanager
    def one(self, *, fresh: bool = False) -> Iterator[OrcProcess]:
        """Lend a worker, a new one if ``fresh``; take it back into the pool unless it ended."""
        child = self._take(fresh=fresh)
        keep = False
        try:
            yield child
            keep = True
        except UndecodedError as error:
            keep = not isinstance(error, EndedError)
            raise
        finally:
            self._give_back(child if keep else None)
            if not keep:
                self._end(child)

    def _take(self, *, fresh: bool) -> OrcProcess:
        with self._changed:
            self._changed.wait_for(lambda: self._taken < MOST)
            self._taken += 1
            child = self.idle.pop() if self.idle else None
        try:
            if child is not None and fresh:
                self._end(child)
                child = None
            if child is None:
                child = OrcProcess()
                self.all.append(child)
        except BaseException:
            self._give_back(None)
            raise
        return child

    def _give_back(self, child: OrcProcess | None) -> None:
        with self._changed:
            self._taken -= 1
            if child is not None:
                self.idle.append(child)
            self._changed.notify()

    def _end(self, child: OrcProcess) -> None:
        child.end()
        self.all.remove(child)

    def close(self) -> None:
        """End all idle workers."""
        with self._changed:
            while self.idle:
                self._end(self.idle.pop())

    def leave(self) -> None:
        """Forget all workers after a fork: they belong to the parent, which has other threads."""
        for child in self.all:
            child.leave()
        self.all, self.idle, self._taken = [], [], 0
        self._changed = threading.Condition()


CHILDREN = Children()
atexit.register(CHILDREN.close)
os.register_at_fork(after_in_child=CHILDREN.leave)


def answer(request: dict[str, Any]) -> Answer:
    """Return the metadata and the rows that a worker sends for ``request``.

    Raise UndecodedError if decoding fails, SourceError if no worker starts. If a worker exits, an
    earlier request may have corrupted it, so the request is sent once more, to a new worker. If a
    new worker exits, raise EndedError.
    """
    fresh = True
    try:
        with CHILDREN.one() as child:
            fresh = child.fresh
            return child.answer(request)
    except EndedError:
        if fresh:
            raise
    with CHILDREN.one(fresh=True) as child:
        return child.answer(request)


def not_started(why: str) -> SourceError:
    """Build the SourceError for a machine on which no worker process can be started."""
    return SourceError(
        "ORC cannot be read here: the process that decodes it did not start",
        why=why,
        try_="a Python that may start itself, and a pyarrow with pyarrow.orc; or Parquet",
    )
