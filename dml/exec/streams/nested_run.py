"""A pipeline that a user's function returned runs inside the run that called the function."""

from __future__ import annotations

import dataclasses

from dml.data.block import Block
from dml.data.schema_text import schema_of, schema_text
from dml.errors import DmlError
from dml.exec.streams.stream import Streaming
from dml.exec.tasks.error_row import traced
from dml.exec.tasks.skipped_rows import Allowance, Later, Untold
from dml.expr.flow import Position


@dataclasses.dataclass(slots=True, eq=False)
class Read:
    """The result of one pull: rows, or an error, or neither at the end; and the losses before it.

    ``after`` is the position behind the rows.
    """

    block: Block | None = None
    error: BaseException | None = None
    lost: tuple[Untold, ...] = ()
    after: Position | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return 0 if self.block is None else self.block.nbytes

    @property
    def plain(self) -> bool:
        """True for rows without losses before them."""
        return self.block is not None and not self.lost

    def told(self, allowance: Allowance) -> Read:
        """Count the losses, then raise the error if there is one."""
        lost, self.lost = self.lost, ()
        for untold in lost:
            if (error := allowance.add(*untold)) is not None:
                raise error
        if self.error is not None:
            raise self.error
        return self


class NestedFlow:
    """The elements of ``run``; its errors name places in its own sources.

    A position also has the types that functions have settled, which the outer run does not know,
    and the number of delivered rows behind it. Losses are counted by ``allowance`` of the outer
    run, when the caller receives the rows behind them.
    """

    def __init__(
        self, run: Streaming, epoch: int, position: Position | None, allowance: Allowance
    ) -> None:
        start = position or {"at": None, "schemas": {}}
        self.run, self.allowance = run, allowance
        run.at.schemas.update({key: schema_of(text) for key, text in start["schemas"].items()})
        self.flow = run.flow(epoch, start["at"])
        self.drop: int = start.get("drop", 0)

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` rows; their losses are counted."""
        return self._read(most).told(self.allowance).block

    def read(self, most: int) -> Read:
        """Up to ``most`` rows, and the losses before them, which are not counted yet."""
        found = self._read(most)
        found.after = self.position()
        return found

    def _read(self, most: int) -> Read:
        block: Block | None = None
        error: BaseException | None = None
        try:
            block = self._undropped(most)
        except DmlError as found:
            error = traced(found, self.run.plan)
        return Read(block, error, self._lost())

    def _undropped(self, most: int) -> Block | None:
        while self.drop and (block := self.flow.pull(self.drop)) is not None:
            self.drop -= block.n
            self._lost()  # counted by an earlier run
        return self.flow.pull(most)

    def _lost(self) -> tuple[Untold, ...]:
        later = self.run.allowance
        return later.taken() if isinstance(later, Later) else ()

    def position(self) -> Position:
        """The position of the flow, and the settled types."""
        schemas = {key: schema_text(each) for key, each in self.run.at.schemas.items()}
        found: Position = {"at": self.flow.position(), "schemas": schemas}
        return {**found, "drop": self.drop} if self.drop else found

    def close(self) -> None:
        """Close the flow."""
        self.flow.close()
