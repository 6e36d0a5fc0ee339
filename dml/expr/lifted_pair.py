"""This file computes a proven ``map`` and the proven ``filter`` behind it in one pass over a block.

The columns of the map are only written for rows that the filter keeps. Where a check holds, or
before the first rows have been compared, the operators work one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dml.expr.block import Block
from dml.expr.compute import Programs, evaluate
from dml.expr.computed import cached_property
from dml.expr.ops.lifted import LiftedFilter, LiftedMap
from dml.expr.value import Value, substitute

if TYPE_CHECKING:
    from dml.expr.flow import At


class LiftedPair:
    """``mapped``, and ``kept`` behind it, neither of which may lose rows to errors."""

    def __init__(self, mapped: LiftedMap, kept: LiftedFilter) -> None:
        self.mapped, self.kept = mapped, kept

    @staticmethod
    def fits(mapped: object, kept: object) -> bool:
        """True for two operators that can be computed together."""
        if not isinstance(mapped, LiftedMap) or not isinstance(kept, LiftedFilter):
            return False
        return not (mapped.skips or kept.skips)

    @cached_property
    def programs(self) -> Programs:
        """The map's columns, in rows that the filter keeps; with the checks of both.

        Kept with the filter, as its own are: kernels are found again by their program.
        """
        found: tuple[LiftedMap, Programs] | None = self.kept.__dict__.get("_paired")
        if found is None or found[0] is not self.mapped:
            found = self.kept.__dict__["_paired"] = self.mapped, self._programs()
        return found[1]

    def _programs(self) -> Programs:
        env, memo = dict(self.mapped.env), dict[int, Value]()
        behind = (substitute(check, env, memo) for check in self.kept.checks)
        keep = substitute(self.kept.predicate, env, memo)
        return Programs(self.mapped.outputs, (*self.mapped.checks, *behind), keep)

    @property
    def trusted(self) -> bool:
        """True once both have been compared with their functions, and have not differed."""
        return all(n.trust.compared and not n.trust.differs for n in (self.mapped, self.kept))

    def run(self, block: Block, at: At) -> Block | None:
        """What both make of ``block``; None where each must look for itself."""
        if not (block.n and self.trusted and self.mapped.stands() and self.kept.stands()):
            return None
        result = evaluate(self.programs, block, at)
        if result.failed:
            return None
        self.mapped.trust.blocks += 1
        self.kept.trust.blocks += 1
        return Block(self.mapped.schema, tuple(result.outputs), block.ids.kept(result.kept))
