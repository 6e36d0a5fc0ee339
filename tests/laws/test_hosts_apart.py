"""Law: if a worker loses its connection for a time, the run continues with the same bytes."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dml.data.stream_hash import stream_hash
from tests.laws.hosts import Hosts, missing
from tests.laws.phases import UNITS, Graves, pipeline, write

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SCHEDULER, CLIENT, FIRST, SECOND = range(4)
BEFORE = 4  # batches until the network is cut
ROW_S = 0.3  # the network is whole again before the end
_log = logging.getLogger(__name__)


@pytest.mark.parametrize("cut_s", [5, 45])  # Dask gives up a connection after 30 s
def test_a_worker_that_is_cut_off_for_a_time(cut_s: float, tmp_path: Path, whole: bool) -> None:
    if not whole:
        pytest.skip("on demand: --whole")
    if lacking := missing():
        pytest.skip(lacking)
    write(tmp_path)
    wanted = stream_hash(pipeline(tmp_path, Graves(tmp_path), 0.0, executor="sync"))
    (tmp_path / "ledger").unlink()
    with Hosts(4) as hosts:
        address = f"tcp://{hosts.address(SCHEDULER)}:8786"
        dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard"]
        hosts.start(SCHEDULER, [*dask, "--host", hosts.address(SCHEDULER)])
        over = threading.Event()
        keepers = [
            threading.Thread(target=kept_up, args=(hosts, host, address, over))
            for host in (FIRST, SECOND)
        ]
        for keeper in keepers:
            keeper.start()
        try:
            told = trained(hosts, tmp_path, address, cut_s)
        finally:
            over.set()
            for keeper in keepers:
                keeper.join()
        assert told == [*map(str, range(1, UNITS + 1)), wanted]


def kept_up(hosts: Hosts, host: int, address: str, over: threading.Event) -> None:
    """A worker on ``host``, which is started again when it ends, as a service is."""
    dask = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny"]
    while not over.is_set():
        worker = hosts.start(host, [*dask, "--nthreads", "1", "--no-dashboard"])
        while worker.poll() is None and not over.wait(0.2):
            pass


def trained(hosts: Hosts, folder: Path, address: str, cut_s: float) -> list[str]:
    """What a trainer says, while the first worker is cut off for ``cut_s`` seconds."""
    command = ["-m", "tests.laws.apart_client", str(folder), address, str(ROW_S)]
    trainer = hosts.start(CLIENT, [sys.executable, *command], subprocess.PIPE)
    told: list[str] = []
    healing: threading.Timer | None = None
    started = time.monotonic()
    for line in trainer.stdout or ():
        told.append(line.strip())
        _log.info("%s after %.1f s", line.strip(), time.monotonic() - started)
        if len(told) == BEFORE:
            hosts.cut(FIRST)
            healing = threading.Timer(cut_s, hosts.heal, (FIRST,))
            healing.start()
    assert healing is not None
    assert healing.finished.is_set(), "the run was over before the network was whole again"
    return told
