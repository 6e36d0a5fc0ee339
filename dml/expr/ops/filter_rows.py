"""This file holds ``filter`` by a user's function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dml.expr.block import Block
from dml.expr.calls import UserFunction, caught, each, each_apart, raised
from dml.expr.facts import Needs, Rows
from dml.expr.forking import end_copy
from dml.expr.node import Node, op
from dml.expr.rows import each_row
from dml.expr.schema import Schema
from dml.expr.skipping import RAISE, Skipping

if TYPE_CHECKING:
    from dml.expr.flow import At


@op
class FilterRows(Skipping):
    """The rows for whose dict ``fn`` returns something true; order is kept.

    With ``on_error="skip"`` rows for which it raises are not among them.
    """

    input: Node
    fn: UserFunction
    needs: Needs = Needs()
    on_error: str = RAISE

    rows: ClassVar[Rows] = Rows.FEWER

    def infer(self) -> Schema:
        """The input's schema."""
        return self.input.schema

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """The kept rows; where the function raises, those before it, then the error."""
        if not block.n:
            return
        out = list[Any]() if not self.fn.purity else _Answers()
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
        """Which rows pass, when those that raise do not."""
        places = np.arange(len(out))
        if error is not None:
            places = self.survivors(block, error, out, at)
        flags: list[bool] = []

        def unclear(place: int, why: BaseException) -> None:
            self.lose(why, block.ids, int(places[place]), at)

        clear = each_apart(bool, zip(out, strict=True), flags, unclear)
        passing = np.array(clear, dtype=np.int64)[np.array(flags, dtype=bool)]
        return np.asarray(places[passing])

    def shown(self) -> str:
        """The function's name, and what it needs."""
        return f"{self.fn.name}{self.skipping}{self.needs.shown()}"


class _Answers(list[Any]):
    """What a function answers: true or false at once, as it may change the object it returned."""

    def append(self, made: Any) -> None:
        """Add an answer; one that is neither true nor false is found out later."""
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
    """Which rows pass, and what ends them: a result that is neither true nor false raises too."""
    made: list[np.ndarray] = []
    if caught(_truths, out, made) is None:
        return np.flatnonzero(made[0]), error
    flags: list[bool] = []
    unclear = each(bool, out, flags)
    del out[len(flags) :]
    return np.flatnonzero(np.array(flags, dtype=bool)), error if unclear is None else unclear
