"""This file holds sources in stores to what those on disk keep; then changes, faults, secrets."""

from __future__ import annotations

import errno
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

import dml
from dml.errors import DmlError, PlanError, SourceError
from dml.expr.sources import ranges, stores
from dml.expr.sources.arrow import read_arrow
from dml.expr.sources.binary import read_binary_files
from dml.expr.sources.csv import read_csv
from dml.expr.sources.files import FileSource
from dml.expr.sources.json import read_json
from dml.expr.sources.parquet import read_parquet
from dml.expr.sources.text import read_text
from dml.session import collector_of
from dml.testing.source_laws import check_same_data, check_source, everything
from tests.expr.sources.counted_store import CountedStore, counted, noted, pauses, uploaded
from tests.expr.sources.line_sets import PACK, written

__all__ = ["counted", "pauses"]

URL = "counted://bucket/data"
WORDS = [f"word {i}" for i in range(200)]
LINES = "".join(f"{word}\n" for word in WORDS).encode()
TABLE = pa.table({"n": range(200), "s": WORDS})
CSV = b"n,s\n" + b"".join(f"{i},{word}\n".encode() for i, word in enumerate(WORDS))
JSON = "".join(json.dumps({"n": i, "s": word}) + "\n" for i, word in enumerate(WORDS)).encode()

Made = tuple[Path, Callable[..., FileSource]]


def arrow_bytes() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=70)
    return bytes(sink.getvalue())


def parquet_bytes() -> bytes:
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(TABLE, sink, row_group_size=90)
    return bytes(sink.getvalue())


def packed(name: str, data: bytes) -> dict[str, bytes]:
    return {f"{i}{name}{ending}": data for i, ending in enumerate(PACK)}


FORMATS: dict[str, tuple[Callable[..., FileSource], dict[str, bytes]]] = {
    "parquet": (read_parquet, {"a.parquet": parquet_bytes(), "b/c.parquet": parquet_bytes()}),
    "arrow": (read_arrow, {"a.arrow": arrow_bytes(), "b/c.arrow": arrow_bytes()}),
    "csv": (read_csv, packed(".csv", CSV)),
    "json": (read_json, packed(".jsonl", JSON)),
    "text": (read_text, packed(".txt", LINES)),
    "bytes": (read_binary_files, {"a": LINES, "b/c": b"", "b/d.gz": CSV}),
}


@pytest.fixture(params=FORMATS)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    """A folder of files of one format, and what reads it."""
    read, files = FORMATS[request.param]
    return written(tmp_path / "data", files), read


def test_the_same_data_as_on_disk(made: Made, counted: type[CountedStore]) -> None:
    folder, read = made
    here = read(folder, atom_rows=30)
    there = read(uploaded(folder, URL), atom_rows=30)
    check_same_data(here, there)
    check_source(there, table_of(here))


def table_of(source: FileSource) -> pa.Table:
    return pa.Table.from_batches([everything(source).to_arrow()])


def test_plain_memory_is_a_store_too(made: Made) -> None:
    folder, read = made
    url = uploaded(folder, f"memory://{folder.name}-of-{read.__name__}")
    check_same_data(read(folder), read(url))
    fsspec.filesystem("memory").rm(f"/{folder.name}-of-{read.__name__}", recursive=True)


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


def test_small_blocks_change_nothing(
    made: Made, counted: type[CountedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in {"BLOCK": 700, "FIRST_BLOCKS": (7, 100), "WINDOW": 64}.items():
        monkeypatch.setattr(ranges, name, size)
    folder, read = made
    check_same_data(read(folder, atom_rows=30), read(uploaded(folder, URL), atom_rows=30))


def test_files_sent_to_workers_are_read_there(made: Made, counted: type[CountedStore]) -> None:
    source = made[1](uploaded(made[0], URL), storage_options={"secret": "sesame"})
    sent = pickle.dumps(source)
    check_same_data(source, pickle.loads(sent))
    assert b"sesame" in sent


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
    monkeypatch.setattr(ranges, "BLOCK", 4000)
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


def test_reading_begins_while_the_next_block_comes(
    tmp_path: Path, counted: type[CountedStore]
) -> None:
    url = uploaded(written(tmp_path / "data", {"a.txt": bytes(10_000)}), URL)
    there = read_text(url).files.files[0].remote
    assert there is not None
    blocks = ranges.Blocks(there, 0, 10_000)
    blocks._sizes = [1000] * 9
    assert blocks.read(10) == bytes(10)
    blocks._sizes = []
    assert blocks.read(1000) == bytes(1000)
    assert blocks._ahead is None
    blocks.close()


# ------------------------------------------------------------------------------------------ faults


class SlowDownError(Exception):
    """What libraries raise for an answer with a status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"answer {status}")
        self.status = status


PASSING = [
    *(ConnectionResetError("reset"), TimeoutError("late"), OSError(errno.EBUSY, "slow down")),
    *(SlowDownError(503), SlowDownError(429), type("IncompleteRead", (Exception,), {})("cut")),
]
LASTING = [
    (PermissionError("no key"), "may not be read"),
    (SlowDownError(403), "may not be read"),
    (FileNotFoundError("gone"), "does not exist"),
    (SlowDownError(404), "does not exist"),
    (OSError(errno.EINVAL, "odd"), "cannot be read"),
    (type("NoCredentialsError", (Exception,), {})("none found"), "may not be read"),
]


@pytest.mark.parametrize("fault", PASSING, ids=repr)
def test_what_passes_is_asked_again(
    made: Made, counted: type[CountedStore], pauses: list[float], fault: Exception
) -> None:
    folder, read = made
    source = read(uploaded(folder, URL))
    want = everything(source)
    again = read(URL)
    counted.faults += [fault] * len(stores.WAITS_S)
    assert everything(again).to_arrow().equals(want.to_arrow())
    assert sorted(pauses) == sorted(stores.WAITS_S)[: len(pauses)] or len(pauses) == 4


def test_what_does_not_pass_for_long_is_an_error(
    tmp_path: Path, counted: type[CountedStore], pauses: list[float]
) -> None:
    url = uploaded(written(tmp_path / "data", {"a.txt": LINES}), URL)
    source = read_text(url)
    counted.faults += [ConnectionResetError("reset by the store")] * 99
    with pytest.raises(SourceError) as caught:
        everything(source)
    assert "cannot be read now" in caught.value.what
    assert "reset by the store" in caught.value.why
    assert pauses == list(stores.WAITS_S)


@pytest.mark.parametrize(("fault", "what"), LASTING, ids=repr)
def test_what_lasts_is_said_at_once(
    made: Made,
    counted: type[CountedStore],
    pauses: list[float],
    fault: Exception,
    what: str,
) -> None:
    source = made[1](uploaded(made[0], URL))
    counted.faults += [fault] * 20
    with pytest.raises(SourceError, match=what) as caught:
        everything(source)
    assert "counted:///bucket/data" in caught.value.what
    assert pauses == []


def test_answers_cut_short_are_asked_for_again(
    tmp_path: Path,
    counted: type[CountedStore],
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = uploaded(written(tmp_path / "data", {"a.txt": LINES}), URL)
    source = read_text(url)
    whole, cut = CountedStore.cat_file, [1, 0]
    monkeypatch.setattr(
        CountedStore, "cat_file",
        lambda *a, **k: whole(*a, **k)[: cut.pop() if cut else None],
    )  # fmt: skip
    assert everything(source).n == len(WORDS)
    assert len(pauses) == 2


def test_a_server_without_ranges_is_refused(
    tmp_path: Path, counted: type[CountedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = uploaded(written(tmp_path / "data", {"a.txt": LINES}), URL)
    monkeypatch.setattr(CountedStore, "cat_file", lambda *_, **__: LINES)
    with pytest.raises(SourceError, match="cannot be read in parts"):
        everything(read_text(url))


def test_another_version_is_noticed(made: Made, counted: type[CountedStore]) -> None:
    folder, read = made
    source = read(uploaded(folder, URL))
    assert everything(source).n
    uploaded(folder, URL)
    with pytest.raises(SourceError, match="has changed since it was opened"):
        everything(source)
    with pytest.raises(SourceError, match="has changed since it was opened"):
        source.identity()


def test_what_is_gone_is_noticed(made: Made, counted: type[CountedStore]) -> None:
    source = made[1](uploaded(made[0], URL))
    assert everything(source).n
    counted.store.clear()
    with pytest.raises(SourceError, match="does not exist"):
        everything(source)


def test_equal_versions_remember_digests_moments_do_not(
    tmp_path: Path, counted: type[CountedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = uploaded(written(tmp_path / "data", {"a.bin": LINES}), URL)
    source = read_binary_files(url)
    name = source.identity()
    with noted(counted) as requests:
        assert source.identity() == name
    assert len(requests) == 1, "a moment proves nothing"
    plain = CountedStore.info
    monkeypatch.setattr(CountedStore, "info", lambda *a, **k: {**plain(*a, **k), "ETag": '"1"'})
    tagged = read_binary_files(url)
    assert tagged.identity() == name
    with noted(counted) as requests:
        assert tagged.identity() == name
    assert requests == []


# ----------------------------------------------------------------------------------------- secrets

SECRET = "open-sesame-4711"
OPTIONS: dict[str, Any] = {"secret": SECRET, "nested": {"token": [f"{SECRET}-too"]}}


def test_secrets_are_in_no_text_and_no_name(made: Made, counted: type[CountedStore]) -> None:
    folder, read = made
    url = uploaded(folder, URL)
    plain, source = read(url), read(url, storage_options=OPTIONS)
    check_same_data(plain, source)
    file = source.files.files[0]
    there = file.remote
    assert there is not None
    said = [repr(source), source.title(), repr(file), repr(there), repr(there.store)]
    assert SECRET not in "".join([*said, repr(source.files), str(vars(file))])


def test_secrets_are_in_no_plan_and_no_state(tmp_path: Path, counted: type[CountedStore]) -> None:
    url = uploaded(written(tmp_path / "data", {"a.txt": LINES}), URL)
    events = tmp_path / "events"
    ds = dml.read_text(url, atom_rows=9, storage_options=OPTIONS).batch(4)
    ds = ds.with_options(telemetry_dir=str(events), executor="sync")
    it = iter(ds)
    next(it)
    said = [repr(ds), ds.explain(), ds.explain("physical"), ds.explain("rules"), str(ds.stats())]
    said += [str(ds.fingerprint(explain=True)), json.dumps(it.state_dict())]
    list(it)
    collector = collector_of(ds._settings)
    assert collector is not None
    assert collector.flush(10)
    told = [path.read_text() for path in events.rglob("*") if path.is_file()]
    assert told
    assert SECRET not in "".join(said + told)
    assert ds.fingerprint() == dml.read_text(url, atom_rows=9).batch(4).fingerprint()


@pytest.mark.parametrize("fault", [*(f for f, _ in LASTING), *PASSING], ids=repr)
def test_secrets_are_in_no_error(
    tmp_path: Path, counted: type[CountedStore], pauses: list[float], fault: Exception
) -> None:
    url = uploaded(written(tmp_path / "data", {"a.txt": LINES}), URL)
    fault.args = (*fault.args[:-1], f"key {SECRET} at https://host/a?sig={SECRET}-too&x=1")
    source = read_text(url, storage_options=OPTIONS)
    counted.faults += [fault] * 20
    with pytest.raises(DmlError) as caught:
        everything(source)
    assert SECRET not in str(caught.value) + repr(caught.value) + str(pickle.dumps(caught.value))
    assert caught.value.__suppress_context__


def test_signed_urls_lose_their_signature(pauses: list[float]) -> None:
    with pytest.raises(DmlError) as caught:
        read_text(f"http://user:{SECRET}@127.0.0.1:9/a.txt?sig={SECRET}")
    assert SECRET not in str(caught.value)
    assert "http://127.0.0.1:9/a.txt" in str(caught.value)


@pytest.mark.parametrize("options", ["key", ["key"], {1: "x"}])
def test_options_are_a_dict(options: object) -> None:
    with pytest.raises(PlanError, match="storage_options must be a dict"):
        read_text("memory://a.txt", storage_options=options)  # type: ignore[arg-type]
