"""Runs with other resources are forecast by simulating the plan with estimated costs."""

from __future__ import annotations

import copy
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dml.api.cost_profile import estimates_of
from dml.api.plan_search import arranged
from dml.api.resources import RunResources, slots_of
from dml.api.run_storage import without
from dml.api.run_telemetry import profile_of
from dml.api.session import LOCAL, every_choice, optimized
from dml.base.host import cores
from dml.errors import MemoryContractError, PlanError
from dml.events import SLICES, Event, OperatorTotals, RunFinished, RunStarted, Tuned, Waits
from dml.exec.delivery.prefetch import SLOW_S
from dml.exec.delivery.prefetch_depth import DEPTH, DEPTHS
from dml.exec.memory.memory_shares import fits
from dml.exec.slicing.slice_sizes import Cutting
from dml.expr.node import Node
from dml.optimize.cost.beliefs import HISTORY as LEARNED
from dml.optimize.cost.beliefs import Belief, total
from dml.optimize.cost.estimate import Estimate
from dml.optimize.cost.priors import driver
from dml.optimize.search.arrangement import locks
from dml.optimize.search.dynamic_programme import DriverCosts
from dml.profile import NOISE, TURNS
from dml.settings import AUTOTUNE, Auto, Settings, parse_bytes
from dml.verify.simulate.answer import REACHED, Basis, Outlook, WhatIf, basis_of, outlook_of
from dml.verify.simulate.changed_work import changed
from dml.verify.simulate.forecast import Foreseen, foresee
from dml.verify.simulate.run_model import GUESS, HISTORY, MEASURED, ModelWork, RunPlace, model_of


@dataclasses.dataclass(frozen=True)
class Last:
    """The measured last run of a pipeline, which took ``seconds``.

    ``sums`` holds, by operator number: rows in, rows out, bytes out, seconds, CPU seconds.
    ``whole`` is True if the run computed all rows. While Python code ran for one second, it waited
    ``turns`` seconds for other threads. The training loop took ``step_s`` seconds per element.
    ``at_once`` says how many slices of a stage ran at once in the end, where the run chose that.
    ``variation`` is the squared coefficient of variation of the seconds that chunks took.
    """

    sums: Mapping[int, tuple[float, float, float, float, float]] = dataclasses.field(
        default_factory=dict
    )
    seconds: float = 0.0
    whole: bool = False
    turns: float = 0.0
    step_s: float = 0.0
    at_once: Mapping[str, int] = dataclasses.field(default_factory=dict)
    variation: float = 0.0

    @staticmethod
    def of(events: Sequence[Event], fingerprint: str) -> Last:
        """Read the last run from ``events``; empty unless it ended and is of ``fingerprint``."""
        started = [each for each in events if isinstance(each, RunStarted)]
        ended = [each for each in events if isinstance(each, RunFinished)]
        same = started and started[-1].fingerprints.get("fleet") == fingerprint
        if not same or not ended or ended[-1].status not in ("finished", "stopped"):
            return Last()
        totals = [each for each in events if isinstance(each, OperatorTotals)]
        sums: dict[int, tuple[float, float, float, float, float]] = {}
        for each in totals:
            cpu_s = each.seconds if each.cpu_s is None else min(each.cpu_s, each.seconds)
            own = (each.rows_in, each.rows_out, each.bytes_out, each.seconds, cpu_s)
            before = sums.get(each.ordinal, (0.0,) * 5)
            sums[each.ordinal] = tuple(a + b for a, b in zip(before, own, strict=True))  # type: ignore[assignment]
        busy = math.fsum(each[4] for each in sums.values()) / max(ended[-1].seconds, 1e-9)
        part = started[-1].resumed or any(each.cache_hits for each in totals)
        whole = ended[-1].status == "finished" and not part
        turns = min(TURNS, busy / max(1 - busy, 1e-9))
        tuned = [each for each in events if isinstance(each, Tuned)]
        at_once = {each.stage: each.after for each in tuned if each.number == SLICES}
        variation = max((each.variation for each in events if isinstance(each, Waits)), default=0.0)
        step_s = _step_s(events, ended[-1])
        return Last(sums, ended[-1].seconds, whole, turns, step_s, at_once, variation)


def _step_s(events: Sequence[Event], ended: RunFinished) -> float:
    """Return the training loop's seconds per element, not counting waits for elements."""
    waited = math.fsum(each.consumer_s for each in events if isinstance(each, Waits))
    return max(0.0, ended.seconds - waited) / max(1, ended.batches or ended.rows)


def works_of(nodes: Sequence[Node], found: Sequence[Estimate], last: Last) -> list[ModelWork]:
    """Return the work of every operator: as measured in the last run, else as estimated."""
    given = list(_finite(found))
    works = []
    for node, each, (rows, rows_out, bytes_out) in zip(nodes, found, given, strict=True):
        seen = last.sums.get(each.ordinal)
        if seen is not None and (seen[1] if each.reads else seen[0]) > 0:
            works.append(_measured(node, each, seen, last, (rows, rows_out, bytes_out)))
            continue
        seconds = each.per_row.typical * rows
        learned = each.per_row.source == LEARNED
        waits = node.calls is not None  # for an unknown part of that time
        works.append(
            ModelWork(
                each.title,
                seconds,
                rows_out,
                bytes_out,
                0.0 if waits else seconds,
                seconds if locks(node) else 0.0,
                each.per_row.sigma,
                HISTORY if learned else GUESS,
                each.runs,
            )
        )
    return works


def _measured(
    node: Node,
    each: Estimate,
    seen: tuple[float, float, float, float, float],
    last: Last,
    believed: tuple[float, float, float],
) -> ModelWork:
    """Return the work of ``node`` in the last run, scaled to the present number of rows.

    ``seen`` is a value of ``Last.sums``; waits for other threads are subtracted. ``believed`` are
    the estimated rows in, rows out and bytes out.
    """
    rows_in, gave, nbytes, seconds, cpu_s = seen
    called = node.calls is not None or each.reads
    waited = max(0.0, seconds - cpu_s * (1 + last.turns)) if called else 0.0
    rows, rows_out, bytes_out = believed
    times = 1.0
    if last.whole:
        rows_out, bytes_out = gave, nbytes
    else:
        times = rows / (gave if each.reads else rows_in)
    return ModelWork(
        each.title,
        (cpu_s + waited) * times,
        rows_out,
        bytes_out,
        cpu_s * times,
        cpu_s * times if locks(node) else 0.0,
        math.sqrt(NOISE),
        MEASURED,
        1.0,
    )


def _finite(found: Sequence[Estimate]) -> Iterator[tuple[float, float, float]]:
    """Yield rows worked on, rows out and bytes out of each operator; of one pass if endless."""
    passing = 1.0
    for each in found:
        rows, out, nbytes = each.worked_rows, each.rows_out, each.bytes_out
        rows = passing if rows == math.inf else rows
        if out == math.inf:
            out, nbytes = rows, 0.0
        yield rows, out, nbytes
        passing = out


MOST_WORKERS = 4096
# Costs of a cluster's workers, per slice (benchmarks/results/dask.md) and per byte.
CLUSTER = DriverCosts("distributed", 0.0, 1.3e-3, 1.3e-9)
# A forecast with "a little more" has one worker more for each of this many.
STEP = 4
# If more workers raise the rate by less than this factor, the rate does not grow.
STALLED = 1.005
MOST_TRIED = 24


@dataclasses.dataclass(frozen=True)
class WhatIfSettings:
    """The hypothetical resources of a run; None keeps the present value."""

    workers: int | None = None
    memory: int | str | None = None
    gpus: float | None = None
    resources: Mapping[str, float] | None = None
    storage_gbps: float | None = None
    step_s: float | None = None
    rows_per_s: float | None = None
    prefetch: int | Auto | None = None
    cache: str | None = None
    cost: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if self.workers is not None:
            _whole("workers", self.workers)
        if self.memory is not None:
            parse_bytes(self.memory, "memory")
        if self.prefetch is not None:
            dataclasses.replace(Settings(), prefetch=self.prefetch)  # refuses what is no number
        _figure("gpus", self.gpus, least=0)
        _figure("storage_gbps", self.storage_gbps)
        _figure("step_s", self.step_s, least=0)
        _figure("rows_per_s", self.rows_per_s)
        _amounts("resources", self.resources, "{'TPU': 4}")
        if any(name.upper() == "CPU" for name in self.resources or ()):
            wanted = "a dict from names to amounts, processors left out"
            raise _unfit("resources", self.resources, wanted, "{'TPU': 4}")
        _amounts("cost", self.cost, "{'decode': 0.5}")
        if not isinstance(self.cache, str | None):
            raise _unfit("cache", self.cache, "the name of an operator", "cache='decode'")
        if self.rows_per_s is not None and self.workers is not None:
            raise PlanError(
                f"workers={self.workers} and rows_per_s={self.rows_per_s:g}",
                why="a rate asks for the workers that it needs",
                try_=f"what_if(rows_per_s={self.rows_per_s:g}) or what_if(workers={self.workers})",
            )

    @property
    def slots(self) -> dict[str, float]:
        """The amounts of resources other than processors, by name; GPUs are called "gpu"."""
        named = {**(self.resources or {}), **({} if self.gpus is None else {"gpu": self.gpus})}
        return {"gpu" if key.upper() == "GPU" else key: amount for key, amount in named.items()}

    @property
    def arguments_text(self) -> str:
        """The arguments other than None, as a caller would write them."""
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        told = [f"{name}={value!r}" for name, value in named.items() if value is not None]
        return ", ".join(told) or "nothing changes"


def _whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_WORKERS:
        raise _unfit(name, value, f"an integer from 1 to {MOST_WORKERS:,}", f"{name}=8")


def _figure(name: str, value: object, least: float | None = None, example: str = "") -> None:
    """Raise PlanError unless ``value`` is None or a number above 0, or at least ``least``."""
    if value is None:
        return
    if isinstance(value, int | float) and not isinstance(value, bool):
        finite = abs(value) <= sys.float_info.max  # not so for NaN, inf and huge integers
        if finite and (value > 0 if least is None else value >= least):
            return
    wanted = "a positive number" if least is None else f"a number of at least {least:g}"
    raise _unfit(name, value, wanted, example or f"{name}=1")


def _amounts(name: str, given: Any, example: str) -> None:
    """Raise PlanError unless ``given`` is None or amounts of at least 0 by name."""
    if not isinstance(given, Mapping | None):
        raise _unfit(name, given, "a dict of amounts", example)
    for key, amount in (given or {}).items():
        if not isinstance(key, str) or not key or amount is None:
            wanted = "a dict from names to amounts"
            raise _unfit(name, given, wanted, example)
        _figure(f"{name}[{key!r}]", amount, 0, f"{name}={{{key!r}: 1}}")


def _unfit(name: str, value: object, wanted: str, example: str) -> PlanError:
    return PlanError(
        f"{name} must be {wanted}, got {value!r}",
        why="what_if thinks of a run that could be",
        try_=f"what_if({example})" if "=" in example else f"{name}={example}",
    )


def what_if(
    node: Node, settings: Settings, given: tuple[Any, ...], events: Sequence[Event]
) -> WhatIf:
    """Forecast a run of ``node`` with the ``given`` fields of ``WhatIfSettings``.

    ``events`` are those of the pipeline's last run; empty if there was none.
    """
    return RunForecaster(node, settings, WhatIfSettings(*given), events).answer()


class RunForecaster:
    """Forecasts runs of a pipeline: it computes operator costs once, and simulates any settings."""

    def __init__(
        self, node: Node, settings: Settings, asked: WhatIfSettings, events: Sequence[Event]
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
        """Forecast the present run, the requested one, and one with a wider bottleneck."""
        asked = self.asked
        now = self._now()
        if asked.rows_per_s is not None:
            then = self._reaching(asked.rows_per_s)
        else:
            then = self.outlook(self._workers(), asked)
        return WhatIf(
            now,
            then,
            self.basis(),
            self.rows,
            self._more(then),
            self.last.seconds if self.last.whole else None,
            asked.rows_per_s,
            self._step_s(asked),
            self.a_pass,
        )

    def basis(self) -> Basis:
        """Return where the costs of the operators come from."""
        beliefs = [_belief(work) for work in self.works if work.seconds]
        return basis_of(self.works, total(beliefs).sigma if beliefs else 0.0)

    def seconds_with(self, options: Mapping[str, Any]) -> float:
        """Return the forecast seconds with ``options`` in the settings; inf if no run is possible.

        A cluster whose workers are unknown cannot be forecast either.
        """
        other = copy.copy(self)
        other.settings = dataclasses.replace(self.settings, **options)
        other.usual = other._usual()  # noqa: SLF001 (of the same class)
        try:
            return other.at(other._workers(), self.asked, bounded=False)[0].seconds  # noqa: SLF001
        except (PlanError, MemoryContractError):
            return math.inf

    def _now(self) -> Outlook | None:
        """Forecast a run with present settings; None if workers are unknown or lack resources."""
        try:
            return None if self.usual is None else self.outlook(self.usual, WhatIfSettings())
        except (PlanError, MemoryContractError):
            return None

    def _usual(self) -> int | None:
        """Return the number of workers in the settings; None if it is known only during a run."""
        if self.settings.executor == "distributed" and self.settings.num_workers == AUTOTUNE:
            return None
        return RunResources.of(self.settings, self.plan).workers

    def _workers(self) -> int:
        workers = self.asked.workers or self.usual
        if workers is None:
            raise PlanError(
                "nobody knows how many workers the cluster has",
                why="it is asked when a run begins, and nothing runs now",
                try_="what_if(workers=8)",
            )
        return workers

    def outlook(self, workers: int, asked: WhatIfSettings) -> Outlook:
        """Forecast a run with ``workers`` workers and the resources in ``asked``."""
        found, memory_bytes = self.at(workers, asked, bounded=True)
        given, rows = asked.arguments_text, self.rows
        return outlook_of(found, workers=workers, memory_bytes=memory_bytes, given=given, rows=rows)

    def at(self, workers: int, asked: WhatIfSettings, *, bounded: bool) -> tuple[Foreseen, int]:
        """Return the simulated run with ``workers`` workers, and its memory limit in bytes.

        If ``bounded``, compute the solver's bound, and raise MemoryContractError as a run would.
        """
        options: dict[str, Any] = {"num_workers": workers}
        if asked.memory is not None:
            options["memory_limit"] = asked.memory
        if asked.prefetch is not None:
            options["prefetch"] = asked.prefetch
        settings = dataclasses.replace(self.settings, **options)
        run = arranged(self.made, settings, self.off)
        resources = RunResources.of(run.settings, run.stations.plan)
        place = self._place(run.settings, workers, asked)
        choices = every_choice(run.stations.plan, run.settings, resources, looks=False)
        whole = resources.budget.limit_bytes
        changes = changed(run.stations.plan, self.works, asked.cost or {}, asked.cache, whole)
        models, first = [], 0
        for number, plan in enumerate(run.stations.plan.all):
            budget = resources.beside(plan).budget if number else resources.budget
            if bounded:
                fits(plan, budget)
            own = place if not number else dataclasses.replace(place, step_s=0.0)
            of_plan = changes.works[first : first + len(plan.operators)]
            model = model_of(plan, of_plan, budget, own, choices[plan])
            read_bytes = model.read_bytes * changes.reads.get(plan, 1.0)
            models.append(dataclasses.replace(model, read_bytes=read_bytes))
            first += len(plan.operators)
        return foresee(models, place, bounded=bounded), whole

    def _place(self, settings: Settings, workers: int, asked: WhatIfSettings) -> RunPlace:
        name = settings.executor
        alone = name == "sync"
        costs = CLUSTER
        if name in LOCAL:
            usual = alone or name == AUTOTUNE
            costs = driver("threads" if usual else name, profile_of(self.settings).speed)
        slots = slots_of(settings, 1 if alone else workers) | asked.slots
        gbps = math.inf if asked.storage_gbps is None else asked.storage_gbps
        return RunPlace(
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
            slice_s=Cutting.of(name).aim_s,
            at_once=self.last.at_once if self._tunes(asked) else {},
            ahead_from_s=_ahead_from_s(settings),
            depth=_depth(settings),
            variation=self.last.variation,
        )

    def _tunes(self, asked: WhatIfSettings) -> bool:
        """Return whether the run itself would choose how many slices run at once."""
        return self.settings.tunes and asked.workers is None and asked.rows_per_s is None

    def _step_s(self, asked: WhatIfSettings) -> float:
        """Return the training loop's seconds per element: as in ``asked``, else as measured."""
        return self.last.step_s if asked.step_s is None else asked.step_s

    def _more(self, then: Outlook) -> tuple[str, float]:
        """Forecast a run with more of the bottleneck resource.

        Return what was added, as text, and the time of that run as a multiple of ``then``'s.
        """
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

    # The workers for a requested rate

    def _reaching(self, target: float) -> Outlook:
        """Forecast a run with the fewest workers for ``target`` rows/s, or for the highest rate."""
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
    """Return a number of workers whose ``rate`` reaches ``target`` rows/s or stops growing."""
    workers = 1
    # without rows the rate is 0 for any number of workers
    while 0 < (found := rate(workers)) < REACHED * target and workers < MOST_WORKERS:
        more = max(2 * workers, min(math.ceil(workers * target / found), 16 * workers))
        more = min(more, MOST_WORKERS)
        if rate(more) < STALLED * found and workers >= STEP:
            return workers
        workers = more
    return workers


def _ahead_from_s(settings: Settings) -> float:
    """Return the seconds per element above which a run computes elements ahead of the consumer."""
    if settings.executor == "sync" or settings.prefetch == 0:
        return math.inf
    return SLOW_S if settings.prefetch == AUTOTUNE else 0.0


def _depth(settings: Settings) -> int:
    """Return how many chunks may wait for the training loop, where memory allows them."""
    if settings.prefetch != AUTOTUNE:
        return int(settings.prefetch)
    return DEPTHS[-1] if settings.tune == AUTOTUNE else DEPTH


def _belief(work: ModelWork) -> Belief:
    return Belief(math.log(work.seconds), work.sigma, LEARNED)
