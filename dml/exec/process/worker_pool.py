"""A pool starts worker processes, and keeps idle ones for the next run."""

from __future__ import annotations

import atexit
import dataclasses
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Generic, TypeVar

from dml.errors import WorkerLostError, worded
from dml.exec.memory.memory_meter import descendants, end_session
from dml.exec.process.channel import Channel, MemoryNote, Message
from dml.exec.process.environment import Surroundings
from dml.exec.process.task_runner import Answer, SliceOrder
from dml.exec.scheduler.policy import Seq

IDLE_S = 15.0  # idle time after which a worker is ended
END_S = 1.0  # time that a worker has to clean up then, or at interpreter exit
ENDING_S = 600.0  # time that a worker has if it was given back in the middle of work
# Bytes of freed memory that the C library's allocator keeps, so that the kernel need not clear and
# map new pages for every large row (GNU's mallopt); an idle worker returns this memory, too.
REUSING = {"MALLOC_TRIM_THRESHOLD_": str(32 << 20), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
STOPPED_S = 30.0  # time after which a worker that a signal has stopped is killed
HEARD_S = 0.5  # interval of checks whether an awaited answer is still needed
# Time by which a call exceeds its limit before its worker is known to be unable to give it up.
STUCK_NS = 500_000_000


class UnwantedError(Exception):
    """Raised when an answer is no longer needed, while its worker is still working."""


class StuckError(Exception):
    """Raised when a call exceeds its time limit, and its worker cannot abandon it."""


class ChildProcess:
    """A process that serves this one, with a connection to it; it ends when this process does.

    The child runs ``module`` with the descriptors of its ends (messages, lifeline) and ``files``.
    """

    def __init__(self, module: str, files: Sequence[int], environment: dict[str, str]) -> None:
        self.idle_since = self.stood_s = 0.0
        with ExitStack() as undone, ExitStack() as theirs:
            ours, messages = (undone.enter_context(end) for end in socket.socketpair())
            self.lifeline, life = (undone.enter_context(end) for end in socket.socketpair())
            self.channel = Channel(ours)
            theirs.callback(messages.close)
            theirs.callback(life.close)
            given = (messages.fileno(), life.fileno(), *files)
            self.process = _started(module, given, environment)
            undone.pop_all()

    def ready(self) -> bool:
        """Return whether the process is alive and can take on other work."""
        return self.process.poll() is None

    @property
    def ending(self) -> bool:
        """Whether the process is alive and still finishing its former work."""
        return False

    @property
    def stays(self) -> bool:
        """Whether the process is kept, however long it has been idle."""
        return False

    def look(self) -> None:
        """Receive the messages that the process has sent while idle."""

    def halted(self, seconds: float) -> bool:
        """Return whether a signal has suspended the process; call this every ``seconds`` seconds.

        Kill a process that stays suspended for more than ``STOPPED_S`` seconds, and raise OSError.
        """
        found = _stopped(self.process.pid)
        self.stood_s = self.stood_s + seconds if found else 0.0
        if self.stood_s > STOPPED_S:
            self.process.kill()
            self.process.wait()
            raise OSError("somebody had stopped it, and it did not go on")
        return found

    def receive(self, channel: Channel | None = None) -> Any:
        """Receive a message, on ``channel`` if it is not that of messages.

        Raise OSError if the process stays suspended in the middle of it.
        """
        end, self.stood_s = channel or self.channel, 0.0

        def await_part() -> None:
            while not end.heard(HEARD_S):
                self.halted(HEARD_S)

        return end.receive(await_part)

    def ended(self, seconds: float) -> int:
        """Wait up to ``seconds`` for the process, then kill it; return its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def close(self, seconds: float = 0.0) -> None:
        """End the process and its children; the process may clean up for ``seconds``."""
        begun = descendants(self.process.pid)
        self.channel.close()
        self.ended(seconds)
        end_session(self.process.pid, begun)
        self.let_go()

    def abandon(self) -> None:
        """Forget the process, in a forked child of this one: only the parent may wait for it."""
        self.process.returncode = 0
        self.let_go()

    def let_go(self) -> None:
        """Close this process's ends of the connections."""
        self.channel.close()
        self.lifeline.close()


class Worker(ChildProcess):
    """A worker process; ``place`` is the unit that it was reading when it was lost, or -1.

    ``parked`` are the tasks, by run and place, whose other partitions only this worker can make
    without repeating calls; the value is True if no call may be repeated. A ``spent`` worker is to
    end once there are none. ``classes`` are those whose instances it may have.
    """

    _names = itertools.count()

    def __init__(self) -> None:
        self.name = f"worker-{next(self._names)}"
        self.used, self.jobs, self.classes = False, set[str](), set[bytes]()
        self.place, self.number = -1, 0
        self.parked, self.spent = dict[tuple[str, Seq], bool](), False
        with ExitStack() as undone:
            self.note, self.due = MemoryNote(), MemoryNote()
            undone.callback(self.note.close)
            undone.callback(self.due.close)
            environment = {**REUSING, **Surroundings.now().environment}
            super().__init__(
                "dml.exec.process.worker", (self.note.file, self.due.file), environment
            )
            undone.pop_all()
        ALL.add(self)

    def do(self, order: SliceOrder, job: Message, unwanted: Callable[[], bool]) -> Answer:
        """Run an order, and return the worker's answer; after any exception the worker is unusable.

        Raise WorkerLostError if the process dies, or is killed because a signal suspended it for
        half a minute; raise UnwantedError if ``unwanted()`` is true at two checks, unless a task of
        another run is parked in the process whose calls must not be repeated; raise StuckError if a
        call exceeds its time limit, and holds Python's lock so that nothing else can run.
        """
        self.note.write(-1)
        self.due.write(-1)
        try:
            if order.name not in self.jobs:
                self.jobs.add(order.name)
                self.channel.post(job)
            self.number += 1
            self.channel.send(dataclasses.replace(order, number=self.number))
            self._await(unwanted, order.name)
            number, answer = self.receive()
        except (EOFError, OSError) as error:
            raise self._lost(error) from error
        if number != self.number:
            raise self._lost(OSError(f"order {number} was answered, and not {self.number}"))
        found: Answer = answer
        self.spent |= found.spent
        if found.parcel is None or found.parcel.outcome.done:
            self.parked.pop((order.name, order.run.seq), None)
        else:
            self.parked[order.name, order.run.seq] = order.once
        return found

    def _await(self, unwanted: Callable[[], bool], name: str) -> None:
        patience, self.stood_s = 2, 0.0
        alone = all(run == name for (run, _), once in self.parked.items() if once)
        while not self.channel.heard(HEARD_S):
            patience -= alone and unwanted()
            if not patience:
                raise UnwantedError
            due = self.due.read()
            if not self.halted(HEARD_S) and 0 < due < time.monotonic_ns() - STUCK_NS:
                self.place = self.note.read()
                self.process.kill()
                raise StuckError

    def forget(self, name: str) -> bool:
        """Tell the worker to release the run ``name``; return False if the process is gone."""
        self.used = True
        self.jobs.discard(name)
        self.parked = {each: once for each, once in self.parked.items() if each[0] != name}
        try:
            self.channel.send(("close", name))
        except OSError:
            return False
        return self.process.poll() is None

    def _lost(self, error: Exception) -> WorkerLostError:
        self.place = self.note.read()
        self.channel.close()  # if the worker is alive, it ends now
        code = self.ended(END_S)
        self.close()
        why = f"killed by signal {-code}" if code < 0 else f"it ended with code {code}"
        why = f"{why} ({error})" if str(error) else why
        return WorkerLostError(
            "a worker process died",
            at=f"process {self.process.pid}",
            why=why,
            try_="a larger memory_limit= or fewer num_workers= if memory ran out; the function"
            " alone on those rows if it is to blame",
        )

    def let_go(self) -> None:
        """Close this process's ends of the connections, and the memory note."""
        super().let_go()
        self.note.close()
        self.due.close()


def _stopped(pid: int) -> bool:
    """Return whether a signal has suspended process ``pid``; False where that is unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except (OSError, IndexError):
        return False


ALL: weakref.WeakSet[Worker] = weakref.WeakSet()


def _started(
    module: str, files: tuple[int, ...], environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process of this interpreter that runs ``module``, with the same module path."""
    here = Surroundings.now()
    optimized = ["-" + "O" * sys.flags.optimize] if sys.flags.optimize else []
    return subprocess.Popen(  # noqa: S603 (this interpreter, no words of others)
        [sys.executable, "-P", *optimized, "-m", module, *map(str, files)],
        pass_fds=files,
        stdin=subprocess.DEVNULL,
        env={**environment, "PYTHONPATH": os.pathsep.join(here.path)},
        start_new_session=True,  # Ctrl-C in a terminal is the parent's alone
    )


One = TypeVar("One", bound=ChildProcess)


class ProcessPool(Generic[One]):
    """Processes that wait for the next run, since starting one takes a third of a second.

    ``start`` makes a process; ``every`` holds all that exist, idle or in use. ``give_back`` takes
    no lock and starts no thread: the garbage collector may call it at any point of this code.
    """

    def __init__(self, start: Callable[[], One], every: weakref.WeakSet[One]) -> None:
        self.start, self.every = start, every
        self._idle = list[One]()
        self._watched = False
        self._lock = threading.Lock()  # guards searches of idle workers

    def take(self, *, fresh: bool = False, liked: Callable[[One], int] = lambda _: 0) -> One:
        """Return a live worker, a new one if ``fresh``; raise WorkerLostError if none starts.

        Idle workers that are ``liked`` most come first; those that finish former work stay idle.
        """
        worker = (None if fresh else self._ready(liked)) or self._new()
        with self._lock:
            if not self._watched:
                with suppress(RuntimeError):  # no thread can be started: the next call tries again
                    threading.Thread(target=self._watch, name="dml-pool", daemon=True).start()
                    self._watched = True
        return worker

    def has(self, wanted: Callable[[One], bool]) -> bool:
        """Return whether an idle worker is ``wanted``."""
        return any(map(wanted, list(self._idle)))

    def _ready(self, liked: Callable[[One], int]) -> One | None:
        later = list[One]()
        try:
            while (worker := self._popped(liked)) is not None:
                if worker.ready():
                    return worker
                if worker.ending:
                    later.append(worker)
                else:
                    worker.close()
        finally:
            self._idle[:0] = reversed(later)
        return None

    def _popped(self, liked: Callable[[One], int]) -> One | None:
        with self._lock:
            waiting = list(self._idle)
            if not waiting:
                return None
            order = [(liked(worker), number) for number, worker in enumerate(waiting)]
            found = waiting[max(order)[1]]
            self._idle.remove(found)
        return found

    def _removed(self, wanted: Callable[[One], bool]) -> list[One]:
        """Remove and return the idle workers that are ``wanted``."""
        with self._lock:
            found = [worker for worker in list(self._idle) if wanted(worker)]
            for worker in found:
                self._idle.remove(worker)
        return found

    def _new(self) -> One:
        try:
            return self.start()
        except OSError as error:
            raise WorkerLostError(
                "a worker process could not be started",
                why=worded(error),
                try_="fewer num_workers=; see the limits on processes and open files (ulimit -a)",
            ) from error

    def give_back(self, worker: One) -> None:
        """Return an idle worker to the pool."""
        worker.idle_since = time.monotonic()
        self._idle.append(worker)

    def close(self) -> None:
        """End all idle workers."""
        end(self._removed(lambda _: True))

    def forked(self) -> None:
        """Reset the pool in a forked child, and release the parent's workers there."""
        self._idle, self._watched, self._lock = [], False, threading.Lock()
        for worker in list(self.every):
            worker.abandon()
        self.every.clear()

    def _watch(self) -> None:
        """End workers that were idle for too long; return when no workers are left."""
        going = False
        while not going:
            time.sleep(IDLE_S / 4)
            for each in list(self._idle):
                each.look()
            going = self._swept()

    def _swept(self) -> bool:
        """End workers that were idle for too long; return True if no others exist at all."""
        old = self._removed(_late)
        with self._lock:
            self._watched = len(self.every) > len(old)
            going = not self._watched
        end(old)
        return going


def _late(worker: ChildProcess) -> bool:
    """Return whether a worker was idle for so long that it must be ended."""
    idle_s = time.monotonic() - worker.idle_since
    return idle_s >= (ENDING_S if worker.ending else IDLE_S) and not worker.stays


def end(workers: Sequence[ChildProcess]) -> None:
    """End processes, all at the same time, within ``END_S`` seconds."""
    for worker in workers:
        worker.channel.close()  # which ends the process if it is idle
    until = time.monotonic() + END_S
    for worker in workers:
        with suppress(OSError):
            worker.close(max(0.0, until - time.monotonic()))


POOL = ProcessPool(Worker, ALL)
atexit.register(POOL.close)
os.register_at_fork(after_in_child=POOL.forked)
