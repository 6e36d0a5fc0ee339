"""This file has ORC decoded in processes of their own, which are kept, and shared by threads.

The library that decodes ORC ends its process for some damaged files. What it ends here is a process
that does nothing else: who asked is told, and the next request gets a new one.
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

WORKER, READY = "dml.expr.sources.orc_worker", b"ready\n"
# Stripes decoded at a time: more processes would only take memory from what they decode.
MOST = 4
# A process that nobody asks any more ends at once; one that does not is stuck.
ENDING_S = 5.0
LAST_WORDS = 2000
# What ends a process from outside, whatever it is reading.
OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Answer = tuple[dict[str, Any], pa.Table]


class UndecodedError(Exception):
    """What was asked for cannot be had; why is its text."""


class EndedError(UndecodedError):
    """The process ended over it; ``outside`` says that something else ended it."""

    def __init__(self, code: int) -> None:
        by = signal.Signals(-code).name if code < 0 else f"status {code}"
        self.outside = -code in OUTSIDE
        super().__init__(f"the process that decodes ORC was ended by {by}")


class Child:
    """A process that decodes; SourceError where none can be started."""

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
                start_new_session=True,  # an interrupt is for the one who asked
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
        """What it says, and rows; UndecodedError if it says why not, or ends."""
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
        """The rows that come after what it says."""
        with pa.ipc.open_stream(self._from) as stream:
            return stream.read_all()

    def end(self) -> int:
        """End it, if it has not ended; the number that the system gives its end."""
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
        """Let go of what a copy of its owner has of it: it ends when its owner does."""
        self._to.raw.close()
        self._from.raw.close()
        self.process.returncode = 0  # which only its owner can know

    def _said(self) -> str:
        self._noise.seek(0)
        return self._noise.read().decode(errors="replace")[-LAST_WORDS:].strip()


class Children:
    """The processes of this one; threads take them in turn."""

    def __init__(self) -> None:
        self.all: list[Child] = []
        self.idle: list[Child] = []
        self._taken = 0
        self._changed = threading.Condition()

    @contextmanager
    def one(self, *, fresh: bool = False) -> Iterator[Child]:
        """One for this thread, ``fresh`` if it must not have read anything; kept unless it ends."""
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

    def _take(self, *, fresh: bool) -> Child:
        with self._changed:
            self._changed.wait_for(lambda: self._taken < MOST)
            self._taken += 1
            child = self.idle.pop() if self.idle else None
        try:
            if child is not None and fresh:
                self._end(child)
                child = None
            if child is None:
                child = Child()
                self.all.append(child)
        except BaseException:
            self._give_back(None)
            raise
        return child

    def _give_back(self, child: Child | None) -> None:
        with self._changed:
            self._taken -= 1
            if child is not None:
                self.idle.append(child)
            self._changed.notify()

    def _end(self, child: Child) -> None:
        child.end()
        self.all.remove(child)

    def close(self) -> None:
        """End those that nobody waits for."""
        with self._changed:
            while self.idle:
                self._end(self.idle.pop())

    def leave(self) -> None:
        """Have none: this process is a copy of the one that has them, and has other threads."""
        for child in self.all:
            child.leave()
        self.all, self.idle, self._taken = [], [], 0
        self._changed = threading.Condition()


CHILDREN = Children()
atexit.register(CHILDREN.close)
os.register_at_fork(after_in_child=CHILDREN.leave)


def answer(request: dict[str, Any]) -> Answer:
    """What a process says of a file, and rows of it. UndecodedError, or SourceError without one.

    A process that ends may have been hurt by a file that it read before: only one that has read
    nothing else is believed.
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
    """The error for a machine on which nothing can decode."""
    return SourceError(
        "ORC cannot be read here: the process that decodes it did not start",
        why=why,
        try_="a Python that may start itself, and a pyarrow with pyarrow.orc; or Parquet",
    )
