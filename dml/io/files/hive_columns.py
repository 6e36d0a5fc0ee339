"""Columns are derived from paths: keys of folders such as ``year=2024``, and the paths themselves.

The values are known before a file is read. A filter on path columns alone is computed once per
file, and excluded files are never opened. If only path columns are selected, no bytes of any file
are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from dml.base.cached_property import cached_property
from dml.base.fingerprint import digest
from dml.data.block import Block, from_arrow
from dml.data.schema import Schema, code_of
from dml.errors import PlanError, SchemaError
from dml.expr.columns.computation import truth
from dml.expr.columns.typing import lower
from dml.expr.node import op
from dml.io.files.files import FileSource, chosen
from dml.io.files.hive_paths import TEXT, FilePlace, PathArguments, checked, keys_of, placed, typed
from dml.io.parquet.statistics import UNKNOWN, Facts, exactly, may_match
from dml.io.partial_source import PartOf
from dml.io.source import Source, Unit
from dml.kernels.arrow_ops import compute
from dml.kernels.interpreter import run

if TYPE_CHECKING:
    from dml.expr.columns.value import Value

OFFSET = 4  # bytes of the offset of a text
# Maximum number of filters whose results are cached for every file.
REMEMBERED = 256


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PathValues:
    """Values derived from file paths: ``rows`` has a row per file, and a column per key.

    ``path_column`` is the column of the paths themselves, or None.
    """

    rows: pa.RecordBatch
    path_column: str | None

    @cached_property
    def digest(self) -> bytes:
        """Digest of the values, in the order of the files."""
        return digest("path values", self.rows.schema.names, *self.rows.columns, self.path_column)

    @cached_property
    def schema(self) -> Schema:
        """Names and types of the columns derived from paths."""
        return Schema(zip(self.rows.schema.names, self.rows.schema.types, strict=True))

    @cached_property
    def widths(self) -> np.ndarray:
        """For each file, the bytes per row that the path columns take: (n,) int64."""
        total = np.zeros(self.rows.num_rows, np.int64)
        for values in self.rows.columns:
            if code_of(values.type) == "arrow" and not pa.types.is_primitive(values.type):
                lengths = compute().fill_null(compute().binary_length(values.cast(TEXT)), 0)
                total += OFFSET + lengths.to_numpy(zero_copy_only=False)
            else:
                total += -(-values.type.bit_width // 8)
        return total

    def shard(self, num_shards: int, index: int) -> PathValues:
        """Return the values of every ``num_shards``-th file from ``index`` on."""
        kept = pa.array(range(index, self.rows.num_rows, num_shards), pa.int64())
        return dataclasses.replace(self, rows=self.rows.take(kept))

    def passing(self, part: Value) -> np.ndarray:
        """Return for every file whether predicate ``part`` on path columns is true: (n,) bool."""
        lowered = lower([part], self.schema)
        inputs = [from_arrow(self.rows.column(each.params[0])) for each in lowered.inputs]
        files = self.rows.num_rows
        return truth(run(lowered.program, inputs, files).outputs[0], files)

    def __repr__(self) -> str:
        keys = [name for name in self.schema if name != self.path_column]
        shown = [f"hive_partitioning={keys}"] if keys else []
        shown += [f"path_column={self.path_column!r}"] if self.path_column else []
        return ", ".join(shown)


@op
class PathColumns(PartOf):
    """The rows of ``source`` with columns of their file paths; units, atoms and ids are unchanged.

    If the files have a column of the same name, it keeps its position and type but gets the values
    of the path. Other path columns follow the columns of the files.
    """

    source: FileSource
    columns: tuple[str, ...] | None
    values: PathValues

    @property
    def undivided(self) -> FileSource:
        """The source whose files are read."""
        return self.source

    def infer(self) -> Schema:
        """Return the schema of the selected columns, in the requested order."""
        if self.columns is None:
            return self._every
        door = f"read_{self.source.word}"
        return Schema((name, self._every.require(name, door)) for name in self.columns)

    @cached_property
    def _every(self) -> Schema:
        """All columns of files and paths."""
        return Schema({**self.source.schema, **self.values.schema})

    def files_shard(self, num_shards: int, index: int) -> Source:
        """Return every ``num_shards``-th file from ``index`` on, with the values of its path."""
        files, values = (each.shard(num_shards, index) for each in (self.source.files, self.values))
        return self.replace(source=self.source.replace(files=files), values=values)

    def unit(self, index: int) -> Unit:
        """Return unit ``index`` of ``source``, with the bytes of the path columns added."""
        found = self.source.unit(index)
        added = (found.rows or 0) * int(self.values.widths[self._numbers[found.file]])
        return dataclasses.replace(found, nbytes=found.nbytes + added)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """File numbers by file name."""
        return {file.name: number for number, file in enumerate(self.source.files.files)}

    def _stored(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return those of ``columns`` that are read from files."""
        return tuple(name for name in columns if name not in self.values.schema)

    def read(self, unit: Unit, columns: tuple[str, ...], skip_atoms: int = 0) -> Iterator[Block]:
        """Read the rows of ``unit``, and add the path values of its file to every row."""
        stored, file = self._stored(columns), self._numbers[unit.file]
        schema = self._every.select(columns)
        with closing(cast("Any", self.source.read(unit, stored, skip_atoms))) as blocks:
            for block in blocks:
                found = dict(zip(stored, block.columns, strict=True))
                for name in columns:
                    if name not in found:
                        value = self.values.rows.column(name)[file]
                        found[name] = from_arrow(pa.repeat(value, block.n))
                yield Block(schema, tuple(found[name] for name in columns), block.ids)

    def working_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Return the estimate of ``source`` for the columns read from files."""
        return self.source.working_bytes(unit, self._stored(columns))

    def stored_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """Return the stored bytes of ``source`` for the columns read from files."""
        stored = self._stored(columns)
        return self.source.stored_bytes(unit, stored) if stored else 0

    @cached_property
    def _passed(self) -> dict[bytes, np.ndarray]:
        return {}

    def may_match(self, unit: Unit, predicate: tuple[Value, ...]) -> bool:
        """Return False only if the path, alone or with file statistics, proves no row passes."""
        file = self._numbers[unit.file]
        mixed = []
        for part in predicate:
            if not self._told_by_paths(part):
                mixed.append(part)
            elif not self._passing(part)[file]:
                return False
        return may_match(tuple(mixed), lambda name: self._facts(name, unit, file))

    def _told_by_paths(self, part: Value) -> bool:
        columns = self.values.schema
        return bool(part.refs) and part.refs <= set(columns) and part.total and not part.draws

    def _passing(self, part: Value) -> np.ndarray:
        found = self._passed.get(part.digest)
        if found is None:
            if len(self._passed) >= REMEMBERED:
                self._passed.clear()
            found = self._passed[part.digest] = self.values.passing(part)
        return found

    def _facts(self, name: str, unit: Unit, file: int) -> Facts:
        if name in self.values.schema:
            values = self.values.rows.column(name)
            return exactly(values[file].as_py(), values.type)
        return self.source.facts(unit, name) or UNKNOWN

    def null_in(self, column: str) -> str:
        """Describe a file with a null in ``column``, or without a value in its path; else ""."""
        if column not in self.values.schema:
            return self.source.null_in(column)
        absent = compute().is_null(self.values.rows.column(column)).to_numpy(zero_copy_only=False)
        if absent.any():
            for part in self.source.parts:
                if absent[self._numbers[part.file.name]]:
                    return f"{part.file.name}, whose path has no value for it"
        return ""

    def bounds(self, column: str) -> tuple[int, int] | None:
        """Return minimum and maximum of integer path values; None if there is a null."""
        if column not in self.values.schema:
            return self.source.bounds(column)
        values = self.values.rows.column(column)
        if not pa.types.is_integer(values.type) or values.null_count or not len(values):
            return None
        ends = compute().min_max(values)
        return ends["min"].as_py(), ends["max"].as_py()

    def title(self) -> str:
        """Return the title of the source with the path columns."""
        columns = "" if self.columns is None else f", columns={list(self.columns)}"
        given = f"{self.source.parameters_text()}{columns}, {self.values!r}"
        return f"{type(self.source).__name__}({given})"


def located(source: FileSource, given: PathArguments, columns: object) -> Source:
    """Add the requested path columns to ``source``, which has all columns of the files.

    Raise SourceError if paths have different keys, or ``hive_partitioning=True`` finds no key;
    SchemaError for names in use, and for values that do not fit the files' types.
    """
    door = f"read_{source.word}"
    _check(given, door)
    names = chosen(columns, door)
    places = placed(source.files.files, given)
    stored = names is not None and source.schema.keys() >= set(names)
    keys = keys_of(places, given, names if stored else None)
    values = _values(source, places, keys, given.path_column)
    if names is None and not values.schema:
        return source
    if stored and not values.schema.keys() & set(names or ()):
        return source.replace(columns=names)
    return PathColumns(source, names, values)


def _check(given: PathArguments, door: str) -> None:
    """Raise PlanError for invalid arguments."""
    if given.hive_partitioning is not None and type(given.hive_partitioning) is not bool:
        raise PlanError(
            f"{door} got hive_partitioning={given.hive_partitioning!r}",
            why="folders such as year=2024 are made into columns, or they are not",
            try_="True, False, or None for folders that have such names below them",
        )
    if given.path_column is not None and not (
        given.path_column and isinstance(given.path_column, str)
    ):
        raise PlanError(
            f"{door} got path_column={given.path_column!r}",
            why="it is the name of a column",
            try_="path_column='path', or no path_column= for no such column",
        )


def _values(
    source: FileSource, places: Sequence[FilePlace], keys: Sequence[str], path_column: str | None
) -> PathValues:
    """Build a column of values per folder key, and the column of the paths themselves."""
    columns = {key: typed(key, places, source.schema.get(key)) for key in keys}
    if path_column is not None:
        if path_column in columns or path_column in source.schema:
            raise SchemaError(
                f"there is a column {path_column!r} already",
                why=f"the {'paths' if path_column in columns else 'files'} have it",
                try_="path_column= with another name",
            )
        columns[path_column] = pa.array([checked(place.written) for place in places], TEXT)
    return PathValues(pa.record_batch(columns), path_column)
