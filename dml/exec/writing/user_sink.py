"""Pass the rows of a pipeline to a user-defined sink: all of them, or none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa

from dml.errors import DmlError, SourceError, worded
from dml.exec.delivery.tables import record_batches
from dml.exec.streams.stream import Streaming
from dml.exec.writing.file_writer import Cuts, columns_of_none, groups
from dml.plugins import DataSink


def fill(streaming: Streaming, epoch: int, sink: DataSink, cuts: Cuts) -> Any:
    """Run ``epoch`` of the plan into ``sink``, and return the result of its ``finish``.

    After any failure, call ``abort`` once and raise the error: SourceError for the sink's own.
    """
    try:
        return _filled(streaming, epoch, sink, cuts)
    except BaseException as error:
        try:
            sink.abort(error)
        except Exception as again:  # noqa: BLE001 - the error that stopped the run is what matters
            error.add_note(f"and abort() raised {worded(again)}")
        raise


def _filled(streaming: Streaming, epoch: int, sink: DataSink, cuts: Cuts) -> Any:
    plan = streaming.plan
    if plan.schema.known:
        _open(sink, plan.schema.to_arrow())
    is_open = plan.schema.known
    for number, group in enumerate(groups(record_batches(streaming, epoch), cuts)):
        if not is_open:
            _open(sink, group.schema)
            is_open = True
        _call_sink(sink, f"write of group {number}", partial(sink.write, group, number))
    if not is_open:
        _open(sink, columns_of_none(streaming))
    return _call_sink(sink, "finish", sink.finish)


def _open(sink: DataSink, schema: pa.Schema) -> None:
    _call_sink(sink, "open", partial(sink.open, schema))


def _call_sink(sink: DataSink, what: str, call: Callable[[], Any]) -> Any:
    """Return the result of ``call``; its exceptions become errors that name the sink's method."""
    try:
        return call()
    except DmlError:
        raise
    except Exception as error:
        name = type(sink).__name__
        raise SourceError(
            f"{name} raised {type(error).__name__} in {what}: {error}",
            why="the exception came from your sink",
            try_=f"call {what.partition(' ')[0]}() of it alone, outside of the pipeline",
        ) from error
