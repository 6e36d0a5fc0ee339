"""Read small files that decompress to a gigabyte: in little memory, or with an error."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

MIB = 1 << 20
PIECE = 8 * MIB
# What the process may grow by: the memory number, and what an interpreter takes beside it.
LIMIT_MIB, GROWN_MIB = 256, 384

# Memory is a process's, so the reading is done in one of its own.
READ = """
import resource, sys, dml
form, path, limit = sys.argv[1:]
warm = dml.range(1000).with_options(telemetry_dir="off", executor="threads")
sum(len(batch["id"]) for batch in warm.batch(100))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows, said = 0, ""
try:
    options = {"raw": True} if form == "tfrecords" else {}
    ds = getattr(dml, f"read_{form}")(path, **options)
    ds = ds.with_options(telemetry_dir="off", executor="threads", memory_limit=f"{limit}MiB")
    size = 1 if form == "webdataset" else 4 if "rec" in form or "values" in path else 4096
    for batch in ds.iter_batches(batch_size=size, batch_format="arrow"):
        rows += batch.num_rows
except dml.DmlError as error:
    said = type(error).__name__ + ": " + error.what
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, rows, said)
"""


def repeated(
    pack: Callable[[bytes], bytes], piece: bytes, times: int = 64, head: bytes = b""
) -> bytes:
    """A packed piece many times: what is unpacked one after the other is read as one."""
    return (pack(head) if head else b"") + pack(piece) * times


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, "zstd", asbytes=True))


def xz(data: bytes) -> bytes:
    return lzma.compress(data, preset=0)


def lines(line: bytes) -> bytes:
    return line * (PIECE // len(line))


def masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record_head(size: int) -> bytes:
    length = struct.pack("<Q", size)
    return length + masked(length)


def tar_head(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT)


def npz(path: Path, shape: tuple[int, ...], *, fortran: bool = False) -> None:
    """An archive of one array of zeros, which is never made."""
    out = io.BytesIO()
    said = {"descr": "<f8", "fortran_order": fortran, "shape": shape}
    np.lib.format.write_array_header_1_0(out, said)
    left = 8 * int(np.prod(shape))
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.npy", "w") as to,
    ):
        to.write(out.getvalue())
        while left:
            left -= to.write(bytes(min(left, PIECE)))


def huge_dictionary(_: Path) -> bytes:
    """What xz packed, with a header that asks for 4 GiB to unpack it."""
    data = bytearray(lzma.compress(b"line\n" * 100, preset=0))
    size = (data[12] + 1) * 4  # of the block's header: size, flags, filter, one property, checksum
    data[12 + 4] = 40
    data[12 + size - 4 : 12 + size] = struct.pack("<I", zlib.crc32(data[12 : 12 + size - 4]))
    return bytes(data)


def one_row_group(path: Path) -> None:
    zeros = pa.array(np.zeros(MIB, np.int64))
    column = pa.chunked_array([zeros] * 64)
    pq.write_table(pa.table({"x": column}), path, row_group_size=64 * MIB, compression="zstd")


def long_values(path: Path) -> None:
    texts = pa.array(["a" * MIB] * 16)
    table = pa.table({"x": pa.chunked_array([texts] * 64)})
    pq.write_table(table, path, compression="zstd", use_dictionary=False)


def one_batch(path: Path) -> None:
    batch = pa.record_batch({"x": np.zeros(1 << 26, np.int64)})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(path, batch.schema, options=options) as writer:
        writer.write_batch(batch)


def one_stripe(path: Path) -> None:
    zeros = pa.table({"x": np.zeros(1 << 20, np.int64)})
    with orc.ORCWriter(path, compression="zstd") as writer:
        for _ in range(64):
            writer.write(zeros)


LINE, ROW, OBJECT = lines(b"x" * 99 + b"\n"), lines(b"1,aaaaaaaaaaaaaa\n"), lines(b'{"a": 1}\n')
ZEROS = bytes(PIECE)
RECORD = record_head(MIB) + bytes(MIB) + masked(bytes(MIB))

# Name of the file -> what it is read as, what is in it, what is said ("" if all rows are read).
CASES: dict[str, tuple[str, Callable[[Path], bytes | None], str]] = {
    "rows.parquet": ("parquet", one_row_group, ""),
    "values.parquet": ("parquet", long_values, ""),
    "batch.arrow": ("arrow", one_batch, "does not fit into the memory number"),
    "stripe.orc": ("orc", one_stripe, "does not fit into the memory number"),
    "lines.txt.gz": ("text", lambda _: repeated(gzip.compress, LINE), ""),
    "line.txt.gz": ("text", lambda _: repeated(gzip.compress, ZEROS), "a row is longer"),
    "lines.txt.xz": ("text", lambda _: repeated(xz, LINE), ""),
    "dictionary.txt.xz": ("text", huge_dictionary, "needs more memory to be unpacked"),
    "line.txt.zst": ("text", lambda _: repeated(zstd, ZEROS), "a row is longer"),
    "rows.csv.bz2": ("csv", lambda _: repeated(bz2.compress, ROW, 32, b"a,b\n"), ""),
    "rows.csv.zst": ("csv", lambda _: repeated(zstd, ROW, 32, b"a,b\n"), ""),
    "quote.csv.gz": (
        "csv",
        lambda _: repeated(gzip.compress, ZEROS, 64, b'a,b\n"'),
        "a row is longer",
    ),
    "rows.json.zst": ("json", lambda _: repeated(zstd, OBJECT, 16), ""),
    "value.json.gz": (
        "json",
        lambda _: repeated(gzip.compress, b"1" * PIECE, 64, b'{"a": 1}\n{"a": '),
        "a row is longer",
    ),
    "array.npz": ("numpy", lambda path: npz(path, (1 << 26,)), ""),
    "row.npz": ("numpy", lambda path: npz(path, (1, 1 << 26)), "memory"),
    "folded.npz": (
        "numpy",
        lambda path: npz(path, (1 << 13, 1 << 13), fortran=True),
        "is not a file of arrays",
    ),
    "member.tar.gz": (
        "webdataset",
        lambda _: repeated(gzip.compress, ZEROS, 128, tar_head("a.bin", 1 << 30)),
        "cannot be read",
    ),
    "end.tar.gz": (
        "webdataset",
        lambda _: repeated(gzip.compress, ZEROS, 128, tar_head("a.bin", 0)),
        "a row is longer",
    ),
    "samples.tar.zst": (
        "webdataset",
        lambda _: (
            b"".join(zstd(tar_head(f"{i}.bin", PIECE)) + zstd(ZEROS) for i in range(64))
            + zstd(bytes(1024))
        ),
        "",
    ),
    "record.tfrecord.gz": (
        "tfrecords",
        lambda _: repeated(gzip.compress, ZEROS, 128, record_head(1 << 30)),
        "a record is longer",
    ),
    "records.tfrecord.gz": ("tfrecords", lambda _: repeated(gzip.compress, RECORD, 512), ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_bomb_is_streamed_or_refused(tmp_path: Path, name: str) -> None:
    form, make, why = CASES[name]
    path = tmp_path / name
    made = make(path)
    if made is not None:
        path.write_bytes(made)
    assert path.stat().st_size < 8 * MIB
    done = subprocess.run(
        [sys.executable, "-c", READ, form, str(path), str(LIMIT_MIB)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    grown_kb, rows, said = done.stdout.rstrip("\n").split(" ", 2)
    assert why in said if why else (said == "" and int(rows)), done.stdout
    assert int(grown_kb) < GROWN_MIB << 10, f"the process grew by {int(grown_kb) >> 10} MiB"
