"""Test ``dml run``: its output, where it stops, and that no batch is lost."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml.cli.run import load_state, measured, save_state
from dml.errors import DmlError


def test_a_run_is_summed_up_on_standard_output(
    dml: Callable[..., Any], written: Callable[..., Any]
) -> None:
    told = dml("run", written("ds = FakeDataset()"))
    assert told.code == 0
    first, header, row = told.out.splitlines()
    assert first.startswith("finished  5 batches  20 rows  320 B  ")
    assert "operator" in header
    assert "Map" in row


def test_json_is_one_value_and_nothing_else(
    dml: Callable[..., Any], written: Callable[..., Any]
) -> None:
    told = dml("run", written("print('hello')\nds = FakeDataset()"), "--json", "--quiet")
    value = told.json
    assert (value["status"], value["batches"], value["rows"], value["bytes"]) == (
        "finished",
        5,
        20,
        320,
    )
    assert value["operators"][0]["operator"] == "Map"
    assert "hello" in told.err
    assert 0 <= value["first_batch_s"] <= value["seconds"]


def test_stop_and_resume_deliver_each_batch_once(
    dml: Callable[..., Any], written: Callable[..., Any], tmp_path: Path
) -> None:
    target, state = written("ds = FakeDataset()"), tmp_path / "state.json"
    first = dml("run", target, "--take", 2, "--checkpoint", state, "--json").json
    assert (first["status"], first["batches"]) == ("stopped", 2)
    assert json.loads(state.read_text()) == {"at": 2}
    rest = dml("run", target, "--resume", state, "--checkpoint", state, "--json").json
    assert (rest["status"], rest["batches"]) == ("finished", 3)
    assert json.loads(state.read_text()) == {"at": 5}
    assert [each.name for each in tmp_path.glob("*state*")] == ["state.json"]


@pytest.mark.parametrize("take", [0, 5, 99])
def test_take_beyond_the_end_is_the_end(
    dml: Callable[..., Any], written: Callable[..., Any], take: int
) -> None:
    value = dml("run", written("ds = FakeDataset()"), "--take", take, "--json").json
    assert value["batches"] == min(take, 5)
    assert dml("run", written("ds = FakeDataset()"), "--take", take).code == 0


def test_the_epoch_reaches_the_pipeline(
    dml: Callable[..., Any], written: Callable[..., Any]
) -> None:
    text = "seen = []\nds = FakeDataset()\nds.epoch = lambda k: seen.append(k) or ds"
    dml("run", written(text), "--epoch", 3)
    import sys

    assert sys.modules["dml_target"].seen == [3]


@pytest.mark.parametrize(
    ("text", "why"),
    [("not json", "not JSON"), ("[1]", "not a JSON object"), ("[" * 100_000, "not JSON")],
)
def test_a_file_that_is_no_state(
    dml: Callable[..., Any], written: Callable[..., Any], tmp_path: Path, text: str, why: str
) -> None:
    state = tmp_path / "state.json"
    state.write_text(text)
    told = dml("run", written("ds = FakeDataset()"), "--resume", state)
    assert told.code == 1
    assert told.err.startswith("ResumeMismatchError: state.json is not a saved position")
    assert why in told.err
    assert told.out == ""


def test_a_state_of_another_pipeline(
    dml: Callable[..., Any], written: Callable[..., Any], tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    state.write_text("{}")
    told = dml("run", written("ds = FakeDataset()"), "--resume", state, "--json")
    assert told.code == 1
    assert told.json["error"]["kind"] == "ResumeMismatchError"
    assert told.json["error"]["try"] == "another file"


def test_an_error_of_the_pipeline_has_four_lines_and_code_1(
    dml: Callable[..., Any], written: Callable[..., Any], tmp_path: Path
) -> None:
    text = """
from dml.errors import UDFError
def fail(n):
    if n == 3:
        raise UDFError("map raised ValueError", at="Map, train.py:3", why="row 12", try_="look")
ds = FakeDataset(at_batch=fail)
"""
    told = dml("run", written(text))
    assert told.code == 1
    assert told.err.splitlines()[-4:] == [
        "UDFError: map raised ValueError",
        "  at    Map, train.py:3",
        "  why   row 12",
        "  try   look",
    ]


def test_an_interrupt_finishes_the_batch_and_keeps_the_position(
    dml: Callable[..., Any], written: Callable[..., Any], tmp_path: Path
) -> None:
    text = """
import os, signal
def stop(n):
    if n == 2:
        os.kill(os.getpid(), signal.SIGINT)
ds = FakeDataset(at_batch=stop)
"""
    state = tmp_path / "state.json"
    told = dml("run", written(text), "--checkpoint", state, "--json")
    assert told.code == 130
    assert (told.json["status"], told.json["batches"]) == ("interrupted", 3)
    assert json.loads(state.read_text()) == {"at": 3}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_stops_at_once(
    dml: Callable[..., Any], written: Callable[..., Any], tmp_path: Path
) -> None:
    text = """
import os, signal
def stop(n):
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
ds = FakeDataset(at_batch=stop)
"""
    state = tmp_path / "state.json"
    told = dml("run", written(text), "--checkpoint", state)
    assert told.code == 130
    assert told.err.splitlines()[-1] == "interrupted"
    assert not state.exists()


def test_a_checkpoint_that_cannot_be_written_is_usage(
    dml: Callable[..., Any], written: Callable[..., Any]
) -> None:
    for path in (os.sep, "no/such/folder/state.json"):
        told = dml("run", written("ds = FakeDataset()"), "--checkpoint", path)
        assert told.code == 2
        assert told.out == ""


def test_a_disk_that_fills_up_leaves_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    save_state(tmp_path / "state.json", {"at": 1})
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DmlError, match="could not be kept") as caught:
        save_state(tmp_path / "state.json", {"at": 2})
    assert "No space" in caught.value.why
    assert load_state(tmp_path / "state.json") == {"at": 1}
    assert len(list(tmp_path.iterdir())) == 1


def test_rows_and_bytes_of_what_is_delivered() -> None:
    assert measured({"x": np.zeros((3, 2)), "y": np.zeros(3, "u1")}) == (3, 51)
    assert measured({"x": np.zeros(3), "y": 1}) == (1, 32)
    assert measured({"x": np.array(["ab", None], dtype=object)}) == (2, 10)
    assert measured({"x": "text", "y": b"12"}) == (1, 6)
    assert measured({}) == (1, 0)
    assert measured(7) == (1, 8)


def test_a_run_can_be_hashed(dml: Callable[..., Any], written: Callable[..., Any]) -> None:
    target = written("ds = FakeDataset()")
    one, two = (dml("run", target, "--hash", "--json").json["stream_hash"] for _ in range(2))
    assert one == two
    assert len(one) == 64
    assert dml("run", target, "--hash", "--epoch", 1, "--json").json["stream_hash"] != one
    assert one in dml("run", target, "--hash").out
