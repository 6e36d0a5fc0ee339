"""Keep the account of one run: its delivered rows, the work of each operator, its warnings."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NamedTuple

from dml.base.amounts import counted
from dml.errors import DmlError
from dml.events import (
    Event,
    Names,
    Operator,
    OperatorTotals,
    RunFinished,
    RunStarted,
    Tally,
    Tuned,
    Waits,
    Warned,
)
from dml.exec.delivery.meter import Cell
from dml.exec.delivery.prefetch import Received
from dml.exec.streams.stream import Streaming
from dml.exec.tasks.skipped_rows import Loss
from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.kernels.compiled.tier_choice import Counts
from dml.ops.row.lifted import LiftedNode
from dml.ops.row.segment import Segment
from dml.physical.plan import Plan

NAME_LETTERS = 200

# The warning that quotes users' errors: it is shown, but not sent to telemetry.
SKIPPED = "RowsSkipped"

QUARANTINED = "StoredRowsQuarantined"

PROGRESS_S, LATER = 30.0, 0.1
"""The figures of a run that goes on are passed on after so many seconds, then so much later."""

_log = logging.getLogger("dml")


class Sums(NamedTuple):
    """What the run of one plan had counted at a moment; losses are by ordinals of operators."""

    tally: Tally
    cells: list[Cell]
    losses: dict[int, Loss]

    @classmethod
    def of(cls, streaming: Streaming) -> Sums:
        """Return copies of the counters of ``streaming``, which threads may still change."""
        cells = [copy(cell) for cell in streaming.meter.cells]
        return cls(streaming.tallies.total(), cells, dict(streaming.losses.by_operator))

    def skipped(self, ordinal: int) -> int:
        """Return how many rows operator ``ordinal`` had lost, among the rows delivered so far."""
        found = self.losses.get(ordinal)
        return 0 if found is None else found.rows


class Moment(NamedTuple):
    """Figures of a run, at its end or now, that later work of the process would change.

    ``at`` is a time in seconds; ``kept`` has the figures of caches, by their nodes, and ``lifted``
    whether functions with expressions in their place ran as these; ``sums`` are by plans' runs.
    """

    status: str
    error_kind: str
    at: float
    seconds: float
    process_cpu_s: float
    counts: Counts
    kept: dict[Node, dict[str, Any]]
    lifted: dict[Node, str]
    sums: dict[Streaming, Sums]
    peak_bytes: int
    scaled: list[Event]


class Account:
    """Counts the work of one run; when the run ends, ``listeners`` hear each of its events.

    ``describe`` returns the first event, given the run's name and the time at which it began; it is
    called when events are asked for. ``tell``, the first listener, records them, and hears of long
    runs now and then. ``counts`` are the kernel counts that all runs of the process
    share. ``names`` returns the fingerprints of each operator, in order of ordinals, or an empty
    sequence. ``complete`` adds further events to those of a finished run. ``scaling``, if not None,
    returns the decisions so far on the number of workers as events of a run at a time.
    """

    def __init__(
        self,
        describe: Callable[[str, float], RunStarted],
        streaming: Streaming,
        counts: Counts,
        tell: Callable[[Event], None] | None = None,
        names: Callable[[], Sequence[Names]] = tuple,
        *,
        complete: Callable[[list[Event]], list[Event]] = list,
    ) -> None:
        self.run, self._began, self._describe = uuid.uuid4().hex, time.time(), describe
        self.streaming, self.counts = streaming, counts
        self.listeners = [] if tell is None else [tell]
        self.recorded = tell is not None
        self._names, self._complete = names, complete
        self._resumed = False
        self.received = Received()
        self.scaling: Callable[[str, float], list[Event]] | None = None
        self.warnings: list[Warned] = []
        self._final: list[Event] | None = None
        self._end: Moment | None = None
        self._before = dataclasses.replace(counts)
        self._process_cpu = time.process_time()
        self._once = threading.RLock()  # a collected iterator ends its run in any thread
        self.process, self._next = os.getpid(), self._began + PROGRESS_S

    def opened(self) -> None:
        """Note that elements are made from now on, so that a run that is killed has a record."""
        if self.recorded and self._end is None:
            _OPEN.add(self)
            atexit.unregister(finish_all)  # it precedes the end of all that has started by now
            atexit.register(finish_all)

    def tell_progress(self, now: float) -> None:
        """Pass on the figures so far, if the run has lasted long enough since the last time."""
        if not self.recorded or now < self._next:
            return
        self._next = now + max(PROGRESS_S, LATER * (now - self._began))
        with self._once:
            events = self._events(self._moment("running", "")) if self._end is None else []
        for event in events:
            if isinstance(event, RunStarted | OperatorTotals | Waits):  # the latest of these count
                self.listeners[0](event)

    def resumed(self) -> None:
        """Note that the run continues from a saved state."""
        self._resumed = True

    def stalled(self, told: dict[str, Any]) -> None:
        """Report a stall as a warning; ``told`` is its description by the driver's watchdog."""
        place = ", ".join(f"{key} {told[key]}" for key in ("stage", "unit", "slice") if key in told)
        text = f"no progress for {told['waited_s']:.0f} s, waiting for {place or 'work to begin'}"
        self.warn("Stalled", text)

    def warn(self, name: str, text: str) -> None:
        """Record a warning, and log it."""
        self.warnings.append(Warned(run=self.run, at=time.time(), name=name, text=text))
        _log.warning("%s: %s", name, text)

    def finished(self, status: str, error: BaseException | None) -> None:
        """Close the account and pass its events to listeners; a second call does nothing.

        Warnings about lost rows are not passed on, since they may quote users' values.
        """
        with self._once:
            if self._end is not None:
                return
            self._end = self._moment(status, "" if error is None else type(error).__name__)
        _OPEN.discard(self)
        for event in self.so_far() if self.listeners else ():
            if not (isinstance(event, Warned) and event.name == SKIPPED):
                for hear in self.listeners:
                    hear(event)

    def so_far(self) -> list[Event]:
        """Return the events of the run, finished or not."""
        if self._end is None:
            return self._events(self._moment("running", ""))
        if self._final is None:
            final = self._events(self._end)
            self._final = self._complete(final) if self._end.status == "finished" else final
        return list(self._final)

    def _moment(self, status: str, error_kind: str) -> Moment:
        now, running = time.time(), self.streaming.running
        running.meter.look(0.0)
        return Moment(
            status,
            error_kind,
            now,
            time.perf_counter() - self.received.started,
            time.process_time() - self._process_cpu,
            dataclasses.replace(self.counts),
            {
                node: streaming.at.keep.kept_figures(node)
                for streaming in running.all
                for node in streaming.plan.stream
                if node.rows is Rows.KEPT
            },
            {
                node: lifted(node)
                for plan in running.plan.all
                for node in plan.operators
                if isinstance(node, LiftedNode)
            },
            {streaming: Sums.of(streaming) for streaming in running.all},
            running.meter.peak_bytes,
            [] if self.scaling is None else self.scaling(self.run, now),
        )

    def _events(self, moment: Moment) -> list[Event]:
        now = moment.at
        operators: list[OperatorTotals] = []
        for streaming in moment.sums:
            stream = _numbered(self._stream(streaming, moment), len(streaming.plan.on_blocks))
            operators += _numbered([*self._on_blocks(streaming, moment), *stream], len(operators))
        operators = [
            dataclasses.replace(each, fingerprints=names)
            for each, names in zip(operators, self._names() or [{}] * len(operators), strict=True)
        ]
        return [
            dataclasses.replace(self._describe(self.run, self._began), resumed=self._resumed),
            *operators,
            Waits(
                run=self.run,
                at=now,
                consumer_s=self.received.wait_s,
                variation=self.received.makes.squared,
            ),
            *self.warnings,
            *self._skipped(moment),
            *self._verified(now),
            *self._wrong(operators, now),
            *self._tuned(now),
            *moment.scaled,
            self._ending(moment, operators),
        ]

    def _skipped(self, moment: Moment) -> list[Warned]:
        """Return a warning for each operator that lost rows; texts may quote users' values."""
        return [
            Warned(
                run=self.run,
                at=moment.at,
                name=SKIPPED,
                text=_loss_text(loss, streaming.plan.operators[ordinal]),
            )
            for streaming, sums in moment.sums.items()
            for ordinal, loss in sorted(sums.losses.items())
        ]

    def _tuned(self, now: float) -> list[Tuned]:
        """Return an event for each change of a number that the run tunes."""
        return [
            dataclasses.replace(change, run=self.run, at=now)
            for streaming in self.streaming.running.all
            for changes in streaming.holding.changes
            for change in list(changes)
        ]

    def _verified(self, now: float) -> list[Event]:
        """Return an event with the comparisons with the plan as written; [] if there are none."""
        watching = self.streaming.watching
        return [] if watching is None else [watching.event(self.run, now)]

    def _wrong(self, operators: Sequence[OperatorTotals], now: float) -> list[Warned]:
        """Return a warning for each operator whose cache entry a worker found to be wrong."""
        text = "stored rows of {} were not those that are computed: their entry is quarantined"
        return [
            Warned(run=self.run, at=now, name=QUARANTINED, text=text.format(each.name))
            for each in operators
            if each.cache_wrong
        ]

    def _ending(self, moment: Moment, operators: list[OperatorTotals]) -> RunFinished:
        received = self.received
        return RunFinished(
            run=self.run,
            at=moment.at,
            status=moment.status,
            rows=received.rows,
            batches=received.batches,
            bytes=received.nbytes,
            bytes_read=self._bytes_read(operators),
            seconds=moment.seconds,
            first_batch_s=received.first_s,
            cpu_s=sum(each.cpu_s or 0.0 for each in operators),
            process_cpu_s=moment.process_cpu_s,
            peak_bytes=moment.peak_bytes or None,
            error_kind=moment.error_kind,
        )

    def _bytes_read(self, operators: Sequence[OperatorTotals]) -> int:
        """Return the bytes that all sources fetched; a source is the first operator of its plan."""
        sizes = [len(plan.operators) for plan in self.streaming.running.plan.all]
        return sum(operators[sum(sizes[:i])].bytes_in for i in range(len(sizes)))

    def _on_blocks(self, streaming: Streaming, moment: Moment) -> Sequence[OperatorTotals]:
        """Return the totals of the source and of the operators that run on its blocks."""
        plan, sums = streaming.plan, moment.sums[streaming]
        described = [self._described(plan, *each, moment) for each in enumerate(plan.on_blocks)]
        found = sums.tally.totals(described, run=self.run, at=moment.at)
        return [dataclasses.replace(each, skipped=sums.skipped(each.ordinal)) for each in found]

    def _stream(self, streaming: Streaming, moment: Moment) -> list[OperatorTotals]:
        """Return the totals of stream operators; their seconds exclude the operators below."""
        plan, sums = streaming.plan, moment.sums[streaming]
        found = []
        sliced = self._sliced(streaming, moment)
        for number, node in enumerate(plan.stream):
            if number in sliced:
                found.append(sliced[number])
                continue
            below, own = sums.cells[number], sums.cells[number + 1]
            beside = [moment.sums[run].cells[-1] for run in streaming.beside[number]]
            described = self._described(plan, number, node, moment)
            calls = below.rows if described.lifted.startswith("no") and not node.batched else 0
            found.append(
                OperatorTotals(
                    run=self.run,
                    at=moment.at,
                    **dataclasses.asdict(described),
                    rows_in=below.rows + sum(each.rows for each in beside),
                    rows_out=own.rows,
                    bytes_in=below.nbytes + sum(each.nbytes for each in beside),
                    bytes_out=own.nbytes,
                    seconds=max(
                        0.0, own.seconds - below.seconds - sum(each.seconds for each in beside)
                    ),
                    cpu_s=max(0.0, own.cpu_s - below.cpu_s - sum(each.cpu_s for each in beside)),
                    blocks=own.blocks,
                    python_calls=own.blocks if node.batched and described.lifted else calls,
                    skipped=sums.skipped(len(plan.on_blocks) + number),
                    **moment.kept.get(node, {}),
                )
            )
        return found

    def _sliced(self, streaming: Streaming, moment: Moment) -> dict[int, OperatorTotals]:
        """Return {operator number: totals} of stream operators that workers ran on slices."""
        plan, sums = streaming.plan, moment.sums[streaming]
        first = len(plan.on_blocks)
        ran = sorted(ordinal - first for ordinal, _ in sums.tally.cells() if ordinal >= first)
        described = [
            self._described(plan, first + number, plan.stream[number], moment) for number in ran
        ]
        made = sums.tally.totals(described, run=self.run, at=moment.at)
        return {
            number: dataclasses.replace(each, ordinal=number, skipped=sums.skipped(first + number))
            for number, each in zip(ran, made, strict=True)
        }

    def _described(self, plan: Plan, ordinal: int, node: Node, moment: Moment) -> Operator:
        return Operator(
            ordinal=ordinal,
            operator=type(node).__name__,
            name=node.title()[:NAME_LETTERS],
            lifted=moment.lifted.get(node) or lifted(node),
            tier=self._tier(moment.counts) if isinstance(node, Segment | LiftedNode) else "",
            medium=medium(node, plan.stage.columns) if not node.inputs else "",
        )

    def _tier(self, counts: Counts) -> str:
        """Return the kernels that computed expressions; ``counts`` are those at the moment.

        The result is "numpy", "compiled", "numpy+compiled", or "" if there were none.
        """
        numpy = counts.numpy > self._before.numpy
        compiled = counts.compiled > self._before.compiled
        return "+".join(["numpy"] * numpy + ["compiled"] * compiled)


def _loss_text(loss: Loss, node: Node) -> str:
    rows, errors = counted(loss.rows, "row", "rows"), counted(loss.errors, "error", "errors")
    return f"{node.title()} lost {rows} to {errors}; the first: {loss.what}, at {loss.at}"


def _numbered(operators: Sequence[OperatorTotals], first: int) -> list[OperatorTotals]:
    """Return the operators, numbered from ordinal ``first`` on."""
    return [dataclasses.replace(each, ordinal=n) for n, each in enumerate(operators, first)]


def lifted(node: Node) -> str:
    """Return whether a function runs as expressions: "yes", "no: <why>"; "" without a function."""
    if isinstance(node, LiftedNode):
        trust = node.trust
        if trust.differs:
            return "no: calling it gave something else"
        only = trust.blocks and trust.called_blocks == trust.blocks
        return "no: every block had a row outside the proof" if only else "yes"
    if not node.inputs or node.calls is None:
        return ""
    from dml.ops.row.tiers import refusal  # noqa: PLC0415 - for functions alone

    return f"no: {refusal(node)}"


def medium(source: Any, columns: tuple[str, ...]) -> str:
    """Return where a source's bytes come from: "memory", "local" storage, or "remote" machines."""
    if not (source.unit_count and source.stored_bytes(source.unit(0), columns)):
        return "memory"
    return "remote" if source.far else "local"


# The runs that go on and whose events somebody receives.
_OPEN: weakref.WeakSet[Account] = weakref.WeakSet()


def tell_progress(now: float) -> None:
    """Pass on the figures so far of the runs that have lasted long enough since the last time."""
    for each in list(_OPEN):
        with contextlib.suppress(RuntimeError):  # a table of counters grew meanwhile: next time
            each.tell_progress(now)


def finish_all() -> None:
    """Pass on the events of the runs that the exit of Python stops."""
    for each in list(_OPEN):
        if each.process == os.getpid():  # not of the parent of a forked process
            with contextlib.suppress(DmlError, RuntimeError):
                each.finished("stopped", None)
