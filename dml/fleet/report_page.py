"""One HTML page shows what a fleet runs, what it costs, and what it computes more than once.

The page needs no server and no network: scripts are in the file, and a content policy forbids all
others. Names are shown as text, whatever is in them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from dml.base.amounts import counted, duration_text
from dml.base.display import escaped
from dml.fleet.figures import BYTES, Figures
from dml.fleet.table_text import ADVICE, PIPELINES, SHARED, grid_of
from dml.io.extras import extra

ROWS: Final = 15
"""Rows of each table."""
COLOURS: Final = ("#3b7dd8", "#e08a3c", "#4fa36a", "#9b6bc4")
MUTED: Final = "#888888"
"""Colour of axes, which is read on white and on black."""
POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)
STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 2200px; padding: 0 2em; }
h1 { font-size: 1.6em; margin-bottom: .1em; } h2 { font-size: 1.15em; margin: 2em 0 .4em; }
p { max-width: 60em; margin: .4em 0; } .muted { opacity: .7; }
table { font-variant-numeric: tabular-nums; font-size: .92em; }
thead th { border-bottom: 1px solid #8886; }
.charts { display: flex; flex-wrap: wrap; gap: 1.5em; }
figure { margin: 0; } figcaption { max-width: 26em; margin-bottom: .3em; }
"""
LAST: Final = ("run", "started", "status", "rows", "seconds", "waited_share", "slowest", "pipeline")


class Findings(NamedTuple):
    """What the page shows: where the runs are recorded, and the results of queries about them."""

    counts: pa.Table
    advice: pa.Table
    shared: pa.Table
    pipelines: pa.Table
    last_runs: pa.Table
    days: pa.Table
    figures: Figures
    path: str
    warnings: tuple[str, ...]


def report_html(found: Findings, live: str = "") -> str:
    """Return the page as HTML; ``live`` is HTML that a server adds, and may send requests to it."""
    policy = POLICY + "; connect-src 'self'" * bool(live)
    embed = extra("bokeh.embed", "fleet.report", "fleet")
    resources = extra("bokeh.resources", "fleet.report", "fleet")
    script, pictures = embed.components(dict(_charts(found.days, found.figures)))
    inline = resources.Resources(mode="inline", components=["bokeh"]).render()
    drawn = "".join(
        f"<figure><figcaption>{escaped(title)}</figcaption>{picture}</figure>"
        for title, picture in pictures.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Recorded runs</title><style>{STYLE}</style>{inline}</head>"
        f"<body>{live}{''.join(_sections(found))}"
        f'<h2>The fleet</h2><div class="charts">{drawn}</div>{script}</body></html>'
    )


def _sections(found: Findings) -> Iterator[str]:
    """Yield the texts and tables of the page."""
    counts = found.counts.to_pylist()[0]
    first, last = (_day(counts[name]) for name in ("first", "last"))
    yield f"<h1>Recorded runs</h1><p class=muted>{escaped(found.path)}, {first} to {last}</p>"
    yield from (f"<p>{escaped(each)}</p>" for each in _sentences(counts, found))
    yield from (f"<p>Damaged: {escaped(each)}</p>" for each in found.warnings[:ROWS])
    yield _table("What to do: money, processor and waiting time saved a week", found.advice, ADVICE)
    yield _table("Computed more than once", found.shared, SHARED)
    yield _table("Pipelines that took most processor time", found.pipelines, PIPELINES)
    yield _table("Last runs, and for how long the training loop waited", found.last_runs, LAST)


def _sentences(counts: dict[str, Any], found: Findings) -> Iterator[str]:
    """Yield what to know first."""
    runs = counted(counts["runs"], "run", "runs")
    jobs = counted(counts["jobs"], "job", "jobs")
    pipelines = counted(counts["pipelines"], "pipeline", "pipelines")
    spent: dict[str, float] = {}
    for row in found.days.to_pylist():
        spent[row["host_class"]] = spent.get(row["host_class"], 0.0) + 3600 * row["cpu_h"]
    took = ", ".join(f"{duration_text(each)} on {kind}" for kind, each in spent.items())
    yield f"{runs} of {pipelines} in {jobs} took processor time: {took or 'not recorded'}."
    parts = [("running", "without an end: going on, or killed today"), ("failed", "failed"),
             ("waiting", "let the training loop wait for over a tenth of their time")]  # fmt: skip
    for name, text in parts:
        if counts[name]:
            yield f"{counted(counts[name], 'run', 'runs')} {text}."


def _day(moment: dt.datetime | None) -> str:
    return "-" if moment is None else moment.date().isoformat()


def _table(title: str, table: pa.Table, columns: tuple[str, ...]) -> str:
    grid = grid_of(table.slice(0, ROWS), columns).html()
    more = f"<p class=muted>{table.num_rows - ROWS:,} more</p>" if table.num_rows > ROWS else ""
    return f"<h2>{escaped(title)}</h2>{grid}{more}" if table.num_rows else ""


# --------------------------------------------------------------------------------------- charts


def _charts(days: pa.Table, figures: Figures) -> Iterator[tuple[str, Any]]:
    """Yield the title and the chart of each figure."""
    yield "Processor hours a day, by class of machine", _days(days)
    yield "Bytes produced, by kind of operator; pale: the tf.data study", _kinds(figures.figure_9)
    jobs, pipelines = "part of jobs", "part of pipelines"
    yield (
        "Jobs by the part of their compute that is spent on input (figure 1)",
        _lines([_line(figures.figure_1, "ingest_share", "jobs")], "part of compute", jobs),
    )
    yield (
        "Jobs by the bytes that they read (figure 2)",
        _lines([_line(figures.figure_2, "bytes_read", "jobs")], "bytes", jobs, "log"),
    )
    ratios = figures.figure_10
    scopes = [
        _line(ratios.filter(pc.equal(ratios["scope"], scope)), "ratio", "jobs", scope)
        for scope in sorted(set(ratios["scope"].to_pylist()))
    ]
    yield (
        "Jobs by bytes produced per byte read (figure 10)",
        _lines(scopes, "bytes produced per byte read", jobs, "log"),
    )
    hours = [
        _line(figures.figure_11, "hour", f"above_{n}", f"over {n} times") for n in (1, 10, 100)
    ]
    yield (
        "Part of the pipelines that run over 1, 10, 100 times an hour (figure 11)",
        _lines(hours, "", pipelines, "datetime"),
    )
    most = [_line(figures.figure_12, "pipelines", name, name) for name in ("runs", "compute")]
    yield (
        "Runs and compute of the pipelines that run most (figure 12)",
        _lines(most, pipelines, "part of all"),
    )


Line = tuple[str, list[Any], list[Any]]


def _line(table: pa.Table, x: str, y: str, name: str = "") -> Line:
    """Return the name and the known points of a line; without a name, it has no legend."""
    known = table.select([x, y]).drop_null()
    return name, known[x].to_pylist(), known[y].to_pylist()


def _chart(**options: Any) -> Any:
    """Return an empty chart for light and dark pages."""
    plotting = extra("bokeh.plotting", "fleet.report", "fleet")
    chart = plotting.figure(width=420, height=280, toolbar_location=None, **options)
    chart.background_fill_alpha = chart.border_fill_alpha = 0
    chart.outline_line_color = None
    for axis in chart.axis:
        axis.axis_label_text_color = axis.major_label_text_color = MUTED
        axis.axis_line_color = axis.major_tick_line_color = axis.minor_tick_line_color = MUTED
    for grid in chart.grid:
        grid.grid_line_color, grid.grid_line_alpha = MUTED, 0.25
    return chart


def _lines(lines: Sequence[Line], x_title: str, y_title: str, scale: str = "linear") -> Any:
    """Return a chart of lines; the scale of x is "linear", "log" or "datetime"."""
    chart = _chart(x_axis_label=x_title, y_axis_label=y_title, y_range=(0, 1.02), x_axis_type=scale)
    for colour, (name, xs, ys) in zip(COLOURS, lines, strict=False):
        places = [max(x, 1e-9) for x in xs] if scale == "log" else xs
        label = {"legend_label": name} if name else {}
        chart.line(places, ys, line_width=2, color=colour, **label)
    _legend(chart, any(name for name, _, _ in lines))
    return chart


def _kinds(table: pa.Table) -> Any:
    """Return bars of the shares of bytes, over those of the paper."""
    shares = dict(zip(table["family"].to_pylist(), table["share"].to_pylist(), strict=True))
    names = [*reversed(BYTES)]
    chart = _chart(y_range=names, x_axis_label="part of all bytes")
    chart.hbar(y=names, right=[BYTES[each] for each in names], height=0.8, color=MUTED, alpha=0.35)
    mine = [shares.get(each) or 0.0 for each in names]
    chart.hbar(y=names, right=mine, height=0.45, color=COLOURS[0])
    return chart


def _days(table: pa.Table) -> Any:
    """Return bars of processor hours a day, one above the other for each class of machine."""
    classes = sorted(set(table["host_class"].to_pylist()))
    days = sorted(set(table["day"].to_pylist()))
    hours = {(row["day"], row["host_class"]): row["cpu_h"] for row in table.to_pylist()}
    data: dict[str, list[Any]] = {"day": days}
    for number, kind in enumerate(classes):
        data[str(number)] = [hours.get((day, kind), 0.0) for day in days]
    chart = _chart(x_axis_type="datetime", y_axis_label="processor hours")
    chart.vbar_stack(
        [str(n) for n in range(len(classes))], x="day", width=0.8 * 86_400_000, source=data,
        color=[COLOURS[n % len(COLOURS)] for n in range(len(classes))], legend_label=classes,
    )  # fmt: skip
    _legend(chart, bool(classes))
    return chart


def _legend(chart: Any, shown: bool) -> None:  # noqa: FBT001 (one of two)
    """Move the legend below the chart, where it hides nothing."""
    if shown:
        legend = chart.legend[0]
        legend.background_fill_alpha = legend.border_line_alpha = 0
        legend.label_text_color = MUTED
        legend.orientation = "horizontal"
        chart.add_layout(legend, "below")
