"""This file tests what may be asked for a step, and that it is carried without naming anything."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

import dml
from dml.dataset import Dataset
from dml.errors import PlanError
from dml.expr.facts import Needs
from dml.expr.needs import needs_of
from dml.expr.ops.lifted import LiftedFilter, LiftedMap
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
VERBS: dict[str, Callable[..., Dataset]] = {
    "map": lambda ds, **asked: ds.map(lambda row: {"y": row["x"] + 1}, **asked),
    "filter": lambda ds, **asked: ds.filter(lambda row: row["x"] > 1, **asked),
    "flat_map": lambda ds, **asked: ds.flat_map(lambda row: [row], **asked),
    "map_batches": lambda ds, **asked: ds.map_batches(lambda b: b, **asked),
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
    ],
)
@pytest.mark.parametrize("verb", ["map", "flat_map"])
def test_refusals(verb: str, asked: dict[str, Any]) -> None:
    nothing = asked.get("num_cpus") == 0
    with pytest.raises(PlanError, match="needs nothing" if nothing else next(iter(asked))):
        VERBS[verb](numbers(3), **asked)


@pytest.mark.parametrize(
    "asked", [{"num_cpus": 1}, {"resources": {"tape": 1}}, {"fn_constructor_args": (1,)}]
)
def test_expressions_ask_for_nothing(asked: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="filter by an expression"):
        numbers(3).filter(dml.col("x") > 1, **asked)
