"""Telemetry: events of runs are stored on disk, queried as tables, and learned from.

Collector(root).record(event)           # stored by a thread; never blocks or fails the run
dml.fleet.open(path).pipelines()        # what every pipeline costs, as an Arrow table
profile = learned(events, host_class)   # operator costs of one run, for later plans
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dml.fleet.fleet import Fleet


def open(path: str | os.PathLike[str] | None = None) -> Fleet:  # noqa: A001 (dml.fleet.open)
    """Return the runs recorded in a telemetry folder, by default in the user's own.

    The result has methods ``runs()``, ``jobs()``, ``pipelines()``, ``operators()``, ``run(name)``
    and ``query(sql)``. Raise PlanError if the folder has no telemetry, or DuckDB is missing.
    """
    from dml.fleet.fleet import open_fleet  # noqa: PLC0415 (a run needs no queries)

    return open_fleet(path)
