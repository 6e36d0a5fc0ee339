"""This file is the table of contents of the optimizer: which rules, in which order of phases."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dml.expr.facts import Needs
from dml.expr.fingerprint import Domain
from dml.expr.node import Node
from dml.optimize.engine import Clock, Engine, Trace, no_clock
from dml.optimize.lower import plan_of
from dml.optimize.names import Memo, fingerprint_of, resuming_name
from dml.optimize.rebuild import over
from dml.optimize.refusals import refusals
from dml.optimize.rule import Rule
from dml.optimize.rules import bounds, constants, joins, normal, order, vectorize
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
CHOICES: tuple[Rule, ...] = (bounds.drop_take_of_less, bounds.take_while_sorting)

NORMAL: tuple[Rule, ...] = SHAPES + VALUES


@dataclasses.dataclass(frozen=True, eq=False)
class Optimized:
    """Every station of one pipeline: written, normalized, chosen, physical, and the trace.

    ``normalized`` is what names are made of, so it says nothing of where operators run.
    """

    written: Node
    normalized: Node
    chosen: Node
    plan: Plan
    trace: Trace


def normalize(root: Node, trace: Trace) -> Node:
    """The normal form: equal meanings, equal trees."""
    shaped = Engine(SHAPES, trace).rewrite(root)
    valued = Engine(VALUES, trace).rewrite(shaped)
    return valued if valued is shaped else normalize(valued, trace)


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


def optimize(
    root: Node, seed: int, *, rewriting: bool = True, clock: Clock = no_clock
) -> Optimized:
    """Take a pipeline from written to physical; without ``rewriting``, as it was written."""
    trace = Trace(clock)
    shaped = normalize(root, trace)
    chosen = rewritten(shaped, CHOICES, trace) if rewriting else root
    bare = anywhere(root)
    normalized = shaped if bare is root else normalize(bare, Trace(clock))
    memo: Memo = {}
    fleet = fingerprint_of(normalized, Domain.FLEET, seed, memo)
    plan = plan_of(chosen, fleet, optimized=rewriting)
    plan = dataclasses.replace(plan, name=resuming_name(normalized, plan, memo))
    trace.refused += refusals(chosen, plan.stage) if rewriting else []
    return Optimized(root, normalized, chosen, plan, trace)
