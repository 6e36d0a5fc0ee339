"""Run a command while its processes and threads are delayed at drawn times: tests that race fail.

    python tests/shaking.py [--seed N] -- python -m pytest -n 2 tests/exec tests/cluster

Every few milliseconds a process below the command is stopped for up to 50 ms, or one of its threads
gets another priority beside two busy loops, so that switches happen where they seldom do. Threads
of Python take turns every few microseconds.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil

# Seconds from one delay to the next, on average, and of the longest one; the least priority.
PAUSE_S, LONGEST_S, LEAST = 0.02, 0.05, 19
BUSY = "while True: pass"
SWITCH_INTERVAL_S = 1e-5


def shake(pid: int, draw: random.Random) -> None:
    """Delay one process below ``pid``, or one of its threads; not one that a test has stopped."""
    processes = psutil.Process(pid).children(recursive=True)
    if not processes:
        return
    chosen = draw.choice(processes)
    if chosen.status() == psutil.STATUS_STOPPED:
        return
    if draw.random() < 0.5:
        with suppress(ProcessLookupError):
            os.kill(chosen.pid, signal.SIGSTOP)
        time.sleep(draw.uniform(0, LONGEST_S))
        with suppress(ProcessLookupError):
            os.kill(chosen.pid, signal.SIGCONT)
    elif threads := chosen.threads():
        os.setpriority(os.PRIO_PROCESS, draw.choice(threads).id, draw.randint(0, LEAST))


def main() -> int:
    """Run the command of the command line, and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2)]
    try:
        command = subprocess.Popen(
            given.command[given.command[:1] == ["--"] :],
            env={**os.environ, "SWITCH_INTERVAL_S": str(SWITCH_INTERVAL_S)},
        )
        while command.poll() is None:
            time.sleep(draw.expovariate(1 / PAUSE_S))
            with suppress(psutil.Error, OSError):
                shake(command.pid, draw)
        return command.returncode
    finally:
        for loop in loops:
            loop.kill()


if __name__ == "__main__":
    sys.exit(main())
