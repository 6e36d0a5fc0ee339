"""This file does W5 by hand: what processes and queues of Python take on this machine, at least.

As many processes and threads as the cluster of ``bench_w5.py`` has, and nothing else: no scheduler,
no order, no types, no failures. A thread loads and transforms on its own; groups cross to the
models in files of shared memory, written once, as many at a time as the limit holds.
"""

from __future__ import annotations

import mmap
import multiprocessing as mp
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LOADERS, MODELS, THREADS, SLOTS = 2, 2, 4, 2  # processes, and threads of each
SHARED = Path("/dev/shm")  # noqa: S108 (files in memory, in a folder of their own)


@dataclass(frozen=True)
class Work:
    """What is done: functions of the pipeline, and the groups that memory holds at once."""

    load: Callable[[dict[str, Any], int], Iterator[dict[str, np.ndarray]]]
    transform: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
    infer: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
    width: int
    groups: int


@dataclass(frozen=True)
class Ways:
    """How processes hear of each other: three queues, the room for groups, the common start."""

    jobs: Any
    crossing: Any
    made: Any
    room: Any
    go: Any
    folder: str


def by_hand(work: Work, loads: int, rows: int) -> tuple[float, int]:
    """Seconds for ``loads`` loads once all processes are there, and the rows that came."""
    spawn = mp.get_context("spawn")
    room, go = spawn.Semaphore(work.groups), spawn.Barrier(LOADERS + MODELS + 1)
    with tempfile.TemporaryDirectory(dir=SHARED) as folder:
        ways = Ways(spawn.Queue(), spawn.Queue(), spawn.Queue(), room, go, folder)
        runs = [_loader] * LOADERS + [_model] * MODELS
        every = [spawn.Process(target=run, args=(work, ways)) for run in runs]
        for process in every:
            process.start()
        for number in range(loads):
            ways.jobs.put(number)
        for _ in range(LOADERS * THREADS):
            ways.jobs.put(None)
        go.wait()
        start, seen = time.perf_counter(), 0
        while seen < rows:
            seen += len(ways.made.get())
        seconds = time.perf_counter() - start
        for _ in range(MODELS * SLOTS):
            ways.crossing.put(None)
        for process in every:
            process.join()
    return seconds, seen


def _threads(count: int, work: Callable[[], None]) -> None:
    every = [threading.Thread(target=work) for _ in range(count)]
    for thread in every:
        thread.start()
    for thread in every:
        thread.join()


def _loader(work: Work, ways: Ways) -> None:
    def run() -> None:
        while (job := ways.jobs.get()) is not None:
            for number, group in enumerate(work.load({"id": [job]}, work.width)):
                ways.room.acquire()
                made = work.transform(group)["x"]
                path = f"{ways.folder}/{job}-{number}"
                with open(path, "w+b", buffering=0) as file:
                    file.truncate(made.nbytes)
                    with mmap.mmap(file.fileno(), made.nbytes) as memory:
                        memory[:] = made.reshape(-1).data.cast("B")
                ways.crossing.put((path, made.shape))

    ways.go.wait()
    _threads(THREADS, run)


def _model(work: Work, ways: Ways) -> None:
    def run() -> None:
        while (sent := ways.crossing.get()) is not None:
            path, shape = sent
            with open(path, "rb") as file:
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            os.unlink(path)
            found = work.infer({"x": np.frombuffer(memory, np.uint8).reshape(shape)})
            ways.room.release()
            ways.made.put(found["y"])

    ways.go.wait()
    _threads(SLOTS, run)
