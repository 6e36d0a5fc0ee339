"""Law: a run does not wait for one delayed slice if that may be repeated elsewhere."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from tests.idle import living
from tests.laws.kills import HANG_S, within
from tests.laws.test_kills import START_S, WORKERS, with_nannies

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:unclosed:Warning"),
]

UNITS, UNIT_ROWS = 24, 20
HELD = 15 * UNIT_ROWS  # the row whose first call takes as long as it is told


def held_back(folder: Path) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function whose first call for one row waits until the run is over, or for ever."""

    def noted(row: dict[str, Any]) -> dict[str, Any]:
        file = os.open(folder / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{row['k']}\n".encode())
        os.close(file)
        if row["k"] == HELD:
            try:
                os.close(os.open(folder / "first", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return row
            deadline = time.monotonic() + 2 * HANG_S  # longer than the run may take
            while not (folder / "over").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        return row

    return noted


@contextmanager
def processes() -> Iterator[dict[str, Any]]:
    yield {"executor": "processes", "num_workers": WORKERS}


@contextmanager
def a_cluster() -> Iterator[dict[str, Any]]:
    with with_nannies() as (client, _):
        client.wait_for_workers(WORKERS, timeout=START_S)
        yield {"scheduler": client}


# Not on a cluster behind another stage: there the reader of later rows may be parked in the worker
# that is held up, and is not begun again.
@pytest.mark.parametrize(
    ("way", "later"), [(processes, False), (processes, True), (a_cluster, False)]
)
def test_a_slice_that_is_held_back_is_done_elsewhere(way: Any, later: bool, tmp_path: Path) -> None:
    keys = np.arange(UNITS * UNIT_ROWS)
    pq.write_table(pa.table({"k": keys}), tmp_path / "a.parquet", row_group_size=UNIT_ROWS)
    function = held_back(tmp_path)
    before = living()  # of other tests: the pool keeps them for some time
    with way() as options:
        ds = dml.read_parquet(tmp_path / "a.parquet")
        if later:
            ds = ds.map_batches(lambda batch: batch, num_cpus=0.5)
        # on a cluster a task is a unit; elsewhere slices are cut by their time
        target: dict[str, Any] = {"target_partition_bytes": 1} if way is a_cluster else {}
        ds = ds.map(function, schema={"k": "int64"}).with_options(
            speculative=True, telemetry_dir="off", **target
        )
        ds = ds.with_options(**options)
        assert [row["k"] for row in within(iter(ds), HANG_S)] == keys.tolist()
        assert (tmp_path / "first").exists()
        (tmp_path / "over").touch()
    calls = Counter((tmp_path / "ledger").read_text().split())
    assert calls[str(HELD)] == 2
    assert max(calls.values()) == 2
    again = {int(key) // UNIT_ROWS for key, times in calls.items() if times > 1}
    assert HELD // UNIT_ROWS in again
    # twice as many, as later slices ask for half a processor; and the one that held them up
    assert len([worker for worker in living() if worker not in before]) <= 2 * WORKERS + 1
