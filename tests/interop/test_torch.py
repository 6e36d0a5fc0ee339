"""Test tensors for PyTorch: no copies, no duplicates, resumable, clear errors."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml.errors import NullValueError, PlanError

torch = pytest.importorskip("torch")
interop = pytest.importorskip("dml.interop.torch")

OFF: dict[str, Any] = {"telemetry_dir": "off"}


def pipeline(rows: int = 100) -> dml.Dataset:
    made = dml.range(rows, atom_rows=7).with_columns(x=dml.col("id") / 3)
    return made.shuffle(16).batch(8).with_options(**OFF)


def ids(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def loader(dataset: Any, **options: Any) -> Any:
    return torch.utils.data.DataLoader(dataset, batch_size=None, **options)


def mixed() -> dml.Dataset:
    table = {
        "f": np.arange(6.0, dtype="f4"),
        "u": pa.array(range(6), pa.uint16()),
        "b": [True, False] * 3,
        "when": pa.array([dt.datetime(2020, 1, 1)] * 5 + [None], pa.timestamp("us")),
        "text": ["a", "b", None, "c", "d", "e"],
        "list": pa.array([[1], [], [2, 3], [4], [5], [6]], pa.list_(pa.int64())),
    }
    return dml.from_arrow(pa.table(table)).batch(3).with_options(**OFF)


def test_arrays_become_tensors_and_the_rest_stays() -> None:
    first = next(iter(mixed().to_torch()))
    assert {n: v.dtype for n, v in first.items() if isinstance(v, torch.Tensor)} == {
        "f": torch.float32, "u": torch.uint16, "b": torch.bool, "when": torch.int64,
    }  # fmt: skip
    assert first["when"][0] == 1_577_836_800_000_000
    assert first["text"] == ["a", "b", None]
    assert [each.tolist() for each in first["list"]] == [[1], [], [2, 3]]


def test_nothing_is_copied() -> None:
    batch = {"x": np.arange(5.0), "when": np.zeros(5, "M8[us]")}
    tensors = interop.Conversion("list", "list", {}).of(batch)
    for name, array in batch.items():
        assert tensors[name].data_ptr() == array.__array_interface__["data"][0]
    for tensors in pipeline().to_torch():
        tensors["x"] += 1  # writable, and the caller's own


def test_arrays_cross_by_dlpack() -> None:
    batch = next(iter(pipeline()))
    assert torch.from_dlpack(batch["x"]).data_ptr() == batch["x"].__array_interface__["data"][0]


def test_lists_of_numbers_as_one_tensor() -> None:
    only = mixed().select("list")
    padded = next(iter(only.to_torch(ragged="pad")))
    assert padded["list"].tolist() == [[1, 0], [0, 0], [2, 3]]
    assert padded["list_length"].tolist() == [1, 0, 2]
    nested = next(iter(only.to_torch(ragged="nested", dtypes={"list": "float32"})))["list"]
    assert nested.is_nested
    assert [each.tolist() for each in nested.unbind()] == [[1.0], [], [2.0, 3.0]]


@pytest.mark.parametrize("values", [[[1], None], [[1], [2, None]]])
def test_a_null_among_lists_is_refused_where_it_cannot_show(values: Any) -> None:
    ds = dml.from_arrow(pa.table({"v": values})).batch(2).with_options(**OFF)
    assert len(next(iter(ds.to_torch()))["v"]) == 2
    for ragged in ("pad", "nested"):
        with pytest.raises(NullValueError, match="'v' has a null"):
            next(iter(ds.to_torch(ragged=ragged)))


def test_options_that_mean_nothing_are_refused() -> None:
    for wrong in ({"ragged": "x"}, {"strings": None}, {"dtypes": {"x": "float33"}}):
        with pytest.raises(PlanError):
            mixed().to_torch(**wrong)
    with pytest.raises(PlanError, match="'text' has no tensor"):
        next(iter(mixed().to_torch(strings="error")))
    if not torch.cuda.is_available():
        with pytest.raises(PlanError, match="'cuda' is not there"):
            mixed().to_torch(device="cuda")


def test_a_loader_gives_every_batch_of_every_epoch() -> None:
    plain = pipeline()
    batches = loader(pipeline().to_torch())
    for epoch in range(3):
        assert ids(batches) == ids(plain.epoch(epoch))
    rows = dml.range(10).with_options(**OFF)
    assert ids(loader(rows.to_torch(batch_size=4))) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(ids(loader(rows.to_torch(batch_size=4, drop_last=True)))) == 2


def test_rows_are_collated_by_the_loader() -> None:
    rows = dml.range(10).with_options(**OFF).to_torch()
    batches = torch.utils.data.DataLoader(rows, batch_size=5)
    assert ids(batches) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking where there are threads
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_of_a_loader_are_refused(workers: int) -> None:
    batches = loader(pipeline().to_torch(), num_workers=workers, timeout=60)
    with pytest.raises(PlanError, match="inside a worker"):
        list(batches)


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("taken", [0, 1, 5, 12, 13])
def test_a_state_gives_what_the_loop_has_not_received(taken: int, device: Any) -> None:
    whole = ids(pipeline().epoch(0))
    dataset = pipeline().to_torch(device=device)
    it = iter(dataset)
    assert ids(next(it) for _ in range(taken)) == whole[:taken]
    if taken == 13:
        assert next(it, None) is None
    state = json.loads(json.dumps(dataset.state_dict()))
    again = pipeline().to_torch(device=device)
    again.load_state_dict(state)
    assert ids(again) == whole[taken:]
    assert ids(again) == ids(pipeline().epoch(1))


def test_a_state_before_the_first_batch() -> None:
    dataset = pipeline().to_torch()
    state = dataset.state_dict()
    assert ids(dataset) == ids(pipeline())
    again = pipeline().to_torch()
    again.load_state_dict(state)
    assert ids(again) == ids(pipeline().epoch(0))


@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")
@pytest.mark.parametrize("taken", [0, 4, 13])
def test_a_stateful_loader_goes_on_where_it_was(taken: int) -> None:
    data = pytest.importorskip("torchdata.stateful_dataloader")
    whole = ids(pipeline().epoch(0))
    first = data.StatefulDataLoader(pipeline().to_torch(), batch_size=None)
    it = iter(first)
    assert ids(next(it) for _ in range(taken)) == whole[:taken]
    state = first.state_dict()
    rest = data.StatefulDataLoader(pipeline().to_torch(), batch_size=None)
    rest.load_state_dict(state)
    assert ids(rest) == whole[taken:]


class Slow:
    """A mover that only notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def sent(self, element: Any) -> Any:
        self.told.append(f"sent {element['id'][0]}")
        return element

    def arrived(self, sent: Any) -> Any:
        self.told.append(f"arrived {sent['id'][0]}")
        return sent


def test_one_element_is_on_its_way_while_another_is_in_use() -> None:
    ds = dml.range(3).batch(1).with_options(**OFF)
    mover = Slow()
    moved = interop.MovedTensors(iter(ds), interop.Conversion("list", "list", {}).of, mover)
    assert ids([next(moved)]) == [[0]]
    assert mover.told == ["sent 0", "sent 1", "arrived 0"]
    state = moved.where()
    rest = iter(ds)
    rest.load_state_dict(state)
    assert ids(rest) == [[1], [2]] == ids(moved)
    assert moved.where()["over"]


def test_an_error_is_raised_in_its_place_by_a_mover_too() -> None:
    def check(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 5:
            raise ValueError(5)
        return row

    ds = dml.range(8).map(check, fingerprint="check").batch(1).with_options(**OFF)
    got: list[int] = []
    with pytest.raises(dml.DmlError, match="ValueError"):
        got.extend(batch["id"].item() for batch in ds.to_torch(device="cpu"))
    assert got == [0, 1, 2, 3, 4]


def test_a_rank_of_a_split_becomes_tensors() -> None:
    parts = pipeline().streaming_split(3)
    whole = ids(pipeline().epoch(0))
    sets = [interop.to_torch(part) for part in parts]
    its = [iter(each) for each in sets]
    assert [ids([next(it) for _ in range(2)]) for it in its] == [whole[r:6:3] for r in range(3)]
    state = sets[1].state_dict()
    fresh = [interop.to_torch(part) for part in pipeline().streaming_split(2)]
    assert fresh[0].state_dict()["at"] == 0
    for each in fresh:
        each.load_state_dict(state)
    assert [ids(each) for each in fresh] == [whole[6::2], whole[7::2]]


def test_what_is_pickled_goes_on_where_its_next_iteration_would() -> None:
    whole = ids(pipeline().epoch(0))
    dataset = pipeline().to_torch()
    it = iter(dataset)
    next(it)
    state = dataset.state_dict()
    other = pickle.loads(pickle.dumps(dataset))
    other.load_state_dict(state)
    same = pickle.loads(pickle.dumps(other))
    assert ids(same) == ids(other) == ids(it) == whole[1:]
    assert ids(same) == ids(pipeline().epoch(1))


@pytest.mark.parametrize("first", ["list", "list_length"])
def test_lengths_never_take_the_place_of_a_column(first: str) -> None:
    columns = {"list": pa.array([[1], [2, 3]]), "list_length": pa.array([7, 8])}
    ds = dml.from_arrow(pa.table(columns)).select(first, *columns.keys() - {first})
    batches = iter(ds.with_options(**OFF).to_torch(batch_size=2, ragged="pad"))
    with pytest.raises(PlanError, match="their lengths have no name"):
        next(batches)


def test_what_cannot_be_meant_is_said() -> None:
    with pytest.raises(PlanError, match="device='foo' is no device"):
        pipeline().to_torch(device="foo")
    rank = pipeline().streaming_split(2)[0]
    with pytest.raises(PlanError, match="batch_size=4 of one rank"):
        interop.to_torch(rank, batch_size=4)
    batches = iter(pipeline().to_torch(dtypes={"y": "float32"}))
    with pytest.raises(PlanError, match="dtypes= names 'y'"):
        next(batches)
