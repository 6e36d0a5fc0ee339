"""This file asserts what rules do: the pipeline they make, its schema, and the very same rows."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from dml.dataset import Dataset
from dml.errors import DmlError
from dml.expr.node import Node
from dml.expr.ops.segment import Segment
from dml.optimize.engine import Engine, Trace
from dml.optimize.phases import optimize
from dml.optimize.rule import Rule
from dml.optimize.rules.normal import columns_as_segment, filter_as_segment
from dml.plan import Plan

# Every other rule speaks of segments, so these two always apply first.
ENTRY = (columns_as_segment, filter_as_segment)
# Elements that are compared of each epoch: enough for every window, pass and unit of a small test.
MOST = 300
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
    _same_rows(before, before._node)
    return plan_of(before)


def plan_of(ds: Dataset) -> Plan:
    """The plan that the optimizer makes."""
    settings = ds._settings
    return optimize(ds._node, settings.seed, rewriting=settings.optimize).plan


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


def exact(value: Any) -> object:
    """``value`` as something that is equal only where type and bits are; all NaNs are one."""
    if isinstance(value, dict):
        return tuple((name, exact(each)) for name, each in value.items())
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O":
            return ("object", value.shape, tuple(map(exact, value.ravel())))
        return (value.dtype.str, value.shape, np.where(value == value, value, 0).tobytes(), _nan(value))
    if isinstance(value, float):
        return ("float", "nan" if value != value else value.hex())
    return (type(value).__name__, value)


def _nan(value: np.ndarray) -> bytes:
    return np.asarray(value != value).tobytes()


def _applied(ds: Dataset, by: Sequence[Rule], trace: Trace) -> Node:
    rules = [*ENTRY, *(rule for rule in by if rule not in ENTRY)]
    made = Engine(rules, trace).rewrite(ds._node)
    for node in made.walk():
        if isinstance(node, Segment):
            assert node.infer() == node.schema, f"{node.title()} is {node.infer()}"
    if ds._node.schema.known:
        assert made.schema == ds._node.schema
    return made


def _same_rows(before: Dataset, made: Node) -> None:
    for epoch in EPOCHS:
        written = ran(before, epoch, optimized=False)
        rewritten = ran(Dataset(made, before._settings), epoch, optimized=False)
        chosen = ran(before, epoch, optimized=True)
        for what, got in (("rewritten", rewritten), ("optimized", chosen)):
            given = got.elements if not written.error else got.elements[: len(written.elements)]
            assert given == written.elements, f"{what}: {given[:5]} ... not {written.elements[:5]}"
            assert got.error in (written.error, ""), f"{what}: {got.error}, not {written.error}"


def _tree(node: Node) -> str:
    return "\n".join(f"  {step.title()}" for step in reversed(node.chain()))
