"""``filter`` with a user's function keeps the rows for which it returns a true value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dml.base.fork_guard import end_copy
from dml.data.block import Block
from dml.expr.facts import Needs, Rows
from dml.expr.node import Node, op
from dml.expr.user_call import UserFunction, caught, each, each_apart, raised
from dml.ops.unary import SameColumns
from dml.udfs.calling.error_policy import RAISE, Skipping
from dml.udfs.calling.python_rows import each_row

if TYPE_CHECKING:
    from dml.expr.flow import At


@op
class FilterRows(SameColumns, Skipping):
    """Keeps the rows for whose dict ``fn`` returns a true value, in order.

    With ``on_error="skip"`` rows for which ``fn`` raises are dropped.
    """

    input: Node
    fn: UserFunction
    needs: Needs = Needs()
    on_error: str = RAISE

    rows: ClassVar[Rows] = Rows.FEWER
    states_reads: ClassVar[bool] = True

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """Yield the kept rows; raise an error of the function after the rows before it."""
        if not block.n:
            return
        out = list[Any]() if not self.fn.may_hold else _Answers()
        error = each_row(self.fn, block, out)
        if self.skips:
            kept = self._true_of_rest(block, out, error, at)
            yield block.take(kept) if len(kept) < block.n else block.bare()
            return
        kept, error = _true(out, error)
        yield block.take(kept) if len(kept) < block.n else block.bare()
        if error is not None:
            raise raised(error, self.fn, block.ids, len(out)).located(self.label())

    def _true_of_rest(
        self, block: Block, out: list[Any], error: BaseException | None, at: At
    ) -> np.ndarray:
        """Return the indices of rows that pass, without rows for which the function raises."""
        places = np.arange(len(out))
        if error is not None:
            places = self.survivors(block, error, out, at)
        flags: list[bool] = []

        def unclear(place: int, why: BaseException) -> None:
            self.lose(why, block.ids, int(places[place]), at)

        clear = each_apart(bool, zip(out, strict=True), flags, unclear)
        passing = np.array(clear, dtype=np.int64)[np.array(flags, dtype=bool)]
        return np.asarray(places[passing])


class _Answers(list[Any]):
    """Results converted to booleans at once, since a function may change a returned object."""

    def append(self, made: Any) -> None:
        """Append a result as a boolean; a result without truth value is kept, and fails later."""
        end_copy()
        super().append(made if type(made) is bool else _truth(made))


def _truth(made: Any) -> Any:
    try:
        return bool(made)
    except Exception:  # noqa: BLE001 - an object of the user's may raise anything
        return made


def _truths(out: list[Any], made: list[np.ndarray]) -> None:
    made.append(np.fromiter(out, dtype=bool, count=len(out)))


def _true(out: list[Any], error: BaseException | None) -> tuple[np.ndarray, BaseException | None]:
    """Return the indices of the passing rows before the first error, and that error or None."""
    made: list[np.ndarray] = []
    if caught(_truths, out, made) is None:
        return np.flatnonzero(made[0]), error
    flags: list[bool] = []
    unclear = each(bool, out, flags)
    del out[len(flags) :]
    return np.flatnonzero(np.array(flags, dtype=bool)), error if unclear is None else unclear
