"""The work of a run whose operators take more or less time, or whose rows are cached already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dml.errors import PlanError
from dml.exec.memory.memory_shares import KEPT_SHARE
from dml.expr.node import Node
from dml.physical.plan import Plan
from dml.verify.simulate.run_model import ModelWork

AFTER = "after:"


class ChangedWork(NamedTuple):
    """The works of the operators of all plans, and the share of each plan's source that is read.

    ``reads`` lacks plans whose whole source is read.
    """

    works: Sequence[ModelWork]
    reads: Mapping[Plan, float]


def changed(
    plan: Plan,
    works: Sequence[ModelWork],
    cost: Mapping[str, float],
    cache: str | None,
    memory_bytes: int,
) -> ChangedWork:
    """Return the work of ``plan`` and its inputs if some operators take more or less time.

    ``works`` are those of the operators of ``plan.all``. ``cost`` has a factor for each name, which
    is that of a function or of an operator; all operators of that name change. ``cache`` names one,
    also as "after:name": the work is then that of a later epoch, with the rows after it cached in
    memory, as many as ``cache()`` keeps of ``memory_bytes``. Raise PlanError for unknown names.
    """
    made = list(works)
    for name, times in cost.items():
        for i, _ in _named(plan, name, "cost={{{!r}: 0.5}}"):
            made[i] = made[i].times(times)
    if cache is None:
        return ChangedWork(made, {})
    return _kept(plan, made, cache.removeprefix(AFTER), memory_bytes)


def _kept(plan: Plan, works: list[ModelWork], name: str, memory_bytes: int) -> ChangedWork:
    """Leave the work for rows that do not fit: of the last operator called ``name``, and below."""
    found = _named(plan, name, "cache={!r}")
    owner = found[0][1]
    top = max(i for i, each in found if each is owner)
    left = 1 - min(1.0, KEPT_SHARE * memory_bytes / max(works[top].bytes_out, 1.0))
    below = set(_below(owner, top - _first(plan, owner)))
    made = [
        work.times(left) if each in below and (each is not owner or i <= top) else work
        for i, (work, (each, _)) in enumerate(zip(works, _operators(plan), strict=True))
    ]
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
