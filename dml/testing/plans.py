"""This file asserts what rules do: the pipeline they make, its schema, and the very same rows."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from dml.dataset import Dataset
from dml.errors import DmlError
from dml.expr.node import Node
from dml.expr.ops.segment import Segment
from dml.optimize.engine import Engine, Trace
from dml.optimize.families import named
from dml.optimize.phases import optimize
from dml.optimize.rule import Rule
from dml.optimize.rules.normal import columns_as_segment, filter_as_segment
from dml.plan import Plan
from dml.settings import Settings
from dml.testing.stream_hash import batch_bytes

# Every other rule speaks of segments, so these two always apply first.
ENTRY = (columns_as_segment, filter_as_segment)
# Elements that are compared of each epoch: enough for every window and pass.
MOST = 60
EPOCHS = (0, 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Ran:
    """What came out of a pipeline: its elements bit for bit, and the error that ended it."""

    elements: tuple[object, ...]
    error: str


def rewrites(before: Dataset, *, to: Dataset, by: Sequence[Rule]) -> None:
    """Assert that ``by`` make of ``before`` what they make of ``to``, and that rows are the same.

    The first of ``by`` must fire on ``before``; the others are free to prepare what it needs.
    The rows of the written pipeline, of the rewritten one and of the plan that the whole optimizer
    picks are compared over two epochs, with their dtypes and bits. Where the written one ends in an
    error, the others may go on, since a rewriting may drop rows before they fail.
    """
    trace = Trace()
    made, wanted = _applied(before, by, trace), _applied(to, by, Trace())
    assert by[0].name in trace.names(), f"{by[0].name} did not fire on\n{_tree(made)}"
    assert made == wanted, f"made\n{_tree(made)}\nnot\n{_tree(wanted)}"
    _same_rows(before, made)


def leaves(before: Dataset, *, by: Sequence[Rule]) -> None:
    """Assert that none of ``by`` fires on ``before``, and that optimising keeps its rows."""
    trace = Trace()
    made = _applied(before, by, trace)
    fired = [entry.rule.name for entry in trace.applied if entry.rule in by]
    assert not fired, f"{fired[0]} fired:\n{_tree(made)}"
    _same_rows(before, made)


def keeps_rows(before: Dataset) -> Plan:
    """Assert that optimising ``before`` keeps its rows; returns the plan."""
    _same_rows(before, node_of(before))
    return plan_of(before)


def plan_of(ds: Dataset) -> Plan:
    """The plan that the optimizer makes."""
    settings = settings_of(ds)
    off = named(settings.disable_rules)
    return optimize(node_of(ds), settings.seed, rewriting=settings.optimize, without=off).plan


def ran(ds: Dataset, epoch: int, *, optimized: bool, most: int = MOST) -> Ran:
    """The first ``most`` elements of an epoch, run in this thread."""
    out: list[object] = []
    options: dict[str, Any] = {"executor": "sync", "optimize": optimized}
    try:
        with iter(ds.with_options(**options).epoch(epoch)) as elements:
            out.extend(map(exact, itertools.islice(elements, most)))
    except DmlError as error:
        return Ran(tuple(out), type(error).__name__)
    return Ran(tuple(out), "")


def exact(element: Mapping[str, Any]) -> object:
    """``element`` as something that is equal only where columns, types and bits are."""
    return tuple(element), batch_bytes(element)


def node_of(ds: Dataset) -> Node:
    """What the handle holds."""
    return ds._node  # noqa: SLF001 - rules are about what lies below the handle


def settings_of(ds: Dataset) -> Settings:
    """How the handle runs."""
    return ds._settings  # noqa: SLF001 - as above


def _applied(ds: Dataset, by: Sequence[Rule], trace: Trace) -> Node:
    rules = [*ENTRY, *(rule for rule in by if rule not in ENTRY)]
    made = Engine(rules, trace).rewrite(node_of(ds))
    for node in made.walk():
        if isinstance(node, Segment):
            assert node.infer() == node.schema, f"{node.title()} is {node.infer()}"
    if node_of(ds).schema.known:
        assert made.schema == node_of(ds).schema
    return made


def _same_rows(before: Dataset, made: Node) -> None:
    for epoch in EPOCHS:
        written = ran(before, epoch, optimized=False)
        rewritten = ran(Dataset(made, settings_of(before)), epoch, optimized=False)
        chosen = ran(before, epoch, optimized=True)
        for what, got in (("rewritten", rewritten), ("optimized", chosen)):
            given = got.elements if not written.error else got.elements[: len(written.elements)]
            assert given == written.elements, f"{what}: {given[:5]} ... not {written.elements[:5]}"
            assert got.error in (written.error, ""), f"{what}: {got.error}, not {written.error}"


def _tree(node: Node) -> str:
    return "\n".join(f"  {step.title()}" for step in reversed(node.chain()))
