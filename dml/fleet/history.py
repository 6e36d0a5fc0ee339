"""The history of one pipeline: its recorded runs, what they took, and how long training waited."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from dml.base.amounts import counted, duration_text
from dml.base.display import Displayed, Grid, escaped
from dml.fleet.table_text import cell_text, grid_of

COLUMNS: Final = ("run", "started", "status", "epoch", "rows", "seconds", "rows_per_s",
                  "waited_share", "cpu_s", "executor", "workers", "version")  # fmt: skip
WIDTH, HEIGHT, TOP, WIDEST = 720, 130, 22, 36  # in pixels
WORK, WAIT, ENDED_EARLY = "#3b82f6", "#e08a3c", "#9aa0a6"
LEGEND: Final = ((WORK, "the training loop worked"), (WAIT, "it waited for rows"),
                 (ENDED_EARLY, "stopped or failed"))  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class RunHistory(Displayed):
    """The last recorded runs of a pipeline, the latest first, of ``of`` runs in all.

    ``runs`` is an Arrow table with one row per run. In a notebook, a picture has a bar for each:
    the seconds per 1,000 rows, of which the training loop waited the lower part.
    """

    runs: pa.Table
    of: int

    def _parts(self) -> Iterator[str | Grid]:
        rows = self.runs.to_pylist()
        if not rows:
            yield "no recorded run of this pipeline"
            return
        whole = [row["seconds"] for row in rows if row["status"] == "finished"]
        took = f"; median of finished runs {duration_text(statistics.median(whole))}" * bool(whole)
        yield f"{counted(self.of, 'recorded run', 'recorded runs')}{took}"
        yield grid_of(self.runs, COLUMNS)

    def _repr_html_(self) -> str:
        return _picture(self.runs.to_pylist()) + Displayed._repr_html_(self)


def _picture(rows: Sequence[dict[str, Any]]) -> str:
    """Return an SVG image of runs with rows, the oldest left; "" without any."""
    timed = [row for row in reversed(rows) if row["rows"] and row["seconds"]]
    if not timed:
        return ""
    costs = [1000 * row["seconds"] / row["rows"] for row in timed]
    step = min(WIDEST, WIDTH / len(timed))
    bars = "".join(
        _bar(row, place * step, step * 0.8, cost / max(costs))
        for place, (row, cost) in enumerate(zip(timed, costs, strict=True))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT + 24}"'
        f' viewBox="0 0 {WIDTH} {HEIGHT + 24}" style="max-width:100%;height:auto" font-size="12"'
        f' fill="currentColor" role="img"><text x="0" y="12" opacity=".7">'
        f"seconds per 1,000 rows, at most {duration_text(max(costs))}</text>{bars}{_legend()}</svg>"
    )


def _bar(row: dict[str, Any], x: float, width: float, part: float) -> str:
    """Return the bar of a run; ``part`` is its height as part of the highest."""
    height = part * (HEIGHT - TOP)
    waited = height * min(1.0, row["waited_share"] or 0.0)
    colour = WORK if row["status"] == "finished" else ENDED_EARLY
    said = ", ".join(
        f"{name} {cell_text(name, row[name])}"
        for name in ("run", "started", "status", "rows", "seconds", "waited_share")
    )
    parts = ((HEIGHT - height, height - waited, colour), (HEIGHT - waited, waited, WAIT))
    drawn = "".join(
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{tall:.1f}" fill="{fill}"/>'
        for y, tall, fill in parts
    )
    return f"<g><title>{escaped(said)}</title>{drawn}</g>"


def _legend() -> str:
    return "".join(
        f'<rect x="{place * 190}" y="{HEIGHT + 10}" width="10" height="10" fill="{colour}"/>'
        f'<text x="{place * 190 + 16}" y="{HEIGHT + 19}" opacity=".7">{text}</text>'
        for place, (colour, text) in enumerate(LEGEND)
    )
