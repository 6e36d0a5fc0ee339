"""Test that invalid arguments of a verb raise a typed error at the line of the verb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
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


COUNTS: dict[str, Callable[[Any, Any], Any]] = {
    "batch": lambda ds, n: ds.batch(n),
    "take": lambda ds, n: ds.take(n),
    "repeat": lambda ds, n: ds.repeat(n),
    "shuffle": lambda ds, n: ds.shuffle(n, seed=n),
    "shard": lambda ds, n: ds.shard(n, n - n),
    "window": lambda ds, n: ds.window(n, shift=n),
    "bucket_by_length": lambda ds, n: ds.bucket_by_length("x", [n], [n, n]),
    "map_batches": lambda ds, n: ds.map_batches(dict, batch_size=n, concurrency=n, num_cpus=n),
    "epoch": lambda ds, n: ds.epoch(n),
    "with_options": lambda ds, n: ds.with_options(seed=n, num_workers=n).shuffle(),
    "iter_batches": lambda ds, n: ds.iter_batches(n),
    "range": lambda _, n: dml.range(n, 8 * n, n, atom_rows=n),
    "from_dict": lambda _, n: dml.from_dict({"x": [1, 2, 3]}, atom_rows=n).randomize_block_order(),
}


@pytest.mark.parametrize("verb", COUNTS)
def test_numbers_of_numpy_count_as_those_of_python(verb: str) -> None:
    ds = dml.from_dict({"x": [1, 2, 3, 4, 5]}).with_options(executor="sync")
    given, wanted = COUNTS[verb](ds, np.int64(2)), COUNTS[verb](ds, 2)
    assert repr(list(given)) == repr(list(wanted))
    if isinstance(given, dml.Dataset) and verb != "map_batches":
        assert given.fingerprint() == wanted.fingerprint()


def test_what_a_function_of_yours_is_given_stays_as_it_is() -> None:
    total = dml.from_dict({"x": [1, 2]}).reduce(np.int8(1), lambda state, _: state)
    assert type(total) is np.int8
