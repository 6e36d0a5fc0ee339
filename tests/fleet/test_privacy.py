"""Test that no secret of a user comes into the telemetry store, in event files or in Parquet."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.api import run_telemetry
from dml.errors import DmlError
from dml.fleet.compaction import compact

SECRET = "s3cr3t-Zq7"
TOKEN = {"value": f"{SECRET}-global"}


def secretive(row: dict[str, object]) -> dict[str, object]:
    """Return a row with a secret; its globals, defaults and errors have others."""
    key = f"{SECRET}-in-code"
    if row["a"] == 7:
        raise ValueError(f"{SECRET}-error of {row} with {key} and {TOKEN['value']}")
    return {"a": row["a"], "s": f"{SECRET}-value"}


def defaulted(row: dict[str, object], key: str = f"{SECRET}-default") -> dict[str, object]:
    return {"k": key, "a": row["a"]}


def runs(folder: Path, root: Path, *, plain_text: bool) -> Iterator[dml.Dataset]:
    """Pipelines that have secrets wherever a user may write one."""
    data = folder / f"{SECRET}-folder"
    data.mkdir(exist_ok=True)
    table = pa.table({"a": range(200), f"{SECRET}-column": [f"{SECRET}-row"] * 200})
    pq.write_table(table, data / f"{SECRET}.parquet", row_group_size=50)
    options = {
        "telemetry_dir": str(root), "plain_text": plain_text, "executor": "sync",
        "cache_dir": str(folder / f"{SECRET}-cache"), "spill_dir": str(folder / f"{SECRET}-spill"),
    }  # fmt: skip
    read = dml.read_parquet(data / f"{SECRET}.parquet")
    named = read.filter(col(f"{SECRET}-column") != f"{SECRET}-literal")
    yield named.with_columns(**{f"{SECRET}-new": col("a") + 1}).batch(8).with_options(**options)
    yield named.map(secretive, on_error="skip").batch(8).with_options(**options)
    yield named.map(secretive).batch(8).with_options(**options)
    cached = named.map(defaulted).cache(tier="disk")
    yield cached.with_options(**options, autocache=True)
    yield dml.from_items([{"x": f"{SECRET}-item"}] * 9).shuffle(seed=31).with_options(**options)
    yield dml.from_generator(lambda: iter([{"x": f"{SECRET}-made"}])).with_options(**options)
    yield read.join(read.select("a"), on="a").sort("a").with_options(**options, num_workers=2)
    yield dml.range(9).with_columns(**{f"{SECRET}-field": col("id")}).with_options(**options)


def recorded(folder: Path, root: Path, *, plain_text: bool = False) -> int:
    failed = 0
    for ds in runs(folder, root, plain_text=plain_text):
        try:
            list(ds)
        except DmlError:
            failed += 1
        collector = run_telemetry.collector_of(ds._settings)
        assert collector is not None
        assert collector.flush()
    return failed


def texts(root: Path) -> str:
    """Everything in the store as text: bytes of files and their names, and cells of tables."""
    found = []
    for path in root.rglob("*"):
        found.append(path.name)
        if path.suffix == ".parquet":
            found.append(str(pq.read_table(path).to_pylist()))
        elif path.is_file():
            found.append(path.read_bytes().decode("latin-1"))
    return "\n".join(found)


def test_secrets_of_a_run_are_nowhere_in_the_store(tmp_path: Path) -> None:
    root = tmp_path / "telemetry"
    assert recorded(tmp_path, root) == 1
    assert "MapRows" in texts(root)
    assert SECRET not in texts(root)
    assert compact(root, settled_s=-1e12).runs == 8
    assert "MapRows" in texts(root)
    assert SECRET not in texts(root)


def test_they_are_there_for_who_asks_for_plain_text(tmp_path: Path) -> None:
    root = tmp_path / "telemetry"
    recorded(tmp_path, root, plain_text=True)
    assert SECRET in texts(root)


def test_other_users_cannot_read_the_store(tmp_path: Path) -> None:
    root = tmp_path / "telemetry"
    before = os.umask(0)  # the most that a user can permit
    try:
        recorded(tmp_path, root)
        modes = [(path, stat.S_IMODE(path.stat().st_mode)) for path in [root, *root.rglob("*")]]
        compact(root, settled_s=-1e12)
        modes += [(path, stat.S_IMODE(path.stat().st_mode)) for path in root.rglob("*")]
    finally:
        os.umask(before)
    assert not [path for path, mode in modes if mode & 0o077]


def test_nothing_is_recorded_where_telemetry_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CACHE", "STATE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "home"))
    for ds in runs(tmp_path, tmp_path / "t", plain_text=False):
        with_it_off = ds.with_options(telemetry_dir="off")
        try:
            list(with_it_off)
        except DmlError:
            continue
    assert not (tmp_path / "t").exists()
    assert not [path for path in tmp_path.rglob("*") if "telemetry" in path.name]
