"""Test the bundle folder, which reproduces a difference between plans in any process."""

from __future__ import annotations

import importlib
import json
import tempfile
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pytest

import dml
from dml import col
from dml.api import session
from dml.api.resources import RunResources
from dml.data.stream_hash import stream_hash
from dml.errors import VerificationWarning
from dml.kernels.compiled import tier_choice
from dml.settings import Settings
from tests.verify.planting import (
    PLANTED,
    Sure,
    as_written,
    filtered,
    forgotten_predicate,
    planted,
    rows,
    run_again,
)


def test_who_has_no_folder_gets_one_that_nobody_else_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(session, "telemetry_root", lambda _: None)
    places = {session._bundles_folder(Settings()) for _ in range(2)}
    assert len(places) == 2
    assert {place.parent.parent for place in places} == {tmp_path}


@pytest.mark.sample(2)
@pytest.mark.law
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


@pytest.mark.law
def test_functions_that_cannot_be_pickled_are_said_to_be_missing(
    sure: Sure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planted(monkeypatch, forgotten_predicate)
    monkeypatch.setattr(
        "dml.verify.bundle._Pickler.dump", lambda *_: (_ for _ in ()).throw(TypeError("no"))
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


PLANT = """
from dml.kernels.compiled import tier_choice

right = tier_choice._run_compiled


def wrong(*given, **options):
    result = right(*given, **options)
    outputs = [
        each._replace(values=each.values + 1) if each.values.dtype.kind == "f" else each
        for each in result.outputs
    ]
    return result._replace(outputs=outputs)


tier_choice._run_compiled = wrong
"""


@pytest.mark.law
def test_a_wrong_kernel_is_shown_where_it_is_wrong(sure: Sure, tmp_path: Path) -> None:
    """What a kernel does on one machine, or in one process, need not be so in another."""
    ds = rows().with_columns(x=(col("id") * 0.5).log1p()).batch(32)
    wanted = as_written(ds)
    right = tier_choice._run_compiled
    exec(PLANT, {})
    try:
        with pytest.warns(VerificationWarning, match="column 'x'"):
            assert stream_hash(sure(ds, kernels="compiled")) == wanted
    finally:
        tier_choice._run_compiled = right
    (folder,) = (tmp_path / "bundles").iterdir()
    healthy = run_again(folder)
    assert (healthy.returncode, "no difference" in healthy.stdout) == (0, True), healthy.stderr
    (tmp_path / "sitecustomize.py").write_text(PLANT)
    ill = run_again(folder, tmp_path)
    assert ill.returncode == 1, ill.stderr
    assert "with compiled kernels: batch 0, row 0, column 'x'" in ill.stdout


@pytest.mark.law
def test_functions_of_the_users_own_modules_travel_whole(
    sure: Sure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "own_functions.py").write_text(
        "def halved(row):\n    return {'x': row['id'] / 2}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    planted(monkeypatch, forgotten_predicate)
    ds = rows().filter(col("id") > 3).map(importlib.import_module("own_functions").halved)
    module = importlib.import_module("own_functions")
    cloudpickle.register_pickle_by_value(module)  # as the command line does
    try:
        with pytest.warns(VerificationWarning):
            list(sure(ds))
        assert module.__name__ in cloudpickle.list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    (folder,) = (tmp_path / "bundles").iterdir()
    again = run_again(folder)
    assert again.returncode == 1, again.stderr
    assert "made again here" in again.stdout


@pytest.mark.law
def test_what_is_compared_has_its_part_of_the_memory() -> None:
    node = rows().batch(8)._node
    usual, sure = Settings(memory_limit="64MiB"), Settings(memory_limit="64MiB", verify="sample")
    limits = [
        RunResources.of(each, session.optimized(node, each).plan).budget.limit_bytes
        for each in (usual, sure)
    ]
    assert limits == [64 << 20, 56 << 20]


@pytest.mark.law
def test_a_folder_holds_the_sample_and_no_more_of_the_data(
    sure: Sure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = pa.table({"id": pa.array(range(1_000_000))})
    planted(monkeypatch, forgotten_predicate)
    ds = dml.from_arrow(table).filter(col("id") % 3 == 0).shuffle().batch(512)
    with pytest.warns(VerificationWarning):
        list(sure(ds).take(3))
    (folder,) = (tmp_path / "bundles").iterdir()
    assert (folder / "plans.pkl").stat().st_size < 6_000_000
    held = pa.ipc.open_file(pa.memory_map(str(folder / "input-0-0.arrow"))).read_all().num_rows
    assert 4096 <= held <= 65_536
    again = run_again(folder)
    assert again.returncode == 1, again.stderr
