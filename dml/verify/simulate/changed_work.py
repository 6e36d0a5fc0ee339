"""The work of a run whose operators take more or less time, or whose rows are cached already."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dml.errors import PlanError
from dml.expr.node import Node
from dml.physical.plan import Plan
from dml.verify.simulate.run_model import ModelWork

AFTER = "after:"
KEPT_SHARE = 0.5  # of the memory limit, which `cache()` fills at most


class ChangedWork(NamedTuple):
    """The works of the operators of all plans, and the share of each plan's source that is read.

    ``reads`` lacks plans whose whole source is read.
    """

    works: Sequence[ModelWork]
    reads: Mapping[Plan, float]


def scaled(plan: Plan, works: Sequence[ModelWork], cost: Mapping[str, float]) -> list[ModelWork]:
    """Return ``works`` of the operators of ``plan.all``, with the time of some multiplied.

    ``cost`` has a factor for each name, which is that of a function or of an operator; all
    operators of that name change. Raise PlanError if there is none.
    """
    made = list(works)
    for name, times in cost.items():
        for i, _ in _named(plan, name, "cost={{{!r}: 0.5}}"):
            made[i] = _times(made[i], times)
    return made


def kept(plan: Plan, works: Sequence[ModelWork], name: str, memory_bytes: int) -> ChangedWork:
    """Return the work of a later epoch, if the rows after an operator are cached in memory.

    ``works`` are those of the operators of ``plan.all``. ``name`` is that of a function or of an
    operator, also written "after:name"; of several, the last one of the pipeline counts. As many
    rows are cached as ``cache()`` keeps of ``memory_bytes``: the operator and those below it work
    for the other rows only. Raise PlanError if there is no such operator.
    """
    found = _named(plan, name.removeprefix(AFTER), "cache={!r}")
    owner = found[0][1]
    top = max(i for i, each in found if each is owner)
    left = 1 - min(1.0, KEPT_SHARE * memory_bytes / max(works[top].bytes_out, 1.0))
    made, below = list(works), set(_below(owner, top - _first(plan, owner)))
    for i, (each, _) in enumerate(_operators(plan)):
        if each in below and (each is not owner or i <= top):
            made[i] = _times(made[i], left)
    return ChangedWork(made, dict.fromkeys(below, left))


def _operators(plan: Plan) -> Iterator[tuple[Plan, Node]]:
    return ((each, node) for each in plan.all for node in each.operators)


def _first(plan: Plan, owner: Plan) -> int:
    """Return the number of the first operator of ``owner`` among those of ``plan.all``."""
    return next(i for i, (each, _) in enumerate(_operators(plan)) if each is owner)


def _below(owner: Plan, place: int) -> Iterator[Plan]:
    """Yield ``owner`` and the plans of further inputs of its operators up to number ``place``."""
    yield owner
    for plans in owner.beside[: max(0, place + 1 - len(owner.on_blocks))]:
        for plan in plans:
            yield from plan.all


def _named(plan: Plan, name: str, argument: str) -> list[tuple[int, Plan]]:
    """Return the numbers and plans of the operators called ``name``; raise PlanError if none is.

    ``argument`` is the format of the argument of ``what_if`` that names an operator.
    """
    every = [(each, _names(node)) for each, node in _operators(plan)]
    found = [(i, each) for i, (each, names) in enumerate(every) if name in names]
    if not found:
        known = list(dict.fromkeys(names[0] for _, names in every))
        raise PlanError(
            f"what_if knows no operator {name!r}",
            why=f"the operators are {', '.join(known)}",
            try_=f"what_if({argument.format(known[-1])})",
        )
    return found


def _names(node: Node) -> tuple[str, ...]:
    """Return the names of an operator: of its function, if it calls one, and of its kind."""
    kind = type(node).__name__
    return (*([] if node.calls is None else [node.calls.name]), kind, kind.lower())


def _times(work: ModelWork, times: float) -> ModelWork:
    return dataclasses.replace(
        work,
        seconds=work.seconds * times,
        cpu_s=work.cpu_s * times,
        locked_s=work.locked_s * times,
    )
