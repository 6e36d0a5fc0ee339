"""Test the resources that a step may request, and that they do not change fingerprints."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

import dml
from dml.api.dataset import Dataset
from dml.errors import PlanError
from dml.expr.facts import Needs
from dml.expr.needs import needs_of
from dml.ops.row.lifted import LiftedFilter, LiftedMap
from dml.optimize.phases import optimize
from tests.expr.checks import holds, node_of, numbers

ASKED: dict[str, Any] = {
    "num_cpus": 2,
    "num_gpus": 0.5,
    "memory": "2GiB",
    "resources": {"tape": 1, "disk": 2.5},
    "concurrency": 3,
}
MADE = Needs(2.0, 0.5, 2 << 30, (("disk", 2.5), ("tape", 1.0)), 3)


def shaken(row: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {"y": row["x"] + rng.random()}


VERBS: dict[str, Callable[..., Dataset]] = {
    "map": lambda ds, **asked: ds.map(lambda row: {"y": row["x"] + 1}, **asked),
    "filter": lambda ds, **asked: ds.filter(lambda row: row["x"] > 1, **asked),
    "flat_map": lambda ds, **asked: ds.flat_map(lambda row: [row], **asked),
    "map_batches": lambda ds, **asked: ds.map_batches(lambda b: b, **asked),
    "random_map": lambda ds, **asked: ds.random_map(shaken, **asked),
    "map of batches": lambda ds, **asked: ds.batch(2).map(lambda b: b, **asked),
}


@pytest.mark.parametrize("verb", VERBS)
def test_needs_are_carried_and_name_nothing(verb: str) -> None:
    usual, asking = VERBS[verb](numbers(6)), VERBS[verb](numbers(6), **ASKED)
    node = node_of(asking)
    assert node_of(usual).needs == Needs()
    assert node.needs == MADE
    assert node.replace(fn=node.calls).needs == MADE
    assert pickle.loads(pickle.dumps(Needs(num_gpus=1))) == Needs(num_gpus=1)
    assert node.digest == node_of(usual).digest
    for domain in ("result", "fleet", "cost", "shape"):
        assert asking.fingerprint(domain) == usual.fingerprint(domain)
    assert "num_gpus=0.5" in node.title()
    assert "memory=2147483648" in node.title()


@pytest.mark.law
@pytest.mark.parametrize("verb", VERBS)
def test_needs_change_no_row(verb: str) -> None:
    assert holds(VERBS[verb](numbers(6), num_cpus=2)) == holds(VERBS[verb](numbers(6)))


def test_what_was_given_resources_stays_a_step_of_its_own() -> None:
    ds = numbers(6)
    for verb, kind in (("map", LiftedMap), ("filter", LiftedFilter)):
        lifted = optimize(node_of(VERBS[verb](ds)), 0).chosen.chain()
        called = optimize(node_of(VERBS[verb](ds, num_gpus=1)), 0).chosen.chain()
        assert any(isinstance(node, kind) for node in lifted)
        assert not any(isinstance(node, kind) for node in called)
        assert VERBS[verb](ds, num_gpus=1).schema == VERBS[verb](ds).schema


def test_what_needs_nothing_but_a_resource() -> None:
    assert needs_of("map", 0, None, None, {"tape": 1}, None).num_cpus == 0
    assert needs_of("map", 0, 1, None, None, None).num_gpus == 1
    assert needs_of("map", None, None, 5, {"none": 0}, None) == Needs(memory=5)


def test_processors_and_gpus_among_resources_are_those() -> None:
    assert needs_of("map", None, None, None, {"GPU": 0.5, "tape": 1}, None) == Needs(
        num_gpus=0.5, resources=(("tape", 1.0),)
    )
    assert needs_of("map", None, 1, None, {"cpu": 0.5}, None) == Needs(0.5, 1.0)
    with pytest.raises(PlanError, match=r"num_gpus=2 and resources\['GPU'\]=1"):
        numbers(3).map(dict, num_gpus=2, resources={"GPU": 1})


@pytest.mark.parametrize(
    "asked",
    [
        {"num_cpus": -1},
        {"num_cpus": 0},
        {"num_cpus": 0, "num_gpus": 0, "resources": {"tape": 0}},
        {"num_cpus": True},
        {"num_cpus": float("nan")},
        {"num_gpus": "one"},
        {"num_gpus": -0.5},
        {"memory": 0},
        {"memory": "much"},
        {"resources": ["tape"]},
        {"resources": {1: 1}},
        {"resources": {"tape": -1}},
        {"resources": {"tape": None}},
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"concurrency": True},
        {"concurrency": -1},
        {"concurrency": "many"},
        {"num_parallel_calls": 0},
        {"num_parallel_calls": 1.5},
        {"num_parallel_calls": -2},
    ],
)
@pytest.mark.parametrize("verb", ["map", "flat_map", "random_map"])
def test_refusals(verb: str, asked: dict[str, Any]) -> None:
    nothing = asked.get("num_cpus") == 0
    with pytest.raises(PlanError, match="needs nothing" if nothing else next(iter(asked))):
        VERBS[verb](numbers(3), **asked)


@pytest.mark.parametrize("verb", VERBS)
def test_how_many_calls_at_once_by_the_name_of_tf_data(verb: str) -> None:
    def needs(**asked: Any) -> Needs:
        return node_of(VERBS[verb](numbers(6), **asked)).needs

    assert needs(num_parallel_calls=3) == needs(concurrency=3) == Needs(concurrency=3)
    tf_autotune = -1
    for auto in (None, dml.AUTOTUNE, "auto", tf_autotune):
        assert needs(num_parallel_calls=auto) == Needs()
    assert needs(concurrency=dml.AUTOTUNE) == Needs()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("calls", [2, "auto"])
def test_both_names_of_how_many_calls_at_once_are_refused(verb: str, calls: Any) -> None:
    with pytest.raises(PlanError) as found:
        VERBS[verb](numbers(3), concurrency=2, num_parallel_calls=calls)
    assert found.value.what.endswith(f"with concurrency=2 and num_parallel_calls={calls!r}")
    assert "test_needs.py" in found.value.at
    assert found.value.why == "both say how many calls of this step run at once"
    assert found.value.try_ == "concurrency= alone"


@pytest.mark.parametrize("verb", ["map", "random_map"])
def test_one_step_frees_the_order_of_the_whole(verb: str) -> None:
    for kept in (None, True):
        assert VERBS[verb](numbers(3), deterministic=kept)._settings.deterministic
    assert not VERBS[verb](numbers(3), deterministic=False)._settings.deterministic
    with pytest.raises(PlanError, match=f"{verb} with deterministic='no'"):
        VERBS[verb](numbers(3), deterministic="no")


@pytest.mark.parametrize("calls", [{"concurrency": "auto"}, {"num_parallel_calls": dml.AUTOTUNE}])
def test_an_expression_leaves_how_many_at_once_to_dml(calls: dict[str, Any]) -> None:
    assert len(numbers(3).filter(dml.col("x") > 1, **calls).take_rows(3)) == 1


@pytest.mark.parametrize(
    "asked",
    [
        {"num_cpus": 1},
        {"concurrency": 2},
        {"num_parallel_calls": 1},
        {"resources": {"tape": 1}},
        {"fn_constructor_args": (1,)},
    ],
)
def test_expressions_ask_for_nothing(asked: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="filter by an expression"):
        numbers(3).filter(dml.col("x") > 1, **asked)
