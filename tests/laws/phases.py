"""Make workers die at a chosen phase of their work."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dml
from dml.cluster.placement import MOST_SLICES
from dml.exec.process.channel import HEAD, Channel, Message
from dml.exec.tasks.unit_reader import Reading
from tests.laws.kills import within

PHASES = ("read", "transform", "transfer", "delivery")
UNITS, UNIT_ROWS = 30, 10
ROWS = UNITS * UNIT_ROWS
ROW_S = 0.016  # a slice lasts long enough to be a task of its own
ARMED = "armed"


# ------------------------------------------------------------------------------ inside of workers


class Graves:
    """A folder that says in which phase the next worker is to die, and who did.

    Opened in another process, it plants the deaths there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.owner = str(folder), os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return dug, (self.folder, self.owner)

    def file(self, phase: str, end: object) -> Path:
        return Path(self.folder, f"{phase}.{end}")

    def due(self, phase: str) -> bool:
        """True if this process is to die now; nobody else is told so."""
        try:
            os.rename(self.file(phase, ARMED), self.file(phase, os.getpid()))
        except OSError:
            return False
        return True

    def come(self, phase: str) -> None:
        """Die here, if it is due."""
        if self.due(phase):
            die()

    def note(self, stage: int, key: int) -> None:
        """Write down that this process begins some work."""
        file = os.open(f"{self.folder}/ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{stage} {os.getpid()} {key}\n".encode())
        os.close(file)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


_DUG: dict[str, Graves] = {}  # of this process: that of the last run


def dug(folder: str, owner: int) -> Graves:
    """The graves of ``folder``; any process but their owner may die from now on."""
    found = Graves(Path(folder))
    found.owner = owner
    if owner != os.getpid():
        if not _DUG:
            _plant()
        _DUG["last"] = found
    return found


def _plant() -> None:
    read, post = Reading.read, Channel.post

    def dying_read(self: Reading, unit: Any, skip_atoms: int) -> Iterator[Any]:
        for block in read(self, unit, skip_atoms):
            _DUG["last"].come("read")
            yield block

    def dying_post(self: Channel, message: Message) -> None:
        if _DUG["last"].due("transfer"):
            self.socket.sendall(HEAD.pack(len(message.body), 0, 0))
            self.socket.sendall(message.body[: len(message.body) // 2])
            die()
        post(self, message)

    Reading.read = dying_read  # type: ignore[method-assign]
    Channel.post = dying_post  # type: ignore[method-assign]
    try:
        worker = distributed.get_worker()
    except ValueError:
        return
    worker.handlers["get_data"] = _dying_answer(worker.handlers["get_data"])


def _dying_answer(get_data: Callable[..., Any]) -> Callable[..., Any]:
    """Half of what a worker is asked for is sent, then it dies."""

    async def dying(comm: Any, **options: Any) -> Any:
        if _DUG["last"].due("transfer"):
            stream = comm.stream

            def write(data: Any) -> Any:
                sent = memoryview(data).cast("B")
                stream.socket.send(sent[: max(1, len(sent) // 2)], socket.MSG_DONTWAIT)
                die()

            stream.write = write
        made = get_data(comm, **options)
        return await made if asyncio.iscoroutine(made) else made

    return dying


# -------------------------------------------------------------------------------- what is run


def write(root: Path) -> Path:
    """The file that is read: as many units as row groups."""
    table = pa.table({"k": np.arange(ROWS)})
    pq.write_table(table, root / "a.parquet", row_group_size=UNIT_ROWS)
    return root


def pipeline(folder: Path, graves: Graves, row_s: float = ROW_S, **options: Any) -> dml.Dataset:
    """Two stages, each of which writes down what it begins; a batch is a unit."""

    def worked(row: dict[str, Any]) -> dict[str, Any]:
        graves.note(1, row["k"])
        if row["k"] % UNIT_ROWS == UNIT_ROWS // 2:
            graves.come("transform")
        time.sleep(row_s)
        return {"k": row["k"], "text": f"{row['k']:0>60}"}

    def carried(batch: dict[str, Any]) -> dict[str, Any]:
        graves.note(2, int(batch["k"][0]))
        return {"k": batch["k"], "text": batch["text"]}

    ds = dml.read_parquet(folder / "a.parquet").map(worked).map_batches(carried, num_cpus=0.5)
    ds = ds.batch(UNIT_ROWS)
    # a copy of a slow slice, on a busy machine, would look like work done again for a death
    usual = {"telemetry_dir": "off", "target_partition_bytes": 1, "speculative": False}
    return ds.with_options(**usual, **options).epoch(0)


class Funeral:
    """A run in whose course workers die at drawn moments in one phase; ``deaths`` are told.

    Of each death: the pid, and how many units were delivered by then, at least.
    """

    def __init__(self, graves: Graves, phase: str, seed: int, most: int) -> None:
        self.graves, self.phase = graves, phase
        self.moments = sorted(random.Random(seed).sample(range(1, UNITS * 2 // 3), most))
        self.deaths: list[tuple[int, int]] = []
        self._floor = -1

    def follow(self, batches: Iterator[Any], seconds: float) -> Iterator[Any]:
        """``batches``, each within ``seconds``, while workers die."""
        for number, batch in enumerate(within(batches, seconds), 1):
            yield batch
            self._bury()
            if self.moments and number >= self.moments[0] and self._floor < 0:
                self.moments.pop(0)
                self._call(number)
        self._bury()

    def _call(self, delivered: int) -> None:
        if self.phase != "delivery":
            self._floor = delivered
            self.graves.file(self.phase, ARMED).touch()
            return
        held = Counter(pid for _, pid, key in self.calls() if key >= delivered * UNIT_ROWS)
        for pid, _ in held.most_common():
            if pid not in dict(self.deaths):
                os.kill(pid, signal.SIGKILL)
                self.deaths.append((pid, delivered))
                return

    def _bury(self) -> None:
        dead = {int(path.suffix[1:]) for path in self._named() if path.suffix != f".{ARMED}"}
        for pid in dead - dict(self.deaths).keys():
            self.deaths.append((pid, self._floor))
            self._floor = -1

    def _named(self) -> list[Path]:
        return list(Path(self.graves.folder).glob(f"{self.phase}.*"))

    def calls(self) -> list[tuple[int, int, int]]:
        """What was begun: stage, pid and the first key."""
        lines = Path(self.graves.folder, "ledger").read_text().splitlines()
        return [(int(stage), int(pid), int(key)) for stage, pid, key in map(str.split, lines)]

    def rework(self) -> tuple[int, int]:
        """Slices that were begun again, and the most that the deaths excuse.

        What a dead worker had begun, and what was not delivered, is made again: by the driver, and
        by Dask, which computes a lost result again that another task of it waits for.
        A task on a cluster has several slices, and its result is released with the last of them:
        units that the worker had begun one after the other, up to the last one delivered, may have
        been a task that was still held.
        """
        calls, excused = self.calls(), Counter[int]()
        for pid, delivered in self.deaths:
            begun = {key // UNIT_ROWS for _, by, key in calls if by == pid}
            held = delivered
            while held - 1 in begun and delivered - held < MOST_SLICES:
                held -= 1
            excused.update(unit for unit in begun if unit >= held)
        again: dict[tuple[int, int], int] = {}
        for (stage, key), times in Counter((stage, key) for stage, _, key in calls).items():
            place = stage, key // UNIT_ROWS
            again[place] = max(times - 1, again.get(place, 0))
        over = [each for each in again.items() if each[1] > 2 * excused[each[0][1]]]
        lines = [line for line in calls if (line[0], line[2] // UNIT_ROWS) in dict(over)]
        assert not over, f"{over} made again, deaths {self.deaths}, began {lines}"
        return sum(again.values()), 2 * excused.total()
