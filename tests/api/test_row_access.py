"""Test verbs that return rows: their results, and that they read no more rows than they return."""

from __future__ import annotations

import importlib.util
import json
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.errors import NullValueError, PlanError
from tests.refusals import refused

OFF: dict[str, Any] = {"telemetry_dir": "off", "num_workers": 2}


def numbers(rows: int = 1000) -> Dataset:
    return dml.range(rows, atom_rows=100).with_columns(y=col("id") * 0.5).with_options(**OFF)


def counting(rows: int = 100_000) -> tuple[Dataset, list[int]]:
    """A pipeline that reads when it is asked, a row a partition, and the ids that it has made."""
    made: list[int] = []

    def note(row: dict[str, Any]) -> dict[str, Any]:
        made.append(row["id"])
        return row

    ds = dml.range(rows, atom_rows=1).map(note, schema={"id": "int64"}, fingerprint="note")
    return ds.with_options(executor="sync", target_partition_bytes=1, telemetry_dir="off"), made


@pytest.mark.parametrize(
    ("act", "most"),
    [
        (lambda ds: ds.first(), 2),
        (lambda ds: ds.show(3), 4),
        (lambda ds: ds.batch(2).show(3), 6),
        (lambda ds: ds.take_batch(5), 6),
        (lambda ds: next(ds.iter_rows()), 2),
        (lambda ds: next(ds.iter_batches(4)), 5),
        (lambda ds: next(ds.iter_batches(4, batch_format="arrow")), 5),
        (lambda ds: next(ds.batch(3).as_numpy_iterator()), 4),
    ],
)
def test_no_more_is_read_than_is_handed_over(act: Callable[[Dataset], Any], most: int) -> None:
    ds, made = counting()
    act(ds)
    assert 0 < len(made) <= most


def test_first_is_an_element_or_none() -> None:
    assert numbers().skip(3).first() == {"id": 3, "y": 1.5}
    batch = numbers().batch(2).first()
    assert batch is not None
    assert batch["id"].tolist() == [0, 1]
    assert numbers().filter(col("id") < 0).first() is None
    assert numbers().repeat().first() == {"id": 0, "y": 0.0}


def test_a_batch_of_the_first_rows() -> None:
    ds = numbers().shuffle(seed=4)
    want = [row["id"] for row in ds.take_rows(20)]
    assert ds.take_batch()["id"].tolist() == want
    assert ds.take_batch(20, batch_format="arrow")["id"].to_pylist() == want
    assert len(numbers(5).take_batch(9)["id"]) == 5
    none = dml.from_dict({"x": np.zeros((2, 3, 4), "f4"), "k": [1, 2]}).filter(col("k") > 2)
    assert {n: (a.shape, a.dtype) for n, a in none.take_batch(2).items()} == {
        "x": ((0, 3, 4), np.dtype("f4")),
        "k": ((0,), np.dtype("i8")),
    }
    assert none.take_batch(2, batch_format="arrow").schema == none.schema.to_arrow()
    refused(PlanError, lambda: numbers().take_batch(0), "at least 1")
    refused(PlanError, lambda: numbers().batch(3).take_batch(2), "batched already")


# --------------------------------------------------------------------------------------- iterators


def test_rows_are_the_next_epoch_and_resumable() -> None:
    ds = numbers(50).shuffle(seed=1)
    first = list(ds.iter_rows())
    second = ds.iter_rows()
    assert second.epoch == 1
    given = [next(second) for _ in range(7)]
    state = json.loads(json.dumps(second.state_dict()))
    rest = numbers(50).shuffle(seed=1).iter_rows()
    rest.load_state_dict(state)
    again = given + list(rest)
    assert sorted(row["id"] for row in again) == sorted(row["id"] for row in first)
    assert again == list(ds.epoch(1))
    assert again != first
    refused(PlanError, numbers().batch(2).iter_rows, "after batch")


@pytest.mark.law
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_are_those_of_batch(drop_last: bool, prefetch: int) -> None:
    ds = numbers().shuffle(64, seed=2).with_options(prefetch=prefetch)
    want = [batch["id"].tolist() for batch in ds.batch(300, drop_last=drop_last)]
    assert len(want) == (3 if drop_last else 4)
    arrays = ds.epoch(0).iter_batches(300, drop_last=drop_last)
    assert [batch["id"].tolist() for batch in arrays] == want
    tables = list(ds.epoch(0).iter_batches(300, drop_last=drop_last, batch_format="arrow"))
    assert all(isinstance(table, pa.Table) for table in tables)
    assert [table["id"].to_pylist() for table in tables] == want
    assert len(next(numbers().iter_batches())["id"]) == 256


@pytest.mark.parametrize("saved", ["numpy", "arrow"])
@pytest.mark.parametrize("restored", ["numpy", "arrow"])
def test_states_fit_each_format(saved: str, restored: str) -> None:
    ds = numbers().shuffle(seed=5)
    it = ds.iter_batches(64, batch_format=saved)
    for _ in range(5):
        next(it)
    again = numbers().shuffle(seed=5).iter_batches(64, batch_format=restored)
    again.load_state_dict(it.state_dict())
    want = [batch["id"].tolist() for batch in ds.batch(64)][5:]
    assert [np.asarray(batch["id"]).tolist() for batch in again] == want
    plain = iter(numbers().shuffle(seed=5).batch(64))
    plain.load_state_dict(it.state_dict())
    assert next(plain)["id"].tolist() == want[0]


def test_epochs_of_batches_are_counted_with_those_of_rows() -> None:
    ds = numbers(40).shuffle(seed=3)
    batches = [next(ds.iter_batches(40, batch_format=form)) for form in ("numpy", "arrow")]
    orders = [np.asarray(batch["id"]).tolist() for batch in batches]
    assert orders == [ds.epoch(k).take_batch(40)["id"].tolist() for k in (0, 1)]
    assert iter(ds).epoch == 2
    assert pickle.loads(pickle.dumps(ds)).iter_batches(7).epoch == 3


@pytest.mark.cluster
def test_tables_of_worker_processes_outlive_the_run() -> None:
    ds = numbers(5000).with_options(executor="processes", target_partition_bytes=4096)
    with ds.iter_batches(64, batch_format="arrow") as batches:
        tables = list(batches)
    assert pa.concat_tables(tables)["id"].to_pylist() == list(range(5000))


def test_arrow_batches_keep_nulls_that_arrays_cannot() -> None:
    ds = dml.from_items([{"k": 1}, {"k": None}]).with_options(**OFF)
    with pytest.raises(NullValueError):
        next(ds.iter_batches(2))
    with ds.iter_batches(2, batch_format="arrow") as batches:
        assert next(batches).to_pydict() == {"k": [1, None]}


def test_formats_that_are_not_there_are_refused_before_any_row() -> None:
    ds, made = counting()
    refused(PlanError, lambda: ds.iter_batches(4, batch_format="jax"), "numpy, arrow, pandas")
    refused(PlanError, lambda: ds.take_batch(4, batch_format="jax"), "numpy, arrow, pandas")
    for size in (0, True, None, [3]):
        refused(PlanError, partial(ds.iter_batches, size), "at least 1")  # type: ignore[arg-type]
    refused(PlanError, lambda: ds.batch(2).iter_batches(2), "batched already")
    assert not made


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_without_a_library_it_says_so_before_any_row(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    ds, made = counting()
    for act in (
        getattr(ds, f"to_{library}"),
        lambda: ds.iter_batches(4, batch_format=library),
        lambda: ds.take_batch(4, batch_format=library),
    ):
        refused(PlanError, act, f"pip install {library}")
    assert not made


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames(library: str) -> None:
    pytest.importorskip(library)
    ds = numbers(10)
    assert getattr(ds, f"to_{library}")().shape == (10, 2)
    assert [len(frame) for frame in ds.iter_batches(4, batch_format=library)] == [4, 4, 2]
    assert ds.take_batch(3, batch_format=library)["id"].to_list() == [0, 1, 2]
    none = ds.filter(col("id") < 0).take_batch(3, batch_format=library)
    assert list(none.columns) == ["id", "y"]


@pytest.mark.law
def test_rows_as_python_values() -> None:
    ds = numbers(3)
    assert ds.to_list() == [{"id": n, "y": n * 0.5} for n in range(3)]
    assert ds.to_dict() == {"id": [0, 1, 2], "y": [0.0, 0.5, 1.0]}
    assert dml.from_dict({"x": [None, 1]}).to_dict() == {"x": [None, 1]}
    assert len(ds.batch(2).to_list()) == 2
    refused(PlanError, lambda: numbers().repeat().to_list(), "endless")


# ------------------------------------------------------------------------------------- as a whole


def test_no_rows_have_the_types_of_their_columns() -> None:
    none = dml.from_dict({"x": np.zeros((2, 3), "f4"), "k": [1, 2]}).filter(col("k") > 2)
    arrays = none.with_options(**OFF).to_numpy()
    assert (arrays["x"].shape, arrays["x"].dtype) == ((0, 3), np.dtype("f4"))
    assert arrays["k"].dtype == np.dtype("i8")


def test_a_fold_goes_in_order_and_meets_each_element_once() -> None:
    assert numbers(5).reduce("", lambda text, row: f"{text}{row['id']}") == "01234"
    ds = numbers().shuffle(seed=9)
    start: list[int] = []
    order = ds.reduce(start, lambda seen, row: [*seen, row["id"]])
    assert order == [row["id"] for row in ds]
    assert numbers(10).batch(4).reduce(0, lambda n, batch: n + len(batch["id"])) == 10
    assert numbers(0).reduce("start", lambda *_: "never") == "start"
    refused(PlanError, lambda: numbers().repeat().reduce(0, lambda n, _: n), "endless")


def test_a_fold_reads_as_it_goes_and_lets_its_own_errors_through() -> None:
    ds, made = counting()

    def until(seen: int, row: dict[str, Any]) -> int:
        if row["id"] == 5:
            raise KeyError("enough")
        return seen + 1

    with pytest.raises(KeyError, match="enough"):
        ds.reduce(0, until)
    assert len(made) <= 8


# --------------------------------------------------------------------------------------------- show


def test_rows_are_shown_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    columns = {"id": [1, 20], "text": ["a\nb", "x" * 40], "t": np.arange(4.0).reshape(2, 2)}
    ds = dml.from_dict(columns).with_options(**OFF)
    ds.show()
    assert capsys.readouterr().out.split("\n") == [
        "   id  text                              t",
        "int64  string                            f8[2]",
        "    1  a\\nb                              [0.0, 1.0]",
        "   20  xxxxxxxxxxxxxxxxxxxxxxxxxxxxx...  [2.0, 3.0]",
        "(2 rows)",
        "",
    ]


@pytest.mark.parametrize(
    ("ds", "n", "lines"),
    [
        (numbers(), 1, ["   id       y", "int64  double", "    0     0.0", "(1 row)"]),
        (numbers(), 0, ["   id       y", "int64  double", "(0 rows)"]),
        (numbers(2).batch(2), 1, ["   id       y", "int64  double", "    0     0.0", "(1 row)"]),
        (dml.from_items([{"x": None}]), 5, ["x", "null", "null", "(1 row)"]),
        (dml.range(0).map(lambda row: {"s": str(row)}), 5, ["(0 rows), no columns"]),
    ],
)
def test_few_rows_are_shown_too(
    ds: Dataset, n: int, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ds.with_options(**OFF).show(n) is None
    assert capsys.readouterr().out == "\n".join([*lines, ""])


def test_twenty_rows_are_shown_unless_more_are_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    numbers().show()
    assert capsys.readouterr().out.count("\n") == 23
    refused(PlanError, lambda: numbers().show(-1), "show")
    assert iter(numbers()).epoch == 0


@pytest.mark.parametrize("form", ["numpy", "arrow", "pandas"])
def test_the_memory_is_that_of_the_last_iteration(form: str) -> None:
    ds = dml.from_numpy({"x": np.arange(300_000)})
    ds = ds.with_options(executor="sync", telemetry_dir="off", memory_limit="256MiB")
    assert not ds.memory_report().stages, "before the first iteration"
    next(ds.iter_batches(1000))
    with ds.iter_batches(1000, batch_format=form) as batches:
        assert sum(map(len if form == "pandas" else rows_of, batches)) == 300_000
        found, own = ds.memory_report(), batches.memory_report()
    slices = [each.slices for each in found.stages]
    assert slices == [each.slices for each in own.stages]
    assert slices[0] > 1, "the iteration before it read one"
    assert found.limit_bytes == own.limit_bytes == 256 << 20


def rows_of(batch: Any) -> int:
    return len(batch["x"])


def test_marked_lists_of_no_rows_have_arrays() -> None:
    lists = dml.from_items([{"x": [1]}], schema={"x": "list<int64>"}).filter(dml.col("x").is_null())
    padded, ragged = lists.padded_batch(2).to_numpy(), lists.ragged_batch(2).to_numpy()
    assert padded["x"].shape == (0, 0)
    assert padded["x"].dtype == "i8"
    assert (ragged["x"].tolist(), ragged["x_offsets"].tolist()) == ([], [0])
