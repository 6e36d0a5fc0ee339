"""Profile a training loop: whether it waits for its input, and which operator limits the input."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dml.base.amounts import seconds_text
from dml.base.display import Displayed
from dml.errors import PlanError

# A loop that takes no more than this multiple of its steps on input that is already in memory does
# not wait for its input; without such a measurement, if it waits for no more than WAITING of a run.
BOUND, WAITING = 1.02, 0.02

Train = Callable[[Iterable[Any]], Any]


@dataclasses.dataclass(frozen=True, repr=False)
class RunProfile(Displayed):
    """What a training loop took, and what limits it; ``str()`` is for people.

    Parameters
    ----------
    steps : elements that the loop took
    seconds : seconds of the whole loop
    step_s, waited_s : seconds of one step, and the part of them in which it waited for its element;
        means of all steps but the first, in which frameworks compile
    bound_s : the same seconds of a step on copies of one element; None if not measured
    bottleneck : the operator and the resource that limit the pipeline
    trained : whether there was a training loop, or the pipeline ran alone
    """

    steps: int
    seconds: float
    step_s: float
    waited_s: float
    bound_s: float | None
    bottleneck: str
    trained: bool

    @staticmethod
    def of(
        clock: StepClock, bound_s: float | None, bottleneck: str, *, trained: bool
    ) -> RunProfile:
        """Return the profile of the loop that ``clock`` has measured."""
        seconds = clock.ended - clock.begun
        return RunProfile(clock.steps, seconds, *clock.each(), bound_s, bottleneck, trained)

    @property
    def input_bound(self) -> bool:
        """True if the loop would be faster with a faster pipeline, by more than 2 %."""
        if self.bound_s is not None:
            return self.step_s > BOUND * self.bound_s
        return self.waited_s > WAITING * self.step_s

    def _parts(self) -> Iterator[str]:
        part = self.waited_s / self.step_s if self.step_s else 0.0
        step, waited = seconds_text(self.step_s), seconds_text(self.waited_s)
        yield f"profile   {self.steps:,} steps in {seconds_text(self.seconds)}"
        if self.trained:
            yield f"step      {step}, of which {waited} ({part:.0%}) wait for the input"
            if self.bound_s is not None:
                yield f"bound     {seconds_text(self.bound_s)} with one element repeated"
            yield f"verdict   {self._verdict}"
        else:
            yield f"alone     {step} for each element, without a training loop"
        yield f"limit     {self.bottleneck}"

    @property
    def _verdict(self) -> str:
        if self.steps < 2:
            return "none: the loop had one step, in which everything begins"
        if not self.input_bound:
            return "not input bound"
        if self.waited_s > WAITING * self.step_s:
            return "input bound: the loop waits"
        return "input bound: the loop hardly waits, but its steps take longer beside the pipeline"


class StepClock:
    """Passes on ``elements``, and measures waits for them and the steps between them."""

    def __init__(self, elements: Iterable[Any]) -> None:
        self.elements, self.steps = elements, 0
        self.first: Any = None
        self.begun_once = False
        self.begun = self.second = self.ended = time.perf_counter()
        self.waits = 0.0  # of all elements but the first

    def __iter__(self) -> Iterator[Any]:
        if self.begun_once:
            raise PlanError(
                "a training loop reads the profiled elements a second time",
                why="profile runs one epoch",
                try_="a loop over one epoch: for batch in batches: ...",
            )
        self.begun_once = True
        for element in self._timed():
            self.first = element if self.steps == 0 else self.first
            self.steps += 1
            yield element

    def _timed(self) -> Iterator[Any]:
        elements = iter(self.elements)
        while True:
            asked = time.perf_counter()
            self.second = asked if self.steps == 1 else self.second
            self.ended = asked
            try:
                element = next(elements)
            except StopIteration:
                return
            self.waits += time.perf_counter() - asked if self.steps else 0.0
            yield element

    def end(self) -> None:
        """Note that the loop has ended, which may be before the last element."""
        self.ended = time.perf_counter()

    def each(self) -> tuple[float, float]:
        """Return the mean seconds of a step and of a wait, without the first step if possible."""
        if self.steps < 2:
            return (self.ended - self.begun) / max(1, self.steps), 0.0
        return (self.ended - self.second) / (self.steps - 1), self.waits / (self.steps - 1)


def check(train: object, *, upper_bound: bool) -> None:
    """Raise PlanError unless ``train`` is a function, or None without ``upper_bound``."""
    if train is not None and not callable(train):
        raise PlanError(
            f"profile takes a training loop, not {train!r}",
            why="it is called with an iterable of the elements",
            try_="def loop(batches): ..., then ds.profile(loop)",
        )
    if upper_bound and train is None:
        raise PlanError(
            "an upper bound without a training loop",
            why="it is the speed of the loop if the input took no time",
            try_="ds.profile(loop, upper_bound=True)",
        )


def measured(elements: Iterable[Any], train: Train | None) -> StepClock:
    """Run ``train`` on ``elements``; return the clock, or raise PlanError if no element came."""
    clock = StepClock(elements)
    if train is None:
        for _ in clock:
            pass
    else:
        train(clock)
        clock.end()
    if not clock.steps:
        raise PlanError(
            "there is no step to profile",
            why="the pipeline gave no element, or the training loop took none",
            try_="a function that iterates over its argument, such as profile(train=loop)",
        )
    return clock


def bound_s(clock: StepClock, train: Train) -> float:
    """Return the seconds of a step of ``train`` on copies of the first element of ``clock``."""
    return measured(repeated(clock), train).each()[0]


def repeated(clock: StepClock) -> Iterator[Any]:
    """Yield the first element of ``clock`` as often as it had steps; dicts are new each time."""
    for _ in range(clock.steps):
        yield dict(clock.first) if isinstance(clock.first, dict) else clock.first
