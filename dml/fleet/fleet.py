"""Query the runs of a telemetry store as tables, by DuckDB over its Parquet and event files."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa

from dml.base.host import cores
from dml.base.ownership import own_file
from dml.checks import some
from dml.errors import PlanError, worded
from dml.events import Event
from dml.fleet import queries
from dml.fleet.advice import Prices, advise, weeks_of
from dml.fleet.collector import LAYOUT, telemetry_root
from dml.fleet.compaction import SLICE_BYTES, TIMELESS, compact, events_bytes, undamaged
from dml.fleet.figures import Figures, figures_of
from dml.fleet.history import RunHistory
from dml.fleet.policy import effects, promised, write_policy
from dml.fleet.reader import is_damage, read_file
from dml.fleet.report import RunTable, run_table
from dml.fleet.report_page import ROWS, Findings, report_html
from dml.fleet.snapshot import Snapshot, TableFile, event_files, snapshot
from dml.fleet.tables import TelemetryTables, events_of, tables
from dml.io.extras import extra

T = TypeVar("T")
ANY: Final = "run, pipeline or week"
TABLES: Final = {
    "run": "fleet.runs()",
    "pipeline": "fleet.pipelines()",
    ANY: "fleet.runs(), or fleet.pipelines()",
}
"""What lists the names of each kind."""
FINGERPRINT_LETTERS: Final = 32
TRIES: Final = 8
"""Compactions that may take place while a store is opened."""


def open_fleet(path: str | os.PathLike[str] | None) -> Fleet:
    """Return the runs in the telemetry folder ``path``; None is the folder of the user.

    If event files have over ``SLICE_BYTES``, they are compacted first, where the folder may be
    written.
    """
    root = telemetry_root(None if path is None else os.fspath(path))
    if root is None:
        raise PlanError(
            "there is no telemetry folder", why="the user has no folder for it, or it is off",
            try_="dml.fleet.open(path)",
        )  # fmt: skip
    damaged: tuple[str, ...] = ()
    with contextlib.suppress(OSError):  # of a folder that this user may only read
        if events_bytes(root) > SLICE_BYTES:
            damaged = compact(root).damaged
    fleet = Fleet(root)
    fleet.warnings += damaged
    return fleet


class Fleet:
    """The runs of a telemetry folder, as they were when it was opened.

    Every result is an Arrow table, which ``dml.from_arrow`` makes a pipeline. ``warnings`` are
    texts on files that are damaged or gone; what they held is missing in all results. Figures that
    were not recorded are null, and costs are never added across classes of machine.
    """

    def __init__(self, root: Path) -> None:
        if not (root / LAYOUT).is_dir():
            raise PlanError(
                "there is no telemetry in this folder", at=str(root),
                why=f"it has no folder {LAYOUT}, which the first recorded run creates",
                try_="the folder of with_options(telemetry_dir=), or the default one",
            )  # fmt: skip
        self.path = root
        self.warnings: tuple[str, ...] = ()
        self._duckdb: Any = extra("duckdb", "dml.fleet.open", "fleet")
        self._snapshot, self._fresh = self._opened()
        try:
            self._connect(self._snapshot)
        except self._duckdb.Error:
            if not self._without_damage():
                raise

    def __repr__(self) -> str:
        return f"Fleet({str(self.path)!r}, {self._count('runs'):,} runs)"

    def runs(self) -> pa.Table:
        """Return one row per run, in order of their start."""
        return self.query("SELECT * FROM runs ORDER BY started, run")

    def jobs(self) -> pa.Table:
        """Return one row per job (a process that runs pipelines) and class of machine."""
        return self.query(queries.JOBS)

    def pipelines(self) -> pa.Table:
        """Return one row per pipeline and class of machine, those with most processor time first.

        Pipelines are the same if their ``fleet_fingerprint`` is: that of their operators and of the
        names of their files, without seeds.
        """
        return self.query(queries.PIPELINES)

    def shared(self) -> pa.Table:
        """Return what several runs computed alike: one row per prefix and class of machine.

        A prefix is the source of a pipeline with the steps above it, up to the first that draws
        random numbers or has further inputs. ``cpu_s`` is the processor time of all runs up to its
        last operator; ``computed`` of ``runs`` computed it, the others had it from a cache.
        ``repeated_cpu_s`` is what all but one of these took, if all took equally long: a cache
        after ``operator`` would save it. Runs with the same ``data`` read the same content; null
        means that this is not known, and only the names of files are the same. ``rows`` and
        ``bytes`` are those of one run at the end of the prefix. Of prefixes that the same runs
        have, the longest is returned. The costliest are first.
        """
        return self.query(queries.SHARED)

    def advise(self, prices: Mapping[str, float] | None = None) -> pa.Table:
        """Return what these runs waste, and what would help: what saves most money first.

        ``cpu_s`` (of one processor), ``wait_s`` (of training loops) and ``money`` are saved in a
        week like the recorded ones; ``stored_bytes`` are added to a store, or removed if negative.
        A cache pays from ``break_even_runs`` runs on. ``prices`` may have ``core_hour``,
        ``accelerator_hour`` (of the time that training loops wait) and ``gb_month`` (of storage),
        in one currency; advice that costs more than it saves is left out. ``docs/fleet.md`` lists
        the kinds.
        """
        of = Prices.of({} if prices is None else prices)
        applied = {each["prefix"] for each in promised(self.path)}
        return self._guarded(lambda: advise(self._database, of, applied))

    def apply(self, prices: Mapping[str, float] | None = None) -> Path:
        """Write the caches that ``advise(prices)`` names to the policy of the folder.

        Return its path, ``policy.json``. Later runs of this user that record here obey it: every
        ``autocache()`` of theirs, also those that ``with_options(autocache=True)`` adds, counts the
        reads that it expects. No result depends on it. Raise PlanError if the folder may not be
        written.
        """
        rows = self.advise(prices).to_pylist()
        try:
            return write_policy(self.path, rows, self._guarded(lambda: weeks_of(self._database)))
        except OSError as error:
            raise PlanError(
                "the policy cannot be written",
                at=str(self.path),
                why=worded(error),
                try_="the user who owns the folder",
            ) from None

    def applied(self) -> pa.Table:
        """Return what each cache of the policy was to save in a week, and what it has saved.

        ``promised_cpu_s`` is that of the advice. ``runs`` since then had these rows, ``cached`` of
        them from a cache; ``saved_cpu_s`` is the processor time, in a week, that these did not
        spend, less what reading took. It is null if no run computed the rows, and none was timed.
        """
        entries = [*promised(self.path)]
        return self._guarded(lambda: effects(self._database, entries))

    def history(self, pipeline: str, count: int = 20) -> RunHistory:
        """Return the last ``count`` runs of a pipeline, given its fingerprint or its start."""
        some("count", count, "history(count=20)")
        name = pipeline
        if len(pipeline) < FINGERPRINT_LETTERS:
            name = self._only(queries.PIPELINE, pipeline, "pipeline")["name"][0].as_py()
        found = self.query(queries.HISTORY, {"pipeline": name, "count": count})
        of = self.query(queries.RUNS_OF, {"pipeline": name})["runs"][0].as_py()
        return RunHistory(found, of)

    def operators(self, run: str | None = None) -> pa.Table:
        """Return one row per operator and worker of all runs, or of one."""
        chosen = None if run is None else self._run(run)
        return self.query(queries.OPERATORS, {"run": chosen})

    def compare(self, a: str, b: str) -> pa.Table:
        """Return what each operator did in ``a`` and in ``b``: rows, bytes, seconds.

        ``a`` and ``b`` are runs, or fingerprints of pipelines, or weeks (ISO: "2026-W48"), of whose
        runs the means count; names may be shortened. Operators of one kind are compared in their
        order. ``cpu_ratio`` is the processor time of ``b`` per that of ``a``; an operator that only
        one of them has is null in the columns of the other.
        """
        found = {"a": self._only(queries.NAMED, a, ANY), "b": self._only(queries.NAMED, b, ANY)}
        names = {side: each["name"][0].as_py() for side, each in found.items()}
        return self.query(queries.COMPARED, names)

    def run(self, run: str) -> RunTable:
        """Return the table that ``ds.stats()`` printed for a run, given its name or its start."""
        runs = self._only(queries.RUN, run, "run")
        row = runs.to_pylist()[0]
        name = row["run"]
        plan = {"plan": row["plan"]}
        plans = self.query("SELECT * FROM plans WHERE plan = $plan", plan)
        prefixes = self.query("SELECT * FROM prefixes WHERE plan = $plan", plan)
        numbers, notes = (self._of_day(kind, row) for kind in ("operators", "notes"))
        return run_table(events_of(TelemetryTables(runs, numbers, plans, prefixes, notes)), name)

    def _of_day(self, kind: str, row: Mapping[str, Any]) -> pa.Table:
        """Return a run's rows of a table; only files of the day on which it ended are read."""
        ended = row["finished"]
        day = None if ended is None else ended.astimezone(dt.UTC).date().isoformat()
        files = [each for each in self._snapshot.of(kind) if day in (None, each.day)]
        return self.query(f"{_rows(self.path, kind, files)} WHERE run = $run", {"run": row["run"]})

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """Return the result of a query in DuckDB's SQL.

        The tables are ``runs``, ``operators`` and ``notes`` (warnings, and decisions of the tuner).
        A file that turns out to be damaged is left out, and ``warnings`` has a text about it.
        """
        return self._guarded(lambda: self._database.sql(sql, params=parameters).to_arrow_table())

    def figures(self) -> Figures:
        """Return the figures of the fleet study of tf.data, about these runs."""
        return self._guarded(lambda: figures_of(self._database))

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write one HTML page about these runs to ``path``, and return the path.

        The page shows what to do, what was computed more than once, the costliest pipelines, the
        last runs and the figures of the tf.data study. It is one file that needs no network.
        """
        html = self.page()
        try:
            with open(path, "w", encoding="utf-8", opener=own_file) as file:
                file.write(html)
        except OSError as error:
            raise PlanError(
                "the page cannot be written", at=str(path), why=worded(error), try_="another path"
            ) from None
        return Path(path)

    def page(self, live: str = "") -> str:
        """Return the page that ``report`` writes; a server puts the HTML ``live`` first."""
        results = (
            self.query(queries.COUNTS), self.advise(), self.shared(), self.pipelines(),
            self.query(queries.LAST_RUNS, {"count": ROWS}), self.query(queries.DAYS),
            self.figures(),
        )  # fmt: skip
        return report_html(Findings(*results, str(self.path), self.warnings), live)

    def _guarded(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``; if a file is damaged, do it again without that file."""
        try:
            return work()
        except (
            self._duckdb.ParserException,
            self._duckdb.BinderException,
            self._duckdb.CatalogException,
        ):
            raise  # of the query
        except self._duckdb.Error:
            if not self._without_damage():
                raise
        return work()

    def _without_damage(self) -> bool:
        """Read all files, and leave the damaged ones out; return False if there are none."""
        found, wrong = undamaged(self.path, self._snapshot)
        self.warnings += tuple(wrong)
        if wrong:
            self._connect(found)
        return bool(wrong)

    def _run(self, start: str) -> str:
        """Return the name of the only run whose name begins with ``start``."""
        return str(self._only(queries.RUN, start, "run")["run"][0].as_py())

    def _only(self, query: str, start: str, kind: str) -> pa.Table:
        """Return the only row that ``query`` finds for names that begin with ``start``."""
        found = self.query(query, {"start": start})
        if found.num_rows == 1:
            return found
        what = f"more than one {kind} has" if found.num_rows else f"no {kind} has"
        raise PlanError(
            f"{what} a name that begins with {start!r}", at=f"dml.fleet.open({str(self.path)!r})",
            why=f"the store has {self._count('runs'):,} runs",
            try_=f"a name that {TABLES[kind]} has",
        )  # fmt: skip

    def _count(self, table: str) -> int:
        return int(self.query(f"SELECT count(*) AS count FROM {table}")["count"][0].as_py())  # noqa: S608

    def _opened(self) -> tuple[Snapshot, TelemetryTables]:
        """Return the snapshot, and the tables of the events that are not in Parquet yet."""
        for _ in range(TRIES):
            listed = event_files(self.path)
            found = snapshot(self.path)
            with contextlib.suppress(FileNotFoundError):
                events = list(self._events([each for each in listed if each not in found.folded]))
                present, wrong = self._present(found)
                if not wrong or snapshot(self.path).number == found.number:
                    if found.damaged:
                        wrong.append("the last snapshot is damaged: runs may be missing")
                    self.warnings += tuple(wrong)
                    return present, tables(events)
        raise PlanError(
            "the store changes all the time", at=str(self.path),
            why=f"{TRIES} compactions took place while it was opened", try_="again, later",
        )  # fmt: skip

    def _present(self, found: Snapshot) -> tuple[Snapshot, list[str]]:
        """Return the snapshot without files that are gone or cut, and a text on each of these."""
        good, wrong = [], []
        for part in found.parts:
            try:
                size = (self.path / LAYOUT / part.path).stat().st_size
            except FileNotFoundError:
                size = 0
            if size == part.nbytes:
                good.append(part)
            else:
                wrong.append(f"{part.path} has {size:,} of {part.nbytes:,} bytes")
        return Snapshot(found.number, tuple(good), found.folded), wrong

    def _events(self, files: list[str]) -> Iterator[Event]:
        """Yield the events of files; a file that is gone raises FileNotFoundError."""
        wrong = []
        for name in files:
            path = self.path / LAYOUT / name
            try:
                for event in read_file(path):
                    if is_damage(event):
                        wrong.append(event.text)
                    else:
                        yield event
            except FileNotFoundError:
                raise
            except OSError as error:
                wrong.append(f"{path}: {error}")
        self.warnings += tuple(wrong)

    def _connect(self, found: Snapshot) -> None:
        """Make the views over the files of a snapshot and the fresh events."""
        self._snapshot = found
        self._database = self._duckdb.connect(config={"threads": cores(), "temp_directory": ""})
        self._database.execute("SET TimeZone = 'UTC'")
        for kind, fresh in self._fresh._asdict().items():
            self._database.register(f"fresh_{kind}", fresh)
            view = {"operators": "numbers"}.get(kind, kind)
            rows = _rows(self.path, kind, found.of(kind))
            self._database.execute(f"CREATE VIEW {view} AS {rows}")
        self._database.execute(queries.TOTAL)
        self._database.execute(queries.WEEK)
        self._database.execute(queries.JOINED)


def _rows(root: Path, kind: str, files: Sequence[TableFile]) -> str:
    """Return a query for the rows of files of one kind, and those of fresh events."""
    found = f"SELECT * FROM fresh_{kind}"  # noqa: S608 (a name of TelemetryTables)
    if files:
        paths = ", ".join(_quoted(root / LAYOUT / each.path) for each in files)
        # files of other versions of dml have other columns
        named = "true" if len({each.columns for each in files}) > 1 else "false"
        union = "UNION BY NAME" if kind in TIMELESS else "UNION ALL BY NAME"
        options = f"union_by_name = {named}, hive_partitioning = false"
        found += f" {union} SELECT * FROM read_parquet([{paths}], {options})"  # noqa: S608
    return f"SELECT * FROM ({found})"  # noqa: S608


def _quoted(path: Path) -> str:
    text = str(path).replace("'", "''")
    return f"'{text}'"
