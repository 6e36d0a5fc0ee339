"""``mix`` takes elements of several inputs in fixed shares, in every prefix."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import Any, ClassVar

from dml.errors import PlanError
from dml.expr.node import Node, op
from dml.ops.merge.turns import InputTurns, Weaving

STOPS = ("all", "first")
# Weights are taken as fractions with no larger denominator.
FINEST = 10_000


@op
class Mix(Weaving):
    """Takes elements by ``weights``: of the first t elements, ``w_i t`` +- 1 come from input i.

    ``w_i`` is the weight of input i, divided by the sum of the weights. At each turn, of the inputs
    that are due, the one with the earliest deadline is taken. An input that ends also ends the mix
    (``stop="first"``), or the other inputs continue as a new mix (``"all"``). Row ids are derived
    from the input row's id and the number of the input. Source: Tijdeman, The chairman assignment
    problem (1980), whose bound is ``1 - 1 / (2 n - 2)`` for n inputs.
    """

    input: Node
    others: tuple[Node, ...]
    weights: tuple[int, ...]
    stop: str = "all"

    verb: ClassVar[str] = "mix"
    total: bool = True

    def check(self) -> None:
        """Raise PlanError unless there is one weight per input, and for an unknown ``stop``."""
        super().check()
        if self.stop not in STOPS:
            raise PlanError(
                f"mix with stop={self.stop!r}",
                why="it says whether the first input that is over ends the mix, or the last",
                try_='stop="all" or stop="first"',
            )
        if len(self.weights) != len(self.inputs):
            raise PlanError(
                f"mix of {len(self.inputs)} inputs with {len(self.weights)} weights",
                why="each input has a share",
                try_="weights=[...] with a number for each",
            )

    @property
    def endless(self) -> bool:
        """True if all inputs are endless (``stop="first"``), or any input is (``"all"``)."""
        ends = [node.endless for node in self.inputs]
        return all(ends) if self.stop == "first" else any(ends)

    def turns(self, state: list[Any] | None) -> InputTurns:
        """Return turns by shares from the saved ``state`` on; None: from the first."""
        open_, given = state or [list(range(len(self.inputs))), [0] * len(self.inputs)]
        return _Shares(self.weights, self.stop, list(open_), list(given))

    def parameters_text(self) -> str:
        """Return the sources of the other inputs, the shares and the stop rule as text."""
        return f"{super().parameters_text()}, weights={list(self.weights)}, stop={self.stop!r}"


def whole_weights(weights: Any, inputs: int) -> tuple[int, ...]:
    """Return whole numbers in the ratio of ``weights`` (None: equal ones); or raise PlanError."""
    if weights is None:
        return (1,) * inputs
    try:
        parts = [Fraction(weight).limit_denominator(FINEST) for weight in weights]
    except (TypeError, ValueError, OverflowError):
        parts = []
    if isinstance(weights, str) or not parts or min(parts) <= 0:
        raise PlanError(
            f"mix with weights={weights!r}",
            why=f"a share is a finite number above 0, at least one part in {FINEST}",
            try_="weights=[3, 1], or [0.75, 0.25]",
        )
    return in_whole(parts)


def in_whole(parts: Sequence[Fraction]) -> tuple[int, ...]:
    """Return the least whole numbers in the ratio of ``parts``."""
    scale = lcm(*(part.denominator for part in parts))
    whole = [int(part * scale) for part in parts]
    return tuple(weight // gcd(*whole) for weight in whole)


class _Shares(InputTurns):
    """Turns by shares; ``given`` counts the elements of each input since counting last restarted.

    Counting restarts when an input ends, and when every input has had exactly its share.
    """

    def __init__(
        self, weights: tuple[int, ...], stop: str, open_: list[int], given: list[int]
    ) -> None:
        self.weights, self.stop, self.open, self.given = weights, stop, open_, given
        self.total = sum(weights[i] for i in open_)
        self.time = sum(given)

    def copied(self) -> _Shares:
        """Return an independent copy of the state."""
        return _Shares(self.weights, self.stop, list(self.open), list(self.given))

    def next(self) -> int:
        """Return the number of the due input with the earliest deadline; count its element."""
        self.time += 1
        span = max(1, 2 * len(self.open) - 2)
        chosen, soonest = self.open[0], Fraction(0)
        found = False
        for i in self.open:
            ahead = (self.weights[i] * self.time - self.given[i] * self.total) * span
            if ahead < self.total and len(self.open) > 1:
                continue
            deadline = Fraction(self.total * (span - 1) - ahead, self.weights[i])
            if not found or deadline < soonest:
                chosen, soonest, found = i, deadline, True
        self.given[chosen] += 1
        if self.time == self.total:  # all shares are exact: counting begins anew
            self.given, self.time = [0] * len(self.given), 0
        return chosen

    def ended(self, number: int) -> None:
        """Restart the shares without input ``number``, or end the mix."""
        self.open = [] if self.stop == "first" else [i for i in self.open if i != number]
        self.given = [0] * len(self.given)
        self.total, self.time = sum(self.weights[i] for i in self.open), 0

    def state(self) -> list[Any]:
        """Return the state in the form that the constructor takes."""
        return [list(self.open), list(self.given)]
