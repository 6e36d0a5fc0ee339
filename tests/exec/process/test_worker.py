"""Test worker processes: the environment of functions, and when workers end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml
from dml.api.dataset import Dataset
from dml.errors import PlanError
from tests.hangs import eventually

pytestmark = pytest.mark.cluster

HANG_S = 60.0
ROOT = Path(__file__).parents[3]


def run(ds: Dataset, workers: int = 1, **more: Any) -> list[Any]:
    return list(
        ds.with_options(executor="processes", num_workers=workers, telemetry_dir="off", **more)
    )


@pytest.fixture
def one() -> Dataset:
    return dml.range(1)


def test_a_run_has_the_surroundings_of_its_begin(
    one: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = one.map(lambda _: {"v": os.environ.get("DML_TEST", ""), "at": os.getcwd()})
    run(ds)
    monkeypatch.setenv("DML_TEST", "set")
    monkeypatch.chdir(tmp_path)
    assert run(ds) == [{"v": "set", "at": str(tmp_path)}]
    monkeypatch.delenv("DML_TEST")
    assert run(ds) == [{"v": "", "at": str(tmp_path)}]


def test_an_edited_module_is_not_taken_from_an_old_worker(
    one: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for value in (1, 22):
        (tmp_path / "dml_edited.py").write_text(
            f"def f(row):\n    return {{'n': len(str({value}))}}\n"
        )
        sys.modules.pop("dml_edited", None)
        module = __import__("dml_edited")
        assert run(one.map(module.f)) == [{"n": len(str(value))}]
    (tmp_path / "dml_edited.py").write_text("def f(row):\n    return {'n': 0}\n")
    with pytest.raises(PlanError, match=r"dml_edited\.f is something else"):
        run(one.map(sys.modules["dml_edited"].f))
    del sys.modules["dml_edited"]


FORKING = """
import os, dml
ds = dml.range(3).map(lambda row: {"pid": os.getpid() + 0 * len(str(row))})
ds = ds.with_options(executor="processes", num_workers=1, telemetry_dir="off")
first = list(ds)
if os.fork() == 0:
    second = list(ds)
    os._exit(0 if second != first else 1)
assert os.wait()[1] == 0
assert list(ds) == first
"""


def test_a_forked_child_has_workers_of_its_own() -> None:
    python(FORKING)


def python(program: str, *, stdin: bool = False) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-"] if stdin else [sys.executable, "-c", program]
    return subprocess.run(
        arguments, input=program if stdin else None, capture_output=True, text=True,
        timeout=HANG_S, check=True, cwd=ROOT,
    )  # fmt: skip


SCRIPT = """
import dataclasses, os, sys, dml

class Halt(Exception): pass

@dataclasses.dataclass
class Scale:
    by: int
    def of(self, row): return {"y": row["id"] * self.by, "t": str(os.getpid() != HERE)}

HERE = os.getpid()
offset = 1
ds = dml.range(8).map(Scale(3).of).map(lambda r: {**r, "y": r["y"] + offset, "l": len(r["t"])})
ds = ds.with_options(executor="processes", num_workers=2, telemetry_dir="off")
print([row["y"] for row in ds], {row["t"] for row in ds})
def halts(row):
    print("seen in the worker")
    raise Halt
try:
    list(ds.map(halts))
except dml.errors.UDFError as error:
    print(type(error.__cause__) is Halt)
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize("way", ["-c", "stdin", "script"])
def test_main_modules_of_all_kinds_without_a_guard(way: str, tmp_path: Path) -> None:
    if way == "script":
        (tmp_path / "beside.py").write_text("def add(row): return {**row, 'b': len(str(row))}\n")
        script = tmp_path / "script.py"
        script.write_text(SCRIPT + "import beside\nassert list(ds.map(beside.add))[0]['b'] > 3\n")
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, timeout=HANG_S,
            check=True, cwd="/", env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    else:
        done = python(SCRIPT, stdin=way == "stdin")
    assert "[1, 4, 7, 10, 13, 16, 19, 22] {'True'}" in done.stdout
    assert "seen in the worker" in done.stdout
    said = done.stdout.partition("}")[2]  # workers may print behind it, as rows are made ahead
    assert "True" in said
    assert "False" not in said
    assert done.stderr == ""


HOLDING = """
import os, sys, dml

def stuck(row):
    if row["id"] == 3:
        print(os.getpid(), flush=True)
        sum(range(10**12))  # holds Python's lock, and sees no signal handler
    return row
for _ in dml.range(9).map(stuck).with_options(
    executor="processes", num_workers=1, telemetry_dir="off"
):
    pass
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_go_with_their_parent_whatever_they_do(how: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(how)
        try:
            # the call itself would take for hours
            assert eventually(lambda: not runs(pid))
            assert parent.wait(HANG_S) == -how
        finally:
            parent.kill()
        assert parent.stderr is not None
        text = parent.stderr.read()
    # a signal that comes while an error is handled is reported with that error
    traces = text.count("Traceback") - text.count("During handling of the above exception")
    assert traces == (1 if how == signal.SIGINT else 0), text


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_an_array_is_shared_by_all_workers() -> None:
    data = np.arange(1 << 20)
    ds = dml.range(1 << 12).map_batches(partial(mapped, data), batch_size=1 << 8)
    rows = run(ds.batch(1 << 8), workers=2)
    assert sum(len(batch["x"]) for batch in rows) == 1 << 12
    assert {bool(batch["shared"].all()) for batch in rows} == {True}


def mapped(data: np.ndarray, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with open("/proc/self/maps", encoding="ascii") as file:
        sizes = [line.split()[0].split("-") for line in file if "memfd:dml" in line]
    large = any(int(end, 16) - int(start, 16) >= 8 << 20 for start, end in sizes)
    return {"x": data[batch["id"]], "shared": np.full(len(batch["id"]), large)}
