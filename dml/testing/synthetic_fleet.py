"""Write the telemetry of a fleet that never ran, calibrated to the fleet study of tf.data.

``write_fleet`` draws pipelines, jobs and runs such that the figures of the paper come out, and
writes them as compacted telemetry. Every host of it is called ``synthetic``. Bytes are drawn for
each kind of operator, not along the flow: what an operator reads is not what the one before wrote.

Source: Murray et al., tf.data (VLDB 2021), section 5.1; ``dml/fleet/figures.py`` has the figures.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dml.fleet.compaction import write_tables
from dml.fleet.figures import BYTES, FAMILIES, READS
from dml.fleet.snapshot import TableFile, commit, snapshot
from dml.fleet.tables import SCHEMAS, TelemetryTables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

OPERATORS: Final = 10
"""Operators of a pipeline."""
HOST: Final = "synthetic"
CLASSES: Final = (("synthetic-16c", 1.0), ("synthetic-64c", 1.5))
FIRST_DAY: Final = dt.datetime(2026, 1, 5, tzinfo=dt.UTC)
HOUR_US: Final = 3_600_000_000
OPTIONAL: Final = {
    "Interleave": 0.77, "Prefetch": 0.87, "Cache": 0.19, "Filter": 0.3, "Zip": 0.2,
    "Unbatch": 0.1, "Repeat": 0.6, "Batch": 0.95, "Other": 0.05,
}  # fmt: skip
"""Part of the pipelines that have an operator; all others of their operators are maps."""
SHUFFLED: Final = 0.57
"""Part of the jobs that shuffle."""
TEMPLATES: Final = 5
"""Combinations of optional operators of most jobs; with and without shuffle, twice as many."""


@dataclass(frozen=True)
class Population:
    """Pipelines, their jobs and runs: run ``i`` is of pipeline ``pipeline[i]`` and job ``job[i]``.

    ``used[name]`` says which pipelines have an optional operator, ``owner`` the pipeline of a job.
    """

    pipeline: Ints
    job: Ints
    owner: Ints
    used: dict[str, Mask]
    shuffles: Mask
    source: Ints
    started: Ints


def write_fleet(
    root: str | os.PathLike[str],
    *,
    runs: int = 1_000_000,
    pipelines: int | None = None,
    days: int = 30,
    seed: int = 0,
) -> None:
    """Write ``runs`` runs of ``pipelines`` pipelines in ``days`` days to a new telemetry folder.

    ``pipelines`` is a hundredth of ``runs`` unless given. With so many runs of each, and 100,000
    runs or more, the figures are those of the paper to within a percentage point.
    """
    root, pipelines = Path(root), max(10, runs // 100) if pipelines is None else pipelines
    if runs < 2 * pipelines or pipelines < 10:
        raise ValueError(
            f"{pipelines} pipelines have at least 20 runs and twice as many as they are"
        )
    rng = np.random.default_rng(seed)
    population = _population(rng, runs, pipelines, days)
    plans = _Plans(population)
    jobs = _Jobs(rng, population)
    day_of = population.started // (24 * HOUR_US)
    parts: list[TableFile] = []
    for day in range(days):
        picked = np.flatnonzero(day_of == day)
        if not len(picked):
            continue
        found = _day_tables(rng, population, plans, jobs, picked)
        if not parts:
            found = found._replace(plans=plans.table, prefixes=plans.prefixes)
        name = (FIRST_DAY + dt.timedelta(days=day)).date().isoformat()
        parts += write_tables(root, name, found)
    commit(root, snapshot(root).next(parts))


# ---------------------------------------------------------------------------- pipelines and jobs


def _population(rng: np.random.Generator, runs: int, pipelines: int, days: int) -> Population:
    """Draw how often each pipeline runs, by how many jobs, and when; the first runs most."""
    executions = _zipf(runs, pipelines, tenth=0.77)
    jobs = _jobs_of(executions, runs)
    owner = np.repeat(np.arange(pipelines), jobs)
    pipeline = np.repeat(np.arange(pipelines), executions)
    place = np.arange(runs) - np.repeat(np.cumsum(executions) - executions, executions)
    job = np.repeat(np.cumsum(jobs) - jobs, executions) + place % np.repeat(jobs, executions)
    shuffles = _pick(rng, jobs, SHUFFLED)
    used, source = _uses(rng, jobs, shuffles)
    started = _starts(rng, executions, shuffles, days * 24)
    return Population(pipeline, job, owner, used, shuffles, source, started)


def _zipf(runs: int, pipelines: int, tenth: float) -> Ints:
    """Return runs per pipeline, by Zipf's law, of which the first tenth has the share ``tenth``."""
    ranks = np.arange(1, pipelines + 1, dtype=float)

    def share(exponent: float) -> float:
        weights = ranks**-exponent
        return float(weights[: pipelines // 10].sum() / weights.sum())

    weights = ranks ** -_solved(share, tenth, 0.1, 3.0)
    counts: Ints = np.maximum(1, np.floor(weights / weights.sum() * runs)).astype(np.int64)
    counts[0] += runs - counts.sum()
    return counts


def _jobs_of(executions: Ints, runs: int) -> Ints:
    """Return jobs per pipeline: 1 % have over 25, the next 9 % have 2 to 25, all others one."""
    count = len(executions)
    hundredth, tenth = max(1, count // 100), max(1, count // 10)
    jobs = np.ones(count, dtype=np.int64)
    jobs[:hundredth] = np.maximum(26, executions[:hundredth] * 3 // 10)
    jobs[0] = max(26, runs // 20)  # of a million runs 50,000, as the largest that was observed
    jobs[hundredth:tenth] = np.linspace(25, 2, tenth - hundredth).astype(np.int64)
    return np.minimum(jobs, executions)


def _pick(rng: np.random.Generator, jobs: Ints, share: float) -> Mask:
    """Return pipelines that together have ``share`` of the jobs."""
    order = rng.permutation(len(jobs))
    order = order[np.argsort(-jobs[order], kind="stable")]
    picked = np.zeros(len(jobs), dtype=bool)
    left = share * jobs.sum()
    for each in order:
        if rng.random() < 0.7 and jobs[each] <= left:
            picked[each] = True
            left -= jobs[each]
    return picked


def _uses(rng: np.random.Generator, jobs: Ints, shuffles: Mask) -> tuple[dict[str, Mask], Ints]:
    """Return which pipelines have an optional operator, and the kind of each pipeline's source.

    The pipelines with most jobs have one of a few combinations, so many that the ten commonest
    combinations of all are those of three quarters of the jobs.
    """
    free = {name: _exactly(rng, len(jobs), share) for name, share in OPTIONAL.items()}
    reads = np.array([BYTES[name] for name in READS.values()])
    drawn = rng.choice(len(reads), len(jobs), p=reads / reads.sum())
    by_jobs = np.argsort(-jobs, kind="stable")

    def fixed(count: int) -> tuple[dict[str, Mask], Ints]:
        models = np.arange(len(jobs))
        models[by_jobs[:count]] = by_jobs[np.arange(count) % TEMPLATES]
        return {name: mask[models] for name, mask in free.items()}, drawn[models]

    def share(count: float) -> float:
        used, source = fixed(int(count))
        keys = 2 * source + shuffles
        for mask in used.values():
            keys = 2 * keys + mask
        sums = np.bincount(keys, weights=jobs)
        return float(np.sort(sums)[-10:].sum() / jobs.sum())

    return fixed(int(_solved(share, 0.75, TEMPLATES, len(jobs) / 2)))


def _starts(rng: np.random.Generator, executions: Ints, shuffles: Mask, hours: int) -> Ints:
    """Return the start of each run, in microseconds: in bursts within an hour, if not shuffled.

    Of the hours in which such a pipeline runs, it runs once in a quarter, and over 100 times in a
    twentieth.
    """
    seeds = rng.integers(0, 2**62, len(executions))
    plain = np.flatnonzero(~shuffles)

    def bursts(one: float, large: float) -> dict[int, Ints]:
        return {int(p): _bursts(seeds[p], int(executions[p]), hours, (one, large)) for p in plain}

    def share(least: int, one: float, large: float) -> float:
        return float((np.concatenate([*bursts(one, large).values()]) > least).mean())

    one, large = 0.25, 0.1
    for _ in range(3):
        large = _solved(lambda part: share(100, one, part), 0.05, 0.0, 0.7, steps=8)  # noqa: B023
        one = _solved(lambda part: share(1, part, large), 0.75, 0.0, 0.7, steps=8)  # noqa: B023
    found = bursts(one, large)
    starts = []
    for number, count in enumerate(executions.tolist()):
        if number in found:
            sizes = found[number]
            hour = np.repeat(rng.choice(hours, len(sizes), replace=False), sizes)
        else:
            hour = rng.integers(0, hours, count)
        starts.append(hour * HOUR_US + rng.integers(0, HOUR_US, count))
    return np.concatenate(starts)


def _bursts(seed: int, runs: int, hours: int, parts: tuple[float, float]) -> Ints:
    """Return the numbers of runs in the hours in which a pipeline runs, at most ``hours``.

    The first of ``parts`` is the part of the hours with one run, the second that with over 100.
    """
    rng = np.random.default_rng(seed)
    many = min(runs, 8 * hours)
    kind = rng.random(many)
    sizes = rng.integers(2, 100, many)
    sizes[kind < parts[0]] = 1
    if runs > 400:
        burst = kind > 1 - parts[1]
        sizes[burst] = rng.integers(101, 200, int(burst.sum()))
    ends = np.cumsum(sizes)
    last = int(np.searchsorted(ends, runs))
    if last >= min(hours, many):  # it would run in more hours than there are
        edges = np.linspace(0, runs, min(hours, runs) + 1).astype(np.int64)
        return edges[1:] - edges[:-1]
    sizes = sizes[: last + 1].copy()
    sizes[last] -= ends[last] - runs
    return sizes


class _Jobs:
    """What every job reads, produces and spends; a job's runs share it equally."""

    def __init__(self, rng: np.random.Generator, population: Population) -> None:
        owner, count = population.owner, len(population.owner)
        runs = np.bincount(population.job, minlength=count)
        large = _exactly(rng, count, 0.13)
        share = _drawn(rng, count, (0, 0.5, 0.8, 1), (1e-3, 0.1, 1 / 3, 0.95))
        self.compute_s = _compute(rng, owner, large, share) / runs
        self.ingest_s = self.compute_s * share
        read = np.where(large, 1e12, 1e6) * np.exp(rng.uniform(0.01, np.log(1e5), count))
        self.read = read / runs
        self.ratio = _drawn(rng, count, (0, 0.14, 0.75, 1), (0.01, 0.1, 1, 30))
        self.map = _drawn(rng, count, (0, 0.065, 0.935, 1), (1e-2, 0.1, 10, 1e2))
        filters = population.used["Filter"][owner]
        parts = ((0, 0.08, 0.23, 0.3, 1), (0.05, 0.5, 0.9, 0.99, 1))
        self.filter = np.ones(count)
        self.filter[filters] = _drawn(rng, int(filters.sum()), *parts)
        kind = rng.integers(0, len(CLASSES), count)
        self.host_class = np.array([name for name, _ in CLASSES])[kind]
        self.capability = np.array([speed for _, speed in CLASSES])[kind]


def _compute(rng: np.random.Generator, owner: Ints, large: Mask, share: Floats) -> Floats:
    """Return the compute of each job, such that the three sums of the paper come out.

    Jobs that read over 1 TB have 96 % of it, the tenth of the pipelines that runs most has 72 % of
    what is spent on input, and that is 30 % of all.
    """
    drawn = np.exp(rng.normal(6, 0.5, len(owner)))
    first = owner < max(1, (int(owner.max()) + 1) // 10)

    def made(tilt: float) -> Floats:
        compute = drawn * np.exp(tilt * share)
        for _ in range(30):
            compute = _weighted(compute, compute, large, 0.962)
            compute = _weighted(compute, compute * share, first, 0.72)
        return compute

    def ingest(tilt: float) -> float:
        compute = made(tilt)
        return float((compute * share).sum() / compute.sum())

    return made(_solved(ingest, 0.30, -10.0, 10.0))


def _weighted(values: Floats, counted: Floats, picked: Mask, part: float) -> Floats:
    """Scale the ``picked`` values such that they have ``part`` of the sum of ``counted``."""
    inside, outside = counted[picked].sum(), counted[~picked].sum()
    return np.where(picked, values * (part / (1 - part) * outside / inside), values)


# ------------------------------------------------------------------------------------ operators


class _Plans:
    """The operators of each pipeline: ``family[p, ordinal]`` is their kind."""

    def __init__(self, population: Population) -> None:
        self.names = [*BYTES]
        count = len(population.shuffles)
        rows = [self._chain(population, n) for n in range(count)]
        self.family = np.array([[self.names.index(each) for each in row] for row in rows])
        self.plan = np.array([_hex("plan", n) for n in range(count)])
        self.data = np.array([_hex("data", n // 3) for n in range(count)])
        self.fleet = np.array([_hex("fleet", n) for n in range(count)])
        self.text = np.array(["\n".join(map(_operator, reversed(row))) for row in rows])
        self.table = self._table(rows)
        self.prefixes = self._prefixes(rows)

    @staticmethod
    def _chain(population: Population, number: int) -> list[str]:
        chosen = [name for name, mask in population.used.items() if mask[number]]
        shuffle = ["Shuffle"] * bool(population.shuffles[number])
        source = [*READS.values()][population.source[number]]
        row = [source, *chosen[: OPERATORS - 2 - len(shuffle)], *shuffle]
        return [*row, *["Map"] * (OPERATORS - len(row))]

    def _table(self, rows: list[list[str]]) -> pa.Table:
        medium = {family: name for name, family in READS.items()}
        found = []
        for number, row in enumerate(rows):
            for ordinal, family in enumerate(row):
                found.append({
                    "plan": self.plan[number], "ordinal": ordinal, "operator": _operator(family),
                    "name": _operator(family), "lifted": "", "tier": "",
                    "medium": medium.get(family, ""),
                    "fleet_fingerprint": _hex("operator", number, ordinal),
                    "cost_fingerprint": _hex("cost", family),
                })  # fmt: skip
        return pa.Table.from_pylist(found, SCHEMAS.plans)

    def _prefixes(self, rows: list[list[str]]) -> pa.Table:
        """Return prefixes: three pipelines each read the same data, and go on differently."""
        found = [
            {
                "plan": self.plan[number], "place": place, "ordinal": place,
                "operator": _operator(row[place]),
                "prefix": _hex("prefix", place, number if place else number // 3),
            }
            for number, row in enumerate(rows)
            for place in range(row.index("Shuffle") if "Shuffle" in row else 3)
            if place < 3
        ]  # fmt: skip
        return pa.Table.from_pylist(found, SCHEMAS.prefixes)


def _operator(family: str) -> str:
    """Return an operator of a kind in figure 9."""
    if family in READS.values():
        return "ParquetSource"
    return FAMILIES[family][0] if family in FAMILIES else "Shard"


def _day_tables(
    rng: np.random.Generator, population: Population, plans: _Plans, jobs: _Jobs, picked: Ints
) -> TelemetryTables:
    """Return the tables of the runs ``picked``, without plans."""
    count = len(picked)
    pipeline, job = population.pipeline[picked], population.job[picked]
    raw = rng.bytes(16 * count).hex()
    names = np.array([raw[n : n + 32] for n in range(0, 32 * count, 32)])
    started = population.started[picked] + int(FIRST_DAY.timestamp()) * 1_000_000
    cpu_s = jobs.ingest_s[job] / jobs.capability[job]
    seconds = cpu_s * 1.25
    read = np.maximum(1, jobs.read[job]).astype(np.int64)
    produced = np.maximum(1, read * jobs.ratio[job]).astype(np.int64)
    batches = rng.integers(1, 10_000, count)
    runs = {
        "run": names, "job": np.char.add("job", job.astype(str)), "started": started,
        "finished": started + (seconds * 1e6).astype(np.int64), "status": ["finished"] * count,
        "plan": plans.plan[pipeline], "fleet_fingerprint": plans.fleet[pipeline],
        "data_fingerprint": plans.data[pipeline],
        "pipeline": plans.text[pipeline], "host": [HOST] * count,
        "host_class": jobs.host_class[job], "capability": jobs.capability[job],
        "rows": batches * 256, "batches": batches, "bytes": produced, "bytes_read": read,
        "seconds": seconds, "first_batch_s": seconds * 0.01, "cpu_s": cpu_s,
        "process_cpu_s": jobs.compute_s[job] / jobs.capability[job],
        "consumer_s": seconds * rng.random(count),
    }  # fmt: skip
    operators = _operators(rng, plans, pipeline, names, cpu_s, (jobs.map[job], jobs.filter[job]))
    whose = {
        name: np.repeat(runs[name], OPERATORS) for name in ("job", "host_class", "data_fingerprint")
    }
    empty = TelemetryTables(*(schema.empty_table() for schema in SCHEMAS))
    return empty._replace(
        runs=_table(SCHEMAS.runs, runs), operators=_table(SCHEMAS.operators, operators | whose)
    )


def _operators(  # noqa: PLR0917 (columns of runs)
    rng: np.random.Generator,
    plans: _Plans,
    pipeline: Ints,
    names: NDArray[np.str_],
    cpu_s: Floats,
    ratios: tuple[Floats, Floats],
) -> dict[str, Any]:
    """Return the columns of the operators of some runs; kinds have the paper's shares of bytes."""
    family = plans.family[pipeline].ravel()
    drawn = np.exp(rng.normal(16, 1, len(family)))
    sums = np.bincount(family, weights=drawn, minlength=len(plans.names))
    wanted = np.array([BYTES[name] for name in plans.names])
    # a thousand bytes stand for one: shares stay exact when rounded
    written = drawn * (wanted / np.maximum(sums, 1e-300))[family] * drawn.sum() * 1e3
    taken = written.copy()
    for name, ratio in zip(("Map", "Filter"), ratios, strict=True):
        mine = family == plans.names.index(name)
        taken[mine] = written[mine] / np.repeat(ratio, OPERATORS)[mine]
    weights = rng.random((len(pipeline), OPERATORS)) + 0.05
    spent = (weights / weights.sum(axis=1, keepdims=True) * cpu_s[:, None]).ravel()
    rows = rng.integers(1, 1_000_000, len(family))
    return {
        "run": np.repeat(names, OPERATORS), "worker": [""] * len(family),
        "plan": np.repeat(plans.plan[pipeline], OPERATORS),
        "ordinal": np.tile(np.arange(OPERATORS), len(pipeline)),
        "rows_in": rows, "rows_out": rows,
        "bytes_in": np.maximum(1, taken).astype(np.int64),
        "bytes_out": np.maximum(1, written).astype(np.int64),
        "seconds": spent * 1.2, "cpu_s": spent, "blocks": rows // 4096 + 1,
    }  # fmt: skip


# -------------------------------------------------------------------------------------- drawing


def _table(schema: pa.Schema, columns: dict[str, Any]) -> pa.Table:
    count = len(columns["run"])
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _exactly(rng: np.random.Generator, count: int, share: float) -> Mask:
    """Return a random mask with ``share`` of it true."""
    return rng.permutation(count) < round(share * count)


def _drawn(
    rng: np.random.Generator,
    count: int,
    quantiles: tuple[float, ...],
    values: tuple[float, ...],
) -> Floats:
    """Draw values with these quantiles, geometrically between them, as evenly as possible."""
    even = (rng.permutation(count) + 0.5) / count
    return np.exp(np.interp(even, quantiles, np.log(values)))


def _solved(
    function: Callable[[float], float], wanted: float, low: float, high: float, steps: int = 40
) -> float:
    """Return where a monotonic function has the value ``wanted``, by bisection."""
    rising = function(high) > function(low)
    for _ in range(steps):
        middle = (low + high) / 2
        if (function(middle) < wanted) == rising:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _hex(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()
