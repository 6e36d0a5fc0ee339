"""Run adversarial pipelines, each in a process whose memory is measured from outside.

    python -m tests.laws.adversarial_run [--ways threads,limited,processes,cluster] [NAME ...]

This prints a table of the memory of each, counted as the memory limit counts it, and how it ended.
The way "limited" is threads in a process to which the system gives little more than that;
"group-threads" and similar ways run inside a control group of exactly the allowed memory.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import dml
from dml.errors import DmlError
from dml.exec.memory.memory_meter import counted_bytes
from dml.exec.memory.memory_shares import OVERHEAD_BYTES
from tests.laws import groups
from tests.laws.adversarial import ERROR, ROWS, Case
from tests.laws.adversarial_more import EVERY, FILES

MIB = 1 << 20
LIMIT_BYTES = 256 * MIB
FREE, GROUPED = ("threads", "limited", "processes", "cluster"), "group-"
WAYS = (*FREE, *(f"{GROUPED}{way}" for way in ("threads", "processes", "cluster")))
WORKERS = 2
# Beyond the number: for sizes that are known only once something has been made.
SLACK = 1.1
# What "limited" is given by the system beyond that: address space that allocators reserve, and do
# not use, is data to the system.
RESERVED_BYTES = 256 * MIB
# A process that takes more of the address space than this is told that there is no memory.
SPACE_BYTES = 12 << 30
# More than that, and the run is stopped before it takes the memory of others.
STOP_BYTES = 3 << 30
SAMPLE_S = 0.005
HANG_S = 300.0


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a run ended: rows and their sum, or an error; and the most memory it had."""

    rows: int = 0
    total: int = 0
    error: tuple[str, ...] = ()
    peak_bytes: int = 0
    allowed_bytes: int = 0
    seconds: float = 0.0
    status: int = 0
    output: str = ""
    kills: int = 0

    def wrong(self, case: Case) -> str:
        """What is not as promised; empty if all is well."""
        if self.status:
            return f"it ended with {self.status}: {self.output[-2000:]}"
        if self.kills:
            return f"{self.kills} of its processes were killed for memory"
        if self.peak_bytes > self.allowed_bytes:
            return f"{self.peak_bytes / MIB:.0f} MiB, {self.allowed_bytes / MIB:.0f} are allowed"
        if self.error:
            named = self.error[0] == "MemoryContractError" and all(self.error)
            return "" if named and case.ends != ROWS else f"it raised {self.error}"
        if case.ends == ERROR:
            return "it ended without an error"
        told = (self.rows, self.total)
        wanted = (self.rows if case.rows < 0 else case.rows, case.total)
        return "" if told == wanted else f"it gave {told}, not {wanted}"


# ------------------------------------------------------------------------------- inside the process


def counted(elements: Iterator[Any], column: str, *, slow: bool = False) -> tuple[int, int]:
    """Rows and the sum of ``column``; ``slow`` works on every element for some milliseconds."""
    rows = total = 0
    for element in elements:
        found = element[column]
        if slow:
            np.sort(np.random.default_rng(1).random(100_000))
        if isinstance(found, np.ndarray) and found.dtype == object:
            rows, total = rows + len(found), total + sum(int(np.sum(each)) for each in found)
        else:
            rows, total = rows + int(np.size(found)), total + int(np.sum(found))
    return rows, total


def looped(case: Case, ds: dml.Dataset, _: Path) -> tuple[int, int]:
    return counted(iter(ds), case.column, slow=case.verb == "slow")


def twice(case: Case, ds: dml.Dataset, folder: Path) -> tuple[int, int]:
    first, second = looped(case, ds, folder), looped(case, ds, folder)
    return first[0] + second[0], first[1] + second[1]


def split(case: Case, ds: dml.Dataset, _: Path) -> tuple[int, int]:
    """Three ranks, the first of them slow."""
    found: list[tuple[int, int]] = []
    errors: list[BaseException] = []

    def read(rank: int, part: Any) -> None:
        try:
            found.append(counted(iter(part), case.column, slow=not rank))
        except DmlError as error:
            errors.append(error)

    parts = enumerate(ds.streaming_split(3))
    threads = [threading.Thread(target=read, args=each) for each in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(rows for rows, _ in found), sum(total for _, total in found)


def written(case: Case, ds: dml.Dataset, folder: Path) -> tuple[int, int]:
    """To files, of which only the column that is added up is read again."""
    path = folder / f"written-{os.getpid()}"
    getattr(ds, f"write_{case.verb}")(path)
    read = dml.read_parquet if case.verb == "parquet" else dml.read_csv
    again = read(path, columns=[case.column]).batch(1000).with_options(memory_limit=LIMIT_BYTES)
    return counted(iter(again), case.column)


VERBS: dict[str, Callable[[Case, dml.Dataset, Path], tuple[int, int]]] = {
    "": looped,
    "slow": looped,
    "twice": twice,
    "split": split,
    "parquet": written,
    "csv": written,
}


@contextlib.contextmanager
def options(way: str) -> Iterator[dict[str, Any]]:
    """The settings of one way to run."""
    usual = {"memory_limit": LIMIT_BYTES, "telemetry_dir": "off"}
    way = way.removeprefix(GROUPED)
    if way != "cluster":
        executor = "threads" if way == "limited" else way
        yield {**usual, "executor": executor, "num_workers": WORKERS}
        return
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=WORKERS,
            threads_per_worker=1,
            memory_limit=0,
            dashboard_address=":0",
            silence_logs=50,
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield {**usual, "scheduler": client}


def allowed_bytes(way: str) -> int:
    """What all processes together may take: the number, a tenth, and the overhead of each."""
    processes = 1 if way.removeprefix(GROUPED) in {"threads", "limited"} else 1 + WORKERS
    return int(LIMIT_BYTES * SLACK) + processes * OVERHEAD_BYTES


def inside(name: str, way: str, folder: Path) -> None:
    """One run, in this process; prints how it ended."""
    resource.setrlimit(resource.RLIMIT_AS, (SPACE_BYTES, SPACE_BYTES))
    if way == "limited":
        data_bytes = allowed_bytes(way) + RESERVED_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    case, error = EVERY[name], list[str]()
    rows = total = 0
    with options(way) as given:
        try:
            ds = case.build(folder).with_options(**given)
            rows, total = VERBS[case.verb](case, ds, folder)
        except DmlError as raised:
            error = [type(raised).__name__, raised.what, raised.at, raised.why, raised.try_]
    say(json.dumps({"rows": rows, "total": total, "error": error}))
    os._exit(0)  # what Dask has to say at its end is not of interest


# --------------------------------------------------------------------------------------- outside it


def watched(name: str, way: str, folder: Path) -> Ending:
    """Run a pipeline in a process of its own, and sample its memory until it ends."""
    program = [sys.executable, "-W", "ignore", "-m", "tests.laws.adversarial_run"]
    if name in FILES:
        subprocess.run([*program, "write", name, way, str(folder)], check=True)
    command = [*program, "inside", name, way, str(folder)]
    allowed = allowed_bytes(way)
    if not way.startswith(GROUPED):
        return dataclasses.replace(sampled(command, folder), allowed_bytes=allowed)
    with groups.limited(allowed) as group:
        found = sampled(group.entering(command), folder)
        return dataclasses.replace(found, allowed_bytes=allowed, kills=group.killed())


def sampled(command: list[str], folder: Path) -> Ending:
    os_env = {**os.environ, "TMPDIR": str(folder)}
    with tempfile.TemporaryFile("w+") as output:
        run = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=os_env, start_new_session=True
        )
        started, peak = time.monotonic(), 0
        while run.poll() is None:
            looked = time.monotonic()
            peak = max(peak, counted_bytes(run.pid) or 0)
            if peak > STOP_BYTES or time.monotonic() > started + HANG_S:
                os.killpg(run.pid, 9)
            # to look takes a processor from what is looked at: half of it at most
            time.sleep(max(SAMPLE_S, time.monotonic() - looked))
        output.seek(0)
        text = output.read()
    told: dict[str, Any] = {"output": text}
    if not run.returncode:
        told |= json.loads(text.splitlines()[-1])
        told["error"] = tuple(told["error"])
    seconds = time.monotonic() - started
    return Ending(**told, peak_bytes=peak, seconds=seconds, status=run.returncode)


def say(text: str) -> None:
    """A line for whoever reads along."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="memory of adversarial pipelines")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    say("| pipeline | way | peak MiB | allowed | s | ended |\n|---|---|---|---|---|---|")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.names or EVERY:
            for way in asked.ways.split(","):
                found = watched(name, way, Path(folder))
                bad = found.wrong(EVERY[name])
                wrong += bool(bad)
                ended = f"**{bad}**" if bad else found.error[1] if found.error else "its rows"
                sizes = f"{found.peak_bytes / MIB:.0f} | {found.allowed_bytes / MIB:.0f}"
                say(f"| {name} | {way} | {sizes} | {found.seconds:.1f} | {ended} |")
    raise SystemExit(f"{wrong} are not as they should be" if wrong else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        EVERY[sys.argv[2]].build(Path(sys.argv[4]))
    elif sys.argv[1:2] == ["inside"]:
        inside(sys.argv[2], sys.argv[3], Path(sys.argv[4]))
    else:
        main()
