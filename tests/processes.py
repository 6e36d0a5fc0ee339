"""Start Dask clusters whose workers, or whose scheduler and workers, are separate processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import dask
import psutil
from distributed import LocalCluster
from distributed.deploy.subprocess import Subprocess, SubprocessCluster

__all__ = ["LocalCluster", "cluster_of_processes"]

# Worker processes of a LocalCluster are copies of one process that has loaded Dask and its
# libraries: each would spend more than a second on that, and most tests start two or more.
dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})


@contextmanager
def cluster_of_processes(workers: int) -> Iterator[SubprocessCluster]:
    """A cluster with so many workers of a thread each, for whoever looks at one process alone."""
    options = {"threads_per_worker": 1, "scheduler_kwargs": {"dashboard": False}}
    cluster = SubprocessCluster(n_workers=workers, silence_logs=50, **options)
    try:
        yield cluster
    finally:
        with patch.object(Subprocess, "close", _closed):
            cluster.close()


_close = Subprocess.close


async def _closed(process: Subprocess) -> None:
    """As Dask closes it, which fails if it ends by itself in that moment."""
    try:
        await _close(process)
    except psutil.NoSuchProcess:
        process.process = None
        await _close(process)
