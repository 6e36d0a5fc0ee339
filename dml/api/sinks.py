"""Verbs that write all rows to files are defined here, one for each format."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dml.api.runs import Results
from dml.base.user_line import door
from dml.errors import PlanError
from dml.plugins import DataSink

if TYPE_CHECKING:
    from dml.exec.writing.file_writer import Written


class Sinks(Results):
    """Verbs that write rows as they are computed, into a folder that appears once complete."""

    @door
    def write_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        compression: str | None = "snappy",
        row_group_size: int | None = None,
        rows_per_file: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        lazy: bool = False,
    ) -> Written:
        """Write all rows, in order, as Parquet files of about 128 MiB into the folder ``path``.

        The folder appears when complete: files are written to a hidden folder next to it, synced to
        disk, and renamed in one step. An error or kill before that leaves ``path`` as it was, and
        the next write removes the remains. ``overwrite`` replaces a folder of rows. Files are
        ``part-00000.parquet`` and so on, with checksums, and ``read_parquet(path)`` gives the same
        rows. Batches are written as rows. One row group is in memory at a time: 32 MiB,
        ``row_group_size`` rows, or less if ``memory_limit`` requires it. This does not count as an
        epoch.

        ``path`` may be a URL such as "s3://bucket/folder", opened with ``storage_options``. Files
        are then written to the folder for temporary files, and uploaded when all are complete; if
        that fails, the uploaded files are removed, and nothing is replaced. ``lazy`` writes nothing
        yet: pass the result to ``dml.collect_all``, which runs shared steps once.

        Raise PlanError for a ``path`` that is not empty and for invalid options, SchemaError for
        columns that Parquet cannot represent, SourceError if the disk is full or not writable.
        """
        from dml.io.files import write_formats

        form = write_formats.format_of("Parquet", compression)
        return self._write(
            path, form, row_group_size, rows_per_file, overwrite, storage_options, lazy=lazy
        )

    @door
    def write_arrow(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        compression: str | None = None,
        row_group_size: int | None = None,
        rows_per_file: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        lazy: bool = False,
    ) -> Written:
        """Write as ``write_parquet`` does, but Arrow IPC files, ``part-00000.arrow`` and so on.

        Every Arrow type is preserved; ``row_group_size`` is the number of rows of a record batch.
        """
        from dml.io.files import write_formats

        form = write_formats.format_of("Arrow", compression)
        return self._write(
            path, form, row_group_size, rows_per_file, overwrite, storage_options, lazy=lazy
        )

    @door
    def write_orc(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        compression: str | None = "zstd",
        rows_per_file: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        lazy: bool = False,
    ) -> Written:
        """Write as ``write_parquet`` does, but ORC files, ``part-00000.orc`` and so on.

        Raise SchemaError for columns that ORC cannot represent: unsigned numbers, times of day,
        durations, tensors. Timestamps are read back in nanoseconds. ORC has no checksums.
        """
        from dml.io.files import write_formats

        form = write_formats.format_of("Orc", compression)
        return self._write(path, form, None, rows_per_file, overwrite, storage_options, lazy=lazy)

    @door
    def write_csv(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        delimiter: str = ",",
        rows_per_file: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        lazy: bool = False,
    ) -> Written:
        """Write as ``write_parquet`` does, but CSV files with headers: ``part-00000.csv`` ...

        Texts and timestamps with a time zone are in double quotes; a null is an empty value without
        quotes. Dates and times are in ISO 8601. Types are not stored. Raise SchemaError for bytes,
        lists, structs, tensors and durations.
        """
        from dml.io.files import write_formats

        form = write_formats.csv_of(delimiter)
        return self._write(path, form, None, rows_per_file, overwrite, storage_options, lazy=lazy)

    @door
    def write_json(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        rows_per_file: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        lazy: bool = False,
    ) -> Written:
        """Write as ``write_parquet`` does, but JSON, an object per line: ``part-00000.jsonl`` ...

        NaN becomes null; dates and times are in ISO 8601, decimals are texts, tensors nested lists.
        Without rows, no names are stored. Raise SchemaError for bytes, durations and infinities.
        """
        from dml.io.files import write_formats

        form = write_formats.JSON_LINES
        return self._write(path, form, None, rows_per_file, overwrite, storage_options, lazy=lazy)

    sink_parquet, sink_ipc = write_parquet, write_arrow
    sink_csv, sink_ndjson = write_csv, write_json

    @door
    def write_tfrecords(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        compression: str | None = None,
        rows_per_file: int | None = None,
        raw: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        lazy: bool = False,
    ) -> Written:
        """Write as ``write_parquet`` does, but TFRecord files, ``part-00000.tfrecord`` and so on.

        A row is a ``tf.train.Example``. Features can be integers and booleans (as int64), float32,
        texts, bytes, and lists and tensors of these; a null is a missing feature. No types or
        shapes are stored. If ``raw``, the values of the only column, bytes, are the records. Raise
        SchemaError for float64, uint64, dates, times, structs, nulls in lists, and rows over 32
        MiB.
        """
        from dml.io.tfrecord import tfrecord_writer

        form = tfrecord_writer.tfrecord_of(compression, raw=raw)
        return self._write(path, form, None, rows_per_file, overwrite, storage_options, lazy=lazy)

    @door
    def write_webdataset(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        compression: str | None = None,
        rows_per_file: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        lazy: bool = False,
    ) -> Written:
        """Write as ``write_parquet`` does, but WebDataset shards, ``part-00000.tar`` and so on.

        A row is a sample, and each column except "__key__" is one file of it, named by the key and
        the column's name. Without a column "__key__", the key is the row's number in nine digits. A
        column's suffix says how values are written: .txt, .cls (integers), .json, .npy (numbers,
        lists, tensors); bytes may have any suffix. A null is a missing file. Raise SchemaError for
        columns of other names, rows without files, and neighbours with the same key.
        """
        from dml.io.webdataset import webdataset_writer

        form = webdataset_writer.shards_of(compression)
        return self._write(path, form, None, rows_per_file, overwrite, storage_options, lazy=lazy)

    @door
    def write_numpy(
        self,
        path: str | os.PathLike[str],
        *,
        column: str | None = None,
        overwrite: bool = False,
        rows_per_file: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        lazy: bool = False,
    ) -> Written:
        """Write as ``write_parquet`` does, but .npy files, ``part-00000.npy`` and so on.

        A file is a structured array of rows, with a field per column, or a plain array of the one
        ``column``. A null becomes NaN or NaT. Raise SchemaError for texts, bytes, lists, structs,
        and nulls in integers, booleans and tensors.
        """
        from dml.io.numpy import npy_writer

        form = npy_writer.npy_of(column)
        return self._write(path, form, None, rows_per_file, overwrite, storage_options, lazy=lazy)

    @door
    def write_datasink(self, sink: DataSink) -> Any:
        """Pass all rows, in order, to a ``dml.DataSink``; return the result of its ``finish``.

        Rows come in groups of about 32 MiB or less, from this process. If anything fails, ``abort``
        of the sink is called. Batches are passed as rows. This does not count as an epoch. Raise
        PlanError if ``sink`` is no DataSink; raise SourceError for errors of the sink.
        """
        from dml.exec.writing import file_writer, user_sink

        if not isinstance(sink, DataSink):
            raise PlanError(
                f"write_datasink needs a DataSink, got {sink!r}",
                why=f"it is of type {type(sink).__name__}",
                try_="an instance of a subclass of dml.DataSink",
            )
        self._must_end("write_datasink")
        epoch = self._pinned or 0
        streaming, resources = self._streamed(self._node, epoch)
        cuts = file_writer.cuts_of(None, None, resources.budget.ahead_bytes)
        return user_sink.fill(streaming, epoch, sink, cuts)

    @door
    def write_delta(
        self,
        path: str | os.PathLike[str],
        *,
        mode: str = "error",
        partition_by: str | Iterable[str] | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> int:
        """Write all rows to a Delta table in one commit, and return the table's new version.

        The table is created if it does not exist; otherwise ``mode`` says what happens: "error",
        "append", or "overwrite", after which earlier versions can still be read. A run that fails
        commits nothing; a vacuum of the table removes files that it wrote. This does not count as
        an epoch. It needs the extra "delta". Raise PlanError for another mode; raise SourceError
        for errors of the library.
        """
        lakes, rows = self._as_stream("write_delta")
        done: int = lakes.write_delta(rows, path, mode, storage_options, partition_by)
        return done

    @door
    def write_lance(
        self,
        path: str | os.PathLike[str],
        *,
        mode: str = "error",
        storage_options: Mapping[str, str] | None = None,
    ) -> int:
        """Write as ``write_delta`` does, but to a Lance dataset; needs the extra "lance"."""
        lakes, rows = self._as_stream("write_lance")
        done: int = lakes.write_lance(rows, path, mode, storage_options)
        return done

    def _as_stream(self, verb: str) -> tuple[Any, Any]:
        from dml.exec.writing import file_writer, lake_writer

        self._must_end(verb)
        epoch = self._pinned or 0
        streaming, resources = self._streamed(self._node, epoch)
        cuts = file_writer.cuts_of(None, None, resources.budget.ahead_bytes)
        return lake_writer, lake_writer.RowStream(streaming, epoch, cuts)

    def _write(self, *fields: Any, lazy: bool) -> Written:
        """Run a ``WriteRequest`` with ``fields``, or only return it if ``lazy``."""
        from dml.exec.writing import file_writer

        asked = file_writer.WriteRequest(*fields)
        self._must_end(asked.form.verb)
        if lazy:
            file_writer.cuts_of(asked.group_rows, asked.file_rows, file_writer.GROUP_BYTES)
            where = file_writer.display_path(asked.path)
            return file_writer.Planned(where, 0, 0, 0, asked, self)
        epoch = self._pinned or 0
        streaming, resources = self._streamed(self._node, epoch)
        cuts = file_writer.cuts_of(asked.group_rows, asked.file_rows, resources.budget.ahead_bytes)
        options = {"overwrite": asked.overwrite, "storage_options": asked.storage_options}
        return file_writer.write(streaming, epoch, asked.path, asked.form, cuts, **options)
