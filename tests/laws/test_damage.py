"""Law: no flipped bit crashes a reader, and none in checksummed data is unnoticed.

The table of docs/formats.md states which formats have checksums, and the other effects of a flip.
"""

from __future__ import annotations

import dataclasses
import gzip
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml.api.dataset import Dataset
from dml.base.fingerprint import digest
from dml.errors import DmlError, InternalError
from dml.io.source import Source
from dml.testing.source_laws import everything

ROWS, FEW = 120, 30  # few of those that are a few files each
OFF = {"telemetry_dir": "off"}
PAGE = Path(__file__).resolve().parents[2] / "docs/formats.md"


def rows() -> pa.Table:
    rng = np.random.default_rng(3)
    return pa.table(
        {
            "i.npy": rng.integers(0, 1000, ROWS),
            "f.npy": rng.random(ROWS).astype(np.float32),
            "s.txt": [f"word {k}" for k in rng.integers(0, 50, ROWS)],
        }
    )


def nested() -> pa.Table:
    """The same with nulls and lists, for formats that have them."""
    table = rows()
    odd = pa.array([k % 5 == 0 for k in range(ROWS)])
    texts = [None if k % 5 == 0 else "w" * (k % 9) for k in range(ROWS)]
    lists = pa.array([[k] * (k % 3) for k in range(ROWS)])
    return table.append_column("odd", odd).append_column("t", [texts]).append_column("l", lists)


@dataclasses.dataclass(frozen=True)
class Case:
    """How a file of a format is made and read, and what is promised.

    ``covered`` is how many of its bytes are: a flip there is an error, or changes no row.
    ``ends``: a file that is cut off is an error wherever it is cut.
    """

    name: str
    make: Callable[[Path], None]
    read: Callable[[Path], Dataset]
    covered: Callable[[bytes], int] | None = None
    ends: bool = True


def written(verb: str, *names: str, **options: object) -> Callable[[Path], None]:
    """Rows as the verb writes them, in one file."""

    def make(path: Path) -> None:
        table = nested() if verb in NESTED else rows()
        table = table.slice(0, FEW) if verb == "write_webdataset" else table
        ds = dml.from_arrow(table.select(names or table.column_names)).with_options(**OFF)
        getattr(ds, verb)(path.parent / "out", **options)
        (path.parent / "out").joinpath(next((path.parent / "out").iterdir()).name).rename(path)

    return make


def lines(path: Path) -> None:
    text = "".join(f"{i}: {word}\n" for i, word in enumerate(rows()["s.txt"].to_pylist())).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def arrays(path: Path) -> None:
    table = rows()
    np.savez_compressed(path, i=table["i.npy"].to_numpy(), f=table["f.npy"].to_numpy())


def footless(data: bytes) -> int:
    """Bytes before the footer of a Parquet file."""
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


NESTED = ("write_parquet", "write_arrow", "write_orc", "write_json")
NUMBERS = ("i.npy", "f.npy")
CASES = [
    Case("parquet", written("write_parquet", row_group_size=50), dml.read_parquet, footless),
    Case("arrow", written("write_arrow", row_group_size=50), dml.read_arrow),
    Case("orc", written("write_orc", compression="zstd"), dml.read_orc),
    Case("lz4.arrow", written("write_arrow", compression="lz4"), dml.read_arrow),
    Case("tfrecord", written("write_tfrecords"), dml.read_tfrecords, len, ends=False),
    Case("tfrecord.gz", written("write_tfrecords", compression="gzip"), dml.read_tfrecords, len),
    Case("tar", written("write_webdataset", rows_per_file=ROWS), dml.read_webdataset),
    Case("tar.gz", written("write_webdataset", compression="gzip"), dml.read_webdataset, len),
    Case("npy", written("write_numpy", *NUMBERS), dml.read_numpy),
    Case("npz", arrays, dml.read_numpy, len),
    Case("csv", written("write_csv"), dml.read_csv, ends=False),
    Case("jsonl", written("write_json"), dml.read_json, ends=False),
    Case("txt", lines, dml.read_text, ends=False),
    Case("txt.gz", lines, dml.read_text, len),
    Case("bin", lines, dml.read_binary_files, ends=False),
]


def test_the_table_has_every_format() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [case.name for case in CASES if f"| `.{case.name}`" not in page] == []


MARKS = {"orc": [pytest.mark.cluster]}  # it is decoded in a process of its own


@pytest.fixture(
    params=[pytest.param(c, id=c.name, marks=MARKS.get(c.name, [])) for c in CASES],
)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """Puts a figure beside the outcome of a test, where ``--junitxml`` shows it."""
    return lambda name, value: request.node.user_properties.append((name, value))


def outcome(case: Case, path: Path, data: bytes, want: bytes) -> str:
    """What reading ``data`` does: "noticed", "same" rows, or other rows, "unseen"."""
    path.write_bytes(data)
    try:
        found = content(case, path)
    except DmlError as error:
        typed = not isinstance(error, InternalError) and path.name in str(error)
        return "noticed" if typed else f"an error that names no file, or is our own: {error}"
    return "same" if found == want else "unseen"


def content(case: Case, path: Path) -> bytes:
    """Names and values of all rows."""
    source = case.read(path)._node
    assert isinstance(source, Source)
    batch = everything(source).to_arrow()
    return digest(batch.num_rows, batch.schema.names, *batch.columns)


@pytest.mark.sample(6)
@pytest.mark.law
def test_a_flipped_bit_never_crashes_and_is_never_silent_where_it_is_checked(
    tmp_path: Path, case: Case, note: Callable[[str, object], None], *, whole: bool
) -> None:
    path = tmp_path / f"x.{case.name}"
    case.make(path)
    data, want = path.read_bytes(), content(case, path)
    end = case.covered(data) if case.covered else 0
    drawn, seen = random.Random(5), Counter[str]()
    for _ in range(2000 if whole else 60):
        at, bad = drawn.randrange(len(data)), bytearray(data)
        bad[at] ^= 1 << drawn.randrange(8)
        found = outcome(case, path, bytes(bad), want)
        assert found != "unseen" or at >= end, f"a flip of byte {at} of {len(data)} is silent"
        seen[found] += 1
    assert set(seen) <= {"noticed", "same", "unseen"}
    note("flips", dict(seen))


@pytest.mark.law
def test_a_file_that_is_cut_off_is_noticed_where_its_end_is_marked(
    tmp_path: Path, case: Case, *, whole: bool
) -> None:
    path = tmp_path / f"x.{case.name}"
    case.make(path)
    data, want = path.read_bytes(), content(case, path)
    drawn = random.Random(6)
    for _ in range(200 if whole else 30):
        size = drawn.randrange(len(data))
        found = outcome(case, path, data[:size], want)
        assert found in ("noticed", "same", "unseen")
        assert found == "noticed" or not case.ends or is_padding(data[size:]), size


def is_padding(rest: bytes) -> bool:
    """True for what archives are filled up with."""
    return not rest.strip(b"\0")
