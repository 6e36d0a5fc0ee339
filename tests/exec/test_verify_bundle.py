"""This file tests the folder that shows how two plans differ, here and in another process."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from dml.errors import VerificationWarning
from dml.testing.stream_hash import stream_hash
from tests.exec.planting import (
    PLANTED,
    Sure,
    as_written,
    filtered,
    forgotten_predicate,
    planted,
    run_again,
)


@pytest.mark.parametrize("name", PLANTED)
def test_the_folder_shows_it_in_another_process(
    name: str, sure: Sure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make, rule = PLANTED[name]
    planted(monkeypatch, rule)
    with pytest.warns(VerificationWarning):
        list(sure(make()))
    (folder,) = (tmp_path / "bundles").iterdir()
    assert rule.name in (folder / "stations" / "rules.txt").read_text()
    assert rule.name in (folder / "REPORT.md").read_text()
    assert set(json.loads((folder / "environment.json").read_text())["versions"]) >= {"dml"}
    assert folder.stat().st_mode & 0o077 == 0
    again = run_again(folder)
    assert again.returncode == 1, again.stdout + again.stderr
    assert "made again here" in again.stdout


def test_the_rows_of_the_atom_are_in_the_folder(
    sure: Sure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planted(monkeypatch, forgotten_predicate)
    with pytest.warns(VerificationWarning):
        list(sure(filtered()))
    (folder,) = (tmp_path / "bundles").iterdir()
    tables = {
        name: pa.ipc.open_file(pa.memory_map(str(folder / f"{name}.arrow"))).read_all()
        for name in ("input-0-0", "naive", "chosen")
    }
    assert tables["input-0-0"].num_rows == tables["chosen"].num_rows == 1000
    assert tables["naive"].num_rows == 334
    assert "__id_low" in tables["naive"].schema.names


def test_functions_that_cannot_be_pickled_are_said_to_be_missing(
    sure: Sure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planted(monkeypatch, forgotten_predicate)
    monkeypatch.setattr(
        "dml.exec.verify.bundle._Pickler.dump", lambda *_: (_ for _ in ()).throw(TypeError("no"))
    )
    with pytest.warns(VerificationWarning):
        list(sure(filtered()))
    (folder,) = (tmp_path / "bundles").iterdir()
    assert "cannot make these rows again" in (folder / "REPORT.md").read_text()
    again = run_again(folder)
    assert again.returncode == 2, again.stderr
    assert "REPORT.md says why" in again.stdout


def test_a_folder_that_cannot_be_written_costs_nothing(
    sure: Sure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bundles").write_text("a file")
    wanted = as_written(filtered())
    planted(monkeypatch, forgotten_predicate)
    with pytest.warns(VerificationWarning, match="no report"):
        assert stream_hash(sure(filtered())) == wanted
