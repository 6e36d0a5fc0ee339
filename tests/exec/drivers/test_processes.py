"""Test the processes driver: the bytes of threads, even after kills, exits and failures."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.api.dataset import Dataset
from dml.data.stream_hash import stream_hash
from dml.errors import InternalError, PlanError, UDFError, WorkerLostError
from dml.exec.drivers import processes
from dml.exec.drivers.processes import _Processes
from dml.exec.process import worker_pool
from tests.idle import living, no_workers, settle

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[3]

HANG_S = 60.0
ROWS, GROUP = 2000, 100


def run(ds: Dataset, executor: str = "processes", workers: int = 2, **more: Any) -> list[Any]:
    chosen = ds.with_options(executor=executor, num_workers=workers, telemetry_dir="off", **more)
    return list(chosen)


def worked(row: dict[str, Any]) -> dict[str, Any]:
    """Not lifted: it looks at text."""
    return {"n": row["n"], "t": str(row["n"]) * 2, "v": [row["n"], 1] if row["n"] % 7 else None}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "numbers.parquet"
    pq.write_table(pa.table({"n": np.arange(ROWS)}), path, row_group_size=GROUP)
    return path


@pytest.fixture
def numbers(table: Path) -> Dataset:
    return dml.read_parquet(table)


@pytest.fixture(scope="module", autouse=True)
def nothing_stays() -> Iterator[None]:
    """After all of these tests: no process, and no descriptor but those of idle workers."""
    no_workers(HANG_S)
    before = len(os.listdir("/proc/self/fd"))
    yield
    no_workers(HANG_S)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_the_stream_is_that_of_threads(numbers: Dataset) -> None:
    ds = numbers.map(worked).shuffle(300, seed=3).batch(64)
    assert stream_hash(run(ds, target_partition_bytes=3000)) == stream_hash(run(ds, "threads"))


def test_two_workers_share_the_work(numbers: Dataset) -> None:
    ds = numbers.map(lambda row: {"pid": len(str(row)) and os.getpid()})
    pids = {row["pid"] for row in run(ds, target_partition_bytes=1)}
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_workers_wait_for_the_next_run(numbers: Dataset) -> None:
    ds = numbers.map(lambda row: {"pid": len(str(row)) and os.getpid()})
    seen = set()
    for _ in range(3):
        settle(HANG_S)  # also those of earlier tests: who came back last is taken first
        seen |= {row["pid"] for row in run(ds, workers=1)}
    assert len(seen) == 1


def test_every_row_is_called_once(numbers: Dataset, tmp_path: Path) -> None:
    log = tmp_path / "calls"

    def logged(row: dict[str, Any]) -> dict[str, Any]:
        with log.open("a") as file:
            file.write(f"{row['n']}\n")
        return {"n": row["n"]}

    rows = run(numbers.map(logged), target_partition_bytes=1)
    calls = sorted(map(int, log.read_text().split()))
    assert calls == list(range(ROWS)) == [row["n"] for row in rows]


def test_what_workers_did_is_counted(numbers: Dataset) -> None:
    ds = numbers.map(worked).with_options(executor="processes", num_workers=2, telemetry_dir="off")
    assert len(list(ds)) == ROWS
    source, mapped = ds.stats().records[:2]
    assert (source["rows_out"], mapped["rows_in"], mapped["rows_out"]) == (ROWS, ROWS, ROWS)
    assert mapped["python_calls"] == ROWS


def test_stages_hand_parcels_on(numbers: Dataset) -> None:
    ds = numbers.map(worked).map_batches(counted, batch_size=7, num_cpus=2)
    want = run(ds, "threads", target_partition_bytes=1000)
    assert run(ds, target_partition_bytes=1000) == want
    assert len(want) == ROWS


def counted(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"n": batch["n"], "size": np.full(len(batch["n"]), len(batch["n"]))}


# ---------------------------------------------------------------------------------------- failures


class StrangeError(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(first, second)


class UntellableError(Exception):
    """It has no text, and cannot be pickled."""

    def __str__(self) -> str:
        raise ZeroDivisionError

    def __reduce__(self) -> Any:
        raise SystemExit


def failing(act: Callable[[], Any], at: int = 1234) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def fails(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == at:
            return {"n": act()}
        return {"n": row["n"]}

    return fails


def thrown(error: BaseException) -> Any:
    raise error


def taken(ds: Dataset, executor: str = "processes", **more: Any) -> tuple[int, BaseException]:
    """How many rows came before the error, and the error."""
    chosen = ds.with_options(executor=executor, num_workers=2, telemetry_dir="off", **more)
    count = 0
    try:
        for _ in chosen:
            count += 1
    except BaseException as error:  # noqa: BLE001
        return count, error
    raise AssertionError("nothing was raised")


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (lambda: thrown(StrangeError(1, 2)), UDFError),
        (lambda: thrown(StopIteration(1)), UDFError),
        (lambda: thrown(MemoryError()), UDFError),
        (object, UDFError),
        (lambda: sys.exit(4), UDFError),
        (lambda: thrown(KeyboardInterrupt()), UDFError),
        (lambda: thrown(GeneratorExit()), UDFError),
        (lambda: thrown(UntellableError()), UDFError),
    ],
)
def test_an_exception_comes_at_its_place(
    numbers: Dataset, act: Callable[[], Any], kind: type[BaseException]
) -> None:
    ds = numbers.map(failing(act))
    count, error = taken(ds, target_partition_bytes=1)
    _, want = taken(ds, "threads", target_partition_bytes=1)
    assert type(error) is kind is type(want)
    assert str(error).partition("0x")[0] == str(want).partition("0x")[0]
    if isinstance(error, UDFError):
        assert (count, error.row, error.row_group) == (1234, 1234, 12)


def test_a_row_that_kills_its_worker_is_named_by_file_and_row_group(
    numbers: Dataset, table: Path
) -> None:
    count, error = taken(numbers.map(failing(lambda: os._exit(9))), target_partition_bytes=5000)
    assert isinstance(error, WorkerLostError)
    assert f"{table.name}, row group 12" in error.at
    assert "ended with code 9" in error.why
    assert count <= 1234


def test_a_function_that_cannot_be_sent_is_refused(numbers: Dataset) -> None:
    lock = threading.Lock()
    _, error = taken(numbers.map(lambda row: {"n": row["n"] + lock.locked() + len(str(row))}))
    assert isinstance(error, PlanError)
    assert "cannot be sent" in error.what


class Unanswerable(_Processes):
    """Orders that cannot be pickled."""

    def order(self, run: Any) -> Any:
        return lambda: run


def test_a_broken_driver_tells_the_consumer(
    numbers: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_Processes", Unanswerable)
    _, error = taken(numbers.map(worked))
    assert isinstance(error, InternalError)
    assert "carried out by a worker" in error.what


def test_an_answer_that_cannot_be_taken_is_told(
    numbers: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("odd answer")

    monkeypatch.setattr(_Processes, "answered", broken)
    _, error = taken(numbers.map(worked))
    assert "odd answer" in str(error)


def test_workers_that_cannot_start_are_a_typed_error(
    numbers: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker_pool.POOL.close()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    _, error = taken(numbers.map(worked))
    assert isinstance(error, WorkerLostError)
    assert "could not be started" in error.what


def test_what_a_function_has_set_for_its_process_ends_with_its_run(numbers: Dataset) -> None:
    def setting(row: dict[str, Any]) -> dict[str, Any]:
        warnings.simplefilter("error")
        np.seterr(all="raise")
        sys.setrecursionlimit(777)
        return {"pid": os.getpid()}

    def seen(row: dict[str, Any]) -> dict[str, Any]:
        strict = ("error", None, Warning, None, 0) in warnings.filters
        return {
            "strict": strict or np.geterr()["over"] == "raise",
            "pid": os.getpid(),
            "deepest": sys.getrecursionlimit(),
        }

    settle(HANG_S)
    workers = {row["pid"] for row in run(numbers.map(setting), workers=1)}
    settle(HANG_S)
    rows = run(numbers.map(seen), workers=1)
    assert {row["pid"] for row in rows} & workers, "it is the same process"
    assert not any(row["strict"] or row["deepest"] == 777 for row in rows)


def test_a_worker_that_dies_while_idle_is_replaced(numbers: Dataset) -> None:
    want = run(numbers.map(worked), "threads")
    assert run(numbers.map(worked)) == want
    settle(HANG_S)
    for worker in living():
        worker.process.kill()
    assert run(numbers.map(worked)) == want


def test_kills_change_nothing(numbers: Dataset, whole: bool) -> None:
    ds = numbers.map(slowed).batch(50)
    want, draw = stream_hash(run(ds, "threads")), random.Random(5)
    for _ in range(100 if whole else 4):
        with Killing(draw):
            assert stream_hash(run(ds, target_partition_bytes=900)) == want


def slowed(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.0002)
    return {"n": row["n"], "t": str(row["n"])}


class Killing:
    """Kills one worker at a random moment, as soon as there is one."""

    def __init__(self, draw: random.Random) -> None:
        self.wait_s, self.pick = draw.random() * 0.4, draw.random()
        self.thread = threading.Thread(target=self.kill)
        self.done = threading.Event()

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join(HANG_S)

    def kill(self) -> None:
        self.done.wait(self.wait_s)
        found = sorted(worker.process.pid for worker in living())
        if found:
            os.kill(found[int(self.pick * len(found))], signal.SIGKILL)


def test_a_stopped_iteration_does_not_wait_for_a_slow_slice(numbers: Dataset) -> None:
    def endless(row: dict[str, Any]) -> dict[str, Any]:
        while row["n"] >= GROUP:
            time.sleep(0.01)
        return {"n": row["n"] + len(str(row))}

    rows = iter(
        numbers.map(endless).with_options(
            executor="processes", num_workers=2, telemetry_dir="off", target_partition_bytes=1
        )
    )
    assert next(rows)["n"] == 7 + 1
    del rows
    gc.collect()
    until = time.monotonic() + HANG_S
    while any(worker.jobs for worker in living()) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(worker.jobs for worker in living())


LIMITED = """
import resource, sys
import numpy as np
import dml
from dml.errors import MemoryContractError, SourceError

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
table = np.arange(50_000)
ds = dml.range(50_000).with_options(executor="processes", num_workers=1, telemetry_dir="off")
for fn in (lambda row: {"t": str(row["id"]) * 9}, lambda row: {"a": int(table[row["id"]])}):
    try:
        list(ds.map(fn).batch(1000))
    except MemoryContractError as error:
        assert "File too large" in error.why and "ulimit -f" in error.try_, error
    else:
        sys.exit("it went on")
try:
    ds.with_options(executor="sync").write_parquet(sys.argv[1])
except SourceError as error:
    assert "File too large" in error.why, error
else:
    sys.exit("it was written")
"""


def test_a_limit_on_the_size_of_files_is_a_typed_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "out")]
    subprocess.run(command, check=True, cwd=ROOT, timeout=60)


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_no_more_threads_is_a_typed_error(
    numbers: Dataset, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading, "_start_new_thread", none)
    with pytest.raises(WorkerLostError, match="a thread could not be started"):
        run(numbers.map(worked), executor)
    monkeypatch.undo()
    assert len(run(numbers.map(worked), executor)) == ROWS
