"""Functions that never return, and a clock by which exactly their calls exceed the time limit."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dml.udfs.calling import time_limit

TIMEOUT_S = 60.0  # no call of a test takes so long, however busy the machine is
MOST_S = 60.0  # after which a test gives up
RELEASED = threading.Event()  # set to let the hanging calls of this process return


class PatientClock:
    """Says that a call takes too long once it has said so itself, and never before."""

    def __init__(self) -> None:
        self.hanging = set[threading.Thread]()

    def __call__(self, helper: time_limit.CallThread, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not helper.done.acquire(timeout=0.002):
            if helper.thread in self.hanging or time.monotonic() > until:
                return False
        return True


def patient() -> PatientClock:
    """Return the patient clock of this process, set as the one by which calls are given up."""
    if not isinstance(time_limit.answered, PatientClock):
        time_limit.answered = PatientClock()
    return time_limit.answered


def hang() -> None:
    """Hang until ``RELEASED`` is set, as a call that takes too long."""
    if not RELEASED.is_set():
        patient().hanging.add(threading.current_thread())
        RELEASED.wait()


class Hanging:
    """A function of rows that notes its calls in a folder, and hangs for some ids.

    Unpickling it in a worker sets the patient clock there.
    """

    def __init__(self, folder: Path, ids: set[int], *, raises: bool = False) -> None:
        self.folder, self.ids, self.raises = str(folder), ids, raises

    def __setstate__(self, state: dict[str, Any]) -> None:
        patient()
        self.__dict__.update(state)

    def look(self, number: int) -> None:
        """Note a call for row ``number``; hang, or raise, if it is one of those."""
        with open(f"{self.folder}/calls", "a", encoding="ascii") as file:
            file.write(f"{number} {os.getpid()}\n")
        if number in self.ids and self.raises:
            raise LookupError(number)
        if number in self.ids:
            hang()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        self.look(row["id"])
        return {"id": row["id"], "double": row["id"] * 2}


def calls(folder: Path) -> list[tuple[int, int]]:
    """Return the row and the process of each noted call, and forget them."""
    noted = folder / "calls"
    lines = noted.read_text(encoding="ascii").splitlines() if noted.exists() else []
    with suppress(FileNotFoundError):
        noted.unlink()
    return [(int(number), int(pid)) for number, pid in map(str.split, lines)]


def eventually(true: Callable[[], bool]) -> bool:
    """Return whether ``true`` becomes true within the time after which a test gives up."""
    until = time.monotonic() + MOST_S
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def gone(pid: int) -> bool:
    """Return whether no process ``pid`` is alive."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def threads() -> list[threading.Thread]:
    """Return the threads of this process that make calls for others."""
    return [each for each in threading.enumerate() if each.name == "dml-call"]


@contextmanager
def only_hanging_calls_are_late() -> Iterator[None]:
    """The clock of this process is patient; in the end hanging calls return, and their threads end.

    Threads of other tests are left out.
    """
    patient()
    before = set(threads())
    yield
    RELEASED.set()
    assert eventually(lambda: before.issuperset(threads()))
    RELEASED.clear()
