"""This file tells how a plan is arranged: what was chosen, at what cost, what else, and why not."""

from __future__ import annotations

import dataclasses

from dml.expr.amounts import bytes_text, seconds_text
from dml.expr.node import Node
from dml.optimize.allowed import executor_by_cost, partitions_by_cost, stages_by_cost
from dml.optimize.arrange import Cache, Decision
from dml.optimize.engine import Refused, Trace
from dml.optimize.search import Priced, Way


@dataclasses.dataclass(frozen=True, slots=True)
class Arranged:
    """A way to run a plan, as the trace shows it."""

    way: Way

    @property
    def inputs(self) -> tuple[Node, ...]:
        """It is about a whole plan."""
        return ()

    def title(self) -> str:
        """Driver, stages, size."""
        return way_text(self.way)


def way_text(way: Way) -> str:
    """Driver, stages and size of partitions, in one line."""
    stages = len(way.cuts) + 1
    many = f"{stages} stages" if stages > 1 else "one stage"
    return f"{way.driver.name}, {many}, partitions of {bytes_text(way.size)}"


def note(trace: Trace, decision: Decision, started: float) -> None:
    """Write what was chosen into ``trace``, and what would be if it were clear."""
    before, after = decision.usual.way, decision.chosen.way
    changed = {
        stages_by_cost: before.cuts != after.cuts,
        partitions_by_cost: before.size != after.size,
        executor_by_cost: before.driver != after.driver,
    }
    for choice, does in changed.items():
        if does:
            trace.note(choice, Arranged(before), Arranged(after), started)
    if decision.doubtful is not None:
        trace.refused.append(Refused(f"not {way_text(decision.doubtful.way)}", _doubt(decision)))


def decision_text(decision: Decision | None, fixed: str) -> str:
    """What was chosen and what it is expected to take, the next best, the reason, and a cache.

    ``fixed`` says what left nothing to choose, if something did.
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
    return f"{way_text(each.way)}: {seconds_text(each.seconds)}"


def _reason(decision: Decision, fixed: str) -> str:
    """Why this and no other."""
    ending = "" if decision.whole else "; time was up before all was looked at"
    if decision.chosen.way != decision.usual.way:
        less = seconds_text(decision.usual.seconds - decision.chosen.seconds)
        return f"{less} less than as usual ({_priced(decision.usual)}){ending}"
    if decision.doubtful is not None:
        return f"the usual: {_doubt(decision)}{ending}"
    if len(decision.ranked) == 1:
        return f"the usual: {fixed or 'there are tasks for all workers'}"
    return f"the usual: nothing else is expected to take less{ending}"


def _doubt(decision: Decision) -> str:
    """Why something that is expected to be faster is not done."""
    other = decision.doubtful or decision.chosen
    return (
        f"{_priced(other)} against {seconds_text(decision.usual.seconds)} as usual"
        " is not surely less, if operators are cheaper or dearer than believed"
    )


def _saving(decision: Decision, cache: Cache) -> str:
    whole = decision.chosen.seconds
    return (
        f".cache() above {cache.above} would save {seconds_text(whole - cache.priced.seconds)} of"
        f" {seconds_text(whole)} on {cache.passes}, and keep {bytes_text(cache.nbytes)}"
    )
