"""CSV files are read with types that are inferred from the first rows and hold for all files."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from dml.base.fingerprint import digest
from dml.data.schema import Schema, schema_of
from dml.errors import PlanError, SchemaError, SourceError
from dml.expr.node import op
from dml.io.column_store import whole
from dml.io.exact_integers import (
    BEYOND,
    DIGITS,
    ROUNDED,
    Number,
    check_kept,
    holding,
    long_integers,
    reaches,
)
from dml.io.files.compression import PACKED
from dml.io.files.files import File, chosen, listed, several
from dml.io.files.lines import LineFiles, LineSource, RowError, block_size, inferred
from dml.io.files.paths import FileKind, Paths
from dml.io.files.records import BYTE_ORDER_MARK, Form, after_mark, line_at, spot, windows
from dml.kernels.arrow_ops import compute

ENDINGS = (".csv", ".tsv")
KIND = FileKind("CSV", (*ENDINGS, *(end + packed for end in ENDINGS for packed in PACKED)))
NEWLINE, RETURN = 10, 13
NOT_SETTLED = Schema()
# Every column costs a kilobyte or more in each schema that contains it, whatever its values.
MOST_COLUMNS = 1 << 15
# Most columns that Arrow decodes at once: it takes 8 KiB for each (benchmarks/bench_wide_csv.py).
AT_ONCE = 1 << 12
# Integers that float64 may not represent exactly, as a pattern of RE2.
LONG = r"^\s*[+-]?[0-9]{16,}\s*$"
TRY_SCHEMA = 'schema={{{name!r}: "string"}}, or the type that all its values have'


@dataclasses.dataclass(frozen=True)
class CsvForm(Form):
    """The CSV format: rows of values, with delimiter and quote characters ("" for no quotes).

    The user declared the types in ``declared``; other types in ``schema`` were inferred.
    """

    delimiter: str
    quote: str
    nulls: tuple[str, ...]
    header: bool
    declared: Schema = NOT_SETTLED
    schema: Schema = NOT_SETTLED

    def ends(self, window: bytes) -> np.ndarray:
        """Return the byte offsets in ``window`` just past each complete row: (n,) int64, ascending.

        Rows end at line ends outside of quotes; empty lines are not rows.
        """
        stored = np.frombuffer(window, np.uint8)
        turns = self._turns(stored)
        if len(turns) % 2:
            stored = stored[: turns[-1] + 1]  # no row ends after an unclosed quote
        breaks = np.flatnonzero(stored == NEWLINE)
        if RETURN in window and len(lone := _lone_returns(stored)):
            breaks = np.sort(np.concatenate([breaks, lone]))
        if len(turns):
            breaks = breaks[np.searchsorted(turns, breaks) % 2 == 0]
        sizes = np.diff(breaks, prepend=-1) - 1
        empty = (sizes == 0) | ((sizes == 1) & (stored[breaks - (sizes > 0)] == RETURN))
        ends: np.ndarray = breaks[~empty] + 1
        return ends

    def _turns(self, stored: np.ndarray) -> np.ndarray:
        """Return the offsets of quotes that open and close values, alternating: (n,) int64.

        A quote inside an unquoted value is text. A doubled quote closes and reopens the quoted
        value, which has the same effect as a quote in the value.
        """
        if not self.quote:
            return np.array([], dtype=np.int64)
        quote = ord(self.quote)
        found = np.flatnonzero(stored == quote)
        before = stored[found - 1]
        before[found == 0] = NEWLINE
        starts = (NEWLINE, RETURN, ord(self.delimiter))
        if np.isin(before[::2], (*starts, quote)).all():
            return found
        turns: list[int] = []
        for at, letter in zip(found.tolist(), before.tolist(), strict=True):
            doubled = turns and turns[-1] == at - 1
            if len(turns) % 2 or doubled or letter in starts:
                turns.append(at)
        return np.array(turns, dtype=np.int64)

    def unclosed(self, window: bytes) -> int | None:
        """Return the offset of the last quote if it is not closed, else None."""
        turns = self._turns(np.frombuffer(window, np.uint8))
        return int(turns[-1]) if len(turns) % 2 else None

    def values(self, window: bytes) -> int:
        """Return the number of values in ``window``, which is one row."""
        return 1 + len(self._between(np.frombuffer(window, np.uint8)))

    def _between(self, stored: np.ndarray) -> np.ndarray:
        """Return the offsets of the delimiters between the values of one row: (n,) int64."""
        found = np.flatnonzero(stored == ord(self.delimiter))
        between: np.ndarray = found[np.searchsorted(self._turns(stored), found) % 2 == 0]
        return between

    def last(self, window: bytes) -> bool:
        """Return True if ``window``, the end of a file, has a row without line end.

        Raise SourceError if the file ends inside quotes.
        """
        quote = self.unclosed(window)
        if quote is not None:
            error = SourceError(
                "a quoted value has no end",
                why="the file ends within quotes, which open on that line",
                try_="quote='' if quotes are letters here; or the file was cut off",
            )
            error.offset = quote
            raise error
        return bool(window.strip(b"\r\n"))

    @property
    def digest(self) -> bytes:
        """Digest of dialect, column names, types, and null values."""
        dialect = (self.delimiter, self.quote, self.header)
        types = (self.schema.to_arrow(), tuple(sorted(self.declared)))
        return digest("csv", 3, *dialect, self.nulls, *types)

    def spot(self, file: File, row: int, at: int) -> str:
        """Describe the location of a row; line numbers count all CSV line ends."""
        return spot(file, row, at, returns=True)

    def first(self, file: File) -> int:
        """Return the byte offset of the first row, which is after the header if there is one."""
        start, line = self.head(file)
        return start + len(line)

    def head(self, file: File) -> tuple[int, bytes]:
        """Return the byte offset of the header, and its line; b"" without a header."""
        start = super().first(file)
        if not self.header:
            return start, b""
        with self.open(file) as stream:
            stream.read(start)
            try:
                window, ends = next(windows(stream, self), (b"", None))
            except SourceError as error:
                number = line_at(file, start + error.offset, returns=True)
                raise error.located(f"{file.path}, line {number}") from None
        if ends is None:
            raise SourceError(
                f"{file.name} has no header",
                at=file.path,
                why="it is empty",
                try_="header=False, for files without one",
            )
        line = window[: ends[0]]
        if (count := self.values(line)) > MOST_COLUMNS:
            raise SourceError(
                f"the header of {file.name} has {count} columns",
                at=f"{file.path}, line 1",
                why=f"a row has at most {MOST_COLUMNS}",
                try_="another delimiter=; or a format that reads some of them, such as Parquet",
            )
        return start, line

    def names_of(self, file: File) -> tuple[str, ...]:
        """Return the names in the header of ``file``."""
        line = self.head(file)[1]
        # a column of text, one name a line: a table of as many columns would cost far more
        stored = np.frombuffer(line, np.uint8).copy()
        stored[self._between(stored)] = NEWLINE
        # Arrow finds no line in an unterminated one that contains quoted newlines
        ended = line.endswith((b"\n", b"\r"))
        text = stored.tobytes() if ended else stored.tobytes() + b"\n"
        size = block_size(text) + 8
        reading = pc.ReadOptions(use_threads=False, block_size=size, column_names=["name"])
        options = pc.ConvertOptions(column_types={"name": pa.string()})
        try:
            names = self._table(text, reading, options, empty=True)["name"].to_pylist()
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise SourceError(
                f"the header of {file.name} cannot be read", at=file.path, why=str(error)
            ) from None
        return tuple(names)

    def names_in(self, files: Sequence[File]) -> tuple[str, ...]:
        """Return the header's names; raise SourceError if headers differ or repeat a name."""
        names = self.names_of(files[0])
        for file, other in zip(files[1:], several(self.names_of, files[1:]), strict=True):
            if other != names:
                raise SourceError(
                    f"{file.name} has other columns than {files[0].name}",
                    at=file.path,
                    why=f"they are {', '.join(other)}, and {', '.join(names)} there",
                    try_="files of one header; two sources with .select(...), then concat",
                )
        if twice := next((name for name, n in Counter(names).items() if n > 1), None):
            raise SourceError(
                f"{files[0].name} has two columns called {twice!r}",
                at=files[0].path,
                try_="write it again under different names",
            )
        return names

    def infer(self, data: bytes, names: Sequence[str]) -> Schema:
        """Infer the schema of the rows in ``data``; a column without any value is text.

        ``names`` are the column names; without names, columns are called f0, f1 and so on.
        """
        if not names and data.count(self.delimiter.encode()) >= MOST_COLUMNS:
            first = data[: next(iter(self.ends(data)), len(data))]
            if (count := self.values(first)) > MOST_COLUMNS:
                why = f"it has {count} values, and a row at most {MOST_COLUMNS}"
                raise RowError(why, 0, "another delimiter=")
        reading = pc.ReadOptions(
            use_threads=False, block_size=block_size(data), column_names=list(names) or None,
            autogenerate_column_names=not names,
        )  # fmt: skip
        table = self._parsed(data, reading, dict(self.declared), names)
        guessed = {field.name: field.type for field in table.schema}
        # Arrow infers bytes for damaged text, and null for columns without values
        text = {n for n, k in guessed.items() if pa.types.is_null(k) or pa.types.is_binary(k)}
        text -= set(self.declared)
        named = zip(table.column_names, table.columns, strict=True)
        large = [n for n, each in named if n not in self.declared and reaches(each, BEYOND)]
        for name, spelled in self._spelled(data, reading, large):
            given = compute().utf8_trim_whitespace(spelled.filter(table[name].is_valid()))
            guessed[name] = holding(name, given.to_pylist(), DIGITS) or guessed[name]
        return Schema((n, pa.string() if n in text else k) for n, k in guessed.items())

    def decode(self, data: bytes, rows: int, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Decode ``columns`` of ``rows`` rows in ``data``; raise RowError for an invalid row."""
        reading = pc.ReadOptions(
            use_threads=False, block_size=block_size(data), column_names=list(self.schema)
        )
        types = {name: self.schema[name] for name in columns}
        table = self._parsed(data, reading, types, columns)
        if table.num_rows != rows:
            raise RowError(
                f"it is {table.num_rows} rows where {rows} lines end",
                try_="quotes around values with ends of lines in them",
            )
        self._check(data, reading, table)
        return pa.RecordBatch.from_arrays([whole(c) for c in table.columns], names=list(columns))

    def _check(self, data: bytes, reading: pc.ReadOptions, table: pa.Table) -> None:
        """Raise RowError for the first row with a number that its float column would change."""
        large = [
            name
            for name, column in zip(table.column_names, table.columns, strict=True)
            if reaches(column, math.inf if name in self.declared else ROUNDED)
        ]
        if large and not len(long_integers(data)):
            large = [name for name in large if reaches(table[name], math.inf)]
        wrong = []
        for name, text in self._spelled(data, reading, large):
            try:
                check_kept(name, _doubtful(text, table[name]), declared=name in self.declared)
            except RowError as error:
                wrong.append(error)
        if wrong:
            raise min(wrong, key=lambda error: error.row or 0)

    def _spelled(
        self, data: bytes, reading: pc.ReadOptions, names: list[str]
    ) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """Yield each column of ``names`` with its values as text, as written in ``data``."""
        if names:
            text = self._parsed(data, reading, dict.fromkeys(names, pa.string()), names)
            yield from zip(names, text.columns, strict=True)

    def _parsed(
        self,
        data: bytes,
        reading: pc.ReadOptions,
        types: Mapping[str, pa.DataType],
        columns: Sequence[str] = (),
    ) -> pa.Table:
        """Parse ``columns`` (empty: all) of the rows in ``data``, ``AT_ONCE`` columns at a time."""
        options = pc.ConvertOptions(
            column_types=types, null_values=["", *self.nulls],
            strings_can_be_null=bool(self.nulls),
        )  # fmt: skip
        tables = list[pa.Table]()
        for start in range(0, max(1, len(columns)), AT_ONCE):
            options.include_columns = list(columns[start : start + AT_ONCE])
            try:
                tables.append(self._table(data, reading, options))
            except (pa.ArrowException, UnicodeDecodeError) as error:
                raise self._row_error(" ".join(str(error).split())) from None
        if len(tables) == 1:
            return tables[0]
        arrays = [column for table in tables for column in table.columns]
        return pa.Table.from_arrays(arrays, names=[*columns])

    def _table(
        self,
        data: bytes,
        reading: pc.ReadOptions,
        options: pc.ConvertOptions,
        *,
        empty: bool = False,
    ) -> pa.Table:
        """Parse ``data``; ``empty`` lines are rows or nothing."""
        parsing = pc.ParseOptions(
            delimiter=self.delimiter,
            quote_char=self.quote or False,
            newlines_in_values=True,
            ignore_empty_lines=not empty,
        )
        # Arrow drops a byte order mark at the start of its input, which may not be that of the file
        start = BYTE_ORDER_MARK if empty else b"\n" if after_mark(data) else b""
        return pc.read_csv(pa.BufferReader(start + data), reading, parsing, options)

    def _row_error(self, message: str) -> RowError:
        """Build the RowError for a message of Arrow, with a column name in place of its number."""
        message = re.sub(r"Row #\d+: ", "", message).removeprefix("CSV parse error: ")
        found = re.match(r"In CSV column #(\d+): (?:CSV )?(.*)", message)
        names = self.schema.names
        if found is None or not names:
            return RowError(message, try_="quotes around values with delimiters or newlines")
        name = names[int(found[1])]
        return RowError(f"column {name!r}: {found[2]}", try_=TRY_SCHEMA.format(name=name))


def _doubtful(text: pa.ChunkedArray, floats: pa.ChunkedArray) -> list[tuple[int, Number, float]]:
    """Return row, text and float of each value that is infinite or may be a rounded integer."""
    unsure = compute().or_(compute().match_substring_regex(text, LONG), compute().is_inf(floats))
    rows = compute().indices_nonzero(compute().and_(unsure, floats.is_valid()))
    pairs = zip(text.take(rows).to_pylist(), floats.take(rows).to_pylist(), strict=True)
    numbers = zip(rows.to_pylist(), pairs, strict=True)
    return [(row, Number(spelled.strip()), stored) for row, (spelled, stored) in numbers]


def _lone_returns(stored: np.ndarray) -> np.ndarray:
    """Return the offsets of carriage returns that a byte other than newline follows: (n,) int64."""
    found = np.flatnonzero(stored[:-1] == RETURN)
    lone: np.ndarray = found[stored[found + 1] != NEWLINE]
    return lone


@op
class CsvSource(LineSource):
    """Rows of CSV files in order of file name, row."""

    word: ClassVar[str] = "csv"


def read_csv(
    paths: Paths,
    columns: Iterable[str] | None = None,
    schema: object = None,
    *,
    delimiter: str = ",",
    header: bool = True,
    quote: str = '"',
    null_values: Iterable[str] = (),
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> CsvSource:
    r"""Read rows of CSV files: a file, a folder (its .csv and .tsv files), a pattern, or a list.

    Types are inferred from the first MiB of the first file, except for the columns of ``schema``.
    Without a ``header``, columns are named as in ``schema``, or f0, f1 and so on. An empty value is
    null, and so are ``null_values``; in text an empty value is null only if ``null_values`` are
    given. Lines end with ``\n``, ``\r\n`` or ``\r``, and empty lines are not rows. A column of
    integers of which some exceed int64 is uint64 if all fit, else decimal128. Raises SourceError if
    headers differ, and while reading for a row of another length, a value of another type, or an
    integer that an inferred float64 cannot represent; SchemaError for missing columns. A row has at
    most 32,768 values.
    """
    letters = (_letter(delimiter, "delimiter"), quote and _letter(quote, "quote"))
    root, files, given = listed(paths, KIND, storage_options)
    declared = Schema() if schema is None else schema_of(schema)
    form = CsvForm(*letters, tuple(null_values), header, declared)
    settled = dataclasses.replace(form, schema=_settled(form, files))
    found = LineFiles(root, files, given, settled)
    return CsvSource(found, chosen(columns, "read_csv"), atom_rows)


def _letter(given: object, what: str) -> str:
    if not isinstance(given, str) or len(given.encode()) != 1 or given in "\r\n":
        raise PlanError(
            f"read_csv needs one ASCII letter as {what}, got {given!r}",
            try_="delimiter=';' or delimiter='\\t'; quote='' where quotes mean nothing",
        )
    return given


def _settled(form: CsvForm, files: Sequence[File]) -> Schema:
    """Return the schema of all columns: declared types, and inferred types for the others."""
    declared = form.declared
    _check_types(declared)
    names = form.names_in(files) if form.header else declared.names
    for name in declared:
        Schema((n, pa.null()) for n in names).require(name, "schema= of read_csv")
    found = inferred(files, form, lambda data, _: form.infer(data, names))
    if found is None:
        found = Schema((name, declared.get(name, pa.string())) for name in names)
    if not found:
        raise SourceError(
            f"{files[0].name} has no columns",
            at=files[0].path,
            why="it has no rows, and there is no header",
            try_='schema={"a": "int64", "b": "string"}',
        )
    return found


def _check_types(declared: Schema) -> None:
    """Raise SchemaError for a type that CSV cannot represent."""
    for name, kind in declared.items():
        options = pc.ConvertOptions(column_types={name: kind})
        try:
            pc.read_csv(
                pa.BufferReader(b'""\n'), pc.ReadOptions(column_names=[name]), None, options
            )
        except pa.ArrowException as error:
            raise SchemaError(
                f"column {name!r} cannot be {kind} in CSV",
                why=str(error),
                try_="a number, text, bool, date or time; .cast() later",
            ) from None
