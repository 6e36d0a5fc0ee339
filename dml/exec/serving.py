"""This file hands out the units of a stage that a store on this machine has, without a driver.

To map the rows of a unit takes less than to have another thread do it, and to hear of it. So who
asks for rows maps them himself, unit by unit. Where one is not there, or this process has not had
it before (its bytes must be checked), or it lies in no file of this disk, or some of it must be
copied, there is work: what is left of the epoch from there on is a driver's. So it is where who
asks takes his time: others have it ready by then. No row depends on who did it, and a state goes on
with the same rows wherever it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from dml.events import Tally
from dml.exec.kept import Watch
from dml.exec.losses import Noted
from dml.exec.slices import Outcome
from dml.exec.stored import Level, Running
from dml.exec.stored_parts import Found
from dml.exec.work import Piece, Task, beside_rows
from dml.expr.delivery import finished
from dml.expr.facts import Rows

if TYPE_CHECKING:
    from dml.exec.job import Job
    from dml.exec.meter import Tallies
    from dml.exec.stream import Feed

# Seconds between two units, over the first ones, from which on a driver makes the next ones ahead:
# several times what it takes to hear of them (benchmarks/bench_fan_out.py).
LEISURE_S, FIRST = 2e-3, 3

Driven = Callable[[int, int], "Feed"]
"""Begins the driver of a job at an atom of the unit at a place."""


def served(job: Job, place: int, atom: int, tallies: Tallies, driven: Driven) -> Feed:
    """The partitions of ``job`` from there on, of whoever has less to do for them."""
    level, keeping = _stored(job), any(node.rows is Rows.STORED for node in job.stage.steps)
    if level is None:
        feed = driven(place, atom)
    else:
        feed = Served(job, level, Task(place, job.reading.places, atom), tallies.mine, driven)
    return Noticing(feed, job, tallies) if keeping else feed


class Noticing:
    """A feed at whose end the caches of a stage learn why they keep nothing, if they do."""

    def __init__(self, feed: Feed, job: Job, tallies: Tallies) -> None:
        self._feed, self._job, self._tallies = feed, job, tallies
        steps = enumerate(job.stage.steps, 1)
        self._kept = {n: Watch(each) for n, each in steps if each.rows is Rows.STORED}
        self.next, self.release, self.settled = feed.next, feed.release, feed.settled

    def close(self) -> None:
        """Stop, and look what became of the parts."""
        self._feed.close()
        total, at = self._tallies.total(), self._job.at
        for ordinal, watch in self._kept.items():
            wrong = total.unkept(ordinal)
            entry = at.store(self._job.stage.steps[ordinal - 1], at.epoch) if wrong else None
            # of a store that failed in this process a warning has told already
            watch.end(wrong, said=entry is not None and not entry.store.standing.whole)


def _stored(job: Job) -> Level | None:
    """The stored step that gives all that a job does, unit by unit, if there is one."""
    top: Level | None = job.reading.top
    if top is not None and not top.steps.nodes:
        top = top.below
    if top is None or not top.gives_stored or job.links or job.reading.rows_order is not None:
        return None
    return top


class Served:
    """Units one by one, a partition each, as long as they are there; then what a driver makes."""

    def __init__(
        self, job: Job, level: Level, task: Task, mine: Callable[[], Tally], driven: Driven
    ) -> None:
        self._job, self._level, self._mine, self._driven = job, level, mine, driven
        self._place, self._atom, self._stop = task.start, task.skip_atoms, task.stop
        self._rest: Feed | None = None
        self._settled = self._closed = False
        self._units, self._left_at, self._apart_s = 0, 0.0, 0.0

    def next(self) -> Outcome | None:
        """The next partition; None at the end."""
        if self._rest is None:
            if self._closed or self._place >= self._stop:
                return None
            outcome = None if self._leisurely() else self._outcome()
            if outcome is not None:
                self._place, self._atom = self._place + 1, 0
                self._units, self._left_at = self._units + 1, perf_counter()
                return outcome
            self._rest = self._begun()
        return self._rest.next()

    def _leisurely(self) -> bool:
        """Whether whoever asks has other things to do between two units."""
        if self._units:
            self._apart_s += perf_counter() - self._left_at
        return self._units >= FIRST and self._apart_s > LEISURE_S * self._units

    def _begun(self) -> Feed:
        """The driver of what is left."""
        rest = self._driven(self._place, self._atom)
        if self._settled:
            rest.settled()
        if self._closed:  # meanwhile, by another thread
            rest.close()
        return rest

    def release(self) -> None:
        """The partition given last is not held any more."""
        if self._rest is not None:
            self._rest.release()

    def settled(self) -> None:
        """Every schema is known."""
        self._settled = True
        if self._rest is not None:
            self._rest.settled()

    def close(self) -> None:
        """Stop."""
        self._closed = True
        if self._rest is not None:
            self._rest.close()

    def _outcome(self) -> Outcome | None:
        """The unit at hand as a partition; None where a driver has to make it."""
        job, reading = self._job, self._job.reading
        unit = reading.unit_at(self._place)
        changed_ns = partial(reading.stage.source.changed_ns, unit)
        telling = (changed_ns, job.sizes.most_bytes, _nothing_held)
        run = Running(reading.at, self._mine, Noted(), *telling, reading=reading)
        started = perf_counter()
        try:
            found = self._level.had(unit, run)
            if found is None or not _only_mapped(found, job):
                return None
            atoms = found.atoms(self._atom, joined=job.spanning)
            handed = self._level.handed(found, atoms, run, started)
            pieces = [
                Piece(self._place, number, finished(block) if reading.finishing else block)
                for number, (_, blocks) in enumerate(handed, self._atom)
                for block in blocks
            ]
        except Exception:  # noqa: BLE001 - a driver will meet it, and say where
            return None
        return _partition(self._place, found, pieces)


def _only_mapped(found: Found, job: Job) -> bool:
    """Whether a unit is no more than a partition may be, or is handed out without a copy."""
    return found.plain or not job.finishing or found.nbytes <= job.sizes.target_bytes


def _partition(place: int, found: Found, pieces: list[Piece]) -> Outcome:
    """All pieces of a unit, and one that closes it; as a driver does, one where an atom is one."""
    atoms = found.about["atoms"]
    if pieces and atoms[-1] == 1 and pieces[-1].atom == len(atoms) - 1:
        pieces[-1] = pieces[-1].last()
    else:
        pieces.append(Piece(place, len(atoms), ends=True))
    blocks = [piece.block for piece in pieces if piece.block is not None]
    held_bytes = sum(block.nbytes for block in blocks) + beside_rows(pieces)
    return Outcome(pieces, held_bytes, sum(block.n for block in blocks), done=True)


def _nothing_held(nbytes: int) -> None:
    """What is mapped lies in no memory that is counted."""
    del nbytes
