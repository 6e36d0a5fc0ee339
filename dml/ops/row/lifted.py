"""A lifted function is a user's ``map`` or ``filter`` function that is computed as expressions.

The optimizer lifts a row function that is proven equal to expressions. For each block, the
expressions and their checks are computed. If a check is true in a row of the block, the proof does
not apply, and the function is called for the rows of the block instead. For the first rows in a
process, both are computed and compared, and the function's results are returned. If they differ,
the function is called from then on, and the difference is counted as a bug of dml.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

from dml.base.cached_property import cached_property
from dml.data.block import Block, Values, joined
from dml.data.row_slicing import in_parts
from dml.data.schema import Schema
from dml.errors import InternalError
from dml.expr.columns.computation import Programs, evaluate, truth
from dml.expr.columns.typing import lower
from dml.expr.columns.value import Value, value_text
from dml.expr.facts import Rows
from dml.expr.node import Node, op
from dml.expr.user_call import UserFunction
from dml.kernels.vec import Vec
from dml.ops.row.filter_rows import FilterRows
from dml.ops.row.rowwise import Env, growing
from dml.ops.unary import SameColumns
from dml.udfs.calling.error_policy import RAISE, Skipping

if TYPE_CHECKING:
    from dml.expr.flow import At
    from dml.ops.row.map_rows import MapRows

# Rows of the first block that are computed both ways.
COMPARED = 64


@dataclasses.dataclass(slots=True)
class Trust:
    """Counts of blocks in which a lifted function was compared with its expressions."""

    compared: bool = False
    differs: bool = False
    blocks: int = 0
    called_blocks: int = 0


class LiftedNode(Skipping):
    """The base of lifted operators: a function, the expressions in its place, and their checks."""

    checks: tuple[Value, ...]

    proven: ClassVar[bool] = True
    states_reads: ClassVar[bool] = True
    # True if the output of a row may be larger than the row.
    grows: bool = False

    @cached_property
    def trust(self) -> Trust:
        """Return the comparison results, which are stored with the node and hold for all runs."""
        return Trust()

    def check(self) -> None:
        """Record the current values of outer variables that the function reads."""
        super().check()
        _ = self.outside_values

    @cached_property
    def outside_values(self) -> tuple[object, ...]:
        """Return the values that the function's outer variables had when this was first called."""
        from dml.udfs.identity.environment import surroundings  # noqa: PLC0415

        return surroundings(self.fn.code)

    def stands(self) -> bool:
        """Return True if the outer variables that the function reads are unchanged."""
        from dml.udfs.identity.environment import unchanged  # noqa: PLC0415

        return unchanged(self.outside_values, self.fn.code)

    @cached_property
    def reads(self) -> frozenset[str]:
        """Return the input columns that the expressions and their checks read."""
        values = (*self.outputs, *self.checks)
        return frozenset().union(*(value.refs for value in values))

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Return the expressions that are computed in place of the function."""
        return ()

    @cached_property
    def programs(self) -> Programs:
        """Return the compiled expressions with their checks."""
        return Programs(self.outputs, self.checks)

    @cached_property
    def function(self) -> MapRows | FilterRows:
        """Return the operator that calls the function, as written."""
        raise InternalError(f"{type(self).__name__} calls nothing")

    def to_block(self, block: Block, outputs: Sequence[Values]) -> Block:
        """Return the output for ``block``; ``outputs`` are the values of the expressions."""
        raise InternalError(f"{type(self).__name__} computes nothing")

    def called(self, block: Block, at: At) -> Iterator[Block]:
        """Yield the output for ``block``, computed by calling the function row by row."""
        return self.function.run(block, at)

    def computed(self, block: Block, at: At) -> Block | None:
        """Return the output of the expressions; None if a check is true or ``stands`` is False."""
        if not self.stands():
            return None
        result = evaluate(self.programs, block, at)
        return None if result.failed else self.to_block(block, result.outputs)

    def quick(self, block: Block, at: At) -> Block | None:
        """Return ``computed(block, at)``; None until the function was called and gave the same."""
        if not self.trust.compared or self.trust.differs or not block.n:
            return None
        out = self.computed(block, at)
        self.trust.blocks += out is not None
        return out

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """Yield the output, computed by the expressions where they are valid, else by the function.

        Large output is divided into several blocks, with the same boundaries either way.
        """
        for part in in_parts(block, self.schema, partial(self._sampled, at)):
            yield from joined(self._in_parts(part, at))

    def _sampled(self, at: At, some: Block) -> int:
        """Return the output's bytes for ``some``; 0 if ``grows`` is False or a check is true."""
        made = self.computed(some, at) if self.grows else None
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
        """Yield the function's results for ``block``, and compare them with the expressions'."""
        quick = self.computed(block, at)
        slow = []
        for part in self.called(block, at):
            slow.append(part)
            yield part
        if quick is not None:  # else these rows lie outside the proof, and others are compared
            from dml.data.comparison import block_difference  # noqa: PLC0415

            same = len(slow) == 1 and not block_difference(slow[0], quick)
            self.trust.differs, self.trust.compared = not same, True


@op
class LiftedMap(LiftedNode):
    """Computes ``map(fn)`` as the columns ``env``, and calls ``fn`` where ``checks`` are true."""

    input: Node
    fn: UserFunction
    env: Env
    checks: tuple[Value, ...]
    on_error: str = RAISE

    @property
    def rows(self) -> Rows:  # type: ignore[override]
        """Return FEWER if rows that raise are skipped, else SAME."""
        return Rows.FEWER if self.skips else Rows.SAME

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Return the expressions of the columns."""
        return tuple(value for _, value in self.env)

    @cached_property
    def sure(self) -> bool:
        """True if passed-on columns stay unchanged in every row where ``fn`` does not raise."""
        from dml.udfs.lifting.lifter import Lifted, lift  # noqa: PLC0415

        found = lift(self.fn.code, self.input.schema)
        return isinstance(found, Lifted) and found.sure

    def infer(self) -> Schema:
        """Return the columns with their proven types."""
        kinds = lower(self.outputs, self.input.schema, self.checks).types
        return Schema((name, kind) for (name, _), kind in zip(self.env, kinds, strict=True))

    @cached_property
    def function(self) -> MapRows:
        """Return the ``map`` as written."""
        from dml.ops.row.map_rows import MapRows  # noqa: PLC0415

        made = MapRows(self.input, self.fn, self.schema, on_error=self.on_error)
        return made.placed(self.where)

    @cached_property
    def grows(self) -> bool:  # type: ignore[override]
        """True if text columns are computed, not only passed on."""
        return growing(self.env, self.schema)

    def to_block(self, block: Block, outputs: Sequence[Values]) -> Block:
        """Return a block of the computed columns."""
        return Block(self.schema, tuple(outputs), block.ids)

    def parameters_text(self) -> str:
        """Return the function and its expressions as text."""
        return f"{self.fn.name}{self.skipping}: " + ", ".join(
            f"{n}={value_text(v)}" for n, v in self.env
        )


@op
class LiftedFilter(SameColumns, LiftedNode):
    """Computes ``filter(fn)`` as ``predicate``, and calls ``fn`` where ``checks`` are true."""

    input: Node
    fn: UserFunction
    predicate: Value
    checks: tuple[Value, ...]
    on_error: str = RAISE

    rows: ClassVar[Rows] = Rows.FEWER

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Return the predicate."""
        return (self.predicate,)

    @cached_property
    def function(self) -> FilterRows:
        """Return the ``filter`` as written."""
        return FilterRows(self.input, self.fn, on_error=self.on_error).placed(self.where)

    def to_block(self, block: Block, outputs: Sequence[Values]) -> Block:
        """Return the rows of ``block`` for which the predicate, in ``outputs``, is true."""
        kept = truth(cast("Vec", outputs[0]), block.n)
        return block.bare() if kept.all() else block.take(np.flatnonzero(kept))

    def parameters_text(self) -> str:
        """Return the function and its expression as text."""
        return f"{self.fn.name}{self.skipping}: {value_text(self.predicate)}"
