"""The arrangement of a plan is described as text: the choice, its cost, alternatives, reasons."""

from __future__ import annotations

from dml.base.amounts import bytes_text, seconds_text
from dml.optimize.engine import Refused, RuleTrace
from dml.optimize.search.arrangement import ArrangementDecision, CachePoint
from dml.optimize.search.arrangement_space import (
    executor_by_cost,
    partitions_by_cost,
    stages_by_cost,
)
from dml.optimize.search.dynamic_programme import Priced


def note(trace: RuleTrace, decision: ArrangementDecision, started: float) -> None:
    """Record the choice in ``trace``, and a faster alternative whose advantage is not certain."""
    before, after = decision.usual.way, decision.chosen.way
    changed = {
        stages_by_cost: before.cuts != after.cuts,
        partitions_by_cost: before.size != after.size,
        executor_by_cost: before.driver != after.driver,
    }
    for choice, does in changed.items():
        if does:
            trace.note(choice, before, after, started)
    if decision.doubtful is not None:
        trace.too_costly.append(Refused(f"not {decision.doubtful.way.title()}", _doubt(decision)))


def decision_text(decision: ArrangementDecision | None, fixed: str) -> str:
    """Return as text: the choice, its expected time, the next best, the reason, a useful cache.

    ``fixed`` is the reason why nothing was left to choose, or "".
    """
    if decision is None:
        return f"as usual: {fixed or 'there is no last row, so nobody knows what a pass takes'}"
    lines = [f"chosen  {_priced(decision.chosen)} {decision.off.source} {decision.off.spread()}"]
    if decision.next is not None:
        lines.append(f"next    {_priced(decision.next)}")
    lines.append(f"why     {_reason(decision, fixed)}")
    if decision.cache is not None:
        lines.append(f"cache   {_saving(decision, decision.cache)}")
    return "\n".join(lines)


def _priced(each: Priced) -> str:
    return f"{each.way.title()}: {seconds_text(each.seconds)}"


def _reason(decision: ArrangementDecision, fixed: str) -> str:
    """Return the reason for the choice as text."""
    ending = "" if decision.whole else "; time was up before all was looked at"
    if decision.chosen.way != decision.usual.way:
        less = seconds_text(decision.usual.seconds - decision.chosen.seconds)
        return f"{less} less than as usual ({_priced(decision.usual)}){ending}"
    if decision.doubtful is not None:
        return f"the usual: {_doubt(decision)}{ending}"
    if len(decision.ranked) == 1:
        return f"the usual: {fixed or 'there are tasks for all workers'}"
    return f"the usual: nothing else is expected to take less{ending}"


def _doubt(decision: ArrangementDecision) -> str:
    """Return the reason why an arrangement that is expected to be faster was not chosen."""
    other = decision.doubtful or decision.chosen
    return (
        f"{_priced(other)} against {seconds_text(decision.usual.seconds)} as usual"
        " is not surely less, if operators are cheaper or dearer than believed"
    )


def _saving(decision: ArrangementDecision, cache: CachePoint) -> str:
    whole = decision.chosen.seconds
    return (
        f".cache() above {cache.above} would save {seconds_text(whole - cache.priced.seconds)} of"
        f" {seconds_text(whole)} on {cache.passes}, and keep {bytes_text(cache.nbytes)}"
    )
