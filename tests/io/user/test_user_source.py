"""Test user-defined sources: laws, open units, and errors for sources that break a law."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.errors import DmlError, FingerprintError, PlanError, SourceError
from dml.io.source import Source
from dml.io.user.user_source import GivenParts, GivenRows, read_datasource
from dml.testing.source_laws import check_same_data, check_source, units
from dml.testing.strategies_data import Handed, HandedAnywhere, columns, table

DATA = pa.table({"a": range(10), "s": [str(i) if i % 3 else None for i in range(10)]})


def source_of(given_source: dml.DataSource, atom_rows: int | None = None) -> Source:
    return read_datasource(given_source, b"nonce", atom_rows=atom_rows)


def handed(ends: list[int], told: list[bool], each: int = 3) -> Handed:
    return Handed(DATA, ends, told, each)


@pytest.mark.law
@given(st.integers(0, 10**9))
def test_any_source_keeps_all_laws(seed: int) -> None:
    draw = random.Random(seed)
    data = table(draw, columns(draw), draw.choice([0, 1, 7, 30]))
    one = Handed.drawn(draw, data)
    each = draw.choice([None, 1, 2, 5])
    check_source(source_of(one, each), data)
    check_same_data(source_of(one, each), source_of(pickle.loads(pickle.dumps(one)), each))


def test_a_part_without_a_count_is_an_open_unit() -> None:
    source = source_of(handed([4, 4, 10], [True, False, False]), atom_rows=3)
    assert isinstance(source, GivenParts)
    first, second, third = units(source)
    assert (first.rows, first.atoms, first.atom) == (4, 2, 0)
    assert (second.rows, second.atoms, second.atom, second.is_open) == (None, None, 2, True)
    assert (third.rows, third.atom) == (None, None)
    assert (source.row_count, source.atom_count) == (None, None)
    counted = source_of(handed([4, 4, 10], [True, True, True]), atom_rows=3)
    assert (counted.row_count, counted.atom_count, counted.unit_count) == (10, 4, 2)


def test_take_makes_every_row_addressable() -> None:
    source = source_of(HandedAnywhere(DATA, [10], [True], 3), atom_rows=4)
    assert isinstance(source, GivenRows)
    assert source.addressable
    assert [unit.rows for unit in units(source)] == [4, 4, 2]
    ds = dml.read_datasource(HandedAnywhere(DATA, [10], [True], 3))
    assert "in the order of ShuffleAll" in ds.shuffle(seed=3).explain("physical")
    assert sorted(row["a"] for row in ds.shuffle(seed=3)) == list(range(10))


def test_what_is_open_is_said() -> None:
    ds = dml.read_datasource(handed([4, 10], [True, False]))
    assert "2 units, 1 of them open" in ds.explain("graph")
    assert ds.cardinality() is None
    assert ds.count() == 10


@pytest.mark.law
@pytest.mark.parametrize("told", [[True, True], [True, False], [False, True], [False, False]])
@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_slices_are_those_of_the_rows(told: list[bool], executor: str) -> None:
    ds = dml.read_datasource(handed([4, 10], told), atom_rows=2).with_options(executor=executor)
    for start in range(12):
        for count in (1, 3, 20):
            rows = [row["a"] for row in ds.skip(start).take(count)]
            assert rows == list(range(10))[start : start + count]


@pytest.mark.law
def test_every_position_is_resumed() -> None:
    ds = dml.read_datasource(handed([4, 4, 10], [True, False, False]), atom_rows=3)
    ds = ds.filter(dml.col("a") != 5).batch(2)
    whole = [batch["a"].tolist() for batch in ds.epoch(0)]
    for stop in range(len(whole) + 1):
        made = iter(ds.epoch(0))
        for _ in range(stop):
            next(made)
        rest = iter(ds.epoch(0))
        rest.load_state_dict(made.state_dict())
        assert [batch["a"].tolist() for batch in rest] == whole[stop:]


@pytest.mark.cluster
def test_other_processes_read_the_same() -> None:
    ds = dml.read_datasource(handed([4, 10], [True, False]), atom_rows=3)
    want = ds.to_arrow()
    assert ds.with_options(executor="processes", num_workers=2).to_arrow() == want


# ------------------------------------------------------------------------------------------ names


class Unnamed(Handed):
    def identity(self) -> object:
        return None


def test_without_an_identity_there_is_a_name_in_this_run_only() -> None:
    ds = dml.read_datasource(Unnamed(DATA, [10], [True], 3))
    with pytest.raises(FingerprintError, match="Unnamed has no fingerprint"):
        ds.fingerprint()
    assert "nobody knows whether its data has changed" in ds.explain("physical")
    named = dml.read_datasource(Unnamed(DATA, [10], [True], 3), fingerprint="mine")
    again = dml.read_datasource(Unnamed(DATA, [10], [True], 3), fingerprint="mine")
    assert named.fingerprint() == again.fingerprint()


def test_a_position_of_such_a_run_fits_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = dml.read_datasource(Unnamed(DATA, [10], [True], 3))
    made = iter(ds.epoch(0))
    next(made)
    state = made.state_dict()
    assert len(list(_resumed(ds, state))) == 9
    monkeypatch.setattr("dml.api.session.PROCESS", "another")
    with pytest.raises(FingerprintError, match="saved in another process"):
        _resumed(ds, state)


def _resumed(ds: dml.Dataset, state: dict[str, Any]) -> Iterator[Any]:
    rest = iter(ds.epoch(0))
    rest.load_state_dict(state)
    return rest


def test_other_content_is_another_name() -> None:
    one, other = handed([10], [True]), Handed(DATA.slice(1), [9], [True], 3)
    names = [dml.read_datasource(each).fingerprint() for each in (one, other)]
    assert names[0] != names[1]


class Odd(Unnamed):
    def identity(self) -> object:
        return object()


def test_an_identity_that_has_no_name_is_none() -> None:
    with pytest.raises(FingerprintError, match="Odd has no fingerprint"):
        dml.read_datasource(Odd(DATA, [10], [True], 3)).fingerprint()


# --------------------------------------------------------------------------------------- refusals


class Lying(Handed):
    """Gives what it should not: ``what`` names it."""

    def __init__(self, what: str) -> None:
        super().__init__(DATA, [10], [True], 3)
        self.what = what

    def read(self, part: dml.SourcePart, columns: tuple[str, ...]) -> Iterator[Any]:
        rows = self.data.select(list(columns))
        if self.what == "fewer":
            yield rows.slice(3)
        elif self.what == "names":
            yield rows.rename_columns([f"{name}_" for name in rows.column_names])
        elif self.what == "types":
            yield rows.set_column(0, rows.column_names[0], pa.array(["x"] * 10))
        elif self.what == "dicts":
            yield {"a": 1}
        else:
            yield rows.slice(0, 7)
            raise OSError("the wire was cut")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("fewer", "gave 7 rows, and had said 10"),
        ("names", "gave no column 'a'"),
        ("types", "does not fit int64"),
        ("dicts", "gave a dict, not Arrow data"),
        ("raise", "Lying raised OSError at row 7: the wire was cut"),
    ],
)
def test_what_a_source_must_not_give(what: str, message: str) -> None:
    ds = dml.read_datasource(Lying(what), atom_rows=4)
    with pytest.raises(SourceError, match=message):
        ds.to_arrow()


def test_the_rows_before_an_error_are_given() -> None:
    ds = dml.read_datasource(Lying("raise"), atom_rows=4).with_options(executor="sync")
    made = iter(ds)
    assert [next(made)["a"] for _ in range(7)] == list(range(7))
    with pytest.raises(SourceError, match="cut") as caught:
        next(made)
    assert isinstance(caught.value.__cause__, OSError)


class Parts(Handed):
    def __init__(self, *found: Any) -> None:
        super().__init__(DATA, [10], [True], 3)
        self.found = found

    def parts(self) -> Any:
        return self.found


class Anywhere(Parts):
    def take(self, index: np.ndarray, columns: tuple[str, ...]) -> pa.Table:
        return self.data.slice(0, 1)


def test_parts_that_make_no_sense_are_refused() -> None:
    with pytest.raises(PlanError, match="no names of their own"):
        dml.read_datasource(Parts(dml.SourcePart("a"), dml.SourcePart("a")))
    with pytest.raises(PlanError, match="no names of their own"):
        dml.read_datasource(Parts("a", "b"))
    with pytest.raises(PlanError, match="does not say its rows"):
        dml.read_datasource(Anywhere(dml.SourcePart("a")))
    with pytest.raises(SourceError, match="gave 1 rows for 3 positions"):
        dml.read_datasource(Anywhere(dml.SourcePart("a", 3))).to_arrow()
    assert dml.read_datasource(Parts()).count() == 0


@pytest.mark.parametrize("rows", [0, -1])
def test_atoms_without_rows_are_refused(rows: int) -> None:
    source = Handed(DATA, [10], [True], 3)
    source.atom_rows = rows
    with pytest.raises(PlanError, match="atom_rows"):
        dml.read_datasource(source)
    with pytest.raises(PlanError, match="atom_rows"):
        dml.from_generator(lambda: [{"a": 1}], atom_rows=rows)


@pytest.mark.parametrize("stranger", [DATA, [1], None, Handed])
def test_what_is_no_source_is_refused(stranger: Any) -> None:
    with pytest.raises(PlanError, match="needs a DataSource"):
        dml.read_datasource(stranger)
    with pytest.raises(DmlError):
        dml.read_datasource(handed([10], [True]), speed=1)
