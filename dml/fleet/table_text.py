"""Tables of a fleet are written as text here; a column's name says what its numbers are."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from dml.base.amounts import ABSENT, bytes_text, count_text, duration_text
from dml.base.display import Grid

DIGEST_LETTERS: Final = 12
"""Letters of a fingerprint or name of a run that are shown: enough to identify it."""
NAMES: Final = ("run", "job", "plan", "prefix", "data")
PIPELINES: Final = ("fleet_fingerprint", "runs", "jobs", "failed", "rows", "bytes_read", "seconds",
                    "cpu_s", "consumer_s", "host_class", "pipeline")  # fmt: skip
SHARED: Final = ("prefix", "operator", "runs", "computed", "jobs", "pipelines", "cpu_s",
                 "repeated_cpu_s", "rows", "bytes", "host_class", "data")  # fmt: skip
ADVICE: Final = ("kind", "money", "cpu_s", "wait_s", "stored_bytes", "confidence", "what", "remedy",
                 "fleet_fingerprint", "prefix", "host_class")  # fmt: skip
"""The columns of the results of a fleet that are shown."""
UNITS: Final[Mapping[str, Callable[[Any], str]]] = {
    "bytes": bytes_text,
    "bytes_read": bytes_text,
    "per_s": count_text,
    "_s": duration_text,
    "seconds": duration_text,
    "ratio": "{:.2f}".format,
    "money": lambda value: f"{value:,.2f}" if value >= 1 else f"{value:.2g}",
}
"""What the end of a column's name says about its numbers; the first that fits counts."""
SHARES: Final = ("share", "waited_share", "value", "paper")
TITLES: Final = {
    "fleet_fingerprint": "fingerprint",
    "consumer_s": "waited",
    "wait_s": "waiting",
    "rows_per_s": "rows/s",
    "money": "money a week",
    "stored_bytes": "stored",
    "waited_share": "waited",
}


def grid_of(table: pa.Table, columns: Sequence[str]) -> Grid:
    """Return some columns of a table as texts, with a header."""
    header = [TITLES.get(name, name.removesuffix("_s").replace("_", " ")) for name in columns]
    rows = [[cell_text(name, row[name]) for name in columns] for row in table.to_pylist()]
    kinds = [table.schema.field(name).type for name in columns]
    texts = {place for place, kind in enumerate(kinds) if pa.types.is_string(kind)}
    return Grid([header, *rows], texts)


def cell_text(column: str, value: Any) -> str:
    """Return one cell as text: a size, a duration, a moment (UTC), a share, or a count."""
    if value is None:
        return ABSENT
    if isinstance(value, dt.datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, str):
        if column in NAMES or column.endswith("fingerprint"):
            return value[:DIGEST_LETTERS]
        return " > ".join(reversed(value.split("\n")))
    if column in SHARES:
        return f"{value:.1%}"
    return next((text for end, text in UNITS.items() if column.endswith(end)), count_text)(value)
