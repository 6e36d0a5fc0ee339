"""The fleet study of tf.data (section 5.1), on the runs of a telemetry folder.

Each figure is a table, by the number that it has in the paper, and ``headlines`` compares the
statements of the paper with the same statements about these runs. Costs are in normalized compute
units: processor seconds times the speed of a core. Runs without a figure are left out of it, never
imputed.

Source: Murray et al., tf.data: A Machine Learning Data Processing Framework (VLDB 2021), 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

POINTS: Final = f"CAST([{', '.join(f'{n / 100:.2f}' for n in range(101))}] AS DOUBLE[])"
"""Quantiles of a distribution that a figure draws."""

FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "Map": (
        *("MapRows", "LiftedMap", "MapBatches", "MapBatch", "FlatMap", "RandomMap", "MapGroup"),
        *("Segment", "WithColumns", "Select", "Drop", "Rename", "Cast", "FillNull", "Apply"),
        *("Scan", "Explode", "Unnest", "WithRowIndex", "Resample"),
    ),
    "Batch": ("Batch", "BucketByLength", "GroupByWindow", "Pack", "Pad", "RunBatches", "Window"),
    "Prefetch": ("Prefetch",),
    "Repeat": ("Repeat",),
    "Zip": ("Zip",),
    "Interleave": ("Interleave", "InterleaveMap", "Mix", "Choose", "Concat"),
    "Shuffle": ("ShuffleAll", "ShuffleAtoms", "ShuffleWindow", "OrderAtoms"),
    "Filter": ("Filter", "FilterRows", "LiftedFilter", "TakeWhile"),
    "Unbatch": ("Unbatch", "Unpad"),
    "Cache": ("Cache", "AutoStored", "Stored"),
}
"""The operators of dml by the names of figure 9; sources count by where they read from."""
READS: Final = {
    "memory": "Read from memory",
    "local": "Read from storage",
    "remote": "Read from remote",
}

_NAMED: Final = ", ".join(
    f"('{operator}', '{family}')" for family, names in FAMILIES.items() for operator in names
)
_READ: Final = ", ".join(f"('{medium}', '{family}')" for medium, family in READS.items())
KINDS: Final = f"""
    CREATE OR REPLACE TEMP VIEW kinds AS
    SELECT plan, ordinal, CASE
        WHEN reads.family IS NOT NULL THEN reads.family
        WHEN plans.operator = 'Segment' AND kept_fingerprint IS NOT NULL THEN 'Filter'
        ELSE coalesce(named.family, 'Other') END AS family
    FROM plans
    LEFT JOIN (VALUES {_NAMED}) AS named(operator, family) ON named.operator = plans.operator
    LEFT JOIN (VALUES {_READ}) AS reads(medium, family) ON reads.medium = plans.medium
"""  # noqa: S608 (names of this module)
SPENT: Final = """
    CREATE OR REPLACE TEMP TABLE spent AS
    SELECT job, sum(cpu_s * capability) FILTER (process_cpu_s IS NOT NULL) AS ingest,
           sum(process_cpu_s * capability) FILTER (cpu_s IS NOT NULL) AS compute,
           sum(bytes_read) FILTER (bytes IS NOT NULL) AS bytes_read,
           sum(bytes) FILTER (bytes_read IS NOT NULL) AS bytes, list(DISTINCT plan) AS plans
    FROM runs GROUP BY job
"""
FIGURE_1: Final = f"""
    SELECT unnest({POINTS}) AS jobs,
           unnest(quantile_cont(least(ingest / compute, 1), {POINTS})) AS ingest_share
    FROM spent WHERE compute > 0 AND ingest IS NOT NULL
"""  # noqa: S608
FIGURE_2: Final = f"""
    SELECT unnest({POINTS}) AS jobs,
           unnest(quantile_cont(bytes_read::DOUBLE, {POINTS})) AS bytes_read
    FROM spent WHERE bytes_read IS NOT NULL
"""  # noqa: S608
FIGURE_9: Final = """
    WITH sums AS (
        SELECT plan, ordinal, sum(bytes_out::DOUBLE) AS bytes FROM numbers GROUP BY ALL
    ), used AS (
        SELECT DISTINCT fleet_fingerprint, plan FROM runs WHERE plan IS NOT NULL
    ), uses AS (
        SELECT family, count(DISTINCT fleet_fingerprint) AS pipelines
        FROM used JOIN kinds USING (plan) GROUP BY ALL
    )
    SELECT family, sum(bytes) / sum(sum(bytes)) OVER () AS share,
           any_value(pipelines) / (SELECT count(DISTINCT fleet_fingerprint) FROM used) AS pipelines
    FROM sums JOIN kinds USING (plan, ordinal) JOIN uses USING (family)
    GROUP BY family ORDER BY share DESC, family
"""
RATIOS: Final = """
    CREATE OR REPLACE TEMP TABLE ratios AS
    SELECT 'pipeline' AS scope, job, bytes / bytes_read AS ratio FROM spent WHERE bytes_read > 0
    UNION ALL
    SELECT lower(family), job, sum(n.bytes_out) / sum(n.bytes_in)
    FROM numbers AS n
    JOIN (SELECT * FROM kinds WHERE family IN ('Map', 'Filter')) USING (plan, ordinal)
    WHERE job IS NOT NULL
    GROUP BY family, job HAVING sum(n.bytes_in) > 0
"""
FIGURE_10: Final = f"""
    SELECT scope, unnest({POINTS}) AS jobs, unnest(quantile_cont(ratio, {POINTS})) AS ratio
    FROM ratios GROUP BY scope ORDER BY scope DESC, jobs
"""  # noqa: S608
HOURS: Final = """
    CREATE OR REPLACE TEMP TABLE hours AS
    SELECT date_trunc('hour', started) AS hour, fleet_fingerprint, count(*) AS runs
    FROM runs
    WHERE started IS NOT NULL
      AND (plan IS NULL OR plan NOT IN (SELECT plan FROM kinds WHERE family = 'Shuffle'))
    GROUP BY ALL
"""
FIGURE_11: Final = """
    SELECT hour, count(*) AS pipelines,
           avg((runs > 1)::INT) AS above_1, avg((runs > 10)::INT) AS above_10,
           avg((runs > 100)::INT) AS above_100
    FROM hours GROUP BY hour ORDER BY hour
"""
RANKED: Final = """
    CREATE OR REPLACE TEMP TABLE ranked AS
    SELECT row_number() OVER (ORDER BY count(*) DESC, fleet_fingerprint) AS place,
           count(*) AS runs, sum(cpu_s * capability) AS compute, count(DISTINCT job) AS jobs
    FROM runs GROUP BY fleet_fingerprint
"""
FIGURE_12: Final = """
    WITH sums AS (
        SELECT place / count(*) OVER () AS pipelines,
               sum(runs) OVER (ORDER BY place) / sum(runs) OVER () AS runs,
               sum(compute) OVER (ORDER BY place) / sum(compute) OVER () AS compute
        FROM ranked
    )
    SELECT ceil(pipelines * 100) / 100 AS pipelines, max(runs) AS runs, max(compute) AS compute
    FROM sums GROUP BY 1 ORDER BY 1
"""
BY_JOB: Final = """
    CREATE OR REPLACE TEMP TABLE by_job AS
    WITH uses AS (
        SELECT plan, string_agg(DISTINCT family, ' + ' ORDER BY family) AS operators
        FROM kinds GROUP BY plan
    )
    SELECT DISTINCT job, operators
    FROM (SELECT job, unnest(plans) AS plan FROM spent) JOIN uses USING (plan)
"""
COMBINATIONS: Final = """
    SELECT operators, count(*) AS jobs, count(*) / (SELECT count(DISTINCT job) FROM by_job) AS share
    FROM by_job GROUP BY operators ORDER BY jobs DESC, operators
"""

DRAWN: Final = {
    "figure_1": FIGURE_1,
    "figure_2": FIGURE_2,
    "figure_9": FIGURE_9,
    "figure_10": FIGURE_10,
    "figure_11": FIGURE_11,
    "figure_12": FIGURE_12,
    "combinations": COMBINATIONS,
}

STATEMENTS: Final[tuple[tuple[str, str, float, str], ...]] = (
    ("1", "jobs that spend over a third of their compute on input", 0.20,
     "SELECT avg((ingest > compute / 3)::INT) FROM spent WHERE compute > 0 AND ingest >= 0"),
    ("1", "compute of all jobs that is spent on input", 0.30,
     "SELECT sum(ingest) / sum(compute) FROM spent WHERE compute > 0 AND ingest >= 0"),
    ("1", "compute that the median job spends on input", 0.10,
     "SELECT median(ingest / compute) FROM spent WHERE compute > 0 AND ingest >= 0"),
    ("2", "jobs that read over 1 TB", 0.13,
     "SELECT avg((bytes_read > 1e12)::INT) FROM spent WHERE bytes_read >= 0"),
    ("2", "compute of the jobs that read over 1 TB", 0.96,
     """SELECT sum(compute) FILTER (bytes_read > 1e12) / sum(compute)
         FROM spent WHERE bytes_read >= 0"""),
    ("10", "jobs that produce less than they read", 0.75,
     "SELECT avg((ratio < 1)::INT) FROM ratios WHERE scope = 'pipeline'"),
    ("10", "jobs that produce less than a tenth of what they read", 0.14,
     "SELECT avg((ratio < 0.1)::INT) FROM ratios WHERE scope = 'pipeline'"),
    ("10", "jobs whose map changes the volume tenfold or more", 0.13,
     "SELECT avg((ratio >= 10 OR ratio <= 0.1)::INT) FROM ratios WHERE scope = 'map'"),
    ("10", "jobs whose filter drops over 10 % of the bytes", 0.23,
     "SELECT avg((ratio < 0.9)::INT) FROM ratios WHERE scope = 'filter'"),
    ("10", "jobs whose filter drops over half of the bytes", 0.08,
     "SELECT avg((ratio < 0.5)::INT) FROM ratios WHERE scope = 'filter'"),
    ("10", "jobs whose filter drops under 1 % of the bytes", 0.70,
     "SELECT avg((ratio > 0.99)::INT) FROM ratios WHERE scope = 'filter'"),
    ("11", "pipelines that run more than once in an hour", 0.75,
     "SELECT avg((runs > 1)::INT) FROM hours"),
    ("11", "pipelines that run more than 100 times in an hour", 0.05,
     "SELECT avg((runs > 100)::INT) FROM hours"),
    ("12", "runs of the tenth of the pipelines that runs most", 0.77,
     """SELECT sum(runs) FILTER (place <= (SELECT ceil(count(*) / 10) FROM ranked)) / sum(runs)
        FROM ranked"""),
    ("12", "compute of the tenth of the pipelines that runs most", 0.72,
     """SELECT sum(compute) FILTER (place <= (SELECT ceil(count(*) / 10) FROM ranked))
             / sum(compute) FROM ranked"""),
    ("12", "pipelines that several jobs run", 0.10, "SELECT avg((jobs > 1)::INT) FROM ranked"),
    ("12", "pipelines that over 25 jobs run", 0.01, "SELECT avg((jobs > 25)::INT) FROM ranked"),
    ("5.1", "jobs with one of the ten commonest combinations of operators", 0.75,
     """SELECT count(DISTINCT job) FILTER (operators IN (
            SELECT operators FROM by_job GROUP BY operators ORDER BY count(*) DESC, operators
            LIMIT 10)) / count(DISTINCT job) FROM by_job"""),
)  # fmt: skip
"""Figure, statement, the paper's value, and the query for these runs."""
# Shares of bytes in figure 9, and of the pipelines that use an operator (5.1).
BYTES: Final = {
    "Map": 0.169, "Batch": 0.146, "Prefetch": 0.141, "Repeat": 0.123, "Zip": 0.096,
    "Read from memory": 0.092, "Read from storage": 0.074, "Interleave": 0.073, "Shuffle": 0.044,
    "Filter": 0.016, "Read from remote": 0.013, "Unbatch": 0.009, "Cache": 0.004, "Other": 0.001,
}  # fmt: skip
USED: Final = {"Interleave": 0.77, "Prefetch": 0.87, "Cache": 0.19}


class Figures(NamedTuple):
    """The figures of the paper, and its statements beside those about these runs.

    ``figure_1``: quantiles over jobs of the share of compute that is spent on input.
    ``figure_2``: quantiles over jobs of the bytes read.
    ``figure_9``: by kind of operator, the share of all bytes produced, and of pipelines with it.
    ``figure_10``: quantiles over jobs of bytes produced per byte read: of pipelines, maps, filters.
    ``figure_11``: by hour, the share of pipelines that run more than 1, 10 and 100 times.
    ``figure_12``: cumulative runs and compute of the pipelines that run most, by their share.
    ``combinations``: of operators, by the jobs that have them.
    ``headlines``: figure, statement, value of these runs (null if unknown) and of the paper.
    """

    figure_1: pa.Table
    figure_2: pa.Table
    figure_9: pa.Table
    figure_10: pa.Table
    figure_11: pa.Table
    figure_12: pa.Table
    combinations: pa.Table
    headlines: pa.Table


def figures_of(database: Any) -> Figures:
    """Return the figures of the runs in a connection to DuckDB that has the views of a fleet."""
    for statement in (KINDS, SPENT, RATIOS, HOURS, RANKED, BY_JOB):
        database.execute(statement)
    found = {name: database.sql(sql).to_arrow_table() for name, sql in DRAWN.items()}
    return Figures(**found, headlines=_headlines(database, found["figure_9"]))


def _headlines(database: Any, figure_9: pa.Table) -> pa.Table:
    """Return the statements of the paper, with the values of these runs."""
    rows = [
        (figure, text, database.sql(sql).fetchall()[0][0], paper)
        for figure, text, paper, sql in STATEMENTS
    ]
    kinds = {row["family"]: row for row in figure_9.to_pylist()}
    for family, paper in BYTES.items():
        share = kinds[family]["share"] if family in kinds else 0.0
        rows.append(("9", f"bytes produced by {family}", share, paper))
    for family, paper in USED.items():
        pipelines = kinds[family]["pipelines"] if family in kinds else 0.0
        rows.append(("9", f"pipelines with {family}", pipelines, paper))
    names = [("figure", pa.string()), ("statement", pa.string())]
    schema = pa.schema([*names, ("value", pa.float64()), ("paper", pa.float64())])
    return pa.Table.from_pylist(
        [dict(zip(schema.names, each, strict=True)) for each in rows], schema
    )
