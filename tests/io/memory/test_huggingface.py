"""Test datasets of Hugging Face: stored tables, orders, streams, splits."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.errors import FingerprintError, SourceError
from dml.io.memory.huggingface import from_huggingface
from dml.io.source import Source
from dml.io.user.user_source import read_datasource
from dml.testing.source_laws import check_same_data, check_source

datasets = pytest.importorskip("datasets")

ROWS = {"a": list(range(12)), "s": [str(i) if i % 3 else None for i in range(12)]}


def plain() -> Any:
    return datasets.Dataset.from_dict(ROWS)


def source_of(dataset: Any, atom_rows: int | None = 5) -> Source:
    return read_datasource(from_huggingface(dataset), b"n", atom_rows=atom_rows)


@pytest.mark.law
@given(st.lists(st.integers(0, 11), min_size=1, max_size=20))
def test_what_was_selected_there_is_read_in_its_order(index: list[int]) -> None:
    dataset = plain().select(index)
    check_source(source_of(dataset), pa.table(ROWS).take(pa.array(index)))


@pytest.mark.law
def test_shuffles_and_shards_of_theirs_are_kept() -> None:
    dataset = plain().shuffle(seed=3).shard(2, 0)
    assert [row["a"] for row in dml.from_huggingface(dataset)] == list(dataset["a"])
    ours = dml.from_huggingface(dataset).shuffle(seed=1)
    assert "in the order of ShuffleAll" in ours.explain("physical")
    assert sorted(row["a"] for row in ours) == sorted(dataset["a"])


@pytest.mark.law
def test_files_are_mapped_and_their_copy_has_the_same_name(tmp_path: Path) -> None:
    plain().save_to_disk(str(tmp_path / "one"))
    (tmp_path / "one").rename(tmp_path / "two")
    mapped = datasets.load_from_disk(str(tmp_path / "two"))
    assert mapped.cache_files
    before = pa.total_allocated_bytes()
    source = source_of(mapped)
    check_same_data(source, source_of(plain()))
    check_source(pickle.loads(pickle.dumps(source)), pa.table(ROWS))
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_other_rows_are_another_name() -> None:
    names = {
        dml.from_huggingface(each).fingerprint()
        for each in (plain(), plain().select([1, 0]), plain().select(range(11)))
    }
    assert len(names) == 3


def test_features_are_what_is_stored() -> None:
    features = datasets.Features(
        {
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "m": datasets.Array2D((2, 2), "int32"),
        }
    )
    rows = {
        "label": ["dog"],
        "m": [[[1, 2], [3, 4]]],
    }
    dataset = datasets.Dataset.from_dict(rows, features=features)
    (row,) = dml.from_huggingface(dataset)
    assert row["label"] == 1
    assert row["m"] == [[1, 2], [3, 4]]
    stored = datasets.Dataset.from_dict({"image": [{"bytes": b"png", "path": None}]})
    (row,) = dml.from_huggingface(stored.cast_column("image", datasets.Image()))
    assert row["image"] == {"bytes": b"png", "path": None}


def test_a_stream_begins_anew() -> None:
    ds = dml.from_huggingface(plain().to_iterable_dataset(num_shards=3), atom_rows=4)
    for _ in range(2):
        assert [row["a"] for row in ds] == ROWS["a"]
    assert [row["a"] for row in ds.skip(7).take(2)] == [7, 8]
    assert ds.cardinality() is None
    with pytest.raises(FingerprintError):
        ds.fingerprint()


def test_a_stream_without_features_tells_by_its_first_rows() -> None:
    stream = datasets.IterableDataset.from_generator(lambda: ({"q": i} for i in range(5)))
    ds = dml.from_huggingface(stream)
    assert dict(ds.schema) == {"q": pa.int64()}
    assert [row["q"] for row in ds] == list(range(5))
    empty = datasets.IterableDataset.from_generator(lambda: iter(()))
    with pytest.raises(SourceError, match="no rows"):
        dml.from_huggingface(empty)


def test_several_splits_are_refused() -> None:
    with pytest.raises(SourceError, match="one split") as caught:
        dml.from_huggingface(datasets.DatasetDict({"dev": plain(), "test": plain()}))
    assert "from_huggingface(dataset['dev'])" in caught.value.try_


@pytest.mark.parametrize("stranger", [pa.table(ROWS), [1], None])
def test_what_is_no_dataset_is_refused(stranger: Any) -> None:
    with pytest.raises(SourceError, match=r"needs a datasets\.Dataset"):
        dml.from_huggingface(stranger)
