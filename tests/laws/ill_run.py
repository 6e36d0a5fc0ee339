"""Run misbehaving functions, and after each an ordinary pipeline; report what remains.

    python -m tests.laws.ill_run processes FIRST COUNT

This prints a line for each wrong run, and how the runs ended. The process has a temporary folder
and a cache folder of its own, so everything that remains there at the end comes from these runs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import multiprocessing
import os
import re
import signal
import sys
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dml
from dml.api.dataset import Dataset
from dml.errors import DmlError, InternalError, UDFError
from dml.testing.oracle import Oracle
from tests.idle import no_workers
from tests.laws import ill
from tests.laws.ill import (
    EITHER,
    FAILS,
    GIVES,
    HANGS,
    IN_THE_CALLER,
    INNOCENT,
    ROWS,
    UNIT_ROWS,
    Case,
)
from tests.laws.test_kills import WORKERS, without_nannies

SEED = 20261124
MARK = "DML_ILL_RUN"
BOUND_S = {"threads": 30, "processes": 60, "cluster": 120}
CLOSED_S = 1.5  # a run that hangs is closed after so long


# Operators that get elements, and no units: a lost worker is told by the operator alone.
SLICED = {"batch.map": "MapBatch"}


class ClosedError(BaseException):
    """The consumer has had enough."""


def told(found: Any) -> Any:
    """A row or batch as what can be compared."""
    return {
        name: repr(each.tolist() if isinstance(each, np.ndarray | np.generic) else each)
        for name, each in found.items()
    }


class Runs:
    """Runs in this process, with the options of one executor."""

    def __init__(self, folder: Path, executor: str, options: dict[str, Any]) -> None:
        self.folder, self.executor = folder, executor
        self.pids = options.pop("pids", None)
        self.options = {"telemetry_dir": "off", **options}
        self.ended = Counter[str]()
        self.table = folder / "numbers.parquet"
        pq.write_table(pa.table({"id": np.arange(ROWS)}), self.table, row_group_size=UNIT_ROWS)

    def wrong(self, case: Case) -> str:
        """What was not as it should be; empty if all was well."""
        own = self.folder / f"case-{case.number}"
        own.mkdir()
        ds = case.pipeline(self.table, own)
        wanted = [*map(told, Oracle(case.pipeline(self.table, own, well=True)._node).elements())]
        faulthandler.dump_traceback_later(BOUND_S[self.executor], exit=True)
        rows, error = self.taken(ds, hangs=case.ends == HANGS)
        bad = self.judged(case, rows, wanted, error)
        self.ended[f"{case.kind}: {'rows' if error is None else type(error).__name__}"] += 1
        if case.ends == HANGS and self.pids is not None:
            self.replaced(self.options["scheduler"], self.pids)
        return bad or self.innocent(case.number)

    def replaced(self, client: Any, pids: Callable[[], list[int]]) -> None:
        """End the workers of the cluster, which dml does not: one has no thread left for others."""
        for pid in pids():
            os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + 60
        while time.monotonic() < until and len(client.nthreads()) == WORKERS:
            time.sleep(0.05)
        client.wait_for_workers(WORKERS, timeout=60)

    def taken(self, ds: Dataset, *, hangs: bool) -> tuple[list[Any], BaseException | None]:
        """Rows that came, and what was raised."""
        rows: list[Any] = []
        here = os.getcwd()
        signal.signal(signal.SIGALRM, _enough)
        batches = iter(ds.with_options(**self.options))
        try:
            signal.setitimer(signal.ITIMER_REAL, CLOSED_S if hangs else 0)
            rows.extend(map(told, batches))
        except BaseException as error:  # noqa: BLE001 (this is what is looked at)
            return rows, error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            _released(batches)
            os.chdir(here)
        return rows, None

    def judged(
        self, case: Case, rows: list[Any], wanted: list[Any], error: BaseException | None
    ) -> str:
        if rows != wanted[: len(rows)]:
            return f"rows {rows[-3:]} are not among {wanted[:3]} ..."
        if error is None:
            fits = case.ends in (GIVES, EITHER) or case.once
            return "" if fits and rows == wanted else f"{len(rows)} rows and no error"
        if isinstance(error, ClosedError):
            return "" if case.ends == HANGS else "it was closed"
        if not isinstance(error, DmlError) or isinstance(error, InternalError):
            return f"{type(error).__name__}: {error!r:.800}"
        fits = case.ends in (FAILS, EITHER)
        return _unplaced(case, error) if fits else f"it raised {error}"

    def innocent(self, number: int) -> str:
        """An innocent run, in what the run before has left."""
        ds = INNOCENT[number % len(INNOCENT)](dml.read_parquet(self.table), (number + 1) * 1000)
        wanted = [*map(told, Oracle(ds._node).elements())]
        rows, error = self.taken(ds, hangs=False)
        if error is not None:
            return f"the innocent run after it raised {type(error).__name__}: {error}"
        return "" if rows == wanted else f"the innocent run after it gave {rows[:3]} ..."


def _enough(*_: object) -> None:
    raise ClosedError


def _released(batches: Any) -> None:
    close = getattr(batches, "close", None)
    if close is not None:
        close()


def _unplaced(case: Case, error: DmlError) -> str:
    """What the error lacks: four lines, and the place of the row where functions see rows."""
    lines = {"what": error.what, "at": error.at, "why": error.why}
    lacking = [name for name, text in lines.items() if not text]
    if lacking:
        return f"{type(error).__name__} has no {lacking}: {error}"
    group, sliced = case.at // UNIT_ROWS, f"a slice of {SLICED.get(case.shape)}"
    groups = [*map(int, re.findall(r"row group (\d+)", error.at))]
    inside = groups and min(groups) <= group <= max(groups)
    if inside or sliced in error.at or (isinstance(error, UDFError) and "batch" in case.shape):
        return ""
    return f"neither row group {group} nor {sliced!r} is in {error.at!r}"


# ------------------------------------------------------------------------------------ what is left


def marked(mark: str) -> dict[int, str]:
    """Processes that this one has begun, however they came to be, by what they run."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and int(entry.name) not in (os.getpid(), os.getppid()):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and mark.encode() in (entry / "environ").read_bytes():
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(entry.name)] = line.decode()
    return found


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def opened() -> Counter[str]:
    """What this process has open that is nameless or a connection."""
    found = Counter[str]()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            to = os.readlink(f"/proc/self/fd/{name}")
            found[to.partition(":")[0] if to.startswith(("socket", "pipe", "anon")) else to] += 1
    return found


def left(before: dict[str, Any], mark: str) -> list[str]:
    """What stands that did not stand before; who is ending has seconds for it."""
    until = time.monotonic() + 60
    while (found := _more(before, mark)) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.2)
    return found


def begun_elsewhere(cases: list[Case], folder: Path) -> int:
    """How many processes functions have begun in others than workers of dml's."""
    theirs = [case for case in cases if case.executor != "processes" or case.shape in IN_THE_CALLER]
    found = (folder / f"case-{case.number}" / "begun" for case in theirs)
    return sum(path.stat().st_size for path in found if path.exists())


def ended(cases: list[Case], folder: Path, mark: str) -> None:
    """End processes that functions have begun in others than workers, if there are no others."""
    found = marked(mark)
    if len(found) <= begun_elsewhere(cases, folder):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for each in multiprocessing.active_children():  # which lets go of its pipes
        each.join(1)


def standing() -> dict[str, Any]:
    """What there is: files, memory with a name, what is open."""
    temporary, cache = Path(os.environ["TMPDIR"]), Path(os.environ["XDG_CACHE_HOME"])
    return {
        "file": {name for name in files(temporary) if not name.startswith("dask-scratch-space")},
        "cache": {name for name in files(cache) if "kernels" not in name},
        "shared memory": {name for name in files(Path("/dev/shm")) if "dml" in name},
        "open": set(_numbered(opened())),
    }


def _numbered(found: Counter[str]) -> Iterator[str]:
    for name, count in found.items():
        yield from (f"{name} {number}" for number in range(count))


def _more(before: dict[str, Any], mark: str) -> list[str]:
    now = standing()
    found = [f"{kind}: {each}" for kind in now for each in sorted(now[kind] - before[kind])]
    return found + [f"process: {pid} {line}" for pid, line in marked(mark).items()]


@contextlib.contextmanager
def options(executor: str) -> Iterator[dict[str, Any]]:
    """The settings of an executor."""
    if executor != "cluster":
        yield {"executor": executor, "num_workers": 2}
        no_workers(60)
        return
    with without_nannies() as (client, pids):
        yield {"scheduler": client, "worker_silent_s": 5, "worker_wait_s": 30, "pids": pids}


def main(executor: str, first: int, count: int) -> None:
    """Run the cases, and print what was wrong."""
    warnings.simplefilter("ignore")
    mark = os.environ[MARK]
    folder = Path(os.environ["TMPDIR"]).parent
    before = standing()
    wrong: dict[str, str] = {}
    with options(executor) as given:
        runs, drawn = (
            Runs(folder, executor, given),
            ill.cases(SEED, executor, first + count)[first:],
        )
        for case in drawn:
            started = time.monotonic()
            if bad := runs.wrong(case):
                wrong[str(case)] = bad
                say({"case": str(case), "wrong": bad})
            if os.environ.get("DML_ILL_TOLD"):
                say({"case": str(case), "s": round(time.monotonic() - started, 2)})
    faulthandler.cancel_dump_traceback_later()
    ended(drawn, folder, mark)
    say({"runs": count, "wrong": wrong, "ended": runs.ended, "left": left(before, mark)})
    os._exit(0)  # functions that hang in threads of this process


def say(found: dict[str, Any]) -> None:
    os.write(1, (json.dumps(found) + "\n").encode())


def environment(folder: Path) -> dict[str, str]:
    """The environment of such a process, whose temporary folder and caches are in ``folder``."""
    own = {"TMPDIR": folder / "tmp", "XDG_CACHE_HOME": folder / "cache"}
    for each in own.values():
        each.mkdir()
    return {**os.environ, **{k: str(v) for k, v in own.items()}, MARK: uuid.uuid4().hex}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
