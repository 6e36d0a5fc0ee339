"""Test estimates of plans: row counts in both directions of a chain, known or guessed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.optimize.cost.estimate import Estimate, estimates
from dml.optimize.cost.priors import kept_by
from dml.optimize.phases import optimize
from dml.optimize.work_names import work_names
from dml.profile import CostKey, Learned, Profile, Speed, counted
from tests.optimize.tables import ROWS, flights, parquet


def of(ds: dml.Dataset, profile: Profile | None = None) -> tuple[Estimate, ...]:
    stations = optimize(ds._node, 0)
    return estimates(stations.plan, work_names(stations.plan), profile or Profile())


def rows(ds: dml.Dataset, profile: Profile | None = None) -> list[float]:
    return [each.rows_out for each in of(ds, profile)]


def test_rows_that_are_known_are_exact() -> None:
    found = of(flights().with_columns(z=col("id") + 1).shuffle(4).batch(5))
    assert [each.rows_out for each in found] == [ROWS] * len(found)
    assert {each.counted for each in found} == {""}
    assert all(each.bytes_out > 0 for each in found)
    assert all(each.seconds is not None and each.seconds.source == "p" for each in found)


def test_a_filter_is_guessed_until_it_was_seen() -> None:
    ds = flights().filter(col("id") == 3)
    read, kept = of(ds)
    assert (read.counted, kept.counted) == ("", "p")
    assert 0 < kept.rows_out < ROWS
    name = work_names(optimize(ds._node, 0).plan)[1]["fleet"]
    seen = Profile(ratios={name: Learned.once(1 / ROWS, 0.0)})
    assert of(ds, seen)[1].rows_out == pytest.approx(1)
    assert of(ds, seen)[1].counted == "h"


def test_take_asks_for_less_and_a_sort_for_all() -> None:
    assert rows(flights().shuffle(4).take(5))[0] == 5
    assert rows(flights().sort("id").take(5))[0] == ROWS
    assert rows(flights().batch(4).take(2))[0] == 8
    assert rows(flights().skip(3))[-1] == ROWS - 3


def test_repeat_asks_for_more() -> None:
    assert rows(flights().with_columns(z=col("id") + 1).shuffle(4).repeat(3))[0] == 3 * ROWS
    assert rows(flights().shuffle(4).repeat().take(50))[0] == 50
    found = of(flights().shuffle(4).repeat())
    assert found[-1].rows_out == math.inf
    assert found[0].rows_out == ROWS


def test_inputs_beside_stand_after_the_chain() -> None:
    ds = flights().join(flights().select("id", "gate").with_columns(far=col("id")), "id")
    found = of(ds)
    assert [each.ordinal for each in found] == list(range(len(found)))
    assert found[-2].reads
    assert found[-2].rows_out == ROWS


def test_every_input_is_asked_for_its_own_rows() -> None:
    numbers = dml.from_dict({"n": list(range(ROWS))})
    for ds in (flights().zip(numbers), flights().concat(flights().shuffle(4)).sort("id")):
        assert [each.rows_out for each in of(ds) if each.reads] == [ROWS, ROWS]
    half = of(flights().mix(flights().shuffle(4)).take(ROWS))
    assert [each.rows_out for each in half if each.reads] == [ROWS / 2, ROWS / 2]


def test_statistics_rule_out_row_groups(tmp_path: Path) -> None:
    assert rows(parquet(tmp_path).filter(col("id") < 9))[0] == 16
    assert rows(parquet(tmp_path).filter(col("id") < 0))[0] == 0


def test_statistics_prove_that_row_groups_pass(tmp_path: Path) -> None:
    read, kept = of(parquet(tmp_path).filter(col("id") < 30))
    guessed = kept_by((col("id") < 30).value)
    assert read.rows_out == 32
    assert kept.rows_out == pytest.approx(24 + 8 * guessed)
    both = of(parquet(tmp_path).filter((col("id") < 30) & (col("x") * 2 > 1)))[1]
    assert both.rows_out < kept.rows_out


def fifty() -> Iterator[dict[str, int]]:
    return ({"a": n} for n in range(50))


def test_a_pipeline_that_ended_before_tells_what_the_data_does_not() -> None:
    ds = dml.from_generator(fifty, schema={"a": "int64"}).filter(col("a") > 0)
    assert of(ds)[0].counted == "p"
    plan = optimize(ds._node, 0).plan
    seen = {counted(plan.fingerprint, i): Learned.once(50 - i, 0.0) for i in (0, 1)}
    assert rows(ds, Profile(counts=seen)) == pytest.approx([50, 49])
    del seen[counted(plan.fingerprint, 1)]
    assert of(ds, Profile(counts=seen))[0].counted == "p"


def test_costs_of_this_class_of_machine_are_used() -> None:
    ds = flights().shuffle(4)
    name = work_names(optimize(ds._node, 0).plan)[1]["cost"]
    seen = {CostKey.of(name, "here", 4, 40): Learned.once(1e-3, 0.0)}
    here = of(ds, Profile(seen, host_class="here"))[1]
    assert here.per_row.source == "h"
    assert here.per_row.typical == pytest.approx(1e-3, rel=0.4)
    assert of(ds, Profile(seen, host_class="there"))[1].per_row.source == "p"


def test_a_slower_machine_is_expected_to_be_slower() -> None:
    ds = flights().map(lambda row: {"a": str(row["id"])}).shuffle(4)
    usual, slow = of(ds), of(ds, Profile(speed=Speed(2.0, 2.0)))
    for one, two in zip(usual, slow, strict=True):
        assert two.per_row.typical == pytest.approx(2 * one.per_row.typical)


def test_names_of_work_are_those_of_the_operator(tmp_path: Path) -> None:
    def names(ds: dml.Dataset) -> list[dict[str, str]]:
        return list(work_names(optimize(ds._node, 0).plan))

    one = names(flights().filter(col("miles") > 5).shuffle(4))
    two = names(flights().filter(col("miles") > 9).shuffle(4))
    assert [each["cost"] for each in one] == [each["cost"] for each in two]
    assert one[1]["fleet"] != two[1]["fleet"]
    assert one[:2] == names(flights().filter(col("miles") > 5).batch(4))[:2]
    assert one[1]["cost"] != names(flights().filter(col("late") > 5).shuffle(4))[1]["cost"]
    for name in ("a", "b"):
        pq.write_table(pa.table({"x": [1, 2]}), tmp_path / f"{name}.parquet")
    a, b = (names(dml.read_parquet(str(tmp_path / f"{name}.parquet"))) for name in ("a", "b"))
    assert a[0]["cost"] == b[0]["cost"]
    assert a[0]["fleet"] != b[0]["fleet"]


def test_the_table_knows_what_makes_a_row_dear() -> None:
    def cost(ds: dml.Dataset) -> float:
        return of(ds)[-1].per_row.typical

    assert cost(flights().batch(2)) > cost(flights().batch(20))
    cheap, dear = col("id") + 1, col("gate").str.to_uppercase()
    assert cost(flights().with_columns(z=dear)) > cost(flights().with_columns(z=cheap))
    one, two = flights().with_columns(z=cheap), flights().with_columns(z=cheap, y=cheap)
    assert cost(one) == pytest.approx(cost(two))  # equal parts are computed once
    assert of(flights().shuffle(seed=1))[0].per_row.typical > of(flights())[0].per_row.typical
