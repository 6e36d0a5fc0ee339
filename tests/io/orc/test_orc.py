"""Test that ORC is read stripe by stripe, and that a crash of the reading process is an error."""

from __future__ import annotations

import os
import pickle
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc

import dml
from dml.api.dataset import Dataset
from dml.data.stream_hash import stream_hash
from dml.errors import SchemaError, SourceError
from dml.io.orc import orc as orc_source
from dml.io.orc.orc import CHILDREN, MOST, OrcSource, read_orc
from dml.io.orc.orc_worker import tail_of
from dml.testing.oracle import Oracle
from dml.testing.source_laws import (
    check_other_process,
    check_same_data,
    check_source,
    everything,
    units,
)
from tests.io.line_sets import refusal

pytestmark = pytest.mark.cluster

N = 1300
TABLE = pa.table(
    {
        "x": pa.array([None if i % 7 == 0 else i * i << 40 for i in range(N)], pa.int64()),
        "a.b": ["w" * (i % 9) for i in range(N)],
        "a": pa.array([{"b": [i] * (i % 3), "c": i / 3} for i in range(N)]),
        "m": pa.array([[("k", i)] for i in range(N)], pa.map_(pa.string(), pa.int16())),
        "t": pa.array(np.arange(N) * 10**9 + 7, pa.timestamp("ns")),
        "y": pa.array([b"\xff" * (i % 2) for i in range(N)]),
        "b": pa.array([i % 3 == 0 for i in range(N)]),
        "f": pa.array(np.arange(N), pa.float32()),
    }
)


def write(path: Path, table: pa.Table, compression: str = "uncompressed") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    orc.write_table(table, path, compression=compression, stripe_size=1000, batch_size=100)
    return path


def several(folder: Path) -> Path:
    """Files of each compression, and one without rows."""
    for number, codec in enumerate(("uncompressed", "zstd", "zlib", "snappy", "lz4")):
        write(folder / f"{number}.orc", TABLE, codec)
    write(folder / "9.orc", TABLE[:0])
    return folder


@pytest.mark.sample(1)
@pytest.mark.parametrize("atom_rows", [None, 100, 977])
def test_the_laws_hold(tmp_path: Path, atom_rows: int | None) -> None:
    source = read_orc(several(tmp_path), atom_rows=atom_rows)
    check_source(source, pa.concat_tables([TABLE] * 5))
    assert len(units(source)) > 6, "some files have several stripes"
    stored = sum(source.stored_bytes(unit, ("x",)) for unit in units(source))
    assert stored == pytest.approx(
        sum(f.size for f in source.files.files[:-1]), abs=len(units(source))
    )


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.text(max_size=3) | st.sampled_from(["same" * 99]),
            st.none() | st.lists(st.floats(width=32) | st.none(), max_size=3),
            st.none() | st.binary(max_size=5),
        ),
        max_size=40,
    ),
    st.sampled_from(["uncompressed", "zstd"]),
)
def test_any_rows_come_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[object, ...]], codec: str
) -> None:
    kinds = (pa.int64(), pa.string(), pa.list_(pa.float32()), pa.binary())
    lists = [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * 4
    arrays = [pa.array(column, kind) for column, kind in zip(lists, kinds, strict=True)]
    table = pa.table(arrays, names=list("istb"))
    source = read_orc(write(tmp_path_factory.mktemp("orc") / "x.orc", table, codec))
    found = pa.Table.from_batches([everything(source).to_arrow()])
    assert repr(found.to_pylist()) == repr(table.to_pylist())
    state = sum(unit.nbytes for unit in units(source))
    assert state >= sum(array.nbytes for array in arrays) // 2 - 64 * len(rows), "sizes are true"


@given(st.binary(max_size=200))
def test_bytes_that_are_no_tail_are_said_to_be_none(data: bytes) -> None:
    try:
        found = tail_of(data, 1000)
    except ValueError:
        return
    assert all(rows >= 0 for rows in found.rows)
    assert found.nbytes >= 0


def test_sizes_are_known_before_anything_is_unpacked(tmp_path: Path) -> None:
    table = pa.table({"s": ["word" * 250_000] * 300, "n": range(300)})
    source = read_orc(write(tmp_path / "x.orc", table, "zstd"))
    assert (tmp_path / "x.orc").stat().st_size < 1 << 20
    assert sum(unit.nbytes for unit in units(source)) > 300_000_000
    assert source.working_bytes(source.unit(0), ("n",)) >= 3 * source.unit(0).nbytes


def test_names_do_not_depend_on_the_place(tmp_path: Path) -> None:
    here = several(tmp_path / "here")
    shutil.copytree(here, tmp_path / "else")
    source = read_orc(here)
    check_same_data(source, read_orc(tmp_path / "else"))
    check_same_data(source, pickle.loads(pickle.dumps(source)))
    code = f"from dml.io.orc.orc import read_orc\nsource = read_orc({str(here)!r})"
    check_other_process(source, code)
    assert source.likeness() == read_orc(tmp_path / "else").likeness()


def test_columns_are_selected_and_ordered(tmp_path: Path) -> None:
    path = write(tmp_path / "x.orc", TABLE.drop_columns(["a.b"]))
    for names in (["f", "x"], ["a"], ["m", "b"]):
        assert everything(read_orc(path, names)).to_arrow().schema.names == names
    with pytest.raises(SchemaError, match="needs column 'y2'"):
        read_orc(path, columns=["y2"])


def test_the_oracle_reads_the_same(tmp_path: Path) -> None:
    source = read_orc(several(tmp_path), columns=["f", "b"], atom_rows=300)
    ds = Dataset(source).shuffle(seed=3).batch(70)
    oracle = Oracle(ds._node).elements()
    assert stream_hash(iter(ds.with_options(telemetry_dir="off"))) == stream_hash(oracle)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    ds = dml.range(100).with_options(telemetry_dir="off")
    ds.write_orc(tmp_path / "out", rows_per_file=30)
    assert [row["id"] for row in dml.read_orc(tmp_path / "out").take_rows(100)] == [*range(100)]


# ------------------------------------------------------------------------------------------ damage


def test_what_is_no_orc_file(tmp_path: Path) -> None:
    path = tmp_path / "x.orc"
    whole = write(path, TABLE, "zstd").read_bytes()
    for size in (0, 2, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        error = refusal(lambda: read_orc(path))
        assert error.what in (f"{path} is not an ORC file", f"{path} is damaged")
    with pytest.raises(SourceError, match="does not exist"):
        read_orc(tmp_path / "y.orc")
    with pytest.raises(SourceError, match="cannot be read out of a store"):
        _in_memory(whole)


def _in_memory(data: bytes) -> None:
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    system.pipe_file("/orc-here/x.orc", data)
    try:
        read_orc("memory://orc-here/x.orc")
    finally:
        system.rm("/orc-here", recursive=True)


def test_files_of_other_columns(tmp_path: Path) -> None:
    write(tmp_path / "a.orc", TABLE)
    write(tmp_path / "b.orc", TABLE.drop_columns(["x"]))
    with pytest.raises(SourceError, match=r"b.orc has no column 'x'"):
        read_orc(tmp_path)


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    source = read_orc(write(tmp_path / "x.orc", TABLE))
    write(tmp_path / "x.orc", TABLE[:-1])
    assert "has changed" in refusal(lambda: source).what


def test_a_stripe_that_cannot_be_unpacked_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.orc", TABLE.select(["x"]), "zstd")
    whole = path.read_bytes()
    half = len(whole) // 2
    path.write_bytes(whole[:half] + bytes(200) + whole[half + 200 :])
    error = refusal(lambda: read_orc(path))
    assert error.what == "stripe 0 of x.orc is damaged"
    assert "rows 0 to" in error.at


# --------------------------------------------------------------------------------- other processes

# A process that decodes as the usual one, but is ended by the second stripe of a file "bad".
ENDS = """
import os, signal
from dml.io.orc import orc_worker

usual = orc_worker.done

def done(path, stripe=None, columns=None):
    if stripe == 1 and "bad" in path:
        {ends}
    return usual(path, stripe, columns)

orc_worker.done = done
orc_worker.main()
"""


@pytest.fixture
def no_children() -> Iterator[None]:
    """Before and after a test that starts processes of another kind."""
    CHILDREN.close()
    assert CHILDREN.all == []
    yield
    CHILDREN.close()
    assert CHILDREN.all == []


KILL = "os.kill(os.getpid(), {})"
# Its time is limited, and is let run out here.
SPIN = """
        assert signal.getitimer(signal.ITIMER_PROF)[0] > 300
        signal.setitimer(signal.ITIMER_PROF, 0.1)
        while True: pass
"""


def ending(folder: Path, by: str, monkeypatch: pytest.MonkeyPatch) -> tuple[OrcSource, OrcSource]:
    """A file that ends its process, and one that does not."""
    (folder / "ends_by_itself.py").write_text(ENDS.format(ends=by))
    monkeypatch.setattr(orc_source, "WORKER", "ends_by_itself")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return read_orc(write(folder / "bad.orc", TABLE)), read_orc(write(folder / "good.orc", TABLE))


@pytest.mark.parametrize(
    ("how", "name"),
    [(KILL.format(11), "SIGSEGV"), (KILL.format(6), "SIGABRT"), (SPIN, "SIGPROF")],
    ids=["crash", "abort", "spin"],
)
def test_a_stripe_that_ends_the_process_is_damaged_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_children: None, how: str, name: str
) -> None:
    bad, good = ending(tmp_path, how, monkeypatch)
    for _ in range(2):
        error = refusal(lambda: bad)
        assert error.what == "stripe 1 of bad.orc is damaged"
        assert f"ended by {name}" in error.why
        assert everything(good).n == N


def test_a_process_that_is_killed_says_nothing_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_children: None
) -> None:
    bad, good = ending(tmp_path, KILL.format(9), monkeypatch)
    error = refusal(lambda: bad)
    assert error.what == "stripe 1 of bad.orc could not be read"
    assert "SIGKILL" in error.why
    assert everything(good).n == N
    CHILDREN.idle[-1].process.kill()
    assert everything(good).n == N, "one that ended while nobody asked is replaced"


def test_where_no_process_can_be_started_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_children: None
) -> None:
    path = write(tmp_path / "x.orc", TABLE)
    for name, value in (("executable", "/no/python"), ("executable", shutil.which("false"))):
        with monkeypatch.context() as patched:
            patched.setattr(sys, name, value)
            assert "did not start" in refusal(lambda: read_orc(path)).what
    monkeypatch.setattr(orc_source, "WORKER", "dml.no_such_module")
    error = refusal(lambda: read_orc(path))
    assert "No module named" in error.why


def test_threads_share_a_few(tmp_path: Path, no_children: None) -> None:
    source = read_orc(several(tmp_path))
    with ThreadPoolExecutor(3 * MOST) as pool:
        found = list(pool.map(lambda _: everything(source, ("x", "f")).n, range(6 * MOST)))
    assert found == [5 * N] * 6 * MOST
    assert 1 <= len(CHILDREN.all) == len(CHILDREN.idle) <= MOST


OWNER = """
import os, sys
from dml.io.orc.orc import read_orc
from dml.io.orc.orc import CHILDREN
from dml.testing.oracle import Oracle
from dml.testing.source_laws import everything
source = read_orc(sys.argv[1])
rows = everything(source).n
if sys.argv[2] == "fork" and os.fork() == 0:
    assert not CHILDREN.all
    os._exit(int(everything(source).n != rows))
if sys.argv[2] == "fork":
    assert os.wait()[1] == 0
    assert everything(source).n == rows
print(CHILDREN.all[0].process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["kill", "fork", "end"])
def test_a_process_ends_with_its_owner(tmp_path: Path, how: str) -> None:
    path = write(tmp_path / "x.orc", TABLE)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(path), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    child = os.pidfd_open(int(owner.stdout.readline()))
    owner.kill() if how == "kill" else None
    owner.communicate()
    waiting = select.poll()
    waiting.register(child, select.POLLIN)
    assert waiting.poll(60_000), "it ended"
    os.close(child)
    assert owner.returncode == (-9 if how == "kill" else 0)
