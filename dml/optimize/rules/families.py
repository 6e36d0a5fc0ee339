"""Rules are grouped into families by their effect, and looked up by the names that users give."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from dml.errors import PlanError
from dml.optimize.lowering import LOWERINGS
from dml.optimize.phases import CHOICES, RULE_SETS, SHAPES, VALUES
from dml.optimize.rule import NamedRule
from dml.optimize.search.arrangement_space import (
    executor_by_cost,
    partitions_by_cost,
    stages_by_cost,
)
from dml.optimize.search.filter_order import guard_costly_parts
from dml.optimize.search.shared_prefixes import run_shared_once

_RARER = tuple(loaded() for _, loaded in RULE_SETS)

# All rules by name: those that may be switched off.
NAMED: dict[str, NamedRule] = {
    rule.name: rule
    for rule in (
        *SHAPES,
        *(rule for each in _RARER for rule in each.shapes),
        *VALUES,
        *CHOICES,
        *(rule for each in _RARER for rule in each.choices),
        *(*LOWERINGS, guard_costly_parts, run_shared_once),
        *(stages_by_cost, partitions_by_cost, executor_by_cost),
    )
}

# Families have the names of the flags in other systems, so that a user's first guess is right.
FAMILIES: dict[str, tuple[str, ...]] = {
    "lifting": ("lift_map", "lift_filter", "drop_needless_checks"),
    "map_fusion": ("merge_columns", "filter_before_columns"),
    "predicate_pushdown": (
        "segment_before_keyed_shuffle",
        "filter_before_sort",
        "segment_before_repeat",
        "filter_before_join",
        "segment_before_concat",
        "filter_before_groups",
        "filter_before_explode",
        "filter_before_lifted_map",
        "segment_before_part",
        "filter_into_source",
    ),
    "projection_pushdown": (
        "columns_before_join",
        "keys_before_semi_join",
        "columns_before_mix",
        "columns_before_zip",
        "dead_columns",
        "projection_into_source",
    ),
    "slice_pushdown": (
        "slice_before_batch",
        "skip_before_take",
        "take_while_sorting",
        "slice_before_function",
        "take_before_concat",
        "take_into_source",
        "nothing_into_source",
        "skip_into_source",
    ),
    "shuffle_fusion": ("drop_overruled_shuffle", "drop_overruled_sort", "shuffle_into_source"),
    "batch_fusion": ("columns_before_position", "merge_batches"),
    "noop_elimination": (
        "drop_identity_segment",
        "drop_noop_position",
        "merge_takes",
        "merge_skips",
        "merge_shards",
        "merge_sorts",
        "drop_second_cache",
        "drop_take_of_less",
    ),
    "constant_folding": (
        "fold_constants",
        "simplify_logic",
        "pick_branch",
        "drop_true_parts",
        "keep_nothing",
        "relax_sure_cast",
    ),
}


def named(names: Iterable[str]) -> frozenset[str]:
    """Return the rules that ``names`` (of rules or families) mean; PlanError if unknown."""
    found: set[str] = set()
    for name in names:
        if name not in NAMED and name not in FAMILIES:
            raise _unknown(name)
        found.update(FAMILIES.get(name, (name,)))
    return frozenset(found)


def _unknown(name: str) -> PlanError:
    near = difflib.get_close_matches(name, [*FAMILIES, *NAMED], n=3, cutoff=0.5)
    return PlanError(
        f"the optimizer has no rule {name!r}",
        why=f"there are {len(NAMED)} rules, and families of them: {', '.join(FAMILIES)}",
        try_="did you mean " + " or ".join(map(repr, near)) + "?"
        if near
        else '.explain("rules") tells which rules are at work',
    )
