"""Map-style PyTorch datasets are read by index, others through their iterator.

PyTorch is not imported here: the caller of ``from_torch`` has already imported it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from dml.data.escape_analysis import owned_row
from dml.data.schema import schema_of
from dml.errors import SourceError, worded
from dml.io.user.generator import GENERATED_ROWS, ITEM, TRY, Generated, raised, schema_of_rows
from dml.kernels.rows.ids import RowIds
from dml.plugins import DataSource, SourcePart
from dml.udfs.calling.python_rows import UnfitError, to_block
from dml.udfs.identity.function_fingerprint import FunctionIdentity, identify


class TorchRows(DataSource):
    """A map-style dataset: row i is ``dataset[i]``, which is called whenever the row is read."""

    atom_rows = GENERATED_ROWS

    def __init__(
        self,
        dataset: Any,
        known: FunctionIdentity,
        schema: object,
        names: tuple[str, ...] | None,
    ) -> None:
        self.dataset, self.known, self.names = dataset, known, names
        self.name, self.unnamed = known.name, known.reason
        try:
            self.count = len(dataset)
        except Exception as error:
            raise raised(self.name, 0, error) from error
        rows = map(self._row, range(self.count))
        self.columns = schema_of_rows(rows, self.name) if schema is None else schema_of(schema)

    def schema(self) -> Any:
        """Return the declared schema, or that of the first rows."""
        return self.columns

    def parts(self) -> Sequence[SourcePart]:
        """Return a single part with the length of the dataset."""
        return (SourcePart("", self.count),)

    def identity(self) -> object:
        """Return the digest of the dataset's class and state; None if it has no stable digest."""
        return None if self.known.reason else self.known.digest

    def take(self, index: np.ndarray, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Return the rows at ``index``; all columns of a row are computed before selection."""
        rows = [self._row(int(i)) for i in index]
        try:
            block = to_block(rows, self.columns, RowIds.run(0, 0, len(rows)))
        except UnfitError as unfit:
            raise SourceError(
                f"{self.name}[{int(index[unfit.row])}] is {unfit.what}",
                why=f"the columns are {self.columns}",
                try_=TRY,
            ) from None
        return block.select(columns).to_arrow()

    def _row(self, number: int) -> dict[str, Any]:
        try:
            value = self.dataset[number]
        except Exception as error:
            raise SourceError(
                f"{self.name}[{number}] raised {worded(error)}",
                why="the exception came from your dataset",
                try_=f"dataset[{number}] alone, outside of the pipeline",
            ) from error
        row: dict[str, Any] = owned_row(row_of(value, self.names))
        return row


def row_of(value: Any, names: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Convert a sample to a row: dicts and tuples have columns, other values the column "item".

    A tuple has columns ``names``, its own field names, or "item_0" and so on.
    """
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, tuple):
        fields = names or getattr(value, "_fields", None)
        fields = fields or tuple(f"{ITEM}_{i}" for i in range(len(value)))
        if len(fields) != len(value):
            raise SourceError(
                f"a sample has {len(value)} parts, and names= are {list(fields)}",
                try_="a name for each part of the tuple",
            )
        return dict(zip(fields, map(plain, value), strict=True))
    return {(names or (ITEM,))[0]: plain(value)}


def plain(value: Any) -> Any:
    """Convert a value for a column: tensors and images become arrays, at any depth."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu().numpy()
        return value.item() if value.ndim == 0 else value
    if hasattr(value, "__array_interface__") and not isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def _rows(dataset: Any, names: tuple[str, ...] | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a dataset, from its start."""
    for value in dataset:
        yield row_of(value, names)


def from_torch(
    dataset: Any,
    schema: object,
    names: Sequence[str] | None,
    *,
    nonce: bytes,
    fingerprint: str | None,
    atom_rows: int | None,
) -> DataSource:
    """Build the source over a dataset; raise SourceError for other objects."""
    fields = None if names is None else tuple(names)
    known = identify(dataset, nonce=nonce, fingerprint=fingerprint)
    styles = {each.__name__ for each in type(dataset).__mro__}
    if "IterableDataset" in styles:
        return Generated(partial(_rows, dataset, fields), known, schema, atom_rows)
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise SourceError(
            f"from_torch needs a dataset, got a {type(dataset).__name__}",
            why="a map-style dataset has __getitem__ and __len__, any other is an IterableDataset",
            try_="from_generator(lambda: ...) for anything that can be iterated",
        )
    return TorchRows(dataset, known, schema, fields)
