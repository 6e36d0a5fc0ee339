"""Run every example, the demo and the notebook, as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(path for path in EXAMPLES.glob("*.py") if not path.name.startswith("demo"))
NOTEBOOK = EXAMPLES / "quickstart.ipynb"
LINES, DEMO_S, NOTEBOOK_BYTES = 60, 60.0, 20_000


def run(program: Path, scratch: Path) -> str:
    """What the program prints; it must end well and leave its temporary folder empty."""
    scratch.mkdir()
    surroundings = {**os.environ, "TMPDIR": str(scratch)}
    surroundings["TORCHINDUCTOR_CACHE_DIR"] = str(scratch.parent / "inductor")  # torch keeps that
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        capture_output=True, text=True, cwd=ROOT, env=surroundings, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    assert not list(scratch.iterdir())
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_examples_run(program: Path, tmp_path: Path) -> None:
    if program.name.startswith("torch"):
        pytest.importorskip("torch")
    assert run(program, tmp_path / "scratch")


@pytest.mark.parametrize("program", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_short(program: Path) -> None:
    assert len(program.read_text(encoding="utf-8").splitlines()) <= LINES


@pytest.mark.slow
def test_the_demo(tmp_path: Path) -> None:
    begin = time.perf_counter()
    text = run(EXAMPLES / "demo.py", tmp_path / "scratch")
    assert time.perf_counter() - begin < DEMO_S
    named = re.findall(r"the rest: +([0-9a-f]{32})", text)
    assert len(named) == 2
    assert len(set(named)) == 1
    assert "the same bytes" in text
    for word in ("FlatMap(sequences)", "ShuffleWindow", "rows/s", "bytes/s", "sequences, "):
        assert word in text


@pytest.mark.slow
def test_the_notebook(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Runs anew to the very outputs that are stored in it, which are text, and few.

    After a change that is meant: ``pytest tests/flows --update-plans``, then read the diff.
    """
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    stored, fresh = read(NOTEBOOK), read(NOTEBOOK)
    NotebookClient(fresh, timeout=60, kernel_name="python3").execute()
    if request.config.getoption("--update-plans"):
        for cell in fresh.cells:
            cell.metadata = {}
            cell.update({"execution_count": None} if cell.cell_type == "code" else {})
            for output in cell.get("outputs", []):
                output.update({"execution_count": None} if "execution_count" in output else {})
        fresh.metadata = stored.metadata
        nbformat.write(fresh, NOTEBOOK)  # type: ignore[no-untyped-call]
    assert [outputs(cell) for cell in fresh.cells] == [
        outputs(cell) for cell in read(NOTEBOOK).cells
    ]
    assert NOTEBOOK.stat().st_size < NOTEBOOK_BYTES


def read(path: Path) -> nbformat.NotebookNode:
    found: nbformat.NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    return found


def outputs(cell: nbformat.NotebookNode) -> list[str]:
    """The text that a cell shows."""
    shown = cell.get("outputs", [])
    return [output.get("text") or output["data"]["text/plain"] for output in shown]
