"""This file is the table of contents of the optimizer: which rules, in which order of phases."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from dml.expr.facts import Needs
from dml.expr.fingerprint import Domain
from dml.expr.node import Node
from dml.optimize.allowed import executor_by_cost, partitions_by_cost, stages_by_cost
from dml.optimize.engine import Clock, Engine, Trace, no_clock
from dml.optimize.guards import guard_costly_parts
from dml.optimize.lower import LOWERINGS, plan_of
from dml.optimize.names import Memo, fingerprint_of, resuming_name
from dml.optimize.rebuild import over
from dml.optimize.refusals import refusals
from dml.optimize.rule import Named, Rule
from dml.optimize.rules import (
    bounds,
    constants,
    functions,
    groups,
    joins,
    normal,
    order,
    ranges,
    several,
    vectorize,
)
from dml.optimize.together import run_shared_once
from dml.plan import Plan

# The normal form, first half: the shape of rows and columns.
SHAPES: tuple[Rule, ...] = (
    vectorize.lift_map,
    vectorize.lift_filter,
    normal.columns_as_segment,
    normal.filter_as_segment,
    normal.merge_columns,
    normal.filter_before_columns,
    normal.drop_identity_segment,
    order.columns_before_position,
    order.segment_before_keyed_shuffle,
    order.filter_before_sort,
    order.segment_before_repeat,
    order.slice_before_batch,
    order.skip_before_take,
    order.merge_takes,
    order.merge_skips,
    order.drop_noop_position,
    order.drop_overruled_shuffle,
    order.drop_second_cache,
    joins.columns_before_join,
    joins.keys_before_semi_join,
    joins.filter_before_join,
    several.segment_before_concat,
    several.columns_before_mix,
    several.columns_before_zip,
    groups.filter_before_groups,
    groups.filter_before_explode,
    groups.filter_before_lifted_map,
    groups.segment_before_part,
    groups.merge_sorts,
    groups.drop_overruled_sort,
    groups.merge_batches,
    groups.merge_shards,
)

# Second half: the values in the segments, once they are whole. What it finds (a cast that cannot
# fail, a filter that keeps all) may let segments move, so the first half runs again after it.
VALUES: tuple[Rule, ...] = (
    constants.fold_constants,
    constants.simplify_logic,
    constants.pick_branch,
    constants.drop_true_parts,
    constants.keep_nothing,
    constants.relax_sure_cast,
)

# What depends on how long the data is, and therefore must not enter names.
CHOICES: tuple[Rule, ...] = (
    bounds.drop_take_of_less,
    bounds.take_while_sorting,
    functions.slice_before_function,
    several.take_before_concat,
    ranges.drop_needless_checks,
    several.zip_of_one_input,
)

NORMAL: tuple[Rule, ...] = SHAPES + VALUES

# Every rule there is, by name: what may be switched off.
NAMED: dict[str, Named] = {
    rule.name: rule
    for rule in (
        *(*NORMAL, *CHOICES, *LOWERINGS, guard_costly_parts, run_shared_once),
        *(stages_by_cost, partitions_by_cost, executor_by_cost),
    )
}

N = TypeVar("N", bound=Named)
NONE: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, eq=False)
class Optimized:
    """Every station of one pipeline: written, normalized, chosen, physical, and the trace.

    ``normalized`` is what names are made of, so it says nothing of where operators run. ``without``
    are the rules that were not used.
    """

    written: Node
    normalized: Node
    chosen: Node
    plan: Plan
    trace: Trace
    without: frozenset[str] = NONE


def normalize(root: Node, trace: Trace, without: frozenset[str] = NONE) -> Node:
    """The normal form: equal meanings, equal trees; without some laws, as far as others go."""
    shaped = rewritten(root, switched(SHAPES, without), trace)
    valued = rewritten(shaped, switched(VALUES, without), trace)
    return valued if valued is shaped else normalize(valued, trace, without)


def anywhere(root: Node) -> Node:
    """The same pipeline, nothing of which asks for resources; ``root`` itself if nothing does."""
    below, *rest = root.chain()
    for node in rest:
        below = _anywhere(node, below)
    return below


def _anywhere(node: Node, below: Node) -> Node:
    main = node.inputs[0]
    made = over(node, lambda each: below if each is main else anywhere(each))
    return made if made.needs == Needs() else made.replace(needs=Needs())


def rewritten(root: Node, rules: Sequence[Rule], trace: Trace) -> Node:
    """``root`` with no rule of one phase left to fire."""
    return Engine(rules, trace).rewrite(root)


def switched(rules: tuple[N, ...], without: frozenset[str]) -> tuple[N, ...]:
    """Those of ``rules`` that are not switched off."""
    return tuple(rule for rule in rules if rule.name not in without) if without else rules


def optimize(
    root: Node,
    seed: int,
    *,
    rewriting: bool = True,
    without: frozenset[str] = NONE,
    clock: Clock = no_clock,
) -> Optimized:
    """Take a pipeline from written to physical; without ``rewriting``, as it was written.

    Rules named in ``without`` are not used, but for the normal form, which names are made of.
    """
    trace = Trace(clock)
    shaped = normalize(root, Trace(clock) if without else trace)
    used = normalize(root, trace, without) if without else shaped
    chosen = rewritten(used, switched(CHOICES, without), trace) if rewriting else root
    bare = anywhere(root)
    normalized = shaped if bare is root else normalize(bare, Trace(clock))
    memo: Memo = {}
    fleet = fingerprint_of(normalized, Domain.FLEET, seed, memo)
    plan = plan_of(chosen, fleet, switched(LOWERINGS, without) if rewriting else (), trace)
    plan = dataclasses.replace(plan, name=resuming_name(normalized, plan, memo))
    trace.refused += refusals(chosen, plan.stage) if rewriting else []
    return Optimized(root, normalized, chosen, plan, trace, without)
