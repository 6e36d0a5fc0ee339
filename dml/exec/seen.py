"""This file remembers what operators took in runs of this process, by the name of what they do.

Telemetry tells all processes the same, once a run has ended; this is there while it still goes on,
and where telemetry is off.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dml.exec.stream import Streaming
from dml.expr.sources.source import Source
from dml.profile import TURNS

MOST_RUNS, MOST_NAMES = 32, 4096


@dataclasses.dataclass(frozen=True)
class Did:
    """What an operator did: rows that cost seconds, rows given and their bytes."""

    rows: float = 0.0
    seconds: float = 0.0
    given: float = 0.0
    nbytes: float = 0.0

    def __add__(self, other: Did) -> Did:
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return Did(*(a + b for a, b in zip(mine, theirs, strict=True)))


NOTHING = Did()


class Seen:
    """What the runs of a process did, those that go on included."""

    def __init__(self) -> None:
        self._ended: OrderedDict[str, Did] = OrderedDict()
        self._runs: deque[Watched] = deque()
        self._lock = threading.Lock()

    def watch(
        self, run: Streaming, names: Sequence[str], workers: int, rows: Mapping[int, str]
    ) -> None:
        """Count what ``run`` does, whose operators have these names, plans beside it included.

        ``rows`` are the names of what some of them, by number, give of the data at hand: a name of
        an operator is one for all data.
        """
        with self._lock:
            self._runs.append(Watched(run, names, workers, rows))
            while len(self._runs) > MOST_RUNS:
                for name, did in self._runs.popleft().did().items():
                    self._ended[name] = self._ended.pop(name, NOTHING) + did
            while len(self._ended) > MOST_NAMES:
                self._ended.popitem(last=False)

    def of(self, names: Sequence[str]) -> list[Did]:
        """What each of so named operators did."""
        with self._lock:
            runs, ended = list(self._runs), dict(self._ended)
        found = [run.did() for run in runs]
        return [
            sum((each.get(name, NOTHING) for each in found), ended.get(name, NOTHING))
            for name in names
        ]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._runs.clear()
            self._ended.clear()


SEEN = Seen()


class Kind(NamedTuple):
    """Whether an operator is a source, and whether it calls a function."""

    reads: bool
    calls: bool


class Watched:
    """One run on so many ``workers``: only what counts is held, not the run.

    Nor its operators, which have functions and data of the user.
    """

    def __init__(
        self, run: Streaming, names: Sequence[str], workers: int, rows: Mapping[int, str]
    ) -> None:
        self.rows = [(names[number], name) for number, name in rows.items()]
        self.parts = [
            (
                [Kind(isinstance(node, Source), node.calls is not None) for node in blocks],
                each.tallies,
                each.meter.cells,
            )
            for each in run.all
            for blocks in [each.plan.on_blocks]
        ]
        self.names, self.turns = names, min(TURNS, workers - 1)

    def did(self) -> dict[str, Did]:
        """What every operator did so far."""
        found: dict[str, Did] = {}
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
                did = Did(below.rows, own_s, cell.rows, cell.nbytes)
                found[name] = found.get(name, NOTHING) + did
        return found | {name: found[step] for step, name in self.rows if step in found}

    def _of_cell(self, cell: Any, kind: Kind) -> Did:
        """What one operator did in a stage.

        As in ``profile.work_s``, waits count where they are too long to be for others' turns.
        """
        worked = waited = min(cell.cpu_s, cell.seconds)
        if kind.reads or kind.calls:
            waited = cell.seconds - self.turns * worked
        rows = cell.rows_out if kind.reads else cell.rows_in
        return Did(rows, max(worked, waited), cell.rows_out, cell.bytes_out)
