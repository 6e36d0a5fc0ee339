"""Fixtures for tests of the command line: a caller, and files with pipelines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dml.cli.app import answer

HERE = Path(__file__).parent

# The stand-in is loaded by path: with import-mode=importlib, test folders are no packages.
PREAMBLE = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
from pipelines import FakeDataset
"""


class Told(NamedTuple):
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def clean_imports() -> Iterator[None]:
    """A command leaves its target imported, since its process ends; a test must not."""
    folders, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = folders
    for name in {"dml_target", "pipelines"} - modules:
        sys.modules.pop(name, None)


@pytest.fixture
def dml(capsys: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    """`dml("run", target, "--json")`: call the command line in this process."""

    def call(*arguments: object) -> Told:
        capsys.readouterr()
        code = answer([str(each) for each in arguments])
        return Told(code, *capsys.readouterr())

    return call


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    """`written("ds = FakeDataset()")`: a file with that text; gives its target."""

    def write(text: str, name: str = "ds") -> str:
        path = tmp_path / "train.py"
        path.write_text(PREAMBLE + text)
        return f"{path}:{name}"

    return write
