"""Name what recorded runs waste, with what each remedy would save; ``KINDS`` lists all kinds.

Each kind is a query over sums by plan and class of machine, which finds chances. Caches are chosen
together, since one may make another useless. Amounts are those of a week like the recorded ones.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from dml.base.amounts import bytes_text, counted
from dml.errors import PlanError
from dml.fleet import queries
from dml.fleet.cache_placement import SOURCE, Kept, Point, best, spent

HOUR_S: Final = 3600.0
MONTH_WEEKS: Final = 52 / 12
CACHEABLE: Final = (
    *("MapRows", "LiftedMap", "MapBatches", "FlatMap", "FilterRows", "LiftedFilter", "Filter"),
    *("Segment", "WithColumns", "Select", "Drop", "Rename", "Cast", "FillNull", "Apply"),
    *("Explode", "Unnest"),
)
"""Operators of single rows, whose results workers can store; others select or order such rows."""
LEAST_S: Final = 1.0
"""What is saved in a week by advice that is worth a line."""
READ_BYTES_S: Final = 5e8
"""Bytes of a cache that a processor second reads; writing takes twice as long."""

Database = Any
"""A connection of DuckDB, which is not installed with dml."""
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Prices:
    """What an hour of one processor, an hour of a waiting training loop, and a stored GB cost.

    The hour of a training loop is that of its accelerators. ``gb_month`` is the price of a gigabyte
    (10 ** 9 bytes) for a month. All three are in the same currency.
    """

    core_hour: float = 0.04
    accelerator_hour: float = 2.0
    gb_month: float = 0.023

    @classmethod
    def of(cls, given: object) -> Prices:
        """Return these prices, and the usual ones of what is not given.

        Raise PlanError for unknown names, and prices that are negative or infinite.
        """
        usual = vars(cls())
        if not isinstance(given, Mapping):
            given = {repr(given): 0.0}
        for name, price in given.items():
            if name not in usual or type(price) not in (int, float) or not 0 <= price < math.inf:
                raise PlanError(
                    f"a price {name}={price!r}", at="fleet.advise",
                    why=f"prices are numbers, at least 0, of {', '.join(usual)}",
                    try_=f"fleet.advise({usual})",
                )  # fmt: skip
        return cls(**given)

    def of_week(self, cpu_s: float, wait_s: float, stored_bytes: float) -> float:
        """Return what is saved in a week by these amounts; stored bytes cost."""
        hours = (cpu_s * self.core_hour + wait_s * self.accelerator_hour) / HOUR_S
        return hours - stored_bytes / 1e9 * self.gb_month / MONTH_WEEKS


@dataclass(frozen=True)
class Kind:
    """A kind of advice: the query that finds its chances, and the words for them.

    ``what`` and ``remedy`` may have names of columns in braces, ``run_count`` and ``stored``. The
    query returns ``pipeline``, ``host_class``, ``operator``, ``runs``, ``cpu_s``, ``wait_s``,
    ``stored_bytes`` and ``part``; if several pipelines are concerned, ``pipelines`` lists them.
    """

    name: str
    what: str
    remedy: str
    confidence: str
    query: str


ADVICE: Final = pa.schema(
    [
        pa.field("kind", pa.string()),
        *(pa.field(name, pa.float64()) for name in ("money", "cpu_s", "wait_s", "stored_bytes")),
        *(
            pa.field(name, pa.string())
            for name in ("fleet_fingerprint", "prefix", "operator", "host_class")
        ),
        *(pa.field(name, pa.int64()) for name in ("runs", "break_even_runs")),
        *(pa.field(name, pa.string()) for name in ("confidence", "what", "remedy")),
    ]
)
"""One row per piece of advice; ``cpu_s``, ``wait_s`` and ``money`` are saved in a week."""


def advise(database: Database, prices: Prices, applied: Collection[str] = ()) -> pa.Table:
    """Return the advice for the runs in a database, what saves most money first.

    Advice that would cost more than it saves is left out. ``applied`` are prefixes whose rows a
    policy caches already.
    """
    for each in (PASSES, STEPS, PIPES):
        database.execute(each)
    weeks = weeks_of(database)
    found: Rows = [*_caches(database, prices, weeks)]
    waiting: set[str] = set()
    for kind in KINDS:
        rows = _together(_rows(database, kind.query))
        if kind.name == GENERAL:
            rows = [row for row in rows if row["pipeline"] not in waiting]
        waits = [row for row in rows if row["wait_s"]]
        waiting |= {each for row in waits for each in row.get("pipelines", [row["pipeline"]])}
        found += (_worded(row, kind) for row in rows)
    for row in found:
        for name in ("cpu_s", "wait_s"):
            row[name] = (row[name] or 0.0) / weeks
        row["stored_bytes"] = float(row["stored_bytes"] or 0.0)
        row["fleet_fingerprint"] = row["pipeline"]
        if row.get("prefix") in applied:
            row["remedy"] += "; it is in the policy, and dml fleet applied shows its effect"
        row["money"] = prices.of_week(row["cpu_s"], row["wait_s"], row["stored_bytes"])
    free = not any(vars(prices).values())
    found = [row for row in found if row["cpu_s"] + row["wait_s"] >= LEAST_S]
    worth = [row for row in found if free or row["money"] > 0]
    worth.sort(key=lambda row: (-row["money"], -row["cpu_s"] - row["wait_s"], row["kind"]))
    return pa.Table.from_pylist(worth, ADVICE)


def _together(rows: Rows) -> Rows:
    """Return one row for each operator of a pipeline, whose runs may have had several plans."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = row["pipeline"], row["host_class"], row["operator"]
        mine = found.setdefault(key if row["pipeline"] else (*key, len(found)), row)
        if mine is not row:
            for name in ("runs", "cpu_s", "wait_s", "stored_bytes"):
                mine[name] = (mine[name] or 0) + (row[name] or 0)
    return [*found.values()]


def weeks_of(database: Database) -> float:
    """Return how many weeks lie between the first and the last run; at least 1."""
    weeks: float = _rows(database, WEEKS)[0]["weeks"]
    return weeks


def _rows(database: Database, query: str) -> Rows:
    rows: Rows = database.sql(query).to_arrow_table().to_pylist()
    return rows


def _worded(row: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    counts = {"run_count": counted(row["runs"], "run", "runs")}
    said = {**row, **counts, "stored": bytes_text(abs(row["stored_bytes"] or 0))}
    texts = {"what": kind.what.format_map(said), "remedy": kind.remedy.format_map(said)}
    return {**row, **texts, "kind": kind.name, "confidence": kind.confidence}


# ---------------------------------------------------------------------------------------- caches


def _caches(database: Database, prices: Prices, weeks: float) -> Iterator[dict[str, Any]]:
    """Yield the prefixes to cache: the cheapest choice of all, with storage at its price."""
    rows = _rows(database, queries.PREFIX_COSTS)
    parents = {row["next"]: row["prefix"] for row in _rows(database, queries.LONGER)}
    groups: dict[tuple[str, str], Rows] = {}
    for row in rows:
        if row["computed"] > 0 and row["cpu_s"] is not None and row["rows"] is not None:
            groups.setdefault((row["host_class"], row["data"]), []).append(row)
    second = prices.core_hour / HOUR_S
    price = prices.gb_month / 1e9 * weeks / MONTH_WEEKS / second if second else 0.0
    for each in groups.values():
        yield from _chosen(each, parents, price)


def _chosen(rows: Rows, parents: Mapping[str, str], price: float) -> Iterator[dict[str, Any]]:
    """Yield the advice for the prefixes of one class of machine and one content of the data."""
    places = {row["prefix"]: number for number, row in enumerate(rows)}
    ends = [float(row["computed"]) for row in rows]
    points = []
    for row in rows:
        parent = places.get(parents.get(row["prefix"], ""), SOURCE)
        below_s = 0.0
        if parent != SOURCE:
            below_s = _each_s(rows[parent])
            ends[parent] = max(0.0, ends[parent] - row["computed"])
        read_s = (row["bytes"] or 0) / READ_BYTES_S
        own_s = max(0.0, _each_s(row) - below_s)
        lossy = row["skipped"] > 0  # parts of which rows were skipped are not stored
        keepable = row["place"] > 0 and row["operator"] in CACHEABLE and not lossy
        points.append(Point(parent, own_s, row["bytes"] or 0, read_s, 2 * read_s, 0.0, keepable))
    points = [replace(point, runs=runs) for point, runs in zip(points, ends, strict=True)]
    kept = best(points, price)
    for place in sorted(kept):
        yield _cache_advice(rows[place], points, kept, place)


def _each_s(row: Mapping[str, Any]) -> float:
    return float(row["cpu_s"]) / int(row["computed"])


def _cache_advice(
    row: Mapping[str, Any], points: Sequence[Point], kept: Kept, place: int
) -> dict[str, Any]:
    saved = spent(points, kept - {place}) - spent(points, kept)
    point = points[place]
    gain = _each_s(row) - point.read_s
    one_job = row["jobs"] == 1
    known = row["data"] is not None
    what = (
        f"{row['computed']} runs of {counted(row['pipelines'], 'pipeline', 'pipelines')} compute "
        f"the {bytes_text(row['bytes'])} after {row['operator']}"
    )
    verb = "cache()" if one_job else 'cache(tier="disk")'
    return {
        "kind": "cache-epochs" if one_job else "cache-prefix",
        "cpu_s": saved, "wait_s": 0.0, "stored_bytes": point.nbytes,
        "pipeline": row["pipeline"], "prefix": row["prefix"], "operator": row["operator"],
        "host_class": row["host_class"], "runs": row["computed"],
        "break_even_runs": 1 + math.ceil(point.write_s / gain) if gain > 0 else None,
        "confidence": "high" if known and row["computed"] > 2 else "medium",
        "what": what, "remedy": f"{verb} after {row['operator']}",
    }  # fmt: skip


# ----------------------------------------------------------------------------------------- kinds

WEEKS: Final = """
    SELECT greatest(1.0, date_diff('second', min(started), max(started)) / 604800) AS weeks
    FROM runs
"""
STEPS: Final = """
    CREATE OR REPLACE TEMP TABLE steps AS
    WITH sums AS (
        SELECT plan, coalesce(host_class, '') AS host_class, ordinal,
               sum(rows_in)::DOUBLE AS rows_in, sum(rows_out)::DOUBLE AS rows_out,
               sum(bytes_in)::DOUBLE AS bytes_in,
               sum(bytes_out)::DOUBLE AS bytes_out, sum(seconds) AS seconds, sum(cpu_s) AS cpu_s,
               sum(blocks) AS blocks, sum(python_calls)::DOUBLE AS calls,
               sum(cache_hits) AS hits, sum(cache_misses) AS misses, sum(skipped) AS skipped,
               sum(near_bytes) AS near_bytes
        FROM numbers GROUP BY ALL
    ), counts AS (
        SELECT plan, host_class, count(*) AS runs FROM passes GROUP BY ALL
    )
    SELECT sums.*, runs, operator, medium, coalesce(starts_with(lifted, 'no'), false) AS opaque,
           operator IN ('Cache', 'Stored') AS caches
    FROM sums JOIN plans USING (plan, ordinal) JOIN counts USING (plan, host_class)
"""
"""What the operators of each plan did, on each class of machine."""
PASSES: Final = """
    CREATE OR REPLACE TEMP TABLE passes AS
    SELECT run, plan, coalesce(host_class, '') AS host_class, fleet_fingerprint AS pipeline, job,
           host, data_fingerprint AS data, result_fingerprint AS result, epoch, resumed, versions,
           started, finished, status, rows, seconds, cpu_s,
           coalesce(consumer_s, 0) AS waited_s,
           if(consumer_s < 0.95 * seconds AND status IN ('finished', 'stopped'), consumer_s, 0.0)
               AS consumer_s,
           coalesce(first_batch_s, 0) AS first_s, greatest(coalesce(cores, 1), 1) AS cores,
           options->>'executor' AS executor,
           coalesce(nullif(error_kind, ''), 'an error') AS error_kind,
           peak_bytes / nullif(try_cast(options->>'memory_limit' AS DOUBLE), 0) AS filled,
           greatest(coalesce(try_cast(options->>'workers' AS BIGINT), 1), 1) AS workers
    FROM runs
"""
"""The runs, with the numbers among their options.

A loop that waits for nearly all of the time does nothing else: no training waits for rows.
"""
PIPES: Final = """
    CREATE OR REPLACE TEMP TABLE pipes AS
    WITH work AS (
        SELECT plan, host_class, sum(seconds) AS busy_s FROM steps GROUP BY ALL
    ), slowest AS (
        SELECT plan, host_class, arg_max(operator, seconds) AS operator FROM steps GROUP BY ALL
    )
    SELECT plan, host_class, any_value(pipeline) AS pipeline, count(*) AS runs,
           any_value(executor) AS executor, sum(seconds) AS seconds,
           sum(consumer_s) AS consumer_s, sum(waited_s) AS waited_s, sum(cpu_s) AS cpu_s,
           sum(first_s) AS first_s,
           max(workers) AS workers, max(cores) AS cores, sum(seconds * workers) AS slots_s,
           avg(filled) AS filled,
           any_value(busy_s) AS busy_s, any_value(operator) AS operator
    FROM passes LEFT JOIN work USING (plan, host_class) LEFT JOIN slowest USING (plan, host_class)
    GROUP BY plan, host_class
"""
"""What the runs of each plan took, on each class of machine."""

GENERAL: Final = "waiting-trainer"
"""The kind that counts only where no other explains why a training loop waits."""

KINDS: Final[tuple[Kind, ...]] = (
    Kind(
        "unused-cache", "{run_count} filled {operator}, and none read it",
        "remove the cache, or give it rows that later runs read", "high",
        """
        SELECT pipeline, s.host_class, s.operator, s.runs, s.cpu_s, 0.0 AS wait_s,
               if(s.operator = 'Stored', -s.bytes_out / s.runs, 0.0) AS stored_bytes, 0.0 AS part
        FROM steps AS s JOIN pipes USING (plan, host_class)
        WHERE caches AND hits = 0 AND misses > 0 AND s.runs >= 3
        """,
    ),
    Kind(
        "slow-cache", "{run_count} read {operator} in {part:.1f} times the time of computing it",
        "remove the cache: computing is faster than reading", "high",
        """
        WITH made AS (
            SELECT c.plan, coalesce(c.host_class, '') AS host_class, c.ordinal,
                   sum(b.cpu_s) / nullif(any_value(c.rows_out), 0) AS row_s
            FROM operators AS c JOIN numbers AS b ON b.run = c.run AND b.ordinal < c.ordinal
            WHERE c.cache_misses > 0 AND c.cache_hits = 0
            GROUP BY c.run, c.plan, c.host_class, c.ordinal
        ), typical AS (
            SELECT plan, host_class, ordinal, median(row_s) AS row_s FROM made GROUP BY ALL
        ), hit AS (
            SELECT plan, coalesce(host_class, '') AS host_class, ordinal,
                   any_value(operator) AS operator, count(DISTINCT run) AS runs,
                   sum(cpu_s) AS cpu_s, sum(rows_out) AS rows,
                   max(bytes_out)::DOUBLE AS stored_bytes
            FROM operators WHERE cache_hits > 0 AND cache_misses = 0 GROUP BY ALL
        )
        SELECT pipeline, host_class, hit.operator, hit.runs, hit.cpu_s - rows * row_s AS cpu_s,
               0.0 AS wait_s, -stored_bytes AS stored_bytes, hit.cpu_s / (rows * row_s) AS part
        FROM hit JOIN typical USING (plan, host_class, ordinal) JOIN pipes USING (plan, host_class)
        WHERE hit.runs >= 3 AND hit.cpu_s > 1.3 * rows * row_s AND rows * row_s > 0
        """,
    ),
    Kind(
        "select-early", "columns with {part:.0%} of the bytes are read, and dropped by {operator}",
        "select() the columns before the first function", "medium",
        """
        SELECT pipeline, host_class, operator, runs, max(saved) AS cpu_s, 0.0 AS wait_s,
               0.0 AS stored_bytes, max(part) AS part
        FROM (
            SELECT pipeline, host_class, d.operator, d.runs,
                   1 - (d.bytes_out / d.rows_out) / (s.bytes_out / s.rows_out) AS part,
                   s.cpu_s * part AS saved
            FROM steps AS d JOIN steps AS s USING (plan, host_class)
            JOIN pipes USING (plan, host_class)
            WHERE s.ordinal = 0 AND s.rows_out > 0 AND s.bytes_out > 0
              AND d.operator IN ('Select', 'Drop', 'Segment') AND d.rows_out > 0
              AND d.rows_out = d.rows_in AND d.bytes_out < 0.5 * d.bytes_in
              AND d.bytes_in >= 0.8 * s.bytes_out * d.rows_in / s.rows_out
              AND EXISTS (FROM steps AS f WHERE f.plan = d.plan AND f.host_class = d.host_class
                          AND f.opaque AND f.ordinal < d.ordinal)
        ) WHERE part > 0.5 GROUP BY ALL
        """,
    ),
    Kind(
        "filter-early", "{operator} drops {part:.0%} of the rows that functions below it make",
        "filter() before these functions, if it needs none of their columns", "low",
        """
        SELECT pipeline, host_class, operator, runs, saved AS cpu_s, 0.0 AS wait_s,
               0.0 AS stored_bytes, part
        FROM (
            SELECT pipeline, host_class, d.operator, d.runs, 1 - d.rows_out / d.rows_in AS part,
                   part * sum(f.cpu_s) AS saved
            FROM steps AS d JOIN steps AS f USING (plan, host_class)
            JOIN pipes USING (plan, host_class)
            WHERE d.operator IN ('Filter', 'FilterRows', 'LiftedFilter', 'Segment')
              AND d.rows_out < 0.5 * d.rows_in AND f.opaque AND f.ordinal < d.ordinal
              AND NOT d.opaque AND f.rows_out = f.rows_in AND f.rows_out > 0
            GROUP BY pipeline, host_class, d.operator, d.runs, d.ordinal, d.rows_in, d.rows_out
        ) QUALIFY row_number() OVER (PARTITION BY pipeline, host_class ORDER BY saved DESC) = 1
        """,
    ),
    Kind(
        "vectorize", "{operator} calls a Python function of {part:.1f} µs for each row",
        "write it as an expression, or as map_batches()", "medium",
        """
        SELECT pipeline, s.host_class, s.operator, s.runs, s.cpu_s - calls * 1e-7 AS cpu_s,
               0.0 AS wait_s, 0.0 AS stored_bytes, 1e6 * s.cpu_s / calls AS part
        FROM steps AS s JOIN pipes USING (plan, host_class)
        WHERE opaque AND calls >= 100000 * s.runs AND s.cpu_s < 2e-5 * calls
        """,
    ),
    Kind(
        "processes", "threads take turns in {operator}, and the training loop waits {part:.0%}",
        'with_options(executor="processes"), or an expression', "medium",
        """
        WITH python AS (
            SELECT plan, host_class, sum(cpu_s) FILTER (opaque) / sum(cpu_s) AS python
            FROM steps GROUP BY ALL
        )
        SELECT pipeline, host_class, operator, runs, 0.0 AS cpu_s,
               consumer_s * (1 - 1 / least(workers, cores)) AS wait_s, 0.0 AS stored_bytes,
               consumer_s / seconds AS part
        FROM pipes JOIN python USING (plan, host_class)
        WHERE executor IN ('auto', 'threads') AND python > 0.5 AND cpu_s < 1.3 * seconds
          AND consumer_s > 0.2 * seconds AND least(workers, cores) > 1
        """,
    ),
    Kind(
        "oversubscribed", "{run_count} had {part:.1f} workers for each core of their machine",
        "with_options(num_workers=...) in each of these jobs, or other times", "medium",
        """
        WITH edges AS (
            SELECT host, started AS moment, workers AS step FROM passes WHERE finished IS NOT NULL
            UNION ALL
            SELECT host, finished, -workers FROM passes WHERE started IS NOT NULL
        ), levels AS (
            SELECT host, moment, sum(step) OVER (PARTITION BY host ORDER BY moment, step) AS workers
            FROM edges WHERE moment IS NOT NULL
        ), crowded AS (
            SELECT p.*, l.workers / p.cores AS crowd
            FROM (SELECT *, started + (finished - started) / 2 AS middle FROM passes) AS p
            ASOF JOIN levels AS l ON p.host = l.host AND p.middle >= l.moment
        )
        SELECT if(count(DISTINCT c.pipeline) = 1, any_value(c.pipeline), NULL) AS pipeline,
               list(DISTINCT c.pipeline) AS pipelines, host_class, '' AS operator,
               count(*) AS runs, 0.0 AS cpu_s, sum(c.consumer_s * (1 - 1 / crowd)) AS wait_s,
               0.0 AS stored_bytes, avg(crowd) AS part
        FROM crowded AS c JOIN pipes USING (plan, host_class)
        WHERE crowd > 1.25 AND c.consumer_s > 0.1 * c.seconds AND busy_s > 1.3 * pipes.cpu_s
        GROUP BY c.host, host_class
        """,
    ),
    Kind(
        "duplicate-jobs", "{run_count} made what another job made at the same time",
        "one run for all of them: streaming_split(), or a cache on disk", "high",
        """
        WITH known AS (FROM passes WHERE result <> '' AND status = 'finished')
        SELECT pipeline, host_class, '' AS operator, count(*) AS runs, sum(cpu_s) AS cpu_s,
               0.0 AS wait_s, 0.0 AS stored_bytes, 0.0 AS part
        FROM known AS run WHERE EXISTS (
            FROM known AS other
            WHERE other.result = run.result AND other.host_class = run.host_class
              AND other.job <> run.job AND other.finished > run.started
              AND (other.started, other.run) < (run.started, run.run)
        ) GROUP BY ALL
        """,
    ),
    Kind(
        "memory-limit", "memory is full, workers pause, and the training loop waits {part:.0%}",
        "a larger with_options(memory_limit=), or smaller batches and shuffles", "medium",
        """
        SELECT pipeline, host_class, operator, runs, 0.0 AS cpu_s, consumer_s AS wait_s,
               0.0 AS stored_bytes, consumer_s / seconds AS part
        FROM pipes WHERE filled >= 0.9 AND consumer_s > 0.1 * seconds AND busy_s < 0.7 * slots_s
        """,
    ),
    Kind(
        "slow-start", "{operator} needs all rows before the first batch, {part:.0%} of the time",
        "shuffle(buffer_size), or the order in a snapshot()", "medium",
        """
        SELECT pipeline, host_class, min(s.operator) AS operator, any_value(p.runs) AS runs,
               0.0 AS cpu_s, any_value(p.first_s) AS wait_s, 0.0 AS stored_bytes,
               any_value(p.first_s / p.seconds) AS part
        FROM pipes AS p JOIN steps AS s USING (plan, host_class)
        WHERE s.operator IN ('ShuffleAll', 'Sort') AND p.first_s > 5 * p.runs
          AND p.first_s > 0.1 * p.seconds
        GROUP BY pipeline, plan, host_class
        """,
    ),
    Kind(
        "remote-reads", "{run_count} read the same {stored} of objects into one machine",
        "copies on its disk: with_options(cache_dir=) and cache(tier='disk')", "high",
        """
        WITH reads AS (
            SELECT p.host, p.pipeline, p.host_class, coalesce(p.data, p.pipeline) AS content,
                   any_value(s.operator) AS operator, count(*) AS runs,
                   sum(p.consumer_s) AS waited_s, sum(p.seconds) AS seconds,
                   any_value(s.bytes_out / s.runs) AS stored_bytes
            FROM passes AS p JOIN steps AS s USING (plan, host_class)
            WHERE s.medium = 'remote' AND coalesce(s.near_bytes, 0) = 0 AND p.consumer_s > 0
            GROUP BY ALL HAVING count(*) > 1
        )
        SELECT pipeline, host_class, any_value(operator) AS operator, sum(runs)::BIGINT AS runs,
               0.0 AS cpu_s, sum(waited_s * (1 - 1 / runs)) AS wait_s,
               sum(stored_bytes) AS stored_bytes, 0.0 AS part
        FROM reads WHERE waited_s > 0.1 * seconds GROUP BY pipeline, host_class
        """,
    ),
    Kind(
        GENERAL, "the training loop waits {part:.0%} of the time, mostly for {operator}",
        "more workers or machines, or a cache; dml profile names what to change", "medium",
        """
        SELECT pipeline, host_class, operator, runs, 0.0 AS cpu_s, consumer_s AS wait_s,
               0.0 AS stored_bytes, consumer_s / seconds AS part
        FROM pipes WHERE consumer_s > 0.2 * seconds
        """,
    ),
    Kind(
        "idle-workers", "workers work {part:.0%} of the time, and the training loop does not wait",
        "fewer workers: with_options(num_workers=...)", "medium",
        """
        SELECT pipeline, host_class, operator, runs,
               seconds * (workers - greatest(1, ceil(1.5 * busy_s / seconds))) AS cpu_s,
               0.0 AS wait_s, 0.0 AS stored_bytes, busy_s / slots_s AS part
        FROM pipes
        WHERE busy_s < 0.3 * slots_s AND waited_s < 0.02 * seconds AND seconds > 10 * runs
          AND workers > greatest(1, ceil(1.5 * busy_s / seconds))
        """,
    ),
    Kind(
        "failing", "all {run_count} failed, the last with {operator}",
        "correct it, or map(f, on_error='skip') if single rows are wrong", "high",
        """
        SELECT pipeline, host_class, max_by(error_kind, started) AS operator,
               count(*) FILTER (status = 'failed') AS runs,
               sum(cpu_s) FILTER (status = 'failed') AS cpu_s, 0.0 AS wait_s, 0.0 AS stored_bytes,
               0.0 AS part
        FROM passes GROUP BY pipeline, host_class
        HAVING count(*) FILTER (status = 'failed') >= 3
           AND count(*) FILTER (status = 'finished') = 0
        """,
    ),
    Kind(
        "restarts", "{run_count} failed or killed, and begun again from the first row",
        "save state_dict() with the model, and continue from it", "high",
        """
        WITH lost AS (
            SELECT * FROM passes
            WHERE status IN ('failed', 'interrupted')
               OR (status IS NULL AND started < now() - INTERVAL 1 DAY)
        ), again AS (
            SELECT DISTINCT lost.run FROM lost JOIN passes AS r USING (pipeline, host_class, epoch)
            WHERE r.status = 'finished' AND r.started > lost.started
              AND r.started < lost.started + INTERVAL 7 DAY AND NOT coalesce(r.resumed, false)
              AND coalesce(lost.data, r.data, '') = coalesce(r.data, '')
        ), spent AS (
            SELECT run, sum(cpu_s) AS cpu_s FROM numbers
            WHERE run IN (SELECT run FROM again) GROUP BY run
        )
        SELECT pipeline, host_class, '' AS operator, count(*) AS runs, sum(spent.cpu_s) AS cpu_s,
               0.0 AS wait_s, 0.0 AS stored_bytes, 0.0 AS part
        FROM lost JOIN spent USING (run) GROUP BY pipeline, host_class
        """,
    ),
    Kind(
        "skipped-rows", "{operator} fails on {part:.1%} of the rows, which are skipped",
        "repair these rows; ds.stats().warnings says which come first", "high",
        """
        SELECT pipeline, host_class, s.operator, s.runs, s.skipped / s.rows_in * sum(b.cpu_s)
               AS cpu_s, 0.0 AS wait_s, 0.0 AS stored_bytes, s.skipped / s.rows_in AS part
        FROM steps AS s JOIN steps AS b USING (plan, host_class)
        JOIN pipes USING (plan, host_class)
        WHERE s.skipped > 0.001 * s.rows_in AND b.ordinal <= s.ordinal
        GROUP BY pipeline, host_class, s.operator, s.ordinal, s.runs, s.skipped, s.rows_in
        """,
    ),
    Kind(
        "small-files", "{operator} reads files of {part:.0f} rows",
        "write larger files once: ds.write_parquet(folder)", "medium",
        """
        WITH usual AS (
            SELECT operator, medium, host_class, median(cpu_s / bytes_out) AS byte_s
            FROM steps WHERE ordinal = 0 AND bytes_out >= 262144 * blocks AND bytes_out > 0
            GROUP BY ALL
        )
        SELECT pipeline, host_class, s.operator, s.runs,
               s.cpu_s - s.bytes_out * coalesce(byte_s, 1e-9) AS cpu_s, 0.0 AS wait_s,
               0.0 AS stored_bytes, s.rows_out / s.blocks AS part
        FROM steps AS s LEFT JOIN usual USING (operator, medium, host_class)
        JOIN pipes USING (plan, host_class)
        WHERE s.ordinal = 0 AND s.medium IN ('local', 'remote') AND s.blocks > 500 * s.runs
          AND s.rows_out < 256 * s.blocks AND s.bytes_out < 262144 * s.blocks
          AND s.cpu_s > 2 * s.bytes_out * coalesce(byte_s, 1e-9)
        """,
    ),
    Kind(
        "slower", "a row takes {part:.1f} times the processor time of earlier versions",
        "dml fleet compare shows which operator; check the versions of the last runs", "medium",
        """
        WITH by_version AS (
            SELECT pipeline, host_class, versions, min(started) AS first, count(*) AS runs,
                   sum(cpu_s) / nullif(sum(rows), 0) AS row_s, sum(rows) AS rows
            FROM passes WHERE status = 'finished' AND rows > 0 GROUP BY ALL
        ), ordered AS (
            SELECT *, lag(row_s) OVER w AS before_s, lag(runs) OVER w AS before,
                   lead(runs) OVER w AS later
            FROM by_version WINDOW w AS (PARTITION BY pipeline, host_class ORDER BY first)
        )
        SELECT pipeline, host_class, '' AS operator, runs, (row_s - before_s) * rows AS cpu_s,
               0.0 AS wait_s, 0.0 AS stored_bytes, row_s / before_s AS part
        FROM ordered
        WHERE later IS NULL AND runs >= 3 AND before >= 3 AND before_s > 0
          AND row_s > 1.3 * before_s
        """,
    ),
)  # fmt: skip
"""The kinds of advice but those on new caches; specific ones before ``GENERAL``."""
