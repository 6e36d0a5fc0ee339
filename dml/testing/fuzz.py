"""Schedule and tune as badly as allowed, to show that timing never alters bytes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dml.exec.scheduler.concurrency import ConcurrencyChange, Tuning
from dml.exec.scheduler.messages import SliceDone
from dml.exec.scheduler.policy import Candidate, Demand, Fault, Load, Seq, State, admits


@dataclass(frozen=True, slots=True)
class FuzzPolicy:
    """Chooses the next task, the number of slots, the memory limit and the faults at random.

    Law: a run under this policy delivers the same sequence as under any other. Slices start in any
    order that memory admits, slots are left free, parked generators are dropped, finished slices
    are discarded as if their worker had died and are run again; a small memory limit admits little
    but the first slice in line. Faults depend on ``seed`` and the slice alone, never on timing.

    Parameters
    ----------
    seed : seed of every random choice
    drops, losses, idles : probabilities, per slice, of dropping its generator before it, of losing
        its result after it, and of leaving a slot free although a task could start
    least_slots, most_slots : bounds between which the slots of each resource are drawn
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
        """Draw the slots of each resource, and a memory limit from one byte to ``limit_bytes``."""
        draw = random.Random(self.seed)  # noqa: S311  not a secret
        drawn = {
            name: float(draw.randint(self.least_slots, self.most_slots)) for name in sorted(slots)
        }
        share = draw.choice((0.0, 0.05, 0.25, 0.5, 1.0))
        return drawn, max(1, int(share * limit_bytes))

    def choose(self, state: State, candidates: Sequence[Candidate]) -> Candidate | None:
        """Choose any admissible task, or none."""
        fitting = [task for task in candidates if admits(state, task)]
        if not fitting or self._random.random() < self.idles:
            return None
        return self._random.choice(fitting)

    def fault(self, seq: Seq, k: int, failures: int) -> Fault:
        """Return a loss, a drop or no fault; a slice is lost at most three times."""
        chance = random.Random(repr((self.seed, seq, k, failures))).random()  # noqa: S311
        if chance < self.losses and failures < 3:
            return "lose"
        return "drop" if chance < self.losses + self.drops else ""

    def retry(self, failures: int, *, lost: bool) -> bool:
        """Retry slices that were lost, but not slices that raised an error."""
        return lost and failures <= 3


class FuzzTuning(Tuning):
    """Changes the number of slices at once, from one to eight, at slices drawn with ``seed``."""

    def __init__(self, seed: int, names: Sequence[bytes]) -> None:
        super().__init__(names)
        self._random = random.Random(seed)  # noqa: S311  not a secret

    def measured(self, stage: int, load: Load, done: SliceDone) -> Demand | None:
        """Return drawn needs for a quarter of the slices of stages that may wait, else None."""
        if stage >= len(self.names) or not load.demand.may_wait or self._random.random() < 0.75:
            return None
        parallel = self._random.randint(1, 8)
        cpu = min(dict(load.demand.resources)["cpu"], 1 / parallel)
        before = max(1, int(load.parallel))
        return self.changed(stage, load.demand, ConcurrencyChange(before, parallel, cpu, "drawn"))
