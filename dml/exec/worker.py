"""This file is a worker process: ``python -m dml.exec.worker`` takes orders from its parent.

It is started afresh, never forked, and never imports the main module of whoever started it:
functions come by value. It ends when its parent is gone, whatever it is doing at the time.
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
from functools import partial
from typing import Any

from dml.exec.channel import Channel, Note, Sheet
from dml.exec.desk import Desk, Order
from dml.exec.gauge import GAUGE
from dml.exec.memory import LIBRARY, give_back, resident_bytes
from dml.exec.surroundings import Surroundings

# Where a worker that is never idle has grown by so much, it looks for garbage at once.
GARBAGE_BYTES = 32 << 20
# An idle worker hands back freed memory that its allocators keep.
IDLE_S = 0.05
# Of Linux's ``prctl``: the signal that a process gets when its parent ends.
DIES_WITH_PARENT = 1


class Service:
    """What a worker does between two messages."""

    def __init__(self, channel: Channel, note: Note) -> None:
        self.channel, self.desk = channel, Desk(note.write)
        self.started_ns, self.jobs = time.time_ns(), 0
        self.garbage = False  # a job was closed, whose objects may refer to each other
        self.clean_bytes = 0  # in memory, after garbage was collected last

    def run(self) -> None:
        """Answer every order until the parent hangs up."""
        while True:
            if not self.channel.heard(IDLE_S):
                self._rest()
                self.channel.heard(-1)
            try:
                message: Any = self.channel.receive()
                if not self._heeded(message):
                    return
            except (EOFError, OSError):
                return

    def _rest(self) -> None:
        """Give back the memory of what is closed; looking for that takes 20 ms."""
        self._collect()
        give_back()

    def _collect(self) -> None:
        if self.garbage:
            gc.collect()
            self.garbage, self.clean_bytes = False, resident_bytes() or 0

    def _heeded(self, message: Any) -> bool:
        """Do what the message says; False if this process can be of no more use."""
        if isinstance(message, Order):
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
        """Take a job; False where a worker that is new might do better than one with a past."""
        if self.jobs and self._stale():
            return False
        self.jobs += 1
        surroundings.enter()
        return self.desk.open(name, job, buffers) or self.jobs == 1

    def _stale(self) -> bool:
        """True if a module that is loaded here, of the user's own, has been edited since."""
        return any(_edited_ns(module) > self.started_ns for module in list(sys.modules.values()))


def _edited_ns(module: Any) -> int:
    """When the file of a module was written last; 0 for what is installed."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or file.startswith((sys.prefix, sys.base_prefix)):
        return 0
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0


def flush() -> None:
    """What a function has printed is seen when its slice ends, as if it were printed here."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # there is none, or nobody reads it
            continue


def live_with(lifeline: int) -> None:
    """Have the kernel end this process when nobody holds the other end of ``lifeline`` any more.

    It needs no cooperation of ours, so that a call into C that never returns ends as well.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(lifeline, select.POLLHUP)
    if poll.poll(0):
        os._exit(1)  # it was over before we listened


def _let_go(channel: Channel, note: Note, lifeline: int, serving: int) -> None:
    """In a process that a function has forked: it speaks for nobody, and ends with this one."""
    channel.close()
    note.close()
    os.close(lifeline)
    # who was forked by another thread would end with that
    if hasattr(LIBRARY, "prctl") and threading.get_ident() == serving:
        LIBRARY.prctl(DIES_WITH_PARENT, signal.SIGKILL)


def main() -> None:
    """Serve the connection whose descriptors are the arguments: messages, lifeline, note."""
    messages, lifeline, note = map(int, sys.argv[1:4])
    live_with(lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    for file in (messages, lifeline, note):
        os.set_inheritable(file, False)  # noqa: FBT003 (positional only)
    del sys.argv[1:]
    GAUGE.own = True
    serving = threading.get_ident()
    channel, left = Channel(socket.socket(fileno=messages)), Note(note)
    os.register_at_fork(after_in_child=partial(_let_go, channel, left, lifeline, serving))
    Service(channel, left).run()


if __name__ == "__main__":
    main()
