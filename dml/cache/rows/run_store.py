"""Find the cache entries of a run: where each stored step keeps its rows, and how they are read.

Units of a stage that are in a local store are served in the caller's thread, not by a driver, since
mapping the rows of a unit costs less than a hand-over between threads. The rest of the epoch is
given to a driver if a unit is missing, was not read by this process before (its bytes must be
checked), is not in a file of this disk, or must partly be copied; and also if the consumer is slow,
since a driver then works ahead. No row depends on this choice, and a saved state continues with the
same rows everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, cast

from dml.cache.elements.element_cache import CacheWatch
from dml.cache.parts.entry import EntryName, StoredEntry, entry_of
from dml.cache.rows.row_parts import StoredUnit
from dml.cache.rows.stored_columns import Reusing
from dml.cache.rows.stored_rows import StoredLevel
from dml.events import Tally
from dml.exec.tasks.levels import Level
from dml.exec.tasks.partition import Piece, ReadTask
from dml.exec.tasks.skipped_rows import Noted
from dml.exec.tasks.slices import Driven, Outcome, PartitionFeed
from dml.exec.tasks.steps import Steps
from dml.exec.tasks.task import beside_rows
from dml.exec.tasks.unit_input import Running
from dml.expr.facts import Rows
from dml.expr.flow import NothingStored
from dml.expr.node import Node
from dml.udfs.calling.batch_arrays import finished

if TYPE_CHECKING:
    from dml.exec.delivery.meter import Tallies
    from dml.exec.tasks.job import Job

# Seconds between two units, averaged over the first ones, from which on a driver works ahead:
# several times the cost of a hand-over (benchmarks/bench_fan_out.py).
LEISURE_S, FIRST = 2e-3, 3


@dataclasses.dataclass(frozen=True)
class Storing(NothingStored):
    """The names of a run's stored steps by digest and root; can be sent to other processes."""

    names: Mapping[tuple[bytes, str], EntryName]

    def __call__(self, node: Node, epoch: int) -> StoredEntry | None:
        """Return the entry of ``node`` in ``epoch``, or None if its rows are not cached."""
        named = self.names.get((node.digest, node.root))
        return None if named is None else entry_of(named.of(node, epoch))

    @property
    def looks(self) -> bool:  # type: ignore[override]
        """True if other entries held rows of this run when the run began."""
        return any(named.looks for named in self.names.values())

    def served(
        self, job: Job, place: int, atom: int, tallies: Tallies, driven: Driven
    ) -> PartitionFeed:
        """Return the feed of ``job`` from a position on: stored units, then those of a driver."""
        level, keeping = _stored(job), any(node.rows is Rows.STORED for node in job.stage.steps)
        if level is None:
            feed = driven(place, atom)
        else:
            task = ReadTask(place, job.reading.places, atom)
            feed = Served(job, level, task, tallies.mine, driven)
        return Noticing(feed, job, tallies) if keeping else feed

    def level(self, entry: StoredEntry, steps: Steps, below: Level | None) -> Level:
        """Return the level of ``steps``; ``entry`` has, or may find, the rows of the last step."""
        return (StoredLevel if entry.asked is None else Reusing)(steps, below, entry)


class Noticing:
    """A feed that reports, when it ends, why the caches of its stage stored nothing, if so."""

    def __init__(self, feed: PartitionFeed, job: Job, tallies: Tallies) -> None:
        self._feed, self._job, self._tallies = feed, job, tallies
        steps = enumerate(job.stage.steps, 1)
        self._kept = {n: CacheWatch(each) for n, each in steps if each.rows is Rows.STORED}
        self.next, self.settled = feed.next, feed.settled

    def close(self) -> None:
        """Close the feed, and report why parts were not stored."""
        self._feed.close()
        total, entries = self._tallies.total(), dict(_entries(self._job.reading.top))
        for ordinal, watch in self._kept.items():
            wrong = total.unkept(ordinal)
            entry = entries.get(ordinal) if wrong else None
            # a store that failed in this process has warned already
            watch.end(wrong, said=entry is not None and not entry.store.standing.whole)


def _entries(level: Level | None) -> Iterator[tuple[int, StoredEntry]]:
    """Yield the entries of a level and those below it, by the ordinals of their caches."""
    while level is not None:
        if isinstance(level, StoredLevel):
            yield level.ordinal, level.entry
        level = level.below


def _stored(job: Job) -> StoredLevel | None:
    """Return the level whose stored rows are the whole output of a job, unit by unit, or None."""
    top = job.reading.top
    if not top.gives_stored or job.links or job.reading.rows_order is not None:
        return None
    return cast("StoredLevel", top)


class Served:
    """A feed with a partition for each stored unit; from a missing unit on, a driver makes them."""

    def __init__(
        self,
        job: Job,
        level: StoredLevel,
        task: ReadTask,
        mine: Callable[[], Tally],
        driven: Driven,
    ) -> None:
        self._job, self._level, self._mine, self._driven = job, level, mine, driven
        self._place, self._atom, self._stop = task.start, task.skip_atoms, task.stop
        self._rest: PartitionFeed | None = None
        self._settled = self._closed = False
        self._units, self._left_at, self._apart_s = 0, 0.0, 0.0

    def next(self) -> Outcome | None:
        """Return the next partition; None at the end."""
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
        """Return True if the consumer takes long between two units."""
        if self._units:
            self._apart_s += perf_counter() - self._left_at
        return self._units >= FIRST and self._apart_s > LEISURE_S * self._units

    def _begun(self) -> PartitionFeed:
        """Return the feed of a driver for the remaining units."""
        rest = self._driven(self._place, self._atom)
        if self._settled:
            rest.settled()
        if self._closed:  # closed meanwhile by another thread
            rest.close()
        return rest

    def settled(self) -> None:
        """Note that the schemas of all operators have settled."""
        self._settled = True
        if self._rest is not None:
            self._rest.settled()

    def close(self) -> None:
        """Stop the feed."""
        self._closed = True
        if self._rest is not None:
            self._rest.close()

    def _outcome(self) -> Outcome | None:
        """Return the next unit as a partition; None if a driver has to make it."""
        job, reading = self._job, self._job.reading
        unit = reading.unit_at(self._place)
        changed_ns = partial(reading.stage.source.changed_ns, unit)
        # mapped rows take no counted memory
        telling = (changed_ns, job.sizes.most_bytes, lambda _nbytes: None)
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
        except Exception:  # noqa: BLE001 - a driver will raise it again, with its place
            return None
        return _partition(self._place, found, pieces)


def _only_mapped(found: StoredUnit, job: Job) -> bool:
    """Return True if a unit is served without a copy, or is small enough for a partition."""
    return found.plain or not job.finishing or found.nbytes <= job.sizes.target_bytes


def _partition(place: int, found: StoredUnit, pieces: list[Piece]) -> Outcome:
    """Return the pieces of a unit as a partition; the last one also marks the end of the unit."""
    atoms = found.about["atoms"]
    if pieces and atoms[-1] == 1 and pieces[-1].atom == len(atoms) - 1:
        pieces[-1] = pieces[-1].last()
    else:
        pieces.append(Piece(place, len(atoms), ends=True))
    blocks = [piece.block for piece in pieces if piece.block is not None]
    held_bytes = sum(block.nbytes for block in blocks) + beside_rows(pieces)
    return Outcome(pieces, held_bytes, sum(block.n for block in blocks), done=True)
