"""Iceberg tables are read at one snapshot: each data file of the scan plan is a part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from dml.errors import SourceError
from dml.io.extras import extra, spoken
from dml.plugins import DataSource, SourcePart

DOOR = "read_iceberg"


class Iceberg(DataSource):
    """An Iceberg table at a snapshot, with data files in order of their paths."""

    name = "iceberg"

    def __init__(self, table: Any, snapshot: int | None) -> None:
        current = table.current_snapshot()
        self.snapshot = snapshot if snapshot is not None or not current else current.snapshot_id
        if self.snapshot is not None and table.snapshot_by_id(self.snapshot) is None:
            known = [each.snapshot_id for each in table.metadata.snapshots]
            raise SourceError(
                f"the table has no snapshot {self.snapshot}",
                why=f"it has {known[-5:]}",
                try_="snapshot=None for the latest one",
            )
        scan = table.scan(snapshot_id=self.snapshot)
        self.metadata, self.io, self.projection = table.metadata, table.io, scan.projection()
        self.tasks = sorted(scan.plan_files(), key=lambda task: str(task.file.file_path))

    def schema(self) -> pa.Schema:
        """Return the schema of the snapshot."""
        found: pa.Schema = _arrow().schema_to_pyarrow(self.projection)
        return found

    def parts(self) -> Sequence[SourcePart]:
        """Return the data files; a file with deletes has an unknown row count until it is read."""
        where = f"{self.metadata.location.rstrip('/')}/"
        return [
            SourcePart(
                task.file.file_path.removeprefix(where),
                None if task.delete_files else int(task.file.record_count),
                payload=number,
            )
            for number, task in enumerate(self.tasks)
        ]

    def read(self, part: SourcePart, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Read a data file with the names and types of the snapshot, without deleted rows."""
        everything = extra("pyiceberg.expressions", DOOR, "iceberg").AlwaysTrue()
        wanted = self.projection.select(*columns)
        scan = _arrow().ArrowScan(self.metadata, self.io, wanted, everything)
        yield from scan.to_record_batches([self.tasks[part.payload]])

    def spoken(self, error: Exception) -> str:
        """Return the error text of the library without credentials."""
        return spoken(error, self.io.properties)

    def identity(self) -> object:
        """Return the ids of the table and of the snapshot, which are unique."""
        return (str(self.metadata.table_uuid), self.snapshot)


def _arrow() -> Any:
    return extra("pyiceberg.io.pyarrow", DOOR, "iceberg")


def read_iceberg(table: Any, snapshot: int | None, catalog: str) -> Iceberg:
    """Open a table, or the table of that name in ``catalog``; raise SourceError if absent."""
    if isinstance(table, str):
        library = extra("pyiceberg.catalog", DOOR, "iceberg")
        try:
            table = library.load_catalog(catalog).load_table(table)
        except Exception as error:  # noqa: BLE001 - the library raises errors of several families
            raise SourceError(
                f"the catalog {catalog!r} has no table {table!r} that can be read",
                why=spoken(error) or type(error).__name__,
                try_="a pyiceberg Table, or the catalog of ~/.pyiceberg.yaml that has it",
            ) from None
    if not (hasattr(table, "scan") and hasattr(table, "current_snapshot")):
        raise SourceError(
            f"read_iceberg needs a table, got {table!r}",
            why=f"it is of type {type(table).__name__}",
            try_='catalog.load_table("namespace.name"), or "namespace.name" itself',
        )
    return Iceberg(table, snapshot)
