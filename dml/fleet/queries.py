"""The queries of a fleet, in DuckDB's SQL; figures of different classes of machine stay apart."""

from __future__ import annotations

from typing import Final

# A sum of integers has 128 bits in DuckDB, which no other program reads as an integer.
TOTAL: Final = "CREATE MACRO total(amount) AS try_cast(sum(amount) AS BIGINT)"
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
SHARED: Final = """
    WITH known AS (
        SELECT * REPLACE (coalesce(host_class, '') AS host_class) FROM runs
    ), costs AS (
        SELECT plan, coalesce(host_class, '') AS host_class, ordinal, sum(cpu_s) AS cpu_s,
               sum(seconds) AS seconds, count(DISTINCT run) FILTER (rows_out > 0) AS passed,
               count(DISTINCT run) FILTER (cache_hits > 0) AS cached,
               total(rows_out) AS rows, total(bytes_out) AS bytes
        FROM numbers GROUP BY ALL
    ), spent AS (
        SELECT prefix, host_class, sum(c.cpu_s) AS cpu_s, sum(c.seconds) AS seconds
        FROM prefixes AS p JOIN costs AS c ON c.plan = p.plan AND c.ordinal <= p.ordinal
        GROUP BY ALL
    ), made AS (
        SELECT prefix, host_class, total(passed - cached) AS computed,
               max(rows // passed) AS rows, max(bytes // passed) AS bytes
        FROM prefixes JOIN costs USING (plan, ordinal) WHERE passed > 0 GROUP BY ALL
    ), used AS (
        SELECT prefix, host_class, any_value(operator) AS operator, count(*) AS runs,
               count(DISTINCT job) AS jobs, count(DISTINCT fleet_fingerprint) AS pipelines,
               min(started) AS first, max(started) AS last
        FROM prefixes JOIN known USING (plan) GROUP BY ALL
    ), longer AS (
        SELECT DISTINCT a.prefix, b.prefix AS next
        FROM prefixes AS a JOIN prefixes AS b ON a.plan = b.plan AND b.place = a.place + 1
    ), covered AS (
        SELECT longer.prefix, host_class, max(runs) AS next_runs
        FROM longer JOIN used ON used.prefix = longer.next GROUP BY ALL
    )
    SELECT prefix, host_class, operator, runs, computed, jobs, pipelines, cpu_s,
           cpu_s * greatest(0, 1 - 1 / greatest(computed, 1)) AS repeated_cpu_s, seconds,
           rows, bytes, first, last
    FROM used JOIN spent USING (prefix, host_class) JOIN made USING (prefix, host_class)
    LEFT JOIN covered USING (prefix, host_class)
    WHERE runs > 1 AND coalesce(next_runs, 0) < runs
    ORDER BY repeated_cpu_s DESC NULLS LAST, prefix
"""
# Operators of one kind are compared in their order; of several runs, the means count.
COMPARED: Final = """
    WITH chosen AS (
        SELECT 'a' AS side, run FROM runs WHERE run = $a OR fleet_fingerprint = $a
        UNION ALL
        SELECT 'b', run FROM runs WHERE run = $b OR fleet_fingerprint = $b
    ), counts AS (
        SELECT side, count(*) AS runs FROM chosen GROUP BY side
    ), sums AS (
        SELECT side, operator, ordinal, sum(o.seconds) / any_value(c.runs) AS seconds,
               sum(cpu_s) / any_value(c.runs) AS cpu_s, sum(rows_out) / any_value(c.runs) AS rows,
               sum(bytes_out) / any_value(c.runs) AS bytes
        FROM chosen JOIN operators AS o USING (run) JOIN counts AS c USING (side) GROUP BY ALL
    ), placed AS (
        SELECT *, row_number() OVER (PARTITION BY side, operator ORDER BY ordinal) AS nth FROM sums
    )
    SELECT coalesce(b.ordinal, a.ordinal) AS ordinal, operator,
           a.rows AS a_rows, b.rows AS b_rows, a.bytes AS a_bytes, b.bytes AS b_bytes,
           a.seconds AS a_seconds, b.seconds AS b_seconds, a.cpu_s AS a_cpu_s, b.cpu_s AS b_cpu_s,
           b.cpu_s / nullif(a.cpu_s, 0) AS cpu_ratio
    FROM (FROM placed WHERE side = 'a') AS a
    FULL JOIN (FROM placed WHERE side = 'b') AS b USING (operator, nth)
    ORDER BY ordinal, operator, nth
"""
RUN: Final = "SELECT * FROM runs WHERE starts_with(run, $start) LIMIT 2"
NAMED: Final = """
    SELECT run AS name FROM runs WHERE starts_with(run, $start)
    UNION SELECT fleet_fingerprint FROM runs WHERE starts_with(fleet_fingerprint, $start) LIMIT 2
"""
DAYS: Final = """
    SELECT date_trunc('day', started)::TIMESTAMP AS day,
           coalesce(host_class, 'unknown') AS host_class,
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
           count(*) FILTER (consumer_s > 0.1 * seconds) AS waiting, sum(cpu_s) AS cpu_s,
           count(*) FILTER (finished IS NULL AND started > now() - INTERVAL 1 DAY) AS running
    FROM runs
"""
