"""Lance datasets are read at one version, with random access to rows."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.cached_property import cached_property
from dml.errors import SourceError
from dml.io.extras import extra, located, spoken
from dml.plugins import DataSource, SourcePart


class Lance(DataSource):
    """A Lance dataset at a version, a tag or the latest, without deleted rows.

    Raise SourceError if it is absent.
    """

    name = "lance"

    def __init__(
        self,
        path: str | os.PathLike[str],
        version: int | str | None,
        storage_options: Mapping[str, str] | None,
    ) -> None:
        self.path, self.options = located(path), dict(storage_options or {})
        self.version = version
        self.version = int(self._dataset.version)

    def __getstate__(self) -> dict[str, Any]:
        """Return location and version, from which another process opens the dataset again."""
        return {"path": self.path, "options": self.options, "version": self.version}

    @cached_property
    def _dataset(self) -> Any:
        library = extra("lance", "read_lance", "lance")
        try:
            return library.dataset(
                self.path, version=self.version, storage_options=self.options or None
            )
        except Exception as error:  # noqa: BLE001 - the library raises errors of several families
            at = "" if self.version is None else f", version {self.version}"
            raise SourceError(
                f"{spoken(self.path)} cannot be read as a Lance dataset",
                at=f"{spoken(self.path)}{at}",
                why=self.spoken(error),
                try_="the folder that lance.write_dataset wrote, and a version that is still there",
            ) from None

    def spoken(self, error: Exception) -> str:
        """Return the error text of the library without credentials."""
        return spoken(error, self.options)

    def schema(self) -> pa.Schema:
        """Return the schema of the dataset."""
        return self._dataset.schema

    def parts(self) -> Sequence[SourcePart]:
        """Return a single part with the number of rows that are not deleted."""
        return (SourcePart("", int(self._dataset.count_rows())),)

    def take(self, index: np.ndarray, columns: tuple[str, ...]) -> pa.Table:
        """Read the rows at ``index``, in that order; a contiguous range is scanned."""
        first, count = int(index[0]), len(index)
        names = list(columns)
        if np.array_equal(index, np.arange(first, first + count)):
            return self._dataset.to_table(columns=names, offset=first, limit=count)
        return self._dataset.take(index.tolist(), columns=names)

    def identity(self) -> object:
        """Return the fragment metadata: files, which are never rewritten, and deletions.

        A library upgrade may serialize the metadata differently, which changes the identity.
        """
        said = [fragment.metadata.to_json() for fragment in self._dataset.get_fragments()]
        return json.dumps(said, sort_keys=True, default=str)
