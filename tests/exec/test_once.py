"""Test that work of a function declared impure is never repeated, whichever worker is lost."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

import dml
from dml.api.dataset import Dataset
from dml.errors import DmlError, NonDeterminismError, ReplayError
from tests.cluster.dask_cases import SOON_S, UNCLOSED, clean, cluster, eventually

pytestmark = [UNCLOSED, pytest.mark.cluster]

ROWS, GROUP, DEADLY = 400, 25, 230
ROW = {"n": "int64", "wide": pa.list_(pa.float64())}
WIDE = {"n": "int64", "pid": "int64", "wide": pa.list_(pa.float64())}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "numbers.parquet"
    pq.write_table(pa.table({"n": np.arange(ROWS)}), path, row_group_size=GROUP)
    return path


class Logging:
    """A function that notes its calls in a file; its process dies at one of them, the first time.

    ``deadly`` is the number of the row of which it dies, -1 where it never does.
    """

    def __init__(self, folder: Path, deadly: int = DEADLY) -> None:
        self.log, self.flag, self.deadly = str(folder / "log"), str(folder / "flag"), deadly

    def noted(self, n: int) -> None:
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(f"{n}\n")

    def dies(self) -> None:
        if not os.path.exists(self.flag):
            Path(self.flag).touch()
            os._exit(3)

    def calls(self) -> Counter[int]:
        return Counter(map(int, Path(self.log).read_text(encoding="utf-8").split()))


def logging(folder: Path, deadly: int = DEADLY) -> tuple[Logging, Any]:
    """Who notes, and a plain function that does it."""
    notes = Logging(folder, deadly)

    def called(row: dict[str, Any]) -> dict[str, Any]:
        notes.noted(row["n"])
        if row["n"] == notes.deadly:
            notes.dies()
        return {"n": row["n"], "wide": [float(row["n"])] * 40}

    return notes, called


def outcome(ds: Dataset) -> tuple[list[int], DmlError | None]:
    """The numbers that came, and the error behind them."""
    got: list[int] = []
    try:
        got.extend(row["n"] for row in ds)
    except DmlError as error:
        return got, error
    return got, None


def on_processes(ds: Dataset, **more: Any) -> Dataset:
    return ds.with_options(executor="processes", num_workers=2, telemetry_dir="off", **more)


@pytest.mark.parametrize("shape", ["units", "lane", "group"])
def test_a_worker_process_that_dies_over_it_ends_the_run(
    table: Path, tmp_path: Path, shape: str
) -> None:
    notes, fn = logging(tmp_path)
    ds = dml.read_parquet(table)
    ds = ds.shuffle(3, seed=1) if shape == "lane" else ds
    made = ds.map(fn, pure=False, num_cpus=0.5 if shape == "group" else None)
    got, error = outcome(on_processes(made, target_partition_bytes=1))
    assert type(error) is ReplayError
    assert (
        error.what
        == "work of a function declared pure=False was lost, and no call of it is repeated"
    )
    assert "called" in error.at
    assert "test_once.py" in error.at
    assert "ended with code 3" in error.why
    assert "state_dict()" in error.try_
    assert DEADLY not in got
    assert set(notes.calls().values()) == {1}


def test_a_run_goes_on_from_its_state_behind_the_error(table: Path, tmp_path: Path) -> None:
    _, fn = logging(tmp_path)
    ds = on_processes(dml.read_parquet(table).map(fn, pure=False), target_partition_bytes=1)
    rows, got = iter(ds), list[int]()
    with pytest.raises(ReplayError):
        got.extend(row["n"] for row in rows)
    again = iter(ds)
    again.load_state_dict(rows.state_dict())
    assert [*got, *(row["n"] for row in again)] == list(range(ROWS))


def test_it_is_done_again_where_nothing_is_declared(table: Path, tmp_path: Path) -> None:
    notes, fn = logging(tmp_path)
    got, error = outcome(on_processes(dml.read_parquet(table).map(fn), target_partition_bytes=1))
    assert error is None
    assert got == list(range(ROWS))
    assert notes.calls()[DEADLY] == 2


@pytest.mark.parametrize("declared", [WIDE, None], ids=["typed", "untyped"])
@pytest.mark.parametrize(
    ("pure", "lies", "error"),
    [(None, False, None), (None, True, NonDeterminismError), (False, False, ReplayError)],
)
def test_what_is_made_again_of_a_slice_is_compared(
    tmp_path: Path, declared: Any, error: type[DmlError] | None, *, pure: bool | None, lies: bool
) -> None:
    """The worker dies when it has given a part of what becomes of a slice."""
    notes = Logging(tmp_path)

    def children(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for n in range(12):
            notes.noted(n)
            if n == 9:
                notes.dies()
            yield {"n": n, "pid": os.getpid() if lies else 0, "wide": np.zeros(200_000)}

    ds = dml.range(3).filter(dml.col("id") == 1).shuffle(2, seed=1)
    ds = ds.flat_map(children, schema=declared, pure=pure)
    got, found = outcome(on_processes(ds, target_partition_bytes=1))
    assert found is None if error is None else type(found) is error, found
    assert got, "a part was given"
    assert got == list(range(12 if error is None else len(got)))
    assert notes.calls()[0] == (1 if pure is False else 2)


def on_cluster(client: Client, ds: Dataset) -> Dataset:
    return ds.with_options(scheduler=client, telemetry_dir="off", target_partition_bytes=1)


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", ["units", "lane"])
def test_a_worker_of_a_cluster_that_dies_over_it_ends_the_run(
    table: Path, tmp_path: Path, shape: str
) -> None:
    notes, fn = logging(tmp_path)
    ds = dml.read_parquet(table)
    ds = ds.shuffle(3, seed=1) if shape == "lane" else ds
    with cluster(2, processes=True) as made, Client(made) as client:
        got, error = outcome(on_cluster(client, ds.map(fn, pure=False, schema=ROW)))
        assert type(error) is ReplayError
        assert "called" in error.at
        assert DEADLY not in got
        client.wait_for_workers(2, timeout=SOON_S)
        assert set(notes.calls().values()) == {1}
        assert clean(client)


def test_what_only_a_lost_worker_of_a_cluster_held_ends_the_run(
    table: Path, tmp_path: Path
) -> None:
    notes, fn = logging(tmp_path, -1)
    ds = dml.read_parquet(table).map(fn, pure=False, schema=ROW)
    with cluster(2, processes=True) as made, Client(made) as client:
        rows = iter(on_cluster(client, ds))
        got = [next(rows)["n"]]
        assert eventually(lambda: len(notes.calls()) == ROWS)
        for nanny in made.workers.values():
            os.kill(nanny.pid, signal.SIGKILL)
        with pytest.raises(ReplayError, match="was lost") as caught:
            got.extend(row["n"] for row in rows)
        assert "called" in caught.value.at
        client.wait_for_workers(2, timeout=SOON_S)
        assert set(notes.calls().values()) == {1}
