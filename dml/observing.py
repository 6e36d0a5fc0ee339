"""This file tells what operators of a pipeline do: as its last run showed, else as is believed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from dml.events import Event, OperatorTotals, RunFinished, RunStarted, Waits
from dml.exec.twin.model import GUESS, HISTORY, MEASURED, Work
from dml.expr.node import Node
from dml.optimize.arrange import locks
from dml.optimize.cost import HISTORY as LEARNED
from dml.optimize.estimate import Estimate
from dml.profile import NOISE, TURNS


@dataclasses.dataclass(frozen=True)
class Last:
    """The last run of a pipeline, by operator: rows in, out, bytes out, seconds, on a processor.

    ``whole`` is True if it was one of all rows; ``turns`` are seconds that a second in Python
    waited for others; the training loop held an element for ``step_s``.
    """

    sums: Mapping[int, tuple[float, float, float, float, float]] = dataclasses.field(
        default_factory=dict
    )
    seconds: float = 0.0
    whole: bool = False
    turns: float = 0.0
    step_s: float = 0.0

    @staticmethod
    def of(events: Sequence[Event], fingerprint: str) -> Last:
        """What ``events`` tell, if they are of the pipeline of that name and tell of an end."""
        started = [each for each in events if isinstance(each, RunStarted)]
        ended = [each for each in events if isinstance(each, RunFinished)]
        same = started and started[-1].fingerprints.get("fleet") == fingerprint
        if not same or not ended or ended[-1].status not in ("finished", "stopped"):
            return Last()
        totals = [each for each in events if isinstance(each, OperatorTotals)]
        sums: dict[int, tuple[float, float, float, float, float]] = {}
        for each in totals:
            cpu_s = each.seconds if each.cpu_s is None else min(each.cpu_s, each.seconds)
            own = (each.rows_in, each.rows_out, each.bytes_out, each.seconds, cpu_s)
            before = sums.get(each.ordinal, (0.0,) * 5)
            sums[each.ordinal] = tuple(a + b for a, b in zip(before, own, strict=True))  # type: ignore[assignment]
        busy = math.fsum(each[4] for each in sums.values()) / max(ended[-1].seconds, 1e-9)
        part = started[-1].resumed or any(each.cache_hits for each in totals)
        whole = ended[-1].status == "finished" and not part
        turns = min(TURNS, busy / max(1 - busy, 1e-9))
        return Last(sums, ended[-1].seconds, whole, turns, _step_s(events, ended[-1]))


def _step_s(events: Sequence[Event], ended: RunFinished) -> float:
    """What the training loop took for an element: the time in which it did not wait."""
    waited = math.fsum(each.consumer_s for each in events if isinstance(each, Waits))
    return max(0.0, ended.seconds - waited) / max(1, ended.batches or ended.rows)


def works_of(nodes: Sequence[Node], found: Sequence[Estimate], last: Last) -> list[Work]:
    """What every operator does: as the last run showed, else as is believed."""
    given = list(_finite(found))
    works = []
    for node, each, (rows, rows_out, bytes_out) in zip(nodes, found, given, strict=True):
        seen = last.sums.get(each.ordinal)
        if seen is not None and (seen[1] if each.reads else seen[0]) > 0:
            works.append(_measured(node, each, seen, last, (rows, rows_out, bytes_out)))
            continue
        seconds = each.per_row.typical * rows
        learned = each.per_row.source == LEARNED
        waits = node.calls is not None  # for how long of that, nobody knows
        works.append(
            Work(
                each.title,
                seconds,
                rows_out,
                bytes_out,
                0.0 if waits else seconds,
                seconds if locks(node) else 0.0,
                each.per_row.sigma,
                HISTORY if learned else GUESS,
                each.runs,
            )
        )
    return works


def _measured(
    node: Node,
    each: Estimate,
    seen: tuple[float, float, float, float, float],
    last: Last,
    believed: tuple[float, float, float],
) -> Work:
    """What an operator did in the last run, waiting for others left out, for the rows there are."""
    rows_in, gave, nbytes, seconds, cpu_s = seen
    called = node.calls is not None or each.reads
    waited = max(0.0, seconds - cpu_s * (1 + last.turns)) if called else 0.0
    rows, rows_out, bytes_out = believed
    times = 1.0
    if last.whole:
        rows_out, bytes_out = gave, nbytes
    else:
        times = rows / (gave if each.reads else rows_in)
    return Work(
        each.title,
        (cpu_s + waited) * times,
        rows_out,
        bytes_out,
        cpu_s * times,
        cpu_s * times if locks(node) else 0.0,
        math.sqrt(NOISE),
        MEASURED,
        1.0,
    )


def _finite(found: Sequence[Estimate]) -> Iterator[tuple[float, float, float]]:
    """Rows that cost, rows and bytes given; where there is no end, those of one pass."""
    passing = 1.0
    for each in found:
        rows, out, nbytes = each.worked_rows, each.rows_out, each.bytes_out
        rows = passing if rows == math.inf else rows
        if out == math.inf:
            out, nbytes = rows, 0.0
        yield rows, out, nbytes
        passing = out
