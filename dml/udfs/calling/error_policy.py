"""``on_error="skip"`` drops rows for which a user's function raises, instead of ending the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dml.errors import PlanError
from dml.expr.node import Node
from dml.expr.user_call import NotConstructedError, TimedOutError, each_apart, raised
from dml.udfs.calling.python_rows import noticed, readable

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.expr.flow import At
    from dml.kernels.rows.ids import RowIds

RAISE, SKIP = "raise", "skip"


class Skipping(Node):
    """The base of operators that, by ``on_error``, skip rows on which their function raises."""

    on_error: str
    fn: Any
    # True if the output is the function's alone, or if it is a ``SameColumns``, which a pushdown of
    # columns passes through.
    states_reads: ClassVar[bool] = False

    @property
    def skips(self) -> bool:  # type: ignore[override]
        """True if rows for which the function raises are dropped."""
        return self.on_error == SKIP

    @property
    def skipping(self) -> str:
        """``on_error`` and ``timeout`` as text for the operator's title; "" for the defaults."""
        skips = f", on_error={self.on_error!r}" if self.skips else ""
        return skips if self.fn is None else f"{skips}{self.fn.timeout_text}"

    @property
    def function_reads(self) -> frozenset[str] | None:  # type: ignore[override]
        """The columns that the function looks up; None if it may read others."""
        names, given = self.fn.lookups, self.inputs[0].schema
        stated = self.states_reads and names is not None
        return names if stated and names <= given.keys() else None

    def parameters_text(self) -> str:
        """Return the function's name and the resources that it needs as text."""
        return f"{self.fn.name}{self.skipping}{self.needs.parameters_text()}"

    def check(self) -> None:
        """Raise PlanError unless ``on_error`` is "raise" or "skip"."""
        if self.on_error not in (RAISE, SKIP):
            raise PlanError(
                f"on_error={self.on_error!r} has no meaning",
                why='"raise" ends the run at a row whose function raises, "skip" loses the row',
                try_='on_error="skip"',
            )

    def lose(
        self,
        error: BaseException,
        ids: RowIds,
        row: int,
        at: At,
        *,
        rows: int = 1,
        made: int | None = None,
    ) -> None:
        """Count ``rows`` rows lost to ``error``; raise it if all other rows would raise it too.

        ``made`` is the number of the block's output rows before the error. It is required if the
        position of the error does not follow from the ids of output rows.
        """
        found = raised(error, self.fn, ids, row, place=False).located(self.label())
        if isinstance(error, NotConstructedError):
            raise found
        if isinstance(error, TimedOutError) and error.too_many:
            found.why += ", and an earlier call that was given up still runs in this worker"
            found.try_ = (
                "executor='processes', which ends a process in which a call hangs; or a larger"
                " num_workers=, since each thread may have one such call"
            )
            raise found
        found.made = made  # type: ignore[attr-defined]
        at.lost(found, rows)

    def survivors(self, block: Block, error: BaseException, out: list[Any], at: At) -> np.ndarray:
        """Call the function on the rows of ``block`` after the row on which it raised ``error``.

        That row has number ``len(out)``. Append the other results to ``out``; return the indices of
        all rows with a result.
        """
        first = len(out)
        self.lose(error, block.ids, first, at)
        rest = block.slice(first + 1, block.n)
        call, rows = readable(self.fn.call, noticed(self.fn, rest))
        kept = self.spared(zip(rows, strict=True), rest.ids, out, at, call)
        return np.concatenate([np.arange(first), kept + first + 1])

    def spared(
        self,
        given: Iterable[tuple[Any, ...]],
        ids: RowIds,
        out: list[Any],
        at: At,
        call: Callable[..., Any] | None = None,
    ) -> np.ndarray:
        """Append the results of ``call``, by default the function, for ``given`` to ``out``.

        ``given`` are the arguments for each row. Rows for which ``call`` raises are dropped. Return
        the indices of the other rows.
        """

        def lost(place: int, error: BaseException) -> None:
            self.lose(error, ids, place, at)

        return np.array(each_apart(call or self.fn.call, given, out, lost), dtype=np.int64)


def ignoring(root: Node) -> Node:
    """Return the pipeline with ``on_error="skip"`` for all functions, on all its inputs."""
    made: dict[int, Node] = {}
    for node in root.walk():
        new = node.map_inputs(lambda each: made[id(each)])
        if isinstance(new, Skipping) and new.fn is not None and not new.skips:
            new = new.replace(on_error=SKIP)
        made[id(node)] = new
    return made[id(root)]
