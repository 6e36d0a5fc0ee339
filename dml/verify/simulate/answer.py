"""The answer to a what-if question: a run here and elsewhere, in figures and as text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from dml.base.amounts import bytes_text, count_text, cut, seconds_text
from dml.base.display import Displayed, Grid
from dml.verify.simulate.forecast import Foreseen
from dml.verify.simulate.run_model import GUESS, HISTORY, MEASURED, ModelWork

TITLE_LETTERS = 48
# A shorter step is not that of a training loop.
SEEN_S = 1e-4
# From this many rows a second on, decimals are noise.
WHOLE = 10.0


@dataclasses.dataclass(frozen=True)
class Outlook:
    """The expected figures of a run with certain resources.

    Parameters
    ----------
    workers, memory_bytes : the resources of the run; ``given`` is a description of them
    seconds, rows_per_s, peak_bytes : expected figures; the bytes are those of partitions
    bound_s : no schedule takes less; ``optimal`` means that some schedule takes no more
    bottleneck : the bottleneck, in words
    kind : the resource of which more would help: "cpu", "pool" (concurrency), "caller", "training",
        "storage", "python", "cores", "memory", "tasks" or the name of a resource
    """

    workers: int
    memory_bytes: int
    given: str
    seconds: float
    rows_per_s: float
    peak_bytes: int
    bound_s: float
    optimal: bool
    bottleneck: str
    kind: str

    @property
    def over_bound(self) -> float:
        """The ratio of the run's time to the bound; 1.0 is the best possible."""
        return self.seconds / self.bound_s if self.bound_s else 1.0


@dataclasses.dataclass(frozen=True)
class Basis:
    """The sources of the figures: shares of the work by ``kind`` of source.

    ``runs`` is the most runs behind a figure, ``sigma`` the standard deviation of log(work).
    """

    shares: tuple[tuple[str, float], ...]
    runs: float
    sigma: float

    @property
    def lines(self) -> list[str]:
        """Lines of text: what a forecast rests on, and what to do if most of that is guessed."""
        guessed = dict(self.shares).get(GUESS, 0.0) > 0.5
        hint = ["          run it once (ds.explain(analyze=True)) and ask again"]
        return [f"rests on  {self}", *hint * guessed]

    def __str__(self) -> str:
        told = {
            MEASURED: "the last run",
            HISTORY: f"earlier runs (about {max(1, round(self.runs))})",
            GUESS: "a table of guesses",
        }
        parts = [f"{told[name]} for {share:.0%}" for name, share in self.shares if share >= 0.005]
        factor = math.exp(min(self.sigma, 100.0))
        off = f"+-{100 * (factor - 1):.0f}%" if factor < 2 else f"x/{factor:.1f}"
        return f"{', '.join(parts) or 'nothing'} of the work; may be off by {off}"


@dataclasses.dataclass(frozen=True, repr=False)
class WhatIf(Displayed):
    """The expected figures with other resources, and those of ``now`` (None if it cannot run here).

    ``more`` is a pair: an addition to the bottleneck, as text, and the factor by which it changes
    the seconds. ``measured_s`` is the time of the last run, if that was of the whole pipeline.
    ``target`` is the requested rate in rows/s; if it is ``reached``, ``then.workers`` workers
    suffice. The training loop is assumed to hold each element for ``step_s`` seconds. Figures are
    of one pass if ``a_pass``, for a pipeline without end. Nothing was run.
    """

    now: Outlook | None
    then: Outlook
    basis: Basis
    rows: float
    more: tuple[str, float] = ("", 1.0)
    measured_s: float | None = None
    target: float | None = None
    step_s: float = 0.0
    a_pass: bool = False

    @property
    def seconds(self) -> float:
        """The expected seconds of the run."""
        return self.then.seconds

    @property
    def rows_per_s(self) -> float:
        """The expected rows per second."""
        return self.then.rows_per_s

    @property
    def workers(self) -> int | None:
        """The number of workers of the run; None if no number reaches the requested rate."""
        return self.then.workers if self.reached else None

    @property
    def bottleneck(self) -> str:
        """The bottleneck, in words."""
        return self.then.bottleneck

    @property
    def reached(self) -> bool:
        """True if the requested rate is reached, or none was requested."""
        return self.target is None or self.then.rows_per_s >= REACHED * self.target

    def _parts(self) -> Iterator[str | Grid]:
        yield f"what if  {self.then.given}" + (", one pass" if self.a_pass else "")
        yield from self._rate_lines()
        yield _grid(self.now, self.then)
        if self.measured_s is not None:
            yield f"the last run took {seconds_text(self.measured_s)}"
        bound = "the optimum" if self.then.optimal else "the lower bound"
        over = f"{self.then.over_bound:.2f}x of {bound} {seconds_text(self.then.bound_s)}"
        yield f"{over}; bottleneck: {self.then.bottleneck}"
        name, times = self.more
        if name:
            yield f"{name} => {_change(times)}"
        if self.step_s >= SEEN_S:
            yield f"training  holds each element for {seconds_text(self.step_s)}"
        yield from self.basis.lines

    def _rate_lines(self) -> list[str]:
        """Return the line on whether a requested rate is reached, and by how many workers."""
        if self.target is None:
            return []
        if self.reached:
            return [f"{rate_text(self.target)} rows/s need {self.then.workers} workers"]
        return [f"{rate_text(self.target)} rows/s are not reached by any number of workers"]


# This share of a rate counts as the rate, as a run also starts and ends.
REACHED = 0.99


def rate_text(rate: float) -> str:
    """Format a rate, in rows a second, with its significant digits."""
    return count_text(rate) if rate >= WHOLE else f"{rate:.2g}"


def _grid(now: Outlook | None, then: Outlook) -> Grid:
    """Return the figures of the run now, if it is known, beside those of the changed run."""
    columns = [("now", now), ("then", then)] if now is not None else [("then", then)]
    rows = [["", *(name for name, _ in columns)]]
    each = [found for _, found in columns]
    rows.append(["workers", *(str(one.workers) for one in each)])
    rows.append(["seconds", *(seconds_text(one.seconds) for one in each)])
    rows.append(["rows/s", *(rate_text(one.rows_per_s) for one in each)])
    rows.append(["partitions", *(bytes_text(one.peak_bytes) for one in each)])
    rows.append(["memory limit", *(bytes_text(one.memory_bytes) for one in each)])
    if now is not None:
        changes = {2: _change(then.seconds / now.seconds)}
        rows = [[*row, changes.get(number, "")] for number, row in enumerate(rows)]
    return Grid(rows, {0, len(rows[0]) - 1} if now is not None else {0})


def _change(times: float) -> str:
    change = round(100 * (times - 1))
    return f"{change:+d}%" if change else "no change"


def outlook_of(
    found: Foreseen, *, workers: int, memory_bytes: int, given: str, rows: float
) -> Outlook:
    """Turn a forecast into an ``Outlook`` with the given descriptions of its resources."""
    narrow = found.narrow
    title, share = cut(narrow.title, TITLE_LETTERS), min(1.0, narrow.share)
    used = f"has {narrow.of}" if narrow.kind == "tasks" else f"({share:.0%} of {narrow.of})"
    return Outlook(
        workers,
        memory_bytes,
        given,
        found.seconds,
        rows / found.seconds,
        found.peak_bytes,
        found.bound_s,
        found.optimal,
        f"{title} {used}",
        narrow.kind,
    )


def basis_of(works: Sequence[ModelWork], sigma: float) -> Basis:
    """Return where the operators' figures come from, by their share of the work."""
    whole = math.fsum(work.seconds for work in works) or 1.0
    shares = tuple(
        (kind, math.fsum(work.seconds for work in works if work.basis == kind) / whole)
        for kind in (MEASURED, HISTORY, GUESS)
    )
    return Basis(shares, max((work.runs for work in works), default=0.0), sigma)
