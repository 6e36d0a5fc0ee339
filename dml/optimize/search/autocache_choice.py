"""A job decides at each ``autocache()`` by seconds, and by how often rows are read.

``cachew`` is the rule of Cachew (Graur et al., ATC 2022, section 4.4), kept for comparison: it
takes the least of the times for N elements in every mode, whatever writing costs and however few
epochs are left. ``decided`` accounts for both, and for rows that are stored already.

If the number of epochs is unknown, as many are expected as there have been. That is the ski-rental
rule (Karlin et al., 1988): rows are written when computing them again has cost as much as writing
them does, and no number of epochs then costs twice as much as if it were known.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from dml.base.amounts import seconds_text
from dml.base.read_times import ReadTimes
from dml.expr.node import Node
from dml.ops.cache.autocache import AutoStored, varying
from dml.ops.cache.stored import storable

NEAR = 0.05
"""Rows are computed if keeping them saves less of the time than this: it costs room."""


def hinted(root: Node) -> Node:
    """Return ``root`` with ``autocache()`` above every function for which it is suited.

    Those functions are called, have a lasting name, and see the same rows in every epoch. A
    function that refers to a clock or random numbers has no such name. No rewrite could move across
    them anyway.
    """
    made: dict[int, Node] = {}
    for node in root.walk():
        above = node.map_inputs(lambda below: made[id(below)])
        made[id(node)] = AutoStored(above) if _worth(node) else above
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
    """Cachew's measurements at an autocache op: M elements, active time and bytes of one."""

    elements: float
    active_s: float
    element_bytes: float


def cachew(
    elements: float, active_s: float, hints: Sequence[Hint], read: ReadTimes, near: float = 0.0
) -> tuple[int | None, tuple[float, ...]]:
    """Return Cachew's choice, None for compute, and the times of N elements by choice.

    The first time is that of compute, then one per hint. TotalCompute is N x active_L; of a hint M
    x g(b_A) + (N x active_L - M x active_A). A hint must be better than compute by the part
    ``near`` of it; of equal hints the one with fewer bytes is taken.
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
    """A place where rows could be cached; seconds are those of a pass over all of them.

    ``epochs`` is how many more epochs will read the rows, including the next one. ``below_s`` are
    the seconds to compute the rows from the source, ``hold_s`` is the value of their bytes to other
    entries, and ``there`` is the part of the rows that is stored already.
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
    """The decision for one site, its reason, and the seconds saved in all epochs to come."""

    state: CacheState
    why: str
    saves_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.state.name} {self.why}"


def decided(
    sites: Sequence[Site | None], whole_s: float = 0.0, near: float = NEAR
) -> tuple[CacheDecision, ...]:
    """Return the decision for each site in the next pass, source first; None: not measured.

    A pass takes ``whole_s`` without any cache, including the operators above all sites; rows whose
    caching saves less than the part ``near`` of it are not cached. Rows are cached at the site that
    saves most of an epoch; at the sites below it stored rows are read.
    """
    found = [_alone(each) for each in sites]
    costs = [_spent(sites, number) for number in range(len(sites))]
    usual = max([whole_s, *(each.below_s for each in sites if each is not None)], default=0.0)
    best = min(range(len(sites)), key=lambda number: (costs[number], number), default=None)
    site = None if best is None else sites[best]
    if best is not None and site is not None and costs[best] < -near * usual:
        state = CacheState.GET if site.there >= 1 else CacheState.PUT
        found[best] = CacheDecision(state, _told(site), -costs[best] * site.epochs)
        if site.there >= 1:
            above = "what is kept above it is read"
            found[:best] = [CacheDecision(CacheState.COMPUTE, above) for _ in found[:best]]
    return tuple(found)


def _made(site: Site, below: Sequence[Site | None]) -> float:
    """Return the seconds to compute a site's rows, if rows at a site below may be stored."""
    known = (each for each in below if each is not None)
    read = [site.below_s + each.there * (each.read_s - each.below_s) for each in known]
    return min([site.below_s, *read])


def _spent(sites: Sequence[Site | None], number: int) -> float:
    """Return the seconds of an epoch, beyond computing, that caching at a site takes."""
    site = sites[number]
    if site is None:
        return 0.0
    made, saved = _made(site, sites[:number]), site.below_s - site.read_s
    first = made + site.write_s + site.hold_s - site.below_s
    rest = first - (site.epochs - 1) * saved
    return ((1 - site.there) * rest - site.there * site.epochs * saved) / site.epochs


def _alone(site: Site | None) -> CacheDecision:
    """Return the decision for a site that is not cached: stored rows may be worth reading."""
    if site is None:
        return CacheDecision(CacheState.PROFILE, "what it takes is not known yet")
    if site.there and site.read_s < site.below_s:
        rest = "; the rest is not worth writing" if site.there < 1 else ""
        saved = site.there * site.epochs * (site.below_s - site.read_s)
        return CacheDecision(CacheState.GET, f"{_told(site)}{rest}", saved)
    return CacheDecision(CacheState.COMPUTE, _told(site))


def _told(site: Site) -> str:
    """Return the figures behind the decision as text."""
    more = f"{site.epochs:.3g} epoch{'s' if site.epochs != 1 else ''} to come"
    kept = f", {site.there:.0%} there" if site.there else ""
    read, write = seconds_text(site.read_s), seconds_text(site.write_s)
    return f"{more}{kept}: computing {seconds_text(site.below_s)}, reading {read}, writing {write}"
