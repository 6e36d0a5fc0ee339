"""Test that sources in object stores behave as on disk: source laws, fingerprints, requests."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import fsspec
import numpy as np
import pyarrow as pa
import pytest

from dml.api.dataset import Dataset
from dml.data.stream_hash import stream_hash
from dml.errors import SourceError
from dml.events import OperatorTotals
from dml.io.binary.binary import read_binary_files
from dml.io.csv.csv import read_csv
from dml.io.files.files import FileSource
from dml.io.numpy import array_files
from dml.io.numpy.npy import read_numpy
from dml.io.stores import byte_ranges
from dml.io.text.text import read_text
from dml.io.unit_shard import UnitShard
from dml.testing.oracle import Oracle
from dml.testing.source_laws import check_same_data, check_source, everything
from tests.io.counted_store import CountedStore, counted, noted, pauses, uploaded
from tests.io.line_sets import written
from tests.io.store_formats import LINES, URL, Made, made

__all__ = ["counted", "made", "pauses"]


@pytest.mark.sample(4)
@pytest.mark.law
def test_the_same_data_as_on_disk(made: Made, counted: type[CountedStore]) -> None:
    folder, read = made
    here = read(folder, atom_rows=30)
    there = read(uploaded(folder, URL), atom_rows=30)
    check_same_data(here, there)
    check_source(there, table_of(here))


def table_of(source: FileSource) -> pa.Table:
    return pa.Table.from_batches([everything(source).to_arrow()])


@pytest.mark.law
def test_plain_memory_is_a_store_too(made: Made) -> None:
    folder, read = made
    url = uploaded(folder, f"memory://{folder.name}-of-{read.__name__}")
    check_same_data(read(folder), read(url))
    fsspec.filesystem("memory").rm(f"/{folder.name}-of-{read.__name__}", recursive=True)


@pytest.mark.law
def test_the_oracle_reads_stores_too(made: Made, counted: type[CountedStore]) -> None:
    folder, read = made
    source = read(uploaded(folder, URL), atom_rows=30)
    engine = Dataset(source).shuffle(seed=3).batch(7)
    oracle = Oracle(engine._node).elements()
    if read is read_numpy:  # which the oracle does not read
        oracle = iter(Dataset(read(folder, atom_rows=30)).shuffle(seed=3).batch(7))
    assert stream_hash(iter(engine.with_options(telemetry_dir="off"))) == stream_hash(oracle)


@pytest.mark.law
def test_the_account_of_a_run_tells_stores_from_disks(
    made: Made, counted: type[CountedStore]
) -> None:
    folder, read = made
    for place, medium in ((folder, "local"), (uploaded(folder, URL), "remote")):
        source = read(place)
        for each in (source, UnitShard(source, 2, 0)):
            with iter(Dataset(each).with_options(telemetry_dir="off")) as elements:
                next(elements)
                events = elements.events()
            (found,) = (each for each in events if isinstance(each, OperatorTotals))
            assert found.medium == medium


@pytest.mark.law
def test_rows_in_a_store_are_mixed_as_on_disk(made: Made, counted: type[CountedStore]) -> None:
    folder, read = made
    pairs = [Dataset(read(place, atom_rows=9)) for place in (folder, uploaded(folder, URL))]
    here, there = (
        stream_hash(iter(ds.shuffle(window="atoms", size=3, seed=5).batch(7))) for ds in pairs
    )
    assert here == there


@pytest.mark.law
def test_file_urls_are_paths(made: Made) -> None:
    folder, read = made
    check_same_data(read(folder), read(folder.as_uri()))
    check_same_data(read(folder), read(f"file://localhost{folder}"))
    assert read(folder.as_uri()).files.files[0].remote is None
    with pytest.raises(SourceError, match="is on another machine"):
        read(f"file://data{folder}")


def test_file_urls_write_blanks_as_urls_do(tmp_path: Path) -> None:
    folder = written(tmp_path / "a b", {"x.txt": LINES})
    assert folder.as_uri().endswith("a%20b")
    check_same_data(read_text(folder), read_text(folder.as_uri()))


@pytest.mark.law
def test_small_blocks_change_nothing(
    made: Made, counted: type[CountedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in {"BLOCK": 700, "FIRST_BLOCKS": (7, 100), "WINDOW": 64}.items():
        monkeypatch.setattr(byte_ranges, name, size)
    folder, read = made
    check_same_data(read(folder, atom_rows=30), read(uploaded(folder, URL), atom_rows=30))


@pytest.mark.law
def test_files_sent_to_workers_are_read_there(made: Made, counted: type[CountedStore]) -> None:
    source = made[1](uploaded(made[0], URL), storage_options={"secret": "sesame"})
    sent = pickle.dumps(source)
    check_same_data(source, pickle.loads(sent))
    assert b"sesame" in sent


@pytest.mark.parametrize("cut", [-1, -20, 40, 1])
def test_what_was_cut_off_is_said_as_on_disk(
    made: Made, counted: type[CountedStore], cut: int
) -> None:
    folder, read = made
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".xz":
            path.write_bytes(path.read_bytes()[:cut])
    url = uploaded(folder, URL)
    here, there = (_outcome(read, place) for place in (folder, url))
    assert there.replace("counted:///bucket/data", str(folder)) == here


def _outcome(read: Callable[..., FileSource], place: object) -> str:
    """What reading gives: an error, or rows."""
    try:
        source = read(place, atom_rows=30)
        return source.likeness().hex() + repr(everything(source).to_arrow().to_pylist())
    except SourceError as error:
        return str(error)


# ------------------------------------------------------------------------------------ which files


def test_what_a_pattern_means(tmp_path: Path, counted: type[CountedStore]) -> None:
    names = ("a.txt", "b.txt", ".c.txt", "d/e.txt", "d/_f.txt", "_g/h.txt", "[i].txt", "j.csv")
    folder = written(tmp_path / "data", dict.fromkeys(names, LINES))
    url = uploaded(folder, URL)
    for pattern in ("", "*.txt", "?.txt", "**/*.txt", "[ab].txt", "[i].txt", "d", ".c*", "*/*.txt"):
        here = read_text(folder / pattern if pattern else folder)
        there = read_text(f"{url}/{pattern}" if pattern else f"{url}/")
        assert [f.name for f in there.files.files] == [f.name for f in here.files.files], pattern
        assert there.digest == here.digest


def test_empty_files_that_stand_for_folders_are_none(
    tmp_path: Path, counted: type[CountedStore]
) -> None:
    folder = written(tmp_path / "data", {"a.txt": LINES, "b/c.txt": LINES})
    here, system = read_binary_files(folder), fsspec.filesystem("counted")
    url = uploaded(folder, URL)
    plain = system.find("/bucket/data", detail=True)
    marker = {"/bucket/data/b/": {"name": "/bucket/data/b/", "size": 0, "type": "file"}}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CountedStore, "find", lambda *_, **__: {**plain, **marker})
        check_same_data(here, read_binary_files(url))


def test_what_is_not_there_is_said(tmp_path: Path, counted: type[CountedStore]) -> None:
    url = uploaded(written(tmp_path / "data", {"part-0.txt": LINES}), URL)
    with pytest.raises(SourceError) as caught:
        read_text(f"{url}/part-O.txt")
    assert caught.value.what == f"{url}/part-O.txt does not exist"
    assert caught.value.try_ == f"did you mean {url}/part-0.txt?"
    with pytest.raises(SourceError, match="no file matches"):
        read_text(f"{url}/*.csv")
    with pytest.raises(SourceError, match="has no CSV files"):
        read_csv(url)
    with pytest.raises(SourceError, match="is listed twice"):
        read_text([f"{url}/part-0.txt", url])
    with pytest.raises(SourceError, match="lie in several places"):
        read_text([f"{url}/part-0.txt", str(tmp_path / "data")])


def test_a_store_that_nobody_knows_or_has_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match="nosuch:// leads to no store"):
        read_text("nosuch://x/y")

    def missing(name: str) -> None:
        raise ImportError(f"Install {name}fs")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(SourceError) as caught:
        read_text("s3://bucket/a.txt")
    assert caught.value.try_ == "pip install 'dml[s3]'"


# ---------------------------------------------------------------------------------------- requests


def test_lines_are_fetched_in_blocks_of_their_own(
    tmp_path: Path, counted: type[CountedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_ranges, "BLOCK", 4000)
    line = b"x" * 99 + b"\n"
    url = uploaded(written(tmp_path / "data", {"a.txt": line * 300}), URL)
    source = read_text(url, atom_rows=100)
    assert source.row_count == 300
    with noted(counted) as requests:
        everything(source)
    assert sum(stop - start for _, start, stop in requests) == 30_000, "no byte comes twice"
    assert max(stop - start for _, start, stop in requests) == 4000
    with noted(counted) as requests:
        everything(source, ())
    assert requests == []


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("most", [0, 1 << 20])
def test_of_arrays_rows_are_fetched_and_little_else(
    tmp_path: Path,
    counted: type[CountedStore],
    monkeypatch: pytest.MonkeyPatch,
    order: Literal["C", "F"],
    most: int,
) -> None:
    monkeypatch.setattr(array_files, "LONGEST", most)
    (tmp_path / "data").mkdir()
    values = np.arange(30_000, dtype=np.int32).reshape(10_000, 3)
    np.save(tmp_path / "data/a.npy", np.asarray(values, order=order))
    source = read_numpy(uploaded(tmp_path / "data", URL), atom_rows=1000)
    with noted(counted) as requests:
        found = list(source.read(source.unit(3), ("item",)))
    assert [block.n for block in found] == [1000]
    joined = order == "F" and most > 0
    assert sum(b - a for _, a, b in requests) == (84_000 if joined else 12_000)
    assert len(requests) == (1 if joined or order == "C" else 3)
    with noted(counted) as requests:
        assert everything(source, ()).n == 10_000
    assert requests == []


def test_single_rows_of_arrays_are_asked_for_together(
    tmp_path: Path, counted: type[CountedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data/a.npy", np.arange(3000).reshape(1000, 3))
    source = read_numpy(uploaded(tmp_path / "data", URL))
    index = np.array([700, 3, 4, 700, 999])
    for most, sizes in ((1 << 20, [23_928]), (0, [48, 24, 24])):
        monkeypatch.setattr(array_files, "LONGEST", most)
        with noted(counted) as requests:
            found = source.rows_at(index, ("item",))
        assert np.array_equal(np.asarray(found.columns[0].values)[:, 0], 3 * index)
        assert sorted(b - a for _, a, b in requests) == sorted(sizes)


def test_one_block_is_fetched_ahead_and_none_of_a_look(
    tmp_path: Path, counted: type[CountedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_ranges, "BLOCK", 1000)
    monkeypatch.setattr(byte_ranges, "FIRST_BLOCKS", (10, 100))
    url = uploaded(written(tmp_path / "data", {"a.bin": bytes(5000)}), URL)
    there = read_binary_files(url).files.files[0].remote
    assert there is not None

    def asked(blocks: byte_ranges.Blocks, size: int) -> list[tuple[int, int]]:
        with noted(counted) as requests:
            assert blocks.read(size) == bytes(size)
            if blocks._ahead is not None:
                blocks._ahead.result()
        return [(start, stop) for _, start, stop in requests]

    known = byte_ranges.Blocks(there, 500, 4000)
    assert asked(known, 10) == [(500, 1500), (1500, 2500)]
    assert asked(known, 990) == []
    assert asked(known, 1) == [(2500, 3500)]
    known.close()
    look = byte_ranges.Blocks(there)
    assert asked(look, 10) == [(0, 10)]
    assert asked(look, 10) == [(10, 110)]
    assert asked(look, 100) == [(110, 1110), (1110, 2110)]
    look.close()
