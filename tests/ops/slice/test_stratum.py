"""Test ``split(stratify=)``: every part has its share of every class."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col
from dml.errors import MemoryContractError, PlanError, SchemaError
from dml.ops.batch import keyed_batches
from dml.ops.slice import stratum
from tests.expr.checks import QUIET, agrees, holds, node_of, numbers, table


def labelled(labels: list[Any], atom_rows: int = 5) -> dml.Dataset:
    """Row i has the label i."""
    return table(
        {"x": pa.array(range(len(labels)), pa.int64()), "label": pa.array(labels)}, atom_rows
    )


def rows(ds: dml.Dataset) -> list[int]:
    return [row["x"] for row in ds.with_options(**QUIET)]


@pytest.mark.law
@given(
    st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=120),
    st.sampled_from([0.0, 0.1, 0.2, 0.25, 1 / 3, 0.37, 0.5, 0.9, 1.0]),
    st.integers(0, 3),
)
def test_shares_are_exact_to_within_a_row_in_any_prefix(
    labels: list[Any], share: float, seed: int
) -> None:
    parts = labelled(labels).train_test_split(share, seed=seed, stratify="label")
    train, test = map(rows, parts)
    assert sorted(train + test) == list(range(len(labels)))
    held = set(test)
    for label in set(labels):
        mine = [x in held for x, each in enumerate(labels) if each == label]
        for n, count in enumerate(itertools.accumulate(mine), 1):
            assert abs(count - share * n) < 1


@pytest.mark.law
@given(
    st.lists(st.integers(0, 2), max_size=150),
    st.sampled_from([[0.8, 0.1, 0.1], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.3, 0.3, 0.2, 0.2]]),
)
def test_several_parts_are_disjoint_and_complete(labels: list[int], shares: list[float]) -> None:
    parts = [rows(each) for each in labelled(labels).split(shares, stratify="label")]
    assert sorted(itertools.chain(*parts)) == list(range(len(labels)))
    for label in set(labels):
        n = labels.count(label)
        for share, part in zip(shares, parts, strict=True):
            found = sum(labels[x] == label for x in part)
            assert abs(found - share * n) < len(shares)
            assert share or not found


@pytest.mark.sample(2)
@pytest.mark.law
@pytest.mark.parametrize("kind", [pa.string(), pa.int8(), pa.uint64(), pa.bool_()])
def test_every_way_of_running_and_resuming(kind: pa.DataType) -> None:
    labels = pa.array([None if i % 7 == 6 else i * i % 2 for i in range(30)], pa.int64())
    ds = table({"x": pa.array(range(30)), "label": labels.cast(pa.bool_()).cast(kind)})
    for part in ds.split([0.6, 0.4], stratify="label", seed=2):
        holds(part)
        holds(part.drop("label").shuffle(5).repeat(2).batch(3))
    holds(ds.filter(col("x") % 4 != 1).train_test_split(0.3, stratify="label")[0])
    holds(ds.repeat(2).train_test_split(0.3, stratify="label")[1])


@pytest.mark.law
def test_other_draws_for_other_seeds_classes_and_splits() -> None:
    ds = labelled(["a", "b"] * 100)
    found = [rows(ds.train_test_split(0.1, seed=s, stratify="label")[1]) for s in (0, 1, 2)]
    assert len({tuple(each) for each in found}) == 3
    alike = [sorted(x // 2 for x in found[0] if x % 2 == half) for half in (0, 1)]
    assert alike[0] != alike[1]
    rest = ds.train_test_split(0.1, stratify="label")[0]
    again = rest.train_test_split(0.1, stratify="label")[1]
    assert len(rows(again)) == 18
    assert rows(ds.train_test_split(0.1, stratify="label")[1]) == found[0]


@pytest.mark.law
def test_a_part_is_the_same_in_every_epoch() -> None:
    test = labelled([1, 2, 3] * 20).train_test_split(0.25, stratify="label")[1]
    assert rows(test) == rows(test) == rows(test.epoch(7))
    fixed = labelled([1, 2] * 9).shuffle(seed=1, reshuffle_each_iteration=False)
    train, held = fixed.train_test_split(0.5, stratify="label")
    assert sorted(rows(train) + rows(held.epoch(3))) == list(range(18))
    mixed = labelled([1, 2] * 9).train_test_split(0.5, stratify="label")[0].shuffle()
    assert sorted(rows(mixed)) == sorted(rows(mixed))


@pytest.mark.law
def test_a_state_is_small_with_few_classes_and_with_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for classes in (50, 200):
        ds = labelled([i % classes for i in range(900)], atom_rows=64)
        part = ds.split([0.5, 0.5], stratify="label")[0]
        it = iter(part)
        assert max(len(json.dumps(it.state_dict())) for _ in it) < 4096
    monkeypatch.setattr(keyed_batches, "MOST_KEYS", 2)
    holds(labelled([1, 2, 1, 3, 4, 1, 2, 2, 3] * 2, 2).split([0.5, 0.5], stratify="label")[0])


def test_too_many_classes_stand_at_their_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stratum, "MOST_CLASSES", 3)
    for atom_rows in (1, 4, 50):
        ds = labelled([1, 1, 2, 3, 1, 2, 4, 1], atom_rows)
        it = iter(ds.split([1.0, 0.0], stratify="label")[0])
        assert [next(it)["x"] for _ in range(6)] == [0, 1, 2, 3, 4, 5]
        with pytest.raises(MemoryContractError, match="meets more than 3 classes") as found:
            next(it)
        assert "row 6" in str(found.value)


def test_what_is_refused() -> None:
    ds = labelled([1, 2])
    for random in (ds.shuffle(), ds.filter(dml.random() < 0.5), ds.shuffle(window="atoms")):
        with pytest.raises(PlanError, match="rows that are others in every epoch") as found:
            random.train_test_split(0.5, stratify="label")
        assert "test_stratum.py" in str(found.value)
    with pytest.raises(PlanError, match="stratify= after batch"):
        ds.batch(2).split([0.5, 0.5], stratify="label")
    with pytest.raises(PlanError, match="a column has a name"):
        ds.split([0.5, 0.5], stratify=3)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="needs column 'kind'"):
        ds.split([0.5, 0.5], stratify="kind")
    with pytest.raises(SchemaError, match="cannot group by 'f', which is double"):
        table({"f": pa.array([1.5])}).split([0.5, 0.5], stratify="f")
    with pytest.raises(PlanError, match="cannot divide rows by"):
        ds.split([0.5, 0.6], stratify="label")
    late = numbers(4).map(lambda row: {"f": float(repr(row["x"]))}, fingerprint="f")
    part = late.split([0.5, 0.5], stratify="f")[0]
    with pytest.raises(SchemaError, match="cannot group by 'f'"):
        list(part.with_options(**QUIET))
    agrees(ds.split([0.5, 0.5], stratify="label")[1])
    assert node_of(ds.split([0.5, 0.5], stratify="label")[0]) != node_of(
        ds.split([0.5, 0.5], stratify="label")[1]
    )


def test_what_a_cache_keeps_is_not_given_to_a_run_of_another_seed(tmp_path: Path) -> None:
    part = labelled(list("abc" * 20)).split([0.5, 0.5], stratify="label")[0]
    kept = part.cache(tier="disk").with_options(cache_dir=tmp_path)
    for seed in (1, 2):
        assert rows(kept.with_options(seed=seed)) == rows(part.with_options(seed=seed))
