"""This file reads WebDataset shards: files of tar archives that share a key are one row."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from dml.errors import PlanError, SourceError
from dml.expr.fingerprint import digest
from dml.expr.node import op
from dml.expr.schema import Schema
from dml.expr.sources.compressed import Stream, opened, packing
from dml.expr.sources.decoders import decoder_of, settled_kind
from dml.expr.sources.files import File, chosen, listed
from dml.expr.sources.lines import Form, LineFiles, LineSource, RowError, inferred
from dml.expr.sources.paths import Kind, Paths
from dml.expr.sources.records import LONGEST
from dml.expr.sources.tar import Member, TarError, members, needed

PACKINGS = ("", ".gz", ".zst", ".xz", ".bz2")
KIND = Kind("tar", (*(".tar" + ending for ending in PACKINGS), ".tgz"))
KEY = "__key__"
NAMES = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
META = re.compile(r"__[^/]*__(?:/|\Z)")
COPY = "copy or write it again; an upload may not have finished"

Sample: TypeAlias = dict[str, tuple[int, int]]  # suffixes with where their bytes are


def split_name(name: str) -> tuple[str, str]:
    """Key and suffix of a file: all up to the first dot after the folders, and the rest.

    "" for a file that belongs to no sample: without a dot, or between two underscores.
    """
    found = None if META.match(name) else NAMES.fullmatch(name)
    return (found[1], found[2].lower()) if found else ("", "")


@dataclasses.dataclass(frozen=True)
class SampleForm(Form):
    """Files that follow one another and share a key are a row; suffixes are columns.

    With ``chosen`` suffixes that ``schema`` does not name are passed over, else they are errors.
    """

    schema: Schema
    decoding: bool
    chosen: bool
    blank: ClassVar[bytes] = b""

    @property
    def digest(self) -> bytes:
        """Names and types, and whether files are decoded."""
        return digest("webdataset", 2, self.decoding, self.chosen, self.schema.to_arrow())

    def packed(self, file: File) -> bool:
        """True unless it is a plain archive."""
        return bool(_ending(file.name))

    def open(
        self, file: File, start: int = 0, stop: int | None = None
    ) -> AbstractContextManager[Stream]:
        """The archive, unpacked."""
        return opened(file, start, stop, _ending(file.name))

    def first(self, file: File) -> int:
        """The first header is the first byte; SourceError for what cannot be an archive."""
        if file.size:
            return 0
        raise SourceError(f"{file.name} is empty", at=file.path, why="not even its end is marked")

    def spot(self, file: File, row: int, at: int) -> str:
        """The sample, and the first byte of its headers."""
        of = " of what it unpacks to" if self.packed(file) else ""
        return f"{file.path}, sample {row}, byte {at}{of}"

    def ends(self, window: bytes) -> np.ndarray:
        """Where another key, or the end, follows; SourceError if the first sample is damaged."""
        found, key, at = list[int](), "", 0
        try:
            for member in members(window):
                if member.name is None:
                    found += [member.begin] * bool(key)
                    if not key:
                        _check_end(window, member.begin)
                    break
                next_key, _ = split_name(member.name)
                if key and next_key and next_key != key:
                    found.append(member.begin)
                key, at = next_key or key, member.stop
            else:
                _check_size(window, at, 0 if not found else found[-1])
        except TarError as error:
            if not found:
                raise _damaged(error) from None
        return np.array(found, dtype=np.int64)

    def last(self, window: bytes) -> bool:
        """False for the mark of the end, without which an archive is cut off (SourceError)."""
        try:
            every = list(members(window))
            if every and every[-1].name is None:
                _check_end(window, every[-1].begin)
                return any(split_name(member.name or "")[0] for member in every)
        except TarError as error:
            raise _damaged(error) from None
        raise SourceError("the archive is cut off", why="it has no mark of its end", try_=COPY)

    def decode_samples(self, data: bytes) -> Iterator[tuple[str, Sample]]:
        """Key and files of every sample; RowError at one that is no sample."""
        key, files, row = "", Sample(), 0
        try:
            for member in members(data):
                if member.name is None:
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
        """The samples in ``data``."""
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
        """The files of one suffix as a column, null where a sample has none."""
        places = [files.get(suffix) for _, files in samples]
        found = [None if place is None else data[slice(*place)] for place in places]
        return decoder_of(suffix, decode=self.decoding)(found, suffix, kind)


def _ending(name: str) -> str:
    """How a file is packed."""
    return ".gz" if name.lower().endswith(".tgz") else packing(name)


def _add(files: Sample, key: str, suffix: str, member: Member) -> None:
    """Take a file into a sample; TarError if it has one of that suffix."""
    if suffix in files:
        raise TarError(f"sample {key!r} has two files {suffix!r}")
    files[suffix] = (member.start, member.stop)


def _check_end(window: bytes, at: int) -> None:
    """TarError unless the mark of the end at byte ``at`` is followed by nothing."""
    if window[at:].strip(b"\0"):
        raise TarError("something follows the mark of the end")


def _check_size(window: bytes, at: int, begin: int) -> None:
    """TarError for a sample that will be too large, as soon as its header says so."""
    start = -(-at // 512) * 512
    size = start + needed(window[start:]) - begin
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
    """Samples of tar archives in order of file name, place in the archive."""

    files: LineFiles
    columns: tuple[str, ...] | None = None
    atom_rows: int | None = None
    word: ClassVar[str] = "webdataset"


def read_webdataset(
    paths: Paths,
    suffixes: Iterable[str] | None = None,
    decode: bool | str = True,  # noqa: FBT001, FBT002 - as other readers of shards have it
    *,
    atom_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> SampleSource:
    """A row per sample of WebDataset shards: a file, a folder, a pattern, or a list of these.

    Files of an archive that follow one another and share a key, which is their name up to its
    first dot, are a sample; column "__key__" has the key, and the rest of each name is a column:
    those of the first MiB, or ``suffixes``. A file that a sample lacks is null. With ``decode``
    (True, or "basic") .txt is text, .cls and its like int64, .json a value, .npy an array; all
    else, and everything with False, is bytes. Nothing is unpickled, and nothing unpacked onto a
    disk. Archives may be packed (.tar.gz, .tgz, .tar.zst ...).

    SourceError, when it is read, for what is damaged or cut off, links and other things that are
    no files, a sample of more than 32 MiB, and a file that cannot be decoded.
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
    """The key, and a column for every suffix; SourceError if there are no samples to tell."""

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
            found.append((suffix, settled_kind(suffix, kind) if form.decoding else kind))
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
