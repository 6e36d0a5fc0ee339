"""Divide a plan into lanes: neighbouring operators that process slices of a flow in parallel.

A *lane* is a sequence of row-local operators that need the same resources, at least one of which
calls a user's function. Its input is any ordered flow. A *slice* is a sequence of input rows that
one worker processes at a time; its size is chosen by time and bytes. A position has levels for
every lane, so where lanes begin must depend on the plan alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from dml.base.cached_property import cached_property
from dml.errors import ResumeMismatchError
from dml.expr.facts import Needs, ResumeCost, Rows
from dml.expr.flow import Position
from dml.expr.node import Node
from dml.physical.plan import Plan


@dataclasses.dataclass(frozen=True, eq=False)
class Lane:
    """Operators that run on slices; ``first`` is the ordinal of the first of them in the plan.

    ``group_rows`` is the number of input rows of a group, and a slice has whole groups; 0 if rows
    are processed one by one. With ``atoms`` a group ends where its atom ends. With ``batched`` the
    elements are batches, not rows. ``sections`` is the number of functions; a position has a level
    for each, whichever functions share a lane. With ``free`` slices are delivered in the order in
    which they complete. With ``single`` a slice has one element, so no position lies inside it.
    """

    nodes: tuple[Node, ...]
    first: int
    batched: bool = False
    group_rows: int = 0
    atoms: bool = False
    sections: int = 1
    free: bool = False
    single: bool = False

    @cached_property
    def needs(self) -> Needs:
        """Resources that a slice occupies."""
        return _needs(self.nodes)

    @property
    def title(self) -> str:
        """The titles of the operators, for messages."""
        return " > ".join(node.title() for node in self.nodes)

    def outer(self, before: Position, given: int) -> Position:
        """Return the lane's position ``given`` outputs after the input position ``before``."""
        for _ in range(self.sections - 1):
            before = {"in": before, "drop": 0}
        return {"in": before, "drop": given}

    def inner(self, position: Position | None) -> Position | None:
        """Return the input's position that ``position`` of the lane's output contains, or None."""
        for _ in range(self.sections):
            position = None if position is None else position["in"]
        return position


def _needs(nodes: Sequence[Node]) -> Needs:
    return next((node.needs for node in nodes if takes_long(node)), Needs())


def called(node: Node) -> bool:
    """Return whether ``node`` calls a user's function that is not lifted; False for a source."""
    return node.calls is not None and bool(node.inputs) and not node.proven


def takes_long(node: Node) -> bool:
    """Return whether ``node`` is worth a lane: it calls a function, or is slow by itself."""
    return node.slow or called(node)


def all_stay(node: Node) -> bool:
    """Return whether ``node`` is row-local and has one output row for every input row."""
    return not node.batched and node.rows.local and node.length(1) == 1


def runs_apart(node: Node) -> bool:
    """Return whether the output of ``node`` for an element or group depends on that input alone."""
    if node.group_rows:
        return True
    if len(node.inputs) != 1 or node.opens_flow or not node.runs_blocks:
        return False
    return node.rows in (Rows.SAME, Rows.FEWER, Rows.MORE)


def stage_lanes(plan: Plan, *, joined: bool = True) -> tuple[Lane, ...]:
    """Return the lanes of the stages: of all steps from the first that calls a function on.

    Unless ``joined``, each function is in a lane of its own. Steps that only look up stored rows
    are in no lane.
    """
    steps = plan.on_blocks[1:]
    begin = next((n for n, step in enumerate(steps) if takes_long(step)), len(steps))
    lanes = list[Lane]()
    first = begin
    for stored, some in groupby(steps[begin:], lambda step: step.rows is Rows.STORED):
        nodes = tuple(some)
        if not stored:
            lanes += _lanes(nodes, 1 + first, batched=False, joined=joined)
        first += len(nodes)
    rest = [node for lane in lanes for node in lane.nodes]
    return tuple(lanes) if all(map(runs_apart, rest)) else ()


def keeps_units(plan: Plan) -> bool:
    """Return whether a step of the stages stores rows of each unit in a cache, or looks them up."""
    return any(step.rows is Rows.STORED for step in plan.on_blocks)


def nested(position: Position | None, lanes: Sequence[Lane]) -> Position | None:
    """Return ``position`` with a level for each function of ``lanes``.

    None, and a position that has levels already, are returned unchanged.
    """
    if position is None or "in" in position or not lanes:
        return position
    found: Position = {**position, "drop": 0}
    for lane in lanes:
        found = lane.outer(found, position["drop"] if lane is lanes[-1] else 0)
    return found


def fits(position: Position | None, lanes: Sequence[Lane]) -> bool:
    """Return whether a run can resume at ``position``: not between two functions of one lane."""
    for lane in reversed(lanes):
        free = None if position is None else position.get("free")
        if free is not None and free["sections"] != lane.sections:
            return False
        for number in range(lane.sections):
            if position is not None and number and position["drop"]:
                return False
            position = None if position is None else position["in"]
    return True


def other_needs(node: Node) -> ResumeMismatchError:
    """Return the error for a position between two functions that share a lane in this run."""
    return ResumeMismatchError(
        "the saved position lies between rows that this run does not make",
        at=node.label(),
        why="functions asked for other resources where it was saved",
        try_="the same num_cpus=, memory=, concurrency= ... of every function",
    )


def fits_units(position: Position | None) -> bool:
    """Return whether ``flat`` can convert a position of lanes to a position of the stages."""
    drops = _drops(position)
    return not any(drops[1:]) and "free" not in (position or ())


def flat(position: Position | None) -> Position | None:
    """Return a position of lanes as one of the stages; ``fits_units`` must be True for it."""
    drops = _drops(position)
    while position is not None and "in" in position:
        position = position["in"]
    return position if position is None or len(drops) < 2 else {**position, "drop": drops[0]}


def _drops(position: Position | None) -> list[int]:
    """Return the number of delivered rows in each level of a position, the topmost first."""
    found = []
    while position is not None:
        found.append(position.get("drop", 0))
        position = position.get("in")
    return found


def stream_lanes(plan: Plan, start: int = 0) -> dict[int, Lane]:
    """Return lanes from stream operator ``start`` on, by the number of their first operator."""
    found, number, base = dict[int, Lane](), start, len(plan.on_blocks)
    stream = plan.stream
    while number < len(stream):
        stop, batched = number, stream[number].inputs[0].batched
        while stop < len(stream) and _continues(stream[stop], batched=batched):
            stop += 1
        if any(map(takes_long, stream[number:stop])):
            lanes = _lanes(stream[number:stop], base + number, batched=batched, joined=True)
            found |= {lane.first - base: lane for lane in lanes}
        number = max(stop, number + 1)
    return found


# The key of a lane of the stages, which begins at no stream operator.
STAGE = -1


def freed_lanes(
    plan: Plan, stream: Mapping[int, Lane], stage: Sequence[Lane], position: Position | None
) -> dict[int, Lane]:
    """Return the lane that may deliver rows in any order, and changed lanes above it, by number.

    The free lane is the topmost lane of rows, or else of batches. No operator above it may be one
    that recomputes rows when it resumes, since rows would come in another order. Operators that
    gather batches, repeat passes, or change each batch separately are allowed. If the pipeline
    delivers rows, not batches, no operator may be above the lane. The result is empty if
    ``position``, where the run resumes, lies inside a slice of a lane above.
    """
    ends = {number + len(lane.nodes): number for number, lane in stream.items()}
    end, above = len(plan.stream), list[int]()
    while end:
        number = ends.get(end)
        if number is not None and not stream[number].batched:
            return _freed(stream, number, above)
        if number is not None:
            above.append(number)
            lane = stream[number]
            if any(_drops(position)[: lane.sections]):
                return {}
            position = lane.inner(position)
        elif not (plan.batched and _stays_between(plan.stream[end - 1])):
            break
        elif plan.stream[end - 1].rows is Rows.REPEATED:
            position = None if position is None else position["in"]
        end = end - 1 if number is None else number
    if not end and stage:
        return {STAGE: dataclasses.replace(stage[-1], free=True)} | _freed(stream, None, above)
    return _freed(stream, above[0], []) if above else {}


def _freed(stream: Mapping[int, Lane], number: int | None, above: Sequence[int]) -> dict[int, Lane]:
    found = {each: dataclasses.replace(stream[each], single=True) for each in above}
    if number is not None:
        found[number] = dataclasses.replace(stream[number], free=True)
    return found


def _stays_between(node: Node) -> bool:
    """Return whether ``node`` can resume at all of its positions without rereading input rows.

    The position of such a node is the position of its input, for ``repeat`` within one pass.
    """
    if node.rows is Rows.REPEATED or node.inputs[0].batched:
        return node.rows is Rows.REPEATED or runs_apart(node)
    return node.rows is Rows.GROUPED and node.resume_cost == ResumeCost()


def apart(lane: Lane) -> tuple[Lane, ...]:
    """Return the operators of ``lane`` as several lanes, one for each function."""
    lanes = _lanes(lane.nodes, lane.first, batched=lane.batched, joined=False)
    return tuple(dataclasses.replace(each, single=lane.single) for each in lanes)


def has_parallel_work(plan: Plan) -> bool:
    """Return whether some rows are computed in slices, or by pipelines that functions return."""
    opens = any(node.rows is Rows.WOVEN and node.calls is not None for node in plan.stream)
    return bool(opens or stage_lanes(plan) or stream_lanes(plan))


def _continues(node: Node, *, batched: bool) -> bool:
    return runs_apart(node) and node.inputs[0].batched is batched


def _lanes(steps: Sequence[Node], first: int, *, batched: bool, joined: bool) -> Iterator[Lane]:
    """Yield the lanes of ``steps``, each of which begins at a function or at ``steps[0]``.

    Neighbouring functions share a lane if ``joined`` is True, their needs are equal, and the later
    function does not read groups.
    """
    begin, sections = 0, 1
    begins = [n for n, step in enumerate(steps) if n and _begins(steps[:n], step)]
    for section, end in zip([0, *begins], [*begins, len(steps)], strict=True):
        following = steps[end : begins[begins.index(end) + 1] if end in begins[:-1] else None]
        together = joined and following and not following[0].group_rows
        if together and _needs(following) == _needs(steps[section:end]):
            sections += 1
            continue
        nodes, here = tuple(steps[begin:end]), steps[begin]
        yield Lane(nodes, first + begin, batched, here.group_rows, here.within_atoms, sections)
        begin, sections = end, 1


def _begins(before: Sequence[Node], step: Node) -> bool:
    """Return whether ``step`` begins a section: it reads groups, or calls a second function."""
    return step.group_rows > 0 or (takes_long(step) and any(map(takes_long, before)))
