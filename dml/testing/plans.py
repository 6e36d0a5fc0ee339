"""Effects of optimizer rules are asserted here: the new pipeline, its schema, equal rows."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from dml.api.dataset import Dataset
from dml.data.stream_hash import batch_bytes
from dml.errors import DmlError
from dml.expr.node import Node
from dml.ops.row.segment import Segment
from dml.optimize.engine import Engine, RuleTrace
from dml.optimize.phases import optimize
from dml.optimize.rule import Rule
from dml.optimize.rules.families import named
from dml.optimize.rules.normal_form import columns_as_segment, filter_as_segment
from dml.physical.plan import Plan
from dml.settings import Settings

# Every other rule matches segments, so these two always apply first.
ENTRY = (columns_as_segment, filter_as_segment)
# Number of elements compared per epoch: enough for every window and pass.
MOST = 60
EPOCHS = (0, 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Ran:
    """The output of a pipeline: its elements bit for bit, and the error that ended the run."""

    elements: tuple[object, ...]
    error: str


def rewrites(before: Dataset, *, to: Dataset, by: Sequence[Rule]) -> None:
    """Assert that the rules ``by`` rewrite ``before`` and ``to`` alike, and that rows stay equal.

    The first rule of ``by`` must fire on ``before``; further rules may prepare its input. The rows
    of the written pipeline, of the rewritten pipeline and of the plan that the whole optimizer
    picks are compared over two epochs, with their dtypes and bits. Where the written pipeline ends
    in an error, the other two may continue, since a rewrite may drop rows before they fail.
    """
    trace = RuleTrace()
    made, wanted = _applied(before, by, trace), _applied(to, by, RuleTrace())
    assert by[0].name in trace.names(), f"{by[0].name} did not fire on\n{_tree(made)}"
    assert made == wanted, f"made\n{_tree(made)}\nnot\n{_tree(wanted)}"
    _same_rows(before, made)


def leaves(before: Dataset, *, by: Sequence[Rule]) -> None:
    """Assert that no rule of ``by`` fires on ``before``, and that optimising keeps its rows."""
    trace = RuleTrace()
    made = _applied(before, by, trace)
    fired = [entry.rule.name for entry in trace.applied if entry.rule in by]
    assert not fired, f"{fired[0]} fired:\n{_tree(made)}"
    _same_rows(before, made)


def keeps_rows(before: Dataset) -> Plan:
    """Assert that optimising ``before`` keeps its rows; returns the plan."""
    _same_rows(before, node_of(before))
    return plan_of(before)


def plan_of(ds: Dataset) -> Plan:
    """Return the plan that the optimizer makes."""
    settings = settings_of(ds)
    off = named(settings.disable_rules)
    return optimize(node_of(ds), settings.seed, rewriting=settings.optimize, without=off).plan


def ran(ds: Dataset, epoch: int, *, optimized: bool, most: int = MOST) -> Ran:
    """Return the first ``most`` elements of an epoch, run in this thread."""
    out: list[object] = []
    options: dict[str, Any] = {"executor": "sync", "optimize": optimized}
    try:
        with iter(ds.with_options(**options).epoch(epoch)) as elements:
            out.extend(map(exact, itertools.islice(elements, most)))
    except DmlError as error:
        return Ran(tuple(out), type(error).__name__)
    return Ran(tuple(out), "")


def exact(element: Mapping[str, Any]) -> object:
    """Return a key of ``element``: equal only for equal columns, types and bits."""
    return tuple(element), batch_bytes(element)


def node_of(ds: Dataset) -> Node:
    """Return the node of the dataset."""
    return ds._node  # noqa: SLF001 - rules are about what lies below the handle


def settings_of(ds: Dataset) -> Settings:
    """Return the settings of the dataset."""
    return ds._settings  # noqa: SLF001 - as above


def _applied(ds: Dataset, by: Sequence[Rule], trace: RuleTrace) -> Node:
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
