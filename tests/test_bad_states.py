"""Test that a saved state is resumed only by the pipeline and data to which it belongs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.data.stream_hash import stream_hash
from dml.errors import FingerprintError, MemoryContractError, PlanError, ResumeMismatchError
from tests.refusals import nothing_left, opened, refused

LOCK: Any = threading.Lock()


def batches(folder: Path, seed: int = 3) -> dml.Dataset:
    return opened(folder).shuffle(40, seed=seed).batch(64)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    with nothing_left(tmp_path / "scratch"):
        yield tmp_path / "data"


def saved(ds: dml.Dataset, after: int = 3) -> dict[str, Any]:
    """The state after some batches, as it comes back from a file."""
    with iter(ds) as it:
        for _ in range(after):
            next(it)
        state: dict[str, Any] = json.loads(json.dumps(it.state_dict()))
    return state


def restored(ds: dml.Dataset, state: Any) -> Iterator[Any]:
    it = iter(ds)
    it.load_state_dict(state)
    return it


def test_a_state_gives_the_rest(data: Path) -> None:
    ds = batches(data)
    assert stream_hash(restored(ds, saved(ds))) == stream_hash(list(ds.epoch(0))[3:])


@pytest.mark.parametrize("stop", ["close", "error", "interrupt", "end"])
def test_a_state_taken_after_the_run_stopped(data: Path, stop: str) -> None:
    def stopping(row: dict[str, Any]) -> dict[str, Any]:
        if armed and row["x"] == 437:
            raise armed[0]
        return row

    armed: list[BaseException] = []
    kinds: dict[str, BaseException] = {"error": ValueError(), "interrupt": KeyboardInterrupt()}
    armed += [kinds[stop]] if stop in kinds else []
    ds = opened(data, "sync").map(stopping, fingerprint="stopping").batch(64)
    it, got = iter(ds), []
    with contextlib.suppress(BaseException):  # whatever stopped it, the state must hold
        got += list(it) if stop != "close" else [next(it), next(it)]
    it.close()
    state = it.state_dict()
    armed.clear()
    rest = list(restored(ds, state))
    whole = np.concatenate([batch["x"] for batch in list(ds.epoch(0))])
    have = len(whole) - sum(len(batch["x"]) for batch in rest)
    assert (have == len(whole)) == (stop == "end")
    assert [row for batch in rest for row in batch["x"]] == whole[have:].tolist()


OTHERS: list[tuple[Callable[[dml.Dataset], dml.Dataset], str]] = [
    (lambda ds: ds.shuffle(40, seed=4).batch(64), "another pipeline"),
    (lambda ds: ds.shuffle(41, seed=3).batch(64), "another pipeline"),
    (lambda ds: ds.shuffle(40, seed=3).batch(65), "another pipeline"),
    (lambda ds: ds.shuffle(40, seed=3).batch(64, drop_last=True), "another pipeline"),
    (lambda ds: ds.fill_null({"k": 1}).shuffle(40, seed=3).batch(64), "another pipeline"),
    (lambda ds: ds.with_options(seed=9).shuffle(40, seed=3).batch(64), "another seed"),
]


@pytest.mark.parametrize(("other", "words"), OTHERS)
def test_another_pipeline(
    data: Path, other: Callable[[dml.Dataset], dml.Dataset], words: str
) -> None:
    state = saved(batches(data))
    error = refused(ResumeMismatchError, lambda: restored(other(opened(data)), state), words)
    assert "Batch(" in error.at


@pytest.mark.law
@pytest.mark.parametrize("verb", ["random_map", "shuffle", "atoms"])
def test_another_seed_of_an_operator(data: Path, verb: str) -> None:
    def seeded(seed: int) -> dml.Dataset:
        ds = opened(data)
        if verb == "random_map":
            return ds.random_map(lambda _, rng: {"a": rng.random()}, seed=seed).batch(64)
        if verb == "shuffle":
            return ds.shuffle(seed=seed).batch(64)
        return ds.shuffle(window="atoms", seed=seed).batch(64)

    list(restored(seeded(1), saved(seeded(1))))
    refused(ResumeMismatchError, lambda: restored(seeded(2), saved(seeded(1))), "another pipeline")


@pytest.mark.law
def test_other_data_of_the_same_shape(data: Path, tmp_path: Path) -> None:
    state = saved(batches(data))
    table = dml.read_parquet(data).with_columns(x=col("x") + 1).to_arrow()
    memory = dml.from_arrow(table).shuffle(40, seed=3).batch(64)
    refused(ResumeMismatchError, lambda: restored(memory, state), "another pipeline")
    (data / "a.parquet").unlink()
    _write_like(table, data / "a.parquet")
    changed = dml.read_parquet(data).shuffle(40, seed=3).batch(64)
    refused(ResumeMismatchError, lambda: restored(changed, state), "another data")


def _write_like(table: Any, path: Path) -> None:
    pq.write_table(table, path, row_group_size=300, write_page_checksum=True)


def test_another_version(data: Path) -> None:
    state = {**saved(batches(data)), "version": 0}
    refused(ResumeMismatchError, lambda: restored(batches(data), state), "another version")


@pytest.mark.parametrize("garbage", [{}, None, 3, [], "x", {"version": 1}, {1: 2}], ids=repr)
def test_what_is_no_state(data: Path, garbage: object) -> None:
    refused(ResumeMismatchError, lambda: restored(batches(data), garbage), "not a saved state")


def _places(value: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if at:
        yield at
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from _places(inner, (*at, key))


@pytest.mark.law
def test_no_edited_state_is_taken(data: Path) -> None:
    ds = batches(data).map(lambda batch: {"x": batch["x"]})
    state = saved(ds)
    assert state["schemas"]
    values: list[Any] = [None, -1, "x", 10**9, 2.5, {}, []]
    for place in _places(state):
        for value in values:
            bad = json.loads(json.dumps(state))
            inner = bad
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = value
            refused(ResumeMismatchError, lambda: restored(ds, bad))  # noqa: B023


def test_only_before_the_first_element(data: Path) -> None:
    ds = batches(data)
    state = saved(ds)
    with iter(ds) as it:
        next(it)
        refused(PlanError, lambda: it.load_state_dict(state), "has started")


def test_a_function_without_a_name_resumes_in_its_own_process_only(data: Path) -> None:
    ds = opened(data).map(lambda row: {"x": row["x"] if LOCK else 0}).batch(64)
    state = saved(ds)
    assert len(list(restored(ds, state))) == 16 - 3
    elsewhere = {**state, "process": "another"}
    refused(FingerprintError, lambda: restored(ds, elsewhere), "another process", 'fingerprint="')
    named = opened(data).map(lambda _: {"x": 1 if LOCK else 0}, fingerprint="mine").batch(64)
    assert saved(named)["process"] == ""


@pytest.mark.law
def test_the_rest_is_the_same_in_another_process(data: Path) -> None:
    ds = batches(data)
    program = (
        "import json, sys, dml; from dml.data.stream_hash import stream_hash\n"
        f"it = iter(dml.read_parquet({str(data)!r}).shuffle(40, seed=3).batch(64))\n"
        "it.load_state_dict(json.load(sys.stdin)); print(stream_hash(it))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(saved(ds)), capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == stream_hash(list(ds.epoch(0))[3:])


@pytest.mark.law
def test_a_state_of_the_rewritten_run_is_not_one_of_the_written_run() -> None:
    """A filter that goes below a join changes what a place counts."""
    left = dml.from_dict({"k": list(range(60)), "x": list(range(60))}, atom_rows=4)
    ds = left.join(dml.from_dict({"k": list(range(0, 60, 2))}), on="k").filter(col("x") > 9)
    ds = ds.with_options(telemetry_dir="off")
    state, written = saved(ds), ds.with_options(optimize=False)
    refused(ResumeMismatchError, lambda: restored(written, state), "another pipeline")
    assert list(restored(ds, state)) == list(ds)[3:] == list(restored(written, saved(written)))


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(MemoryError(), MemoryContractError), (OSError(28, "No space left"), OSError)],
)
def test_what_the_system_says_is_no_fault_of_a_state(
    raised: Exception, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: object) -> list[Any]:
        raise raised

    ds = dml.range(100)
    again = restored(ds, saved(ds))
    monkeypatch.setattr("dml.exec.delivery.prefetch.own_rows", failing)
    with pytest.raises(kind):
        next(again)
