"""Test storage of sorted runs on workers: runs last until the exchange ends, or are rewritten."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from distributed import Client

import dml
from dml.cluster.cluster import workers_of
from dml.cluster.exchange import sorted_run_transfer
from dml.cluster.exchange.distributed_sort import MOST_LOSSES, Rounds
from dml.cluster.exchange.sorted_run_transfer import OP, Exchange, Shelves, lease_key
from dml.cluster.exchange.sorted_runs import RunsGoneError, RunShelf
from dml.cluster.worker_monitor import Hub
from dml.data.stream_hash import stream_hash
from dml.errors import InternalError, WorkerLostError
from dml.exec.memory.spill import PREFIX
from dml.settings import Settings
from tests.cluster.dask_cases import SOON_S, UNCLOSED, clean, cluster, eventually

pytestmark = UNCLOSED
ROWS, ATOM = 6_000, 200


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs were made again, each time."""
    counts = list[int]()
    before = Rounds._again

    def counted(self: Rounds, index: Any, missing: Any) -> None:
        counts.append(len(missing))
        before(self, index, missing)

    monkeypatch.setattr(Rounds, "_again", counted)
    return counts


@pytest.fixture
def before_ranges(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Have something done once, when it is known where all runs lie and none was read."""

    def do(work: Callable[[], Any]) -> None:
        left, before = [work], Rounds._ranged

        def ranged(*args: Any) -> Any:
            if left:
                left.pop()()
            return before(*args)

        monkeypatch.setattr(Rounds, "_ranged", ranged)

    return do


def mixed(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "k": row["id"] * 7919 % 6007}


def by_workers(client: Client, spill: Path, function: Any = mixed) -> dml.Dataset:
    return sorted_rows(function).with_options(
        scheduler=client,
        spread=True,
        target_partition_bytes=4_000,
        spill_dir=str(spill),
        prefetch=0,
    )


def sorted_rows(function: Any = mixed) -> dml.Dataset:
    ds = dml.range(ROWS, atom_rows=ATOM).map(function).sort("k").batch(100)
    return ds.with_options(telemetry_dir="off")


def wanted() -> str:
    return stream_hash(sorted_rows().with_options(executor="sync").epoch(0))


def runs(spill: Path) -> list[Path]:
    return list(spill.glob(f"{PREFIX}*/*.arrow"))


# --------------------------------------------------------------------------------- what is damaged


def one_byte_less(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def without_folder(path: Path) -> None:
    for each in (*path.parent.glob("*"), path.parent):
        if each.exists():
            each.rmdir() if each.is_dir() else each.unlink()


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "deleted": os.unlink,
    "truncated": one_byte_less,
    "empty": lambda path: os.truncate(path, 0),
    "no folder": without_folder,
}


@pytest.fixture(params=["disk", "network"])
def _reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are read from disk, or asked for."""
    if request.param == "network":
        monkeypatch.setattr(sorted_run_transfer.RunFetcher, "_is_near", lambda *_: False)


@pytest.mark.sample(5)
@pytest.mark.cluster
@pytest.mark.usefixtures("_reading")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("damage", DAMAGES)
def test_runs_of_a_living_worker_are_made_again_once(
    tmp_path: Path,
    again: list[int],
    before_ranges: Callable[[Callable[[], Any]], None],
    damage: str,
    workers: int,
) -> None:
    some = list[Path]()

    def damaged() -> None:
        files = runs(tmp_path)
        some.extend(each for each in files if each.parent == files[0].parent)
        for each in some:
            if each.exists():
                DAMAGES[damage](each)

    before_ranges(damaged)
    with cluster(workers) as made, Client(made) as client:
        assert stream_hash(by_workers(client, tmp_path).epoch(0)) == wanted()
        assert sum(again) == len(some) > 1
        assert clean(client)


@pytest.mark.cluster
def test_runs_that_are_damaged_again_and_again_are_a_named_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = RunShelf.write

    def torn(self: RunShelf, name: str, *args: Any) -> None:
        before(self, name, *args)
        os.truncate(Path(self.path) / f"{name}.arrow", 100)

    monkeypatch.setattr(RunShelf, "write", torn)
    with cluster(1) as made, Client(made) as client:
        with pytest.raises(WorkerLostError, match="lost again and again"):
            list(by_workers(client, tmp_path).epoch(0))
        assert clean(client)


def test_what_stays_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that nobody has after they were made again are not made without end."""
    made = list[int]()
    exchange = SimpleNamespace(homes=dict, remade=set())
    rounds = cast("Any", Rounds.__new__(Rounds))
    rounds.exchange = exchange
    monkeypatch.setattr(Rounds, "_again", lambda _self, _index, missing: made.append(len(missing)))
    ranges = cast("Any", SimpleNamespace(index=SimpleNamespace(names=("a", "b"))))
    with pytest.raises(WorkerLostError, match="lost again and again"):
        list(rounds._merged(ranges))
    assert made == [2] * (MOST_LOSSES + 1)


@pytest.mark.cluster
def test_a_worker_that_did_not_answer_is_let_back_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what was made again on it, unless another has that too."""
    has = {"a": ("/a", ["x", "y"]), "b": ("/b", ["y"])}

    monkeypatch.setattr(Hub, "ask", lambda *_given, **_options: has)
    with cluster(1) as made, Client(made) as client:
        exchange = Exchange(Settings(executor="distributed", scheduler=client))
        assert set(exchange.homes()) == {"x", "y"}
        exchange.avoid(RunsGoneError("a worker has gone", places=("a",)))
        assert dict(exchange.homes()) == {"y": ("b", "/b")}
        exchange.remade.update(["x", "y"])
        assert dict(exchange.homes()) == {"x": ("a", "/a"), "y": ("b", "/b")}
        exchange.close()
        assert clean(client)


# -------------------------------------------------------------------------------- what Dask may do


def done(work: Callable[[], Any]) -> list[Any]:
    """What ``work`` gives, which may not hang: made in a thread of its own."""
    found = list[Any]()
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(SOON_S)
    return found


@pytest.mark.cluster
def test_a_worker_is_retired_in_the_first_round(tmp_path: Path) -> None:
    """What Dask moves elsewhere for it has no part in the runs."""
    gate, spill = tmp_path / "gate", tmp_path / "spill"
    spill.mkdir()

    def waiting(row: dict[str, Any]) -> dict[str, Any]:
        deadline, own = time.monotonic() + SOON_S, f"{PREFIX}{os.getpid()}-*/*.arrow"
        while any(spill.glob(own)) and not gate.exists() and time.monotonic() < deadline:
            time.sleep(0.01)  # each worker has its first run, however late it came
        return mixed(row)

    with cluster(2, processes=True) as made, Client(made) as client:
        got = list[Any]()
        iterator = iter(by_workers(client, spill, waiting).epoch(0))
        thread = threading.Thread(target=lambda: got.extend(iterator), daemon=True)
        thread.start()
        assert eventually(lambda: len({each.parent for each in runs(spill)}) == 2)
        tasks = {str(key): task for key, task in made.scheduler.tasks.items()}
        kept = [w.address for k in tasks if "dml-runs" in k for w in tasks[k].who_has or ()]
        assert done(lambda: client.retire_workers(kept[:1], close_workers=False))
        gate.touch()
        thread.join(SOON_S)
        assert stream_hash(got) == wanted()
        assert clean(client)


@pytest.mark.cluster
def test_a_worker_is_retired_in_the_second_round(
    tmp_path: Path, again: list[int], before_ranges: Callable[[Callable[[], Any]], None]
) -> None:
    """Its runs go with it, and are made again."""
    with cluster(2, processes=True) as made, Client(made) as client:
        address = next(iter(workers_of(client)))
        before_ranges(lambda: client.retire_workers([address], close_workers=True))
        assert stream_hash(by_workers(client, tmp_path).epoch(0)) == wanted()
        assert sum(again) > 0
        assert clean(client)
        assert eventually(lambda: not list(tmp_path.iterdir()))


@pytest.mark.cluster
def test_what_dask_holds_says_nothing(
    tmp_path: Path, again: list[int], before_ranges: Callable[[Callable[[], Any]], None]
) -> None:
    """All of it may be written to disk, and dropped from memory, while runs stay as they are."""
    with cluster(2) as made, Client(made) as client:

        def spilled() -> None:
            for worker in made.workers.values():
                for key in list(worker.data):
                    if "dml-runs" in str(key):
                        worker.data[key] = pickle.loads(pickle.dumps(worker.data[key]))
            gc.collect()

        before_ranges(spilled)
        assert stream_hash(by_workers(client, tmp_path).epoch(0)) == wanted()
        assert not again
        assert clean(client)


# ------------------------------------------------------------------------------------ how they end


class Known:
    """A scheduler that knows some keys."""

    def __init__(self, *keys: str) -> None:
        self.keys = set(keys)

    async def get_task_status(self, keys: list[str]) -> dict[str, str | None]:
        if not self.keys:
            raise OSError("nobody answers")
        return {key: "memory" if key in self.keys else None for key in keys}


def worker(loop: Any, root: Path, scheduler: Known) -> Any:
    status = SimpleNamespace(name="running")
    return SimpleNamespace(
        handlers={},
        extensions={},
        loop=loop,
        local_directory=str(root),
        scheduler=scheduler,
        status=status,
    )


@pytest.fixture
def loop() -> Iterator[Any]:
    with cluster(1) as made:
        yield made.loop


@pytest.mark.cluster
def test_shelves_go_with_the_lease(
    loop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On workers that nobody told as well; a scheduler that does not answer ends nothing."""
    monkeypatch.setattr(sorted_run_transfer, "LOOK_S", 0.01)
    scheduler = Known(lease_key("one"), lease_key("two"))
    shelves = Shelves.on(there := worker(loop, tmp_path, scheduler))
    assert Shelves.on(there) is shelves
    assert there.extensions[OP] is shelves
    one, two = shelves.of("one", None), shelves.of("two", None)
    scheduler.keys = {lease_key("two")}
    assert eventually(lambda: not Path(one.path).exists())
    assert Path(two.path).exists()
    scheduler.keys = set()
    assert shelves.of("two", None) is two
    again = shelves.of("one", None)
    time.sleep(0.1)
    assert shelves.find_shelf("one") is again, "what is not known to have ended has not"
    shelves.end("two")
    assert not Path(two.path).exists()
    with pytest.raises(InternalError, match="after the end"):
        shelves.of("two", None)
    there.status.name = "closed"
    assert eventually(lambda: not list(tmp_path.iterdir()))


CLIENT = """
import sys, time, dml
from distributed import Client

def slow(batch):
    time.sleep(0.02)
    return {"k": -batch["id"]}

if __name__ == "__main__":
    ds = dml.range(10_000_000, atom_rows=1000).map_batches(slow).sort("k")
    ds = ds.with_options(scheduler=Client(sys.argv[1]), spread=True, telemetry_dir="off",
                         spill_dir=sys.argv[2], target_partition_bytes=4_000)
    next(iter(ds.epoch(0)))
"""


@pytest.mark.cluster
def test_nothing_outlives_a_killed_client(tmp_path: Path) -> None:
    """Also on workers that came while runs were written."""
    spill, script = tmp_path / "spill", tmp_path / "client.py"
    spill.mkdir()
    script.write_text(CLIENT)
    with cluster(1, processes=True) as made, Client(made) as client:
        command = [sys.executable, str(script), made.scheduler_address, str(spill)]
        other = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            assert eventually(lambda: bool(runs(spill)))
            made.scale(2)
            assert eventually(lambda: len({each.parent for each in runs(spill)}) == 2)
        finally:
            other.send_signal(signal.SIGKILL)
            other.wait()
        assert eventually(lambda: not list(spill.iterdir()))
        assert not Hub.of(client).crews
