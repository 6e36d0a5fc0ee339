"""The gain of a rule is estimated by comparing the plan with a plan made without the rule.

The two plans differ in some operators, and all others cost the same in both. The gain of a rule is
the cost of the operators that it removes, less the cost of the operators that it adds. A rule is
*regretted* if several runs have shown that it costs more than it saves.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from dml.base.amounts import cut, seconds_text
from dml.optimize.cost.beliefs import HISTORY, PRIOR, Z80, Belief, total
from dml.optimize.cost.estimate import Estimate
from dml.optimize.engine import Refused, RuleTrace
from dml.optimize.rule import NamedRule

# Runs, weighted less with age, below which no rule is regretted: three recent ones.
LEAST_RUNS: Final = 2.0
# Seconds that a rule must lose in one run to be switched off.
LEAST_S: Final = 0.01
TITLE_LETTERS: Final = 40

# Returns the estimates of the plan without this rule; None if a saved position would not fit it.
Without = Callable[[NamedRule], "tuple[Estimate, ...] | None"]


@dataclasses.dataclass(frozen=True, slots=True)
class RuleGain:
    """The operators that a rule adds to a plan (``brings``), and those it removes (``spares``)."""

    rule: NamedRule
    brings: tuple[Estimate, ...]
    spares: tuple[Estimate, ...]

    @property
    def now(self) -> Belief | None:
        """The cost of the operators that the rule adds; None if their input is endless."""
        return _sum(self.brings)

    @property
    def instead(self) -> Belief | None:
        """The cost of the operators that the rule removes; None if their input is endless."""
        return _sum(self.spares)

    @property
    def runs(self) -> float:
        """The least number of runs that have measured any one of these operators."""
        return min(map(_runs, (*self.brings, *self.spares)), default=0.0)

    @property
    def lost_s(self) -> float:
        """The seconds by which the rule's cost exceeds its saving, if this is certain; else 0.

        Both sides were measured in several runs on this class of machine, and the 80th percentile
        of the cost without the rule is below the 20th percentile of the cost with it.
        """
        now, instead = self.now, self.instead
        if now is None or instead is None or self.runs < LEAST_RUNS:
            return 0.0
        lost = now.typical - instead.typical
        return lost if lost >= LEAST_S and instead.at(Z80) < now.at(-Z80) else 0.0

    def off(self) -> Refused:
        """Return the reason why the rule is switched off."""
        now_s, instead_s = (total(_seconds(x)).typical for x in (self.brings, self.spares))
        slower = f"{now_s / instead_s:.1f}x slower" if self.spares else "slower"
        return Refused(
            f"{self.rule.name} off",
            f"measured {slower}, n={self.runs:.0f}: {_titles(self.brings)} takes "
            f"{seconds_text(now_s)}, without it {_titles(self.spares)} {seconds_text(instead_s)}",
        )

    def describe(self, did: Mapping[int, float] | None = None) -> str:
        """Return the expected gain as text, also the measured gain if ``did`` is given.

        ``did`` has the seconds of operators in a run, by ordinal.
        """
        now, instead = self.now, self.instead
        if now is None or instead is None:
            return "endless"
        if not self.brings and not self.spares:
            return "the same work"
        sources = [each.per_row.source for each in (*self.brings, *self.spares)]
        letter = PRIOR if PRIOR in sources else HISTORY
        spread = max(now, instead, key=lambda each: each.mean).spread()
        instead_s = instead.typical if self.spares else 0.0
        now_s = now.typical if self.brings else 0.0
        text = f"{_saves(instead_s, now_s)}, {letter} {spread}"
        if did is None:
            return text
        took = math.fsum(did.get(each.ordinal, 0.0) for each in self.brings)
        return f"{text}; measured: {_saves(instead_s, took)}"


def gains(
    trace: RuleTrace, used: Sequence[Estimate], without: Without, most: int
) -> tuple[RuleGain, ...]:
    """Return the gain of every rule that fired, in order of use.

    ``without(rule)`` estimates the plan that is made without ``rule``. The result is empty if rules
    fired so often, or the plan has so many operators, that planning again without each rule would
    take more than ``most`` rewritings.
    """
    rules = {entry.rule.name: entry.rule for entry in trace.applied}
    if len(rules) * max(len(used), len(trace.applied)) > most:
        return ()
    found = ((rule, without(rule)) for rule in rules.values())
    return tuple(gain(rule, used, other) for rule, other in found if other is not None)


def gain(rule: NamedRule, used: Sequence[Estimate], without: Sequence[Estimate]) -> RuleGain:
    """Return the gain of ``rule``, from the estimates of the plans with and without it."""
    return RuleGain(rule, _beyond(used, without), _beyond(without, used))


def regretted(found: Iterable[RuleGain]) -> RuleGain | None:
    """Return the gain of the rule that loses most seconds; None if no rule is regretted."""
    worst = max(found, key=lambda each: each.lost_s, default=None)
    return worst if worst is not None and worst.lost_s else None


def _beyond(one: Sequence[Estimate], two: Sequence[Estimate]) -> tuple[Estimate, ...]:
    """Return the estimates of ``one`` without counterpart in ``two`` (equal work and row count)."""
    rest = Counter(map(_same, two))
    found = []
    for each in one:
        if rest[_same(each)]:
            rest[_same(each)] -= 1
        else:
            found.append(each)
    return tuple(found)


def _same(each: Estimate) -> tuple[str, str]:
    return each.work, f"{each.worked_rows:.3g}"


def _sum(operators: Sequence[Estimate]) -> Belief | None:
    if any(each.worked_rows == math.inf for each in operators):
        return None
    return total(_seconds(operators))


def _seconds(operators: Sequence[Estimate]) -> list[Belief]:
    return [each.seconds for each in operators if each.seconds is not None]


def _runs(each: Estimate) -> float:
    known = each.per_row.source == HISTORY and each.counted != PRIOR
    return each.runs if known else 0.0


def _titles(operators: Sequence[Estimate]) -> str:
    return " + ".join(cut(each.title, TITLE_LETTERS) for each in operators) or "nothing"


def _saves(instead_s: float, now_s: float) -> str:
    saved = instead_s - now_s
    if saved >= 0:
        return f"saves {seconds_text(saved)} of {seconds_text(instead_s)}"
    return f"costs {seconds_text(-saved)} more than {seconds_text(instead_s)}"
