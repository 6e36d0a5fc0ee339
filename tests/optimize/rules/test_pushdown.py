"""Test pushdown into the source: columns, predicates, slices, reading orders."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml
from dml import col, lit
from dml.errors import UDFError
from dml.io.partial_source import Leading
from dml.io.source import Source
from dml.ops.row.segment import Segment
from dml.ops.slice.seek import Seek
from dml.physical.plan import Plan
from dml.testing.plans import keeps_rows, plan_of, ran
from tests.optimize.tables import ROWS, flights, parquet

LATE = col("late") > 0
SMALL = (col("id") * 20).cast("int8")
ALL = ("id", "x", "name")
WORDS = ["a", "b"]


def stream(plan: Plan) -> list[str]:
    return [type(node).__name__ for node in plan.stream]


def columns_made(plan: Plan) -> list[tuple[str, ...]]:
    nodes = (*plan.stage.steps, *plan.stream)
    return [node.schema.names for node in nodes if isinstance(node, Segment)]


# ------------------------------------------------------------------------------------ columns


@pytest.mark.law
def test_dead_columns() -> None:
    computed = flights().with_columns(km=col("miles") * 1.6, k2=col("miles") + 1)
    plan = keeps_rows(computed.shuffle(5).filter(LATE).select("id", "km"))
    assert columns_made(plan) == [("id", "late", "km"), ("id", "km")]
    assert plan.stage.columns == ("id", "late", "miles")
    plan = keeps_rows(computed.batch(4).filter(LATE).select("k2"))
    assert columns_made(plan) == [("late", "k2"), ("k2",)]


@pytest.mark.law
def test_only_keys_and_what_is_asked_for_are_read_below_a_sort() -> None:
    def columns(ds: dml.Dataset) -> tuple[str, ...]:
        return keeps_rows(ds).stage.columns

    assert columns(flights().sort("late").select("id")) == ("id", "late")
    assert columns(flights().filter(col("miles") > 2).sort("late").select("id", "late")) == (
        "id",
        "late",
        "miles",
    )
    assert columns(flights().sort("late")) == tuple(flights().columns)
    assert columns(flights().sort("late").batch(3).map(dict)) == tuple(flights().columns)


@pytest.mark.law
def test_a_function_may_read_every_column() -> None:
    computed = flights().with_columns(km=col("miles") * 1.6)
    for blind in (
        computed.filter(lambda row: len(row) > 3).select("id"),
        computed.batch(4).map(dict).map(lambda batch: {"id": batch["id"]}),
        computed.map(lambda row: {"n": len(row)}, schema={"n": "int64"}).select("n"),
    ):
        plan = keeps_rows(blind)
        assert plan.stage.columns == ("id", "late", "miles", "gate")


def decoded(row: dict[str, Any]) -> dict[str, Any]:
    """Not lifted: it reads a mutable value from outside, which the proof refuses."""
    return {"x": row["x"], "word": WORDS[row["id"] % 2]}


@pytest.mark.law
@pytest.mark.parametrize(
    ("pipeline", "columns"),
    [
        (lambda ds: ds.map(lambda row: {"k": row["id"] + 1}), ("id",)),
        (lambda ds: ds.map(lambda row: {"k": row["id"] + 1}).filter(lambda r: r["k"] > 3), ("id",)),
        (lambda ds: ds.map(decoded), ("id", "x")),
        (lambda ds: ds.map(decoded, schema={"x": "f8", "word": "string"}), ("id", "x")),
        (lambda ds: ds.filter(lambda r: WORDS[r["id"] % 2] == "a").map(decoded), ("id", "x")),
        (lambda ds: ds.filter(lambda r: WORDS[r["id"] % 2] == "a"), ALL),
        (lambda ds: ds.filter(lambda r: len(r) > 3).map(decoded), ALL),
        (lambda ds: ds.shuffle(5, seed=1).take(9).map(decoded), ("id", "x")),
        (lambda ds: ds.flat_map(lambda r: [{"id": r["id"]}] * 2), ("id",)),
        (lambda ds: ds.random_map(lambda r, rng: {"x": r["x"] + rng.random()}), ("x",)),
        (lambda ds: ds.map_batches(lambda b: {"x": np.sin(b["x"])}, batch_size=4), ("x",)),
        (lambda ds: ds.batch(4).map(lambda b: {"x": np.sin(b["x"])}), ("x",)),
        (lambda ds: ds.map(lambda r: {"id": r["id"], "n": len(r)}), ALL),
        (lambda ds: ds.map(lambda r: {"id": r.get("id")}), ALL),
        (lambda ds: ds.map(decoded, on_error="skip"), ("id", "x")),
        (lambda ds: ds.filter(col("id") > 3).map(decoded), ("id", "x")),
        (lambda ds: ds.filter(col("name") > "n2").map(decoded), ALL),
        (lambda ds: ds.with_columns(x=1.5).map(decoded), ("id",)),
        (lambda ds: ds.shuffle(5, seed=1).with_columns(x=col("id") / 2).map(decoded), ("id",)),
        (lambda ds: ds.filter(lambda r: r["id"] > 2).with_columns(x=2.5).map(decoded), ("id",)),
        (lambda ds: ds.filter(col("id") > 3).filter(lambda r: WORDS[r["id"] % 2] == "a"), ALL),
        (lambda ds: ds.with_columns(k=col("x") * 2).map(lambda r: {"k": len(r)}), ALL),
        (lambda ds: ds.filter(col("id") > 3).cache().map(decoded), ALL),
        (lambda ds: ds.take_while(lambda r: r["id"] < 9), ALL),
        (lambda ds: ds.take_while(lambda r: r["id"] < 9).map(decoded), ALL),
        (lambda ds: ds.take_while(lambda _: bool(WORDS[0])).sort("x"), ALL),
        (
            lambda ds: ds.with_columns(k=col("x") * 2).map(lambda r: {"k": r["k"], "w": WORDS}),
            ("x",),
        ),
        (lambda ds: ds.sort("name").map(decoded), ("id", "x", "name")),
        (lambda ds: ds.cache().map(decoded), ALL),
    ],
)
def test_columns_that_no_function_looks_up_are_not_decoded(
    tmp_path: Path, pipeline: Callable[[dml.Dataset], dml.Dataset], columns: tuple[str, ...]
) -> None:
    plan = keeps_rows(pipeline(parquet(tmp_path)))
    assert plan.stage.columns == columns


@pytest.mark.law
def test_positions_fit_whatever_columns_are_dropped(tmp_path: Path) -> None:
    ds = parquet(tmp_path).shuffle(5, seed=1).with_columns(x=col("x") + dml.random())
    ds = ds.filter(col("id") > 3).map(decoded).with_options(telemetry_dir="off")
    every_column = ds.with_options(disable_rules=["projection_into_source"])
    less, every = plan_of(ds), plan_of(every_column)
    assert columns_made(less) != columns_made(every)
    assert less.name == every.name
    whole = list(ds.epoch(0))
    runs = iter(every_column.epoch(0))
    given = [next(runs) for _ in range(9)]
    resumed = iter(ds.epoch(0))
    resumed.load_state_dict(runs.state_dict())
    assert given + list(resumed) == whole


@pytest.mark.law
def test_a_column_that_is_not_there_is_the_error_of_the_function(tmp_path: Path) -> None:
    ds = parquet(tmp_path).map(lambda row: {"x": row["no"], "word": WORDS[0]})
    assert plan_of(ds).stage.columns == ALL
    with pytest.raises(UDFError, match=r"KeyError.*'no'"):
        next(iter(ds))


@pytest.mark.law
def test_rows_without_columns_are_still_rows(tmp_path: Path) -> None:
    for ds in (flights(), parquet(tmp_path)):
        plan = keeps_rows(ds.with_columns(one=1).select("one"))
        assert plan.stage.columns == ()
        keeps_rows(ds.with_columns(one=1).select("one").shuffle().take(7))
        keeps_rows(ds.filter(dml.random() < 0.5).with_columns(one=1).select("one").batch(3))
        keeps_rows(ds.shuffle(4).filter(dml.random() < 0.5).with_columns(one=1).select("one"))


@pytest.mark.law
def test_a_column_that_only_a_dropped_one_needs_is_not_read(tmp_path: Path) -> None:
    ds = parquet(tmp_path).with_columns(y=col("x") * 2).take(9).drop("y", "x")
    assert keeps_rows(ds).stage.columns == ("id", "name")


# --------------------------------------------------------------------------------- predicates


def test_filter_into_source(tmp_path: Path) -> None:
    ds = parquet(tmp_path)
    plan = keeps_rows(ds.filter((col("id") >= 17) & (col("x") < 8)).select("name"))
    assert len(plan.stage.predicate) == 2
    skipped = [
        unit
        for unit in map(plan.stage.source.unit, range(plan.stage.source.unit_count))
        if not plan.stage.source.may_match(unit, plan.stage.predicate)
    ]
    assert len(skipped) == 3  # of five row groups


@pytest.mark.law
def test_what_may_fail_or_draws_stops_the_predicates_that_skip(tmp_path: Path) -> None:
    ds = parquet(tmp_path)
    high = col("id") > 30
    assert len(plan_of(ds.filter(high & (SMALL > 0) & (col("x") > 1))).stage.predicate) == 1
    assert plan_of(ds.filter((SMALL > 0) & high)).stage.predicate == ()
    assert plan_of(ds.filter((dml.random() < 0.5) & high)).stage.predicate == ()
    keeps_rows(ds.filter((col("id") < 6) & (SMALL > 0) & (col("x") > 1)))
    keeps_rows(ds.filter((dml.random() < 0.5) & high))


@pytest.mark.law
@pytest.mark.parametrize("between", ["take", "shuffle", "skip", "repeat"])
def test_a_predicate_above_positions_skips_nothing(tmp_path: Path, between: str) -> None:
    ds = getattr(parquet(tmp_path), between)(20).filter(col("id") > 12)
    plan = plan_of(ds)
    assert bool(plan.stage.predicate) == (between == "repeat")
    if between != "repeat":
        keeps_rows(ds)


@pytest.mark.law
def test_a_predicate_of_a_replaced_column_is_about_the_new_one(tmp_path: Path) -> None:
    ds = parquet(tmp_path)
    keeps_rows(ds.with_columns(id=col("id") * -1).filter(col("id") > -5))
    keeps_rows(ds.rename({"id": "x", "x": "id"}).filter(col("id") > 7))


# -------------------------------------------------------------------------------------- slices


@pytest.mark.law
def test_skip_into_source(tmp_path: Path) -> None:
    for ds in (flights(), parquet(tmp_path)):
        for n in (1, 3, 4, 8, 11, 16, 22, 23, 39, 40, 99):
            plan = keeps_rows(ds.skip(n).with_columns(r=dml.random(), z=col("id") + 1))
            assert isinstance(plan.stream[0], Seek)
            keeps_rows(ds.batch(3).skip(n).take(2))
            keeps_rows(ds.skip(n).repeat(2).take(50))
    seek = plan_of(parquet(tmp_path).skip(21)).stream[0]
    assert isinstance(seek, Seek)
    assert (seek.unit, seek.atom, seek.drop) == (2, 1, 2)  # groups of eight, atoms of three


@pytest.mark.law
def test_skip_stays_where_rows_are_not_one_to_one() -> None:
    called: list[int] = []

    def note(row: dict[str, object]) -> dict[str, object]:
        called.append(1)
        return row

    for ds in (flights().filter(LATE), flights().flat_map(lambda row: [row]), flights().map(note)):
        assert stream(keeps_rows(ds.skip(5)))[0] == "Skip"
    called.clear()
    list(flights().map(note).skip(20).with_options(executor="sync"))
    assert len(called) == ROWS  # it is called for every row, whoever wants them
    assert stream(keeps_rows(flights().shuffle(window="atoms", size=2).skip(5)))[-1] == "Skip"


def test_skip_of_a_permuted_source_begins_in_its_order() -> None:
    ds = flights().shuffle().skip(9).take(6)
    plan = keeps_rows(ds)
    assert stream(plan) == ["Seek", "Take"]
    assert plan.stage.order is not None


@pytest.mark.law
def test_a_skip_is_resumed_where_it_was(tmp_path: Path) -> None:
    for ds in (flights().shuffle().skip(9), parquet(tmp_path).skip(13).repeat(2)):
        every = ran(ds, 0, optimized=True).elements
        for stop in (0, 1, 5, len(every) - 1):
            pinned = ds.epoch(0).with_options(executor="sync")
            it = iter(pinned)
            for _ in range(stop):
                next(it)
            again = iter(pinned)
            again.load_state_dict(it.state_dict())
            assert len(list(again)) == len(every) - stop


def test_the_first_units_of_a_source_are_what_they_are_in_the_whole(tmp_path: Path) -> None:
    """When a file was changed decides whether rows of it are kept."""
    whole = parquet(tmp_path)._node
    assert isinstance(whole, Source)
    for source in (whole, dml.range(3)._node):
        assert isinstance(source, Source)
        leading, unit = Leading(source, 1), source.unit(0)
        assert leading.changed_ns(unit) == source.changed_ns(unit)
        assert leading.far == source.far
    assert whole.changed_ns(whole.unit(0))


@pytest.mark.law
def test_take_into_source(tmp_path: Path) -> None:
    ds = parquet(tmp_path)  # five row groups of eight
    for n, units in ((0, 0), (1, 1), (8, 1), (9, 2), (39, 5)):
        plan = keeps_rows(ds.take(n).with_columns(z=col("id") + 1))
        assert plan.stage.source.unit_count == units
        assert isinstance(plan.stage.source, Leading) == (units < 5)
    assert keeps_rows(ds.skip(9).take(7)).stage.source.unit_count == 2
    assert keeps_rows(ds.skip(9).take(8)).stage.source.unit_count == 3
    assert keeps_rows(flights().shuffle().take(5)).stage.source.unit_count == 2
    assert keeps_rows(ds.batch(4).take(2)).stage.source.unit_count == 1
    assert keeps_rows(ds.filter(col("id") > 3).take(2)).stage.source.unit_count == 5
    atoms = flights().shuffle(window="atoms", size=2).take(3)
    assert keeps_rows(atoms).stage.source.unit_count == 6  # an order of all pieces


@pytest.mark.law
def test_nothing_into_source(tmp_path: Path) -> None:
    ds = parquet(tmp_path)
    nothing = (ds.take(0), ds.repeat(0), ds.filter(lit(False)), ds.shuffle().filter(lit(False)))
    for each in nothing:
        assert keeps_rows(each).stage.source.unit_count == 0
        keeps_rows(each.batch(3).repeat(2))
    assert keeps_rows(ds.filter(lit(False)).shuffle(window="atoms", size=2)) is not None


# -------------------------------------------------------------------------------------- orders


@pytest.mark.law
def test_shuffle_into_source(tmp_path: Path) -> None:
    plan = keeps_rows(flights().filter(LATE).with_columns(z=col("id") * 2).shuffle())
    assert plan.stage.order is not None
    assert plan.stream == ()
    for ds in (
        parquet(tmp_path).shuffle(),  # a row group cannot be entered anywhere
        flights().take(9).shuffle(),
        flights().flat_map(lambda row: [row]).shuffle(),
        flights().repeat(2).shuffle(),
        flights().filter(not_three).shuffle(),
    ):
        assert keeps_rows(ds).stage.order is None
        assert "ShuffleAll" in stream(plan_of(ds))


def not_three(row: dict[str, object]) -> bool:
    sys.stdout.flush()
    return row["id"] != 3


def test_an_order_of_pieces_holds_without_optimising() -> None:
    ds = flights().shuffle(window="atoms", size=2)
    for optimized in (False, True):
        assert plan_of(ds.with_options(optimize=optimized)).stage.order is not None
    keeps_rows(ds.filter(LATE).take(4))
