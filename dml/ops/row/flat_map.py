"""``flat_map`` turns each row into any number of rows by a user's function."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from dml.data.block import Block
from dml.data.escape_analysis import owned_row
from dml.data.row_slicing import SETTLING_BYTES, SETTLING_ROWS, Weighing, weighed
from dml.data.schema import Schema
from dml.errors import DmlError, UDFError
from dml.expr.facts import Needs, Rows
from dml.expr.node import Node, op
from dml.expr.user_call import Raised, UserFunction, children, raised
from dml.ops.function_node import FunctionNode
from dml.ops.row.map_rows import returned, typed
from dml.udfs.calling import python_rows as convert
from dml.udfs.calling.error_policy import RAISE
from dml.udfs.calling.type_inference import Returned, heavy

if TYPE_CHECKING:
    from dml.expr.flow import At

# Output rows of one block: bounds the memory of a growing function, small enough for wide rows.
OUT_ROWS = 4096
NO_DICT = "which is not a dict"
FLAT_MAP = 0x666C61745F6D6170


class _Held(NamedTuple):
    """Child rows ``out``, with the index of each one's input row and its number among siblings."""

    out: list[Any]
    parents: list[int]
    child: list[int]


class _Children:
    """Buffers child rows, and cuts them into blocks by their bytes.

    Unknown types are settled by the children of the first 64 input rows, or by the first 4 MiB of
    children. Block boundaries are the same as with known types.
    """

    def __init__(self, node: FlatMap, block: Block, at: At) -> None:
        self.node, self.block, self.at = node, block, at
        self.held, self.waiting = _Held([], [], []), list[_Held]()
        self.weighing = Weighing()
        self.waiting_bytes = self.before = 0

    @property
    def count(self) -> int:
        """Return the number of child rows so far."""
        return self.before + len(self.held.out)

    @property
    def due(self) -> int:
        """Return the number of buffered rows at which to check whether they fill a block."""
        return min(OUT_ROWS, self.weighing.due)

    def full(self) -> bool:
        """Return True if the buffered rows fill a block."""
        out = self.held.out
        return self.weighing.enough(out) or len(out) == OUT_ROWS

    def flush(self, *, over: bool = False) -> Iterator[Block]:
        """Yield the buffered rows as blocks and drop them, once the types have settled.

        ``over`` is True if no rows follow: then the types settle on the rows buffered so far.
        """
        held, self.held = self.held, _Held([], [], [])
        self.before += len(held.out)
        if held.out:
            self.waiting.append(held)
        self.waiting_bytes += self.weighing.nbytes
        self.weighing.begin()
        if not self._settled and (over or self.waiting_bytes >= SETTLING_BYTES):
            self._settle()
        if not (over or self._settled):
            return
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            yield from self._blocks(each)

    def passed(self, rows: int) -> None:
        """Record that ``rows`` input rows are complete; settle the types after 64 rows."""
        if rows >= SETTLING_ROWS and not self._settled and (self.waiting or self.held.out):
            self._settle()

    def _settle(self) -> None:
        """Settle the types on the first buffered rows, up to 4 MiB."""
        some = [*self.waiting, self.held]
        every = _Held(*(list(chain.from_iterable(each)) for each in zip(*some, strict=True)))
        count = heavy(every.out, SETTLING_BYTES)
        if count:
            with suppress(DmlError):  # an unfit row raises later, in its place
                deque(self._blocks(_Held(*(each[:count] for each in every))), maxlen=0)

    @property
    def _settled(self) -> bool:
        return self.node.schema.known or self.node.digest.hex() in self.at.schemas

    def _blocks(self, held: _Held) -> Iterator[Block]:
        node, rows = self.node, self.block.ids.take(np.array(held.parents))
        ids = rows.derive(FLAT_MAP + node.level, np.array(held.child, dtype=np.uint64))
        try:
            yield from returned(node, node.fn, held.out, ids, self.at, parents=rows)
        except UDFError as error:
            raise explained(error) from error.__cause__


def explained(error: UDFError) -> UDFError:
    """Return ``error``, with a hint if a result is not a dict."""
    if error.what.endswith(NO_DICT):
        error.try_ = "return [{'name': value}, ...], or yield a dict for every row"
    return error


class _Gathered:
    """Buffers child rows before their types are known."""

    def __init__(self, node: FlatMap, block: Block) -> None:
        self.node, self.block = node, block
        self.held, self.ends, self.nbytes = _Held([], [], []), list[int](), 0

    def add(self, made: Any, parent: int, index: int) -> bool:
        """Buffer a child; return True once the buffered children are 4096, or take 4 MiB."""
        held = self.held
        held.out.append(made)
        held.parents.append(parent)
        held.child.append(index)
        self.nbytes += weighed([made])
        return self.nbytes >= SETTLING_BYTES or len(held.out) >= OUT_ROWS

    def end(self) -> None:
        """Record that the current input row has no further children."""
        self.ends.append(len(self.held.out))

    def flush(self, error: DmlError | None = None) -> Returned:
        """Return the buffered children, followed by ``error``, and drop them."""
        held, ends, nbytes = self.held, self.ends, self.nbytes
        self.held, self.ends, self.nbytes = _Held([], [], []), [], 0
        rows = self.block.ids.take(np.array(held.parents, dtype=np.int64))
        child = np.array(held.child, dtype=np.uint64)
        ids = rows.derive(FLAT_MAP + self.node.level, child)
        return Returned(held.out, ends, ids, rows, nbytes, error)


@op
class FlatMap(FunctionNode):
    """Replaces each row by the dicts that ``fn`` returns or yields for the row, in order.

    Row ids are derived from the input row's id, this operator and the child's index. With
    ``on_error="skip"``, if ``fn`` raises, the rest of the row's children is dropped, and earlier
    ones stay.
    """

    input: Node
    fn: UserFunction
    declared: Schema | None
    needs: Needs = Needs()
    on_error: str = RAISE

    version: ClassVar[int] = 2
    rows: ClassVar[Rows] = Rows.MORE

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """Yield blocks of at most 4096 children, fewer if large; errors come after earlier rows."""
        held = _Children(self, block, at)
        (out, parents, child), due = held.held, held.due
        call, rows = convert.readable(self.fn.call, convert.noticed(self.fn, block))
        for parent, row in enumerate(rows):
            for index, made in enumerate(children(call, row)):
                if isinstance(made, Raised) and self.skips:
                    self.lose(made.error, block.ids, parent, at, made=held.count)
                    break
                if isinstance(made, Raised):
                    yield from held.flush(over=True)
                    error = raised(made.error, self.fn, block.ids, parent)
                    raise error.located(self.label())
                out.append(owned_row(made) if self.fn.may_hold else made)
                parents.append(parent)
                child.append(index)
                if len(out) == due:
                    if held.full():
                        yield from held.flush()
                        out, parents, child = held.held
                    due = held.due
            held.passed(parent + 1)
        yield from held.flush(over=True)

    def returned(self, block: Block, at: At) -> Iterator[Returned]:
        """Yield the dicts that the function returns, before their types are known."""
        gathered = _Gathered(self, block)
        call, rows = convert.readable(self.fn.call, convert.noticed(self.fn, block))
        for parent, row in enumerate(rows):
            for index, made in enumerate(children(call, row)):
                if isinstance(made, Raised):
                    if self.skips:
                        self.lose(made.error, block.ids, parent, at)
                        break
                    error = raised(made.error, self.fn, block.ids, parent)
                    yield gathered.flush(error.located(self.label()))
                    return
                if gathered.add(owned_row(made) if self.fn.may_hold else made, parent, index):
                    yield gathered.flush()
            gathered.end()
        yield gathered.flush()

    def typed(self, made: Returned, at: At) -> Iterator[Block]:
        """Yield the results ``made`` as blocks, then raise the function's error, if any."""
        try:
            yield from typed(self, made, at)
        except UDFError as error:
            raise explained(error) from error.__cause__
