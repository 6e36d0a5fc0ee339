"""Test how the command line finds a pipeline in a file, and its state after failures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def test_a_file_sees_its_own_folder(
    dml: Callable[..., Any], written: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "beside_the_target.py").write_text("batches = 2")
    target = written("from beside_the_target import batches\nds = FakeDataset(batches)")
    assert dml("run", target, "--json").json["batches"] == 2
    sys.modules.pop("beside_the_target")


@pytest.mark.parametrize(
    "target", ["train.py", "train.py:", ":ds", "train.py:a.b", "no/file.py:ds"]
)
def test_a_target_that_is_none(dml: Callable[..., Any], target: str) -> None:
    told = dml("run", target)
    assert told.code == 2
    assert "Error: " in told.err


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("ds = FakeDataset()", "da", "has no dataset 'da'; its datasets are ds"),
        ("ds = 3", "ds", "which is a int; it defines no dataset"),
        ("ds = FakeDataset", "ds", "has no dataset 'ds', which is a type"),
    ],
)
def test_a_name_that_is_missing_tells_what_there_is(
    dml: Callable[..., Any], written: Callable[..., Any], text: str, name: str, says: str
) -> None:
    told = dml("fingerprint", written(text, name), "--json")
    assert told.code == 2
    assert says in told.err
    assert told.json["error"]["kind"] == "UsageError"


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("x = 1\nx.missing", 6, "no attribute 'missing'"),
        ("def f(:", 5, "invalid syntax"),
        ("import sys\nsys.exit(3)", 6, "3"),
    ],
)
def test_a_file_that_raises_leaves_nothing_behind(
    dml: Callable[..., Any], written: Callable[..., Any], text: str, line: int, why: str
) -> None:
    modules, folders = set(sys.modules), list(sys.path)
    target = written(text)
    told = dml("explain", target)
    assert told.code == 1
    assert f"train.py:{line}" in told.err
    assert why in told.err
    assert "dml_target" not in sys.modules
    assert set(sys.modules) - modules <= {"pipelines"}
    assert [each for each in sys.path if each not in folders] == []


def test_a_dml_error_of_the_file_is_shown_as_it_is(
    dml: Callable[..., Any], written: Callable[..., Any]
) -> None:
    told = dml("explain", written("from dml.errors import PlanError\nraise PlanError('no rows')"))
    assert told.code == 1
    assert told.err.startswith("PlanError: no rows")


@pytest.mark.law
def test_the_module_is_a_command_too(written: Callable[..., Any]) -> None:
    target = written("ds = FakeDataset()")
    done = subprocess.run(
        [sys.executable, "-m", "dml", "fingerprint", target],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "result-digest\n", "")
