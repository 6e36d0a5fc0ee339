"""Test ``dml explain`` and ``dml fingerprint``: results alone are on standard output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_explain_prints_the_tree(dml: Callable[..., Any], written: Callable[..., Any]) -> None:
    told = dml("explain", written("ds = FakeDataset()"), "--stage", "chosen", "--analyze")
    assert (told.code, told.out) == (0, "tree of chosen, analyzed: True\n")
    assert "noise" in told.err


def test_explain_as_json(dml: Callable[..., Any], written: Callable[..., Any]) -> None:
    value = dml("explain", written("ds = FakeDataset()"), "--json").json
    assert (value["stage"], value["text"]) == (None, "tree of None, analyzed: False")


def test_a_stage_that_does_not_exist(dml: Callable[..., Any], written: Callable[..., Any]) -> None:
    told = dml("explain", written("ds = FakeDataset()"), "--stage", "nowhere")
    assert told.code == 2
    assert "written" in told.err


def test_fingerprint_by_domain(dml: Callable[..., Any], written: Callable[..., Any]) -> None:
    target = written("ds = FakeDataset()")
    assert dml("fingerprint", target).out == "result-digest\n"
    assert dml("fingerprint", target, "--domain", "cost").out == "cost-digest\n"
    assert dml("fingerprint", target, "--explain").out == "result-parts\n"
    assert dml("fingerprint", target, "--explain", "--json").json == {
        "target": target,
        "domain": "result",
        "fingerprint": "result-digest",
        "explain": "result-parts",
    }
