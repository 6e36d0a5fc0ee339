"""Functions that misbehave at one row, where in a pipeline they are, and how a run may end."""

from __future__ import annotations

import ctypes
import dataclasses
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import dml
from dml.api.dataset import Dataset

ROWS, UNIT_ROWS = 60, 10
# How a run may end: with the rows of the oracle, with an error, with either; HANGS only if closed.
GIVES, FAILS, EITHER, HANGS = "gives", "fails", "either", "hangs"
FOREIGN = 1_000_000  # no row has so large a number
LONG_S = 600
Row = dict[str, Any]


class UntellableError(Exception):
    """It has no text."""

    def __str__(self) -> str:
        raise ZeroDivisionError

    __repr__ = __str__


class UnpackableError(Exception):
    """It cannot be pickled, and leaves if somebody tries."""

    def __reduce__(self) -> Any:
        raise SystemExit(3)


class UnopenableError(Exception):
    """It can be pickled, and not be made again."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} {second}")


def raised(error: BaseException) -> int:
    raise error


def copy(ends: Callable[[], int]) -> int:
    """Fork; the copy goes on with what ``ends`` does, this process with nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks where there are threads
        return 0 if os.fork() else ends()


def stays() -> int:
    time.sleep(LONG_S)
    return 0


def computes() -> int:
    return FOREIGN + sum(each * each for each in range(10_000))


def execs() -> int:
    os.execvp("sleep", ["sleep", str(LONG_S)])


def program() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        subprocess.Popen(["sleep", str(LONG_S)])
    return 0


def forked_process() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        multiprocessing.get_context("fork").Process(target=stays).start()
    return 0


def killed(number: int) -> int:
    os.kill(os.getpid(), number)
    return stays()


def nowhere() -> int:
    return int(ctypes.string_at(0)[0])


def unheeding() -> int:
    """Signals that mean something to a worker mean nothing from now on."""
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGIO, signal.SIGCHLD, signal.SIGALRM):
        with suppress(ValueError):  # not the main thread
            signal.signal(each, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    return 0


def elsewhere() -> int:
    os.chdir("/")
    return 0


def in_a_thread() -> int:
    threading.Thread(target=raised, args=(SystemError("of a thread"),), daemon=True).start()
    return 0


def strict() -> int:
    """What this process warns of is an error from now on."""
    np.seterr(all="raise")
    warnings.simplefilter("error")
    return 0


def shallow() -> int:
    sys.setrecursionlimit(150)
    return 0


def bare() -> int:
    os.environ.clear()
    sys.path.clear()
    return 0


def silent() -> int:
    sys.stdout = sys.stderr = None
    return 0


def without_files(first: int) -> int:
    os.closerange(first, 4096)
    return 0


def busy() -> int:
    until = time.monotonic() + LONG_S
    while time.monotonic() < until:
        pass
    return 0


def locked() -> int:
    """Nothing of Python runs in this process meanwhile."""
    ctypes.PyDLL(None).sleep(8)
    return 0


KINDS: dict[str, tuple[Callable[[], int], str]] = {
    "a copy returns": (lambda: copy(lambda: 0), GIVES),
    "a copy exits": (lambda: copy(lambda: os._exit(0)), GIVES),
    "a copy hangs": (lambda: copy(stays), GIVES),
    "a copy computes": (lambda: copy(computes), GIVES),
    "a copy raises": (lambda: copy(lambda: raised(KeyError("of a copy"))), GIVES),
    "a copy leaves": (lambda: copy(lambda: raised(SystemExit(0))), GIVES),
    "a copy is another program": (lambda: copy(execs), GIVES),
    "a program": (program, GIVES),
    "a process": (forked_process, EITHER),  # a worker of Dask may have none
    "sys.exit": (lambda: raised(SystemExit("enough")), FAILS),
    "interrupt": (lambda: raised(KeyboardInterrupt()), FAILS),
    "generator exit": (lambda: raised(GeneratorExit()), FAILS),
    "untellable": (lambda: raised(UntellableError()), FAILS),
    "unpackable": (lambda: raised(UnpackableError()), FAILS),
    "unopenable": (lambda: raised(UnopenableError(1, 2)), FAILS),
    "elsewhere": (elsewhere, GIVES),
    "unheeding": (unheeding, GIVES),
    "in a thread": (in_a_thread, GIVES),
    "hangs": (stays, HANGS),
    "busy": (busy, HANGS),
}
# What no process survives, or is not itself after: nothing for the caller's own.
FATAL: dict[str, tuple[Callable[[], int], str]] = {
    "exit 0": (lambda: os._exit(0), FAILS),
    "exit 1": (lambda: os._exit(1), FAILS),
    "killed": (lambda: killed(signal.SIGKILL), FAILS),
    "segmentation": (lambda: killed(signal.SIGSEGV), FAILS),
    "nowhere": (nowhere, FAILS),
    "stopped": (lambda: killed(signal.SIGSTOP), HANGS),
    "without files": (lambda: without_files(3), EITHER),
    "without any files": (lambda: without_files(0), EITHER),
    "bare": (bare, GIVES),
    "strict": (strict, GIVES),
    "shallow": (shallow, EITHER),
    "silent": (silent, GIVES),
    "locked": (locked, EITHER),
}
ALL = {**KINDS, **FATAL}
LASTING = {"strict", "shallow"}  # in a worker of Dask, which is not dml's to restore


def kinds_of(executor: str) -> list[str]:
    """What is tried where functions run in processes of ``executor``."""
    if executor == "cluster":
        return [kind for kind in ALL if kind not in LASTING]
    return [*(KINDS if executor == "threads" else ALL)]


class Ill:
    """Functions that do ``kind`` at row ``at``, with ``once`` the first time only."""

    def __init__(self, kind: str, at: int, folder: str, *, once: bool) -> None:
        self.kind, self.at, self.folder, self.once = kind, at, folder, once

    def act(self, number: int) -> int:
        if number != self.at or not self.kind or (self.once and self._was()):
            return number
        if self.kind in BEGINS:
            with Path(self.folder, "begun").open("a") as file:
                file.write("1")
        return number + ALL[self.kind][0]()

    def _was(self) -> bool:
        try:
            Path(self.folder, "once").touch(exist_ok=False)
        except FileExistsError:
            return True
        return False

    def row(self, row: Row) -> Row:
        return {"id": self.act(row["id"]), "t": str(row["id"]) * 2}

    def keep(self, row: Row) -> bool:
        return bool(self.act(row["id"]) == row["id"])

    def children(self, row: Row) -> Iterator[Row]:
        yield {"id": row["id"], "n": 0}
        yield {"id": self.act(row["id"]), "n": 1}

    def batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": np.array([self.act(each) for each in batch["id"].tolist()], np.int64)}

    def scanned(self, state: int, row: Row) -> tuple[int, Row]:
        return state + 1, {"id": self.act(row["id"]), "n": state}


SHAPES: dict[str, Callable[[Dataset, Ill], Dataset]] = {
    "map": lambda ds, f: ds.map(f.row),
    "map, declared": lambda ds, f: ds.map(f.row, schema={"id": "int64", "t": "string"}),
    "map, one at a time": lambda ds, f: ds.map(f.row, concurrency=1),
    "map, shuffled": lambda ds, f: ds.map(f.row).shuffle(seed=3),
    "map, batched": lambda ds, f: ds.map(f.row).batch(7),
    "map, grouped": lambda ds, f: ds.map(f.row).group_by("t").agg(n=dml.col("id").sum()),
    "filter": lambda ds, f: ds.filter(f.keep),
    "flat_map": lambda ds, f: ds.flat_map(f.children),
    "random_map": lambda ds, f: ds.random_map(lambda row, _: f.row(row)),
    "map_batches": lambda ds, f: ds.map_batches(f.batch, batch_size=7),
    "batch.map": lambda ds, f: ds.batch(7).map(f.batch),
    "scan": lambda ds, f: ds.scan(0, f.scanned),
}
# What begins a process that lives on: it is of the process that it is begun in, and ends with a
# worker of dml's, but with no other.
BEGINS = {"a copy hangs", "a copy is another program", "a program", "a process"}
IN_THE_CALLER = {"scan"}  # there functions see rows in order, in the caller's process


@dataclasses.dataclass(frozen=True)
class Case:
    """One run: a kind of behaviour, an operator, a row, a source cut small or not."""

    number: int
    executor: str
    kind: str
    shape: str
    at: int
    once: bool
    small: bool

    def pipeline(self, table: Path, folder: Path, *, well: bool = False) -> Dataset:
        """What is run; ``well`` is what it would be if the function behaved."""
        ill = Ill("" if well else self.kind, self.at, str(folder), once=self.once)
        ds = SHAPES[self.shape](dml.read_parquet(table), ill)
        return ds.with_options(target_partition_bytes=1) if self.small else ds

    @property
    def ends(self) -> str:
        """How it may end; a process that dies once is replaced."""
        ends = ALL[self.kind][1]
        fatal = self.kind in FATAL and ends == FAILS
        return EITHER if fatal and self.once else ends


def cases(seed: int, executor: str, count: int) -> list[Case]:
    """So many runs; kinds and operators take turns, so that few of them have much."""
    draw = random.Random(f"{seed} {executor}")
    kinds = kinds_of(executor)
    found: list[Case] = []
    order, shapes = list[str](), list[str]()
    while len(found) < count:
        order = order or draw.sample(kinds, len(kinds))
        shapes = shapes or draw.sample([*SHAPES], len(SHAPES))
        kind, shape = order.pop(), shapes.pop()
        if kind in FATAL and shape in IN_THE_CALLER:
            shape = "map"
        at, once, small = draw.randrange(ROWS), draw.random() < 0.5, draw.random() < 0.7
        found.append(Case(len(found), executor, kind, shape, at, once, small))
    return found


def plus(row: Row, by: int) -> Row:
    return {"id": row["id"] + by, "text": str(row["id"])}


# Innocent pipelines, each with the rows that it has.
INNOCENT: tuple[Callable[[Dataset, int], Dataset], ...] = (
    lambda ds, by: ds.map(lambda row: plus(row, by)),
    lambda ds, by: ds.with_columns(x=dml.col("id") / (dml.col("id") - 5)).map(
        lambda row: {"id": row["id"] + by, "x": -1.0 if row["x"] is None else row["x"]}
    ),
    lambda ds, by: ds.batch(9).map(lambda batch: {"id": batch["id"] + by}),
    lambda ds, by: ds.flat_map(lambda row: [plus(row, by)] * (row["id"] % 3)),
    lambda ds, by: ds.map_batches(lambda batch: {"id": np.sqrt(batch["id"] - 9.0) + by}),
    lambda ds, by: ds.filter(lambda row: bool(row["id"] % 2)).shuffle(seed=by),
    lambda ds, by: ds.map(lambda row: plus(row, by)).sort("text"),
)
