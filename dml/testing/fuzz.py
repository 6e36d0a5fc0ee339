"""This file schedules as badly as the rules allow, to show that timing never alters bytes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dml.exec.policy import Candidate, Fault, Seq, State, admits


@dataclass(frozen=True, slots=True)
class FuzzPolicy:
    """Picks at random what runs next, how many slots and how much memory there are, and what fails.

    Law: a run under it delivers the same sequence as any other. Slices start in any order that
    memory admits, slots are left free, parked generators are dropped, finished slices are thrown
    away as if their worker had died and are run again; a small budget leaves little but the head
    of the line. What is disturbed depends on ``seed`` and the place alone, never on timing.

    Parameters
    ----------
    seed : the source of every choice
    drops, losses, idles : chances, per slice, to drop its generator before it, to lose its result
        after it, and to leave a slot free although something could start
    least_slots, most_slots : slots of each resource are drawn from the one to the other
    """

    seed: int
    drops: float = 0.15
    losses: float = 0.1
    idles: float = 0.2
    most_slots: int = 4
    least_slots: int = 1
    wide: bool = True
    _random: random.Random = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_random", random.Random(self.seed))  # noqa: S311  not a secret

    def shape(
        self, slots: Mapping[str, float], limit_bytes: int
    ) -> tuple[Mapping[str, float], int]:
        """Slots of each resource, and memory from one byte to the limit."""
        draw = random.Random(self.seed)  # noqa: S311  not a secret
        drawn = {
            name: float(draw.randint(self.least_slots, self.most_slots)) for name in sorted(slots)
        }
        share = draw.choice((0.0, 0.05, 0.25, 0.5, 1.0))
        return drawn, max(1, int(share * limit_bytes))

    def choose(self, state: State, candidates: Sequence[Candidate]) -> Candidate | None:
        """Any admissible task, or none."""
        fitting = [task for task in candidates if admits(state, task)]
        if not fitting or self._random.random() < self.idles:
            return None
        return self._random.choice(fitting)

    def fault(self, seq: Seq, k: int, failures: int) -> Fault:
        """A loss, a drop or nothing; a slice is lost at most three times."""
        chance = random.Random(repr((self.seed, seq, k, failures))).random()  # noqa: S311
        if chance < self.losses and failures < 3:
            return "lose"
        return "drop" if chance < self.losses + self.drops else ""

    def retry(self, failures: int, *, lost: bool) -> bool:
        """Lost slices run again, those that raised do not."""
        return lost and failures <= 3
