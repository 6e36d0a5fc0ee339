"""``flat_map`` turns each row into any number of rows by a user's function."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
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
    """Rows that a function gave, each with its input row's place and its number among siblings."""

    out: list[Any]
    parents: list[int]
    child: list[int]


class _Children:
    """Child rows to be cut into blocks by their bytes.

    Until the types are known they settle by the children of the first 64 rows, or by 4 MiB of
    children, which are cut as if the types had been known.
    """

    def __init__(self, node: FlatMap, block: Block, at: At) -> None:
        self.node, self.block, self.at = node, block, at
        self.held, self.waiting = _Held([], [], []), list[_Held]()
        self.weighing = Weighing()
        self.waiting_bytes = self.before = 0

    @property
    def count(self) -> int:
        """Return the number of rows made so far."""
        return self.before + len(self.held.out)

    @property
    def due(self) -> int:
        """Return the number of rows at which to check whether they fill a block."""
        return min(OUT_ROWS, self.weighing.due)

    def full(self) -> bool:
        """True if the rows fill a block."""
        out = self.held.out
        return self.weighing.enough(out) or len(out) == OUT_ROWS

    def given(self, *, over: bool = False) -> Iterator[Block]:
        """Yield the buffered rows as blocks and drop them; all rows if it is ``over``.

        Yields nothing until types have settled.
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
        """Note that ``rows`` rows have given all children: types settle by the first 64 rows."""
        if rows >= SETTLING_ROWS and not self._settled and (self.waiting or self.held.out):
            self._settle()

    def _settle(self) -> None:
        """Settle the types by the buffered rows, up to the one that makes them enough."""
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
    """Return the error, with a hint for results that are no dicts."""
    if error.what.endswith(NO_DICT):
        error.try_ = "return [{'name': value}, ...], or yield a dict for every row"
    return error


def _taken(fn: UserFunction) -> Callable[[Any], Any]:
    """Return a function that takes a child: a copy, since a generator may still change it."""
    return owned_row if fn.purity else _as_it_is


def _as_it_is(made: Any) -> Any:
    return made


class _Gathered:
    """Child rows, before their types are known."""

    def __init__(self, node: FlatMap, block: Block) -> None:
        self.node, self.block = node, block
        self.held, self.ends, self.nbytes = _Held([], [], []), list[int](), 0

    def add(self, made: Any, parent: int, index: int) -> bool:
        """Add a child; True if the children are many or large."""
        held = self.held
        held.out.append(made)
        held.parents.append(parent)
        held.child.append(index)
        self.nbytes += weighed([made])
        return self.nbytes >= SETTLING_BYTES or len(held.out) >= OUT_ROWS

    def end(self) -> None:
        """Note that a row has given all its children."""
        self.ends.append(len(self.held.out))

    def given(self, error: DmlError | None = None) -> Returned:
        """Return the children added so far, and drop them."""
        held, ends, nbytes = self.held, self.ends, self.nbytes
        self.held, self.ends, self.nbytes = _Held([], [], []), [], 0
        rows = self.block.ids.take(np.array(held.parents, dtype=np.int64))
        child = np.array(held.child, dtype=np.uint64)
        ids = rows.derive(FLAT_MAP + self.node.level, child)
        return Returned(held.out, ends, ids, rows, nbytes, error)


@op
class FlatMap(FunctionNode):
    """FlatMap replaces each row by the dicts that ``fn`` gives for it, in order, if any.

    Row ids are made of the input row's id, this operator and the child's index. With
    ``on_error="skip"`` a row is abandoned where ``fn`` raises: its earlier children stay.
    """

    input: Node
    fn: UserFunction
    declared: Schema | None
    needs: Needs = Needs()
    on_error: str = RAISE

    version: ClassVar[int] = 2
    rows: ClassVar[Rows] = Rows.MORE

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """Yield the children, in blocks of at most 4096 rows, fewer if they are large.

        Errors are raised after the rows before them.
        """
        held = _Children(self, block, at)
        (out, parents, child), due = held.held, held.due
        taken = _taken(self.fn)
        for parent, row in enumerate(convert.to_rows(block)):
            for index, made in enumerate(children(self.fn.call, row)):
                if isinstance(made, Raised) and self.skips:
                    self.lose(made.error, block.ids, parent, at, made=held.count)
                    break
                if isinstance(made, Raised):
                    yield from held.given(over=True)
                    error = raised(made.error, self.fn, block.ids, parent)
                    raise error.located(self.label())
                out.append(taken(made))
                parents.append(parent)
                child.append(index)
                if len(out) == due:
                    if held.full():
                        yield from held.given()
                        out, parents, child = held.held
                    due = held.due
            held.passed(parent + 1)
        yield from held.given(over=True)

    def returned(self, block: Block, at: At) -> Iterator[Returned]:
        """Yield the dicts that the function gives, before their types are known."""
        gathered, taken = _Gathered(self, block), _taken(self.fn)
        for parent, row in enumerate(convert.to_rows(block)):
            for index, made in enumerate(children(self.fn.call, row)):
                if isinstance(made, Raised):
                    if self.skips:
                        self.lose(made.error, block.ids, parent, at)
                        break
                    error = raised(made.error, self.fn, block.ids, parent)
                    yield gathered.given(error.located(self.label()))
                    return
                if gathered.add(taken(made), parent, index):
                    yield gathered.given()
            gathered.end()
        yield gathered.given()

    def typed(self, made: Returned, at: At) -> Iterator[Block]:
        """Yield the results as blocks, then raise the error that stopped the function."""
        try:
            yield from typed(self, made, at)
        except UDFError as error:
            raise explained(error) from error.__cause__
