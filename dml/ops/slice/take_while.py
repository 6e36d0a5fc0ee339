"""``take_while`` returns the rows before the first that does not pass a test."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dml.data.block import Block
from dml.data.schema import Schema
from dml.errors import DmlError
from dml.expr.columns import computation
from dml.expr.columns.typing import type_of
from dml.expr.columns.value import Value, bind_draws, value_text
from dml.expr.facts import ResumeCost, Rows
from dml.expr.flow import CHUNK, LocalFlow
from dml.expr.node import Node, op
from dml.expr.user_call import UserFunction, each_apart, raised
from dml.udfs.calling import python_rows as convert
from dml.udfs.calling.error_policy import RAISE, Skipping

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position


@op
class TakeWhile(Skipping):
    """Returns the rows before the first for which ``test``, expression or function, is not true.

    No later blocks are pulled, and no function is called for later rows. Raises SchemaError if an
    expression is not boolean. With ``on_error="skip"`` a row for which a function raises is
    dropped, and does not end the output.
    """

    input: Node
    test: Value | UserFunction
    on_error: str = RAISE

    # not a slice: it looks at columns
    rows: ClassVar[Rows] = Rows.RUNS
    # A chunk's position is saved, the chunk is tested again.
    resume_cost = ResumeCost(state_bytes=48, work_rows=CHUNK, work=f"at most {CHUNK} rows")

    @property
    def fn(self) -> UserFunction | None:
        """Return the function that is called; None for an expression."""
        return self.test if isinstance(self.test, UserFunction) else None

    @property
    def random(self) -> bool:  # type: ignore[override]
        """True if an expression draws random numbers."""
        return isinstance(self.test, Value) and self.test.random

    def schema_over(self, given: Schema) -> Schema:
        """Return the input's schema; raise SchemaError unless an expression is boolean."""
        if isinstance(self.test, Value):
            computation.require_truth(self.test, type_of(self.test, given), given)
        return given

    def passing(self, block: Block, at: At) -> Iterator[np.ndarray]:
        """Yield masks of passing rows, up to the first failing row or later; raise errors last."""
        if isinstance(self.test, UserFunction):
            yield from _called(self.test, block)
            return
        value = bind_draws(self.test, self.ordinal, 0)
        computation.Predicate((value,)).check(block.schema)
        for made in computation.ComputedSegment((), ("flag",), (value,)).run(block, at):
            yield computation.truth(made.columns[0], made.n)

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Open a flow that ends before the first row that does not pass."""
        return _Passing(self, open_input, epoch, position, at)

    def parameters_text(self) -> str:
        """Return the test as text: the expression, or the function's name."""
        if isinstance(self.test, UserFunction):
            return f"{self.test.name}{self.skipping}"
        return value_text(self.test)


def _called(fn: UserFunction, block: Block) -> Iterator[np.ndarray]:
    out: list[bool] = []
    error = fn.caught(_until_false, *convert.readable(fn.call, block), out)
    yield np.array(out, dtype=bool)
    if error is not None:
        raise raised(error, fn, block.ids, len(out))


def _until_false(call: Callable[..., Any], rows: Sequence[Any], out: list[bool]) -> None:
    for row in rows:
        out.append(bool(call(row)))
        if not out[-1]:
            return


class _Passing(LocalFlow):
    def __init__(
        self,
        node: TakeWhile,
        open_input: Opener,
        epoch: int,
        position: Position | None,
        at: At,
    ) -> None:
        start = position or {"in": None, "done": False}
        self.node, self.at = node, at
        self.ended = self.done = bool(start["done"])
        super().__init__(self._begin, open_input, epoch, start["in"])
        if self.done:
            self.close()

    def _begin(self, input_: Flow) -> Iterator[Block] | None:
        block = None if self.ended else input_.pull(CHUNK)
        return None if block is None else self._select(block)

    def _select(self, block: Block) -> Iterator[Block]:
        """Yield the rows of ``block`` before the first that fails; set ``ended`` if one fails."""
        start = 0
        if self.node.fn is not None and self.node.skips:
            yield from self._survivors(self.node.fn, block)
            return
        try:
            for flags in self.node.passing(block, self.at):
                stop = len(flags) if flags.all() else int(flags.argmin())
                self.ended = stop < len(flags)
                if stop:
                    yield block.slice(start, start + stop)
                if self.ended:
                    return
                start += stop
        except DmlError as error:
            raise error.under(self.node.label()) from error.__cause__

    def _survivors(self, fn: UserFunction, block: Block) -> Iterator[Block]:
        """Do the same as ``_select``, and drop the rows for which ``fn`` raises."""
        passing: list[bool] = []
        errors: list[tuple[int, BaseException]] = []
        call, rows = convert.readable(fn.call, block)
        given = zip(takewhile(lambda _: all(passing[-1:]), rows), strict=True)
        kept = each_apart(
            lambda row: bool(call(row)), given, passing, lambda *error: errors.append(error)
        )
        self.ended = not all(passing)
        kept, start = kept[: len(kept) - self.ended], 0
        for place, error in errors:
            stop = bisect_left(kept, place) if self.at.bounded else start
            if stop > start:
                yield block.take(np.array(kept[start:stop]))
            start = stop
            self.node.lose(error, block.ids, place, self.at)
        if len(kept) > start:
            yield block.take(np.array(kept[start:]))

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` rows that pass; None at the end."""
        block = None if self.done else super().pull(most)
        if block is None and not self.done:
            self.done = True
            self.close()
        return block

    def position(self) -> Position:
        """Return the position among the passing rows, and whether they have ended."""
        return {"in": super().position(), "done": self.done}
