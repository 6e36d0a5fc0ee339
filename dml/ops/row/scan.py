"""``scan`` calls a user's function with a state and a row, row by row in order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from dml.data.batch_trays import CopiedRows
from dml.data.block import Block
from dml.data.schema import Schema
from dml.errors import DmlError, PlanError, UDFError
from dml.expr.facts import ResumeCost, Rows
from dml.expr.flow import CHUNK, Blockwise, LocalFlow, settling
from dml.expr.node import Node, op
from dml.expr.user_call import UserFunction, blamed, caught, raised
from dml.kernels.rows.ids import RowIds
from dml.ops.row.map_rows import returned
from dml.ops.unary import require_rows
from dml.udfs.calling import python_rows as convert
from dml.udfs.calling.scan_state import MOST_BYTES, NotCarriedError, copy_state, of_json, to_json

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position

SHOWN_LETTERS = 40


def written(state: Any) -> str:
    """Return the initial ``state`` as JSON; raise PlanError for a state that JSON cannot store."""
    try:
        return json.dumps(to_json(copy_state(state)))
    except NotCarriedError as error:
        raise PlanError(
            f"scan cannot begin with {error.what}", why=error.why, try_=error.try_
        ) from None


@op
class Scan(Node):
    """Replaces each row by a dict: ``fn(state, row)`` returns a new state and the dict.

    The state that a call returns is passed to the next call; the first call of an epoch gets
    ``initial`` (JSON). ``fn`` is called in order, once per row in runs without failures. A UDFError
    names the row.
    """

    input: Node
    initial: str
    fn: UserFunction
    declared: Schema | None

    version: ClassVar[int] = 2
    # one row out per row in, but each result depends on all rows before it
    rows: ClassVar[Rows] = Rows.RUNS
    keeps_length: ClassVar[bool] = True
    # The state before a chunk is saved, the chunk runs again.
    resume_cost = ResumeCost(state_bytes=MOST_BYTES, work_rows=CHUNK, work=f"at most {CHUNK} rows")

    def check(self) -> None:
        """Raise PlanError for a batched input."""
        require_rows(self.input, "scan")

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Open a flow that calls the function row by row."""
        return _Scanning(self, open_input, epoch, position, at)

    def parameters_text(self) -> str:
        """Return the initial state and the function's name as text."""
        more = "..." if len(self.initial) > SHOWN_LETTERS else ""
        return f"{self.initial[:SHOWN_LETTERS]}{more}, {self.fn.name}"


class _Scanning(LocalFlow):
    """A flow of scanned rows; ``earlier`` is the state before the current chunk of rows."""

    def __init__(
        self, node: Scan, open_input: Opener, epoch: int, position: Position | None, at: At
    ) -> None:
        start = position or {"in": None, "drop": 0, "state": json.loads(node.initial)}
        self.node, self.at = node, at
        self.state = self.earlier = of_json(start["state"])
        self.pieces = Blockwise(self._run, partial(settling, node, at))
        super().__init__(self._begin, open_input, epoch, start)

    def _begin(self, input_: Flow) -> Iterator[Block] | None:
        self.earlier = copy_state(self.state)
        return self.pieces(input_)

    def _run(self, block: Block) -> Iterator[Block]:
        """Yield the rows made of ``block``; raise an error of a row after the rows before it."""
        out = CopiedRows()
        error = caught(self._each, *convert.readable(self.node.fn.call, block), out)
        try:
            if out:
                yield from returned(self.node, self.node.fn, out, block.ids, self.at)
            if error is not None:
                raise self._error(error, block.ids, len(out)).located(self.node.label())
        except DmlError as wrong:
            raise wrong.under(self.node.label()) from wrong.__cause__

    def _each(self, call: Callable[..., Any], rows: Sequence[Any], out: list[Any]) -> None:
        for row in rows:
            made = call(self.state, row)
            if type(made) is not tuple or len(made) != 2:
                raise NotCarriedError(
                    f"a {type(made).__name__} in place of a pair",
                    why="the state goes to the next call, the row goes on",
                    try_="return state, row",
                )
            # a copy: what a later call does to its state changes no row that was made before
            self.state = copy_state(made[0])
            out.append(made[1])

    def _error(self, error: BaseException, ids: RowIds, row: int) -> DmlError:
        fn = self.node.fn
        if not isinstance(error, NotCarriedError):
            return raised(error, fn, ids, row)
        found = UDFError(
            f"{fn.name} returned {error.what}", why=error.why, try_=error.try_, operator=fn.name
        )
        return blamed(found, ids, row)

    def position(self) -> Position:
        """Return where the chunk began, the state there, and the rows returned since then."""
        return {**super().position(), "state": to_json(self.earlier)}
