"""Test that a function receives plain dicts, independent of rows that other functions returned."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pytest

import dml
from dml.errors import UDFError

NAN = math.nan
HELD: dict[str, Any] = {}


def with_nan(row: dict[str, Any]) -> dict[str, Any]:
    HELD["last"] = row["id"]  # cannot be proven pure, so it is called
    return {"x": NAN, "i": row["id"]}


def same_nan(row: dict[str, Any]) -> dict[str, Any]:
    return {"same": row["x"] in HELD.get("nans", (NAN,))}


@pytest.mark.law
def test_a_nan_is_not_known_by_identity_wherever_the_functions_run() -> None:
    ds = dml.range(3000, atom_rows=1000).repeat(1).map(with_nan).map(same_nan).batch(100)
    whole = [bool(flag) for batch in ds for flag in batch["same"]]
    it = iter(ds)
    next(it)
    state = it.state_dict()
    it.close()
    resumed = iter(ds)
    resumed.load_state_dict(state)
    assert [bool(flag) for batch in resumed for flag in batch["same"]] == whole[100:]
    staged = dml.range(3000, atom_rows=1000).map(with_nan).map(same_nan).batch(100)
    assert [bool(flag) for batch in staged for flag in batch["same"]] == whole


def generous(row: dict[str, Any]) -> dict[str, Any]:
    HELD["last"] = row["id"]
    return defaultdict(int, {"x": row["id"]})


def looks_for_more(row: dict[str, Any]) -> dict[str, Any]:
    return {"z": row["z"] + len(HELD)}


def test_a_row_is_a_plain_dict_whatever_the_function_before_returned() -> None:
    with pytest.raises(UDFError, match="KeyError"):
        list(dml.range(5).map(generous).map(looks_for_more))


def plain(row: dict[str, Any]) -> dict[str, Any]:
    HELD["last"] = row["id"]
    return {"x": row["id"], "s": str(row["id"])}


@pytest.mark.law
@pytest.mark.parametrize("kind", ["shuffle", "window", "batch"])
def test_operators_that_hold_rows_hold_no_dicts(kind: str) -> None:
    from dml.data import block as blocks

    seen: list[bool] = []
    whole = blocks.concat

    def watched(parts: list[blocks.Block]) -> blocks.Block:
        seen.extend(part.rows is not None for part in parts)
        return whole(parts)

    ds = dml.range(6000, atom_rows=500).repeat(2).map(plain)
    held = {"shuffle": ds.shuffle(), "window": ds.shuffle(5000), "batch": ds.batch(4000)}[kind]
    with pytest.MonkeyPatch.context() as patch:
        for room in (
            "dml.ops.sort.external_sort",
            "dml.ops.shuffle.shuffle_window",
            "dml.ops.batch.batch",
        ):
            patch.setattr(f"{room}.concat", watched)
        assert sum(1 for _ in held)
    assert not any(seen)
