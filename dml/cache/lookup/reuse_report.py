"""Report which columns a stored step takes from other entries, without reading rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dml.cache.lookup.cache_lookup import Finding, LookupPiece, LookupPlace
from dml.cache.lookup.content_lookup import Rooted, any_above
from dml.cache.parts.entry import StoredEntry
from dml.expr.columns.value import value_text
from dml.expr.facts import Rows
from dml.expr.node import Node

SHOWN = 8  # digits of a fingerprint that are shown


def finding_of(entry: Any, steps: Sequence[Node], seed: int, *, asked: bool) -> Finding | None:
    """Return the search for rows of the last step; None if ``entry`` has no names to search by."""
    if not isinstance(entry, StoredEntry) or entry.asked is None:
        return None
    return Finding(steps[0], steps[1:], entry, seed, asked=asked)


def reuses_entries(
    entry: StoredEntry, steps: Sequence[Node], parts: int, seed: int, *, asked: bool
) -> bool:
    """Return True if a run that starts now finds some of its missing parts in other entries.

    Return True, too, if an earlier run that reused other entries has stored some of the present
    parts.
    """
    finding = finding_of(entry, steps, seed, asked=asked)
    if finding is None or finding.recut:
        return finding is not None
    if finding.there.issuperset(range(parts)):
        return False
    return any_above(finding.entry) or describe_reuse(finding, parts) != ""


def describe_reuse(finding: Finding, parts: int) -> str:
    """Return in one line what is reused for missing parts; "" if nothing is reused."""
    lacking = frozenset(range(parts)) - finding.there
    return next(_reuse_lines(finding, lacking), "") if lacking else ""


def _reuse_lines(finding: Finding, lacking: frozenset[int]) -> Iterator[str]:
    top, missing, taken = finding.top, dict(finding.top.columns), list[str]()
    for piece in finding.pieces(top):
        names = piece.has(tuple(missing))
        if names and lacking & finding.parts(piece):
            taken.append(f"{_few(names)} from {_piece(piece)}")
            missing = {name: value for name, value in missing.items() if name not in names}
    if taken:
        yield f"takes {', '.join(taken)}" + (f"; computes {_few([*missing])}" if missing else "")
    for place in reversed(finding.places[:-1]):
        yield from (_begins(finding, place, piece) for piece in _whole(finding, place, lacking))


def _whole(finding: Finding, place: LookupPlace, lacking: frozenset[int]) -> Iterator[LookupPiece]:
    """Yield the entries that hold all columns of a lower step, for some of the missing parts."""
    wanted = place.schema.names
    for piece in finding.pieces(place):
        if len(piece.has(wanted)) == len(wanted) and lacking & finding.parts(piece):
            yield piece


def _begins(finding: Finding, place: LookupPlace, piece: LookupPiece) -> str:
    step = (finding.source, *finding.steps)[place.number]
    return f"begins above {step.title()}, from {_piece(piece)}"


def _piece(piece: LookupPiece) -> str:
    parts = piece.made.residual if piece.made else ()
    where = f" where {' & '.join(map(value_text, parts))}" if parts else ""
    return piece.fingerprint[:SHOWN] + where


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def lacking(
    storing: Callable[[Node, int], Any], steps: Sequence[Node], parts: int, seed: int
) -> set[int]:
    """Return the missing parts of the last step whose columns other entries do not all have."""
    finding = finding_of(storing(steps[-1], 0), steps[:-1], seed, asked=True)
    if finding is None:
        return set(range(parts))
    wanted = tuple(name for name, _ in finding.top.columns)
    missing = {part: set(wanted) for part in range(parts) if part not in finding.there}
    for piece in finding.pieces(finding.top):
        names = piece.has(wanted)
        for part in finding.parts(piece) & missing.keys():
            missing[part].difference_update(names)
    lost = {part for part, names in missing.items() if names or not wanted}
    below = next((each for each in reversed(steps[:-1]) if each.rows is Rows.STORED), None)
    lower = storing(below, 0) if lost and below is not None else None
    return lost if lower is None else lost - _alike(finding, lost, lower)


def _alike(finding: Finding, parts: set[int], lower: StoredEntry) -> set[int]:
    """Return the parts stored elsewhere that were made from equal rows of the ``lower`` entry."""
    above = finding.entry.asked.above if finding.entry.asked else ""
    if not above:
        return set()
    rooted = Rooted(above, finding.entry, lower)
    names = {part: rooted.find_entry(part) for part in parts}
    return {n for n, name in names.items() if name and n in finding.parts(LookupPiece(name, None))}


def own(finding: Finding) -> list[str]:
    """Return the fingerprints of entries that contain only columns of the rows stored here."""
    return [piece.fingerprint for piece in finding.pieces(finding.top) if _all_used(piece)]


def _all_used(piece: LookupPiece) -> bool:
    made = piece.made
    if made is None or made.residual:
        return False
    return len({v.params[0] for _, v in made.columns if v.op == "col"}) >= piece.held
