"""Test rows written to object stores: they are read back, and failures leave nothing behind."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import dml
from dml.api.dataset import Dataset
from dml.errors import DmlError, PlanError, SourceError, UDFError
from tests.io.counted_store import CountedStore, counted, pauses

__all__ = ["counted", "pauses"]

URL, SECRET = "counted://bucket/out", "open-sesame-4711"
FORMATS = {"parquet": "parquet", "arrow": "arrow", "csv": "csv", "json": "jsonl"}


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where files are made, so that a test can see what is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def rows() -> Dataset:
    ds = dml.from_dict({"id": range(300), "s": [f"word {i}" for i in range(300)]})
    return ds.with_options(telemetry_dir="off", executor="sync")


def write(ds: Dataset, form: str, url: str = URL, **options: Any) -> Any:
    return getattr(ds, f"write_{form}")(url, rows_per_file=100, **options)


@pytest.mark.parametrize("form", FORMATS)
def test_what_was_written_reads_back(
    counted: type[CountedStore], temporary: Path, form: str
) -> None:
    done = write(rows(), form, storage_options={"secret": SECRET})
    assert (done.files, done.rows) == (3, 300)
    assert SECRET not in repr(done) + str(vars(done))
    names = [f"/bucket/out/part-0000{i}.{FORMATS[form]}" for i in range(3)]
    assert fsspec.filesystem("counted").find("/bucket/out") == names
    back = getattr(dml, f"read_{form}")(URL).with_options(telemetry_dir="off")
    assert back.to_pandas()["id"].tolist() == list(range(300))
    assert list(temporary.iterdir()) == []


def test_arrays_are_put_with_their_numbers_of_rows(
    counted: type[CountedStore], temporary: Path
) -> None:
    done = write(rows().select("id"), "numpy", column="id")
    assert (done.files, done.rows) == (3, 300)
    back = dml.read_numpy(URL).with_options(telemetry_dir="off")
    assert back.to_pandas()["item"].tolist() == list(range(300))
    assert np.load(fsspec.open(f"{URL}/part-00001.npy").open()).shape == (100,)
    assert list(temporary.iterdir()) == []


def test_nothing_is_put_if_a_row_fails(counted: type[CountedStore], temporary: Path) -> None:
    with pytest.raises(UDFError):
        write(rows().map(lambda row: {"x": 1 // (row["id"] - 299)}), "parquet")
    assert fsspec.filesystem("counted").find("/bucket") == []
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "what"),
    [(PermissionError(SECRET), "may not be written"), (TimeoutError(SECRET), "be written now")],
)
def test_what_was_put_goes_if_a_file_cannot_be_put(
    counted: type[CountedStore],
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception,
    what: str,
) -> None:
    plain = CountedStore.open

    def faulty(self: CountedStore, path: str, *args: Any, **options: Any) -> Any:
        if path.endswith("part-00002.parquet"):
            raise fault
        return plain(self, path, *args, **options)

    monkeypatch.setattr(CountedStore, "open", faulty)
    with pytest.raises(SourceError, match=what) as caught:
        write(rows(), "parquet", storage_options={"secret": SECRET})
    assert SECRET not in str(caught.value)
    assert fsspec.filesystem("counted").find("/bucket") == []
    assert len(pauses) == (4 if isinstance(fault, TimeoutError) else 0)


def test_a_passing_failure_is_tried_again(
    counted: type[CountedStore], pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, faults = CountedStore.open, [ConnectionResetError("reset")]

    def faulty(self: CountedStore, path: str, *args: Any, **options: Any) -> Any:
        if faults:
            raise faults.pop()
        return plain(self, path, *args, **options)

    monkeypatch.setattr(CountedStore, "open", faulty)
    assert write(rows(), "csv").rows == 300
    assert len(pauses) == 1
    monkeypatch.undo()
    assert dml.read_csv(URL).with_options(telemetry_dir="off").count() == 300


def test_what_a_store_cannot_do_is_said_before_any_work(counted: type[CountedStore]) -> None:
    calls: list[int] = []

    def noted(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(row["id"])
        return row

    def refusal(url: str, **options: Any) -> DmlError:
        with pytest.raises(PlanError) as caught:
            write(rows().map(noted), "parquet", url, **options)
        return caught.value

    assert "overwrite=True" in refusal(URL, overwrite=True).what
    assert "web server" in refusal("https://host/x").what
    write(rows(), "parquet")
    assert "not empty" in refusal(URL).what
    assert "storage_options" in refusal(URL, storage_options="key").what
    assert calls == []


def test_file_urls_are_folders(tmp_path: Path) -> None:
    done = write(rows(), "parquet", (tmp_path / "a b").as_uri())
    assert done.path == str(tmp_path / "a b")
    assert len(list((tmp_path / "a b").iterdir())) == 3
