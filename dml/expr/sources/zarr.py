"""This file reads arrays of Zarr: rows lie along the first axis, and chunks of it are atoms."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dml.errors import SourceError
from dml.expr.computed import cached_property
from dml.expr.sources.extras import extra, located, spoken
from dml.expr.sources.memory import ITEM, Memory, from_numpy
from dml.kernels.ids import RowIds
from dml.plugins import DataSource, SourcePart


class Zarr(DataSource):
    """Arrays of equal length side by side, each a column; other axes are those of tensors."""

    name = "zarr"

    def __init__(self, path: str, names: tuple[str, ...] | None) -> None:
        self.path, self.names = path, names
        arrays = self._arrays
        lengths = {name: int(array.shape[0]) for name, array in arrays.items()}
        first = next(iter(lengths))
        for name, length in lengths.items():
            if length != lengths[first]:
                raise SourceError(
                    f"arrays {first!r} and {name!r} have {lengths[first]} and {length} rows",
                    at=spoken(path),
                    why="row i is made of the i-th entry of every array",
                    try_=f"arrays=[{first!r}], or others of equal length",
                )
        self.rows = lengths[first]
        self.atom_rows = max(1, min(int(array.chunks[0]) for array in arrays.values()))

    def __getstate__(self) -> dict[str, Any]:
        """Where the arrays are: another process opens them again."""
        return {name: value for name, value in self.__dict__.items() if name != "_arrays"}

    @cached_property
    def _arrays(self) -> dict[str, Any]:
        """The arrays by the names of their columns; SourceError if there are none."""
        library = extra("zarr", "read_zarr", "zarr")
        try:
            root = library.open(self.path, mode="r")
            found = dict(root.arrays()) if hasattr(root, "arrays") else {ITEM: root}
        except Exception as error:  # noqa: BLE001 - the library raises errors of several families
            raise SourceError(
                f"{spoken(self.path)} cannot be read as Zarr",
                why=self.spoken(error),
                try_="the folder of an array or a group",
            ) from None
        chosen = tuple(sorted(found)) if self.names is None else self.names
        for name in chosen:
            if name not in found or not found[name].ndim:
                raise SourceError(
                    f"{spoken(self.path)} has no array {name!r} with an axis of rows",
                    why=f"it has {sorted(found)}",
                )
        if not chosen:
            raise SourceError(f"{spoken(self.path)} has no arrays", try_="a group that has some")
        return {name: found[name] for name in chosen}

    def spoken(self, error: Exception) -> str:
        """What the library says, without what a URL carries."""
        return spoken(error)

    def schema(self) -> Any:
        """Types of the entries, and shapes of rows."""
        none = {n: np.zeros((0, *a.shape[1:]), a.dtype) for n, a in self._arrays.items()}
        return from_numpy(none).schema

    def parts(self) -> Sequence[SourcePart]:
        """One, as long as the arrays are."""
        nbytes = sum(int(array.nbytes) for array in self._arrays.values())
        return (SourcePart("", self.rows, nbytes),)

    def take(self, index: np.ndarray, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Rows at ``index``: every chunk that has some of them is read once."""
        rows = self._memory(index, columns)
        return rows.part(0, len(index), columns, RowIds.run(0, 0, len(index))).to_arrow()

    def _memory(self, index: np.ndarray, columns: tuple[str, ...]) -> Memory:
        first, count = int(index[0]), len(index)
        if np.array_equal(index, np.arange(first, first + count)):
            return from_numpy({n: self._arrays[n][first : first + count] for n in columns})
        wanted, back = np.unique(index, return_inverse=True)
        return from_numpy({n: self._arrays[n].oindex[wanted][back] for n in columns})

    def identity(self) -> object:
        """The content, which is read when it is asked for: arrays have no versions."""
        return self._content

    def _content(self) -> object:
        names = tuple(self._arrays)
        each = self.atom_rows or 1
        starts = range(0, self.rows, each)
        pieces = [np.arange(start, min(start + each, self.rows)) for start in starts]
        return (names, [self._memory(piece, names).identity() for piece in pieces])


def read_zarr(path: str | os.PathLike[str], arrays: Iterable[str] | None) -> Zarr:
    """The array at ``path``, or those of the group that ``arrays`` names; all if it is None."""
    return Zarr(located(path), None if arrays is None else tuple(arrays))
