"""This file holds ``flat_map``: a user's function from a row to any number of rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from dml.errors import DmlError, UDFError
from dml.expr import rows as convert
from dml.expr.block import Block
from dml.expr.calls import Raised, UserFunction, children, raised
from dml.expr.cutting import SETTLING_BYTES, SETTLING_ROWS, Weighing, weighed
from dml.expr.facts import Needs, Rows
from dml.expr.node import Node, op
from dml.expr.ops.map_rows import returned, typed
from dml.expr.schema import UNKNOWN, Schema
from dml.expr.settling import Returned, heavy
from dml.expr.skipping import RAISE, Skipping
from dml.expr.unshared import owned_row

if TYPE_CHECKING:
    from dml.expr.flow import At

# Output rows of one block: bounds what a growing function holds, small enough for wide rows.
OUT_ROWS = 4096
NO_DICT = "which is not a dict"
FLAT_MAP = 0x666C61745F6D6170


class _Held(NamedTuple):
    """Rows that a function gave: of which rows of the block they are, and which of theirs."""

    out: list[Any]
    parents: list[int]
    child: list[int]


class _Children:
    """Rows on their way into blocks, which are cut by their bytes.

    As long as types are not known they settle by those of the first 64 rows, or by 4 MiB of them,
    which are cut as if the types had been known.
    """

    def __init__(self, node: FlatMap, block: Block, at: At) -> None:
        self.node, self.block, self.at = node, block, at
        self.held, self.waiting = _Held([], [], []), list[_Held]()
        self.weighing = Weighing()
        self.waiting_bytes = self.before = 0

    @property
    def count(self) -> int:
        """Rows that were made."""
        return self.before + len(self.held.out)

    @property
    def due(self) -> int:
        """At how many rows it is to be asked whether they are enough for a block."""
        return min(OUT_ROWS, self.weighing.due)

    def full(self) -> bool:
        """True if the rows are enough for a block."""
        out = self.held.out
        return self.weighing.enough(out) or len(out) == OUT_ROWS

    def given(self, *, over: bool = False) -> Iterator[Block]:
        """The rows as blocks, none of which are held from then on; all of them if it is ``over``.

        None as long as types have not settled.
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
        """So many rows have given all their children: types settle by those of the first 64."""
        if rows >= SETTLING_ROWS and not self._settled and (self.waiting or self.held.out):
            self._settle()

    def _settle(self) -> None:
        """Settle the types by what there is, up to the row that makes it enough."""
        some = [*self.waiting, self.held]
        every = _Held(*(list(chain.from_iterable(each)) for each in zip(*some, strict=True)))
        count = heavy(every.out, SETTLING_BYTES)
        if count:
            with suppress(DmlError):  # of a row that does not fit, in its place
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
    """The error, which says what to return where that was no dict."""
    if error.what.endswith(NO_DICT):
        error.try_ = "return [{'name': value}, ...], or yield a dict for every row"
    return error


def _taken(fn: UserFunction) -> Callable[[Any], Any]:
    """How a child is taken: copied, as a generator goes on with all that it has."""
    return owned_row if fn.purity else _as_it_is


def _as_it_is(made: Any) -> Any:
    return made


class _Gathered:
    """Children on their way out, before their types are known."""

    def __init__(self, node: FlatMap, block: Block) -> None:
        self.node, self.block = node, block
        self.held, self.ends, self.nbytes = _Held([], [], []), list[int](), 0

    def add(self, made: Any, parent: int, index: int) -> bool:
        """Take one more; True if they are many or large."""
        held = self.held
        held.out.append(made)
        held.parents.append(parent)
        held.child.append(index)
        self.nbytes += weighed([made])
        return self.nbytes >= SETTLING_BYTES or len(held.out) >= OUT_ROWS

    def end(self) -> None:
        """A row has given all its children."""
        self.ends.append(len(self.held.out))

    def given(self, error: DmlError | None = None) -> Returned:
        """Those that were taken, none of which are held from then on."""
        held, ends, nbytes = self.held, self.ends, self.nbytes
        self.held, self.ends, self.nbytes = _Held([], [], []), [], 0
        rows = self.block.ids.take(np.array(held.parents, dtype=np.int64))
        child = np.array(held.child, dtype=np.uint64)
        ids = rows.derive(FLAT_MAP + self.node.level, child)
        return Returned(held.out, ends, ids, rows, nbytes, error)


@op
class FlatMap(Skipping):
    """Each row replaced by the dicts that ``fn`` gives for it, in order; none is fine.

    Row ids are made of the input row's id, this operator and the child's index. With
    ``on_error="skip"`` a row is left where ``fn`` raises: what it gave before stays.
    """

    input: Node
    fn: UserFunction
    declared: Schema | None
    needs: Needs = Needs()
    on_error: str = RAISE

    version: ClassVar[int] = 2
    rows: ClassVar[Rows] = Rows.MORE

    def infer(self) -> Schema:
        """What was declared."""
        return self.declared or UNKNOWN

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """The children, in blocks of at most 4096, fewer where they are large.

        Errors come after the rows before them.
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
        """What the function gives for each row, before its types are known."""
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
        """The results as blocks, then what stopped the function."""
        try:
            yield from typed(self, made, at)
        except UDFError as error:
            raise explained(error) from error.__cause__

    def shown(self) -> str:
        """The function's name, and what it needs."""
        return f"{self.fn.name}{self.skipping}{self.needs.shown()}"
