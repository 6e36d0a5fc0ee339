"""Map-style PyTorch datasets are functions of an index, others are read through their iterator.

PyTorch is not imported here: the caller of ``from_torch`` has already imported it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dml.data.schema import Schema, schema_of
from dml.errors import SourceError
from dml.io.user.generator import ITEM, raised, schema_of_rows

Row = dict[str, Any]


class Samples(NamedTuple):
    """A map-style dataset: ``length`` rows of ``schema``, each made by ``fn`` from its index."""

    length: int
    fn: Callable[[Mapping[str, Any]], Row]
    schema: Schema


def _sampling(dataset: Any, names: tuple[str, ...] | None) -> Callable[[Mapping[str, Any]], Row]:
    """Return the function from a row with an index to that sample, with the name of the class."""

    def sample(row: Mapping[str, Any]) -> Row:
        return row_of(dataset[int(row["id"])], names)

    sample.__name__ = sample.__qualname__ = type(dataset).__name__
    return sample


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
    dataset: Any, schema: object, names: Sequence[str] | None
) -> Samples | Callable[[], Iterator[Row]]:
    """Return the samples of a map-style dataset, or a function that iterates over another one.

    Raise SourceError for other objects, and if the first samples cannot be read.
    """
    fields = None if names is None else tuple(names)
    styles = {each.__name__ for each in type(dataset).__mro__}
    if "IterableDataset" in styles:
        return partial(_rows, dataset, fields)
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise SourceError(
            f"from_torch needs a dataset, got a {type(dataset).__name__}",
            why="a map-style dataset has __getitem__ and __len__, any other is an IterableDataset",
            try_="from_generator(lambda: ...) for anything that can be iterated",
        )
    fn = _sampling(dataset, fields)
    try:
        count = len(dataset)
    except Exception as error:
        raise raised(fn.__name__, 0, error) from error
    first = map(fn, ({"id": number} for number in range(count)))
    found = schema_of_rows(first, fn.__name__) if schema is None else schema_of(schema)
    return Samples(count, fn, found)
