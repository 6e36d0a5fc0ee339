"""Find the shortest schedule of a chain of operators, or a lower bound of its time.

The search is that of the streaming batch model, appendix B: discrete time, states of (time, running
tasks, stored partitions, remaining work of each operator). Tasks of an operator and slots of a
resource are alike, so that a state holds counts and sorted remaining times; of equal states only
the earliest is followed. The search is A*: the bound of the remaining time is never too high, so
the first complete state is optimal. Tasks start only when another task has ended: if started at any
other moment, they could be moved back to the last end before it without needing more resources.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from dml.errors import PlanError
from dml.exec.scheduler.policy import EPSILON

MOST_STATES = 200_000

Counts = tuple[int, ...]
"""One count for each operator."""


@dataclass(frozen=True, slots=True)
class SolverOperator:
    """One operator of a chain; its tasks are alike, and take one partition of the operator before.

    Parameters
    ----------
    ticks : duration of a task
    gives : partitions that a task outputs; those of the last operator leave when the task ends
    size : space in the buffer that each output partition takes
    needs : (resource, amount) that a running task occupies
    most : concurrent tasks at most, None for no limit but the resources
    """

    ticks: int
    gives: int = 1
    size: float = 1
    needs: tuple[tuple[str, float], ...] = (("cpu", 1),)
    most: int | None = None


@dataclass(frozen=True)
class Problem:
    """A chain of operators, the number of tasks of the first, and the amount of each resource.

    The output of a task occupies the ``buffer`` from the start of the task until the task that
    takes it has ended, as in the scheduling core. A ``buffer`` of None is unlimited.
    """

    operators: tuple[SolverOperator, ...]
    tasks: int
    slots: Mapping[str, float]
    buffer: float | None = None

    @property
    def totals(self) -> Counts:
        """The number of tasks of each operator."""
        gives = (each.gives for each in self.operators[:-1])
        return tuple(accumulate(gives, operator.mul, initial=self.tasks))


@dataclass(frozen=True)
class Solution:
    """The result of a search: ``ticks`` of the best schedule, None if the search gave up.

    No schedule takes fewer than ``bound`` ticks.
    """

    ticks: int | None
    bound: int


class _State(NamedTuple):
    """The started tasks of each operator, and the sorted remaining ticks of its running tasks."""

    started: Counts
    running: tuple[Counts, ...]


def solve(problem: Problem, *, most_states: int = MOST_STATES) -> Solution:
    """Return the ticks of ``problem``, or a bound if the search expands ``most_states`` states.

    Raise PlanError if no schedule exists: a task never fits into the resources or the buffer.
    """
    return _Search(problem).run(most_states)


class _Search:
    """One A* search: its queue orders states by the least ticks of schedules through them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.operators, self.totals = problem.operators, problem.totals
        self.last = len(self.operators) - 1
        ticks = [each.ticks for each in self.operators]
        self.tails = [sum(ticks[i + 1 :]) for i in range(len(ticks))]
        self.users = {
            name: [
                (i, n) for i, each in enumerate(self.operators) for r, n in each.needs if r == name
            ]
            for name in {name for each in self.operators for name, n in each.needs if n > 0}
        }
        self.alone = [self._costs_nobody(i) for i in range(len(ticks))]
        self.at: dict[_State, int] = {}
        self.queue: list[tuple[int, int, int, int, _State]] = []

    def run(self, most_states: int) -> Solution:
        """Expand the most promising states until one is complete, or ``most_states`` of them."""
        first = _State((0,) * len(self.totals), ((),) * len(self.totals))
        self._reach(first, 0, 0)
        states = 0
        while self.queue:
            bound, _, _, tick, state = heapq.heappop(self.queue)
            if self.at[state] < tick:
                continue
            if state.started == self.totals and not any(state.running):
                return Solution(tick, tick)
            states += 1
            if states > most_states:
                return Solution(None, bound)
            for starts in self._choices(state):
                passed, after = self._after(state, starts)
                if passed:
                    self._reach(after, tick + passed, bound)
        raise PlanError(
            "no schedule comes to its end",
            why="a task does not fit into the resources, or what it gives into the buffer",
            try_="a larger buffer",
        )

    def _reach(self, state: _State, tick: int, bound: int) -> None:
        """Record that ``state`` is reachable at ``tick``, unless it was reachable no later before.

        No schedule through the state before it takes fewer than ``bound`` ticks.
        """
        if self.at.get(state, math.inf) <= tick:
            return
        self.at[state] = tick
        ended = sum(state.started) - sum(map(len, state.running))
        bound = max(bound, tick + self._left(state))
        heapq.heappush(self.queue, (bound, -ended, len(self.at), tick, state))

    # Possible steps

    def _choices(self, state: _State) -> Iterator[Counts]:
        """Yield the ways to start tasks now, within resources and buffer: a count by operator."""
        free = dict(self.problem.slots)
        for each, running in zip(self.operators, state.running, strict=True):
            for name, n in each.needs:
                free[name] = free.get(name, 0) - n * len(running)
        buffer = self.problem.buffer
        room = math.inf if buffer is None else buffer - self._stored(state)
        yield from self._choices_up_to(self.last, state, free, room)

    def _choices_up_to(
        self, i: int, state: _State, free: dict[str, float], room: float
    ) -> Iterator[Counts]:
        if i < 0:
            yield ()
            return
        each = self.operators[i]
        most = self._most(i, state, free, room)
        least = most if self.alone[i] else 0
        for n in range(most, least - 1, -1):
            rest = free | {name: free[name] - n * amount for name, amount in each.needs}
            for others in self._choices_up_to(
                i - 1, state, rest, room - n * each.gives * each.size
            ):
                yield (*others, n)

    def _most(self, i: int, state: _State, free: dict[str, float], room: float) -> int:
        """Return the number of tasks of operator ``i`` that could start now."""
        each = self.operators[i]
        most: float = self.totals[i] - state.started[i]
        if each.most is not None:
            most = min(most, each.most - len(state.running[i]))
        for name, n in each.needs:
            most = min(most, (free[name] + EPSILON) // n if n else most)
        if i:
            most = min(most, self._ready(i, state))
        if each.gives * each.size:
            most = min(most, (room + EPSILON) // (each.gives * each.size))
        return max(0, int(most))

    def _costs_nobody(self, i: int) -> bool:
        """Return True if operator ``i`` shares no resource or buffer, so that it need not wait."""
        each = self.operators[i]
        shared = any(len(self.users[name]) > 1 for name, n in each.needs if n > 0)
        return not shared and not (each.gives * each.size)

    def _ready(self, i: int, state: _State) -> int:
        """Return the number of stored partitions that operator ``i`` could take."""
        before = self.operators[i - 1]
        ended = state.started[i - 1] - len(state.running[i - 1])
        return before.gives * ended - state.started[i]

    def _stored(self, state: _State) -> float:
        """Return the space taken in the buffer."""
        used = 0.0
        for i, each in enumerate(self.operators):
            if i == self.last:
                held = each.gives * len(state.running[i])
            else:
                ended = state.started[i + 1] - len(state.running[i + 1])
                held = each.gives * state.started[i] - ended
            used += each.size * held
        return used

    def _after(self, state: _State, starts: Counts) -> tuple[int, _State]:
        """Start tasks, and advance to the next end of a task.

        Return the ticks that pass, 0 if no task runs, and the state then.
        """
        running = [
            (*old, *((each.ticks,) * n)) if n else old
            for old, n, each in zip(state.running, starts, self.operators, strict=True)
        ]
        passed = min((left[0] for left in map(sorted, running) if left), default=0)
        started = tuple(a + b for a, b in zip(state.started, starts, strict=True))
        after = tuple(
            tuple(sorted(left - passed for left in each if left > passed)) for each in running
        )
        return passed, _State(started, after)

    # Lower bounds of the remaining time

    def _left(self, state: _State) -> int:
        """Return a lower bound on the remaining ticks of any schedule from ``state``."""
        begins = self._begins(state)
        undone = [
            each.ticks * (total - started) + sum(running)
            for each, total, started, running in zip(
                self.operators, self.totals, state.started, state.running, strict=True
            )
        ]
        least = 0
        for i, work in enumerate(undone):
            if work:
                waits = begins[i] if not state.running[i] else 0
                own = math.ceil(work / (self.operators[i].most or work))
                least = max(least, waits + own + self.tails[i])
        for name, users in self.users.items():
            busy = [i for i, _ in users if undone[i]]
            if busy:
                waits = min(0 if state.running[i] else begins[i] for i in busy)
                held = sum(amount * undone[i] for i, amount in users)
                ticks = math.ceil(held / self.problem.slots.get(name, EPSILON) - EPSILON)
                least = max(least, waits + ticks + min(self.tails[i] for i in busy))
        return least

    def _begins(self, state: _State) -> Sequence[int]:
        """Return for each operator the ticks that must pass before its next task can start."""
        found = [0]
        for i in range(1, len(self.operators)):
            if self._ready(i, state):
                found.append(0)
            elif state.running[i - 1]:
                found.append(state.running[i - 1][0])
            else:
                found.append(found[-1] + self.operators[i - 1].ticks)
        return found
