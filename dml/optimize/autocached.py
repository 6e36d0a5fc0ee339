"""This file decides what a job does at each ``autocache()``: by seconds, and by who asks how often.

``cachew`` is the rule of Cachew (Graur et al., ATC 2022, section 4.4), kept to compare with: times
for N elements in every mode, of which the least is taken, whatever writing costs and however few
epochs are left. ``decided`` knows both, and what is there already.

Where nobody says how many epochs there will be, as many are expected as there have been. That is
the ski-rental rule (Karlin et al., 1988): rows are written when computing them again has cost as
much as writing them does, and no number of epochs then costs twice what it would if it were known.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from dml.expr.amounts import seconds_text
from dml.expr.node import Node
from dml.expr.ops.autocache import AutoStored, varying
from dml.expr.ops.stored import storable
from dml.read_times import ReadTimes

NEAR = 0.05
"""Rows are computed where keeping them saves less of the time than this: it costs room."""


def hinted(root: Node) -> Node:
    """``root`` as if ``autocache()`` stood above every function that it would be for.

    Those are called, have a name that lasts, and see the same rows in every epoch. What reaches a
    clock or random numbers has no such name. Nothing could move across them anyway.
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


class State(enum.Enum):
    """What a run does at a place where rows could be kept."""

    PROFILE = "computes, to learn what that takes"
    COMPUTE = "computes"
    PUT = "computes, and keeps what is not there yet"
    GET = "reads what is there"


@dataclass(frozen=True, slots=True)
class Hint:
    """What Cachew measures at an autocache op: M elements, active time and bytes of one."""

    elements: float
    active_s: float
    element_bytes: float


def cachew(
    elements: float, active_s: float, hints: Sequence[Hint], read: ReadTimes, near: float = 0.0
) -> tuple[int | None, tuple[float, ...]]:
    """Cachew's choice, None for compute, and the time for N elements: computed, then by hint.

    TotalCompute is N x active_L; of a hint M x g(b_A) + (N x active_L - M x active_A). A hint must
    be better than compute by the part ``near`` of it; of equal ones that of fewer bytes is taken.
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
    """A place where rows could be kept; seconds are those of a pass over all of them.

    They are asked for in ``epochs`` to come, the next one included. ``below_s`` makes them from the
    source, ``hold_s`` is what their bytes are worth to others, ``there`` the part that is kept.
    """

    below_s: float
    read_s: float
    write_s: float
    epochs: float
    hold_s: float = 0.0
    there: float = 0.0
    nbytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do at one site, why, and the seconds that it saves in all epochs to come."""

    state: State
    why: str
    saves_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.state.name} {self.why}"


def decided(
    sites: Sequence[Site | None], whole_s: float = 0.0, near: float = NEAR
) -> tuple[Decision, ...]:
    """What to do at each site in the next pass, source first; None is one that nobody measured.

    A pass takes ``whole_s`` without any cache; what is above all sites is in there, and what does
    not save the part ``near`` of it is not kept. Rows are kept at the site that saves most of an
    epoch; at those below it what is there is read.
    """
    found = [_alone(each) for each in sites]
    costs = [_spent(sites, number) for number in range(len(sites))]
    usual = max([whole_s, *(each.below_s for each in sites if each is not None)], default=0.0)
    best = min(range(len(sites)), key=lambda number: (costs[number], number), default=None)
    site = None if best is None else sites[best]
    if best is not None and site is not None and costs[best] < -near * usual:
        state = State.GET if site.there >= 1 else State.PUT
        found[best] = Decision(state, _told(site), -costs[best] * site.epochs)
        if site.there >= 1:
            above = "what is kept above it is read"
            found[:best] = [Decision(State.COMPUTE, above) for _ in found[:best]]
    return tuple(found)


def _made(site: Site, below: Sequence[Site | None]) -> float:
    """Seconds that make the rows of a site, where those at a site below it may be there."""
    least = site.below_s
    for each in below:
        if each is not None:
            read = each.there * (each.read_s - each.below_s)
            least = min(least, site.below_s + read)
    return least


def _spent(sites: Sequence[Site | None], number: int) -> float:
    """Seconds of an epoch more than to compute that keeping rows at a site takes."""
    site = sites[number]
    if site is None:
        return 0.0
    made, saved = _made(site, sites[:number]), site.below_s - site.read_s
    first = made + site.write_s + site.hold_s - site.below_s
    rest = first - (site.epochs - 1) * saved
    return ((1 - site.there) * rest - site.there * site.epochs * saved) / site.epochs


def _alone(site: Site | None) -> Decision:
    """What is done at a site where rows are not kept: what is there may be worth reading."""
    if site is None:
        return Decision(State.PROFILE, "what it takes is not known yet")
    if site.there and site.read_s < site.below_s:
        rest = "; the rest is not worth writing" if site.there < 1 else ""
        saved = site.there * site.epochs * (site.below_s - site.read_s)
        return Decision(State.GET, f"{_told(site)}{rest}", saved)
    return Decision(State.COMPUTE, _told(site))


def _told(site: Site) -> str:
    """The figures that decide."""
    more = f"{site.epochs:.3g} epoch{'s' if site.epochs != 1 else ''} to come"
    kept = f", {site.there:.0%} there" if site.there else ""
    read, write = seconds_text(site.read_s), seconds_text(site.write_s)
    return f"{more}{kept}: computing {seconds_text(site.below_s)}, reading {read}, writing {write}"
