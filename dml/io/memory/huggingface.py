"""Hugging Face datasets are read as their underlying Arrow table, without decoding.

The library is not imported here: the caller of ``from_huggingface`` has already imported it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.fingerprint import digest
from dml.data.layouts import usual_column, usual_type
from dml.errors import SourceError
from dml.io.user.generator import raised
from dml.plugins import DataSource, SourcePart

# Content is digested piece by piece, so that little of it is in memory at a time.
PIECE_ROWS = 1 << 16
STREAMED_ROWS = 1024
LAZY = "a stream of Hugging Face has no content that could be named without reading it"


def _fields(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return names and types of columns; images and arrays have their storage types."""
    return {
        field.name: usual_type(getattr(field.type, "storage_type", field.type)) for field in schema
    }


def _stored(data: pa.Table) -> pa.Table:
    """Return the same columns with extension types of the library replaced by storage types."""
    columns = {}
    for name, column in zip(data.column_names, data.columns, strict=True):
        if isinstance(column.type, pa.BaseExtensionType):
            chunks = [chunk.storage for chunk in column.chunks]
            column = pa.chunked_array(chunks, column.type.storage_type)  # noqa: PLW2901
        columns[name] = usual_column(column, name)
    return pa.table(columns)


class Table(DataSource):
    """A ``datasets.Dataset``: its rows in its order, from memory-mapped files without a copy."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset.with_format("arrow")
        self.name = str(dataset.split or "dataset")

    def schema(self) -> Any:
        """Return the stored types."""
        return _fields(self.dataset.features.arrow_schema)

    def parts(self) -> Sequence[SourcePart]:
        """Return a single part with the number of selected rows."""
        rows, data = len(self.dataset), self.dataset.data
        return (SourcePart("", rows, data.nbytes * rows // max(1, data.num_rows)),)

    def take(self, index: np.ndarray, columns: tuple[str, ...]) -> pa.Table:
        """Read rows at ``index``: a view of the files for a contiguous range, else copies."""
        chosen = self.dataset.select_columns(list(columns))
        first, count = int(index[0]), len(index)
        if np.array_equal(index, np.arange(first, first + count)):
            return _stored(chosen[first : first + count])
        return _stored(chosen[index.tolist()])

    def identity(self) -> object:
        """Return a function that digests the content on demand."""
        return self._content

    def _content(self) -> object:
        names = tuple(_fields(self.dataset.features.arrow_schema))
        found: list[bytes] = []
        for start in range(0, len(self.dataset), PIECE_ROWS):
            stop = min(start + PIECE_ROWS, len(self.dataset))
            piece = self.take(np.arange(start, stop), names)
            found.append(digest(*(column.combine_chunks() for column in piece.columns)))
        return (names, len(self.dataset), found)


class Stream(DataSource):
    """A ``datasets.IterableDataset``, which is iterated from the start for every pass."""

    unnamed = LAZY
    atom_rows = STREAMED_ROWS

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset.with_format("arrow")
        self.name = str(dataset.split or "stream")
        features = dataset.features
        self.columns = _fields(features.arrow_schema) if features else self._looked_at()

    def _looked_at(self) -> dict[str, pa.DataType]:
        """Infer types from the first rows, for a dataset without declared types."""
        try:
            for table in self.dataset.iter(batch_size=STREAMED_ROWS):
                return _fields(table.schema)
        except Exception as error:
            raise raised(self.name, 0, error) from error
        raise SourceError(
            "the stream has no rows, so there are no columns",
            why="it does not know its features",
            try_="dataset.cast(features)",
        )

    def schema(self) -> Any:
        """Return the stored types."""
        return self.columns

    def read(self, part: SourcePart, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        """Yield ``columns`` of all rows, from the start of the stream."""
        for table in self.dataset.iter(batch_size=self.atom_rows):
            yield _stored(table.select(list(columns)))


def from_huggingface(dataset: Any) -> DataSource:
    """Build the source over a dataset; raise SourceError for several splits or other objects."""
    kind = type(dataset)
    names = {each.__name__ for each in kind.__mro__}
    if names & {"DatasetDict", "IterableDatasetDict"}:
        splits = ", ".join(map(repr, dataset))
        raise SourceError(
            f"from_huggingface needs one split, got a {kind.__name__}",
            why=f"its splits are {splits}",
            try_=f"from_huggingface(dataset[{next(iter(dataset), 'train')!r}])",
        )
    if hasattr(dataset, "with_format") and "IterableDataset" in names:
        return Stream(dataset)
    if not (hasattr(dataset, "with_format") and hasattr(dataset, "data")):
        raise SourceError(
            f"from_huggingface needs a datasets.Dataset, got a {kind.__module__}.{kind.__name__}",
            try_="from_arrow(...) for a table, from_items(...) for a list of rows",
        )
    return Table(dataset)
