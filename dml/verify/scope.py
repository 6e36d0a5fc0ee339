"""The scope of a check is the part of a plan that may run twice on the same rows.

The plans of one pipeline, as written and as chosen, are compared from their sources up to the first
operator that must not be repeated, such as a function that may be impure. Rules move only slicing
operators (``take``, ``skip``, ``shard``) across such an operator. If none was moved, the operators
below it mean the same in both plans.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dml.expr.facts import Needs, Rows
from dml.expr.node import Node
from dml.io.source import Source
from dml.physical.plan import Plan

ORDER = "the two plans call functions, or read their inputs, in another order"
MOVED = "a take, skip or shard was moved below a function that must not be called twice"


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """The parts to compare of the plan as written and of the chosen plan; None if there are none.

    ``reason`` is why parts are left out, "" if none are. ``on_blocks`` is True if the output of the
    chosen plan's stages is compared, so that the rows that the run delivers can be checked too.
    """

    plans: tuple[Plan, Plan] | None
    reason: str = ""
    on_blocks: bool = True

    def text(self) -> str:
        """Describe the scope for people."""
        if not self.reason:
            return "all operators"
        if self.plans is None:
            return f"nothing: {self.reason}"
        return f"{len(self.plans[1].operators)} operators, up to what {self.reason}"


def scope(naive: Plan, chosen: Plan) -> Scope:
    """Return the parts of the plan as written and the chosen plan that can be compared."""
    first, second = _barrier(naive), _barrier(chosen)
    for at, reason, beside in (first, second):
        if reason and (at == 0 or beside):
            return Scope(None, reason)
    cut = bool(first[1])
    same_call = naive.operators[first[0]].calls is chosen.operators[second[0]].calls
    if cut != bool(second[1]) or (cut and not same_call):
        return Scope(None, ORDER)
    if cut and _slices(naive, first[0]) != _slices(chosen, second[0]):
        return Scope(None, MOVED)
    one = trimmed(naive, first[0]) if cut else naive
    two = trimmed(chosen, second[0]) if cut else chosen
    if _sources(one) != _sources(two):
        return Scope(None, ORDER)
    if cut and not set(two.schema) <= {*two.stage.columns, *_made(two)}:
        one = _reading(one, two.stage.columns)
    return Scope((one, two), first[1], on_blocks=not cut or second[0] >= len(chosen.on_blocks))


def _made(plan: Plan) -> Sequence[str]:
    """Return the columns of a plan's output that its source does not have."""
    return [name for name in plan.schema if name not in plan.stage.source.schema]


def _reading(plan: Plan, columns: tuple[str, ...]) -> Plan:
    """Return ``plan`` over these columns alone: the function above it looks up no others."""
    return dataclasses.replace(plan, stage=dataclasses.replace(plan.stage, columns=columns))


def _slices(plan: Plan, number: int) -> list[str]:
    """Return the titles of slicing operators on the main input above operator ``number``."""
    return [node.title() for node in plan.operators[number + 1 :] if node.rows is Rows.SLICE]


def _sources(plan: Plan) -> list[Source]:
    return [whole(each.stage.source) for each in plan.all]


def whole(source: Source) -> Source:
    """Return a source as it was written, even if a plan has cut it to some of its units."""
    found: Source = getattr(source, "whole", source)
    return found


def trimmed(plan: Plan, operators: int) -> Plan:
    """Return the plan of the first ``operators`` of ``plan``, with those on blocks in one stage."""
    blocks = len(plan.on_blocks)
    stage = dataclasses.replace(plan.stage, steps=plan.on_blocks[1 : min(operators, blocks)])
    over = max(0, operators - blocks)
    below = plan.operators[operators - 1]
    return dataclasses.replace(
        plan,
        stage=stage,
        links=(),
        stream=plan.stream[:over],
        beside=plan.beside[:over],
        schema=below.schema,
        batched=below.batched,
    )


def _barrier(plan: Plan) -> tuple[int, str, bool]:
    """Return (number, reason, aside) of the first operator that must not be repeated.

    ``aside`` is True if it is on another input; the number is then that of the operator that merges
    the input. The reason is "" if all operators may be repeated.
    """
    before = len(plan.on_blocks)
    for number, node in enumerate(plan.operators):
        if reason := _refusal(node):
            return number, reason, False
        others = plan.beside[number - before] if number >= before and plan.beside else ()
        if reason := _beside(others):
            return number, reason, True
    return 0, "", False


def _beside(plans: Sequence[Plan]) -> str:
    every = (node for plan in plans for each in plan.all for node in each.operators)
    return next((reason for node in every if (reason := _refusal(node))), "")


def _refusal(node: Node) -> str:
    """Return why ``node`` must not receive a row twice; "" if it may."""
    fn = node.calls
    if fn is not None and isinstance(node, Source):
        return f"reads {fn.name}, a source of the user's, which may not give its rows twice"
    if fn is not None and fn.purity:
        return f"calls {fn.name}, which is not proven pure: {fn.purity}"
    if node.needs != Needs():
        return f"{node.title()} does where it was given resources"
    return ""
