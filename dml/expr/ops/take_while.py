"""This file holds ``take_while``: the rows before the first that does not pass."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from dml.errors import DmlError
from dml.expr import compute
from dml.expr import rows as convert
from dml.expr.block import Block
from dml.expr.calls import UserFunction, caught, each_apart, raised
from dml.expr.facts import Held, Rows
from dml.expr.flow import CHUNK, LocalFlow
from dml.expr.node import Node, op
from dml.expr.schema import Schema
from dml.expr.skipping import RAISE, Skipping
from dml.expr.typing import type_of
from dml.expr.value import Value, bind_draws, shown

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position


@op
class TakeWhile(Skipping):
    """The rows before the first for which ``test``, an expression or a function, is not true.

    Reads nothing after it, and calls no function for rows behind it. SchemaError if an expression
    is not boolean. With ``on_error="skip"`` a row for which a function raises is lost, and ends
    nothing.
    """

    input: Node
    test: Value | UserFunction
    on_error: str = RAISE

    # not a slice: it looks at columns
    rows: ClassVar[Rows] = Rows.RUNS

    @property
    def fn(self) -> UserFunction | None:
        """The function that is called, if it is one."""
        return self.test if isinstance(self.test, UserFunction) else None

    @property
    def random(self) -> bool:  # type: ignore[override]
        """True if an expression draws."""
        return isinstance(self.test, Value) and self.test.random

    def infer(self) -> Schema:
        """The input's schema, once an expression is known to be boolean."""
        given = self.input.schema
        if given.known and isinstance(self.test, Value):
            kind = type_of(self.test, given)
            if kind != pa.bool_():
                raise compute.no_truth(self.test, kind, given)
        return given

    def passing(self, block: Block, at: At) -> Iterator[np.ndarray]:
        """Whether each row passes, up to the first that does not or further; then errors."""
        if isinstance(self.test, UserFunction):
            yield from _called(self.test, block)
            return
        value = bind_draws(self.test, self.ordinal, 0)
        compute.Predicate((value,)).check(block.schema)
        for made in compute.Segment((), ("flag",), (value,)).run(block, at):
            yield compute.truth(made.columns[0], made.n)

    @property
    def held(self) -> Held:
        """Where a piece of the input began, and how many of its rows were given."""
        return Held(state_bytes=48, work_rows=CHUNK, work=f"at most {CHUNK} rows")

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Pass rows on until one does not pass."""
        return _Passing(self, open_input, epoch, position, at)

    def shown(self) -> str:
        """The predicate, or the function's name."""
        if isinstance(self.test, UserFunction):
            return f"{self.test.name}{self.skipping}"
        return shown(self.test)


def _called(fn: UserFunction, block: Block) -> Iterator[np.ndarray]:
    out: list[bool] = []
    error = caught(_until_false, fn, convert.to_rows(block), out)
    yield np.array(out, dtype=bool)
    if error is not None:
        raise raised(error, fn, block.ids, len(out))


def _until_false(fn: UserFunction, rows: list[Any], out: list[bool]) -> None:
    for row in rows:
        out.append(bool(fn.call(row)))
        if not out[-1]:
            return


class _Passing:
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
        self.rows = LocalFlow(self._begin, open_input, epoch, start["in"])
        if self.done:
            self.rows.close()

    def _begin(self, input_: Flow) -> Iterator[Block] | None:
        block = None if self.ended else input_.pull(CHUNK)
        return None if block is None else self._kept(block)

    def _kept(self, block: Block) -> Iterator[Block]:
        """The rows of ``block`` that pass, and whether one did not."""
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
        """The same where rows for which the function raises are lost."""
        passing: list[bool] = []
        errors: list[tuple[int, BaseException]] = []
        rows = takewhile(lambda _: all(passing[-1:]), convert.to_rows(block))
        given, lost = zip(rows, strict=True), lambda *error: errors.append(error)
        kept = each_apart(lambda row: bool(fn.call(row)), given, passing, lost)
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
        """Up to ``most`` rows that pass."""
        block = None if self.done else self.rows.pull(most)
        if block is None and not self.done:
            self.done = True
            self.rows.close()
        return block

    def position(self) -> Position:
        """Of the rows that pass, and whether they have come to their end."""
        return {"in": self.rows.position(), "done": self.done}

    def close(self) -> None:
        """Close the input."""
        self.rows.close()
