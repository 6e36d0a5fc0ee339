"""Test the types that mark lists for delivery as padded arrays: equal parameters, equal types."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from dml.data.list_marks import Padded, Ragged, lengths_of, plain
from dml.data.schema import Schema

LISTS = pa.list_(pa.int32())
NAN = float("nan")


def test_parameters_tell_marks_apart() -> None:
    same = Padded(LISTS, fill=0, width=None)
    assert same == Padded(LISTS, fill=0, width=None)
    assert hash(same) == hash(Padded(LISTS, fill=0, width=None))
    others = [
        Padded(LISTS, fill=1, width=None),
        Padded(LISTS, fill=0, width=3),
        Padded(pa.large_list(pa.int32()), fill=0, width=None),
        Ragged(LISTS),
        LISTS,
    ]
    assert len({same, *others}) == 6
    assert all(same != other for other in others)
    assert Schema({"x": same}) != Schema({"x": others[1]})
    assert Schema({"x": same}).digest != Schema({"x": others[1]}).digest


@pytest.mark.parametrize(
    "mark", [Padded(LISTS, fill=7, width=3), Padded(LISTS, fill=NAN, width=None), Ragged(LISTS)]
)
def test_marks_travel(mark: pa.DataType) -> None:
    again = pickle.loads(pickle.dumps(mark))
    assert again == mark
    assert str(again) == str(mark)
    assert plain(again) == LISTS


def test_arrow_sees_the_lists() -> None:
    schema = Schema({"x": Padded(LISTS, fill=0, width=None), "y": Ragged(LISTS)})
    assert schema.to_arrow() == pa.schema({"x": LISTS, "y": LISTS})
    assert str(schema) == "x: padded<int32, fill=0, width=None>, y: ragged<int32>"


def test_lengths() -> None:
    lists = pa.array([[1, 2], None, [], [3]], LISTS)
    assert lengths_of(lists).tolist() == [2, 0, 0, 1]
    assert lengths_of(lists.slice(2)).tolist() == [0, 1]
    fixed = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2))
    assert lengths_of(fixed).tolist() == [2, 0, 2]
