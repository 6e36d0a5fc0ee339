"""Delta tables are read at one version: each file in the table's log is a part."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from dml.base.cached_property import cached_property
from dml.errors import SourceError
from dml.io.extras import extra, located, spoken
from dml.plugins import DataSource, SourcePart

MAPPING = "delta.columnMapping.mode"


class Delta(DataSource):
    """A Delta table at a version, None for the latest, with files in order of their paths.

    Raise SourceError if it is absent.
    """

    name = "delta"

    def __init__(
        self,
        path: str | os.PathLike[str],
        version: int | None,
        storage_options: Mapping[str, str] | None,
    ) -> None:
        self.path, self.options = located(path), dict(storage_options or {})
        self.version = version
        self.version = int(self._table.version())

    def __getstate__(self) -> dict[str, Any]:
        """Return location and version, from which another process opens the table again."""
        return {"path": self.path, "options": self.options, "version": self.version}

    @cached_property
    def _table(self) -> Any:
        library = extra("deltalake", "read_delta", "delta")
        try:
            return library.DeltaTable(
                self.path, version=self.version, storage_options=self.options or None
            )
        except Exception as error:  # noqa: BLE001 - the library raises errors of several families
            raise self._refused(error) from None

    def _refused(self, error: Exception) -> SourceError:
        """Build the SourceError for a table that the library cannot read."""
        at, shown = "" if self.version is None else f", version {self.version}", spoken(self.path)
        return SourceError(
            f"{shown} cannot be read as a Delta table",
            at=f"{shown}{at}",
            why=self.spoken(error),
            try_="the folder that holds _delta_log, and a version that was not vacuumed",
        )

    def spoken(self, error: Exception) -> str:
        """Return the error text of the library without credentials."""
        return spoken(error, self.options)

    @cached_property
    def _dataset(self) -> Any:
        mode = self._table.metadata().configuration.get(MAPPING) or "none"
        if mode != "none":
            raise SourceError(
                f"{spoken(self.path)} has other names in its files than in its schema",
                why=f"its {MAPPING} is {mode!r}, which pyarrow does not follow",
                try_="read_parquet of an export, or a copy of the table without the mapping",
            )
        try:
            return self._table.to_pyarrow_dataset()
        except Exception as error:  # noqa: BLE001 - as above
            raise SourceError(
                f"{spoken(self.path)} uses what cannot be read here",
                why=self.spoken(error),
                try_="a copy without it: deletion vectors are gone after REORG ... APPLY (PURGE)",
            ) from None

    @cached_property
    def _files(self) -> list[dict[str, Any]]:
        """Log entries of the files, in order of their paths."""
        actions = pa.table(self._table.get_add_actions(flatten=True))
        wanted = [n for n in ("path", "size_bytes", "num_records") if n in actions.column_names]
        found = actions.select(wanted).to_pylist()
        named = ({**file, "path": unquote(file["path"])} for file in found)  # logged as URLs
        return sorted(named, key=lambda file: str(file["path"]))

    @cached_property
    def _fragments(self) -> dict[str, Any]:
        return {fragment.path: fragment for fragment in self._dataset.get_fragments()}

    def schema(self) -> pa.Schema:
        """Return the schema of the table, including partition columns."""
        return self._dataset.schema

    def parts(self) -> Sequence[SourcePart]:
        """Return the files and their row counts from the log."""
        return [SourcePart(file["path"], file.get("num_records")) for file in self._files]

    def read(self, part: SourcePart, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Read a file together with its partition values."""
        schema = self._dataset.schema
        fragment = self._fragments[part.name]
        yield from fragment.to_batches(schema=schema, columns=list(columns), use_threads=False)

    def identity(self) -> object:
        """Return the table id, and names and sizes of the files, which are never rewritten."""
        files = [(file["path"], file["size_bytes"]) for file in self._files]
        return (str(self._table.metadata().id), files)
