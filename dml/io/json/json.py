"""JSON lines are read as one row per object, with types inferred from the first rows."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from dml.base.fingerprint import digest
from dml.data.schema import Schema, schema_of
from dml.errors import SourceError
from dml.expr.node import op
from dml.io.column_store import whole
from dml.io.exact_integers import (
    BEYOND,
    MOST_DIGITS,
    ROUNDED,
    Number,
    check_kept,
    holding,
    long_integers,
    reaches,
)
from dml.io.files.compression import PACKED
from dml.io.files.files import chosen, listed
from dml.io.files.lines import LineFiles, LineSource, RowError, block_size, inferred
from dml.io.files.paths import FileKind, Paths
from dml.io.files.records import Form

ENDINGS = (".jsonl", ".ndjson", ".json")
KIND = FileKind("JSON", (*ENDINGS, *(end + packed for end in ENDINGS for packed in PACKED)))
NEWLINE, SPACE = 10, 32
# A string up to its closing quote, or to the end of its line: matched without backtracking.
TEXT = rb'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+'
STRINGS, BRACKETS, DEEPEST = re.compile(TEXT + b'"?'), ([*b"[{"], [*b"]}"]), 64
# Tokens: keys, punctuation, and strings that are not keys, which match no group.
TOKENS = re.compile(rb'(%b")\s*+:|%b"?|([][{}\n])' % (TEXT, TEXT))
OPENING = (b"{", b"[")
# A key is a column. Arrow processes all columns for every row, and allocates memory for each
# possible value: this many values are 128 MiB.
MOST_KEYS, MOST_VALUES = 10_000, 1 << 24
MOST_DECODED = 1 << 26  # values of an atom, whose rows may be shorter than the first rows
FEW_KEYS = 1 << 12  # keys in all rows together, below which no limit can be exceeded
LISTED = (
    "one object per line; of a file that is one list of objects: dml.from_list(json.load(file))"
)
DECODER = json.JSONDecoder(parse_int=Number, parse_float=Number, strict=False)
TRY = "schema={...} for the types of columns, columns=[...] where rows have more keys"


def line_ends(window: bytes) -> np.ndarray:
    """Return the byte offsets just past each line that is not blank: (n,) int64, ascending."""
    stored = np.frombuffer(window, np.uint8)
    breaks = np.flatnonzero(stored == NEWLINE)
    starts = np.concatenate([[0], breaks[:-1] + 1])[: len(breaks)]
    doubtful = stored[starts] <= SPACE
    if doubtful.any():
        seen = np.concatenate([[0], np.cumsum(stored > SPACE, dtype=np.int64)])
        breaks = breaks[~doubtful | (seen[breaks] > seen[starts])]
    ends: np.ndarray = breaks + 1
    return ends


@dataclasses.dataclass(frozen=True)
class JsonForm(Form):
    """The format of JSON lines: each line that is not blank is an object, whose keys are columns.

    The user declared the types in ``declared``; other types in ``schema`` were inferred.
    """

    schema: Schema
    declared: Schema
    ends = staticmethod(line_ends)

    @property
    def digest(self) -> bytes:
        """Digest of column names and types."""
        return digest("json", 2, self.schema.to_arrow(), tuple(sorted(self.declared)))

    def last(self, window: bytes) -> bool:
        """Return True if ``window`` has bytes other than white space."""
        return bool(window.strip())

    def decode(self, data: bytes, rows: int, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Decode the values of the keys ``columns``; an absent key is null.

        Raise RowError for an invalid row, and for an atom of too many values.
        """
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
    """Return the number of values per row, nulls included, in a column of type ``kind``."""
    return sum(_values(each.type) for each in kind) if pa.types.is_struct(kind) else 1


def parsed(data: bytes, types: dict[str, pa.DataType], others: str) -> pa.Table:
    """Parse the objects in ``data``; raise RowError for invalid input.

    ``others`` says what Arrow does with keys that are not in ``types``: error, ignore or infer.
    """
    reading = pj.ReadOptions(use_threads=False, block_size=block_size(data))
    parsing = pj.ParseOptions(
        explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior=others
    )
    try:
        return pj.read_json(pa.BufferReader(data), reading, parsing)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        message = " ".join(str(error).split()).removeprefix("JSON parse error: ")
        raise _no_rows(data, message.rpartition(" in row ")[0] or message) from None


def guessed(data: bytes, declared: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Infer a type for each key of the objects in ``data``, with exact types for integers."""
    table = parsed(data, dict(declared), "infer")
    kinds = {field.name: field.type for field in table.schema}
    if large := [n for n in kinds if n not in declared and reaches(table[n], BEYOND)]:
        rows = [_object(line) for line in data.split(b"\n") if line.strip()]
        kinds |= {n: _exact(n, kinds[n], [row.get(n) for row in rows]) for n in large}
    return kinds


def _exact(name: str, kind: pa.DataType, values: list[Any]) -> pa.DataType:
    """Replace float types in ``kind`` by integer types where all ``values`` are integers."""
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
    """Raise RowError for the first object with a number that its float column would change.

    ``table`` has the parsed objects of ``data``; the user declared the types of the keys in
    ``declared``.
    """
    limits = {name: math.inf if name in declared else ROUNDED for name in table.column_names}
    large = [name for name, limit in limits.items() if reaches(table[name], limit)]
    places = long_integers(data) if large else np.array([], np.int64)
    every = any(name in declared for name in large)  # a short number may be infinite
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


def _object(line: bytes) -> dict[str, Any]:
    """Parse the object on a line; numbers keep their text. Raise RowError for an invalid line."""
    try:
        found = DECODER.decode(line.decode(errors="replace"))
    except (ValueError, RecursionError) as error:
        raise RowError(f"its numbers cannot be checked: {error}", try_=TRY) from None
    return found if isinstance(found, dict) else {}


def _no_rows(data: bytes, message: str) -> RowError:
    """Build the RowError for invalid ``data``, often one value that spans several lines."""
    text = data.strip()
    if text.startswith(b"["):
        return RowError("it is an array, and a row is an object on a line", try_=LISTED)
    if text.startswith(b"{") and not text.endswith(b"}"):
        return RowError(f"the object does not end on its line: {message}", try_=LISTED)
    return RowError(message, try_=TRY)


def check_depth(data: bytes) -> None:
    """Raise RowError for values nested more than ``DEEPEST`` levels deep, too deep for Arrow."""
    letters = np.frombuffer(STRINGS.sub(b"", data), np.uint8)
    opening, closing = np.isin(letters, BRACKETS[0]), np.isin(letters, BRACKETS[1])
    depth = np.cumsum(opening.astype(np.int64) - closing)
    lines = np.flatnonzero(letters == NEWLINE)
    before = np.concatenate([[0], depth[lines]])[np.cumsum(letters == NEWLINE)]
    if len(depth) and (depth - before).max() > DEEPEST:
        raise RowError(f"values are nested more than {DEEPEST} levels deep")


def check_keys(data: bytes) -> None:
    """Raise RowError for more keys, or more keys times rows, than the inference of types allows.

    Keys of nested objects, and of objects in lists, count separately, because each of them is a
    column with a value or null in every row.
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
    """Yield the number of distinct keys so far and the byte offset, at each new key in ``data``."""
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
    """Return the final form of an inferred type: timestamps and all-null columns become text."""
    if pa.types.is_null(kind) or pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(settled(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, settled(field.type)) for field in kind])
    return kind


class TypeGuess:
    """Infers the types of keys from first rows: from all of them, or those before an odd one."""

    def __init__(self, declared: Schema) -> None:
        self.declared = declared
        self.most = self.last = b""  # the most rows that were there, and those of the last result
        self.kinds = dict[str, pa.DataType]()

    def __call__(self, data: bytes, _: int) -> Schema:
        """Return the schema of the objects in ``data``; raise RowError for an undecodable row."""
        self.most = max(self.most, data, key=len)
        check_depth(data)
        check_keys(data)
        try:
            data.decode()  # names that are not UTF-8 can be parsed, but not selected
        except UnicodeDecodeError as error:
            raise RowError(f"it is no UTF-8: {error.reason}", try_="UTF-8") from None
        self.last, self.kinds = data, guessed(data, self.declared)
        known = self.declared
        return Schema((n, known[n] if n in known else settled(k)) for n, k in self.kinds.items())

    def completed(self, found: Schema) -> Schema:
        """Return ``found``, the last result; keys without values have their types behind its rows.

        They stay text if there is no value there, or values of several types.
        """
        names = [name for name, kind in self.kinds.items() if pa.types.is_null(kind)]
        rows, later = list[Any](), dict[str, pa.DataType]()
        for line in self.most[len(self.last) :].split(b"\n") if names else ():
            with contextlib.suppress(ValueError, RecursionError):
                rows.append(json.loads(line))
        for name in names:
            values = [row.get(name) for row in rows if isinstance(row, dict)]
            with contextlib.suppress(pa.ArrowException, OverflowError):
                kind = pa.array(values).type
                later |= {} if pa.types.is_null(kind) else {name: settled(kind)}
        return Schema((name, later.get(name, kind)) for name, kind in found.items())


@op
class JsonSource(LineSource):
    """Rows of files of JSON lines in order of file name, line."""

    word: ClassVar[str] = "json"


def read_json(
    paths: Paths,
    columns: Iterable[str] | None = None,
    schema: object = None,
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> JsonSource:
    """Read a row per line of files of JSON lines: a file, a folder, a pattern, or a list.

    Keys and types are inferred from the first MiB of the first file; ``schema`` takes precedence,
    and dates not in ``schema`` stay text. Integers beyond int64 are uint64 or decimals if there are
    no other numbers. A missing key is null. Raises SourceError if the first rows have more than
    10,000 keys, including nested ones; while reading, for a line that is not an object, a value of
    another type, an integer that an inferred float64 cannot represent, and, unless ``columns`` are
    selected, for a key that was not inferred.
    """
    declared = Schema() if schema is None else schema_of(schema)
    root, files, given = listed(paths, KIND, storage_options)
    guess = TypeGuess(declared)
    found = inferred(files, JsonForm(declared, declared), guess)
    found = declared if found is None else guess.completed(found)
    if not found:
        raise SourceError(
            f"{files[0].name} has no columns",
            at=files[0].path,
            why="it has no rows with keys, which would be the columns",
            try_='schema={"a": "int64", "b": "string"}',
        )
    lines = LineFiles(root, files, given, JsonForm(found, declared))
    return JsonSource(lines, chosen(columns, "read_json"), atom_rows)
