"""The command ``dml fleet``: what recorded runs, jobs and pipelines cost."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq

from dml import fleet as room
from dml.base.amounts import counted
from dml.base.ownership import make_folders
from dml.cli.output import Output, json_option
from dml.fleet.compaction import SETTLED_S, compact
from dml.fleet.fleet import Fleet
from dml.fleet.table_text import grid_of

RUNS = ("run", "started", "status", "rows", "bytes", "seconds", "cpu_s", "consumer_s", "pipeline")
JOBS = ("job", "started", "runs", "pipelines", "failed", "rows", "bytes_read", "seconds", "cpu_s",
        "process_cpu_s", "host_class")  # fmt: skip
PIPELINES = ("fleet_fingerprint", "runs", "jobs", "failed", "rows", "bytes_read", "seconds",
             "cpu_s", "consumer_s", "host_class", "pipeline")  # fmt: skip
SHARED = ("prefix", "operator", "runs", "computed", "jobs", "pipelines", "cpu_s",
          "repeated_cpu_s", "rows", "bytes", "host_class")  # fmt: skip
COMPARED = ("operator", "a_rows", "b_rows", "a_bytes", "b_bytes", "a_seconds", "b_seconds",
            "a_cpu_s", "b_cpu_s", "cpu_ratio")  # fmt: skip
ALL = 10_000
HEADLINES = ("figure", "statement", "value", "paper")
EXPORTED = ("runs", "operators", "notes")


def of_fleet(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option that names the telemetry folder, and ``--json``, to ``command``."""
    root = click.option("--root", metavar="PATH", help="The telemetry folder; else the user's.")
    made: Callable[..., Any] = click.pass_obj(command)
    return root(json_option(made))


limit_option = click.option("--limit", type=click.IntRange(1), default=20, show_default=True)


@click.group()
def fleet() -> None:
    """Show what recorded runs, jobs and pipelines cost."""


@fleet.command()
@limit_option
@of_fleet
def runs(output: Output, *, limit: int, root: str | None) -> None:
    """List the last runs, the latest first."""
    found = _opened(output, root)
    table = found.query("SELECT * FROM runs ORDER BY started DESC NULLS LAST, run")
    _answer(output, found, table, RUNS, limit)


@fleet.command()
@limit_option
@of_fleet
def jobs(output: Output, *, limit: int, root: str | None) -> None:
    """List the last jobs (processes that ran pipelines), the latest first."""
    found = _opened(output, root)
    _answer(output, found, found.jobs().sort_by([("started", "descending")]), JOBS, limit)


@fleet.command()
@limit_option
@of_fleet
def pipelines(output: Output, *, limit: int, root: str | None) -> None:
    """List the pipelines that took most processor time; the same program is one pipeline."""
    found = _opened(output, root)
    _answer(output, found, found.pipelines(), PIPELINES, limit)


@fleet.command()
@limit_option
@of_fleet
def shared(output: Output, *, limit: int, root: str | None) -> None:
    """List what several runs computed alike, and the processor time that a cache would save."""
    found = _opened(output, root)
    _answer(output, found, found.shared(), SHARED, limit)


@fleet.command()
@of_fleet
def figures(output: Output, *, root: str | None) -> None:
    """Compare the fleet with that of the tf.data study: what its jobs read, spend and repeat."""
    found = _opened(output, root)
    drawn = found.figures()
    value = {
        name: [{key: _plain(each) for key, each in row.items()} for row in table.to_pylist()]
        for name, table in drawn._asdict().items()
    }
    output.answer(value, lambda: "\n".join(grid_of(drawn.headlines, HEADLINES).lines()))


@fleet.command()
@click.argument("name", metavar="RUN")
@of_fleet
def run(output: Output, *, name: str, root: str | None) -> None:
    """Show one run: its operators, waits and warnings, as ds.stats() did. RUN may be shortened."""
    found = _opened(output, root).run(name)
    value = {**found.summary, "operators": found.records, "warnings": found.warnings}
    output.answer(value, lambda: str(found))


@fleet.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@of_fleet
def compare(output: Output, *, a: str, b: str, root: str | None) -> None:
    """Compare two runs, or two pipelines, by operator. A and B are names or their beginnings."""
    found = _opened(output, root)
    _answer(output, found, found.compare(a, b), COMPARED, ALL)


@fleet.command()
@click.option("--out", metavar="FILE", default="fleet.html", show_default=True)
@of_fleet
def report(output: Output, *, out: str, root: str | None) -> None:
    """Write one HTML page with tables and charts, which needs no network."""
    path = _opened(output, root).report(out)
    output.answer({"path": str(path)}, lambda: str(path))


@fleet.command()
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@of_fleet
def export(output: Output, *, folder: Path, root: str | None) -> None:
    """Write the tables of runs, operators and notes to Parquet files in a new folder."""
    if folder.exists():
        raise click.UsageError(f"{folder} exists already")
    found = _opened(output, root)
    make_folders(folder)
    files = {}
    for name in EXPORTED:
        table = found.query(f"SELECT * FROM {name}")  # noqa: S608 (names above)
        pq.write_table(table, folder / f"{name}.parquet", compression="zstd")
        files[str(folder / f"{name}.parquet")] = table.num_rows
    lines = [f"{path}  {counted(rows, 'row', 'rows')}" for path, rows in files.items()]
    output.answer({"files": files}, lambda: "\n".join(lines))


@fleet.command()
@click.option("--keep-days", type=click.IntRange(0), help="Remove runs that ended earlier.")
@click.option("--all", "everything", is_flag=True, help="Compact the events of the last hour, too.")
@of_fleet
def gc(output: Output, *, keep_days: int | None, everything: bool, root: str | None) -> None:
    """Compact event files to Parquet, and remove what is older than --keep-days.

    Any number of processes and machines may record runs, read or compact the folder meanwhile.
    """
    path = _opened(output, root).path
    settled_s = 0.0 if everything else SETTLED_S
    done = compact(path, retain_days=keep_days, settled_s=settled_s)
    for text in done.damaged:
        output.log(f"damaged: {text}")
    files = counted(done.event_files, "event file", "event files")
    text = f"{counted(done.runs, 'run', 'runs')} of {files} compacted"
    text += f", {counted(done.expired, 'old file', 'old files')} removed" if done.expired else ""
    output.answer(done._asdict(), lambda: f"{text} in {path}")


def _opened(output: Output, root: str | None) -> Fleet:
    """Return the fleet of a command; warnings about it go to standard error."""
    found = room.open(root)
    for text in found.warnings:
        output.log(f"damaged: {text}")
    return found


def _answer(
    output: Output, found: Fleet, table: pa.Table, columns: Sequence[str], limit: int
) -> None:
    """Print the first ``limit`` rows of a table as text, or as JSON with all columns."""
    shown = table.slice(0, limit)
    of = f" of {table.num_rows:,}" if table.num_rows > limit else ""
    last = f"{counted(shown.num_rows, 'row', 'rows')}{of} in {found.path}"
    rows = [{name: _plain(each) for name, each in row.items()} for row in shown.to_pylist()]
    value = {"root": str(found.path), "of": table.num_rows, "rows": rows}
    output.answer(value, lambda: "\n".join([*grid_of(shown, columns).lines(), last]))


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, dt.datetime) else value
