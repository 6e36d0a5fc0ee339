"""The work of a plan's operators is estimated: input rows, output rows, bytes and seconds.

Rows are counted twice: from the source upwards, as if all rows were needed, and then downwards,
since ``take`` needs fewer rows and ``repeat`` needs more. If the data does not say how many rows it
has, the rows of an earlier run of the same pipeline are used, if such a run was complete.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from dml.expr.columns.value import Value
from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.io.source import Source, Unit
from dml.ops.row.segment import Segment
from dml.ops.slice.take import Take
from dml.optimize.cost.beliefs import HISTORY, PRIOR, Belief, combined
from dml.optimize.cost.priors import kept_by, kept_share, prior_s, row_bytes
from dml.optimize.work_names import Names
from dml.physical.plan import Plan, Stage
from dml.profile import CostKey, Profile, counted

# The most units that are checked against statistics; all others are estimated from these.
ASKED_UNITS = 256
BLOCK_ROWS = 65_536
# The fixed cost of a block, however few rows it has.
BLOCK_S = 15e-6
# The value of ``Estimate.counted`` for exact row counts.
EXACT = ""
# Operators that give as many rows as they take, counted in rows of blocks.
ALIKE = (Rows.SAME, Rows.PERMUTED, Rows.KEPT, Rows.STORED, Rows.GROUPED, Rows.REGROUPED)


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """The expected work of one operator; ``per_row`` is seconds per input row (source: output row).

    ``counted`` says how the rows were counted: "" exactly, "p" by a guess, "h" in earlier runs. An
    endless stream has math.inf rows, and None for seconds. ``reads`` is True for a source. ``work``
    is the operator's fingerprint in the cost domain, and ``runs`` the number of runs that measured
    its cost, with less weight for old ones.
    """

    ordinal: int
    title: str
    rows_in: float
    rows_out: float
    bytes_out: float
    per_row: Belief
    counted: str
    reads: bool = False
    work: str = ""
    runs: float = 0.0

    @property
    def worked_rows(self) -> float:
        """The rows that cost time: the output rows of a source, else the input rows."""
        return self.rows_out if self.reads else self.rows_in

    @property
    def seconds(self) -> Belief | None:
        """The total seconds; None for no rows, or for an endless stream."""
        rows = self.worked_rows
        return self.per_row.times(rows) if 0 < rows < math.inf else None


def estimates(
    plan: Plan,
    names: Sequence[Names],
    profile: Profile,
    *,
    compiled: bool = True,
    gives: float | None = None,
) -> tuple[Estimate, ...]:
    """Return the estimates of all operators, in the order of ``work_names``.

    Operators of this plan come first, then those of the plans in ``plan.beside``. Unless ``gives``
    is None, guessed shares of rows are scaled so that the plan outputs ``gives`` rows in all.
    """
    made = _Estimating(names, profile, plan.fingerprint, compiled=compiled)
    return tuple(made.chain(plan, 0, gives))


@dataclasses.dataclass(slots=True)
class _Step:
    """The row counts of one operator; ``per`` is the number of rows in an element of its output.

    ``taken_bytes`` are the bytes of an input row, ``row_bytes`` of an output row. ``stage`` is the
    reading stage of a source, else None; ``guessed`` is True if the share of rows is a guess.
    ``main_share`` is the share of the input rows that come from the first input.
    """

    node: Node
    names: Names
    rows_in: float
    rows_out: float
    taken_bytes: float
    row_bytes: float
    per: float
    counted: str
    stage: Stage | None = None
    guessed: bool = False
    main_share: float = 1.0

    @property
    def elements(self) -> float:
        """The number of elements that the operator outputs."""
        return self.rows_out / self.per if self.per else self.rows_out


class _Estimating:
    """One estimation; rows of earlier runs are looked up by the fingerprint ``pipeline``."""

    def __init__(
        self, names: Sequence[Names], profile: Profile, pipeline: str, *, compiled: bool
    ) -> None:
        self.names, self.profile, self.pipeline = names, profile, pipeline
        self.compiled = compiled

    def chain(self, plan: Plan, first: int, gives: float | None = None) -> list[Estimate]:
        """Estimate ``plan``, whose source has the ordinal ``first``, then its ``beside`` plans."""
        operators = plan.operators
        begins, number = [], first + len(operators)
        for each in (other for plans in plan.beside for other in plans):
            begins.append((each, number))
            number += sum(len(below.operators) for below in each.all)
        beside = {id(each): self.chain(each, start) for each, start in begins}
        given = dict(zip(map(id, plan.stream), plan.beside, strict=True))
        steps: list[_Step] = []
        for ordinal, node in enumerate(operators, first):
            others = [beside[id(each)][len(each.operators) - 1] for each in given.get(id(node), ())]
            below = steps[-1] if steps else None
            steps.append(self._step(plan, node, below, others, self.names[ordinal]))
        if gives is not None:
            _lead_to(steps, gives)
        shares = _asked_of(steps)
        if min(shares) < 1 or steps[0].counted:
            self._recall(steps, first)
        source = plan.stage.source
        at_once = source.unit(0).atom_rows if source.unit_count else BLOCK_ROWS
        own = [self._estimate(first + i, step, at_once) for i, step in enumerate(steps)]
        for place, node in enumerate(plan.stream, len(plan.on_blocks)):
            for each in given[id(node)]:
                beside[id(each)] = [_scaled(one, shares[place]) for one in beside[id(each)]]
        return [*own, *(one for each, _ in begins for one in beside[id(each)])]

    def _step(
        self,
        plan: Plan,
        node: Node,
        below: _Step | None,
        others: list[Estimate],
        names: Names,
    ) -> _Step:
        """Return the row counts of ``node``, as if all rows were wanted."""
        if below is None or isinstance(node, Source):
            return self._read(plan.stage, names)
        rows_in = below.rows_out + sum(each.rows_out for each in others)
        elements = [below.elements, *(each.rows_out / below.per for each in others)]
        rows_out, letter = self._output_rows(node, below, rows_in, elements, names)
        per = below.per
        if node.batched and not below.node.batched:
            length = node.length(*map(_whole, elements))
            per = rows_out / length if length and rows_out < math.inf else node.batch_rows or 1
        elif not node.batched:
            per = 1.0
        size = self.profile.sizes.get(names["fleet"])
        width = row_bytes(node.schema) if size is None else size.typical
        counted = max(letter, below.counted, *(each.counted for each in others))
        taken = below.row_bytes
        guessed = letter == PRIOR and names.get("kept") not in self.profile.ratios
        main = below.rows_out / rows_in if others and 0 < rows_in < math.inf else 1.0
        counts = rows_in, rows_out, taken, width, per, counted
        return _Step(node, names, *counts, guessed=guessed, main_share=main)

    def _output_rows(
        self,
        node: Node,
        below: _Step,
        rows_in: float,
        elements: list[float],
        names: Names,
    ) -> tuple[float, str]:
        """Return how many rows ``node`` outputs, and how that was counted (see ``Estimate``)."""
        if node.rows in ALIKE or (isinstance(node, Segment) and not node.predicate):
            return rows_in, EXACT
        length = node.length(*map(_whole, elements))
        if length is not None:
            return length * (below.per if node.batched else 1), EXACT
        found = self.profile.ratios.get(names["fleet"])
        if found is not None:
            return rows_in * found.typical, HISTORY
        # the ratio of the same filter over other units is near enough for a guess
        alike = self.profile.ratios.get(names.get("kept", ""))
        if alike is not None:
            return rows_in * alike.typical, PRIOR
        if isinstance(node, Segment) and below.stage is not None:
            return rows_in * _passing(below.stage, node.predicate), PRIOR
        return rows_in * kept_share(node), PRIOR

    def _read(self, stage: Stage, names: Names) -> _Step:
        source = stage.source
        rows, letter = _rows_of(stage)
        size = self.profile.sizes.get(names["fleet"])
        width = row_bytes(source.schema, stage.columns) if size is None else size.typical
        return _Step(source, names, rows, rows, width, width, 1.0, letter, stage)

    def _recall(self, steps: list[_Step], first: int) -> None:
        """Use the rows of earlier runs of this pipeline, if every operator has some."""
        keys = [counted(self.pipeline, first + i) for i in range(len(steps))]
        found = [known for key in keys if (known := self.profile.counts.get(key)) is not None]
        if len(found) < len(steps):
            return
        for step, below, known in zip(steps, (found[0], *found), found, strict=False):
            step.rows_in, step.rows_out = below.typical, known.typical
            step.counted = HISTORY

    def _estimate(self, ordinal: int, step: _Step, at_once: int) -> Estimate:
        """Estimate ``step``, with blocks as large as in earlier runs, else of ``at_once`` rows."""
        node, reads = step.node, isinstance(step.node, Source)
        rows = step.rows_out if reads else step.rows_in
        taken = step.taken_bytes
        seen = self.profile.blocks.get(step.names["fleet"])
        block_rows = min(rows, at_once) if seen is None else seen.typical
        fixed = BLOCK_S * self.profile.speed.work / max(1.0, block_rows)
        moved = step.stage is not None and step.stage.order is not None
        own = prior_s(node, taken, self.profile.speed, compiled=self.compiled, moved=moved)
        guess = Belief.prior(fixed + own)
        key = CostKey.of(step.names["cost"], self.profile.host_class, block_rows, taken)
        near = self.profile.near(key)
        beliefs = [guess] if near is None else [guess, Belief.learned(*near)]
        return Estimate(
            ordinal,
            node.title(),
            step.rows_in,
            step.rows_out,
            step.rows_out * step.row_bytes,
            combined(beliefs),
            step.counted,
            reads,
            step.names["cost"],
            0.0 if near is None else near[0].weight,
        )


def _whole(elements: float) -> float:
    return elements if elements == math.inf else round(elements)


def _scaled(one: Estimate, share: float) -> Estimate:
    return dataclasses.replace(
        one,
        rows_in=one.rows_in * share,
        rows_out=one.rows_out * share,
        bytes_out=one.bytes_out * share,
    )


def _lead_to(steps: list[_Step], gives: float) -> None:
    """Scale all guessed shares of rows equally, so that the last step outputs ``gives`` rows."""
    found, guessed = steps[-1].rows_out, sum(step.guessed for step in steps)
    if not guessed or not (0 < found < math.inf and 0 < gives < math.inf):
        return
    each, factor = (gives / found) ** (1 / guessed), 1.0
    for step in steps:
        if step.stage is None:
            step.rows_in *= factor
        factor *= each if step.guessed else 1.0
        step.rows_out *= factor


def _asked_of(steps: list[_Step]) -> list[float]:
    """Limit each step to the rows that later steps need; return the shares that remain."""
    wanted = steps[-1].rows_out
    shares = [1.0] * len(steps)
    for place in range(len(steps) - 1, -1, -1):
        step = steps[place]
        whole_in, whole_out = step.rows_in, step.rows_out
        needed = _needed(step, wanted)
        step.rows_out = wanted
        step.rows_in = needed
        if 0 < whole_in < math.inf:
            shares[place] = needed / whole_in
        if 0 < whole_out < math.inf and place == 0:
            shares[place] = wanted / whole_out
        wanted = needed * step.main_share
    return shares


def _needed(step: _Step, wanted: float) -> float:
    """Return how many input rows ``step`` needs to output ``wanted`` rows."""
    whole_in, whole_out = step.rows_in, step.rows_out
    if step.node.rows is Rows.REPEATED:
        return whole_in if wanted == math.inf else wanted
    if isinstance(step.node, Take):
        return min(whole_in, wanted)
    if step.node.waits or not whole_out or whole_out == wanted:
        return whole_in
    if math.inf in (whole_in, whole_out):
        return min(whole_in, wanted)
    return whole_in * wanted / whole_out


def _rows_of(stage: Stage) -> tuple[float, str]:
    """Return the rows in units that may match the filter, and how they were counted."""
    source = stage.source
    rows, letter = _counted(source)
    if not stage.predicate or not source.unit_count:
        return rows, letter
    asked = _asked_units(source)
    kept = [unit for unit in asked if source.may_match(unit, stage.predicate)]
    if any(unit.is_open for unit in asked):
        return rows * len(kept) / len(asked), PRIOR
    if len(asked) == source.unit_count:
        return _rows_in(kept), EXACT
    return rows * _rows_in(kept) / max(1.0, _rows_in(asked)), PRIOR


def _passing(stage: Stage, predicate: Sequence[Value]) -> float:
    """Return the share of the rows read that pass; 1 for units whose statistics prove it."""
    source = stage.source
    against = [(part, (Value("not", (part,)),)) for part in predicate if part in stage.predicate]
    others = math.prod(kept_by(part) for part in predicate if part not in stage.predicate)
    units = [unit for unit in _asked_units(source) if source.may_match(unit, stage.predicate)]
    rows = [max(1.0, float(unit.rows or 0)) for unit in units]
    shares = [
        math.prod(kept_by(part) if source.may_match(unit, no) else 1.0 for part, no in against)
        for unit in units
    ]
    passing = math.fsum(n * share for n, share in zip(rows, shares, strict=True))
    return others * passing / math.fsum(rows) if rows else 0.0


def _asked_units(source: Source) -> list[Unit]:
    """Return units spread over the source, few enough that checking them takes no time."""
    step = -(-source.unit_count // ASKED_UNITS) or 1
    return [source.unit(i) for i in range(0, source.unit_count, step)]


def _rows_in(units: Sequence[Unit]) -> float:
    return float(sum(unit.rows or 0 for unit in units))


def _counted(source: Source) -> tuple[float, str]:
    """Return the number of rows of a source, and how they were counted (see ``Estimate``)."""
    if source.row_count is not None:
        return float(source.row_count), EXACT
    units = _asked_units(source)
    if units and not any(unit.is_open for unit in units):
        return _rows_in(units) * source.unit_count / len(units), PRIOR
    held = sum(unit.nbytes for unit in units) / row_bytes(source.schema)
    return max(1.0, held * source.unit_count / max(1, len(units))), PRIOR
