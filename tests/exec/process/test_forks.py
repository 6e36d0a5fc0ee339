"""Test functions that fork: the children deliver nothing, and end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dml
from dml.api.dataset import Dataset
from dml.exec.memory.memory_meter import PROC

ROWS = 120
OFF: dict[str, Any] = {"telemetry_dir": "off", "num_workers": 2}
Row = dict[str, Any]


class Forking:
    """Functions that fork for some rows; both sides return, unless ``ends`` says how one does."""

    def __init__(self, folder: Path, ends: str = "") -> None:
        self.folder, self.ends = str(folder), ends

    def fork(self, number: int) -> None:
        if number % 30 != 7:
            return
        if os.fork():
            return
        # only a copy comes here
        Path(self.folder, str(os.getpid())).touch()
        if self.ends == "raises":
            raise ValueError("a copy")
        if self.ends == "stays":
            signal.pause()
        if self.ends == "exits":
            os._exit(0)

    def row(self, row: Row) -> Row:
        self.fork(row["id"])
        return {"id": row["id"]}

    def keep(self, row: Row) -> bool:
        self.fork(row["id"])
        return True

    def children(self, row: Row) -> Iterator[Row]:
        self.fork(row["id"])
        yield {"id": row["id"]}

    def batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        for each in batch["id"].tolist():
            self.fork(each)
        return {"id": batch["id"]}


SHAPES: dict[str, Any] = {
    "map": lambda ds, f: ds.map(f.row),
    "skipping": lambda ds, f: ds.map(f.row, on_error="skip"),
    "declared": lambda ds, f: ds.map(f.row, schema={"id": "int64"}),
    "random_map": lambda ds, f: ds.random_map(lambda row, _: f.row(row)),
    "filter": lambda ds, f: ds.filter(f.keep),
    "flat_map": lambda ds, f: ds.flat_map(f.children),
    "map_batches": lambda ds, f: ds.map_batches(f.batch, batch_size=5),
    "batch": lambda ds, f: ds.batch(5).map(f.batch).unbatch(),
}


def copies(folder: Path) -> list[int]:
    """Those that were made and are not over; one that has ended and nobody waited for is over."""
    return [number for number in map(int, os.listdir(folder)) if _lives(number)]


def _lives(number: int) -> bool:
    try:
        text = (PROC / str(number) / "stat").read_text(encoding="ascii")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def none_left(folder: Path) -> bool:
    until = time.monotonic() + 60
    while (left := bool(copies(folder))) and time.monotonic() < until:
        time.sleep(0.01)
    return not left


def ids(ds: Dataset, executor: str) -> list[int]:
    return [row["id"] for row in ds.with_options(executor=executor, **OFF)]


IN_THE_CALLER: dict[str, Any] = {
    "scan": lambda ds, f: ds.scan(0, lambda state, row: (state, f.row(row))),
    "take_while": lambda ds, f: ds.take_while(f.keep),
    "interleave": lambda ds, f: ds.interleave(
        lambda row: dml.range(row["id"], row["id"] + 1).map(f.row)
    ),
    "generator": lambda _, f: dml.from_generator(
        lambda: (f.row({"id": number}) for number in range(ROWS)), schema={"id": "int64"}
    ),
    "iterator": lambda _, f: dml.from_iterable(
        (f.row({"id": number}) for number in range(ROWS)), schema={"id": "int64"}
    ),
}
SHAPES.update(IN_THE_CALLER)
WAYS = {
    "processes": [each for each in SHAPES if each not in {"declared", "batch", *IN_THE_CALLER}],
    "threads": ["map", "filter"],
    "sync": [*IN_THE_CALLER, "flat_map", "batch"],
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("executor", WAYS)
def test_a_copy_that_returns_delivers_nothing(executor: str, tmp_path: Path) -> None:
    # by itself: other libraries here warn of forks
    call = "from tests.exec.process.test_forks import run; "
    call += f"run({executor!r}, {str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", call], check=False, capture_output=True, text=True, timeout=240
    )
    assert done.stdout.splitlines() == [f"{shape}: right" for shape in WAYS[executor]], done.stderr
    for shape in WAYS[executor]:
        assert os.listdir(tmp_path / shape)
        assert none_left(tmp_path / shape)


def run(executor: str, folder: str) -> None:
    """Write "right", once, for each shape whose rows, and those of an innocent one, are right."""
    for shape in WAYS[executor]:
        own = Path(folder, shape)
        own.mkdir()
        right = ids(SHAPES[shape](dml.range(ROWS), Forking(own)), executor) == [*range(ROWS)]
        innocent = dml.range(50).map(lambda row: {"id": row["id"] + 1000})
        right &= ids(innocent, executor) == [*range(1000, 1050)]
        os.write(1, f"{shape}: {'right' if right else 'wrong'}\n".encode())


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("shape", "ends"),
    [("map", "stays"), ("map", "exits"), ("flat_map", "raises"), ("skipping", "raises")],
)
def test_copies_end_with_their_worker(shape: str, ends: str, tmp_path: Path) -> None:
    ds = SHAPES[shape](dml.range(ROWS), Forking(tmp_path, ends))
    assert ids(ds, "processes") == list(range(ROWS))
    assert os.listdir(tmp_path)
    assert none_left(tmp_path)
    innocent = dml.range(50).map(lambda row: {"id": row["id"] + 1000})
    assert ids(innocent, "processes") == list(range(1000, 1050))


def in_a_child(answers: Any) -> None:
    ds = dml.range(5).scan(0, lambda state, row: (state, row)).take_while(lambda row: row["id"] < 3)
    answers.put([row["id"] for row in ds.with_options(executor="sync", **OFF)])


def test_a_child_that_ends_by_itself_may_run_pipelines() -> None:
    def f(row: Row) -> Row:
        forking = multiprocessing.get_context("fork")
        answers = forking.SimpleQueue()
        child = forking.Process(target=in_a_child, args=(answers,))
        starting = threading.Thread(target=child.start)
        starting.start()
        starting.join()
        child.join(60)
        return {"given": [-1] if answers.empty() else answers.get()}

    rows = dml.range(2).map(f).with_options(executor="processes", **OFF)
    assert [row["given"] for row in rows] == [[0, 1, 2]] * 2
