"""Test that columns of text have the hashes that the xxhash library computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from dml.kernels.arrow_ops import hash_values
from dml.kernels.vec import Vec

KINDS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def agrees(array: pa.Array, seed: int) -> None:
    found = hash_values([array], "u8", (seed,))
    assert isinstance(found, Vec)
    valid = np.ones(len(array), bool) if found.valid is None else found.valid
    cells = [v.encode() if isinstance(v, str) else v for v in array.to_pylist()]
    wanted = [None if v is None else xxhash.xxh64_intdigest(v, seed) for v in cells]
    hashes = zip(found.values.tolist(), valid.tolist(), strict=True)
    assert [value if present else None for value, present in hashes] == wanted


@pytest.mark.law
@given(st.data())
def test_any_column_of_bytes(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    one: Any = st.text(max_size=20) if text else st.binary(max_size=40)
    values = data.draw(st.lists(st.none() | one, max_size=8))
    # so many of each that the rows of one length are taken together
    array = pa.array(values * data.draw(st.sampled_from([1, 40])), kind)
    start = data.draw(st.integers(0, len(array)))
    agrees(array.slice(start), data.draw(st.integers(0, 2**64 - 1)))


@pytest.mark.law
@pytest.mark.parametrize("repeated", [1, 3])
@pytest.mark.parametrize("nulls", [False, True])
def test_every_length_in_many_rows(repeated: int, nulls: bool) -> None:
    draw = np.random.default_rng(0)
    size = 8000 // repeated
    values = [draw.bytes(i % 41) for i in range(size)] * repeated
    mask = np.arange(len(values)) % 7 == 0 if nulls else None
    agrees(pa.array(values, pa.binary(), mask=mask).slice(5), 3)


def test_bytes_of_fixed_width() -> None:
    draw = np.random.default_rng(1)
    agrees(pa.array([draw.bytes(13) for _ in range(100)], pa.binary(13)).slice(5, 80), 9)


def test_nothing_but_nulls_and_nothing_at_all() -> None:
    agrees(pa.nulls(70, pa.string()), 0)
    agrees(pa.array([], pa.binary()), 0)
