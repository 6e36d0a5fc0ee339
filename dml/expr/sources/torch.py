"""This file reads datasets of PyTorch: by index where they have one, else as their iterator gives.

Nothing here imports torch: what is read has done that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dml.errors import SourceError, worded
from dml.expr.function import FunctionIdentity, identify
from dml.expr.rows import UnfitError, to_block
from dml.expr.schema import Schema, schema_of
from dml.expr.sources.generated import GENERATED_ROWS, ITEM, TRY, Generated, raised, schema_of_rows
from dml.expr.unshared import owned_row
from dml.kernels.ids import RowIds
from dml.plugins import DataSource, SourcePart


class TorchRows(DataSource):
    """A map-style dataset: ``dataset[i]`` is row i, as often as it is asked for."""

    atom_rows = GENERATED_ROWS

    def __init__(
        self,
        dataset: Any,
        known: FunctionIdentity,
        schema: Schema | None,
        names: tuple[str, ...] | None,
    ) -> None:
        self.dataset, self.known, self.names = dataset, known, names
        self.name, self.unnamed = known.name, known.reason
        try:
            self.count = len(dataset)
        except Exception as error:
            raise raised(self.name, 0, error) from error
        self.columns = schema
        if schema is None:
            self.columns = schema_of_rows(map(self._row, range(self.count)), self.name)

    def schema(self) -> Any:
        """As it was declared, or as the first rows say."""
        return self.columns

    def parts(self) -> Sequence[SourcePart]:
        """One, of as many rows as the dataset has."""
        return (SourcePart("", self.count),)

    def identity(self) -> object:
        """The name of the dataset's class and state; None where it has none."""
        return None if self.known.reason else self.known.digest

    def take(self, index: np.ndarray, columns: tuple[str, ...]) -> pa.RecordBatch:
        """The rows at ``index``, all columns of which are made."""
        whole = schema_of(self.columns)
        rows = [self._row(int(i)) for i in index]
        try:
            block = to_block(rows, whole, RowIds.run(0, 0, len(rows)))
        except UnfitError as unfit:
            raise SourceError(
                f"{self.name}[{int(index[unfit.row])}] is {unfit.what}",
                why=f"the columns are {whole}",
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
    """A sample as a row: dicts and tuples have columns, anything else is the column "item".

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
    """A value that a column can hold: tensors and images become arrays, however deep."""
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


class _Rows:
    """Begins to iterate a dataset anew whenever it is called."""

    def __init__(self, dataset: Any, names: tuple[str, ...] | None) -> None:
        self.dataset, self.names = dataset, names

    def __call__(self) -> Iterator[dict[str, Any]]:
        for value in self.dataset:
            yield row_of(value, self.names)


def from_torch(
    dataset: Any,
    schema: object,
    names: Sequence[str] | None,
    *,
    nonce: bytes,
    fingerprint: str | None,
    atom_rows: int | None,
) -> DataSource:
    """The source over a dataset; SourceError for what is none."""
    declared = None if schema is None else schema_of(schema)
    fields = None if names is None else tuple(names)
    known = identify(dataset, nonce=nonce, fingerprint=fingerprint)
    styles = {each.__name__ for each in type(dataset).__mro__}
    if "IterableDataset" in styles:
        return Generated(_Rows(dataset, fields), known, declared, atom_rows)
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise SourceError(
            f"from_torch needs a dataset, got a {type(dataset).__name__}",
            why="a map-style dataset has __getitem__ and __len__, any other is an IterableDataset",
            try_="from_generator(lambda: ...) for anything that can be iterated",
        )
    return TorchRows(dataset, known, declared, fields)
