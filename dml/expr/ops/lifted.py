"""This file holds lifted functions: ``map`` and ``filter`` by a user's function, as expressions.

The optimizer puts them where a row function is proven to be what its expressions say. Each block
computes the expressions and their checks; a block in which a check is true lies outside the proof
and is computed by calling the function, before anything of it is given out. The first rows that a
process sees of a function are computed both ways, and those of the function are given out: on a
difference, the function is called from then on, and a bug of dml is counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

from dml.errors import InternalError
from dml.expr.block import Block, Values, joined
from dml.expr.calls import UserFunction
from dml.expr.compute import Programs, evaluate, truth
from dml.expr.computed import cached_property
from dml.expr.cutting import in_parts
from dml.expr.facts import Rows
from dml.expr.lift import Lifted, lift
from dml.expr.node import Node, op
from dml.expr.ops.filter_rows import FilterRows
from dml.expr.ops.map_rows import MapRows
from dml.expr.rowwise import Env
from dml.expr.schema import Schema
from dml.expr.skipping import RAISE, Skipping
from dml.expr.surroundings import surroundings, unchanged
from dml.expr.typing import lower
from dml.expr.value import Value, shown
from dml.kernels.vec import Vec

if TYPE_CHECKING:
    from dml.expr.flow import At

# Rows of the first block that are computed both ways.
COMPARED = 64


@dataclasses.dataclass(slots=True)
class Trust:
    """What running has shown of a lifted function."""

    compared: bool = False
    differs: bool = False
    blocks: int = 0
    called_blocks: int = 0


class LiftedNode(Skipping):
    """Common parts: programs with checks, the function to fall back on, the first comparison."""

    checks: tuple[Value, ...]

    proven: ClassVar[bool] = True

    @cached_property
    def trust(self) -> Trust:
        """Kept with the node, since it holds for the function and not for a run."""
        return Trust()

    def check(self) -> None:
        """Remembers what the function takes from outside while that is what it was lifted with."""
        super().check()
        _ = self.given

    @cached_property
    def given(self) -> tuple[object, ...]:
        """What the function took from outside when it was lifted, or came to this process."""
        return surroundings(self.fn.call)

    def stands(self) -> bool:
        """Whether that is what it takes now."""
        return unchanged(self.given, self.fn.call)

    @cached_property
    def reads(self) -> frozenset[str]:
        """Columns that the function looks at, on any path."""
        values = (*self.outputs, *self.checks)
        return frozenset().union(*(value.refs for value in values))

    @property
    def outputs(self) -> tuple[Value, ...]:
        """What is computed."""
        return ()

    @cached_property
    def programs(self) -> Programs:
        """The expressions with their checks."""
        return Programs(self.outputs, self.checks)

    def function(self) -> MapRows | FilterRows:
        """The operator that calls the function."""
        raise InternalError(f"{type(self).__name__} calls nothing")

    def made(self, block: Block, outputs: Sequence[Values]) -> Block:
        """The output block, from what was computed."""
        raise InternalError(f"{type(self).__name__} computes nothing")

    def called(self, block: Block, at: At) -> Iterator[Block]:
        """The block computed by the function itself, row by row."""
        return self.function().run(block, at)

    def computed(self, block: Block, at: At) -> Block | None:
        """The block computed by the expressions; None where a check is true, or they are stale."""
        if not self.stands():
            return None
        result = evaluate(self.programs, block, at)
        return None if result.failed else self.made(block, result.outputs)

    def quick(self, block: Block, at: At) -> Block | None:
        """The block by the expressions, once they were compared; None where it must be called."""
        if not self.trust.compared or self.trust.differs or not block.n:
            return None
        out = self.computed(block, at)
        self.trust.blocks += out is not None
        return out

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """The block, computed the quick way where that is proven; one block in any case.

        Where its rows are large it is several, the same ones whichever way it is.
        """
        for part in in_parts(block, self.schema, partial(self._sampled, at)):
            yield from joined(self._in_parts(part, at))

    def _sampled(self, at: At, some: Block) -> int:
        """Bytes that some rows become by the expressions, 0 where they lie outside the proof."""
        grows = any(value.op != "col" for value in self.outputs)
        made = self.computed(some, at) if grows else None
        return 0 if made is None else made.weight

    def _in_parts(self, block: Block, at: At) -> Iterator[Block]:
        self.trust.blocks += bool(block.n)
        if block.n and not self.trust.compared:
            yield from self._compared(block.slice(0, COMPARED), at)
            block = block.slice(min(COMPARED, block.n), block.n)
        if not block.n:
            return
        out = None if self.trust.differs else self.computed(block, at)
        if out is None:
            self.trust.called_blocks += 1
            yield from self.called(block, at)
        else:
            yield out

    def _compared(self, block: Block, at: At) -> Iterator[Block]:
        """What the function makes of first rows: it is compared, and is what is given out."""
        quick = self.computed(block, at)
        slow = []
        for part in self.called(block, at):
            slow.append(part)
            yield part
        if quick is not None:  # else these rows lie outside the proof, and others are compared
            same = len(slow) == 1 and same_rows(slow[0], quick)
            self.trust.differs, self.trust.compared = not same, True


def same_rows(a: Block, b: Block) -> bool:
    """True if two blocks have equal schema, ids and values, bit for bit (all NaNs are one)."""
    if a.schema != b.schema or a.n != b.n:
        return False
    pairs = zip(a.columns, b.columns, strict=True)
    ids = zip(a.ids.arrays(), b.ids.arrays(), strict=True)
    return all(np.array_equal(x, y) for x, y in ids) and all(_same(x, y) for x, y in pairs)


def _same(a: object, b: object) -> bool:
    if not isinstance(a, Vec) or not isinstance(b, Vec):
        return bool(a.equals(b))  # type: ignore[attr-defined]
    present = np.ones(len(a.values), dtype=bool) if a.valid is None else a.valid
    other = np.ones(len(b.values), dtype=bool) if b.valid is None else b.valid
    if not np.array_equal(present, other):
        return False
    x, y = a.values[present], b.values[present]
    if x.dtype.kind == "f":
        both = np.isnan(x) & np.isnan(y)
        return bool(np.all(both | (x.view(f"u{x.itemsize}") == y.view(f"u{y.itemsize}"))))
    return bool(np.array_equal(x, y))


@op
class LiftedMap(LiftedNode):
    """``map(fn)`` as the columns ``env``, called where ``checks`` say so."""

    input: Node
    fn: UserFunction
    env: Env
    checks: tuple[Value, ...]
    on_error: str = RAISE

    @property
    def rows(self) -> Rows:  # type: ignore[override]
        """One for one, but for rows that are lost."""
        return Rows.FEWER if self.skips else Rows.SAME

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The columns."""
        return tuple(value for _, value in self.env)

    @cached_property
    def sure(self) -> bool:
        """Whether what it hands on is handed on in every row for which the function returns."""
        found = lift(self.fn.call, self.input.schema)
        return isinstance(found, Lifted) and found.sure

    def infer(self) -> Schema:
        """Names and proven types."""
        kinds = lower(self.outputs, self.input.schema, self.checks).types
        return Schema((name, kind) for (name, _), kind in zip(self.env, kinds, strict=True))

    @cached_property
    def _function(self) -> MapRows:
        made = MapRows(self.input, self.fn, self.schema, on_error=self.on_error)
        return made.placed(self.where)

    def function(self) -> MapRows:
        """The ``map`` as written."""
        return self._function

    def made(self, block: Block, outputs: Sequence[Values]) -> Block:
        """The columns."""
        return Block(self.schema, tuple(outputs), block.ids)

    def shown(self) -> str:
        """The function and what it became."""
        return f"{self.fn.name}{self.skipping}: " + ", ".join(
            f"{n}={shown(v)}" for n, v in self.env
        )


@op
class LiftedFilter(LiftedNode):
    """``filter(fn)`` as the expression ``predicate``, called where ``checks`` say so."""

    input: Node
    fn: UserFunction
    predicate: Value
    checks: tuple[Value, ...]
    on_error: str = RAISE

    rows: ClassVar[Rows] = Rows.FEWER

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The predicate."""
        return (self.predicate,)

    def infer(self) -> Schema:
        """The input's schema."""
        return self.input.schema

    @cached_property
    def _function(self) -> FilterRows:
        return FilterRows(self.input, self.fn, on_error=self.on_error).placed(self.where)

    def function(self) -> FilterRows:
        """The ``filter`` as written."""
        return self._function

    def made(self, block: Block, outputs: Sequence[Values]) -> Block:
        """The rows where the predicate is true."""
        kept = truth(cast("Vec", outputs[0]), block.n)
        return block.bare() if kept.all() else block.take(np.flatnonzero(kept))

    def shown(self) -> str:
        """The function and what it became."""
        return f"{self.fn.name}{self.skipping}: {shown(self.predicate)}"
