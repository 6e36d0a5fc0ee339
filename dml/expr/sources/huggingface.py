"""This file reads datasets of Hugging Face: the Arrow table that they are, as it is stored.

Nothing here imports the library: what is read has done that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dml.errors import SourceError
from dml.expr.fingerprint import digest
from dml.expr.layouts import usual_column, usual_type
from dml.expr.sources.generated import raised
from dml.plugins import DataSource, SourcePart

# Content is named piece by piece, so that naming it holds little of it.
PIECE_ROWS = 1 << 16
STREAMED_ROWS = 1024
LAZY = "a stream of Hugging Face has no content that could be named without reading it"


def _fields(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Columns and types: what the library decodes (images, arrays) stays as it is stored."""
    return {
        field.name: usual_type(getattr(field.type, "storage_type", field.type)) for field in schema
    }


def _stored(data: pa.Table) -> pa.Table:
    """The same columns without the library's own types."""
    columns = {}
    for name, column in zip(data.column_names, data.columns, strict=True):
        if isinstance(column.type, pa.BaseExtensionType):
            chunks = [chunk.storage for chunk in column.chunks]
            column = pa.chunked_array(chunks, column.type.storage_type)  # noqa: PLW2901
        columns[name] = usual_column(column, name)
    return pa.table(columns)


class Table(DataSource):
    """A ``datasets.Dataset``: its rows in its order, out of files that are mapped, not copied."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset.with_format("arrow")
        self.name = str(dataset.split or "dataset")

    def schema(self) -> Any:
        """Types as they are stored."""
        return _fields(self.dataset.features.arrow_schema)

    def parts(self) -> Sequence[SourcePart]:
        """One, of as many rows as are selected."""
        rows, data = len(self.dataset), self.dataset.data
        return (SourcePart("", rows, data.nbytes * rows // max(1, data.num_rows)),)

    def take(self, index: np.ndarray, columns: tuple[str, ...]) -> pa.Table:
        """Rows at ``index``: a view of the files where they follow one another, else copies."""
        chosen = self.dataset.select_columns(list(columns))
        first, count = int(index[0]), len(index)
        if np.array_equal(index, np.arange(first, first + count)):
            return _stored(chosen[first : first + count])
        return _stored(chosen[index.tolist()])

    def identity(self) -> object:
        """The content, which is read when it is asked for."""
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
    """A ``datasets.IterableDataset``, which begins anew for every pass."""

    unnamed = LAZY
    atom_rows = STREAMED_ROWS

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset.with_format("arrow")
        self.name = str(dataset.split or "stream")
        features = dataset.features
        self.columns = _fields(features.arrow_schema) if features else self._looked_at()

    def _looked_at(self) -> dict[str, pa.DataType]:
        """The types of the first rows, where the library does not know them."""
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
        """Types as they are stored."""
        return self.columns

    def read(self, part: SourcePart, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        """All rows."""
        for table in self.dataset.iter(batch_size=self.atom_rows):
            yield _stored(table.select(list(columns)))


def from_huggingface(dataset: Any) -> DataSource:
    """The source over a dataset of the library; SourceError for several splits, and others."""
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
