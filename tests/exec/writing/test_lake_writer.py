"""Test writes of table versions: all rows, or no new version."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import dml
from dml.errors import PlanError, SourceError, UDFError

OFF: dict[str, Any] = {"telemetry_dir": "off", "num_workers": 2}
LIBRARIES = {"delta": "deltalake", "lance": "lance"}


@pytest.fixture(params=sorted(LIBRARIES))
def lake(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(LIBRARIES[request.param])
    return str(request.param)


def write(ds: dml.Dataset, lake: str, path: Path, **options: Any) -> int:
    done: int = getattr(ds.with_options(**OFF), f"write_{lake}")(path, **options)
    return done


def read(lake: str, path: Path, version: int | None = None) -> list[dict[str, Any]]:
    ds = getattr(dml, f"read_{lake}")(path, version)
    return sorted(ds, key=lambda row: row["id"])


def numbers(start: int, stop: int) -> dml.Dataset:
    return dml.range(start, stop, atom_rows=10).map(
        lambda row: {"id": row["id"], "s": str(row["id"])}
    )


@pytest.mark.law
def test_what_is_written_is_read(lake: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    first = write(numbers(0, 100), lake, path)
    second = write(numbers(100, 130).batch(7), lake, path, mode="append")
    third = write(numbers(5, 8), lake, path, mode="overwrite")
    assert first < second < third
    rows = [{"id": i, "s": str(i)} for i in range(130)]
    assert read(lake, path, first) == rows[:100]
    assert read(lake, path, second) == rows
    assert read(lake, path) == rows[5:8]


def test_no_rows_have_columns(lake: str, tmp_path: Path) -> None:
    write(dml.range(10).filter(dml.col("id") > 20), lake, tmp_path / "t")
    assert getattr(dml, f"read_{lake}")(tmp_path / "t").columns == ["id"]
    assert read(lake, tmp_path / "t") == []


@pytest.mark.law
@pytest.mark.parametrize("group_rows", [20, 1 << 20])
def test_a_run_that_fails_makes_no_version(
    lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_rows: int
) -> None:
    monkeypatch.setattr("dml.exec.writing.file_writer.GROUP_ROWS", group_rows)

    def broken(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"] // (row["id"] - 77)}

    path = tmp_path / "t"
    before = write(dml.range(3), lake, path)
    with pytest.raises(UDFError, match="broken raised ZeroDivisionError"):
        write(dml.range(100, atom_rows=10).map(broken), lake, path, mode="append")
    assert [row["id"] for row in read(lake, path)] == [0, 1, 2]
    assert write(dml.range(3), lake, path, mode="append") == before + 1


def test_a_table_that_is_there_is_not_written_over(lake: str, tmp_path: Path) -> None:
    write(dml.range(3), lake, tmp_path / "t")
    with pytest.raises(SourceError, match="cannot be written"):
        write(dml.range(5), lake, tmp_path / "t")
    assert len(read(lake, tmp_path / "t")) == 3
    with pytest.raises(PlanError, match="mode is one of"):
        write(dml.range(5), lake, tmp_path / "t", mode="ignore")
    with pytest.raises(PlanError, match="endless"):
        write(dml.range(5).repeat(), lake, tmp_path / "u")


def test_partitions_of_delta(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    ds = dml.range(10).with_columns(p=dml.col("id") % 3)
    write(ds, "delta", tmp_path / "t", partition_by=["p"])
    assert {path.name for path in (tmp_path / "t").glob("p=*")} == {"p=0", "p=1", "p=2"}
    assert [row["p"] for row in read("delta", tmp_path / "t")] == [i % 3 for i in range(10)]


def test_without_the_library_the_extra_is_named(
    lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, LIBRARIES[lake], None)
    with pytest.raises(PlanError, match=f"write_{lake} needs the library") as caught:
        write(dml.range(3), lake, tmp_path / "t")
    assert f"dml[{lake}]" in caught.value.try_


def test_one_name_is_one_partition_column(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    write(numbers(0, 4), "delta", tmp_path / "t", partition_by="id")
    assert {path.name for path in (tmp_path / "t").glob("id=*")} == {f"id={i}" for i in range(4)}
    assert [row["id"] for row in read("delta", tmp_path / "t")] == [0, 1, 2, 3]
