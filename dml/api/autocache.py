"""Decide at each ``autocache()`` whether rows are stored, read from the store, or only computed.

A run decides at the beginning of each pass, from the cost of computing the rows, the cost of
storing and reading them, and the number of coming passes. Compute costs are those that this process
measured, else those learned from telemetry; read and write times are measured on the store.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from typing import Any, NamedTuple

from dml.api.cache_contents import Cached, cache_contents
from dml.api.cost_profile import expected
from dml.api.plan_search import planned
from dml.api.run_storage import keeping_of, passes_at, store_of, storing_of, without
from dml.api.run_telemetry import names_of, policy_of, profile_of, rows_named
from dml.base.host import host_class
from dml.base.read_times import ReadTimes
from dml.cache.elements.element_cache import Keeping
from dml.cache.parts.entry import StoredEntry
from dml.cache.parts.parts import PartStore
from dml.cache.rows.run_store import Storing
from dml.cache.store.open_stores import store_at
from dml.cache.store.store_speed import measured
from dml.exec.delivery.observed_costs import SEEN
from dml.exec.streams.stream import Streaming
from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.fleet.policy import CachePolicy
from dml.optimize.cost.estimate import Estimate
from dml.optimize.fingerprints import resuming_name, unnamed
from dml.optimize.phases import Optimized
from dml.optimize.search.autocache_choice import CacheDecision, CacheState, Site, decided, hinted
from dml.physical.plan import Plan
from dml.profile import Profile
from dml.settings import Settings

STREAM_PART = 16 << 20
KEEPS = (CacheState.PUT, CacheState.GET)
DISTRUSTED = CacheDecision(CacheState.COMPUTE, "what was kept was wrong, and is quarantined")

Key = tuple[bytes, str]
"""The identity of an ``autocache()`` in a run: the node's digest and the root of its store."""


@cache
def times_of(root: str) -> tuple[ReadTimes, ReadTimes]:
    """Return the seconds to read and to write a part in store ``root``, as functions of bytes."""
    read, write = measured(root, host_class())
    return ReadTimes.measured(read), ReadTimes.measured(write)


class CachePlace(NamedTuple):
    """One ``autocache()`` in a plan: ``node`` is operator ``number`` of ``chain``.

    ``chain`` is the plan of one input, and a run makes ``passes`` passes over the node's rows. The
    operators of all chains are numbered in sequence; those of ``chain`` begin at ``first``.
    """

    node: Node
    chain: Plan
    first: int
    number: int
    passes: float


class SiteChain(NamedTuple):
    """Each ``autocache()`` of one chain with its costs (None if unknown), source first.

    A pass over the chain takes ``whole_s`` seconds if nothing is cached; 0.0 if unknown.
    """

    sites: list[tuple[CachePlace, Site | None]]
    whole_s: float


class Choosing:
    """Decides in each pass of one run which ``autocache()`` stores or reads its rows.

    ``epoch`` is the first epoch of the run. ``keep`` finds rows that are cached in the delivering
    process, and ``store`` those that workers cache.
    """

    def __init__(
        self, plan: Plan, settings: Settings, epoch: int, keep: Keeping, store: Any
    ) -> None:
        self.plan, self.settings, self.epoch = plan, settings, epoch
        self.keep, self.store = keep, store
        self.places = list(_places(plan))
        self.deciding = {each.first + each.number for each in self.places}
        self.names = [each["fleet"] for each in names_of(plan)]
        self.begun: dict[Key, int] = {}

    @cached_property
    def profile(self) -> Profile:
        """The costs and sizes learned from telemetry, read once for the run."""
        return profile_of(self.settings)

    @cached_property
    def expected(self) -> tuple[Estimate, ...]:
        """The cost estimate of every operator of all chains, from ``profile``."""
        return expected(self.plan, self.profile, self.settings)

    def watch(self, run: Streaming, workers: int) -> None:
        """Record the operator costs that ``run`` measures with ``workers`` workers."""
        named = ((each, self.entry(each, self.epoch)) for each in self.places)
        rows = {at.first + at.number - 1: entry.fingerprint for at, entry in named if entry}
        SEEN.watch(run, self.names, workers, rows)
        rows_named(self.plan, rows)

    def begin(self, node: Node, epoch: int) -> CacheDecision:
        """Return the decision at ``node`` for the pass of ``epoch`` that begins; count the pass."""
        made = self.decisions(node, epoch)[key_of(node)]
        place = next(each for each in self.places if key_of(each.node) == key_of(node))
        entry, known = self.entry(place, epoch), self._declared_reads(place, epoch)
        if entry is not None and known is not None:  # other jobs may keep the entry for this one
            entry.store.uses.announce(entry.fingerprint, known - 1)
        self.begun[key_of(node)] = self.begun.get(key_of(node), 0) + 1
        return made

    def decisions(
        self, asking: Node | None = None, epoch: int | None = None
    ) -> dict[Key, CacheDecision]:
        """Return the decision at each ``autocache()`` for its next pass, by the key of its node.

        The next pass is one of ``epoch`` at the node ``asking``, and of the run's first epoch at
        others.
        """
        given = {key_of(asking): epoch} if asking is not None and epoch is not None else {}
        found = {
            key_of(each.node): CacheDecision(CacheState.COMPUTE, nameless.what)
            if nameless
            else DISTRUSTED
            for each in self.places
            for nameless in (unnamed(each.node.inputs[0]),)
        }
        for chain in self.chains(given):
            made = decided([site for _, site in chain.sites], chain.whole_s)
            known = zip(chain.sites, made, strict=True)
            found |= {key_of(place.node): each for (place, _), each in known}
        return found

    def chains(self, epochs: Mapping[Key, int]) -> Iterator[SiteChain]:
        """Yield each chain that has an ``autocache()``, with the costs at it.

        Costs are those of the epoch that ``epochs`` gives for the key of a node, else of the run's
        first epoch. Rows that have no fingerprint, or are quarantined, are left out.
        """
        for plan in {id(each.chain): each.chain for each in self.places}.values():
            places = [each for each in self.places if each.chain is plan]
            rows = self._rows(places[0])
            sites = [
                (each, self._site(each, rows, epochs.get(key_of(each.node), self.epoch)))
                for each in places
                if not unnamed(each.node.inputs[0]) and not self._distrusted(each, epochs)
            ]
            whole_s = self._seconds(places[0].first, len(plan.operators), rows)
            yield SiteChain(sites, whole_s or 0.0)

    def _distrusted(self, place: CachePlace, epochs: Mapping[Key, int]) -> bool:
        """Return True if the entry at ``place`` was quarantined as wrong."""
        entry = self.entry(place, epochs.get(key_of(place.node), self.epoch))
        return entry is not None and entry.store.quarantined(entry.fingerprint) is not None

    def _rows(self, place: CachePlace) -> list[float]:
        """Return the measured or estimated rows per pass of each operator of ``place``'s chain."""
        count = len(place.chain.operators)
        did = SEEN.of(self.names[place.first : place.first + count])
        rows: list[float] = []
        for number, each in enumerate(did):
            guess = self.expected[place.first + number]
            if not number:
                rows.append(guess.rows_out if guess.rows_out < math.inf else each.given)
            elif each.rows > 0:
                rows.append(rows[-1] * each.given / each.rows)
            else:
                taken = guess.rows_in if 0 < guess.rows_in < math.inf else 1.0
                ratio = guess.rows_out / taken if guess.rows_out < math.inf else 1.0
                rows.append(rows[-1] * ratio)
        return rows

    def _seconds(self, first: int, count: int, rows: list[float]) -> float | None:
        """Return the seconds that ``count`` operators take per pass (caches 0); None if unknown."""
        whole = 0.0
        for number, did in enumerate(SEEN.of(self.names[first : first + count])):
            guess, taken = self.expected[first + number], rows[max(0, number - 1)]
            if first + number in self.deciding:  # reading a cache is not computing
                continue
            if did.rows > 0:
                whole += did.seconds / did.rows * taken
            elif guess.runs > 0:  # even if they vary widely
                whole += guess.per_row.typical * taken
            elif taken:
                return None
        return whole

    def _bytes(self, place: CachePlace, rows: list[float]) -> float:
        """Return the bytes of all rows at ``place``: measured, else learned, else estimated."""
        below = place.first + place.number - 1
        (did,) = SEEN.of(self.names[below : below + 1])
        if did.given > 0:
            return rows[place.number - 1] * did.nbytes / did.given
        known = self.profile.sizes.get(self.names[below])
        guess = self.expected[below]
        each = guess.bytes_out / guess.rows_out if 0 < guess.rows_out < math.inf else 0.0
        return rows[place.number - 1] * (each if known is None else known.typical)

    def _site(self, place: CachePlace, rows: list[float], epoch: int) -> Site | None:
        """Return the costs of storing the rows at ``place`` in ``epoch``; None if unknown."""
        entry = self.entry(place, epoch)
        there, nbytes, took_s = self._stored_state(place, rows, entry)
        below = self._seconds(place.first, place.number, rows)
        if below is None and there:
            below = took_s / there
        if below is None:
            return None
        nbytes = self._bytes(place, rows) or nbytes / max(there, 1e-9)
        where = store_of(self.settings, place.node.root)
        parts = max(1, math.ceil(nbytes / STREAM_PART))
        if place.node.rows is Rows.STORED:
            parts = max(1, place.chain.stage.source.unit_count)
        store = store_at(where)
        hold = 0.0
        if where.quota_bytes is not None:  # storing these rows may evict as many other bytes
            hold = store.uses.floor * nbytes
        each, epochs = nbytes / parts, self._epochs(place, rows, epoch, entry)
        read_s, write_s = (parts * seconds for seconds in _takes(where.root, store, each, nbytes))
        if entry is not None:
            epochs += entry.store.uses.elsewhere(entry.fingerprint)
        return Site(below, read_s, write_s, epochs, hold, there, nbytes)

    def entry(self, place: CachePlace, epoch: int) -> StoredEntry | None:
        """Return the cache entry of the rows at a place in ``epoch``; None if there is none."""
        if place.node.rows is Rows.STORED:
            entry: StoredEntry | None = self.store(place.node, epoch)
            return entry
        return self.keep.entry(place.node)

    def _stored_state(
        self, place: CachePlace, rows: list[float], entry: StoredEntry | None
    ) -> tuple[float, float, float]:
        """Return the stored share of the rows at ``place``, their bytes and compute seconds."""
        if entry is None:
            return 0.0, 0.0, 0.0
        records = entry.store.records(entry.fingerprint)
        size = sum(each.size for each in records.values())
        seconds = sum(each.cost_s for each in records.values())
        if place.node.rows is Rows.STORED:
            of = max(1, place.chain.stage.source.unit_count)
            return len(records) / of, size, seconds
        found = self.keep.figures(place.node)
        share = 1.0 if found.whole else found.kept_elements / max(1.0, rows[place.number - 1])
        return min(1.0 if found.whole else 0.99, share), size, seconds

    def _epochs(
        self, place: CachePlace, rows: list[float], epoch: int, entry: StoredEntry | None
    ) -> float:
        """Return how often this job will read the rows at ``place``, including the next pass.

        If the user has not declared this, as many further passes are expected as there were so far,
        or as a policy says.
        """
        known = self._declared_reads(place, epoch)
        if known is not None:
            return known
        done, past = self.begun.get(key_of(place.node), 0), self._past(place, rows, entry)
        past = max(past, place.node.reads_to_come)
        if place.passes in (1.0, math.inf):
            return past + 1
        return max(1.0, place.passes - done) + max(0.0, past - done)

    def _declared_reads(self, place: CachePlace, epoch: int) -> float | None:
        """Return how often this job will read the rows at ``place``; None if not declared."""
        reuse: int | None = place.node.reuse
        most = math.inf if reuse is None else reuse - epoch % reuse
        if place.passes < math.inf and self.settings.epochs is not None:
            left = max(1.0, place.passes - self.begun.get(key_of(place.node), 0))
            later = max(0, self.settings.epochs - 1 - self.epoch)
            return min(most, left + later * place.passes)
        return most if most < math.inf else None

    def _past(self, place: CachePlace, rows: list[float], entry: StoredEntry | None) -> float:
        """Return the number of complete passes that were computed so far, by any job.

        Passes are counted by the rows' fingerprint: telemetry names do not depend on the data.
        """
        if entry is None:
            return 0.0
        (did,) = SEEN.of([entry.fingerprint])
        if did.given > 0:
            return did.given / max(1.0, rows[place.number - 1])
        known = self.profile.sizes.get(entry.fingerprint)
        return 0.0 if known is None else known.weight


def _takes(root: str, store: PartStore, each: float, nbytes: float) -> tuple[float, float]:
    """Return the seconds to read and to write one part of ``each`` bytes of an entry of ``nbytes``.

    Reads are faster for the share of the entry that fits into copies on a disk of this host.
    """
    read, write = (times(each) for times in times_of(root))
    copies = store.tiers.copies
    if copies is not None and (near := copies.times.near(each)) < read:
        share = min(1.0, copies.most_bytes / max(1.0, nbytes))
        read = share * near + (1 - share) * read
    return read, write


def key_of(node: Node) -> Key:
    """Return the key of an ``autocache()`` in a run: the node's digest and its store's root."""
    return node.digest, node.root


def _places(plan: Plan) -> Iterator[CachePlace]:
    """Yield every ``autocache()`` of a plan and of the plans of its other inputs."""
    first = 0
    for each in plan.all:
        for number, node in enumerate(each.operators):
            if node.decides:
                yield CachePlace(node, each, first, number, passes_at(each, number))
        first += len(each.operators)


@dataclasses.dataclass(frozen=True)
class AutoStoring(Storing):
    """Finds the cache entries of stored steps, except where an ``autocache()`` decides to compute.

    Each pass decides anew. A pickled copy keeps the decisions made so far.
    """

    choosing: Choosing
    decided: dict[Key, CacheDecision] = dataclasses.field(default_factory=dict)

    def __call__(self, node: Node, epoch: int) -> StoredEntry | None:
        """Return the entry of ``node`` for the pass that begins; None if its rows are computed."""
        if node.decides:
            self.decided[key_of(node)] = self.choosing.begin(node, epoch)
        return self._storing()(node, epoch)

    def __reduce__(self) -> tuple[Any, ...]:
        return Storing, (self._storing().names,)

    def _storing(self) -> Storing:
        deciding = {key_of(each.node) for each in self.choosing.places}
        made = {}
        for key, named in self.names.items():
            state = self.decided[key].state if key in self.decided else None
            if key not in deciding or state in KEEPS:
                made[key] = dataclasses.replace(named, fills=state is not CacheState.GET)
        return Storing(made)


class AutoKeeping(Keeping):
    """The element caches of a run; an ``autocache()`` takes part in passes that store or read."""

    def __init__(self, keep: Keeping, choosing: Choosing) -> None:
        super().__init__(keep.names, keep.most_bytes, keep.store, entries=keep.entries)
        self.choosing = choosing

    def __call__(self, node: Node) -> Any:
        """Return the cache of ``node`` for the pass that begins; None if the pass uses none."""
        if node.decides and self.choosing.begin(node, self.choosing.epoch).state not in KEEPS:
            return None
        return super().__call__(node)


def chosen_of(
    plan: Plan, settings: Settings, most_bytes: int, epoch: int
) -> tuple[Keeping, Any, Choosing]:
    """Return the element caches, the stored rows and the choice of a run with ``autocache()``."""
    keep = keeping_of(plan, settings, most_bytes, epoch)
    store = storing_of(plan, settings, epoch)
    choosing = Choosing(plan, settings, epoch, keep, store)
    stored = AutoStoring(getattr(store, "names", {}), choosing)
    return AutoKeeping(keep, choosing), stored, choosing


def decided_contents(plan: Plan, settings: Settings, epoch: int) -> Iterator[tuple[Node, Cached]]:
    """Yield each cache of a plan with its contents; at an ``autocache``, with the next decision."""
    made = {key_of(node): str(each) for node, each in decisions(plan, settings, epoch)}
    for node, each in cache_contents(plan, settings, epoch):
        yield node, dataclasses.replace(each, decision=made.get(key_of(node), ""))


def placed(usual: Optimized, root: Node, settings: Settings) -> Optimized:
    """Plan the pipeline ``root`` with an ``autocache()`` wherever one may save time.

    ``usual`` is its plan as the user wrote it. Without the option ``autocache``, no step is added;
    the policy of the telemetry folder counts for those that the user wrote, too. Fingerprints and
    positions are those of the pipeline without added steps, so a position saved with them can be
    resumed without them, and the reverse. The result is cached with the node until ``usual`` or the
    policy changes.
    """
    held: dict[tuple[object, ...], tuple[Optimized, CachePolicy, Optimized]]
    held = root.memo.setdefault("placed", {})
    key = (settings.seed, settings.optimize, settings.disable_rules, settings.autocache)
    policy, found = policy_of(settings), held.get(key)
    if found is None or found[0] is not usual or found[1] is not policy:
        found = held[key] = usual, policy, _placed(usual, settings, policy)
    return found[2]


def _placed(usual: Optimized, settings: Settings, policy: CachePolicy) -> Optimized:
    above = hinted(usual.chosen, policy.reads, everywhere=settings.autocache)
    if above is usual.chosen:
        return usual
    made = planned(above, settings, without(settings))
    name = resuming_name(usual.normalized, made.plan, {})
    plan = dataclasses.replace(made.plan, fingerprint=usual.plan.fingerprint, name=name)
    return dataclasses.replace(
        made, written=usual.written, normalized=usual.normalized, plan=plan, trace=usual.trace
    )


def decisions(plan: Plan, settings: Settings, epoch: int) -> list[tuple[Node, CacheDecision]]:
    """Return the decision at each ``autocache()`` for a run that would begin now."""
    choosing = looking(plan, settings, epoch)
    made = choosing.decisions()
    return [(each.node, made[key_of(each.node)]) for each in choosing.places]


def looking(plan: Plan, settings: Settings, epoch: int) -> Choosing:
    """Return the ``Choosing`` of a run that would begin now, with ``epoch``."""
    keep, store = keeping_of(plan, settings, 0), storing_of(plan, settings, runs=False)
    return Choosing(plan, settings, epoch, keep, store)
