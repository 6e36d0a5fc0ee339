"""Test ``concat``: one input after the other, for every kind of input."""

from __future__ import annotations

from typing import Any

import pytest

import dml
from dml import col
from dml.errors import PlanError, SchemaError, UDFError
from tests.expr.checks import QUIET, holds, numbers


def values(ds: dml.Dataset, name: str = "x") -> list[Any]:
    return [row[name] for row in ds.with_options(**QUIET)]


def test_inputs_follow_each_other() -> None:
    ds = numbers(5)
    made = ds.concat(numbers(3).with_columns(x=col("x") + 10), ds.take(2))
    assert values(made) == [0, 1, 2, 3, 4, 10, 11, 12, 0, 1]
    assert values(ds.union([ds.skip(4)])) == [0, 1, 2, 3, 4, 4]
    assert values(ds.concatenate()) == [0, 1, 2, 3, 4]


@pytest.mark.law
@pytest.mark.parametrize("n", [0, 1, 10])
def test_every_way_of_running_and_resuming(n: int) -> None:
    ds, other = numbers(n), numbers(7).shuffle(3, seed=1)
    holds(ds.concat(other))
    holds(ds.concat(other).shuffle(4, seed=2).batch(3))
    holds(ds.shuffle(seed=5).concat(other.concat(ds), ds).batch(4))
    holds(ds.batch(2).concat(other.batch(3)).repeat(2))


@pytest.mark.law
def test_branches_draw_differently_and_have_ids_of_their_own() -> None:
    ds = numbers(8).with_columns(u=dml.random(seed=1))
    one = [row["u"] for row in ds.with_options(**QUIET).epoch(0)]
    made = ds.concat(ds)
    assert [row["u"] for row in made.with_options(**QUIET).epoch(0)] == one + one
    mixed = numbers(4).concat(numbers(4)).with_columns(u=dml.random(seed=1))
    assert len(set(values(mixed, "u"))) == 8
    holds(mixed.shuffle())


@pytest.mark.law
def test_functions_after_it_settle_as_they_would() -> None:
    ds = numbers(5).concat(numbers(4))
    holds(ds.map(lambda row: {"y": row["x"] * 2 if row["x"] else 0}))
    holds(ds.flat_map(lambda row: [{**row} for _ in range(row["x"] % 3)]).batch(2))
    holds(ds.map_batches(lambda batch: {"x": batch["x"] + 1}, batch_size=2))


@pytest.mark.law
def test_brackets_do_not_matter() -> None:
    parts = [dml.from_dict({"x": [n]}) for n in range(300)]
    left, right = parts[0], parts[-1]
    for each in parts[1:]:
        left = left.concat(each)
    for each in reversed(parts[:-1]):
        right = each.concat(right)
    flat = parts[0].concat(*parts[1:])
    assert left.fingerprint() == right.fingerprint() == flat.fingerprint()
    assert [row["x"] for row in left] == list(range(300))


def test_columns_must_agree() -> None:
    with pytest.raises(SchemaError, match="concat of inputs with different columns"):
        numbers(3).concat(numbers(3).cast(x="int32"))
    two = numbers(3).with_columns(y=1)
    with pytest.raises(SchemaError, match="another order"):
        two.concat(two.select("y", "x"))
    with pytest.raises(PlanError, match="rows and batches"):
        numbers(3).concat(numbers(3).batch(2))
    with pytest.raises(PlanError, match="concat needs pipelines, got 3"):
        numbers(3).concat(3)


def test_columns_that_only_a_run_knows_are_compared_then() -> None:
    def made(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": float(f"{row['x']}.5")}

    ds = numbers(4).concat(numbers(2).map(made, fingerprint="made"))
    with pytest.raises(SchemaError, match="input 2 has"):
        values(ds)
    iterator = iter(ds.with_options(**QUIET))
    assert [next(iterator)["x"] for _ in range(4)] == [0, 1, 2, 3]
    again = iter(ds.with_options(**QUIET))
    again.load_state_dict(iterator.state_dict())
    with pytest.raises(SchemaError, match="input 2 has"):
        next(again)


def test_an_error_in_a_branch_comes_in_its_place() -> None:
    def bad(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": 1 // (2 - row["x"]) + row["x"]}

    ds = numbers(3).concat(numbers(5).map(bad, schema={"x": "int64"})).with_options(**QUIET)
    iterator = iter(ds)
    assert [next(iterator)["x"] for _ in range(5)] == [0, 1, 2, 0, 2]
    with pytest.raises(UDFError, match="ZeroDivisionError"):
        next(iterator)


def test_an_endless_branch_is_the_last_that_is_seen() -> None:
    ds = numbers(2).repeat().concat(numbers(3)).take(5)
    assert values(ds) == [0, 1, 0, 1, 0]


def test_what_an_input_computes_is_part_of_the_name() -> None:
    ds = numbers(4)
    names = {ds.concat(each).fingerprint() for each in (ds, ds.take(3), ds.skip(1))}
    assert len(names) == 3
    same = ds.filter(col("x") > 1).filter(col("x") < 3), ds.filter((col("x") > 1) & (col("x") < 3))
    assert ds.concat(same[0]).fingerprint() == ds.concat(same[1]).fingerprint()


@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.cluster
def test_on_workers(executor: str) -> None:
    ds = dml.range(1000, atom_rows=50)
    made = ds.concat(ds.shuffle(seed=1), ds.take(10)).batch(64).with_options(telemetry_dir="off")
    plain = [batch["id"].tolist() for batch in made.with_options(executor="sync").epoch(0)]
    ran = [batch["id"].tolist() for batch in made.with_options(executor=executor).epoch(0)]
    assert ran == plain


def test_stats_tell_of_every_input() -> None:
    ds = numbers(6).concat(numbers(4).filter(col("x") > 1)).with_options(**QUIET)
    list(ds)
    text = str(ds.stats())
    assert text.count("FromArrow") + text.count("Memory") + text.count("Table") >= 2


def test_a_static_graph_is_refused() -> None:
    with pytest.raises(PlanError, match="a static graph has one source, and concat merges several"):
        numbers(3).concat(numbers(2)).to_dask()


def test_an_input_beside_has_its_own_part_of_the_memory_number() -> None:
    plain = dml.range(3).concat(dml.range(30).shuffle(4), dml.range(9).shuffle())
    ds = plain.with_options(telemetry_dir="off", executor="sync")
    assert len(list(ds)) == 42


def test_the_parts_of_a_name_tell_of_every_input() -> None:
    ds = numbers(5)
    one, two = (ds.concat(other).fingerprint(explain=True) for other in (ds, ds.take(3)))
    assert one != two
    assert "    Memory" in one
