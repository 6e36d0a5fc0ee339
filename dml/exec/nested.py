"""This file runs a pipeline inside the run of another, whose function gave it."""

from __future__ import annotations

from dml.errors import DmlError
from dml.exec.blame import traced
from dml.exec.schema_text import schema_of, schema_text
from dml.exec.stream import Streaming
from dml.expr.block import Block
from dml.expr.flow import Position


class NestedFlow:
    """The elements of ``run``: its errors name places in its own sources.

    A position also has the types that functions have settled, which the outer run does not know.
    """

    def __init__(self, run: Streaming, epoch: int, position: Position | None) -> None:
        start = position or {"at": None, "schemas": {}}
        self.run = run
        run.at.schemas.update({key: schema_of(text) for key, text in start["schemas"].items()})
        self.flow = run.flow(epoch, start["at"])

    def pull(self, most: int) -> Block | None:
        """As of any flow."""
        try:
            return self.flow.pull(most)
        except DmlError as error:
            raise traced(error, self.run.plan) from error.__cause__

    def position(self) -> Position:
        """The flow's own, and settled types."""
        schemas = {key: schema_text(each) for key, each in self.run.at.schemas.items()}
        return {"at": self.flow.position(), "schemas": schemas}

    def close(self) -> None:
        """Stop."""
        self.flow.close()
