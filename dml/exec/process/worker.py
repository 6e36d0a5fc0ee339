"""The main program of a worker process, started as ``python -m dml.exec.process.worker``.

A worker is started afresh, never forked, and never imports the main module of its parent: functions
are sent by value. It ends when its parent is gone, whatever it is doing at the time.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any

from dml.exec.memory.memory_meter import LIBRARY, give_back, resident_bytes
from dml.exec.memory.slice_gauge import GAUGE
from dml.exec.process.channel import Channel, MemoryNote, Sheet
from dml.exec.process.environment import Surroundings
from dml.exec.process.task_runner import SliceOrder, TaskRunner
from dml.udfs.calling.time_limit import GIVEN_UP

# A worker that is never idle collects garbage once its memory has grown by so many bytes.
GARBAGE_BYTES = 32 << 20
# After so many idle seconds, a worker returns freed memory that its allocators hold.
IDLE_S = 0.05
# Of Linux's ``prctl``: the signal that a process gets when its parent ends.
DIES_WITH_PARENT = 1


class WorkerService:
    """The loop of a worker: receives messages, runs orders, frees memory when idle."""

    def __init__(self, channel: Channel, note: MemoryNote) -> None:
        self.channel, self.desk = channel, TaskRunner(note.write)
        self.started_ns, self.jobs = time.time_ns(), 0
        self.garbage = False  # a job was closed, whose objects may refer to each other
        self.clean_bytes = 0  # resident memory after the last garbage collection

    def run(self) -> None:
        """Answer every order until the parent closes the connection."""
        while True:
            if not self.channel.heard(IDLE_S):
                self._collect()  # takes 20 ms, so it waits until the worker is idle
                give_back()
                self.channel.heard(-1)
            try:
                message: Any = self.channel.receive()
                if not self._heeded(message):
                    return
            except (EOFError, OSError):
                return

    def _collect(self) -> None:
        """Free the memory of closed jobs."""
        if self.garbage:
            gc.collect()
            self.garbage, self.clean_bytes = False, resident_bytes() or 0

    def _heeded(self, message: Any) -> bool:
        """Act on ``message``; return False if this process cannot be used any more."""
        if isinstance(message, SliceOrder):
            sheet = Sheet()
            answer = self.desk.do(message, sheet.keep)
            flush()
            self.channel.send((message.number, answer), sheet)
        elif message[0] == "job":
            return self._opened(*message[1:])
        else:
            self.desk.close(message[1])
            self.garbage = True
            if (resident_bytes() or 0) > self.clean_bytes + GARBAGE_BYTES:
                self._collect()
        return True

    def _opened(self, surroundings: Surroundings, name: str, job: bytes, buffers: Any) -> bool:
        """Load a job; return False if it fails but may succeed in a new worker."""
        if self.jobs and self._stale():
            return False
        self.jobs += 1
        surroundings.enter()
        return self.desk.open(name, job, buffers) or self.jobs == 1

    def _stale(self) -> bool:
        """Return whether a loaded module of the user has been edited since the start."""
        return any(_edited_ns(module) > self.started_ns for module in list(sys.modules.values()))


def _edited_ns(module: Any) -> int:
    """Return when the module's file was last written, in ns since 1970; 0 for installed modules."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or file.startswith((sys.prefix, sys.base_prefix)):
        return 0
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0


def flush() -> None:
    """Flush standard streams, so that a function's output appears when its slice ends."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # there is no stream, or it is closed
            stream.flush()


def begun() -> list[int]:
    """Begin to serve the parent, and return the descriptors in ``sys.argv`` of connections to it.

    The kernel ends this process, even within C, when the other end of the second one is closed.
    """
    files = list(map(int, sys.argv[1:]))
    _live_with(files[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    for file in files:
        os.set_inheritable(file, False)  # noqa: FBT003 (positional only)
    del sys.argv[1:]
    return files


def _live_with(lifeline: int) -> None:
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(lifeline, select.POLLHUP)
    if poll.poll(0):
        os._exit(1)  # the parent ended before this call


def _let_go(channel: Channel, note: MemoryNote, lifeline: int, serving: int) -> None:
    """Close the connection in a forked child, and let the child end with this process."""
    channel.close()
    note.close()
    os.close(lifeline)
    # a process forked by another thread would end with that thread
    if hasattr(LIBRARY, "prctl") and threading.get_ident() == serving:
        LIBRARY.prctl(DIES_WITH_PARENT, signal.SIGKILL)


def main() -> None:
    """Serve the parent, by descriptors in ``sys.argv``: a socket, a lifeline, two memory notes."""
    messages, lifeline, note, due = begun()
    GAUGE.own, GIVEN_UP.most, GIVEN_UP.due = True, None, MemoryNote(due).write
    serving = threading.get_ident()
    channel, left = Channel(socket.socket(fileno=messages)), MemoryNote(note)
    os.register_at_fork(after_in_child=partial(_let_go, channel, left, lifeline, serving))
    WorkerService(channel, left).run()


if __name__ == "__main__":
    main()
