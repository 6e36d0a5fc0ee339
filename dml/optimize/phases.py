"""This file is the table of contents of the optimizer: which rules, in which order of phases."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dml.expr.fingerprint import Domain
from dml.expr.node import Node
from dml.optimize.engine import Clock, Engine, Trace, no_clock
from dml.optimize.lower import plan_of
from dml.optimize.names import fingerprint_of
from dml.optimize.rule import Rule
from dml.optimize.rules import constants, normal, order, vectorize
from dml.plan import Plan

NORMAL: tuple[Rule, ...] = (
    vectorize.lift_map,
    vectorize.lift_filter,
    normal.columns_as_segment,
    normal.filter_as_segment,
    normal.merge_columns,
    normal.filter_before_columns,
    normal.drop_identity_segment,
    order.columns_before_position,
    order.segment_before_keyed_shuffle,
    order.segment_before_repeat,
    order.merge_takes,
    order.merge_skips,
    order.drop_noop_position,
    order.drop_overruled_shuffle,
    constants.fold_constants,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Optimized:
    """Every station of one pipeline: written, normalized, chosen, physical, and the trace."""

    written: Node
    normalized: Node
    chosen: Node
    plan: Plan
    trace: Trace


def normalize(root: Node, trace: Trace, rules: Sequence[Rule] = NORMAL) -> Node:
    """The normal form: equal meanings, equal trees."""
    return Engine(rules, trace).rewrite(root)


def optimize(
    root: Node, seed: int, *, rewriting: bool = True, clock: Clock = no_clock
) -> Optimized:
    """Take a pipeline from written to physical; without ``rewriting``, as it was written."""
    trace = Trace(clock)
    normalized = normalize(root, trace)
    chosen = normalized if rewriting else root
    name = fingerprint_of(normalized, Domain.FLEET, seed)
    plan = plan_of(chosen, name, optimized=rewriting)
    return Optimized(root, normalized, chosen, plan, trace)
