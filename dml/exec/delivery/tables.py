"""Deliver rows as Arrow record batches, or batches as Arrow tables or data frames."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Generator
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa

from dml.data.block import empty
from dml.data.schema import Schema
from dml.errors import DmlError, PlanError
from dml.events import Event
from dml.exec.delivery.iterator import Elements
from dml.exec.delivery.prefetch import ElementChunk, Maker, Received
from dml.exec.streams.stream import Streaming
from dml.exec.tasks.error_row import traced
from dml.expr.flow import CHUNK, Position
from dml.udfs.calling.batch_arrays import arrays_of
from dml.udfs.calling.data_frames import in_pandas


def record_batches(streaming: Streaming, epoch: int) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows in order; errors name their operator and their row of the source.

    If the pipeline makes batches, each is one record batch; else a record batch may end anywhere.
    """
    plan = streaming.plan
    try:
        with closing(streaming.flow(epoch, None)) as flow:
            while (block := flow.pull(CHUNK)) is not None:
                yield block.to_arrow()
    except DmlError as error:
        error.under(plan.operators[-1].label())
        raise traced(error, plan) from error.__cause__
    for each in streaming.running.all:
        each.losses.tell()


def with_library(name: str, verb: str) -> None:
    """Raise PlanError if the library ``name``, which ``verb`` needs, is not installed."""
    if importlib.util.find_spec(name) is None:
        raise PlanError(
            f"{verb} needs {name}", why="it is not installed", try_=f"pip install {name}"
        )


class Unaccounted:
    """The report of a run that keeps no account."""

    recorded = False

    def __init__(self) -> None:
        self.received = Received()

    def opened(self) -> None:
        """Do nothing."""

    def resumed(self) -> None:
        """Do nothing."""

    def finished(self, status: str, error: BaseException | None) -> None:
        """Do nothing."""

    def so_far(self) -> list[Event]:
        """Return no events."""
        return []


class TableElements(Elements):
    """Iterator over a run that delivers each batch as a ``pyarrow.Table``, with its nulls.

    A state of this iterator can be loaded by the iterator that delivers arrays, and vice versa.
    """

    def _made_here(self) -> Maker:
        return _Maker(self._streaming, self.epoch, self._begin, self.form)

    @staticmethod
    def form(table: pa.Table) -> Any:
        """Return a batch in the delivered form: the table itself."""
        return table


class Frames(TableElements):
    """Iterator over a run that delivers each batch as a pandas data frame."""

    form = staticmethod(in_pandas)


class PolarsFrames(TableElements):
    """Iterator over a run that delivers each batch as a Polars data frame."""

    @staticmethod
    def form(table: pa.Table) -> Any:
        """Return a batch in the delivered form: a Polars data frame."""
        return importlib.import_module("polars").from_arrow(table)


FORMS = {"arrow": TableElements, "pandas": Frames, "polars": PolarsFrames}


class _Maker:
    """Makes a chunk of each batch; its only element is what ``form`` returns for its table."""

    def __init__(
        self, streaming: Streaming, epoch: int, position: Position | None, form: Any
    ) -> None:
        self.flow, self.form = streaming.flow(epoch, position), form

    def make(self) -> ElementChunk | None:
        """Return the next batch, with the position after it; None if exhausted."""
        block = self.flow.pull(1)
        if block is None:
            return None
        formed = self.form(pa.Table.from_batches([block.to_arrow()]))
        rows, nbytes = block.n, block.value_bytes
        return ElementChunk([formed], rows=rows, nbytes=nbytes, base=self.flow.position())

    def close(self) -> None:
        """Close the flow."""
        self.flow.close()


def nothing(schema: Schema) -> dict[str, np.ndarray]:
    """Return a batch with the columns of ``schema`` and no rows."""
    return arrays_of(empty(schema))
