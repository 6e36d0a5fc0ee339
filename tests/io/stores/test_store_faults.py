"""Test object stores that change or fail, and that texts and errors contain no secrets."""

from __future__ import annotations

import errno
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import dml
from dml.api.run_telemetry import collector_of
from dml.errors import DmlError, PlanError, SourceError
from dml.io.binary.binary import read_binary_files
from dml.io.stores import stores
from dml.io.text.text import read_text
from dml.testing.source_laws import check_same_data, everything
from tests.io.counted_store import CountedStore, counted, noted, pauses, uploaded
from tests.io.line_sets import written
from tests.io.store_formats import LINES, URL, WORDS, Made, made

__all__ = ["counted", "made", "pauses"]


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
NOBODY = FileNotFoundError("https://host/a.txt")
NOBODY.__cause__ = ConnectionRefusedError("nobody answers")
PASSING.append(NOBODY)
LASTING = [
    (PermissionError("no key"), "may not be read"),
    (SlowDownError(403), "may not be read"),
    (FileNotFoundError("gone"), "does not exist"),
    (SlowDownError(404), "does not exist"),
    (OSError(errno.EINVAL, "odd"), "cannot be read"),
    (type("NoCredentialsError", (Exception,), {})("none found"), "may not be read"),
]


@pytest.mark.law
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


@pytest.mark.law
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


@pytest.mark.law
def test_of_a_server_without_ranges_only_small_files_are_read(
    made: Made, counted: type[CountedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, read = made
    url, plain = uploaded(folder, URL), CountedStore.cat_file
    monkeypatch.setattr(CountedStore, "cat_file", lambda self, path, *_, **__: plain(self, path))
    check_same_data(read(folder), read(url))
    monkeypatch.setattr(stores, "MOST_WHOLE", 10)
    if read is not read_binary_files:  # it asks for no parts
        with pytest.raises(SourceError, match="cannot be read in parts"):
            everything(read(url))


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


@pytest.mark.law
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
    chain: list[BaseException | None] = [caught.value]
    while chain[-1] is not None:
        assert SECRET not in str(chain[-1]), "some libraries pickle errors with what came before"
        chain.append(chain[-1].__cause__ or chain[-1].__context__)


def test_signed_urls_lose_their_signature(pauses: list[float]) -> None:
    with pytest.raises(DmlError) as caught:
        read_text(f"http://user:{SECRET}@127.0.0.1:9/a.txt?sig={SECRET}")
    assert SECRET not in str(caught.value)
    assert "http://127.0.0.1:9/a.txt" in str(caught.value)


@pytest.mark.parametrize("options", ["key", ["key"], {1: "x"}])
def test_options_are_a_dict(options: object) -> None:
    with pytest.raises(PlanError, match="storage_options must be a dict"):
        read_text("memory://a.txt", storage_options=options)  # type: ignore[arg-type]
