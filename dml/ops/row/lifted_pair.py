"""A lifted ``map`` and the lifted ``filter`` above it are computed in one pass over a block.

The columns of the map are only written for rows that the filter keeps. Where a check is true, or
before the first rows have been compared, the operators run one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dml.base.cached_property import cached_property
from dml.data.block import Block
from dml.expr.columns.computation import Programs, evaluate
from dml.expr.columns.value import Value, substitute
from dml.ops.row.lifted import LiftedFilter, LiftedMap

if TYPE_CHECKING:
    from dml.expr.flow import At


class LiftedPair:
    """A lifted map and the lifted filter above it, neither of which skips rows that raise."""

    def __init__(self, mapped: LiftedMap, kept: LiftedFilter) -> None:
        self.mapped, self.kept = mapped, kept

    @staticmethod
    def fits(mapped: object, kept: object) -> bool:
        """Return True for two operators that can be computed together."""
        if not isinstance(mapped, LiftedMap) or not isinstance(kept, LiftedFilter):
            return False
        return not (mapped.skips or kept.skips)

    @cached_property
    def programs(self) -> Programs:
        """Return compiled programs: the columns of rows that the filter keeps, and all checks.

        The programs are stored with the filter, so that their compiled kernels are found again.
        """
        found: tuple[LiftedMap, Programs] | None = self.kept.memo.get("pair")
        if found is None or found[0] is not self.mapped:
            found = self.kept.memo["pair"] = self.mapped, self._programs()
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
        """Return the result of both for ``block``; None if each must run by itself."""
        if not (block.n and self.trusted and self.mapped.stands() and self.kept.stands()):
            return None
        result = evaluate(self.programs, block, at)
        if result.failed:
            return None
        self.mapped.trust.blocks += 1
        self.kept.trust.blocks += 1
        ids = block.ids.take_without_copy(result.kept)
        return Block(self.mapped.schema, tuple(result.outputs), ids)
