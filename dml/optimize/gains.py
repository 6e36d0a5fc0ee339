"""This file says what each rewriting saves: a plan beside the same plan without one rule.

Two plans differ in some operators, and the others cost the same in both. What a rule saves is what
the operators cost that it spares, less those that it brings. A rule that many runs have shown to
cost more than it saves is one to regret.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from dml.expr.amounts import cut, seconds_text
from dml.optimize.cost import HISTORY, PRIOR, Z80, Belief, total
from dml.optimize.engine import Refused, Trace
from dml.optimize.estimate import Estimate
from dml.optimize.rule import Named

# Runs, each counted less as it grows old, without which nothing is regretted: three of late.
LEAST_RUNS: Final = 2.0
# What a rule must cost in one run to be switched off.
LEAST_S: Final = 0.01
TITLE_LETTERS: Final = 40

# Estimates of the plan without one more rule; None where a saved position would not fit it.
Without = Callable[[Named], "tuple[Estimate, ...] | None"]


@dataclasses.dataclass(frozen=True, slots=True)
class Gain:
    """The operators that only the plan with a rule has, and those that only the one without has."""

    rule: Named
    brings: tuple[Estimate, ...]
    spares: tuple[Estimate, ...]

    @property
    def now(self) -> Belief | None:
        """What the operators take that it brings; None if they have no end."""
        return _sum(self.brings)

    @property
    def instead(self) -> Belief | None:
        """What would be taken without it."""
        return _sum(self.spares)

    @property
    def runs(self) -> float:
        """Runs that showed what each of the operators costs, of that seen least."""
        return min(map(_runs, (*self.brings, *self.spares)), default=0.0)

    @property
    def lost_s(self) -> float:
        """Seconds that it costs more than it saves, if that is beyond doubt; else 0.

        Both sides were seen in several runs on this class of machine, and the worse figure of the
        other side is below the better one of this.
        """
        now, instead = self.now, self.instead
        if now is None or instead is None or self.runs < LEAST_RUNS:
            return 0.0
        lost = now.typical - instead.typical
        return lost if lost >= LEAST_S and instead.at(Z80) < now.at(-Z80) else 0.0

    def off(self) -> Refused:
        """Why it is switched off."""
        now_s, instead_s = (
            total(_seconds(self.brings)).typical,
            total(_seconds(self.spares)).typical,
        )
        slower = f"{now_s / instead_s:.1f}x slower" if self.spares else "slower"
        return Refused(
            f"{self.rule.name} off",
            f"measured {slower}, n={self.runs:.0f}: {_titles(self.brings)} takes "
            f"{seconds_text(now_s)}, without it {_titles(self.spares)} {seconds_text(instead_s)}",
        )

    def told(self, did: Mapping[int, float] | None = None) -> str:
        """What it saves, as expected, and as measured where ``did`` has seconds by ordinal."""
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


def gains(trace: Trace, used: Sequence[Estimate], without: Without, most: int) -> tuple[Gain, ...]:
    """Of every rule that fired what it saves, in order of use.

    Of none where rules fired so often, or so many operators were left, that planning once more for
    each rule would take ``most`` rewritings or more.
    """
    rules = {entry.rule.name: entry.rule for entry in trace.applied}
    if len(rules) * max(len(used), len(trace.applied)) > most:
        return ()
    found = ((rule, without(rule)) for rule in rules.values())
    return tuple(gain(rule, used, other) for rule, other in found if other is not None)


def gain(rule: Named, used: Sequence[Estimate], without: Sequence[Estimate]) -> Gain:
    """What ``rule`` saves, of the estimates of both plans."""
    return Gain(rule, _beyond(used, without), _beyond(without, used))


def regretted(found: Iterable[Gain]) -> Gain | None:
    """The one that costs most beyond what it saves, if any does."""
    worst = max(found, key=lambda each: each.lost_s, default=None)
    return worst if worst is not None and worst.lost_s else None


def _beyond(one: Sequence[Estimate], two: Sequence[Estimate]) -> tuple[Estimate, ...]:
    """Those of ``one`` that ``two`` has not: other work, or on other rows."""
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
