"""Observe the costs of operators in the runs of this process, by the operators' fingerprints.

Telemetry gives the same costs to all processes, but only once a run has ended. Observed costs are
available while a run goes on, and if telemetry is off.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dml.exec.streams.stream import Streaming
from dml.io.source import Source
from dml.profile import TURNS

MOST_RUNS, MOST_NAMES = 32, 4096


@dataclasses.dataclass(frozen=True)
class OperatorWork:
    """The work of an operator: input ``rows``, ``seconds``, ``given`` output rows, their bytes."""

    rows: float = 0.0
    seconds: float = 0.0
    given: float = 0.0
    nbytes: float = 0.0

    def __add__(self, other: OperatorWork) -> OperatorWork:
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return OperatorWork(*(a + b for a, b in zip(mine, theirs, strict=True)))


NOTHING = OperatorWork()


class ObservedCosts:
    """The work of all runs of this process, including those in progress."""

    def __init__(self) -> None:
        self._ended: OrderedDict[str, OperatorWork] = OrderedDict()
        self._runs: deque[Watched] = deque()
        self._lock = threading.Lock()

    def watch(
        self, run: Streaming, names: Sequence[str], workers: int, rows: Mapping[int, str]
    ) -> None:
        """Count the work of ``run``; ``names`` are fingerprints of the operators of all its plans.

        ``names`` are the same for all data. ``rows`` maps an operator's index in ``names`` to a
        fingerprint of its rows for the present data, under which its work is counted, too.
        """
        with self._lock:
            self._runs.append(Watched(run, names, workers, rows))
            while len(self._runs) > MOST_RUNS:
                for name, did in self._runs.popleft().did().items():
                    self._ended[name] = self._ended.pop(name, NOTHING) + did
            while len(self._ended) > MOST_NAMES:
                self._ended.popitem(last=False)

    def of(self, names: Sequence[str]) -> list[OperatorWork]:
        """Return the work counted under each of ``names``, in the same order."""
        with self._lock:
            runs, ended = list(self._runs), dict(self._ended)
        found = [run.did() for run in runs]
        return [
            sum((each.get(name, NOTHING) for each in found), ended.get(name, NOTHING))
            for name in names
        ]

    def clear(self) -> None:
        """Remove the work of all runs."""
        with self._lock:
            self._runs.clear()
            self._ended.clear()


SEEN = ObservedCosts()


class OperatorKind(NamedTuple):
    """Whether an operator is a source (``reads``), and whether it calls a function (``calls``)."""

    reads: bool
    calls: bool


class Watched:
    """One run on ``workers`` workers, of which this object keeps only the counters.

    It does not refer to the run or its operators, so users' functions and data can be freed.
    """

    def __init__(
        self, run: Streaming, names: Sequence[str], workers: int, rows: Mapping[int, str]
    ) -> None:
        self.rows = [(names[number], name) for number, name in rows.items()]
        self.parts = [
            (
                [OperatorKind(isinstance(node, Source), node.calls is not None) for node in blocks],
                each.tallies,
                each.meter.cells,
            )
            for each in run.all
            for blocks in [each.plan.on_blocks]
        ]
        self.names, self.turns = names, min(TURNS, workers - 1)

    def did(self) -> dict[str, OperatorWork]:
        """Return {fingerprint: work so far} of every operator."""
        found: dict[str, OperatorWork] = {}
        names = iter(self.names)
        for kinds, tallies, cells in self.parts:
            sums = dict(tallies.total().cells())
            for ordinal, kind in enumerate(kinds):
                name = next(names)
                if ordinal in sums:
                    found[name] = found.get(name, NOTHING) + self._of_cell(sums[ordinal], kind)
            for number in range(1, len(cells)):
                name, below, cell = next(names), cells[number - 1], cells[number]
                own_s = max(0.0, cell.cpu_s - below.cpu_s)
                did = OperatorWork(below.rows, own_s, cell.rows, cell.nbytes)
                found[name] = found.get(name, NOTHING) + did
        return found | {name: found[step] for step, name in self.rows if step in found}

    def _of_cell(self, cell: Any, kind: OperatorKind) -> OperatorWork:
        """Return the work of one operator in a stage.

        As in ``profile.work_s``, waits count if other threads' use of the GIL cannot explain them.
        """
        worked = waited = min(cell.cpu_s, cell.seconds)
        if kind.reads or kind.calls:
            waited = cell.seconds - self.turns * worked
        rows = cell.rows_out if kind.reads else cell.rows_in
        return OperatorWork(rows, max(worked, waited), cell.rows_out, cell.bytes_out)
