"""Test collections of Dask: partitions are units, and are computed when they are read."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml.errors import PlanError, SourceError
from dml.io.memory.dask import ClusterClient, from_dask
from dml.io.source import Source
from dml.io.user.user_source import read_datasource
from dml.testing.source_laws import check_source, units
from tests.cluster.dask_cases import eventually

dask = pytest.importorskip("dask")
pandas = pytest.importorskip("pandas")
array = pytest.importorskip("dask.array")
bag = pytest.importorskip("dask.bag")
dataframe = pytest.importorskip("dask.dataframe")


def source_of(collection: Any, schema: Any = None) -> Source:
    return read_datasource(from_dask(collection, schema, "synchronous"), b"n", atom_rows=2)


def frame() -> Any:
    rows = {"a": range(10), "f": [0.5] * 9 + [None], "s": [*"abcdefghi", None]}
    return pandas.DataFrame(rows)


@pytest.mark.law
def test_frames_keep_all_laws() -> None:
    want = pa.table(
        {
            "a": pa.array(range(10)),
            "f": pa.array([0.5] * 9 + [None]),
            "s": pa.array([*"abcdefghi", None]),
        }
    )
    source = source_of(dataframe.from_pandas(frame(), npartitions=3))
    check_source(source, want)
    assert [unit.is_open for unit in units(source)] == [True] * source.unit_count


def test_an_index_with_a_name_is_a_column() -> None:
    named = frame().set_index("a")
    assert dml.from_dask(dataframe.from_pandas(named, npartitions=2)).columns == ["a", "f", "s"]


def test_types_that_dask_does_not_know_are_those_of_the_first_partition() -> None:
    data = pandas.DataFrame({"l": [[1], [2, 3]]}, dtype="object")
    with dask.config.set({"dataframe.convert-string": False}):
        ds = dml.from_dask(dataframe.from_pandas(data, npartitions=1))
    assert dict(ds.schema) == {"l": pa.list_(pa.int64())}


@pytest.mark.law
@pytest.mark.parametrize("chunks", [(4, 1), (3, 2), (10, 2)])
def test_arrays_keep_all_laws(chunks: tuple[int, int]) -> None:
    values = np.arange(20, dtype="f4").reshape(10, 2)
    source = source_of(array.from_array(values, chunks=chunks))
    want = dml.from_numpy(values).to_arrow()
    check_source(source, want)
    assert source.row_count == 10


@pytest.mark.law
def test_chunks_of_unknown_length_are_open() -> None:
    values = array.arange(10, chunks=4)
    source = source_of(values[values % 2 == 0])
    assert source.row_count is None
    check_source(source, pa.table({"item": pa.array([0, 2, 4, 6, 8])}))


@pytest.mark.law
def test_bags_keep_all_laws() -> None:
    rows = [{"q": i, "w": None if i < 3 else "x"} for i in range(10)]
    source = source_of(bag.from_sequence(rows, npartitions=4))
    check_source(source, pa.Table.from_pylist(rows))
    values = source_of(bag.from_sequence(range(5), npartitions=2))
    check_source(values, pa.table({"item": range(5)}))


def test_partitions_are_computed_when_they_are_read() -> None:
    computed: list[int] = []

    def seen(values: Any) -> Any:
        computed.append(len(values))
        return values

    whole = array.arange(12, chunks=3).map_blocks(seen, dtype="int64", meta=np.empty(0, "int64"))
    ds = dml.from_dask(whole).with_options(executor="sync")
    assert not computed
    assert [row["item"] for row in ds.take(4)] == [0, 1, 2, 3]
    assert computed == [3, 3]


def test_a_name_follows_what_is_computed() -> None:
    one, again = (dataframe.from_pandas(frame(), npartitions=2) for _ in range(2))
    assert dml.from_dask(one).fingerprint() == dml.from_dask(again).fingerprint()
    assert dml.from_dask(one).fingerprint() != dml.from_dask(one[["a"]]).fingerprint()


@pytest.mark.cluster
def test_worker_processes_compute() -> None:
    ds = dml.from_dask(array.arange(40, chunks=7)).map(lambda row: {"y": row["item"] * 2})
    got = ds.with_options(executor="processes", num_workers=2)
    assert [row["y"] for row in got] == list(range(0, 80, 2))


def test_what_is_no_collection_is_refused() -> None:
    series = dataframe.from_pandas(frame(), npartitions=2)["a"]
    for stranger in (3, [1, 2], np.zeros(3), series):
        with pytest.raises(SourceError, match="needs a data frame, array or bag"):
            dml.from_dask(stranger)


@pytest.mark.law
def test_categories_that_dask_does_not_know_keep_their_type() -> None:
    data = pandas.DataFrame({"k": [3, 1, 3, 1]})
    whole = dataframe.from_pandas(data, npartitions=2)
    ds = dml.from_dask(whole.assign(c=whole.k.astype("category")))
    assert ds.schema["c"] == pa.int64()
    assert [row["c"] for row in ds] == [3, 1, 3, 1]


@pytest.mark.law
def test_arrays_of_texts_objects_and_fields() -> None:
    for values in (np.array(["a", "bc", "d"]), np.array([b"x", b"yz", b"w"]), OBJECTS, FIELDS):
        made = dml.from_dask(array.from_array(values, chunks=2))
        assert made.to_list() == dml.from_numpy(values).to_list()


OBJECTS = np.array(["a", None, "c"], object)
FIELDS = np.array([(1, 2.5), (3, 4.5), (5, 6.5)], [("n", "i4"), ("x", "f8")])


def test_what_has_no_rows_is_refused() -> None:
    for stranger in (array.zeros((), chunks=()), dask.delayed(list)()):
        with pytest.raises(SourceError, match="from_dask needs"):
            dml.from_dask(stranger)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    options = {"processes": False, "protocol": "tcp://", "dashboard_address": ":0"}
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, **options) as cluster,
        distributed.Client(cluster) as made,
    ):
        yield made


def persisted() -> list[tuple[Any, list[Any]]]:
    data = dataframe.from_pandas(frame()[["a"]], npartitions=2).persist()
    values = array.arange(10, chunks=4).persist()
    rows = bag.from_sequence(range(10), npartitions=2).persist()
    found = (data, data.assign(a=data.a + 1), values, values + 1, rows, rows.map(operator.neg))
    moved = ([i, i + 1] for i in range(10))
    numbers, more = zip(*moved, strict=True)
    wanted = (numbers, more, numbers, more, numbers, [-i for i in range(10)])
    return list(zip(found, map(list, wanted), strict=True))


@pytest.mark.cluster
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("executor", ["sync", "processes"])
def test_what_is_persisted_on_a_cluster_is_read_there(executor: Any) -> None:
    for collection, want in persisted():
        ds = dml.from_dask(collection).map(lambda row: {"text": str(next(iter(row.values())))})
        ds = ds.with_options(executor=executor, num_workers=1, telemetry_dir="off")
        assert [row["text"] for row in ds] == list(map(str, want))


@pytest.mark.cluster
def test_garbage_closes_no_client_while_another_one_starts(client: Any) -> None:
    """Or the thread in which garbage is collected would wait for itself."""
    utils = pytest.importorskip("distributed.utils")
    copied = pickle.loads(pickle.dumps(ClusterClient(client)))
    inner = copied.client
    with utils.LoopRunner._lock:  # held while a client starts
        del copied
        assert inner.status == "running"
    assert eventually(lambda: inner.status == "closed")


@pytest.mark.cluster
def test_what_is_persisted_on_a_cluster_is_read_by_its_workers(client: Any) -> None:
    for collection, want in persisted()[1:4:2]:
        ds = dml.from_dask(collection).with_options(scheduler=client, telemetry_dir="off")
        assert [next(iter(row.values())) for row in ds] == want


@pytest.mark.cluster
def test_a_cluster_within_a_process_cannot_be_reached_from_another() -> None:
    distributed = pytest.importorskip("distributed")
    options = {"processes": False, "dashboard_address": ":0"}
    with (
        distributed.LocalCluster(n_workers=1, **options) as cluster,
        distributed.Client(cluster),
    ):
        rows = bag.from_sequence(range(3)).persist()
        ds = dml.from_dask(rows).with_options(telemetry_dir="off")
        assert len(list(ds.with_options(executor="sync"))) == 3
        far = ds.map(lambda row: {"text": str(row)}).with_options(executor="processes")
        with pytest.raises(PlanError, match="cannot be sent to another process") as caught:
            list(far)
    assert "cannot be reached from another process" in caught.value.why
