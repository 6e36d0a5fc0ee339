"""Run a pipeline that a user's function returned inside the run that called the function."""

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
    """The result of one pull: ``block`` or ``error``, or neither at the end of the flow.

    ``lost`` are the losses before the rows or the error; ``after`` is the position after the rows.
    """

    block: Block | None = None
    error: BaseException | None = None
    lost: tuple[Untold, ...] = ()
    after: Position | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the rows; 0 without rows."""
        return 0 if self.block is None else self.block.nbytes

    @property
    def plain(self) -> bool:
        """Whether there are rows without losses before them."""
        return self.block is not None and not self.lost

    def count_losses(self, allowance: Allowance) -> Read:
        """Count the losses in ``allowance``; raise the error, if there is one, or return self."""
        lost, self.lost = self.lost, ()
        for untold in lost:
            if (error := allowance.add(*untold)) is not None:
                raise error
        if self.error is not None:
            raise self.error
        return self


class NestedFlow:
    """The elements of ``run``, the nested run; errors name places in the sources of that run.

    A position also holds the settled types of the run's functions, which the outer run does not
    know, and the number of rows to drop after the position. ``allowance``, that of the outer run,
    counts losses when the caller receives the rows that follow them.
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
        """Return up to ``most`` rows, and count the losses before them; None if exhausted."""
        return self._read(most).count_losses(self.allowance).block

    def read(self, most: int) -> Read:
        """Return up to ``most`` rows, with the losses before them, which are not counted yet."""
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
        return later.drain() if isinstance(later, Later) else ()

    def position(self) -> Position:
        """Return the position of the flow, with the settled types."""
        schemas = {key: schema_text(each) for key, each in self.run.at.schemas.items()}
        found: Position = {"at": self.flow.position(), "schemas": schemas}
        return {**found, "drop": self.drop} if self.drop else found

    def close(self) -> None:
        """Close the flow."""
        self.flow.close()
