"""This file foresees a run elsewhere: settings, plan and costs brought to the twin of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dml.arranging import arranged
from dml.costing import estimates_of, profile_of
from dml.errors import MemoryContractError, PlanError
from dml.events import Event
from dml.exec.budget import fits
from dml.exec.making import SLOW_S
from dml.exec.twin.answer import REACHED, Outlook, WhatIf, basis_of, outlook_of
from dml.exec.twin.foresee import Foreseen, foresee
from dml.exec.twin.model import Place, Work, model_of
from dml.expr.node import Node
from dml.fleet.host import cores
from dml.keeping import without
from dml.observing import Last, works_of
from dml.optimize.cost import HISTORY as LEARNED
from dml.optimize.cost import Belief, total
from dml.optimize.priors import driver
from dml.optimize.search import Driver
from dml.resources import Resources
from dml.session import LOCAL, optimized
from dml.settings import AUTOTUNE, Settings, parse_bytes

MOST_WORKERS = 4096
# Workers of a cluster, by a slice (benchmarks/results/dask.md) and by a byte.
CLUSTER = Driver("distributed", 0.0, 1.3e-3, 1.3e-9)
# A step further: one more for so many workers.
STEP = 4
# A rate that grows by less than this with more workers does not grow.
STALLED = 1.005
MOST_TRIED = 24


@dataclasses.dataclass(frozen=True)
class Asked:
    """What is thought of: None is as it is now."""

    workers: int | None = None
    memory: int | str | None = None
    gpus: float | None = None
    resources: Mapping[str, float] | None = None
    storage_gbps: float | None = None
    step_s: float | None = None
    rows_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.workers is not None:
            _whole("workers", self.workers)
        if self.memory is not None:
            parse_bytes(self.memory, "memory")
        _figure("gpus", self.gpus, least=0)
        _figure("storage_gbps", self.storage_gbps)
        _figure("step_s", self.step_s, least=0)
        _figure("rows_per_s", self.rows_per_s)
        if not isinstance(self.resources, Mapping | None):
            raise _unfit("resources", self.resources, "a dict of amounts", "{'TPU': 4}")
        given: Mapping[Any, Any] = self.resources or {}
        for name, amount in given.items():
            if not isinstance(name, str) or name.upper() in ("", "CPU") or amount is None:
                wanted = "a dict from names to amounts, processors left out"
                raise _unfit("resources", self.resources, wanted, "{'TPU': 4}")
            _figure(f"resources[{name!r}]", amount, least=0)
        if self.rows_per_s is not None and self.workers is not None:
            raise PlanError(
                f"workers={self.workers} and rows_per_s={self.rows_per_s:g}",
                why="a rate asks for the workers that it needs",
                try_=f"what_if(rows_per_s={self.rows_per_s:g}) or what_if(workers={self.workers})",
            )

    @property
    def slots(self) -> dict[str, float]:
        """What workers have beside processors; GPUs by the name that stages know."""
        named = {**(self.resources or {}), **({} if self.gpus is None else {"gpu": self.gpus})}
        return {"gpu" if key.upper() == "GPU" else key: amount for key, amount in named.items()}

    @property
    def given(self) -> str:
        """What was given, as it would be written."""
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        told = [f"{name}={value!r}" for name, value in named.items() if value is not None]
        return ", ".join(told) or "nothing changes"


def _whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_WORKERS:
        raise _unfit(name, value, f"an integer from 1 to {MOST_WORKERS:,}", f"{name}=8")


def _figure(name: str, value: object, least: float | None = None) -> None:
    """PlanError unless ``value`` is None, or a number above 0, or of ``least``."""
    if value is None:
        return
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if good and math.isfinite(value) and (value > 0 if least is None else value >= least):  # type: ignore[arg-type, operator]
        return
    wanted = "a positive number" if least is None else f"a number of at least {least:g}"
    raise _unfit(name, value, wanted, f"{name}=1")


def _unfit(name: str, value: object, wanted: str, example: str) -> PlanError:
    return PlanError(
        f"{name} must be {wanted}, got {value!r}",
        why="what_if thinks of a run that could be",
        try_=f"what_if({example})" if "=" in example else f"{name}={example}",
    )


def what_if(
    node: Node, settings: Settings, given: tuple[Any, ...], events: Sequence[Event]
) -> WhatIf:
    """What a run of ``node`` would take with what is ``given``, the fields of ``Asked``.

    ``events`` are those of its last run, if there was one.
    """
    return _Foreseeing(node, settings, Asked(*given), events).answer()


class _Foreseeing:
    """One question: what operators do is found once, places are tried as often as needed."""

    def __init__(
        self, node: Node, settings: Settings, asked: Asked, events: Sequence[Event]
    ) -> None:
        self.node, self.settings, self.asked = node, settings, asked
        self.off = without(settings)
        self.made = optimized(node, settings)
        self.plan = self.made.plan
        found = estimates_of(self.plan, settings)
        self.last = Last.of(events, self.plan.fingerprint)
        nodes = [each for plan in self.plan.all for each in plan.operators]
        self.works = works_of(nodes, found, self.last)
        self.usual = self._usual()
        self.a_pass = any(each.rows_out == math.inf for each in found)
        self.rows = self.works[len(self.plan.operators) - 1].rows_out

    def answer(self) -> WhatIf:
        """Now, then, and a step further."""
        asked = self.asked
        now = self._now()
        if asked.rows_per_s is not None:
            then = self._reaching(asked.rows_per_s)
        else:
            then = self.outlook(self._workers(), asked)
        beliefs = [_belief(work) for work in self.works if work.seconds]
        return WhatIf(
            now,
            then,
            basis_of(self.works, total(beliefs).sigma if beliefs else 0.0),
            self.rows,
            self._more(then),
            self.last.seconds if self.last.whole else None,
            asked.rows_per_s,
            self._step_s(asked),
            self.a_pass,
        )

    def _now(self) -> Outlook | None:
        """As settings have it; None where nobody knows the workers, or they lack something."""
        try:
            return None if self.usual is None else self.outlook(self.usual, Asked())
        except (PlanError, MemoryContractError):
            return None

    def _usual(self) -> int | None:
        """The workers that settings give; None of a cluster, which is asked when a run begins."""
        if self.settings.executor == "distributed" and self.settings.num_workers == AUTOTUNE:
            return None
        return Resources.of(self.settings, self.plan).workers

    def _workers(self) -> int:
        workers = self.asked.workers or self.usual
        if workers is None:
            raise PlanError(
                "nobody knows how many workers the cluster has",
                why="it is asked when a run begins, and nothing runs now",
                try_="what_if(workers=8)",
            )
        return workers

    def outlook(self, workers: int, asked: Asked) -> Outlook:
        """What is expected with so many workers."""
        found, memory_bytes = self.at(workers, asked, bounded=True)
        given, rows = asked.given, self.rows
        return outlook_of(found, workers=workers, memory_bytes=memory_bytes, given=given, rows=rows)

    def at(self, workers: int, asked: Asked, *, bounded: bool) -> tuple[Foreseen, int]:
        """What is foreseen with so many workers, and the memory number.

        ``bounded`` is for places that are told of: MemoryContractError where a run would raise it.
        """
        changed: dict[str, Any] = {"num_workers": workers}
        if asked.memory is not None:
            changed["memory_limit"] = asked.memory
        settings = dataclasses.replace(self.settings, **changed)
        run = arranged(self.made, settings, self.off)
        resources = Resources.of(run.settings, run.stations.plan)
        place = self._place(run.settings, workers, asked)
        models, first = [], 0
        for number, plan in enumerate(run.stations.plan.all):
            budget = resources.beside(plan).budget if number else resources.budget
            if bounded:
                fits(plan, budget)
            works = self.works[first : first + len(plan.operators)]
            own = place if not number else dataclasses.replace(place, step_s=0.0)
            models.append(model_of(plan, works, budget, own))
            first += len(plan.operators)
        return foresee(models, place, bounded=bounded), resources.budget.limit_bytes

    def _place(self, settings: Settings, workers: int, asked: Asked) -> Place:
        name = settings.executor
        alone = name == "sync"
        costs = CLUSTER
        if name in LOCAL:
            usual = alone or name == AUTOTUNE
            costs = driver("threads" if usual else name, profile_of(self.settings).speed)
        slots = {"cpu": 1.0 if alone else float(workers), **dict(settings.resources or ())}
        slots |= asked.slots
        gbps = math.inf if asked.storage_gbps is None else asked.storage_gbps
        return Place(
            slots,
            # workers that this machine does not have come with a core each
            cores() + max(0, workers - (self.usual or cores())),
            in_turn=alone,
            shares_lock=costs.shares_lock,
            start_s=costs.start_s,
            partition_s=0.0 if alone else costs.partition_s,
            byte_s=costs.byte_s,
            storage_bytes_s=gbps * 1e9 / 8,
            step_s=self._step_s(asked),
            policy=settings.scheduler_policy,
            ahead_from_s=_ahead_from_s(settings),
        )

    def _step_s(self, asked: Asked) -> float:
        """What the training loop takes for an element: what it took, if nothing is asked."""
        return self.last.step_s if asked.step_s is None else asked.step_s

    def _more(self, then: Outlook) -> tuple[str, float]:
        """What a little more of what is narrow brings: its name, and how many times the seconds."""
        asked, workers = self.asked, then.workers
        name = f"+{max(1, workers // STEP)} workers"
        if then.kind == "gpu" and asked.gpus:
            name, asked = "+1 gpu", dataclasses.replace(asked, gpus=asked.gpus + 1)
        elif then.kind == "memory":
            twice = 2 * then.memory_bytes
            name, asked = "twice the memory", dataclasses.replace(asked, memory=twice)
        elif then.kind == "storage" and asked.storage_gbps:
            gbps = 2 * asked.storage_gbps
            name, asked = "twice the storage", dataclasses.replace(asked, storage_gbps=gbps)
        else:
            workers += max(1, workers // STEP)
        found, _ = self.at(workers, asked, bounded=False)
        return name, found.seconds / then.seconds

    # A rate that is asked for

    def _reaching(self, target: float) -> Outlook:
        """The fewest workers that reach a rate, or from which on it does not grow."""
        rates: dict[int, float] = {}

        def rate(workers: int) -> float:
            if workers not in rates:
                found, _ = self.at(workers, self.asked, bounded=False)
                rates[workers] = self.rows / found.seconds
            return rates[workers]

        high = _growing(rate, target)
        tried = sorted(rates)
        low = max((n for n in tried if n < high and rates[n] < REACHED * target), default=0)
        while high - low > 1 and len(rates) < MOST_TRIED:
            middle = (low + high) // 2
            if rate(middle) >= min(REACHED * target, rates[max(tried)] / STALLED):
                high = middle
            else:
                low = middle
        return self.outlook(high, self.asked)


def _growing(rate: Callable[[int], float], target: float) -> int:
    """Workers that reach ``target``, or that reach no more than fewer of them."""
    workers = 1
    # nothing comes of no rows, however many there are
    while 0 < (found := rate(workers)) < REACHED * target and workers < MOST_WORKERS:
        more = max(2 * workers, min(math.ceil(workers * target / found), 16 * workers))
        more = min(more, MOST_WORKERS)
        if rate(more) < STALLED * found and workers >= STEP:
            return workers
        workers = more
    return workers


def _ahead_from_s(settings: Settings) -> float:
    """What an element takes at least that a run makes before it is asked for."""
    if settings.executor == "sync" or settings.prefetch == 0:
        return math.inf
    return SLOW_S if settings.prefetch == AUTOTUNE else 0.0


def _belief(work: Work) -> Belief:
    return Belief(math.log(work.seconds), work.sigma, LEARNED)
