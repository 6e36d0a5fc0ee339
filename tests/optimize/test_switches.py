"""Test disabled rules: they are not applied, and neither rows nor fingerprints change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dml
from dml import col, lit
from dml.errors import PlanError
from dml.optimize.cost.estimate import estimates
from dml.optimize.engine import no_clock
from dml.optimize.explain.arrangement_text import note
from dml.optimize.phases import optimize
from dml.optimize.rules.families import FAMILIES, NAMED, named
from dml.optimize.search.arrangement import decide
from dml.optimize.search.arrangement_space import MachineLimits, allowed
from dml.optimize.search.filter_order import guard_costly_parts, guarded
from dml.optimize.work_names import work_names
from dml.profile import CostKey, Learned, Profile
from dml.testing.plans import keeps_rows, node_of
from tests.optimize.tables import flights, parquet

LATE, HIGH, GATE = col("late") > 0, col("id") > 3, col("gate") != "g1"
Shape = Callable[[Path], dml.Dataset]


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "x": row["x"] * 2}


def written(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "t": f"{row['x']} {row['id']}"}


def lists() -> dml.Dataset:
    return dml.from_dict({"id": [1, 5, 7, 9], "l": [[1, 2], [], [3], None], "m": [1, 2, 3, 4]})


def joined(how: str) -> Shape:
    return lambda _: (
        flights().join(flights().rename({"miles": "km"}), on="id", how=how).filter(LATE)
    )


# Pipelines in which every rule has something to do.
SHAPES: dict[str, Shape] = {
    "lifted": lambda folder: parquet(folder).map(doubled).filter(lambda row: row["x"] > 3),
    "ranges": lambda _: dml.range(99).map(lambda row: {"x": row["id"] * 2}),
    "columns": lambda _: flights().with_columns(z=col("id") + 1).rename({"z": "y"}).filter(LATE),
    "identity": lambda _: flights().select("id", "late", "miles", "gate"),
    "position": lambda _: flights().take(9).with_columns(z=col("id") + 1).batch(2).take(2),
    "slices": lambda _: flights().take(12).take(9).skip(0).skip(2).skip(1).shuffle(4),
    "keyed": lambda _: flights().shuffle(5).shuffle().filter(LATE).select("id"),
    "sort": lambda _: flights().sort("late").filter(LATE).take(3),
    "repeat": lambda _: flights().repeat(2).filter(LATE),
    "cache": lambda _: flights().cache().cache(),
    "long": lambda _: flights().take(99),
    "inner": joined("inner"),
    "semi": joined("semi"),
    "projected": lambda _: joined("left")(Path()).select("id", "late"),
    "folded": lambda _: flights().with_columns(
        z=lit(1) + 2, w=dml.when(lit(True)).then(col("id")).otherwise(2)
    ),
    "logic": lambda _: flights().filter((LATE & lit(True)) | lit(False)).filter(lit(True)),
    "nothing": lambda _: flights().filter(LATE).filter(lit(False)),
    "sure": lambda _: flights().cast({"miles": "int32"}).skip(5).take(6),
    "dead": lambda folder: (
        parquet(folder).with_columns(y=col("x")).take(9).filter(HIGH).select("x")
    ),
    "concat": lambda _: flights().concat(flights().skip(3)).filter(LATE).take(4),
    "mix": lambda _: flights().mix(flights(), weights=[2, 1]).filter(LATE).select("late"),
    "zip": lambda _: flights().select("id").zip(flights().drop("id")).select("late", "id"),
    "groups": lambda _: flights().group_by("gate").agg(n=col("id").count()).filter(GATE),
    "explode": lambda _: lists().explode("l").filter(HIGH).select("l"),
    "called": lambda folder: parquet(folder).map(doubled).filter(HIGH),
    "slow": lambda folder: parquet(folder).map(written),
    "sharded": lambda folder: parquet(folder).map(written).shard(2, 1),
    "part": lambda _: flights().split([0.8, 0.2], seed=1)[0].filter(LATE),
    "sorts": lambda _: flights().sort("id").sort("gate", descending=True).shuffle(),
    "two sorts": lambda _: flights().sort("id").sort("gate", descending=True),
    "rebatch": lambda _: flights().batch(4).unbatch().batch(3),
    "shards": lambda _: flights().shard(3, 1).shard(2, 1).shard(1, 0),
    "costly": lambda _: flights().filter((col("miles") == 7) & col("gate").str.contains("g1")),
    "read": lambda folder: parquet(folder).filter(col("id") > 20).skip(2),
}


# About several pipelines: tests/exec/streams/test_multi_run.py.
JOINT = {"run_shared_once"}


def fired(ds: dml.Dataset, without: frozenset[str] = frozenset()) -> set[str]:
    made = optimize(node_of(ds), 0, without=without)
    if guard_costly_parts.name not in without:
        guarded(made.plan, Profile(), made.trace)
    machine = MachineLimits(4, ("threads", "processes"), lambda _: 1 << 20)
    may = allowed(made.plan, machine, without)
    if may.any:
        names = work_names(made.plan)
        # rows are wide, and every operator but the source takes a second for each
        costs = {CostKey.of(each["cost"], "", 4, 1e5): Learned.once(1.0, 0.0) for each in names[1:]}
        sizes = {each["fleet"]: Learned.once(1e5, 0.0) for each in names}
        found = estimates(made.plan, names, Profile(costs, sizes=sizes))
        decision = decide(made.plan, found, machine, may, no_clock)
        assert decision is not None
        note(made.trace, decision, 0.0)
    return set(made.trace.names())


@pytest.mark.law
def test_every_rule_fires_somewhere_here(tmp_path: Path) -> None:
    assert set().union(*(fired(shape(tmp_path)) for shape in SHAPES.values())) == set(NAMED) - JOINT


@pytest.mark.sample(12)
@pytest.mark.law
@pytest.mark.parametrize("shape", SHAPES)
def test_a_rule_that_is_switched_off_does_not_fire(shape: str, tmp_path: Path) -> None:
    ds = SHAPES[shape](tmp_path)
    for name in fired(ds):
        off = ds.with_options(disable_rules=[name])
        assert name not in fired(ds, frozenset([name]))
        assert f"{name}:" not in off.explain("rules")
        assert off.fingerprint() == ds.fingerprint()
        keeps_rows(off)


@pytest.mark.law
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_its_rules(family: str, tmp_path: Path) -> None:
    assert named([family]) == set(FAMILIES[family]) <= set(NAMED)
    for shape in SHAPES.values():
        assert not fired(shape(tmp_path), named([family])) & named([family])


@pytest.mark.law
def test_nothing_at_all_is_as_it_was_written(tmp_path: Path) -> None:
    for shape in SHAPES.values():
        stations = optimize(node_of(shape(tmp_path)), 0, without=frozenset(NAMED))
        assert not stations.trace.applied
        assert stations.chosen is stations.written


def test_states_go_on_where_the_stream_has_the_same_operators() -> None:
    ds = flights().drop("late").with_columns(z=col("id") * 2).rename({"z": "y"}).shuffle(4)
    ds = ds.epoch(0)
    off = ds.with_options(disable_rules=["map_fusion", "dead_columns"])
    first = iter(ds)
    before = [next(first) for _ in range(7)]
    again = iter(off)
    again.load_state_dict(first.state_dict())
    assert [*before, *again] == list(ds)


def test_a_name_that_no_rule_has_is_refused_at_once() -> None:
    with pytest.raises(PlanError, match="no rule 'filter_before_srt'") as caught:
        flights().with_options(disable_rules=("filter_before_srt",))
    assert "did you mean 'filter_before_sort'" in str(caught.value)
    with pytest.raises(PlanError, match="no rule 'predicate_push'") as caught:
        flights().with_options(disable_rules=["predicate_push"])
    assert "'predicate_pushdown'" in str(caught.value)
    with pytest.raises(PlanError, match="must be a list or tuple of names"):
        flights().with_options(disable_rules="filter_before_sort")
    with pytest.raises(PlanError, match='explain\\("rules"\\)'):
        flights().with_options(disable_rules=("?",))


def test_switches_are_settings_like_others() -> None:
    ds = flights().with_options(disable_rules=["map_fusion", "dead_columns", "map_fusion"])
    assert ds._settings.disable_rules == ("dead_columns", "map_fusion")
    assert ds.with_options(disable_rules=())._settings == flights()._settings
