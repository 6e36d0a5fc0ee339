"""This file hands rows out as Arrow: record batches as they are made, or tables one by one."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Generator
from typing import Any

import numpy as np
import pyarrow as pa

from dml.errors import DmlError, PlanError
from dml.events import Event
from dml.exec.blame import traced
from dml.exec.deliver import Elements
from dml.exec.making import Ahead, Chunk, ChunkShelf, Maker, Received
from dml.exec.stream import Streaming
from dml.expr.block import empty
from dml.expr.delivery import arrays_of
from dml.expr.flow import CHUNK, Position
from dml.expr.schema import Schema
from dml.expr.tabular import in_pandas


def record_batches(streaming: Streaming, epoch: int) -> Generator[pa.RecordBatch, None, None]:
    """The rows in order; errors say which operator and which row of the source they are about.

    Batches of the pipeline come whole; where they end otherwise has no meaning.
    """
    plan = streaming.plan
    try:
        flow = streaming.flow(epoch, None)
        try:
            while (block := flow.pull(CHUNK)) is not None:
                yield block.to_arrow()
        finally:
            flow.close()
    except DmlError as error:
        error.under(plan.operators[-1].label())
        raise traced(error, plan) from error.__cause__
    for each in streaming.running.all:
        each.losses.tell()


def with_library(name: str, verb: str) -> None:
    """PlanError if there is no library ``name``; it is asked for before any row is read."""
    if importlib.util.find_spec(name) is None:
        raise PlanError(
            f"{verb} needs {name}", why="it is not installed", try_=f"pip install {name}"
        )


class Unaccounted:
    """The report of a run that nobody keeps."""

    def __init__(self) -> None:
        self.received = Received()

    def resumed(self) -> None:
        """It is not told."""

    def finished(self, status: str, error: BaseException | None) -> None:
        """Nor this."""

    def so_far(self) -> list[Event]:
        """Nothing."""
        return []


class Tables(Elements):
    """Iterator over a run of batches that hands each out as a ``pyarrow.Table``, with its nulls.

    Its states are those of the iterator that hands out arrays, and fit it.
    """

    def _start(self) -> Maker:
        maker = _Maker(self._streaming, self.epoch, self._begin, self.form)
        ahead = self._ahead
        return Ahead(maker, ChunkShelf(ahead, self._ahead_bytes)) if ahead else maker

    @staticmethod
    def form(table: pa.Table) -> Any:
        """What the caller gets."""
        return table


class Frames(Tables):
    """The same as pandas data frames."""

    @staticmethod
    def form(table: pa.Table) -> Any:
        """What the caller gets."""
        return in_pandas(table)


class PolarsFrames(Tables):
    """The same as Polars data frames."""

    @staticmethod
    def form(table: pa.Table) -> Any:
        """What the caller gets."""
        return importlib.import_module("polars").from_arrow(table)


FORMS = {"arrow": Tables, "pandas": Frames, "polars": PolarsFrames}


class _Maker:
    """Each batch as a table, in its form."""

    def __init__(
        self, streaming: Streaming, epoch: int, position: Position | None, form: Any
    ) -> None:
        self.flow, self.form = streaming.flow(epoch, position), form

    def make(self) -> Chunk | None:
        """The next batch, with the position after it."""
        block = self.flow.pull(1)
        if block is None:
            return None
        formed = self.form(pa.Table.from_batches([block.to_arrow()]))
        rows, nbytes = block.n, block.nbytes
        return Chunk([formed], rows=rows, nbytes=nbytes, base=self.flow.position())

    def close(self) -> None:
        """Close the flow."""
        self.flow.close()


def nothing(schema: Schema) -> dict[str, np.ndarray]:
    """A batch of no rows."""
    return arrays_of(empty(schema))
