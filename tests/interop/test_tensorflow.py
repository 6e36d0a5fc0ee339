"""Test a pipeline as a ``tf.data.Dataset``: types and shapes beforehand, the same bytes."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml import col
from dml.errors import NullValueError, PlanError

tf = pytest.importorskip("tensorflow")


def mixed() -> dml.Dataset:
    table = {
        "i": pa.array(range(6)),
        "u": pa.array(range(6), pa.uint16()),
        "f": np.arange(6.0) / 3,
        "b": [True, False] * 3,
        "when": [dt.datetime(2020, 1, 1)] * 6,
        "text": ["a", "ä", "", "c", "d", "e"],
        "bytes": [b"\0", b"1", b"", b"3", b"4", b"5"],
    }
    ds = dml.from_arrow(pa.table(table)).with_columns(m=dml.stack(col("f"), col("f") * 2))
    return ds.with_options(telemetry_dir="off")


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_have_the_bytes_of_numpy(*, drop_last: bool) -> None:
    dataset = mixed().to_tf(batch_size=4, drop_last=drop_last)
    first = 4 if drop_last else None
    kinds = {
        name: (spec.dtype, spec.shape.as_list()) for name, spec in dataset.element_spec.items()
    }
    assert kinds == {
        "i": (tf.int64, [first]), "u": (tf.uint16, [first]), "f": (tf.float64, [first]),
        "b": (tf.bool, [first]), "when": (tf.int64, [first]), "text": (tf.string, [first]),
        "bytes": (tf.string, [first]), "m": (tf.float64, [first, 2]),
    }  # fmt: skip
    found = list(dataset.as_numpy_iterator())
    given = list(mixed().iter_batches(4, drop_last=drop_last))
    assert len(found) == len(given) == 2 - drop_last
    for made, wanted in zip(found, given, strict=True):
        for name in ("i", "u", "f", "b", "m"):
            assert made[name].tobytes() == wanted[name].tobytes()
        assert made["when"].tolist() == [1_577_836_800_000_000] * len(made["when"])
        assert [text.decode() for text in made["text"]] == wanted["text"].tolist()
        assert made["bytes"].tolist() == wanted["bytes"].tolist()


def test_rows_and_epochs() -> None:
    dataset = dml.range(20).shuffle(8).with_options(telemetry_dir="off").to_tf()
    epochs = [[int(row["id"]) for row in dataset] for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(20))
    assert [int(row["id"]) for row in dataset.take(3)] == [
        row["id"] for row in dml.range(20).shuffle(8).epoch(2).take_rows(3)
    ]


def test_padded_lists_have_no_fixed_length() -> None:
    ds = dml.from_items([{"x": [1]}, {"x": [1, 2, 3]}], schema={"x": "list<int64>"})
    dataset = ds.padded_batch(2).to_tf()
    assert dataset.element_spec["x"].shape.as_list() == [None, None]
    (batch,) = dataset.as_numpy_iterator()
    assert batch["x"].tolist() == [[1, 0, 0], [1, 2, 3]]


def test_what_has_no_tensor_is_said() -> None:
    with pytest.raises(PlanError, match=r"column 'x' has no tensor.*") as raised:
        dml.from_items([{"x": [1]}]).to_tf(batch_size=2)
    assert "padded_batch" in str(raised.value)
    with pytest.raises(PlanError, match="needs to know the columns"):
        dml.range(3).map(lambda row: row if row["id"] else {}).to_tf()
    with pytest.raises(Exception, match="null, which tensors cannot hold"):
        list(dml.from_dict({"s": ["a", None]}).to_tf(batch_size=2))
    assert issubclass(NullValueError, dml.DmlError)
