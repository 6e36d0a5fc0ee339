"""Test datasets written for PyTorch as sources: by index, by iterator, tuples, tensors."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml.errors import FingerprintError, PlanError, SourceError, UDFError
from dml.io.memory.torch import plain, row_of

Point = collections.namedtuple("Point", ["x", "y"])


class Tensor:
    """What a tensor shows of itself: torch is not needed to read one."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def detach(self) -> Tensor:
        return self

    cpu = detach

    def numpy(self) -> np.ndarray:
        return self.values


class Squares:
    """Map-style: a sample is what ``form`` makes of the index."""

    def __init__(self, count: int, form: str = "dict") -> None:
        self.count, self.form = count, form

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        if not 0 <= i < self.count:
            raise IndexError(i)
        if self.form == "dict":
            return {"x": i, "y": Tensor([i, i * i])}
        if self.form == "tuple":
            return Tensor(np.full((2, 2), i, "f4")), i
        return Point(i, str(i)) if self.form == "named" else Tensor(i)


class IterableDataset:
    """Stands for torch's class of that name, by which datasets are told apart."""

    def __getitem__(self, i: int) -> Any:
        raise NotImplementedError


class Counting(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter([Tensor(i) for i in range(7)])


@pytest.mark.law
@pytest.mark.parametrize("executor", ["sync", "threads", "processes"])
@pytest.mark.parametrize("form", ["dict", "tuple", "named", "scalar"])
def test_samples_by_index_are_rows_wherever_they_run(form: str, executor: str) -> None:
    ds = dml.from_torch(Squares(9, form), atom_rows=4).with_options(executor=executor)
    want = dml.from_items([row_of(Squares(9, form)[i]) for i in range(9)])
    assert ds.schema == want.schema
    assert ds.to_arrow().equals(want.to_arrow())


def test_samples_are_made_side_by_side_and_as_few_as_needed() -> None:
    """Two samples that wait for each other are made at once; a shard makes its own."""
    both, asked = threading.Barrier(2), list[int]()

    class Waiting(Squares):
        def __getitem__(self, i: int) -> Any:
            asked.append(i)
            if i in {0, 1}:  # the first slices have a row each
                both.wait(30)
            return i

    ds = dml.from_torch(Waiting(40), {"item": "int64"}).with_options(num_workers=2)
    assert [row["item"] for row in ds] == list(range(40))
    asked.clear()
    assert [row["item"] for row in ds.shard(8, 3)] == [3, 11, 19, 27, 35]
    assert sorted(asked) == [3, 11, 19, 27, 35]


@pytest.mark.law
def test_samples_are_rows() -> None:
    assert list(dml.from_torch(Squares(2)))[1]["y"].tolist() == [1, 1]
    pair = dml.from_torch(Squares(3, "tuple"), names=("image", "label"))
    assert dict(pair.schema) == {
        "image": pa.fixed_shape_tensor(pa.float32(), (2, 2)),
        "label": pa.int64(),
    }
    assert dml.from_torch(Squares(3, "tuple")).columns == ["item_0", "item_1"]
    assert dml.from_torch(Squares(3, "named")).columns == ["x", "y"]
    assert [row["item"] for row in dml.from_torch(Squares(3, "scalar"))] == [0, 1, 2]
    with pytest.raises(SourceError, match="a sample has 2 parts"):
        dml.from_torch(Squares(3, "tuple"), names=("image",))


@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_a_sample_that_is_filled_again_is_copied(executor: str) -> None:
    mine = threading.local()

    class Filled(Squares):
        def __getitem__(self, i: int) -> Any:
            if not hasattr(mine, "buffer"):
                mine.buffer = np.zeros(3, np.int64)
            mine.buffer[:] = i
            return mine.buffer if self.form == "dict" else {"x": mine.buffer}

    for form, name in (("dict", "item"), ("tuple", "x")):
        ds = dml.from_torch(Filled(40, form)).with_options(executor=executor)
        assert [int(row[name][0]) for row in ds] == list(range(40))


@pytest.mark.parametrize("atom_rows", [0, -1])
def test_atoms_have_rows(atom_rows: int) -> None:
    with pytest.raises(PlanError, match="atom_rows of at least 1"):
        dml.from_torch(Squares(3), atom_rows=atom_rows)


def test_a_shuffle_reads_by_index() -> None:
    ds = dml.from_torch(Squares(20)).shuffle(seed=1)
    assert "in the order of ShuffleAll" in ds.explain("physical")
    assert sorted(row["x"] for row in ds) == list(range(20))


def test_an_iterable_begins_anew_for_every_pass() -> None:
    ds = dml.from_torch(Counting())
    for _ in range(2):
        assert [row["item"] for row in ds] == list(range(7))
    assert [row["item"] for row in ds.skip(5)] == [5, 6]


def test_the_name_is_that_of_class_and_state() -> None:
    assert (
        dml.from_torch(Squares(3)).fingerprint()
        == dml.from_torch(Squares(3)).fingerprint()
        != dml.from_torch(Squares(4)).fingerprint()
    )
    odd = Squares(3)
    odd.form = (i for i in "x")  # type: ignore[assignment]
    with pytest.raises(FingerprintError):
        dml.from_torch(odd, {"item": "int64"}).fingerprint()


def test_a_sample_that_raises_or_does_not_fit_is_named() -> None:
    class Broken(Squares):
        def __getitem__(self, i: int) -> Any:
            if i == 5:
                raise OSError("unreadable")
            return "x" if i == 3 else i

    class Untold(Broken):
        def __getitem__(self, i: int) -> Any:
            return super().__getitem__(5) if i == 5 else None

    ds = dml.from_torch(Broken(9), {"item": "int64"})
    with pytest.raises(UDFError, match="Broken raised OSError: unreadable") as raised:
        ds.skip(4).to_arrow()
    assert raised.value.at.endswith("row 5")
    with pytest.raises(UDFError, match="Broken returned 'x' for column 'item'") as unfit:
        dml.from_torch(Broken(5), {"item": "int64"}).to_arrow()
    assert unfit.value.at.endswith("row 3")
    with pytest.raises(SourceError, match="Untold raised OSError at row 5"):
        dml.from_torch(Untold(9))


def test_values_become_what_columns_hold() -> None:
    deep = plain({"a": [Tensor(1), (Tensor([1, 2]),)]})
    assert deep["a"][0] == 1
    assert deep["a"][1][0].tolist() == [1, 2]


@pytest.mark.parametrize("stranger", [3, iter([1]), lambda: 1])
def test_what_is_no_dataset_is_refused(stranger: Any) -> None:
    with pytest.raises(SourceError, match="needs a dataset"):
        dml.from_torch(stranger)


def test_datasets_of_torch_are_read() -> None:
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch.utils.data")
    ds = dml.from_torch(data.TensorDataset(torch.arange(6).reshape(3, 2), torch.arange(3)))
    assert [row["item_0"].tolist() for row in ds] == [[0, 1], [2, 3], [4, 5]]
