"""The command ``dml fleet``: what recorded runs, jobs and pipelines cost."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq

from dml.base.amounts import counted
from dml.base.display import one_line
from dml.base.ownership import make_folders, own_file
from dml.cli.output import Output, json_option
from dml.errors import PlanError, worded
from dml.fleet.collector import LAYOUT, telemetry_root
from dml.fleet.compaction import SETTLED_S, compact
from dml.fleet.fleet import Fleet, open_fleet
from dml.fleet.page_server import PageServer
from dml.fleet.policy import promised
from dml.fleet.table_text import ADVICE, PIPELINES, SHARED, grid_of

RUNS = ("run", "started", "status", "rows", "bytes", "seconds", "cpu_s", "consumer_s", "pipeline")
JOBS = ("job", "started", "runs", "pipelines", "failed", "rows", "bytes_read", "seconds", "cpu_s",
        "process_cpu_s", "host_class")  # fmt: skip
COMPARED = ("operator", "a_rows", "b_rows", "a_bytes", "b_bytes", "a_seconds", "b_seconds",
            "a_cpu_s", "b_cpu_s", "cpu_ratio")  # fmt: skip
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
    ordered = "SELECT * FROM runs ORDER BY started DESC NULLS LAST, run LIMIT $limit"
    count = found.query("SELECT count(*) AS count FROM runs")["count"][0].as_py()
    _answer(output, found, found.query(ordered, {"limit": limit}), RUNS, limit, of=count)


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
@click.option("--apply", "applies", is_flag=True, help="Write the caches to the policy, too.")
@click.option("--core-hour", type=float, help="The price of an hour of a processor.")
@click.option("--accelerator-hour", type=float, help="That of an hour of a training loop.")
@click.option("--gb-month", type=float, help="That of storing a gigabyte for a month.")
@limit_option
@of_fleet
def advise(
    output: Output, *, limit: int, root: str | None, applies: bool, **prices: float | None
) -> None:
    """List what the runs waste and what would help, what saves most money a week first.

    With --apply, runs that record in the folder, and have autocache() or the option autocache=True,
    expect the reads that the list promises: "dml fleet applied" shows the effect.
    """
    given = {name: price for name, price in prices.items() if price is not None}
    found = _opened(output, root)
    _answer(output, found, found.advise(given), ADVICE, limit)
    if applies:
        path = found.apply(given)
        caches = counted(len(promised(found.path)), "cache", "caches")
        output.log(f"{caches} in the policy {path}")


@fleet.command()
@limit_option
@of_fleet
def applied(output: Output, *, limit: int, root: str | None) -> None:
    """List what each cache of the policy was to save in a week, and what it has saved since."""
    found = _opened(output, root)
    effects = found.applied()
    _answer(output, found, effects, effects.column_names, limit)


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
    """Compare runs, pipelines or weeks (2026-W48), by operator. Names may be shortened."""
    found = _opened(output, root)
    _answer(output, found, found.compare(a, b), COMPARED)


@fleet.command()
@click.option("--out", metavar="FILE", default="fleet.html", show_default=True)
@of_fleet
def report(output: Output, *, out: str, root: str | None) -> None:
    """Write one HTML page with tables and charts, which needs no network."""
    path = _opened(output, root).report(out)
    output.answer({"path": str(path)}, lambda: str(path))


@fleet.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="0.0.0.0: all machines.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8788, show_default=True)
@of_fleet
def serve(output: Output, *, host: str, port: int, root: str | None) -> None:
    """Serve the page of "report", and the runs that go on, to browsers; Ctrl-C ends it."""
    path = _opened(output, root).path
    try:
        server = PageServer(path, host, port)
    except OSError as error:
        raise PlanError(
            "the page cannot be served",
            at=f"{host}:{port}",
            why=worded(error),
            try_="another --host or --port",
        ) from None
    output.answer({"url": server.url}, lambda: server.url)
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


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
        with open(folder / f"{name}.parquet", "wb", opener=own_file) as file:
            pq.write_table(table, file, compression="zstd")
        files[str(folder / f"{name}.parquet")] = table.num_rows
    lines = [f"{path}  {counted(rows, 'row', 'rows')}" for path, rows in files.items()]
    output.answer({"files": files}, lambda: "\n".join(lines))


@fleet.command()
@click.option("--keep-days", type=click.IntRange(0, 36_500), help="Remove runs that ended earlier.")
@click.option("--all", "everything", is_flag=True, help="Compact the events of the last hour, too.")
@of_fleet
def gc(output: Output, *, keep_days: int | None, everything: bool, root: str | None) -> None:
    """Compact event files to Parquet, and remove what is older than --keep-days.

    Any number of processes and machines may record runs, read or compact the folder meanwhile.
    """
    path = telemetry_root(root)
    if path is None or not (path / LAYOUT).is_dir():
        raise PlanError("there is no telemetry in this folder", at=str(path), try_="--root")
    settled_s = 0.0 if everything else SETTLED_S
    try:
        done = compact(path, retain_days=keep_days, settled_s=settled_s)
    except OSError as error:
        raise PlanError("the folder cannot be compacted", at=str(path), why=worded(error)) from None
    for text in done.damaged:
        output.log(f"damaged: {one_line(text)}")
    if done.busy:
        output.answer(done._asdict(), lambda: f"another process compacts {path}")
        return
    files = counted(done.event_files, "event file", "event files")
    text = f"{counted(done.runs, 'run', 'runs')} of {files} compacted"
    text += f", {counted(done.expired, 'old file', 'old files')} removed" if done.expired else ""
    output.answer(done._asdict(), lambda: f"{text} in {path}")


def _opened(output: Output, root: str | None) -> Fleet:
    """Return the fleet of a command; when it ends, warnings go to standard error."""
    found = open_fleet(root)
    click.get_current_context().call_on_close(partial(_warn, output, found))
    return found


def _warn(output: Output, found: Fleet) -> None:
    for text in found.warnings:
        output.log(f"damaged: {one_line(text)}")


def _answer(  # noqa: PLR0917 (what is printed, and how much of it)
    output: Output,
    found: Fleet,
    table: pa.Table,
    columns: Sequence[str],
    limit: int | None = None,
    of: int | None = None,
) -> None:
    """Print the first ``limit`` rows of a table as text, or as JSON with all columns."""
    whole = table.num_rows if of is None else of
    shown = table.slice(0, limit)
    rest = f" of {whole:,}" if whole > shown.num_rows else ""
    last = f"{counted(shown.num_rows, 'row', 'rows')}{rest} in {found.path}"
    rows = [{name: _plain(each) for name, each in row.items()} for row in shown.to_pylist()]
    value = {"root": str(found.path), "of": whole, "rows": rows}
    output.answer(value, lambda: "\n".join([*grid_of(shown, columns).lines(), last]))


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, dt.datetime) else value
