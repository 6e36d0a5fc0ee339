"""Test `dml bench`: the table of a pipeline with each feature off in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DS = """
import dml
ds = dml.range(30).batch(7).with_options(telemetry_dir="off")
endless = ds.repeat()
"""


def test_the_table(dml: Callable[..., Any], written: Callable[..., Any]) -> None:
    told = dml("bench", written(DS), "--ablate", "--turns", 1)
    assert told.code == 0, told.err
    lines = told.out.splitlines()
    assert lines[0].split() == ["off", "elements/s", "processor"]
    assert [line.split("  ")[0] for line in lines[1:6]] == [
        *("nothing", "parallel compute", "software pipelining", "static optimization"),
        "all of these",
    ]
    assert lines[1].count("1.00x") == 2
    assert "not switched off: caching, because the pipeline has no cache()" in lines


def test_json_is_one_value(dml: Callable[..., Any], written: Callable[..., Any]) -> None:
    value = dml("bench", written(DS), "--turns", 1, "--json").json
    assert (value["elements"], value["turns"], value["not_switched_off"]) == (5, 1, {})
    assert [*value["ways"]] == ["nothing"]
    assert value["ways"]["nothing"]["elements_per_s"] > 0


def test_an_endless_pipeline_is_refused_without_take(
    dml: Callable[..., Any], written: Callable[..., Any]
) -> None:
    told = dml("bench", written(DS, "endless"), "--turns", 1)
    assert (told.code, told.out) == (1, "")
    assert "--take 1000" in told.err
    assert dml("bench", written(DS, "endless"), "--turns", 1, "--take", 3).code == 0
