"""The first difference between two pipelines with different fingerprints is located.

The first operator that differs apart from its input is examined recursively, through expressions
and functions and everything that they refer to, down to one constant or one file.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from dml.base.amounts import counted
from dml.optimize.explain.fingerprint_text import (
    CALLED,
    FingerprintText,
    NamedOperator,
    WrittenStep,
)
from dml.optimize.explain.fingerprint_tree import SpelledPart

SAME = "same"
NOTHING = "nothing of the kind"

# The written name of an operator of the normal form.
WRITTEN = {"LiftedMap": "MapRows", "LiftedFilter": "FilterRows"}
# Kinds that name the difference between two parts of different kinds.
TELLING = {"given name", "unnamed", "expression"}
MERGED = "Segment"  # the operator that several written operators may become

SAID = {
    "constant": "a constant differs: {path}",
    "code": "the code of {path} differs",
    "default": "defaults of a function differ: {path}",
    "argument": "what a function is given differs: {path}",
    "closure": "a variable around a function differs: {path}",
    "global": "a global differs: {path}",
    "attribute": "an attribute differs: {path}",
    "item": "an item differs: {path}",
    "method": "a method differs: {path}",
    "class": "a class differs: {path}",
    "function": "a function differs: {path}",
    "instance": "an instance differs: {path}",
    "module": "a module differs: {path}",
    "library": "the version of {path} differs",
    "given name": "the name that was given to {path} differs",
    "unnamed": "{path} has no name outside of this process",
    "content": "the {path} differs",
    "file name": "{path} is only one's",
    "files": "the files differ",
    "type": "{path} has another type",
    "columns": "other columns come out, or in another order",
    "column": "{path} is made of another column",
    "filters": "rows are kept by other filters, or by filters that may fail in another order",
    "expression": "the expression of {path} differs",
    "operation": "the expression of {path} does something else",
    "draw": "the random numbers of {path} are others",
    "option": "the option {path} differs",
    "seed": "the seed differs",
    "operator": "the operators differ",
    "order": "operators stand in another order",
    "place": "the {path} is another",
    "version": "the {path} is another",
    "nothing": "nothing that says what it is is kept there",
    "parts": "not all parts of it are kept there yet",
    "settings": "the same pipeline was kept under another name",
    "quarantined": "what was kept of it was wrong: {path}",
}
TRIES = {
    "library": "the same version in both processes; results may depend on it",
    "content": "the same bytes: a copy elsewhere, or of another age, is found",
    "unnamed": 'fingerprint="..." where the function is given',
    "seed": "the same seed= in both",
    "order": "the same order; dml only swaps operators where no row can tell",
    "nothing": 'a run of the pipeline with .cache(tier="disk")',
    "settings": "the same optimize=, disable_rules= and versions of dml, Python and libraries",
    "parts": "a run to the end of an epoch, which adds what is missing",
    "given name": "the same fingerprint= in both, where the code means the same",
    "quarantined": "a function of its row alone; then dml cache rm, or ds.clear_cache()",
}
TRY = "the same in both, if the same rows are meant"


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first difference between two pipelines; false if there is none.

    ``kind`` is one word ("constant", "code", "content", "order" ...). ``path`` names the part that
    differs, and the parts that contain it. ``operator`` and ``other`` are the user's lines that
    wrote this part in the first and the second pipeline; ``here`` and ``there`` are its contents in
    them. ``also`` describes the rows that can be reused from other entries, or is "". ``str``
    returns all of this in four lines, or five with ``also``.
    """

    kind: str
    path: str = ""
    operator: str = ""
    other: str = ""
    here: str = ""
    there: str = ""
    also: str = ""

    def __bool__(self) -> bool:
        return self.kind != SAME

    @property
    def what(self) -> str:
        """The difference in one line for people."""
        if not self:
            return "no difference: both have one fingerprint"
        return SAID.get(self.kind, "{path} differs").format(path=self.path or self.kind)

    @property
    def try_(self) -> str:
        """A hint for making the fingerprints equal."""
        return TRIES.get(self.kind, TRY)

    def __str__(self) -> str:
        if not self:
            return self.what
        places = [each for each in (self.operator, self.other) if each]
        at = "; there ".join(dict.fromkeys(places)) or "the whole pipeline"
        rest = (("at   ", at), ("why  ", f"{self.here} here, {self.there} there"))
        told = (*rest, ("try  ", self.try_), *([("also ", self.also)] if self.also else []))
        lines = [f"  {word} {text}" for word, text in told]
        return "\n".join([self.what, *lines])


def first_difference(here: FingerprintText, there: FingerprintText) -> Difference:
    """Return the first difference, source first; its ``kind`` is "same" if there is none."""
    pairs = list(zip_longest(here.operators, there.operators))
    for place, (mine, theirs) in enumerate(pairs):
        if mine is None or theirs is None or mine[1:3] != theirs[1:3]:
            found = _between(here.operators[place:], there.operators[place:])
            return _placed(found, here, there)
    return Difference(SAME)


def nearest(here: FingerprintText, kept: Sequence[FingerprintText]) -> Difference:
    """Return the first difference from the one of ``kept`` that shares the most operators."""
    if not kept:
        return Difference("nothing", here=f"{len(here.operators)} operators", there=NOTHING)
    return first_difference(here, max(kept, key=lambda each: common(here, each)))


def quarantined(said: Mapping[str, object]) -> Difference:
    """Return the fault recorded in a quarantined entry (``said``) as a difference."""
    what, at, time = (str(said.get(name, "")) for name in ("what", "at", "time"))
    there = f"rows that nobody reads since {time}"
    return Difference("quarantined", what, operator=at, here="other rows", there=there)


def missing_parts(parts: int, of: int | None) -> Difference:
    """Return the difference of an entry with ``parts`` parts; false if the entry is complete.

    ``of`` is the number of all parts, or None if it is not known yet.
    """
    if of is not None and parts >= of:
        return Difference(SAME)
    whole = "more parts" if of is None else counted(of, "part", "parts")
    return Difference("parts", here=whole, there=counted(parts, "part", "parts"))


def other_name() -> Difference:
    """Return the difference for an entry of the same pipeline under another fingerprint."""
    return Difference("settings", here="these options and versions", there="others")


def common(here: FingerprintText, there: FingerprintText) -> int:
    """Return how many operators two pipelines have in common, from the source on."""
    for place, (mine, theirs) in enumerate(zip(here.operators, there.operators, strict=False)):
        if mine[1:3] != theirs[1:3]:
            return place
    return min(len(here.operators), len(there.operators))


def _between(mine: Sequence[NamedOperator], theirs: Sequence[NamedOperator]) -> Difference:
    """Return the difference between the rests of two chains whose first operators differ."""
    if not mine or not theirs:
        return _only(mine[0] if mine else None, theirs[0] if theirs else None)
    x, y = mine[0], theirs[0]
    if x.name == y.name:
        return Difference("seed", "", x.title, y.title, f"seed={x.seed}", f"seed={y.seed}")
    later_here = any(each.name == y.name for each in mine[1:])
    later_there = any(each.name == x.name for each in theirs[1:])
    if later_here and later_there:
        first = f"{x.title.strip()} before {y.title.strip()}"
        second = f"{y.title.strip()} before {x.title.strip()}"
        return Difference("order", x.kind, x.title, y.title, first, second)
    if later_here or later_there:
        return _only(x if later_here else None, y if later_there else None)
    if x.kind == y.kind:
        found = _of_parts(x.parts, y.parts)
        if found:
            return dataclasses.replace(found, operator=x.title, other=y.title)
    return Difference("operator", x.kind, x.title, y.title, x.title.strip(), y.title.strip())


def _only(mine: NamedOperator | None, theirs: NamedOperator | None) -> Difference:
    """Return the difference for an operator in one pipeline only; the other argument is None."""
    if mine is not None:
        return Difference("operator", mine.kind, mine.title, "", mine.title.strip(), NOTHING)
    if theirs is not None:
        return Difference("operator", theirs.kind, "", theirs.title, NOTHING, theirs.title.strip())
    return Difference(SAME)


def _of_parts(
    mine: Sequence[SpelledPart], theirs: Sequence[SpelledPart], roots: tuple[str, str] = ("", "")
) -> Difference | None:
    """Return the first difference of counterparts, else a part without counterpart, or None.

    ``roots`` are the paths of the two parts that contain ``mine`` and ``theirs``; the paths of
    these begin with them.
    """
    others, free = _counterparts(mine, theirs, roots)
    for each in mine:
        other = others.get(_place(each, roots[0]))
        if other is not None and other.name != each.name:
            return _of_part(each, other)
    for each in mine:
        if _place(each, roots[0]) not in others:
            return _alone(each, free)
    return (
        Difference(free[0].kind, free[0].path, here=NOTHING, there=free[0].shown) if free else None
    )


def _counterparts(
    mine: Sequence[SpelledPart], theirs: Sequence[SpelledPart], roots: tuple[str, str]
) -> tuple[dict[tuple[str, str], SpelledPart], list[SpelledPart]]:
    """Return the counterparts of ``mine`` by place, and the other parts of ``theirs``.

    The counterpart of a part is the part at the same place. Names of called functions, and paths
    hidden by digests below another root, do not identify a place; for these the counterpart is the
    part with the same index among the parts of its kind.
    """
    others: dict[tuple[str, str], SpelledPart] = {}
    for each in theirs:
        others.setdefault(_place(each, roots[1]), each)
    known = {_place(each, roots[0]) for each in mine}
    alone = [each for each in mine if _place(each, roots[0]) not in others]
    free = [each for each in theirs if _place(each, roots[1]) not in known]
    hidden = {each.kind for each in alone if roots[0] != roots[1] and roots[0] not in each.path}
    for kind in hidden if any(roots) else CALLED:
        one, other = ([each for each in side if each.kind == kind] for side in (alone, free))
        if len(one) == len(other):
            others |= {_place(a, roots[0]): b for a, b in zip(one, other, strict=True)}
            free = [each for each in free if each.kind != kind]
    return others, free


def _place(part: SpelledPart, root: str) -> tuple[str, str]:
    """Return the kind and the path of a part, relative to ``root``, the path of its container."""
    return part._replace(path=part.path.removeprefix(root)).place


def _alone(mine: SpelledPart, free: Sequence[SpelledPart]) -> Difference:
    """Return the difference between ``mine``, which has no counterpart, and a part in its place."""
    instead = next((each for each in free if each.place[1] == mine.place[1]), None)
    if instead is None and mine.kind in CALLED:
        others = (each for each in free if each.kind in CALLED and each.kind != mine.kind)
        instead = next(others, None)
    if instead is None:
        return Difference(mine.kind, mine.path, here=mine.shown, there=NOTHING)
    kind = instead.kind if instead.kind in TELLING else mine.kind
    return Difference(kind, mine.path, here=mine.shown, there=instead.shown)


def _of_part(mine: SpelledPart, theirs: SpelledPart) -> Difference:
    """Return the first difference inside two parts, else the one between the parts themselves."""
    if mine.kind == "filters":
        found = _of_filters(mine, theirs)
    elif mine.kind == "expression":
        found = _of_expressions(mine, theirs)
    else:
        found = _of_parts(mine.parts, theirs.parts, (mine.path, theirs.path))
    return found or Difference(mine.kind, mine.path, here=mine.shown, there=theirs.shown)


def _of_expressions(mine: SpelledPart, theirs: SpelledPart) -> Difference | None:
    """Return the difference in the operation, else in options, else in arguments, else None."""
    for one, other in zip(mine.parts[:2], theirs.parts[:2], strict=False):
        if one.name != other.name and one.kind in {"operation", "option"}:
            same = one.kind == other.kind == "option"
            told = (one, other) if same else (mine, theirs)
            return Difference(one.kind, one.path, here=told[0].shown, there=told[1].shown)
    here, there = _without(mine.parts, theirs.parts), _without(theirs.parts, mine.parts)
    if here and there and here[0].kind == there[0].kind:
        return _of_part(here[0], there[0])
    return None


def _of_filters(mine: SpelledPart, theirs: SpelledPart) -> Difference | None:
    """Return the difference of the filters that only one side has; None if there are none."""
    here = _without(mine.parts, theirs.parts)
    there = _without(theirs.parts, mine.parts)
    if here and there:
        return _of_part(here[0], there[0])
    if not here and not there:
        return None
    left, right = (each[0].shown if each else NOTHING for each in (here, there))
    return Difference("filters", "filters", here=left, there=right)


def _without(parts: Sequence[SpelledPart], others: Sequence[SpelledPart]) -> list[SpelledPart]:
    left = Counter(each.name for each in others)
    found = []
    for each in parts:
        if left[each.name]:
            left[each.name] -= 1
        else:
            found.append(each)
    return found


# ------------------------------------------------------------------------------ as it was written


def _placed(found: Difference, here: FingerprintText, there: FingerprintText) -> Difference:
    """Return the difference with the user's source lines, if the written form is known."""
    merged = {each.kind for each in (*here.operators, *there.operators)}
    mine = _written(found.operator, here.written, there.written, merged, found)
    theirs = _written(found.other, there.written, here.written, merged, found)
    if not mine and not theirs:
        mine, theirs = found.operator.strip(), found.other.strip()
    return dataclasses.replace(found, operator=mine, other=theirs)


def _written(
    title: str,
    steps: Sequence[WrittenStep],
    others: Sequence[WrittenStep],
    normal: set[str],
    found: Difference,
) -> str:
    """Return the label of the written step that became operator ``title``; "" if none is found."""
    kind, _, shown = title.strip().partition("(")
    same = [step for step in steps if title and _became(step.kind, kind, normal)]
    left = Counter(step.name for step in others)
    alone = [step for step in same if not left[step.name]]
    if kind == MERGED:
        alone = [step for step in alone if _is_of(step, found)] or alone
    if alone:
        return alone[0].label
    begin = f"{WRITTEN[kind]}({shown.partition(':')[0]}" if kind in WRITTEN else title.strip()
    return next((step.label for step in steps if title and step.label.startswith(begin)), "")


def _became(written: str, kind: str, normal: set[str]) -> bool:
    """Return True if a written operator may become one of ``kind`` in the normal form."""
    return written == WRITTEN.get(kind, kind) or (kind == MERGED and written not in normal)


def _is_of(step: WrittenStep, found: Difference) -> bool:
    """Return True if the difference in filters, or in columns, may be in the written ``step``."""
    if found.kind == "columns":
        return step.kind != "Filter"
    name = found.path.removeprefix("column ").strip("'")
    filtering = "filter" in found.path
    return step.kind == "Filter" if filtering else f"({name}=" in step.label.replace(", ", "(")
