"""Run pipelines over files of every format: resumed, in processes, in little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml.api.dataset import Dataset
from dml.errors import UDFError
from tests.io.line_sets import written

ROWS = 500
OFF = {"telemetry_dir": "off"}


def words(n: int) -> list[str]:
    return [f"word {i % 7}" for i in range(n)]


def csv_files(folder: Path) -> Dataset:
    lines = [f"{i},{word}\n" for i, word in enumerate(words(ROWS))]
    first, second = "".join(lines[:99]), "".join(lines[99:])
    files = {"a.csv": f"n,s\n{first}".encode(), "b.csv.gz": f"n,s\n{second}".encode()}
    return dml.read_csv(written(folder, files), atom_rows=7)


def json_files(folder: Path) -> Dataset:
    rows = [json.dumps({"n": i, "s": word}) for i, word in enumerate(words(ROWS))]
    return dml.read_json(written(folder, {"a.json": "\n".join(rows).encode()}), atom_rows=9)


def text_files(folder: Path) -> Dataset:
    data = "".join(f"{i:03}{word}\n" for i, word in enumerate(words(ROWS))).encode()
    ds = dml.read_text(written(folder, {"a.txt": data[:300], "b.txt.gz": data[300:]}), atom_rows=5)
    return ds.map(lambda row: {"n": int(row["text"][:3]), "s": row["text"][3:]})


def arrow_files(folder: Path) -> Dataset:
    table = pa.table({"n": range(ROWS), "s": words(ROWS)})
    folder.mkdir()
    with pa.ipc.new_file(folder / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=70)
    return dml.read_ipc(folder, atom_rows=30)


def orc_files(folder: Path) -> Dataset:
    return dml.read_orc(rows_in(folder, "write_orc"), atom_rows=30)


def whole_files(folder: Path) -> Dataset:
    files = {f"{i:03}": word.encode() for i, word in enumerate(words(ROWS))}
    ds = dml.read_binary_files(written(folder, files), atom_rows=20)
    return ds.map(lambda row: {"n": int(row["path"]), "s": row["bytes"].decode()})


def rows_in(folder: Path, verb: str) -> Path:
    """The rows as files of the format that ``verb`` writes."""
    ds = dml.from_dict({"n": [*range(ROWS)], "s": words(ROWS)}).with_options(**OFF)
    getattr(ds, verb)(folder, rows_per_file=150)
    return folder


def record_files(folder: Path) -> Dataset:
    path = rows_in(folder, "write_tfrecords")
    return dml.read_tfrecords(path, {"n": "int64", "s": "string"}, atom_rows=11)


def shard_files(folder: Path) -> Dataset:
    ds = dml.from_dict({"n.cls": [*range(ROWS)], "s.txt": words(ROWS)}).with_options(**OFF)
    ds.write_webdataset(folder, rows_per_file=150)
    ds = dml.read_webdataset(folder, atom_rows=13).drop("__key__")
    return ds.rename({"n.cls": "n", "s.txt": "s"})


def array_files(folder: Path) -> Dataset:
    folder.mkdir()
    rows = np.array([*enumerate(words(ROWS))], [("n", "i8"), ("s", "U9")])
    np.save(folder / "a.npy", rows[:205])
    np.save(folder / "b.npy", rows[205:])
    return dml.read_numpy(folder, atom_rows=30)


def packed_arrays(folder: Path) -> Dataset:
    folder.mkdir()
    np.savez_compressed(folder / "a.npz", n=np.arange(ROWS), s=np.array(words(ROWS)))
    return dml.read_numpy(folder, atom_rows=30)


FORMATS: list[Any] = [
    csv_files,
    json_files,
    text_files,
    arrow_files,
    whole_files,
    record_files,
    shard_files,
]
FORMATS += [array_files, packed_arrays, pytest.param(orc_files, marks=pytest.mark.cluster)]


def values(batches: Iterator[dict[str, Any]]) -> list[tuple[int, str]]:
    pairs = ((batch["n"].tolist(), batch["s"].tolist()) for batch in batches)
    return [pair for numbers, texts in pairs for pair in zip(numbers, texts, strict=True)]


@pytest.mark.sample(5)
@pytest.mark.law
@pytest.mark.parametrize("files", FORMATS)
def test_a_run_gives_all_rows_and_goes_on_from_anywhere(
    tmp_path: Path, files: Callable[[Path], Dataset]
) -> None:
    ds = files(tmp_path / "data").with_options(**OFF)
    plain = values(iter(ds.batch(8)))
    assert plain == [*enumerate(words(ROWS))]
    for each in (ds.batch(8), ds.shuffle(seed=3).batch(8), ds.filter(dml.col("n") > 250).batch(8)):
        whole = values(iter(each.epoch(0)))
        for taken in (0, 1, 17, 30):
            it = iter(each.epoch(0))
            begun = values(next(it) for _ in range(taken))
            other = iter(each.epoch(0))
            other.load_state_dict(json.loads(json.dumps(it.state_dict())))
            assert begun + values(other) == whole
    assert ds.skip(100).take(3).count() == 3


@pytest.mark.sample(5)
@pytest.mark.cluster
@pytest.mark.parametrize("files", FORMATS)
def test_processes_give_the_same(tmp_path: Path, files: Callable[[Path], Dataset]) -> None:
    ds = files(tmp_path / "data").with_options(**OFF)
    there = ds.with_options(executor="processes", num_workers=2)
    assert values(iter(there.batch(8))) == values(iter(ds.batch(8)))


@pytest.mark.law
def test_a_function_that_fails_names_file_and_row(tmp_path: Path) -> None:
    ds = csv_files(tmp_path / "data").map(lambda row: {"n": 1 // (row["n"] - 105)})
    with pytest.raises(UDFError) as caught:
        list(ds.with_options(**OFF))
    assert (caught.value.file, caught.value.row_group, caught.value.row) == ("b.csv.gz", None, 6)


@pytest.mark.law
def test_the_formats_are_imported_when_they_are_used() -> None:
    code = "import sys, dml\nprint({'pyarrow.csv', 'pyarrow.json', 'lzma', 'bz2'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# Memory is a process's, so the reading is done in one of its own.
READ = """
import resource, sys, dml
form, path = sys.argv[1:]
ds = getattr(dml, f"read_{form}")(path)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ds = ds.with_options(telemetry_dir="off", executor="threads", memory_limit="512MiB")
rows = sum(len(next(iter(batch.values()))) for batch in ds.batch(8192))
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "csv", "bomb"])
def test_300_mb_are_streamed(tmp_path: Path, form: str) -> None:
    rows, name = 3_000_000, "csv" if form == "csv" else "text"
    path = tmp_path / {"text": "x.txt", "csv": "x.csv", "bomb": "x.txt.zst"}[form]
    line = b"7," + b"x" * 97 + b"\n"
    with pa.OSFile(str(path), "wb") as file:
        out = pa.CompressedOutputStream(file, "zstd") if form == "bomb" else file
        out.write(line.replace(b"7,", b"n,") if form == "csv" else b"")
        for _ in range(rows // 1000):
            out.write(line * 1000)
        out.close()
    done = subprocess.run(
        [sys.executable, "-c", READ, name, str(path)], capture_output=True, text=True, check=True
    )
    read, grown_kb = map(int, done.stdout.split())
    assert read == rows
    assert grown_kb < 400 << 10, f"the process grew by {grown_kb >> 10} MiB"
