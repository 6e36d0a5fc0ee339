"""Test user-defined sinks: calls in order, and all rows or an abort."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import dml
from dml.errors import PlanError, SourceError, UDFError

OFF: dict[str, Any] = {"telemetry_dir": "off", "executor": "sync"}


class Noting(dml.DataSink):
    """Notes what it is told; raises in the call named ``fails``."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.calls: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self.error: BaseException | None = None

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails:
            raise OSError(f"{name} refused")

    def open(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._note("open")

    def write(self, batch: pa.Table, number: int) -> None:
        self._note(f"write {number}")
        self.rows += batch.to_pylist()

    def finish(self) -> Any:
        self._note("finish")
        return len(self.rows)

    def abort(self, error: BaseException) -> None:
        self.error = error
        self._note("abort")


def test_all_rows_come_in_order() -> None:
    sink = Noting()
    ds = dml.range(1000, atom_rows=100).batch(7).with_options(**OFF)
    assert ds.write_datasink(sink) == 1000
    assert [row["id"] for row in sink.rows] == list(range(1000))
    assert sink.calls == ["open", "write 0", "finish"]
    assert sink.schema.names == ["id"]


def test_groups_are_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dml.exec.writing.file_writer.GROUP_ROWS", 300)
    sink = Noting()
    dml.range(1000).with_options(**OFF).write_datasink(sink)
    assert sink.calls == ["open", *(f"write {i}" for i in range(4)), "finish"]


def test_types_that_functions_settle_are_known_with_the_first_rows() -> None:
    sink = Noting()
    ds = dml.range(10).map(lambda row: {"y": str(row["id"])}).with_options(**OFF)
    assert ds.write_datasink(sink) == 10
    assert sink.schema == pa.schema({"y": pa.string()})


def test_no_rows_are_a_table_too() -> None:
    sink = Noting()
    assert dml.range(10).filter(dml.col("id") > 20).with_options(**OFF).write_datasink(sink) == 0
    assert sink.calls == ["open", "finish"]


@pytest.mark.parametrize("fails", ["open", "write 0", "finish"])
def test_a_sink_that_raises_is_told_to_abort(fails: str) -> None:
    sink = Noting(fails)
    with pytest.raises(SourceError, match=f"Noting raised OSError.*{fails} refused") as caught:
        dml.range(10).with_options(**OFF).write_datasink(sink)
    assert sink.calls[-2:] == [fails, "abort"]
    assert sink.error is caught.value
    assert isinstance(caught.value.__cause__, OSError)
    assert "test_user_sink.py" in caught.value.at


def test_a_pipeline_that_fails_aborts() -> None:
    def broken(row: dict[str, Any]) -> dict[str, Any]:
        return {"y": 1 // (row["id"] - 5)}

    sink = Noting()
    with pytest.raises(UDFError):
        dml.range(10).map(broken, schema={"y": "int64"}).with_options(**OFF).write_datasink(sink)
    assert sink.calls[-1] == "abort"
    assert "finish" not in sink.calls


def test_an_abort_that_raises_hides_nothing() -> None:
    class Worse(Noting):
        def abort(self, error: BaseException) -> None:
            raise ValueError("and this")

    with pytest.raises(SourceError, match="finish refused") as caught:
        dml.range(3).with_options(**OFF).write_datasink(Worse("finish"))
    assert caught.value.__notes__ == ["and abort() raised ValueError: and this"]


@pytest.mark.parametrize("stranger", [Noting, None, "path", print])
def test_what_is_no_sink_is_refused(stranger: Any) -> None:
    with pytest.raises(PlanError, match="needs a DataSink"):
        dml.range(3).write_datasink(stranger)


def test_what_has_no_end_is_refused() -> None:
    with pytest.raises(PlanError):
        dml.range(3).repeat().write_datasink(Noting())
