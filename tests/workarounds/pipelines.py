"""Workarounds for users of other pipeline libraries, as the tables describe them."""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest

import dml
from dml import Dataset, col

Workaround = Callable[[Path], None]


def rows(n: int = 10) -> Dataset:
    """Numbers and texts in order."""
    return dml.from_dict({"x": list(range(n)), "s": [f"text {i}" for i in range(n)]})


def sparse_batch(_: Path) -> None:
    lists = dml.from_dict({"v": [[1, 2], [], [3]]})
    (kept,) = lists.ragged_batch(3).to_list()
    assert kept["v"].tolist() == [1, 2, 3]
    assert kept["v_offsets"].tolist() == [0, 2, 2, 3]
    (filled,) = lists.padded_batch(3).to_list()
    assert filled["v"].tolist() == [[1, 2], [0, 0], [3, 0]]


def copied(_: Path) -> None:
    mine = rows().shuffle()
    first = mine.to_list()
    list(mine)
    other = mine.with_options()
    assert list(other) == first, "epoch 0, whatever the first one has seen"
    assert other.fingerprint() == mine.fingerprint()


def parts(_: Path) -> None:
    ds = rows()
    tables = [part.compute(scheduler="sync") for part in ds.to_dask()]
    assert pa.concat_tables(tables).to_pydict() == ds.to_dict()


def arrow_batches(_: Path) -> None:
    tables = list(rows().iter_batches(4, batch_format="arrow"))
    assert [table.num_rows for table in tables] == [4, 4, 2]
    assert pa.concat_tables(tables).to_pydict() == rows().to_dict()


def lineage(_: Path) -> None:
    ds = rows().map(lambda row: {"y": row["x"] * 2}).filter(col("y") > 4)
    assert cloudpickle.loads(cloudpickle.dumps(ds)).to_dict() == ds.to_dict()
    plain = rows().filter(col("x") > 4)
    assert pickle.loads(pickle.dumps(plain)).to_dict() == plain.to_dict()


def counted_tasks(_: Path) -> None:
    ds = dml.range(100, atom_rows=10)
    assert len(ds.to_dask()) >= 1
    assert len(ds.with_options(target_partition_bytes="100B").to_dask()) > len(ds.to_dask())


def sizes(folder: Path) -> None:
    small = dml.range(100, atom_rows=10).with_options(target_partition_bytes="100B")
    assert small.to_dict() == dml.range(100).to_dict()
    small.write_parquet(folder / "out", rows_per_file=30)
    assert len(list((folder / "out").glob("*.parquet"))) == 4


def named(_: Path) -> None:
    pipelines = {"train": rows().filter(col("x") > 3), "same": rows().filter(col("x") > 3)}
    assert pipelines["train"].fingerprint() == pipelines["same"].fingerprint()


def frames(_: Path) -> None:
    ds = rows()
    assert ds.to_pandas()["x"].tolist() == ds.to_dask("dataframe").compute()["x"].tolist()


def random_access(_: Path) -> None:
    table = rows().to_arrow()
    places = {text: place for place, text in enumerate(table["s"].to_pylist())}
    assert table.slice(places["text 7"], 1).to_pylist() == [{"x": 7, "s": "text 7"}]


def database(folder: Path) -> None:
    with sqlite3.connect(folder / "a.db") as client:
        client.execute("create table t (x integer, s text)")
        client.executemany("insert into t values (:x, :s)", rows().iter_rows())
    assert dml.read_sql("select * from t", lambda: sqlite3.connect(folder / "a.db")).count() == 10


def iceberg(folder: Path) -> None:
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    place = {"uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}"}
    catalog = sql.SqlCatalog("default", **place)
    catalog.create_namespace("a")
    table = catalog.create_table("a.t", rows().to_arrow().schema)
    for batch in rows().iter_batches(4, batch_format="arrow"):
        table.append(batch)
    read = dml.read_iceberg(table).to_list()
    assert sorted(read, key=lambda row: int(row["x"])) == rows().to_list()


def images(folder: Path) -> None:
    pixels = dml.from_dict({"name": ["a", "b"], "png": [b"\x89PNG a", b"\x89PNG b"]})
    for row in pixels.iter_rows():
        (folder / f"{row['name']}.png").write_bytes(row["png"])
    assert (
        dml.read_binary_files(str(folder / "*.png")).to_dict()["bytes"] == pixels.to_dict()["png"]
    )
    shards = pixels.rename({"name": "__key__"})
    shards.write_webdataset(folder / "shards")
    assert dml.read_webdataset(folder / "shards").count() == 2


def plain_arrays(_: Path) -> None:
    for batch in rows().select("x").iter_batches(4):
        assert type(batch["x"]) is np.ndarray
        assert batch["x"].flags.writeable


def without_an_end(_: Path) -> None:
    assert dml.range(5, 10**18, 3).take_rows(2) == [{"id": 5}, {"id": 8}]


def places(_: Path) -> None:
    ds, other = rows(), dml.from_dict({"index": [7, 2, 2, 0]})
    assert other.join(ds.with_row_index(), on="index").to_dict()["x"] == [7, 2, 2, 0]
    assert ds.slice(3, 4).to_dict()["x"] == [3, 4, 5, 6]


def shares(_: Path) -> None:
    ds = rows(1000).with_columns(c=col("x") % 10 == 0)
    even = ds.rejection_resample("c", {True: 0.5, False: 0.5}).to_dict()["c"]
    assert even.count(True) == 100
    assert 60 < even.count(False) < 140
    assert ds.filter(col("c")).mix(ds, weights=[1, 3]).take(8).to_dict()["c"].count(True) >= 2


class Parts(dml.DataSource):
    """Two parts of three numbers."""

    def schema(self) -> Any:
        return {"x": "int64"}

    def parts(self) -> list[dml.SourcePart]:
        return [dml.SourcePart("a", payload=0), dml.SourcePart("b", payload=3)]

    def read(self, part: dml.SourcePart, columns: Any) -> Any:
        return [pa.table({"x": np.arange(part.payload, part.payload + 3)})]


def dealt(_: Path) -> None:
    assert dml.read_datasource(Parts()).to_dict() == {"x": [0, 1, 2, 3, 4, 5]}


@pytest.mark.cluster
def interpreters(_: Path) -> None:
    ds = rows().map(lambda row: {"y": row["x"] + 1})
    assert ds.with_options(executor="processes", num_workers=1).to_dict()["y"][-1] == 10


def ahead(_: Path) -> None:
    assert rows().prefetch(2).to_dict() == rows().to_dict()


def constructed(_: Path) -> None:
    class Plus:
        def __init__(self, more: int) -> None:
            self.more = more

        def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
            return {"y": row["x"] + self.more}

    assert rows(2).map(Plus, fn_constructor_args=(5,)).to_dict() == {"y": [5, 6]}


def vectors(_: Path) -> None:
    assert rows(3).to_numpy()["x"].tolist() == [0, 1, 2]


def one_more(_: Path) -> None:
    assert rows(2).concat(dml.from_items([{"x": 9, "s": "z"}])).to_dict()["x"] == [0, 1, 9]


def values_of_ones_own(_: Path) -> None:
    assert rows(2).with_columns(y=col("x") + 1).to_dict()["y"] == [1, 2]
    assert rows(2).zip(dml.from_dict({"z": [5, 6]})).to_dict()["z"] == [5, 6]


def a_stream(folder: Path) -> None:
    table = rows().to_arrow()
    with pa.OSFile(str(folder / "a"), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
        out.write_table(table)
    assert dml.from_arrow(pa.ipc.open_stream(str(folder / "a"))).to_dict() == rows().to_dict()
    assert dml.from_arrow(pa.ipc.open_stream((folder / "a").read_bytes())).count() == 10


def classes(_: Path) -> None:
    ds = dml.from_dict({"label": ["dog", "cat", "dog"]})
    assert ds.with_columns(label=col("label").lookup(["cat", "dog"])).to_dict()["label"] == [
        1,
        0,
        1,
    ]
    assert ds.unique("label") == ["dog", "cat"]


def labels(_: Path) -> None:
    ds = dml.from_dict({"label": [0, 1, 1]})
    turned = ds.with_columns(label=col("label").replace_strict({0: 1, 1: 0}))
    assert turned.to_dict()["label"] == [1, 0, 0]


def fields(_: Path) -> None:
    assert dml.from_items([{"x": {"a": 1, "b": 2}}]).unnest("x").to_dict() == {"a": [1], "b": [2]}


def as_they_come(folder: Path) -> None:
    rows().shuffle(seed=1).write_parquet(folder / "out")
    assert dml.read_parquet(folder / "out").to_dict() == rows().shuffle(seed=1).to_dict()


class Numbers:
    """What is read by index."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"x": index}


def by_index(_: Path) -> None:
    made = dml.from_torch(Numbers()).shuffle(seed=3)
    assert sorted(made.to_dict()["x"]) == [0, 1, 2, 3, 4]


def states(_: Path) -> None:
    ds = rows()
    it = iter(ds)
    next(it)
    state = it.state_dict()
    again = iter(ds)
    again.load_state_dict(state)
    assert list(again) == list(it)


def begun(_: Path) -> None:
    lists = dml.from_dict({"t": [[1, 2], [3], [4, 5]]})
    with_first = lists.map(lambda row: {"t": [0, *row["t"]]})
    assert with_first.pack(3, "t").to_dict()["t"] == [[0, 1, 2], [0, 4, 5], [0, 3]]
    assert lists.pack(3, "t").to_dict()["segment_ids"] == [[1, 1, 2], [1, 1]]


def card(_: Path) -> None:
    assert rows().fingerprint() == rows().fingerprint() != rows(9).fingerprint()


RUN: dict[str, dict[str, Workaround]] = {
    "tf.data": {"sparse_batch": sparse_batch, "counter": without_an_end},
    "Ray Data": {
        "copy": copied,
        "get_internal_block_refs": parts,
        "iter_internal_ref_bundles": arrow_batches,
        "has_serializable_lineage": lineage,
        "serialize_lineage": lineage,
        "deserialize_lineage": lineage,
        "num_blocks": counted_tasks,
        "repartition": sizes,
        "set_name": named,
        "to_mars": frames,
        "to_random_access_dataset": random_access,
        "write_iceberg": iceberg,
        "write_images": images,
        "write_sql": database,
        "iter_jax_batches": plain_arrays,
        "iter_tf_batches": plain_arrays,
    },
    "torch": {
        "Subset": places,
        "WeightedRandomSampler": shares,
        "get_worker_info": dealt,
    },
    "DataLoader": {
        "in_order": ahead,
        "multiprocessing_context": interpreters,
        "worker_init_fn": constructed,
    },
    "Hugging Face": {
        "add_elasticsearch_index": vectors,
        "builder_name": card,
        "n_shards": counted_tasks,
        "add_item": one_more,
        "add_column": values_of_ones_own,
        "from_buffer": a_stream,
        "from_file": a_stream,
        "class_encode_column": classes,
        "align_labels_with_mapping": labels,
        "flatten": fields,
        "flatten_indices": as_they_come,
        "select": places,
        "to_sql": database,
        "state_dict": states,
        "load_state_dict": states,
    },
    "Grain's iterators": {
        "DatasetIterator.get_state": states,
        "DatasetIterator.start_prefetch": ahead,
        "DataLoader(data_source)": by_index,
    },
    "Grain's transforms": {"sources.ArrayRecordDataSource": by_index},
    "Grain's experiments": {"BOSHandling": begun},
}
