"""Test the options of a run: parsing of sizes, errors, merging."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dml.errors import PlanError
from dml.settings import Autoscale, Settings, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("128MiB", 128 << 20), ("1.5GB", 1_500_000_000), ("64k", 64_000), ("2 KiB", 2048),
        ("7", 7), (9, 9), ("1T", 10**12), ("3b", 3),
    ],
)  # fmt: skip
def test_sizes(text: Any, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 2", "1e3", "0.4", 0, -5, 1.5, True, None])
def test_no_sizes(text: Any) -> None:
    with pytest.raises(PlanError) as caught:
        parse_bytes(text, "memory_limit")
    assert "memory_limit" in caught.value.what


@pytest.mark.parametrize(
    "options",
    [
        {"executor": "dask"},
        {"kernels": "numba"},
        {"num_workers": 0},
        {"num_workers": True},
        {"resources": {"GPU": 0}},
        {"resources": {"GPU": float("inf")}},
        {"resources": {"GPU": True}},
        {"resources": {"CPU": 4}},
        {"resources": {1: 1}},
        {"resources": {"GPU": 1, "gpu": 2}},
        {"resources": {"": 1}},
        {"resources": "GPU"},
        {"resources": 3},
        {"prefetch": -1},
        {"seed": 1.0},
        {"seed": None},
        {"watchdog_s": 0},
        {"watchdog_s": float("nan")},
        {"deterministic": 1},
        {"deterministic": "no"},
        {"cache_dir": 3},
        {"memory_limit": "much"},
        {"verify": "all"},
        {"verify": True},
        {"scheduler_policy": "greedy"},
        {"scheduler_policy": None},
        {"verify_samples": 0},
        {"verify_samples": True},
        {"verify_dir": 3},
        {"verify_dir": "\0"},
        {"telemetry_dir": "a\0b"},
    ],
)
def test_refusals_name_the_option(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(PlanError, match=name) as caught:
        Settings(**options)
    assert caught.value.why
    assert caught.value.try_


@pytest.mark.parametrize(
    ("options", "tried"),
    [
        ({"verify": "smple"}, "verify='sample'"),
        ({"verify": True}, "verify='off'"),
        ({"verify": np.array(["sample", "off"])}, "verify='off'"),
        ({"executor": "Threads"}, "executor='threads'"),
        ({"disable_rules": "lift_map"}, "disable_rules=('lift_map',)"),
        ({"disable_rules": 1}, "disable_rules=('filter_before_sort',)"),
    ],
)
def test_refusals_suggest_what_is_near(options: dict[str, Any], tried: str) -> None:
    with pytest.raises(PlanError) as caught:
        Settings().merged(options)
    assert f"try   {tried}" in str(caught.value)


def test_merging() -> None:
    base = Settings(seed=3)
    merged = base.merged({"memory_limit": "1MiB"})
    assert (merged.seed, merged.memory_limit, base.memory_limit) == (3, 1 << 20, "auto")
    with pytest.raises(PlanError, match="no option 'memory_limt'") as caught:
        base.merged({"memory_limt": 1})
    assert caught.value.try_ == "did you mean 'memory_limit'?"


def test_a_scheduler_for_another_executor_is_refused() -> None:
    address = "tcp://127.0.0.1:8786"
    assert Settings().merged({"scheduler": address}).executor == "distributed"
    with pytest.raises(PlanError, match="executor='threads' uses no scheduler"):
        Settings().merged({"scheduler": address, "executor": "threads"})


def test_resources_are_those_of_this_host() -> None:
    given = Settings(resources={"tape": 2, "GPU": 1})
    assert given.resources == (("gpu", 1.0), ("tape", 2.0))
    assert given.merged({"seed": 3}) == Settings(seed=3, resources=given.resources)
    assert hash(given) == hash(Settings(resources={"gpu": 1.0, "tape": 2}))
    with pytest.raises(PlanError, match="those of this host") as caught:
        given.merged({"scheduler": "tcp://127.0.0.1:8786"})
    assert "--resources" in caught.value.try_
    assert not Settings(resources={}).merged({"executor": "distributed"}).resources


@pytest.mark.parametrize(
    ("bounds", "try_"),
    [((3, 1), "(1, 3)"), ((0, 3), "(1, 8)"), ((1, "3"), "(1, 8)"), ((True, 3), "(1, 8)")],
)
def test_bounds_of_autoscale_that_are_none_show_some(bounds: tuple[Any, Any], try_: str) -> None:
    with pytest.raises(PlanError) as caught:
        Autoscale(*bounds)
    assert caught.value.try_ == f"autoscale={try_}"
