"""Test row ids: committed vectors, uniqueness through compositions, the compact form."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.kernels.rows.ids import (
    U64,
    LateIds,
    RowIds,
    derive,
    mix64,
    mix64_int,
    source_key,
    underive,
)
from dml.testing.scalars import ids as scalar_ids
from tests.vectors import make_vectors

WORDS = st.integers(0, 2**64 - 1)


def words(*values: int) -> U64:
    return np.array(values, dtype=np.uint64)


def pairs(ids: RowIds) -> list[tuple[int, int]]:
    hi, lo = ids.arrays()
    assert hi.dtype == lo.dtype == np.uint64
    assert len(hi) == len(lo) == len(ids)
    return list(zip(hi.tolist(), lo.tolist(), strict=True))


def test_vectors_are_what_the_oracle_says() -> None:
    assert make_vectors.read("ids") == make_vectors.ids_vectors()


def test_the_engine_gives_the_vectors() -> None:
    vectors = make_vectors.read("ids")
    for value, mixed in vectors["mix64"]:
        assert mix64_int(value) == mixed
        assert mix64(words(value)).tolist() == [mixed]
    for name, key in vectors["source_key"]:
        assert source_key(name) == key
    for hi, lo, a, b, *made in vectors["derive"]:
        assert list(derive(hi, lo, a, b)) == made
        high, low = derive(words(hi), words(lo), words(a), words(b))
        assert np.ravel([high, low]).tolist() == made


def test_mix64_leaves_its_argument_and_is_splitmix64() -> None:
    state = words(0)
    assert mix64(state + np.uint64(make_vectors.GOLDEN)).tolist() == [0xE220A8397B1DCDAF]
    assert state.tolist() == [0]


@pytest.mark.law
@given(st.lists(WORDS, min_size=1, max_size=5), WORDS, WORDS, WORDS)
def test_derive_mixes_arrays_and_integers_alike(lo: list[int], hi: int, a: int, b: int) -> None:
    expected = [scalar_ids.derive(hi, value, a, b) for value in lo]
    for keys in ((hi, words(*lo), a, b), (words(*[hi] * len(lo)), words(*lo), words(a), b)):
        high, low = derive(*keys)
        assert [(int(h), int(v)) for h, v in zip(high, low, strict=True)] == expected  # type: ignore[arg-type]


@given(WORDS, WORDS, WORDS, WORDS)
def test_derive_can_be_undone(hi: int, lo: int, a: int, b: int) -> None:
    high, low = derive(hi, lo, a, b)
    assert isinstance(high, int)
    assert isinstance(low, int)
    back = (high - mix64_int(low ^ mix64_int(b + 2 * make_vectors.GOLDEN))) % 2**64
    assert back == hi
    assert (low - mix64_int(hi ^ mix64_int(a + make_vectors.GOLDEN))) % 2**64 == lo


@pytest.mark.law
@given(st.data())
def test_the_compact_form_means_its_arrays(data: st.DataObject) -> None:
    start, n = data.draw(st.integers(0, 2**40)), data.draw(st.integers(0, 20))
    ids = RowIds.run(7, start, n)
    plain = [(7, start + i) for i in range(n)]
    for _ in range(data.draw(st.integers(0, 4))):
        if data.draw(st.booleans()) and plain:
            index = data.draw(st.lists(st.integers(0, len(plain) - 1), max_size=20))
            ids, plain = ids.take(np.array(index, dtype=np.int64)), [plain[i] for i in index]
        elif data.draw(st.booleans()):
            a, b = data.draw(WORDS), data.draw(WORDS)
            ids = ids.derive(a, b)
            plain = [scalar_ids.derive(hi, lo, a, b) for hi, lo in plain]
        else:
            low, high = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 25))
            ids, plain = ids.slice(low, high), plain[low:high]
        assert pairs(ids) == plain
    assert pairs(RowIds.concat([ids, ids])) == plain + plain


def test_consecutive_runs_stay_compact() -> None:
    whole = RowIds.concat([RowIds.run(3, 0, 5), RowIds.none(), RowIds.run(3, 5, 2)])
    assert whole.nbytes == 0
    assert pairs(whole) == [(3, i) for i in range(7)]
    assert RowIds.concat([RowIds.run(3, 0, 5), RowIds.run(3, 6, 2)]).nbytes == 7 * 16
    assert len(RowIds.concat([])) == 0


def test_picked_rows_hold_one_word_each() -> None:
    ids = RowIds.at(5, np.array([9, 2, 2]))
    assert pairs(ids) == [(5, 9), (5, 2), (5, 2)]
    assert ids.nbytes == 3 * 8
    assert pairs(RowIds.run(source_key("a"), 4, 1)) == [(source_key("a"), 4)]
    assert pairs(RowIds.of_arrays(words(1, 2), words(3, 4))) == [(1, 3), (2, 4)]


def test_children_take_their_index_from_an_array() -> None:
    parents = RowIds.run(1, 10, 2).take(np.array([0, 0, 1]))
    made = parents.derive(9, np.array([0, 1, 0], dtype=np.uint64))
    rows = [(1, 10, 0), (1, 10, 1), (1, 11, 0)]
    assert pairs(made) == [scalar_ids.derive(hi, lo, 9, child) for hi, lo, child in rows]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_ids_stay_unique_through_repeats_and_children(depth: int) -> None:
    parts = [RowIds.run(source_key(name), 0, 300) for name in ("a", "b")]
    for level in range(depth):
        parts = [part.derive(level, turn) for part in parts for turn in range(3)]
    every = [pair for part in parts for pair in pairs(part)]
    assert len(set(every)) == len(every) == 600 * 3**depth


def test_row_numbers_wrap_at_the_end_of_their_range() -> None:
    assert pairs(RowIds.run(0, 2**64 - 1, 2)) == [(0, 2**64 - 1), (0, 0)]


def test_derived_ids_lead_back() -> None:
    hi, lo = (np.arange(9, dtype=np.uint64) * np.uint64(factor) for factor in (7, 1 << 60))
    b = np.arange(9, dtype=np.uint64)
    made = derive(hi, lo, 5, b)
    for half, expected in zip(
        underive(np.asarray(made[0]), np.asarray(made[1]), 5, b), (hi, lo), strict=True
    ):
        assert np.array_equal(half, expected)


def test_ids_are_written_out_when_somebody_looks() -> None:
    looked: list[int] = []

    def made() -> tuple[U64, U64]:
        looked.append(1)
        return np.arange(9, dtype="u8"), np.arange(9, dtype="u8") * np.uint64(3)

    late = LateIds(9, made)
    some = RowIds.concat([late.take(np.array([5, 5, 1])), RowIds.run(7, 3, 2).take(np.array([1]))])
    part = some.slice(1, 4).take(np.array([2, 1, 0]))
    assert (len(late), len(part), part.nbytes, late.nbytes, looked) == (9, 3, 48, 144, [])
    high, low = part.arrays()
    assert (high.tolist(), low.tolist()) == ([7, 1, 5], [4, 3, 15])
    again = pickle.loads(pickle.dumps(part))
    assert (again.hi.tolist(), again.lo.tolist(), again.sel) == ([7, 1, 5], [4, 3, 15], None)
    assert [each.tolist() for each in late.arrays()] == [list(range(9)), list(range(0, 27, 3))]
    assert looked == [1]
    assert late.slice(3, 1).arrays()[0].tolist() == []


@given(st.integers(1, 40), st.data())
def test_slices_of_late_ids_are_slices(count: int, data: st.DataObject) -> None:
    wanted = whole = np.arange(count, dtype=np.uint64)
    late: RowIds = LateIds(count, lambda: (whole + np.uint64(7), whole))
    for _ in range(data.draw(st.integers(1, 6))):
        start, stop = sorted(data.draw(st.tuples(*[st.integers(0, late.count)] * 2)))
        late, wanted = late.slice(start, stop), wanted[start:stop]
        if data.draw(st.booleans()):
            assert late.low().tolist() == wanted.tolist()
    assert late.arrays()[0].tolist() == (wanted + np.uint64(7)).tolist()


def test_a_late_block_is_cut_row_by_row() -> None:
    """As ``interleave`` does with its input; a slice of a slice of a slice would end Python."""
    late: RowIds = LateIds(5000, lambda: (np.zeros(5000, "u8"), np.arange(5000, dtype="u8")))
    while late.count > 1:
        late = late.slice(1, late.count)
    assert late.low().tolist() == [4999]
