"""This file checks `dml profile`: the loop that it runs, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LOOP = """
ds, seen = FakeDataset(), []
def loop(batches):
    seen.extend(batches)
    print(len(seen), "steps")
word = "no function"
"""


def test_a_pipeline_alone(dml: Callable[..., Any], written: Callable[..., Any]) -> None:
    told = dml("profile", written("ds = FakeDataset()"))
    assert told.code == 0
    assert "without a training loop\nlimit     Map (90% of 2 cores)" in told.out


def test_a_training_loop_of_the_file(dml: Callable[..., Any], written: Callable[..., Any]) -> None:
    told = dml("profile", written(LOOP), "--train", "loop", "--upper-bound")
    assert "5 steps" in told.err
    assert "verdict   input bound" in told.out
    assert "bound     500 ms with one element repeated" in told.out


def test_json_is_one_value(dml: Callable[..., Any], written: Callable[..., Any]) -> None:
    value = dml("profile", written(LOOP), "--train", "loop", "--json").json
    assert (value["steps"], value["bound_s"], value["input_bound"]) == (5, None, True)


def test_wrong_usage_is_told(dml: Callable[..., Any], written: Callable[..., Any]) -> None:
    target = written(LOOP)
    told = None
    for options in (["--upper-bound"], ["--train", "nothing"], ["--train", "word"]):
        told = dml("profile", target, *options)
        assert (told.code, told.out) == (2, "")
    assert told is not None
    assert "no function 'word'" in told.err
