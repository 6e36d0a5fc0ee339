"""This file tests that what a verb cannot take is a typed error where the verb is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dml
from dml import col
from dml.errors import DmlError

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "drop_duplicates": lambda ds, given: ds.drop_duplicates(given),
    "distinct": lambda ds, given: ds.distinct([given]),
    "rename_column": lambda ds, given: ds.rename_column(given, "y"),
    "cast_column": lambda ds, given: ds.cast_column(given, "f8"),
    "len of groups": lambda ds, given: ds.group_by("x").len(given),
    "remove": lambda ds, given: ds.remove(given),
    "bucket by a column": lambda ds, given: ds.bucket_by_length(given, [1], 2),
    "boundaries": lambda ds, given: ds.bucket_by_length("x", given, 2),
    "sizes": lambda ds, given: ds.bucket_by_length("x", [1], given),
    "split": lambda ds, given: ds.split(given),
    "join": lambda ds, given: ds.join([], on=given),
}


@pytest.mark.parametrize("given", [1.5, b"x", object(), {"x": 1}, [[]], len, col("x") + 1])
@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("known", [True, False])
def test_arguments_of_other_types_are_refused(verb: str, given: Any, *, known: bool) -> None:
    ds = dml.from_dict({"x": [1, 2]})
    ds = ds if known else ds.map(lambda row: row)
    if verb == "remove" and isinstance(given, dml.Column) and not known:
        pytest.skip("an expression is what it takes, and its type is not known")
    with pytest.raises(DmlError):
        CALLS[verb](ds, given)
