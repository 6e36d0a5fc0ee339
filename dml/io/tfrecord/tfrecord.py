"""TFRecord files are read here: records with checksums, and the features of their Examples."""

from __future__ import annotations

import dataclasses
import importlib
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from dml.base.fingerprint import digest
from dml.data.schema import Schema, schema_of
from dml.errors import PlanError, SchemaError, SourceError
from dml.expr.node import op
from dml.io.files.compression import opened
from dml.io.files.files import File, listed
from dml.io.files.lines import MOST_BYTES, LineFiles, LineSource, RowError, inferred
from dml.io.files.paths import FileKind, Paths
from dml.io.files.records import LONGEST, Form
from dml.io.tfrecord.example_columns import column, inferred_kinds, wire_kind
from dml.io.tfrecord.examples import Feature, MalformedError, example

ENDINGS = (".tfrecord", ".tfrecords", ".tfrec")
KIND = FileKind("TFRecord", (*ENDINGS, *(e + p for e in ENDINGS for p in (".gz", ".zlib"))))
RAW = Schema({"bytes": pa.binary()})
# The length of a record and its checksum; the record; its checksum.
HEAD, TAIL = struct.Struct("<QI"), struct.Struct("<I")
MASK, TURN, LOW = 0xA282EAD8, 15, 0xFFFFFFFF
PACKINGS = {"gzip": ".gz", "zlib": "zlib", "none": "", None: "", "": ""}
GZIP, ZLIB = b"\x1f\x8b\x08", 31
COPY = "copy or write the file again"


def checksum() -> Callable[[bytes], int]:
    """Return the CRC-32C function; raise SourceError if google-crc32c is not installed."""
    try:
        found: Callable[[bytes], int] = importlib.import_module("google_crc32c").value
    except ImportError as missing:
        raise SourceError(
            "TFRecord files need google-crc32c",
            why=f"every record has a CRC-32C, which is always checked: {missing}",
            try_='pip install google-crc32c, or "dml[tfrecord]"',
        ) from None
    return found


def masked(crc: int) -> int:
    """Return a checksum in the masked form that TFRecord files store."""
    return ((crc >> TURN | crc << (32 - TURN)) + MASK) & LOW


@dataclasses.dataclass(frozen=True, eq=False)
class RecordFile(File):
    """A file of records; ``packing`` is its detected or given compression, "" for none."""

    packing: str


@dataclasses.dataclass(frozen=True)
class RecordForm(Form):
    """The format of consecutive records; each is an Example, or raw bytes (``raw``).

    If ``chosen``, features not in ``schema`` are skipped; otherwise they are errors.
    """

    schema: Schema
    raw: bool
    chosen: bool
    blank: ClassVar[bytes] = b""
    row_word: ClassVar[str] = "record"

    @property
    def digest(self) -> bytes:
        """Digest of names and types, and of ``raw``."""
        return digest("tfrecord", 1, self.raw, self.chosen, self.schema.to_arrow())

    def ending(self, file: File) -> str:
        """Return the compression that was given, or detected when the file was opened."""
        return file.packing if isinstance(file, RecordFile) else ""

    def first(self, file: File) -> int:
        """Return 0: records begin at the first byte."""
        return 0

    def ends(self, window: bytes) -> np.ndarray:
        """Return the byte offset just past each complete record: (n,) int64, ascending.

        Raise SourceError if the first record has an invalid length.
        """
        crc, found, at = checksum(), list[int](), 0
        while at + HEAD.size <= len(window):
            length = _length(window, at, crc)
            if length is None or length > LONGEST:
                if not found:
                    raise _no_length(length)
                break
            at += HEAD.size + length + TAIL.size
            if at > len(window):
                break
            found.append(at)
        return np.array(found, dtype=np.int64)

    def last(self, window: bytes) -> bool:
        """Raise SourceError: a record without its final checksum is truncated."""
        self.ends(window)
        raise SourceError(
            "a record is cut off",
            why=f"the file ends {len(window)} bytes after its begin",
            try_="copy or write it again; an upload may not have finished",
        )

    def decode(self, data: bytes, rows: int, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Decode ``columns`` of the ``rows`` records in ``data``; with ``raw``, only split them."""
        if len(data) >= MOST_BYTES:
            raise RowError(f"an atom has {len(data)} bytes", 0, "a smaller atom_rows=")
        found = list(payloads(data))
        if len(found) != rows:
            raise RowError(f"{len(found)} records are where there were {rows}", 0, COPY)
        if self.raw:
            return pa.RecordBatch.from_arrays([pa.array(found, pa.binary())], names=["bytes"])
        strict = len(columns) == len(self.schema) and not self.chosen
        features = [_features(data, row, columns, strict=strict) for row, data in enumerate(found)]
        arrays = [
            column([each.get(name) for each in features], name, self.schema[name])
            for name in columns
        ]
        return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def payloads(data: bytes) -> Iterator[bytes]:
    """Yield the records in ``data``; raise RowError for one that does not match its checksums."""
    crc, at, row = checksum(), 0, 0
    while at < len(data):
        length = _length(data, at, crc) if at + HEAD.size <= len(data) else None
        if length is None or at + HEAD.size + length + TAIL.size > len(data):
            raise RowError("the length of the record is damaged", row, COPY)
        start = at + HEAD.size
        at = start + length + TAIL.size
        payload = data[start : start + length]
        (stated,) = TAIL.unpack_from(data, start + length)
        if (there := masked(crc(payload))) != stated:
            why = f"its CRC-32C is {there:#010x}, and {stated:#010x} is stored with it"
            raise RowError(why, row, COPY)
        yield payload
        row += 1


def _length(data: bytes, at: int, crc: Callable[[bytes], int]) -> int | None:
    """Return the length of the record at ``at``; None if the checksum of the length is wrong."""
    length, stated = HEAD.unpack_from(data, at)
    return int(length) if masked(crc(data[at : at + 8])) == stated else None


def _no_length(length: int | None) -> SourceError:
    if length is None:
        return SourceError(
            "the length of a record is damaged",
            why="the CRC-32C stored with it is that of another length",
            try_=f"{COPY}; if all records are so, it is no TFRecord file, or compression= is wrong",
        )
    return SourceError(
        f"a record is longer than {LONGEST} bytes",
        why=f"it has {length} bytes, and records are read an atom at a time",
        try_="smaller records, or files of their own and read_binary_files",
    )


def _features(
    data: bytes, row: int, columns: tuple[str, ...] | None, *, strict: bool
) -> Mapping[str, Feature | None]:
    """Return features of a record; raise RowError if invalid, or for extra ones if ``strict``."""
    try:
        found = example(data, columns)
    except MalformedError as error:
        sequence = "SequenceExample" in str(error)
        better = "raw=True, and a function that parses the bytes"
        raise RowError(
            str(error) if sequence else f"it is no Example: {error}",
            row,
            better if sequence else f"{better}, if it is another message",
        ) from None
    if strict and (strange := found.keys() - set(columns or ())):
        raise RowError(
            f"it has feature {min(strange)!r}, which no record had that types were taken from",
            row,
            "schema={...} with the features that are wanted",
        )
    return found


@op
class RecordSource(LineSource):
    """Records of TFRecord files in order of file name, record."""

    word: ClassVar[str] = "tfrecords"


def _opened(file: File, compression: str | None) -> RecordFile:
    """Build a file with its compression, as given or as detected from the first bytes."""
    how = _packing(file) if compression == "auto" else PACKINGS[compression]
    return RecordFile(file.path, file.name, file.size, file.mtime_ns, how, remote=file.remote)


def _packing(file: File) -> str:
    """Detect the compression of a file; a valid length checksum means an uncompressed file."""
    with opened(file, stop=min(HEAD.size, file.size), ending="") as stream:
        head = stream.read(HEAD.size)
    if len(head) == HEAD.size and _length(head, 0, checksum()) is not None:
        return ""
    if head.startswith(GZIP):
        return ".gz"
    is_zlib = len(head) > 1 and head[0] & 15 == 8 and int.from_bytes(head[:2], "big") % ZLIB == 0
    return "zlib" if is_zlib else ""


def read_tfrecords(
    paths: Paths,
    schema: object = None,
    *,
    raw: bool = False,
    compression: str | None = "auto",
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> RecordSource:
    """Read a row per record of TFRecord files: a file, a folder, a pattern, or a list of these.

    Records are ``tf.train.Example`` messages, and their features are columns. Without a ``schema``,
    types are inferred from the first MiB of the first file: int64, float32 and bytes, as a single
    value if every record there has exactly one, as lists otherwise. With a ``schema`` only its
    features are read, and it may request text, other numbers and tensors. A missing feature is
    null. ``raw`` returns the unparsed records in column "bytes". Both checksums of every record
    that is read are verified.

    Raise SourceError for missing files, and while reading for a record that is damaged, longer than
    32 MiB or not an Example, or whose value is of another kind than its column.
    """
    checksum()
    _check(compression, schema, raw=raw)
    declared = Schema() if schema is None else schema_of(schema)
    for name, kind in declared.items():
        wire_kind(kind, name)
    root, plain, given = listed(paths, KIND, storage_options)
    files = tuple(_opened(file, compression) for file in plain)
    form = RecordForm(RAW if raw else declared, bool(raw), chosen=bool(declared))
    if not raw and not declared:
        form = dataclasses.replace(form, schema=_schema_in(files, form))
    return RecordSource(LineFiles(root, files, given, form), None, atom_rows)


def _check(compression: object, schema: object, *, raw: bool) -> None:
    """Raise PlanError or SchemaError for invalid arguments."""
    if compression not in (*PACKINGS, "auto"):
        raise PlanError(
            f"TFRecord files have no compression {compression!r}",
            why='there are "gzip", "zlib" and None',
            try_='compression="auto", which looks at the files',
        )
    if raw and schema is not None:
        raise SchemaError(
            "read_tfrecords takes a schema or raw=True",
            why="raw records are one column of bytes",
            try_="leave one of them out",
        )


def _schema_in(files: tuple[RecordFile, ...], form: RecordForm) -> Schema:
    """Infer the schema from the first records; raise SourceError if there are none."""

    def infer(data: bytes, _: int) -> Schema:
        found = enumerate(payloads(data))
        rows: Any = (_features(each, row, None, strict=False) for row, each in found)
        return Schema(inferred_kinds(rows))

    found = inferred(files, form, infer)
    if not found:
        raise SourceError(
            f"{files[0].name} has no columns",
            at=files[0].path,
            why="it has no records with features, which would be the columns",
            try_='schema={"image": "binary", "label": "int64"}, or raw=True',
        )
    return found
