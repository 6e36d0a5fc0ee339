"""ORC is decoded in a pool of worker processes, which are reused and shared by threads.

The library that decodes ORC terminates its process for some damaged files. In this design it
terminates a worker process only: the caller gets an error, and the next request a new worker.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from dml.errors import SourceError

WORKER, READY = "dml.io.orc.orc_worker", b"ready\n"
# Stripes decoded at a time: more processes would only use memory that decoding needs.
MOST = 4
# Seconds that a worker may take to end after its input is closed; then it is killed.
ENDING_S = 5.0
LAST_WORDS = 2000
# Signals that end a process from outside, whatever it reads.
OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Answer = tuple[dict[str, Any], pa.Table]


class UndecodedError(Exception):
    """The request failed; the message gives the reason."""


class EndedError(UndecodedError):
    """The worker ended during the request; ``outside`` is True if an external signal ended it."""

    def __init__(self, code: int) -> None:
        by = signal.Signals(-code).name if code < 0 else f"status {code}"
        self.outside = -code in OUTSIDE
        super().__init__(f"the process that decodes ORC was ended by {by}")


class OrcProcess:
    """A worker process that decodes ORC; SourceError if it cannot be started."""

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
            said = self._said()
            ended = EndedError(self.end())
            raise not_started(said or str(ended))

    def answer(self, request: dict[str, Any]) -> Answer:
        """Send a request and return metadata and rows; UndecodedError on an error or an exit."""
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
        """Close the inherited pipes in a forked process: the worker ends with its parent."""
        self._to.raw.close()
        self._from.raw.close()
        self.process.returncode = 0  # only the parent can know the real one

    def _said(self) -> str:
        self._noise.seek(0)
        return self._noise.read().decode(errors="replace")[-LAST_WORDS:].strip()


class Children:
    """The pool of worker processes of this process; threads take workers in turn."""

    def __init__(self) -> None:
        self.all: list[OrcProcess] = []
        self.idle: list[OrcProcess] = []
        self._taken = 0
        self._changed = threading.Condition()

    @contextmanager
    def one(self, *, fresh: bool = False) -> Iterator[OrcProcess]:
        """Lend a worker, an unused one if ``fresh``; it returns to the pool unless it ended."""
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
    """Return metadata and rows from a worker; UndecodedError, or SourceError if none starts.

    A worker that ends may have been corrupted by a file that it read before: an exit is only
    reported as an error of this file if the worker had read no other file.
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
    """Build the error for a machine on which no worker can be started."""
    return SourceError(
        "ORC cannot be read here: the process that decodes it did not start",
        why=why,
        try_="a Python that may start itself, and a pyarrow with pyarrow.orc; or Parquet",
    )
