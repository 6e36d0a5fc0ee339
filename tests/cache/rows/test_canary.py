"""Test the check of stored rows by recomputation: it finds wrong entries, and no others."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col
from dml.cache.rows import canary
from dml.cache.store import open_stores
from dml.errors import QuarantineWarning, UDFError
from tests.cache.rows.test_stored_rows import EACH, GROUPS, ROWS, counting, data
from tests.verify.lying import KINDS, LIARS, STEPS, Liar, Said, kept, reads_a_file, scaled, values

__all__ = ["data"]

DRAWS = st.integers(0, (1 << 128) - 1)


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of uses after the first, none is drawn; and all chosen rows are made, however busy it is."""
    monkeypatch.setattr(canary, "ONE_OF", 1 << 200)
    monkeypatch.setattr(canary, "BUDGET_S", 60.0)


# ------------------------------------------------------------------------------- what is looked at


@given(DRAWS, st.integers(1, 70_000), st.integers(1, 70_000), st.floats(0, 1e3))
def test_rows_of_an_atom(draw: int, rows: int, grain: int, each_s: float) -> None:
    chosen = canary.rows_of(draw, rows, grain, each_s)
    if grain >= rows:
        assert chosen in {range(rows), range(0)}
        assert bool(chosen) == (rows == 1 or each_s * rows <= canary.ATOM_S)
        return
    assert 0 <= chosen.start < chosen.stop <= rows
    assert not chosen.start % grain
    assert not len(chosen) % grain
    dear = len(chosen) * each_s > canary.BUDGET_S
    assert len(chosen) == grain or (len(chosen) <= canary.MOST_ROWS and not dear)


@given(st.integers(1, 500), st.integers(1, 500), st.integers(0, 1 << 40))
def test_more_rows_are_made_as_long_as_they_fit(times: int, grain: int, nbytes: int) -> None:
    found = canary.more(times * grain, grain, nbytes)
    assert found >= grain
    assert not found % grain
    assert found <= 2 * times * grain
    assert found == grain or found * nbytes <= canary.PIECE_BYTES * times * grain


@given(DRAWS, st.integers(1, 1000))
def test_any_part_is_drawn(draw: int, parts: int) -> None:
    assert 0 <= canary.part_of(draw, parts) < parts


def test_the_first_use_is_checked_and_one_of_64_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert canary.ONE_OF == 64
    uses = canary.EntryUses()
    drawn = [uses.next("ab" * 16) for _ in range(64 * 200)]
    assert [number for number, _ in drawn] == list(range(64 * 200))
    assert canary.due(*drawn[0])
    later = sum(canary.due(*each) for each in drawn[1:])
    assert 100 < later < 320
    assert not canary.due(0, 1, known=True)
    parts = {canary.part_of(draw, 8) for number, draw in drawn if canary.due(number, draw)}
    assert parts == set(range(8)), "of those that are checked"


# ----------------------------------------------------------------------------------------- liars


@pytest.fixture
def said(tmp_path: Path) -> Said:
    return Said(tmp_path)


@pytest.fixture(params=LIARS)
def liar(request: pytest.FixtureRequest, said: Said, monkeypatch: pytest.MonkeyPatch) -> Liar:
    """A function that its name does not tell all of, what it does, and what it is given."""
    made: Callable[[Said, pytest.MonkeyPatch], Liar] = request.param
    return made(said, monkeypatch)


@pytest.mark.law
@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_a_liar_is_caught_before_a_row_goes_on_and_for_good(
    data: Path, tmp_path: Path, liar: Liar, executor: str
) -> None:
    function, turned, named = liar
    ds = dml.read_parquet(data).map(function, fingerprint=named).cache(tier="disk")
    ds = kept(ds, tmp_path, executor=executor)
    turned(2)
    assert values(ds) == scaled(2)
    turned(3)
    with pytest.warns(QuarantineWarning) as told:
        assert values(ds) == scaled(3)
    (text,) = {str(each.message) for each in told}
    assert "lies" in text
    assert "data.parquet, row group" in text
    assert "column 'y' is another value" in text
    assert "dml cache rm" in text
    (said,) = (tmp_path / "kept").rglob("QUARANTINE.json")
    assert "lies" in said.read_text(encoding="utf-8")
    assert "data.parquet" not in said.read_text(encoding="utf-8"), "paths are not written down"
    for scale in (4, 5):  # nobody keeps it
        turned(scale)
        assert values(ds) == scaled(scale)
        assert not list((tmp_path / "kept").rglob("*.arrow"))
    ds.clear_cache()
    for _ in range(2):
        assert values(ds) == scaled(5)
    assert len(list((tmp_path / "kept").rglob("*.arrow"))) == GROUPS


OTHER = """
import sys
import warnings
import dml
from dml.errors import QuarantineWarning
data, scale, kept, executor = sys.argv[1:]

def lies(row):
    with open(scale) as file:
        return {"y": row["x"] * int(file.read())}

if __name__ == "__main__":
    ds = dml.read_parquet(data).map(lies).cache(tier="disk")
    ds = ds.with_options(cache_dir=kept, executor=executor, num_workers=2, telemetry_dir="off")
    print(sum(row["y"] for row in ds), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sync", "threads", "processes"])
def test_a_liar_is_caught_in_another_process_and_left_by_all(
    data: Path, tmp_path: Path, executor: str
) -> None:
    script, scale = tmp_path / "job.py", tmp_path / "scale.txt"
    script.write_text(OTHER)
    command = [sys.executable, str(script), str(data), str(scale), str(tmp_path / "kept"), executor]

    def ran(factor: int) -> str:
        scale.write_text(str(factor))
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert int(done.stdout) == sum(scaled(factor))
        return done.stderr

    assert "QuarantineWarning" not in ran(2)
    assert "QuarantineWarning" not in ran(2), "it has not lied yet"
    assert ran(3).count("QuarantineWarning:") == 1
    assert "QuarantineWarning" not in ran(4)
    assert not list((tmp_path / "kept").rglob("*.arrow"))


@pytest.mark.law
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_compared_to_the_last_bit(
    data: Path, tmp_path: Path, said: Said, kind: str
) -> None:
    read = said.reader()

    def made(row: dict[str, Any]) -> dict[str, Any]:
        return {"z": row["x"], "y": KINDS[kind][read()](row["x"])}

    ds = dml.read_parquet(data).map(made, fingerprint="made").cache(tier="disk")
    ds = kept(ds, tmp_path)
    for _ in range(3):
        ds.to_arrow()
    said.say(1)
    open_stores._OPEN.clear()  # as another process begins
    with pytest.warns(QuarantineWarning, match="column 'y'"):
        ds.to_arrow()


def test_all_nans_are_one_value(data: Path, tmp_path: Path, said: Said) -> None:
    read = said.reader()

    def made(row: dict[str, Any]) -> dict[str, Any]:
        bits = 0x7FF8000000000001 if read() else 0xFFF8000000000000
        return {"y": struct.unpack("<d", struct.pack("<Q", bits))[0] + row["x"]}

    ds = kept(dml.read_parquet(data).map(made, fingerprint="made").cache(tier="disk"), tmp_path)
    assert all(map(math.isnan, values(ds)))
    said.say(1)
    assert all(map(math.isnan, values(ds)))


@pytest.mark.law
@pytest.mark.parametrize("step", STEPS)
def test_rows_of_any_operator_are_compared(
    data: Path, tmp_path: Path, said: Said, step: str
) -> None:
    made, told = STEPS[step]
    ds = kept(made(dml.read_parquet(data), said.reader()).cache(tier="disk"), tmp_path)
    first = ds.to_arrow()
    assert ds.to_arrow() == first
    said.say(1)
    open_stores._OPEN.clear()  # as another process begins
    with pytest.warns(QuarantineWarning, match=told):
        other = ds.to_arrow()
    assert other != first
    assert other == ds.to_arrow()


FAULTS: list[type[Exception] | None]
FAULTS = [None, OSError, ConnectionError, MemoryError, ModuleNotFoundError, ValueError]


@pytest.mark.law
@pytest.mark.parametrize("skips", ["raise", "skip"])
def test_a_function_that_fails_on_a_stored_row_is_a_liar(
    data: Path, tmp_path: Path, said: Said, skips: str
) -> None:
    read = said.reader()

    def fails(row: dict[str, Any]) -> dict[str, Any]:
        error = FAULTS[read()]
        if error is not None:
            raise error("now")
        return {"y": row["x"] * 2}

    ds = dml.read_parquet(data).map(fails, fingerprint="fails", on_error=skips)
    ds = kept(ds.cache(tier="disk"), tmp_path)
    for number in range(len(FAULTS) - 1):
        said.say(number)
        open_stores._OPEN.clear()  # as another process begins
        assert values(ds) == scaled(2), "others say something of the machine, and nothing of rows"
    said.say(len(FAULTS) - 1)
    open_stores._OPEN.clear()
    with pytest.warns(QuarantineWarning, match="ends in ValueError"), suppress(UDFError):
        assert values(ds) == []


# ------------------------------------------------------------------------------------ what it takes


@pytest.mark.law
@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_a_use_is_checked_once_and_no_row_is_made_for_long(
    data: Path, tmp_path: Path, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    ds = dml.read_parquet(data).map(counting(log)).cache(tier="disk")
    ds = kept(ds, tmp_path, executor=executor)
    assert values(ds) == scaled(2)
    assert log.stat().st_size == ROWS
    monkeypatch.setattr(canary, "BUDGET_S", 1e-9)
    for _ in range(4):
        assert values(ds) == scaled(2)
    assert log.stat().st_size == ROWS + 1, "one row, the first time"
    open_stores._OPEN.clear()
    monkeypatch.setattr(canary, "BUDGET_S", 60.0)
    assert values(ds) == scaled(2)
    assert log.stat().st_size == ROWS + 1 + EACH, "a part, where a process begins"
    open_stores._OPEN.clear()
    assert values(ds.with_options(verify="off")) == scaled(2)
    assert log.stat().st_size == ROWS + 1 + EACH


@pytest.mark.law
def test_what_was_drawn_later_is_checked_too(
    data: Path, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, turned, _ = reads_a_file(said, monkeypatch)
    ds = kept(dml.read_parquet(data).map(function).cache(tier="disk"), tmp_path)
    turned(2)
    for _ in range(2):
        assert values(ds) == scaled(2)
    turned(3)
    assert values(ds) == scaled(2), "this process has looked"
    monkeypatch.setattr(canary, "ONE_OF", 1)
    with pytest.warns(QuarantineWarning):
        assert values(ds) == scaled(3)


@pytest.mark.law
@pytest.mark.parametrize("checked", [True, False])
def test_of_large_sources_far_away_the_first_use_of_all_is_checked(
    data: Path, tmp_path: Path, checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes over a network, few beside all there are, once: and not in each of so many workers."""
    log = tmp_path / "log"
    ds = kept(dml.read_parquet(data).map(counting(log)).cache(tier="disk"), tmp_path)
    monkeypatch.setattr("dml.io.parquet.parquet.ParquetSource.far", True)
    monkeypatch.setattr(canary, "ONE_OF", GROUPS if checked else GROUPS + 1)
    monkeypatch.setattr(canary.EntryUses, "next", lambda *_: (0, 1))
    assert values(ds) == scaled(2)
    for _ in range(3):
        open_stores._OPEN.clear()
        assert values(ds) == scaled(2)
    assert log.stat().st_size == ROWS + EACH * checked


@pytest.mark.law
@pytest.mark.parametrize("executor", ["sync", "threads", "processes"])
def test_a_run_tells_what_was_looked_at_and_what_was_wrong(
    data: Path, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    function, turned, _ = reads_a_file(said, monkeypatch)
    ds = dml.read_parquet(data).map(function, fingerprint="told").cache(tier="disk")
    ds = kept(ds, tmp_path, executor=executor, num_workers=2)

    def told() -> tuple[int, int]:
        (found,) = (each for each in ds.stats().records if each["operator"] == "Stored")
        return found["cache_checks"], found["cache_wrong"]

    turned(2)
    assert values(ds) == scaled(2)
    assert told() == (0, 0)
    open_stores._OPEN.clear()
    assert values(ds) == scaled(2)
    assert told()[0] in ({1, 2} if executor == "processes" else {1})
    assert "checked" in str(ds.stats())
    assert "Quarantined" not in str(ds.stats())
    open_stores._OPEN.clear()
    if executor == "processes":  # those at work have looked
        return
    turned(3)
    with pytest.warns(QuarantineWarning):
        assert values(ds) == scaled(3)
    assert told() == (1, 1)
    assert "StoredRowsQuarantined" in str(ds.stats())
    assert values(ds) == scaled(3)
    assert told() == (0, 0)


# --------------------------------------------------------------------------------- what others have


@pytest.mark.law
def test_columns_of_others_are_looked_at_before_they_are_taken(
    data: Path, tmp_path: Path, said: Said
) -> None:
    read = said.reader()
    said.say(1)

    @dml.udf(return_dtype="int64", fingerprint="times")
    def times(x: int) -> int:
        return x * read()

    rows = dml.read_parquet(data)
    wide = rows.with_columns(a=times(col("x")), b=col("x") + 1).cache(tier="disk")
    kept(wide, tmp_path).to_arrow()
    said.say(2)
    narrow = kept(rows.with_columns(c=times(col("x"))).select("c").cache(tier="disk"), tmp_path)
    with pytest.warns(QuarantineWarning, match="column 'c'"):
        assert narrow.to_arrow()["c"].to_pylist() == scaled(2)
    assert narrow.to_arrow()["c"].to_pylist() == scaled(2)
    assert kept(wide, tmp_path).to_arrow()["a"].to_pylist() == scaled(2)


def test_columns_that_a_run_does_not_read_are_not_compared(tmp_path: Path) -> None:
    table = pa.table({"n": list(range(20)), "unread": ["a"] * 20})
    pq.write_table(table, tmp_path / "two.parquet")
    rows = dml.read_parquet(tmp_path / "two.parquet")

    def counted(row: dict[str, Any]) -> dict[str, Any]:
        return {"listed": list(range(row["n"] % 5))}

    kept(rows.cache(tier="disk"), tmp_path).to_arrow()
    listed = kept(rows.map(counted).cache(tier="disk"), tmp_path).to_arrow()
    assert listed.num_rows == 20
    again = kept(rows.filter(col("n") > 3).map(counted).cache(tier="disk"), tmp_path)
    assert again.to_arrow().num_rows == 16
