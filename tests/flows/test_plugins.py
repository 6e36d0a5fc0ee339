"""Run the code of docs/plugins.md, and install a package that provides its plugin."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml
from dml.cli.doctor import plugins
from dml.errors import PlanError
from dml.plugins import installed

PAGE = (Path(__file__).resolve().parents[2] / "docs/plugins.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
POINTS = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
HALVE = "def halve(ds, by):\n    return ds.with_columns(x=dml.col('x') / by)\n"


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    np.savez("data/a.npz", x=np.arange(3.0))
    np.savez("data/b.npz", x=np.arange(3.0, 5.0))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package as an installer leaves it: a module, and metadata with the page's entry points."""
    site = tmp_path / "site"
    info = site / "my_package-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.2\n")
    assert POINTS is not None
    groups = dict(re.findall(r'entry-points\."(.*?)"\]\n(\w+ = "[\w:]+)"', POINTS[1]))
    text = "".join(f"[{name}]\n{point.replace(chr(34), '')}\n" for name, point in groups.items())
    (info / "entry_points.txt").write_text(text)
    (site / "my_package.py").write_text(PROGRAMS[0] + HALVE)
    monkeypatch.syspath_prepend(str(site))
    yield site
    sys.modules.pop("my_package", None)
    importlib.invalidate_caches()


def test_the_page_runs() -> None:
    scope: dict[str, Any] = {}
    for program in PROGRAMS:
        exec(program, scope)
    assert scope["total"] == 10.0
    (first, second) = scope["means"]
    assert len(scope["means"].take_rows(9)) == 2
    assert first["mean"].shape == second["mean"].shape == (1,)
    again = dml.read_datasource(scope["NpzFolder"]("data"))
    assert again.fingerprint() == scope["ds"].fingerprint()


def test_sources_and_ops_of_packages_have_names(package: Path) -> None:
    ds = dml.read_datasource("npz", folder="data")
    assert [row["x"] for row in ds.apply_op("halve", by=2)] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert [each.name for each in installed("dml.sources")] == ["npz"]
    told = {each.name: (each.value, each.status) for each in plugins()}
    assert told["source npz"] == ("my_package:NpzFolder of my-package 1.2", "ok")
    assert told["op halve"] == ("my_package:halve of my-package 1.2", "ok")


def test_what_no_package_offers_is_refused(package: Path) -> None:
    with pytest.raises(PlanError, match=r"no package offers 'zip' in 'dml\.sources'") as caught:
        dml.read_datasource("zip")
    assert "npz" in caught.value.why
    with pytest.raises(PlanError, match=r"no package offers 'npz' in 'dml\.ops'"):
        dml.range(3).apply_op("npz")


def test_what_cannot_be_loaded_is_said(package: Path) -> None:
    (package / "my_package.py").write_text("raise ImportError('no such library')")
    with pytest.raises(PlanError, match="cannot be loaded"):
        dml.read_datasource("npz", folder="data")
    (found,) = [each for each in plugins() if each.name == "source npz"]
    assert found.status == "bad"
    assert "no such library" in found.advice


def test_two_packages_of_one_name_are_refused(package: Path) -> None:
    other = package / "other-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[dml.sources]\nnpz = elsewhere:NpzFolder\n")
    with pytest.raises(PlanError, match="several packages offer 'npz'") as caught:
        dml.read_datasource("npz", folder="data")
    assert caught.value.why == "my-package, other"


def test_an_op_gives_a_pipeline(package: Path) -> None:
    (package / "my_package.py").write_text("def halve(ds): return 3\n")
    with pytest.raises(PlanError, match="gave 3, which is no pipeline"):
        dml.range(3).apply_op("halve")
