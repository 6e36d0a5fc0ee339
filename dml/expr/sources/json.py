"""This file reads JSON lines: a row per object, types settled by the first rows."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from dml.errors import SourceError
from dml.expr.fingerprint import digest
from dml.expr.node import op
from dml.expr.schema import Schema, schema_of
from dml.expr.sources.compressed import PACKED
from dml.expr.sources.files import chosen, listed
from dml.expr.sources.integers import (
    BEYOND,
    MOST_DIGITS,
    ROUNDED,
    Number,
    check_kept,
    holding,
    long_integers,
    reaches,
)
from dml.expr.sources.lines import Form, LineFiles, LineSource, RowError, inferred
from dml.expr.sources.paths import Kind, Paths
from dml.expr.sources.stored import whole

ENDINGS = (".jsonl", ".ndjson", ".json")
KIND = Kind("JSON", (*ENDINGS, *(end + packed for end in ENDINGS for packed in PACKED)))
NEWLINE, SPACE = 10, 32
# A text up to its end, or where it has none up to that of its line: no letter is looked at again.
TEXT = rb'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+'
STRINGS, BRACKETS, DEEPEST = re.compile(TEXT + b'"?'), ([*b"[{"], [*b"]}"]), 64
# Keys, marks, and texts that are no keys, which have no groups.
TOKENS = re.compile(rb'(%b")\s*+:|%b"?|([][{}\n])' % (TEXT, TEXT))
OPENING = (b"{", b"[")
# A key is a column. Arrow looks at all of them for every row, and takes memory for each value that
# may be there: so many are 128 MiB.
MOST_KEYS, MOST_VALUES = 10_000, 1 << 24
MOST_DECODED = 1 << 26  # of an atom, whose rows may be shorter than those that had the keys
FEW_KEYS = 1 << 12  # which are no more values, in whatever rows
# Arrow parses a block as one; its sizes are 32 bits.
MOST_BYTES = (1 << 31) - 64
LISTED = (
    "one object per line; of a file that is one list of objects: dml.from_list(json.load(file))"
)
DECODER = json.JSONDecoder(parse_int=Number, parse_float=Number, strict=False)
TRY = "schema={...} for the types of columns, columns=[...] where rows have more keys"


@dataclasses.dataclass(frozen=True)
class JsonForm(Form):
    """Every line that is not blank is an object; its keys are columns.

    The types of ``declared`` are the user's, those of other columns in ``schema`` were guessed.
    """

    schema: Schema
    declared: Schema

    @property
    def digest(self) -> bytes:
        """Names and types."""
        return digest("json", 2, self.schema.to_arrow(), tuple(sorted(self.declared)))

    def ends(self, window: bytes) -> np.ndarray:
        """Newlines after anything but white space."""
        return line_ends(window)

    def last(self, window: bytes) -> bool:
        """True for anything but white space."""
        return bool(window.strip())

    def decode(self, data: bytes, rows: int, columns: tuple[str, ...]) -> pa.RecordBatch:
        """The values of the keys ``columns``; a key that is absent is null."""
        values = sum(_values(self.schema[name]) for name in columns)
        if rows * values > MOST_DECODED:
            why = f"it is one of {rows} rows of an atom, each of {values} values"
            raise RowError(why, 0, "a smaller atom_rows=, or columns=[...]")
        every = len(columns) == len(self.schema)
        table = parsed(
            data, {name: self.schema[name] for name in columns}, "error" if every else "ignore"
        )
        if table.num_rows != rows:
            why = f"{table.num_rows} objects are where {rows} end with a newline"
            raise RowError(why, try_="one object per line")
        check_numbers(data, table, self.declared)
        arrays = [whole(table.column(name)) for name in columns]
        for name, array in zip(columns, arrays, strict=True):
            try:
                array.validate(full=True)
            except pa.ArrowInvalid as error:
                raise RowError(f"column {name!r}: {error}", try_="UTF-8") from None
        return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _values(kind: pa.DataType) -> int:
    """Values that a row has of a column, also where none is written."""
    return sum(_values(each.type) for each in kind) if pa.types.is_struct(kind) else 1


def line_ends(window: bytes) -> np.ndarray:
    """Where lines end that have anything but white space: (n,) int64."""
    stored = np.frombuffer(window, np.uint8)
    breaks = np.flatnonzero(stored == NEWLINE)
    starts = np.concatenate([[0], breaks[:-1] + 1])[: len(breaks)]
    doubtful = stored[starts] <= SPACE
    if doubtful.any():
        seen = np.concatenate([[0], np.cumsum(stored > SPACE, dtype=np.int64)])
        breaks = breaks[~doubtful | (seen[breaks] > seen[starts])]
    ends: np.ndarray = breaks + 1
    return ends


def parsed(data: bytes, types: dict[str, pa.DataType], others: str) -> pa.Table:
    """The objects in ``data``; RowError where it is something else."""
    if len(data) >= MOST_BYTES:
        raise RowError(f"an atom has {len(data)} bytes", 0, "a smaller atom_rows=")
    reading = pj.ReadOptions(use_threads=False, block_size=len(data) + 64)
    parsing = pj.ParseOptions(
        explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior=others
    )
    try:
        return pj.read_json(pa.BufferReader(data), reading, parsing)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        message = " ".join(str(error).split()).removeprefix("JSON parse error: ")
        raise _no_rows(data, message.rpartition(" in row ")[0] or message) from None


def guessed(data: bytes, declared: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Types that hold the objects in ``data``: Arrow's, and where it rounds integers exact ones."""
    table = parsed(data, dict(declared), "infer")
    kinds = {field.name: field.type for field in table.schema}
    if large := [n for n in kinds if n not in declared and reaches(table[n], BEYOND)]:
        rows = [_object(line) for line in _lines(data)]
        kinds |= {n: _exact(n, kinds[n], [row.get(n) for row in rows]) for n in large}
    return kinds


def _exact(name: str, kind: pa.DataType, values: list[Any]) -> pa.DataType:
    """``kind`` with types of integers for floats that all ``values`` write as integers."""
    given = [value for value in values if value is not None]
    if pa.types.is_list(kind):
        return pa.list_(_exact(name, kind.value_type, [each for value in given for each in value]))
    if pa.types.is_struct(kind):
        each = [(part, [value.get(part.name) for value in given]) for part in kind]
        return pa.struct([(part.name, _exact(name, part.type, found)) for part, found in each])
    if not pa.types.is_floating(kind) or not all(isinstance(value, Number) for value in given):
        return kind
    return holding(name, given, MOST_DIGITS) or kind


def check_numbers(data: bytes, table: pa.Table, declared: Container[str]) -> None:
    """RowError for the first object in ``data`` with a number that is another as a float."""
    limits = {name: math.inf if name in declared else ROUNDED for name in table.column_names}
    large = [name for name, limit in limits.items() if reaches(table[name], limit)]
    places = long_integers(data) if large else np.array([], np.int64)
    every = any(name in declared for name in large)  # what is infinite may be a short number
    if not every and not len(places):
        return
    ends = [*line_ends(data).tolist(), len(data)]
    found = np.unique(np.searchsorted(ends, places, side="right")).tolist()
    rows: Iterable[int] = range(table.num_rows) if every else found
    for row in rows:
        given = _object(data[ends[row - 1] if row else 0 : ends[row]])
        for name in large:
            pair = (given.get(name), table[name][row].as_py())
            check_kept(name, [(row, *pair)], declared=name in declared)


def _lines(data: bytes) -> list[bytes]:
    return [line for line in data.split(b"\n") if line.strip()]


def _object(line: bytes) -> dict[str, Any]:
    """What is on a line, with numbers as they are written."""
    try:
        found = DECODER.decode(line.decode(errors="replace"))
    except (ValueError, RecursionError) as error:
        raise RowError(f"its numbers cannot be checked: {error}", try_=TRY) from None
    return found if isinstance(found, dict) else {}


def _no_rows(data: bytes, message: str) -> RowError:
    """What is wrong with ``data``: often the file is one value that goes over many lines."""
    text = data.strip()
    if text.startswith(b"["):
        return RowError("it is an array, and a row is an object on a line", try_=LISTED)
    if text.startswith(b"{") and not text.endswith(b"}"):
        return RowError(f"the object does not end on its line: {message}", try_=LISTED)
    return RowError(message, try_=TRY)


def check_depth(data: bytes) -> None:
    """RowError for values nested so deeply that Arrow could not even name their type."""
    letters = np.frombuffer(STRINGS.sub(b"", data), np.uint8)
    opening, closing = np.isin(letters, BRACKETS[0]), np.isin(letters, BRACKETS[1])
    depth = np.cumsum(opening.astype(np.int64) - closing)
    lines = np.flatnonzero(letters == NEWLINE)
    before = np.concatenate([[0], depth[lines]])[np.cumsum(letters == NEWLINE)]
    if len(depth) and (depth - before).max() > DEEPEST:
        raise RowError(f"values are nested more than {DEEPEST} levels deep")


def check_keys(data: bytes) -> None:
    """RowError for so many keys, or so few in so many rows, that types of all cannot be guessed.

    Keys of an object that are in an object, or in a list, of another are others there: each is a
    column of its own, with a value, or none, in every row.
    """
    if data.count(b":") <= FEW_KEYS:
        return
    rows = 1 + data.count(b"\n")
    for count, at in _keys(data):
        if count > MOST_KEYS:
            why, row = f"it has key number {count}, and rows have at most {MOST_KEYS}", None
        elif count * rows > MOST_VALUES:
            why, row = f"{rows} rows have {count} keys and more, and mostly others", None
        else:
            continue
        row = len(line_ends(data[:at]))
        raise RowError(why, row, "a list of keys and values for one of many keys; or read_text")


def _keys(data: bytes) -> Iterator[tuple[int, int]]:
    """How many keys there are and where, whenever there is another than before."""
    count = 0
    top: dict[bytes, Any] = {}
    here = value = top
    around: list[tuple[dict[bytes, Any], dict[bytes, Any]]] = []
    for token in TOKENS.finditer(data):
        key, mark = token.groups()
        if key is not None:
            if key not in here:
                here[key] = {}
                count += 1
                yield count, token.start()
            value = here[key]
        elif mark in OPENING:
            around.append((here, value))
            here = value if mark == b"{" else here
        elif mark == b"\n":
            here, value = top, top
            around.clear()
        elif mark is not None and around:
            here, value = around.pop()


def settled(kind: pa.DataType) -> pa.DataType:
    """A type that was guessed, as it will hold: text stays text, what was always null may be it."""
    if pa.types.is_null(kind) or pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(settled(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, settled(field.type)) for field in kind])
    return kind


@op
class JsonSource(LineSource):
    """Rows of files of JSON lines in order of file name, line."""

    files: LineFiles
    columns: tuple[str, ...] | None = None
    atom_rows: int | None = None
    word: ClassVar[str] = "json"


def read_json(
    paths: Paths,
    columns: Iterable[str] | None = None,
    schema: object = None,
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> JsonSource:
    """A row per line of files of JSON lines: a file, a folder, a pattern, or a list.

    Keys and types are those of the first MiB of the first file, and of ``schema``, which comes
    first; dates stay text unless it says otherwise. Integers beyond int64 are uint64 or decimals
    where there are no other numbers. A key that is absent is null. Raises SourceError, while
    reading, for what is no object, for a value of another type, for an integer that a guessed
    float64 is not, for a key that was not there before unless ``columns`` are chosen, and where
    the first rows have more than 10,000 keys, those of nested objects counted.
    """
    declared = Schema() if schema is None else schema_of(schema)
    root, files, given = listed(paths, KIND, storage_options)

    def infer(data: bytes, _: int) -> Schema:
        check_depth(data)
        check_keys(data)
        try:
            data.decode()  # names that are none can be parsed, but not asked for
        except UnicodeDecodeError as error:
            raise RowError(f"it is no UTF-8: {error.reason}", try_="UTF-8") from None
        kinds = guessed(data, declared)
        return Schema((n, declared[n] if n in declared else settled(k)) for n, k in kinds.items())

    found = inferred(files, JsonForm(declared, declared), infer) or declared
    if not found:
        raise SourceError(
            f"{files[0].name} has no columns",
            at=files[0].path,
            why="it has no rows with keys, which would be the columns",
            try_='schema={"a": "int64", "b": "string"}',
        )
    lines = LineFiles(root, files, given, JsonForm(found, declared))
    return JsonSource(lines, chosen(columns, "read_json"), atom_rows)
