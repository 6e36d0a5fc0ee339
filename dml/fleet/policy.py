"""A policy file in the telemetry folder says which rows will be read often; ``autocache`` obeys.

``policy.json`` has, for each prefix that advice would cache, how often a week it is computed, and
what the advice promised. A run decides as usual whether its rows are stored: the file only adds the
reads to come to that decision, so it never changes a byte. A file that another user may write is
not obeyed.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from dml.base.ownership import is_own
from dml.fleet.collector import replacing

FILE: Final = "policy.json"
VERSION: Final = 1
MOST_BYTES: Final = 1 << 20
MOST_READS: Final = 1e9
MOST_CACHES: Final = 4_000
FUNCTIONS: Final = ("MapRows", "LiftedMap", "MapBatches", "FlatMap", "FilterRows", "LiftedFilter")
PROMISED: Final = ("prefix", "operator", "reads", "cpu_s", "stored_bytes")
CACHES: Final = ("cache-prefix", "cache-epochs")


@dataclass(frozen=True, eq=False)
class CachePolicy:
    """How often a week the rows of prefixes will be read, by name."""

    reads: Mapping[str, float]


NO_POLICY: Final = CachePolicy({})
_READ: dict[Path, tuple[object, CachePolicy]] = {}


def write_policy(root: Path, advice: Iterable[Mapping[str, Any]], weeks: float) -> Path:
    """Write the caches among the rows of ``advice`` as the policy; return the path of the file.

    Only those after functions that are called count, where ``autocache`` can store rows. The runs
    of a row took place in ``weeks`` weeks; the rows of a prefix on several data are added. Raise
    OSError as the file system does.
    """
    caches: dict[str, dict[str, Any]] = {}
    for row in advice:
        if row["kind"] in CACHES and row["operator"] in FUNCTIONS and len(caches) < MOST_CACHES:
            fresh = {**{name: row.get(name) for name in PROMISED}, "reads": 0.0}
            caches.setdefault(row["prefix"], fresh)["reads"] += row["runs"] / weeks
    path = root / FILE
    with replacing(root, path) as file:
        whole = {"version": VERSION, "written": time.time(), "caches": [*caches.values()]}
        json.dump(whole, file, indent=1)
    return path


def read_policy(root: Path | None) -> CachePolicy:
    """Return the policy of a telemetry folder; the same object until its file changes."""
    if root is None:
        return NO_POLICY
    path = root / FILE
    try:
        seen = path.stat()
    except OSError:
        return NO_POLICY
    state = (seen.st_mtime_ns, seen.st_size, seen.st_ino, seen.st_mode, seen.st_uid)
    known = _READ.get(path)
    if known is None or known[0] != state:
        reads = {row["prefix"]: row["reads"] for row in promised(root)}
        known = _READ[path] = state, CachePolicy(reads)
    return known[1]


def promised(root: Path) -> list[dict[str, Any]]:
    """Return the entries of a folder's policy, each with the time when it was written.

    The list is empty if the file is missing, damaged, of another version, or not this user's own.
    """
    path = root / FILE
    try:
        if not is_own(path) or path.stat().st_size > MOST_BYTES:
            return []
        whole = json.loads(path.read_text(encoding="ascii"))
        if whole["version"] != VERSION:
            return []
        rows = [{name: row.get(name) for name in PROMISED} for row in whole["caches"]]
        written = float(whole["written"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    return [{**row, "written": written} for row in rows if _is_valid(row)]


def _is_valid(row: Mapping[str, Any]) -> bool:
    reads = row["reads"]
    named = isinstance(row["prefix"], str)
    return named and type(reads) in (int, float) and 0 < reads < MOST_READS and math.isfinite(reads)


# --------------------------------------------------------------------------------------- effects

PROMISES: Final = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("prefix", "operator")),
        *(pa.field(name, pa.float64()) for name in ("cpu_s", "stored_bytes", "written")),
    ]
)
# The cache of a prefix is the operator above its last one.
EFFECT: Final = """
    WITH hits AS (
        SELECT run, min(ordinal) AS first_hit FROM numbers WHERE cache_hits > 0 GROUP BY run
    ), uses AS (
        SELECT p.prefix, p.ordinal, r.run, r.host_class, r.started, first_hit,
               epoch(r.started) > written AS since
        FROM policy_entries JOIN prefixes AS p USING (prefix) JOIN runs AS r USING (plan)
        LEFT JOIN hits USING (run)
    ), spent AS (
        SELECT prefix, u.run, any_value(u.host_class) AS host_class, any_value(since) AS since,
               any_value(first_hit) IS NULL AS computed,
               coalesce(any_value(first_hit = u.ordinal + 1), false) AS cached,
               coalesce(sum(cpu_s) FILTER (n.ordinal <= u.ordinal), 0) AS below_s,
               coalesce(sum(cpu_s) FILTER (n.ordinal = first_hit), 0) AS read_s
        FROM uses AS u JOIN numbers AS n USING (run) GROUP BY prefix, u.run
    ), typical AS (
        SELECT prefix, host_class, median(below_s) AS row_s FROM spent WHERE computed GROUP BY ALL
    ), saved AS (
        SELECT prefix, count(*) AS runs, count(*) FILTER (cached) AS cached,
               sum(row_s - below_s - read_s) FILTER (cached) AS saved_s
        FROM spent LEFT JOIN typical USING (prefix, host_class) WHERE since GROUP BY prefix
    ), span AS (
        SELECT max(epoch(started)) AS until FROM runs
    )
    SELECT prefix, operator, promised.cpu_s AS promised_cpu_s,
           coalesce(runs, 0)::BIGINT AS runs, coalesce(cached, 0)::BIGINT AS cached,
           saved_s / greatest(1.0, (until - written) / 604800) AS saved_cpu_s,
           stored_bytes AS promised_bytes
    FROM policy_entries AS promised LEFT JOIN saved USING (prefix), span
    ORDER BY promised_cpu_s DESC, prefix
"""
EFFECTS: Final = pa.schema(
    [
        pa.field("prefix", pa.string()),
        pa.field("operator", pa.string()),
        pa.field("promised_cpu_s", pa.float64()),
        pa.field("runs", pa.int64()),
        pa.field("cached", pa.int64()),
        pa.field("saved_cpu_s", pa.float64()),
        pa.field("promised_bytes", pa.float64()),
    ]
)


def effects(database: Any, promised: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return what each entry of a policy promised, beside what runs since then did not spend.

    ``database`` is a connection of DuckDB that has the views of a fleet.
    """
    entries = pa.Table.from_pylist([*promised], PROMISES)
    database.register("policy_entries", entries)
    return database.sql(EFFECT).to_arrow_table().cast(EFFECTS)
