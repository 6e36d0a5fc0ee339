"""This file reads Lance datasets at one version, any rows at once."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dml.errors import SourceError
from dml.expr.computed import cached_property
from dml.expr.sources.extras import extra, located, spoken
from dml.plugins import DataSource, SourcePart


class Lance(DataSource):
    """A Lance dataset as it was at a version; rows that were deleted are not there."""

    name = "lance"

    def __init__(
        self, path: str, version: int | str | None, storage_options: Mapping[str, str] | None
    ) -> None:
        self.path, self.options = path, dict(storage_options or {})
        self.version = version
        self.version = int(self._dataset.version)

    def __getstate__(self) -> dict[str, Any]:
        """Where the dataset is, and the version: another process opens it again."""
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
        """What the library says, without what opens the store."""
        return spoken(error, self.options)

    def schema(self) -> pa.Schema:
        """The dataset's."""
        return self._dataset.schema

    def parts(self) -> Sequence[SourcePart]:
        """One, of as many rows as are not deleted."""
        return (SourcePart("", int(self._dataset.count_rows())),)

    def take(self, index: np.ndarray, columns: tuple[str, ...]) -> pa.Table:
        """Rows at ``index``; those that follow one another are scanned."""
        first, count = int(index[0]), len(index)
        names = list(columns)
        if np.array_equal(index, np.arange(first, first + count)):
            return self._dataset.to_table(columns=names, offset=first, limit=count)
        return self._dataset.take(index.tolist(), columns=names)

    def identity(self) -> object:
        """What the version says of its fragments: their files, never written twice, and deletions.

        An upgrade of the library may say it in other words, which is another name.
        """
        said = [fragment.metadata.to_json() for fragment in self._dataset.get_fragments()]
        return json.dumps(said, sort_keys=True, default=str)


def read_lance(
    path: str | os.PathLike[str],
    version: int | str | None,
    storage_options: Mapping[str, str] | None,
) -> Lance:
    """The dataset at ``path``, at a version, a tag, or the latest; SourceError if there is none."""
    return Lance(located(path), version, storage_options)
