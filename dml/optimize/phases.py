"""The optimizer's phases list their rules and run in order: normal form, choices, lowering."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from dml.base.fingerprint import Domain
from dml.expr.facts import Needs, Rows
from dml.expr.node import Node
from dml.optimize.engine import Clock, Engine, Refused, RuleTrace, no_clock
from dml.optimize.fingerprints import Memo, fingerprint_of, resuming_name
from dml.optimize.lowering import LOWERINGS, plan_of
from dml.optimize.node_rebuild import over
from dml.optimize.rule import NamedRule, Rule
from dml.optimize.rules import constants, known_counts, normal_form, order
from dml.physical.plan import Plan, Stage

# The normal form, first half: the shape of rows and columns. For rarer operators: ``RULE_SETS``.
SHAPES: tuple[Rule, ...] = (
    normal_form.columns_as_segment,
    normal_form.filter_as_segment,
    normal_form.merge_columns,
    normal_form.filter_before_columns,
    normal_form.drop_identity_segment,
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
    order.merge_shards,
)

# Second half: the values in the segments, once they are complete. Its results (a cast that cannot
# fail, a filter that keeps all) may let segments move, so the first half runs again after it.
VALUES: tuple[Rule, ...] = (
    constants.fold_constants,
    constants.simplify_logic,
    constants.pick_branch,
    constants.drop_true_parts,
    constants.keep_nothing,
    constants.relax_sure_cast,
)

# Rules that depend on the length or bounds of the data, and therefore must not affect names.
CHOICES: tuple[Rule, ...] = (known_counts.drop_take_of_less, known_counts.take_while_sorting)

N = TypeVar("N", bound=NamedRule)
NONE: frozenset[str] = frozenset()


class RuleSet(NamedTuple):
    """Rules of operators that few pipelines have: laws of their shape, and choices."""

    shapes: tuple[Rule, ...]
    choices: tuple[Rule, ...] = ()


def _calls(node: Node) -> bool:
    return node.calls is not None


def _rules_of_calls() -> RuleSet:
    from dml.optimize.rules import function_lifting, late_calls, value_ranges  # noqa: PLC0415

    lifting = function_lifting
    return RuleSet(
        (lifting.lift_map, lifting.lift_filter, lifting.filter_before_lifted_map),
        (late_calls.slice_before_function, value_ranges.drop_needless_checks),
    )


def _has_inputs(node: Node) -> bool:
    return node.input_names not in ((), ("input",))


def _rules_of_inputs() -> RuleSet:
    from dml.optimize.rules import joins, multi_input  # noqa: PLC0415

    return RuleSet(
        (
            joins.columns_before_join,
            joins.keys_before_semi_join,
            joins.filter_before_join,
            multi_input.segment_before_concat,
            multi_input.columns_before_mix,
            multi_input.columns_before_zip,
        ),
        (multi_input.take_before_concat, multi_input.zip_of_one_input),
    )


def _groups(node: Node) -> bool:
    several = node.rows in (Rows.MORE, Rows.RUNS)
    return several or node.splits or bool(node.ordered_by)


def _rules_of_groups() -> RuleSet:
    from dml.optimize.rules import grouping  # noqa: PLC0415

    return RuleSet(
        (
            grouping.filter_before_groups,
            grouping.filter_before_explode,
            grouping.segment_before_part,
            grouping.merge_sorts,
            grouping.drop_overruled_sort,
            grouping.merge_batches,
        )
    )


# By the fact that distinguishes these operators. A set is loaded, with all operators that its rules
# name, for the first pipeline in which an operator has that fact.
RULE_SETS: tuple[tuple[Callable[[Node], bool], Callable[[], RuleSet]], ...] = (
    (_calls, _rules_of_calls),
    (_has_inputs, _rules_of_inputs),
    (_groups, _rules_of_groups),
)


def rule_sets(root: Node) -> list[RuleSet]:
    """Return the rules of rarer operators that may apply in the pipeline ``root``."""
    nodes = [*root.walk()]
    return [loaded() for fact, loaded in RULE_SETS if any(map(fact, nodes))]


@dataclasses.dataclass(frozen=True, eq=False)
class Optimized:
    """One pipeline after each phase: written, normalized, chosen, physical; and the trace.

    Fingerprints are derived from ``normalized``, so it does not contain the place where operators
    run. ``without`` contains the names of the disabled rules.
    """

    written: Node
    normalized: Node
    chosen: Node
    plan: Plan
    trace: RuleTrace
    without: frozenset[str] = NONE


def normalize(root: Node, trace: RuleTrace, without: frozenset[str] = NONE) -> Node:
    """Return the normal form: pipelines of equal meaning get equal trees, as far as the laws go.

    Laws named in ``without`` are not applied.
    """
    rules = SHAPES + tuple(rule for each in rule_sets(root) for rule in each.shapes)
    shaped = Engine(switched(rules, without), trace).rewrite(root)
    valued = Engine(switched(VALUES, without), trace).rewrite(shaped)
    return valued if valued is shaped else normalize(valued, trace, without)


def anywhere(root: Node) -> Node:
    """Return the pipeline without resource requests; ``root`` itself if it has none."""
    if all(node.needs == Needs() for node in root.walk()):
        return root
    below, *rest = root.chain()
    for node in rest:
        below = _anywhere(node, below)
    return below


def _anywhere(node: Node, below: Node) -> Node:
    main = node.inputs[0]
    made = over(node, lambda each: below if each is main else anywhere(each))
    return made if made.needs == Needs() else made.replace(needs=Needs())


def switched(rules: tuple[N, ...], without: frozenset[str]) -> tuple[N, ...]:
    """Return those of ``rules`` that ``without`` does not disable."""
    return tuple(rule for rule in rules if rule.name not in without) if without else rules


def optimize(
    root: Node,
    seed: int,
    *,
    rewriting: bool = True,
    without: frozenset[str] = NONE,
    clock: Clock = no_clock,
) -> Optimized:
    """Return a pipeline after each phase; without ``rewriting``, the plan is of it as written.

    Rules named in ``without`` are not used, except in the normal form from which names are derived.
    """
    trace = RuleTrace(clock)
    shaped = normalize(root, RuleTrace(clock) if without else trace)
    used = normalize(root, trace, without) if without else shaped
    choices = CHOICES + tuple(rule for each in rule_sets(used) for rule in each.choices)
    chosen = Engine(switched(choices, without), trace).rewrite(used) if rewriting else root
    bare = anywhere(root)
    normalized = shaped if bare is root else normalize(bare, RuleTrace(clock))
    memo: Memo = {}
    fleet = fingerprint_of(normalized, Domain.FLEET, seed, memo)
    plan = plan_of(chosen, fleet, switched(LOWERINGS, without) if rewriting else (), trace)
    plan = dataclasses.replace(plan, name=resuming_name(normalized, plan, memo))
    if rewriting:
        trace.near_misses = partial(_near_misses, chosen, plan.stage)
    return Optimized(root, normalized, chosen, plan, trace, without)


def _near_misses(chosen: Node, stage: Stage) -> list[Refused]:
    from dml.optimize.explain.near_misses import refusals  # noqa: PLC0415 - for texts alone

    return refusals(chosen, stage)
