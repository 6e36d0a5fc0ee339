"""A job decides at each ``autocache()`` from the seconds saved and the number of reads.

``cachew`` is the rule of Cachew (Graur et al., ATC 2022, section 4.4), kept for comparison: it
takes the least of the times for N elements in every mode, and ignores the cost of writing and the
number of epochs left. ``decided`` accounts for both, and for rows that are stored already.

If the number of epochs is unknown, as many are expected as there have been. That is the ski-rental
rule (Karlin et al., 1988): rows are written once the time spent on computing them again equals the
time to write them. Any number of epochs then takes at most twice the time it would take if the
number were known.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dml.base.amounts import seconds_text
from dml.base.read_times import ReadTimes
from dml.expr.node import Node
from dml.ops.cache.autocache import AutoStored, varying
from dml.ops.cache.stored import storable
from dml.optimize.shared_prefixes import prefixes_in

NEAR = 0.05
"""Rows are computed if keeping them saves less of the time than this: it costs room."""


def hinted(root: Node, reads: Mapping[str, float], *, everywhere: bool = True) -> Node:
    """Return ``root`` with ``autocache()`` above every function for which it is suited.

    ``reads`` is a policy: by the name of a prefix, how often its rows will be read. Unless
    ``everywhere``, none is added, and the policy counts for those that the user wrote.

    Suited functions are called (not lifted), have a lasting name, and see equal rows in every
    epoch. A function that refers to a clock or random numbers has no such name. No law of the
    normal form moves operators across a function that is called, so ``autocache()`` above the
    function prevents no such move.
    """
    ends = ((node, reads.get(names[-1], 0.0)) for node, names in prefixes_in(root) if reads)
    come = {id(node): times for node, times in ends if times}
    made: dict[int, Node] = {}
    for node in root.walk():
        above = node.map_inputs(lambda below: made[id(below)])
        times = come.get(id(node), 0.0)
        if isinstance(node, AutoStored) and id(node.input) in come:
            above = above.replace(reads_to_come=come[id(node.input)])
        elif everywhere and _worth(node):
            above = AutoStored(above, reads_to_come=times)
        made[id(node)] = above
    return made[id(root)]


def _worth(node: Node) -> bool:
    fn = node.calls
    if fn is None or fn.reason or fn.asserted or node.proven:
        return False
    return storable(node) and varying(node) is None


class CacheState(enum.Enum):
    """The mode of a run at a place where rows could be cached."""

    PROFILE = "computes, to learn what that takes"
    COMPUTE = "computes"
    PUT = "computes, and keeps what is not there yet"
    GET = "reads what is there"


@dataclass(frozen=True, slots=True)
class Hint:
    """Cachew's measurements at an autocache op: elements, active seconds and bytes per element."""

    elements: float
    active_s: float
    element_bytes: float


def cachew(
    elements: float, active_s: float, hints: Sequence[Hint], read: ReadTimes, near: float = 0.0
) -> tuple[int | None, tuple[float, ...]]:
    """Return the index of the hint that Cachew chooses (None: compute), and the seconds by choice.

    The seconds are for N = ``elements``: first of compute, N x ``active_s``, then of each hint. A
    hint with M elements takes M x read(``element_bytes``) + (N x ``active_s`` - M x its own active
    seconds). The chosen hint must save at least the share ``near`` of the seconds of compute; of
    equal hints, the one with fewer bytes is chosen.
    """
    whole = elements * active_s
    projected = [
        each.elements * read(each.element_bytes) + (whole - each.elements * each.active_s)
        for each in hints
    ]
    order = sorted(
        range(len(hints)),
        key=lambda n: (projected[n], hints[n].elements * hints[n].element_bytes),
    )
    found = order[0] if order and projected[order[0]] < whole * (1 - near) else None
    return found, (whole, *projected)


@dataclass(frozen=True, slots=True)
class Site:
    """A place where rows could be cached; seconds are those of a pass over all rows.

    ``epochs`` is how many more epochs will read the rows, including the next one. ``below_s`` are
    the seconds to compute the rows from the source, ``hold_s`` are the seconds that the same bytes
    could save for other entries, and ``there`` is the share of the rows that is stored already.
    """

    below_s: float
    read_s: float
    write_s: float
    epochs: float
    hold_s: float = 0.0
    there: float = 0.0
    nbytes: float = 0.0


@dataclass(frozen=True, slots=True)
class CacheDecision:
    """The decision for one site, its reason, and the seconds saved in all coming epochs."""

    state: CacheState
    why: str
    saves_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.state.name} {self.why}"


def decided(
    sites: Sequence[Site | None], whole_s: float = 0.0, near: float = NEAR
) -> tuple[CacheDecision, ...]:
    """Return the decision for each site in the next pass, source first; a None was not measured.

    A pass takes ``whole_s`` without any cache, including the operators above all sites. Rows whose
    caching saves less than the share ``near`` of a pass are not cached. Rows are cached at the site
    that saves most of an epoch; sites below it may read rows that earlier runs stored.
    """
    found = [_alone(each) for each in sites]
    costs = [_spent(sites, number) for number in range(len(sites))]
    usual = max([whole_s, *(each.below_s for each in sites if each is not None)], default=0.0)
    best = min(range(len(sites)), key=lambda number: (costs[number], number), default=None)
    site = None if best is None else sites[best]
    if best is not None and site is not None and costs[best] < -near * usual:
        state = CacheState.GET if site.there >= 1 else CacheState.PUT
        found[best] = CacheDecision(state, _figures_text(site), -costs[best] * site.epochs)
        if site.there >= 1:
            above = "what is kept above it is read"
            found[:best] = [CacheDecision(CacheState.COMPUTE, above) for _ in found[:best]]
    return tuple(found)


def _compute_s(site: Site, below: Sequence[Site | None]) -> float:
    """Return the seconds to compute a site's rows, possibly from rows stored at a site below."""
    known = (each for each in below if each is not None)
    read = [site.below_s + each.there * (each.read_s - each.below_s) for each in known]
    return min([site.below_s, *read])


def _spent(sites: Sequence[Site | None], number: int) -> float:
    """Return the seconds that caching at site ``number`` adds to an epoch; negative if it saves."""
    site = sites[number]
    if site is None:
        return 0.0
    made, saved = _compute_s(site, sites[:number]), site.below_s - site.read_s
    first = made + site.write_s + site.hold_s - site.below_s
    rest = first - (site.epochs - 1) * saved
    return ((1 - site.there) * rest - site.there * site.epochs * saved) / site.epochs


def _alone(site: Site | None) -> CacheDecision:
    """Return the decision for a site whose rows are not stored by this run.

    Rows that earlier runs stored are read if that takes less time. ``site`` is None if no cost of
    the pipeline is known yet.
    """
    if site is None:
        return CacheDecision(CacheState.PROFILE, "what it takes is not known yet")
    if site.there and site.read_s < site.below_s:
        rest = "; the rest is not worth writing" if site.there < 1 else ""
        saved = site.there * site.epochs * (site.below_s - site.read_s)
        return CacheDecision(CacheState.GET, f"{_figures_text(site)}{rest}", saved)
    return CacheDecision(CacheState.COMPUTE, _figures_text(site))


def _figures_text(site: Site) -> str:
    """Return the figures behind the decision for ``site`` as text."""
    more = f"{site.epochs:.3g} epoch{'s' if site.epochs != 1 else ''} to come"
    kept = f", {site.there:.0%} there" if site.there else ""
    read, write = seconds_text(site.read_s), seconds_text(site.write_s)
    return f"{more}{kept}: computing {seconds_text(site.below_s)}, reading {read}, writing {write}"
