"""Zarr arrays are read with rows along the first axis and atoms along its chunks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.cached_property import cached_property
from dml.errors import SourceError
from dml.io.extras import extra, located, spoken
from dml.io.memory.memory import ITEM, Memory, from_numpy
from dml.kernels.rows.ids import RowIds
from dml.plugins import DataSource, SourcePart


class Zarr(DataSource):
    """Arrays of equal length, each a column; axes after the first are tensor axes.

    They are the array at ``path``, or those of a group that ``names`` has; None for all.
    """

    name = "zarr"

    def __init__(self, path: str | os.PathLike[str], names: Iterable[str] | None) -> None:
        self.path, self.names = located(path), None if names is None else tuple(names)
        arrays = self._arrays
        lengths = {name: int(array.shape[0]) for name, array in arrays.items()}
        first = next(iter(lengths))
        for name, length in lengths.items():
            if length != lengths[first]:
                raise SourceError(
                    f"arrays {first!r} and {name!r} have {lengths[first]} and {length} rows",
                    at=spoken(self.path),
                    why="row i is made of the i-th entry of every array",
                    try_=f"arrays=[{first!r}], or others of equal length",
                )
        self.rows = lengths[first]
        self.atom_rows = max(1, min(int(array.chunks[0]) for array in arrays.values()))

    def __getstate__(self) -> dict[str, Any]:
        """Return the location of the arrays, from which another process opens them again."""
        return {name: value for name, value in self.__dict__.items() if name != "_arrays"}

    @cached_property
    def _arrays(self) -> dict[str, Any]:
        """The arrays by column name; access raises SourceError for an absent array or for none."""
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
        """Return the error text of the library without credentials of a URL."""
        return spoken(error)

    def schema(self) -> Any:
        """Return element types and row shapes."""
        none = {n: np.zeros((0, *a.shape[1:]), a.dtype) for n, a in self._arrays.items()}
        return from_numpy(none).schema

    def parts(self) -> Sequence[SourcePart]:
        """Return a single part with the length of the arrays."""
        nbytes = sum(int(array.nbytes) for array in self._arrays.values())
        return (SourcePart("", self.rows, nbytes),)

    def take(self, index: np.ndarray, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Read rows at ``index``; every chunk that contains some of them is read once."""
        rows = self._memory(index, columns)
        return rows.part(0, len(index), columns, RowIds.run(0, 0, len(index))).to_arrow()

    def _memory(self, index: np.ndarray, columns: tuple[str, ...]) -> Memory:
        first, count = int(index[0]), len(index)
        if np.array_equal(index, np.arange(first, first + count)):
            return from_numpy({n: self._arrays[n][first : first + count] for n in columns})
        wanted, back = np.unique(index, return_inverse=True)
        return from_numpy({n: self._arrays[n].oindex[wanted][back] for n in columns})

    def identity(self) -> object:
        """Return a function that digests the content on demand, since arrays have no versions."""
        return self._content

    def _content(self) -> object:
        names = tuple(self._arrays)
        each = self.atom_rows or 1
        starts = range(0, self.rows, each)
        pieces = [np.arange(start, min(start + each, self.rows)) for start in starts]
        return (names, [self._memory(piece, names).identity() for piece in pieces])
