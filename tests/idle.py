"""Wait until worker processes are idle or gone, and list open resources, for tests that count."""

from __future__ import annotations

import gc
import os
import sys
import time

from dml.exec.process.worker_pool import ALL, POOL, Worker


def descriptors() -> set[tuple[int, int]]:
    """What this process has open and where each leads: what others close since is no loss.

    Files of ``/proc`` are left out: threads of other tests may be reading how busy they are.
    """
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            inode = os.fstat(int(name)).st_ino
            if not os.readlink(f"/proc/self/fd/{name}").startswith("/proc/"):
                found.add((int(name), inode))
        except OSError:  # the listing's own, and what another thread closed meanwhile
            continue
    return found


def living() -> list[Worker]:
    """Worker processes of this process, idle or not."""
    return [worker for worker in list(ALL) if worker.process.poll() is None]


def settle(seconds: float) -> None:
    """Wait until every worker is idle: the end of a run gives them back a moment later."""
    until = time.monotonic() + seconds
    while len(POOL._idle) < len(living()) and time.monotonic() < until:
        time.sleep(0.005)


def no_workers(seconds: float) -> None:
    """End idle workers; those of a run that just ended are given back within ``seconds``."""
    until = time.monotonic() + seconds
    while _held() and time.monotonic() < until:
        gc.collect()
        POOL.close()
        time.sleep(0.01)
    assert not _held()
    gc.collect()


def no_drivers(seconds: float) -> None:
    """End driver processes; those of a run that just ended are over within ``seconds``."""
    drivers = sys.modules.get("dml.ranks.driver.driver_handle")
    until = time.monotonic() + seconds
    while drivers is not None and any(each.lifeline.fileno() >= 0 for each in list(drivers.EVERY)):
        assert time.monotonic() < until
        gc.collect()
        drivers.DRIVERS.close()
        time.sleep(0.01)


def _held() -> bool:
    """Whether anything is open that belongs to a worker; its lifeline is let go last."""
    return any(worker.lifeline.fileno() >= 0 for worker in list(ALL))
