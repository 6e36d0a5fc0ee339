"""Test ``Vec``: null masks, broadcasting, and conversion to and from Arrow."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.kernels.vec import (
    ARROW_TYPES,
    CastFailure,
    Vec,
    aligned,
    arrow_array,
    both_valid,
    from_arrow,
    is_null,
    over_elements,
    per_row,
    to_arrow,
)


def test_a_vec_knows_its_code_and_whether_it_is_a_literal() -> None:
    assert Vec(np.zeros(3, "u2")).code == "u2"
    assert Vec(np.zeros(3, bool)).code == "b1"
    assert Vec(np.asarray(1.0)).is_literal
    assert not Vec(np.zeros(1)).is_literal


def test_validity_combines_only_where_present() -> None:
    mask = np.array([True, False])
    plain = Vec(np.zeros(2))
    assert both_valid(plain, plain) is None
    assert both_valid(plain, Vec(np.zeros(2), mask)) is mask
    both = both_valid(Vec(np.zeros(2), mask), Vec(np.zeros(2), ~mask))
    assert both is not None
    assert not both.any()
    assert is_null(Vec(np.zeros(2), mask)).tolist() == [False, True]


def test_elements_meet_elements_and_rows_meet_rows() -> None:
    rows, pairs = Vec(np.arange(3)), Vec(np.zeros((3, 2)))
    left, right = aligned(rows, pairs)
    assert (left + right).tolist() == [[0, 0], [1, 1], [2, 2]]
    assert per_row(np.array([[True, False], [False, False]]), 1).tolist() == [True, False]
    assert over_elements(np.array([True, False]), 2).shape == (2, 1, 1)


@pytest.mark.parametrize("code", list(ARROW_TYPES))
@pytest.mark.parametrize("offset", [0, 3])
def test_arrow_and_back(code: str, offset: int) -> None:
    whole = pa.array([1, None, 0, 1, 1, None, 0], pa.int8()).cast(ARROW_TYPES[code])
    array = whole.slice(offset)
    vec = from_arrow(array)
    assert vec.code == code
    assert to_arrow(vec).equals(array)
    assert from_arrow(array.drop_null()).valid is None
    assert from_arrow(array.slice(0, 0)).values.shape == (0,)


def test_literals_become_arrow_scalars() -> None:
    assert to_arrow(Vec(np.asarray(2, "i4"))) == pa.scalar(2, pa.int32())
    assert not to_arrow(Vec(np.asarray(0.0), np.asarray(False))).is_valid
    assert to_arrow(Vec(np.array([np.nan]))).null_count == 0


def test_cast_failure_survives_pickling() -> None:
    failure = pickle.loads(pickle.dumps(CastFailure(3, 300, "i1")))
    assert (failure.row, failure.value, failure.code) == (3, 300, "i1")
    assert "300 is not representable as i1" in str(failure)


@pytest.mark.parametrize("n", [2, 16, 64])
def test_elements_of_lists_that_are_all_null(n: int) -> None:
    # Arrow lends them a buffer of any size
    found = from_arrow(pa.nulls(n, pa.list_(pa.int64())).values)
    assert (found.code, found.values.shape) == ("i8", (0,))


@given(code=st.sampled_from(list(ARROW_TYPES)), data=st.data())
def test_an_arrow_array_is_the_one_that_pyarrow_makes(code: str, data: st.DataObject) -> None:
    whole = np.array(data.draw(st.lists(st.integers(0, 1))), code)
    step = data.draw(st.sampled_from([1, 2, -1]))
    values = whole[::step]
    present = st.lists(st.booleans(), min_size=len(values), max_size=len(values))
    valid = data.draw(st.none() | present.map(lambda each: np.array(each, bool)))
    kind = data.draw(st.sampled_from([None, ARROW_TYPES[code], pa.float64()]))
    found = arrow_array(values, kind, valid)
    wanted = pa.array(values, kind, mask=None if valid is None else ~valid)
    found.validate(full=True)
    assert found.equals(wanted)
    assert found.type == wanted.type
