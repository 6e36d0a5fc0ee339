"""WebDataset shards are read here: files of a tar archive that share a key form one row."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from dml.base.fingerprint import digest
from dml.data.schema import Schema
from dml.errors import PlanError, SourceError
from dml.expr.node import op
from dml.io.files.compression import packing
from dml.io.files.files import File, chosen, listed
from dml.io.files.lines import LineFiles, LineSource, RowError, inferred
from dml.io.files.paths import FileKind, Paths
from dml.io.files.records import LONGEST, Form
from dml.io.json.json import settled
from dml.io.webdataset.decoders import as_json, decoder_of
from dml.io.webdataset.tar import ArchiveMember, TarError, after, members

PACKINGS = ("", ".gz", ".zst", ".xz", ".bz2")
KIND = FileKind("tar", (*(".tar" + ending for ending in PACKINGS), ".tgz"))
KEY = "__key__"
NAMES = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
META = re.compile(r"__[^/]*__(?:/|\Z)")
COPY = "copy or write it again; an upload may not have finished"

Sample: TypeAlias = dict[str, tuple[int, int]]  # byte ranges (start, stop) by suffix


def split_name(name: str) -> tuple[str, str]:
    """Split a file name at the first dot after the folders into key and suffix.

    Both are "" for a file that belongs to no sample: without a dot, or between double underscores.
    """
    found = None if META.match(name) else NAMES.fullmatch(name)
    return (found[1], found[2].lower()) if found else ("", "")


@dataclasses.dataclass(frozen=True)
class SampleForm(Form):
    """The format of samples: consecutive files that share a key are a row; suffixes are columns.

    If ``chosen``, suffixes not in ``schema`` are skipped; otherwise they are errors.
    """

    schema: Schema
    decoding: bool
    chosen: bool
    blank: ClassVar[bytes] = b""
    row_word: ClassVar[str] = "sample"

    @property
    def digest(self) -> bytes:
        """Digest of names and types, and of ``decoding``."""
        return digest("webdataset", 2, self.decoding, self.chosen, self.schema.to_arrow())

    def ending(self, file: File) -> str:
        """Return the suffix that states the compression of an archive."""
        return ".gz" if file.name.lower().endswith(".tgz") else packing(file.name)

    def first(self, file: File) -> int:
        """Return 0, the offset of the first header; raise SourceError for an empty file."""
        if file.size:
            return 0
        raise SourceError(f"{file.name} is empty", at=file.path, why="not even its end is marked")

    def ends(self, window: bytes) -> np.ndarray:
        """Return the byte offset just past each complete sample: (n,) int64, ascending.

        Raise SourceError if the first sample is damaged.
        """
        found, key, at = list[int](), "", 0
        try:
            for member in members(window):
                if member.name is None:
                    found += [member.begin] * bool(key)
                    if not key:
                        _check_end(window, member.begin)
                    break
                at = after(member.stop)
                next_key, _ = split_name(member.name)
                if key and next_key and next_key != key and member.stop <= len(window):
                    found.append(member.begin)
                key = next_key or key
            else:
                _check_size(at - (found[-1] if found else 0))
        except TarError as error:
            if not found:
                raise _damaged(error) from None
        return np.array(found, dtype=np.int64)

    def last(self, window: bytes) -> bool:
        """Return True if a sample precedes the end mark; raise SourceError without an end mark."""
        try:
            every = list(members(window))
            if every and every[-1].name is None:
                _check_end(window, every[-1].begin)
                return any(split_name(member.name or "")[0] for member in every)
        except TarError as error:
            raise _damaged(error) from None
        raise SourceError("the archive is cut off", why="it has no mark of its end", try_=COPY)

    def decode_samples(self, data: bytes) -> Iterator[tuple[str, Sample]]:
        """Yield key and file offsets of every sample; raise RowError for an invalid sample."""
        key, files, row = "", Sample(), 0
        try:
            for member in members(data):
                if member.name is None or member.stop > len(data):
                    break
                found, suffix = split_name(member.name)
                if found and key and found != key:
                    yield key, files
                    files, row = {}, row + 1
                key = found or key
                if suffix:
                    _add(files, key, suffix, member)
        except TarError as error:
            raise RowError(str(error), row, COPY) from None
        if key:
            yield key, files

    def decode(self, data: bytes, rows: int, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Decode ``columns`` of the ``rows`` samples in ``data``."""
        samples = list(self.decode_samples(data))
        if len(samples) != rows:
            raise RowError(f"{len(samples)} samples are where there were {rows}", 0, COPY)
        if len(columns) == len(self.schema) and not self.chosen:
            self._check_suffixes(samples)
        arrays = [self._column(data, samples, name) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def _check_suffixes(self, samples: list[tuple[str, Sample]]) -> None:
        for row, (key, files) in enumerate(samples):
            if strange := files.keys() - self.schema.keys():
                raise RowError(
                    f"sample {key!r} has a file {min(strange)!r}, which none of the first had",
                    row,
                    "suffixes=[...] with those that are wanted",
                )

    def _column(self, data: bytes, samples: list[tuple[str, Sample]], name: str) -> pa.Array:
        if name == KEY:
            return pa.array([key for key, _ in samples], pa.string())
        return self.decoded(data, samples, name, self.schema[name])

    def decoded(
        self,
        data: bytes,
        samples: list[tuple[str, Sample]],
        suffix: str,
        kind: pa.DataType | None,
    ) -> pa.Array:
        """Decode the files of one suffix to a column, null for samples without such a file."""
        places = [files.get(suffix) for _, files in samples]
        found = [None if place is None else data[slice(*place)] for place in places]
        return decoder_of(suffix, decode=self.decoding)(found, suffix, kind)


def _add(files: Sample, key: str, suffix: str, member: ArchiveMember) -> None:
    """Add a file to a sample; raise TarError if the sample has the suffix already."""
    if suffix in files:
        raise TarError(f"sample {key!r} has two files {suffix!r}")
    files[suffix] = (member.start, member.stop)


def _check_end(window: bytes, at: int) -> None:
    """Raise TarError unless only zeros follow the end mark at byte ``at``."""
    if window[at:].strip(b"\0"):
        raise TarError("something follows the mark of the end")


def _check_size(size: int) -> None:
    """Raise TarError if a sample has too many bytes with its next file, whose header was read."""
    if size > LONGEST:
        raise TarError(f"a sample takes {size} bytes, and {LONGEST} are allowed")


def _damaged(error: TarError) -> SourceError:
    return SourceError(
        "a sample cannot be read",
        why=str(error),
        try_=f"{COPY}; or an archive of plain files only (tar --hard-dereference)",
    )


@op
class SampleSource(LineSource):
    """Samples of tar archives, in order of file name and of position in the archive."""

    word: ClassVar[str] = "webdataset"


def read_webdataset(
    paths: Paths,
    suffixes: Iterable[str] | None = None,
    decode: bool | str = True,  # noqa: FBT001, FBT002 - as other readers of shards have it
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> SampleSource:
    """Read a row per sample of WebDataset shards: a file, a folder, a pattern, or a list of these.

    Consecutive files of an archive that share a key, which is their name up to its first dot, are a
    sample. Column "__key__" has the key; every suffix, the rest of a name, is a column. The columns
    are ``suffixes``, by default the suffixes in the first MiB. A missing file of a sample is null.
    With ``decode`` (True, or "basic"), .txt is text, .cls and similar suffixes are int64, .json is
    a value and .npy an array; all other files, and all files with ``decode=False``, are bytes.
    Nothing is unpickled or extracted to a disk. Archives may be compressed (.tar.gz, .tgz, .tar.zst
    ...).

    Raise SourceError, while reading, for damaged or truncated archives, links and other members
    that are not files, a sample of more than 32 MiB, and a file that cannot be decoded.
    """
    if decode not in (True, False, "basic"):
        raise PlanError(
            f"read_webdataset has no decode={decode!r}",
            why="there is True, which is also called 'basic', and False",
            try_="decode=False, and .map with a function that decodes",
        )
    names = chosen(suffixes, "read_webdataset")
    root, files, given = listed(paths, KIND, storage_options)
    form = SampleForm(Schema({KEY: pa.string()}), bool(decode), names is not None)
    form = dataclasses.replace(form, schema=_schema_in(files, form, names))
    return SampleSource(LineFiles(root, files, given, form), None, atom_rows)


def _schema_in(files: tuple[File, ...], form: SampleForm, names: tuple[str, ...] | None) -> Schema:
    """Infer the key and a column for every suffix; raise SourceError if there are no samples."""

    def infer(data: bytes, _: int) -> Schema:
        samples = list(form.decode_samples(data))
        there = dict.fromkeys(suffix for _, sample in samples for suffix in sample)
        found = [(KEY, pa.string())]
        for suffix in there if names is None else names:
            if suffix not in there and form.decoding and suffix.endswith(("json", "jsn", "npy")):
                raise SourceError(
                    f"none of the first samples of {files[0].name} has a file {suffix!r}",
                    why="its type would be that of the first ones",
                    try_="decode=False, or without it in suffixes=[...]",
                )
            kind = form.decoded(data, samples, suffix, None).type
            is_json = decoder_of(suffix, decode=form.decoding) is as_json
            found.append((suffix, settled(kind) if is_json else kind))
        return Schema(found)

    found = inferred(files, form, infer)
    if found is None:
        raise SourceError(
            f"{files[0].name} has no samples",
            at=files[0].path,
            why="they say which columns there are, and of which types",
            try_="an archive of files such as 000.jpg, 000.cls",
        )
    return found
