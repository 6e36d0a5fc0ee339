"""Test that errors of tables contain no keys and no secrets of URLs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dml
from dml.errors import SourceError
from dml.io.extras import located, spoken

SECRET = "opensesame"
# No library connects to the last port of this host, and each is told to give up at once.
OPTIONS = {
    "aws_access_key_id": "somebody",
    "aws_secret_access_key": SECRET,
    "aws_endpoint": "http://127.0.0.1:1",
    "aws_region": "nowhere",
    "allow_http": "true",
    "max_retries": "0",
    "client_max_retries": "0",
    "retry_timeout": "1s",
}
URLS = [f"s3://somebody:{SECRET}@bucket/t", f"s3://bucket/t?sig={SECRET}"]


@pytest.mark.law
@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(("lake", "module"), [("delta", "deltalake"), ("lance", "lance")])
def test_errors_of_tables_show_no_secrets(url: str, lake: str, module: str) -> None:
    pytest.importorskip(module)
    for door in (getattr(dml, f"read_{lake}"), getattr(dml.range(3), f"write_{lake}")):
        with pytest.raises(SourceError, match="cannot be") as caught:
            door(url, storage_options=OPTIONS)
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None


class Telling(dml.DataSource):
    """Its errors quote what opens it, which ``spoken`` takes out."""

    def __init__(self, where: str) -> None:
        self.where = where

    def spoken(self, error: Exception) -> str:
        return spoken(error, {"key": SECRET})

    def _raise(self, where: str) -> None:
        if where == self.where:
            raise OSError(f"{SECRET} opens nothing")

    def schema(self) -> Any:
        self._raise("schema")
        return {"a": "int64"}

    def parts(self) -> Any:
        self._raise("parts")
        return [dml.SourcePart("", 2)]

    def identity(self) -> Any:
        self._raise("identity")
        return lambda: self._raise("content")

    def read(self, part: dml.SourcePart, columns: tuple[str, ...]) -> Any:
        self._raise("read")
        yield pa.table({"a": [1, 2]})


@pytest.mark.law
@pytest.mark.parametrize("where", ["schema", "parts", "identity", "content", "read"])
def test_whatever_a_source_raises_is_named(where: str) -> None:
    def ask() -> object:
        ds = dml.read_datasource(Telling(where))
        return ds.to_list() if where == "read" else ds.fingerprint()

    with pytest.raises(SourceError, match="Telling raised OSError") as caught:
        ask()
    assert "opens nothing" in caught.value.what
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_colours_and_frames_of_libraries_are_left_out() -> None:
    said = "no such type \x1b[31mred\x1b[0m\n   0: <unknown>\n   1: main at /x.c:3"
    assert spoken(ValueError(said)) == "no such type red"


def test_a_path_is_the_same_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert located("t") == os.path.join(os.getcwd(), "t") == located(f"file://{tmp_path}/t")
    assert located("s3://bucket/t") == "s3://bucket/t"
    for door in (dml.read_delta, dml.read_lance, dml.read_zarr):
        with pytest.raises(SourceError, match="is not a path"):
            door(5)  # type: ignore[arg-type]


@pytest.mark.law
@pytest.mark.parametrize(("lake", "module"), [("delta", "deltalake"), ("lance", "lance")])
def test_a_table_is_found_from_another_folder(
    lake: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    getattr(dml.range(5), f"write_{lake}")("t")
    source = getattr(dml, f"read_{lake}")("t")
    monkeypatch.chdir("/")
    assert source.with_options(executor="processes", num_workers=2).count() == 5
    assert source.to_list() == [{"id": i} for i in range(5)]
