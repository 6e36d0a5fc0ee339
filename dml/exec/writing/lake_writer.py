"""Write the rows of a pipeline as one new version of a Delta table or a Lance dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import pyarrow as pa

from dml.errors import DmlError, PlanError, SourceError
from dml.exec.delivery.tables import record_batches
from dml.exec.streams.stream import Streaming
from dml.exec.writing.file_writer import Cuts, columns_of_none, groups
from dml.io.extras import extra, located, spoken

# Modes for an existing table (refuse, add rows, replace rows), and the libraries' words for them.
DELTA = {"error": "error", "append": "append", "overwrite": "overwrite"}
LANCE = {**DELTA, "error": "create"}
Options = Mapping[str, str] | None


def write_delta(
    rows: RowStream,
    path: str | os.PathLike[str],
    mode: str,
    storage_options: Options,
    partition_by: str | Iterable[str] | None,
) -> int:
    """Commit the rows to the Delta table at ``path``, and return the new version's number."""
    library = extra("deltalake", "write_delta", "delta")
    options = None if storage_options is None else dict(storage_options)
    by = [partition_by] if isinstance(partition_by, str) else partition_by and list(partition_by)
    word, place = _mode(mode, DELTA), located(path)

    def written(stream: pa.RecordBatchReader) -> int:
        library.write_deltalake(place, stream, mode=word, storage_options=options, partition_by=by)
        return int(library.DeltaTable(place, storage_options=options).version())

    return int(rows.into(place, options, written))


def write_lance(
    rows: RowStream, path: str | os.PathLike[str], mode: str, storage_options: Options
) -> int:
    """Write a new version of the Lance dataset at ``path``, and return its number."""
    library = extra("lance", "write_lance", "lance")
    options = None if storage_options is None else dict(storage_options)
    word, place = _mode(mode, LANCE), located(path)
    made = rows.into(
        place,
        options,
        lambda stream: library.write_dataset(stream, place, mode=word, storage_options=options),
    )
    return int(made.version)


def _mode(mode: str, words: Mapping[str, str]) -> str:
    if mode not in words:
        raise PlanError(
            f"mode is one of {', '.join(map(repr, words))}, got {mode!r}",
            why="it says what becomes of a table that is there",
            try_='mode="append", or "overwrite"; versions before stay readable',
        )
    return words[mode]


class RowStream:
    """The rows of a run as an Arrow stream; an error of the run is kept, to be raised unchanged."""

    def __init__(self, streaming: Streaming, epoch: int, cuts: Cuts) -> None:
        self.streaming = streaming
        self.batches = record_batches(streaming, epoch)
        self.groups = groups(self.batches, cuts)
        self.error: Exception | None = None

    def into(
        self, path: str, options: Options, write: Callable[[pa.RecordBatchReader], Any]
    ) -> Any:
        """Return the result of ``write`` for the rows; raise DmlError if run or library fails."""
        try:
            first = next(self.groups, None)
            schema = columns_of_none(self.streaming) if first is None else first.schema
            rows = self._rows(() if first is None else (first,))
            return write(pa.RecordBatchReader.from_batches(schema, rows))
        except DmlError:
            raise
        except Exception as error:  # noqa: BLE001 - libraries raise errors of several families
            if self.error is not None:
                raise self.error from self.error.__cause__
            raise SourceError(
                f"{spoken(path)} cannot be written",
                why=spoken(error, options),
                try_='mode="append" or "overwrite" where it is there; .cast(...) of odd types',
            ) from None
        finally:
            self.batches.close()

    def _rows(self, first: tuple[pa.Table, ...]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``first``, then all others, as record batches; keep an error."""
        try:
            for table in chain(first, self.groups):
                yield from table.to_batches()
        except Exception as error:
            self.error = error
            raise
