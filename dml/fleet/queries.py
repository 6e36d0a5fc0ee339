"""The queries of a fleet, in DuckDB's SQL; figures of different classes of machine stay apart."""

from __future__ import annotations

from typing import Final

# A sum of integers has 128 bits in DuckDB, which no other program reads as an integer.
TOTAL: Final = "CREATE MACRO total(amount) AS try_cast(sum(amount) AS BIGINT)"
WEEK: Final = "CREATE MACRO week(moment) AS strftime(moment, '%G-W%V')"
JOINED: Final = """
    CREATE VIEW operators AS
    SELECT numbers.*, plans.* EXCLUDE (plan, ordinal)
    FROM numbers LEFT JOIN plans USING (plan, ordinal)
"""
OPERATORS: Final = """
    SELECT * FROM operators WHERE $run IS NULL OR run = $run ORDER BY run, ordinal, worker
"""
JOBS: Final = """
    SELECT job, host_class, min(started) AS started, max(finished) AS finished,
           count(*) AS runs, count(DISTINCT fleet_fingerprint) AS pipelines,
           count(*) FILTER (status = 'failed') AS failed,
           total(rows) AS rows, total(bytes) AS bytes, total(bytes_read) AS bytes_read,
           sum(seconds) AS seconds, sum(cpu_s) AS cpu_s, sum(process_cpu_s) AS process_cpu_s,
           sum(consumer_s) AS consumer_s, max(peak_bytes) AS peak_bytes
    FROM runs GROUP BY ALL ORDER BY started, job
"""
PIPELINES: Final = """
    SELECT fleet_fingerprint, host_class, any_value(pipeline) AS pipeline,
           count(*) AS runs, count(DISTINCT job) AS jobs,
           count(*) FILTER (status = 'failed') AS failed,
           min(started) AS first, max(started) AS last,
           total(rows) AS rows, total(bytes) AS bytes, total(bytes_read) AS bytes_read,
           sum(seconds) AS seconds, sum(cpu_s) AS cpu_s, sum(consumer_s) AS consumer_s
    FROM runs GROUP BY fleet_fingerprint, host_class
    ORDER BY cpu_s DESC NULLS LAST, fleet_fingerprint
"""
# Sums by plan come first: plans are few, and their prefixes are joined with the sums.
_COSTS: Final = """
    WITH known AS (
        SELECT *, coalesce(host_class, '') AS machine, coalesce(data_fingerprint, '') AS data
        FROM runs
    ), costs AS (
        SELECT plan, coalesce(host_class, '') AS machine, coalesce(data_fingerprint, '') AS data,
               ordinal, sum(cpu_s) AS cpu_s, sum(seconds) AS seconds, sum(skipped) AS skipped,
               total(rows_out) AS rows, total(bytes_out) AS bytes
        FROM numbers GROUP BY ALL
    ), passes AS (
        SELECT plan, coalesce(host_class, '') AS machine, coalesce(data_fingerprint, '') AS data,
               ordinal, count(DISTINCT hash(run)) AS passed
        FROM numbers SEMI JOIN prefixes USING (plan, ordinal) WHERE rows_out > 0 GROUP BY ALL
    ), hits AS (
        SELECT run, plan, coalesce(host_class, '') AS machine,
               coalesce(data_fingerprint, '') AS data, min(ordinal) AS first_hit
        FROM numbers WHERE cache_hits > 0 GROUP BY ALL
    ), spent AS (
        SELECT prefix, machine, data, sum(c.cpu_s) AS cpu_s, sum(c.seconds) AS seconds,
               coalesce(sum(c.skipped), 0) AS skipped
        FROM prefixes AS p JOIN costs AS c ON c.plan = p.plan AND c.ordinal <= p.ordinal
        GROUP BY ALL
    ), spared AS (
        SELECT prefix, machine, data, count(*) AS cached
        FROM prefixes AS p JOIN hits AS h ON h.plan = p.plan AND h.first_hit <= p.ordinal
        GROUP BY ALL
    ), made AS (
        SELECT prefix, machine, data, coalesce(sum(passed), 0) AS passed,
               max(rows // greatest(passed, 1)) AS rows, max(bytes // greatest(passed, 1)) AS bytes
        FROM prefixes JOIN costs USING (plan, ordinal)
        LEFT JOIN passes USING (plan, machine, data, ordinal) GROUP BY ALL
    ), used AS (
        SELECT prefix, machine, data, any_value(operator) AS operator, any_value(place) AS place,
               count(*) AS runs, count(DISTINCT job) AS jobs,
               count(DISTINCT fleet_fingerprint) AS pipelines,
               any_value(fleet_fingerprint) AS pipeline,
               min(started) AS first, max(started) AS last
        FROM prefixes JOIN known USING (plan)
        WHERE plan IN (SELECT plan FROM costs) GROUP BY ALL HAVING count(*) > 1
    ), counted AS (
        SELECT *, CAST(greatest(0, passed - coalesce(cached, 0)) AS BIGINT) AS computed
        FROM used JOIN spent USING (prefix, machine, data) JOIN made USING (prefix, machine, data)
        LEFT JOIN spared USING (prefix, machine, data)
    )
"""
LONGER: Final = """
    SELECT DISTINCT a.prefix, b.prefix AS next
    FROM prefixes AS a JOIN prefixes AS b ON a.plan = b.plan AND b.place = a.place + 1
"""
SHARED: Final = f"""
    {_COSTS}, covered AS (
        SELECT longer.prefix, machine, data, max(runs) AS next_runs
        FROM ({LONGER}) AS longer JOIN used ON used.prefix = longer.next GROUP BY ALL
    )
    SELECT prefix, machine AS host_class, nullif(data, '') AS data, operator, runs, computed, jobs,
           pipelines, cpu_s, cpu_s * (1 - 1 / greatest(computed, 1)) AS repeated_cpu_s, seconds,
           rows, bytes, first, last
    FROM counted LEFT JOIN covered USING (prefix, machine, data)
    WHERE coalesce(next_runs, 0) < runs
    ORDER BY repeated_cpu_s DESC NULLS LAST, prefix, data
"""  # noqa: S608 (a query of this module)
PREFIX_COSTS: Final = f"""
    {_COSTS}
    SELECT prefix, machine AS host_class, nullif(data, '') AS data, operator, place, computed, jobs,
           pipelines, if(pipelines = 1, pipeline, NULL) AS pipeline, cpu_s, rows, bytes, skipped
    FROM counted ORDER BY place, prefix, machine, data
"""  # noqa: S608
"""Every prefix that several runs have, those with fewer operators first."""
# Operators of one kind are compared in their order; of several runs, the means count.
COMPARED: Final = """
    WITH chosen AS (
        SELECT 'a' AS side, run FROM runs WHERE $a IN (run, fleet_fingerprint, week(started))
        UNION ALL
        SELECT 'b', run FROM runs WHERE $b IN (run, fleet_fingerprint, week(started))
    ), did AS (
        SELECT side, run, operator, ordinal, sum(seconds) AS seconds, sum(cpu_s) AS cpu_s,
               sum(rows_out) AS rows, sum(bytes_out) AS bytes
        FROM chosen JOIN operators USING (run) GROUP BY ALL
    ), placed AS (
        SELECT *, row_number() OVER (PARTITION BY side, run, operator ORDER BY ordinal) AS nth
        FROM did
    ), means AS (
        SELECT side, operator, nth, min(ordinal) AS ordinal, avg(seconds) AS seconds,
               avg(cpu_s) AS cpu_s, avg(rows) AS rows, avg(bytes) AS bytes
        FROM placed GROUP BY ALL
    )
    SELECT coalesce(b.ordinal, a.ordinal) AS ordinal, operator,
           a.rows AS a_rows, b.rows AS b_rows, a.bytes AS a_bytes, b.bytes AS b_bytes,
           a.seconds AS a_seconds, b.seconds AS b_seconds, a.cpu_s AS a_cpu_s, b.cpu_s AS b_cpu_s,
           b.cpu_s / nullif(a.cpu_s, 0) AS cpu_ratio
    FROM (FROM means WHERE side = 'a') AS a
    FULL JOIN (FROM means WHERE side = 'b') AS b USING (operator, nth)
    ORDER BY ordinal, operator, nth
"""
RUN: Final = "SELECT * FROM runs WHERE starts_with(run, $start) LIMIT 2"
PIPELINE: Final = """
    SELECT DISTINCT fleet_fingerprint AS name FROM runs
    WHERE starts_with(fleet_fingerprint, $start) LIMIT 2
"""
NAMED: Final = f"""
    SELECT run AS name FROM runs WHERE starts_with(run, $start) UNION ({PIPELINE})
    UNION SELECT week(started) FROM runs WHERE starts_with(week(started), $start) LIMIT 2
"""  # noqa: S608 (a query of this module)
HISTORY: Final = """
    SELECT run, started, status, epoch, rows, batches, bytes, bytes_read, seconds,
           rows / nullif(seconds, 0) AS rows_per_s, first_batch_s,
           consumer_s / nullif(seconds, 0) AS waited_share, cpu_s, peak_bytes,
           options->>'executor' AS executor, try_cast(options->>'workers' AS BIGINT) AS workers,
           versions->>'dml' AS version, host, host_class
    FROM runs WHERE fleet_fingerprint = $pipeline ORDER BY started DESC, run LIMIT $count
"""
RUNS_OF: Final = "SELECT count(*) AS runs FROM runs WHERE fleet_fingerprint = $pipeline"
DAYS: Final = """
    SELECT date_trunc('day', started)::TIMESTAMP AS day,
           coalesce(nullif(host_class, ''), 'unknown') AS host_class,
           coalesce(sum(cpu_s), 0) / 3600 AS cpu_h
    FROM runs WHERE started IS NOT NULL GROUP BY ALL ORDER BY day, host_class
"""
LAST_RUNS: Final = """
    WITH last AS (
        SELECT run, started, status, rows, seconds, consumer_s / nullif(seconds, 0) AS waited_share,
               pipeline
        FROM runs ORDER BY started DESC NULLS LAST, run LIMIT $count
    ), named AS (
        SELECT run, operator, sum(seconds) AS seconds
        FROM operators WHERE run IN (SELECT run FROM last) GROUP BY ALL
    ), slowest AS (
        SELECT run, arg_max(operator, seconds) AS slowest FROM named GROUP BY run
    )
    SELECT * FROM last LEFT JOIN slowest USING (run) ORDER BY started DESC NULLS LAST, run
"""
COUNTS: Final = """
    SELECT count(*) AS runs, count(DISTINCT job) AS jobs,
           count(DISTINCT fleet_fingerprint) AS pipelines, min(started) AS first,
           max(started) AS last, count(*) FILTER (status = 'failed') AS failed,
           count(*) FILTER (consumer_s > 0.1 * seconds) AS waiting,
           count(*) FILTER (finished IS NULL AND started > now() - INTERVAL 1 DAY) AS running
    FROM runs
"""
