"""Test columns of tensors whose shapes differ: creation, delivery, and all executors."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml import col
from dml.base.open_tensors import OpenTensor, arrays_in, column_of, stacked_in
from dml.data.schema import Schema, data_type, short
from dml.errors import SchemaError, SourceError, UDFError
from dml.kernels.vec import taken
from tests.expr.checks import holds

IMAGE = OpenTensor(pa.uint8(), (None, None))


def image(i: int) -> np.ndarray:
    return np.full((i % 4, 1 + i % 3), i, "u1")


def images(n: int = 9, **options: Any) -> dml.Dataset:
    return dml.range(n).map(lambda r: {"k": r["id"], "x": image(r["id"])}, **options)


def lists() -> dml.Dataset:
    return dml.from_items([{"x": list(range(n)), "k": n} for n in (1, 2, 3, 5, 7)])


def same(got: Any, wanted: Sequence[np.ndarray | None]) -> bool:
    pairs = zip(got, wanted, strict=True)
    return all(
        a is b if b is None or a is None else a.dtype == b.dtype and np.array_equal(a, b)
        for a, b in pairs
    )


# -------------------------------------------------------------------------------------- the column


@pytest.mark.parametrize(
    "arrays",
    [
        [],
        [None],
        [np.zeros((0, 3), "f4"), None, np.arange(6, dtype="f4").reshape(2, 3)],
        [np.array([[True, False]]), np.array([[True], [False], [True]])],
        [np.arange(24, dtype="i2").reshape(2, 3, 4)[:, ::2], np.zeros((1, 1, 1), "i2")],
    ],
)
def test_arrays_come_back(arrays: list[np.ndarray | None]) -> None:
    there = next((a for a in arrays if a is not None), np.zeros((1, 1), "u1"))
    value = pa.bool_() if there.dtype == bool else pa.from_numpy_dtype(there.dtype)
    kind = OpenTensor(value, (None,) * there.ndim)
    column = column_of(arrays, kind)
    assert same(arrays_in(column), arrays)
    assert same(arrays_in(column.slice(1)), arrays[1:])
    assert same(
        arrays_in(column.take(pa.array([0, None, 0])) if arrays else column),
        [arrays[0], None, arrays[0]] if arrays else [],
    )
    assert same(arrays_in(pa.concat_arrays([column, column.slice(1)])), arrays + arrays[1:])
    assert not any(a.flags.writeable for a in arrays_in(column) if a is not None)
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"x": column})
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    read = pa.ipc.open_stream(sink.getvalue()).read_all()
    assert read.schema.field("x").type == kind
    assert same(arrays_in(read["x"].combine_chunks()), arrays)


def test_one_shape_is_one_array() -> None:
    column = column_of([image(5), image(5), image(6)], IMAGE)
    assert stacked_in(column) is None
    whole = stacked_in(column.slice(0, 2))
    assert whole is not None
    assert whole.tolist() == [image(5).tolist()] * 2
    assert stacked_in(column_of([image(5), None], IMAGE)) is None


def test_types_are_values() -> None:
    kinds = [
        IMAGE,
        OpenTensor(pa.uint8(), (None, 3)),
        OpenTensor(pa.uint8(), (None, None, None)),
        OpenTensor(pa.int8(), (None, None)),
        OpenTensor(pa.uint8(), (None, None), stacked=True),
    ]
    assert len(set(kinds)) == len({Schema({"x": kind}).digest for kind in kinds}) == 5
    assert [pickle.loads(pickle.dumps(kind)) for kind in kinds] == kinds
    assert [short(kind) for kind in kinds[:2]] == ["u1[?,?]", "u1[?,3]"]


def test_types_in_letters() -> None:
    assert data_type("u1[?,?]") == data_type("uint8[?, ?]") == IMAGE
    assert data_type("float32[2,3]") == data_type("f4[2, 3]")
    assert data_type("float32[2,3]") == pa.fixed_shape_tensor(pa.float32(), (2, 3))
    assert data_type("int64[?]") == pa.list_(pa.int64())
    assert data_type("timestamp[us]") == pa.timestamp("us")
    for word in ("str[?,?]", "f4[]", "f4[x]", "f4[?,?"):
        with pytest.raises(SchemaError, match="is not a type"):
            data_type(word)


# ----------------------------------------------------------------------------- functions of rows


@pytest.mark.law
@pytest.mark.parametrize("options", [{}, {"schema": {"k": "int64", "x": "u1[?,?]"}}])
def test_rows_of_several_shapes_are_object_arrays(options: Any) -> None:
    ds = images(**options)
    assert same([row["x"] for row in ds], [image(i) for i in range(9)])
    batches = list(ds.batch(4))
    assert [b["x"].dtype for b in batches] == [object] * 3
    assert same([a for b in batches for a in b["x"]], [image(i) for i in range(9)])
    assert all(a.flags.writeable for b in batches for a in b["x"])
    assert holds(ds.batch(4)) == 3
    assert holds(ds.map(lambda r: {"h": r["x"].shape[0], "s": int(r["x"].sum())})) == 9


@pytest.mark.law
def test_nulls_and_nans() -> None:
    odd = np.array([[np.uint64(0xFFF8000000000001)]]).view("f8")

    def made(row: dict[str, Any]) -> dict[str, Any]:
        i = row["id"]
        return {"k": i, "x": None if i == 2 else odd if i == 3 else np.ones((i, 2))}

    ds = dml.range(5).map(made)
    batch = next(iter(ds.batch(5)))
    assert batch["x"][2] is None
    assert batch["x"][3].tobytes() == np.array([[np.nan]]).tobytes()
    assert holds(ds.batch(2)) == 3
    assert [r["k"] for r in ds.filter(~col("x").is_null())] == [0, 1, 3, 4]


def typed(ds: dml.Dataset) -> dml.Dataset:
    return ds.map(lambda r: r, schema={"k": "int64", "x": "u1[?,?]"})


VERBS: dict[str, Any] = {
    "filter": lambda ds: ds.filter(col("k") % 2 == 0),
    "sort": lambda ds: ds.sort("k", descending=True),
    "shuffle": lambda ds: ds.shuffle(seed=1),
    "window": lambda ds: ds.shuffle(4, seed=1),
    "concat": lambda ds: ds.concat(ds),
    "zip": lambda ds: ds.zip(dml.range(9)),
    "join": lambda ds: typed(ds).join(dml.range(20), left_on="k", right_on="id", how="left"),
    "matches": lambda ds: dml.range(20).join(typed(ds), left_on="id", right_on="k", how="left"),
    "cache": lambda ds: ds.cache().repeat(2),
    "rows and batches": lambda ds: ds.batch(4).unbatch().batch(3),
    "flat_map": lambda ds: ds.flat_map(lambda r: [r] * (r["k"] % 3)),
    "when": lambda ds: ds.with_columns(
        y=dml.when(col("k") > 3).then(col("x")).otherwise(None),
        z=dml.when(col("k") > 3).then(col("x")).otherwise(col("x")),
    ),
    "group": lambda ds: ds.drop_duplicates(["k"]),
    "batches": lambda ds: ds.map_batches(
        lambda b: {"k": b["k"], "x": [a + 1 for a in b["x"]]}, batch_size=4
    ),
    "tables": lambda ds: ds.map_batches(lambda t: t, batch_format="arrow"),
    "objects": lambda ds: ds.batch(4).map(lambda b: {"x": b["x"], "k": b["k"]}),
}


@pytest.mark.sample(8)
@pytest.mark.law
@pytest.mark.parametrize("verb", VERBS)
def test_operators_carry_them(verb: str) -> None:
    assert holds(VERBS[verb](images())) > 0


@pytest.mark.parametrize("executor", ["sync", "threads", "processes"])
def test_executors_give_the_same(executor: str) -> None:
    ds = images(40).filter(col("k") >= 0).map(lambda r: {"x": r["x"] * 2}).batch(16)
    got = ds.with_options(executor=executor, num_workers=2)
    assert same([a for b in got for a in b["x"]], [image(i) * 2 for i in range(40)])


def test_a_cache_on_disk_and_files(tmp_path: Path) -> None:
    kept = images().cache(tier="disk").with_options(cache_dir=str(tmp_path / "kept"))
    for _ in range(2):
        assert same([row["x"] for row in kept], [image(i) for i in range(9)])
    for word in ("parquet", "arrow"):
        getattr(images(), f"write_{word}")(str(tmp_path / word))
        read = getattr(dml, f"read_{word}")(str(tmp_path / word))
        assert read.schema["x"] == IMAGE
        assert same([row["x"] for row in read.sort("k")], [image(i) for i in range(9)])


def test_a_run_goes_on_where_it_stopped() -> None:
    it = iter(images(20).batch(3))
    first = [next(it), next(it)]
    rest = iter(images(20).batch(3))
    rest.load_state_dict(json.loads(json.dumps(it.state_dict())))
    arrays = [a for b in (*first, *rest) for a in b["x"]]
    assert same(arrays, [image(i) for i in range(20)])


def test_what_does_not_fit_into_memory_is_spilled() -> None:
    def wide(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": np.full((100 + row["id"] % 7, 500), row["id"])}

    ds = dml.range(200).map(wide).shuffle(seed=3).with_options(memory_limit="64MiB")
    got = [a for b in ds.batch(4) for a in b["x"]]
    assert sorted(int(a[0, 0]) for a in got) == list(range(200))
    assert all(a.shape == (100 + int(a[0, 0]) % 7, 500) for a in got)


@pytest.mark.parametrize("schema", [None, {"x": "i8[2,1]"}])
def test_another_shape_than_a_fixed_one_names_the_way_out(schema: Any) -> None:
    ds = dml.range(80).map(lambda r: {"x": np.zeros((2 + r["id"] // 70, 1), int)}, schema=schema)
    with pytest.raises(UDFError, match=r"array of int64\[3, 1\]") as caught:
        list(ds)
    assert "schema={'x': 'i8[?,?]'}" in caught.value.try_
    assert "padded_batch" in caught.value.try_


@pytest.mark.parametrize(
    "values",
    [
        [np.zeros((2, 2)), np.zeros((2, 2, 2))],
        [np.zeros((2, 2)), np.zeros((2, 3), "f4")],
        [np.zeros((2, 2)), np.zeros(3)],
        [np.zeros((2, 2), complex), np.zeros((2, 3), complex)],
    ],
)
def test_arrays_without_a_common_type_are_refused(values: list[np.ndarray]) -> None:
    with pytest.raises(UDFError, match="arrays of"):
        list(dml.range(2).map(lambda r: {"x": values[r["id"]]}))


def test_a_declared_axis_is_checked() -> None:
    ds = dml.range(3).map(lambda r: {"x": np.zeros((r["id"], 2))}, schema={"x": "f8[?,3]"})
    with pytest.raises(UDFError, match=r"float64\[0, 2\] for 'x', which holds f8\[\?,3\]"):
        list(ds)


@pytest.mark.law
def test_values_in_memory_may_differ_in_shape() -> None:
    arrays = [image(i) for i in (5, 6, 7)]
    for ds in (
        dml.from_items([{"x": a} for a in arrays]),
        dml.from_dict({"x": arrays}),
        dml.from_items([{"x": a} for a in arrays], schema={"x": "u1[?,?]"}),
    ):
        assert ds.schema["x"] == IMAGE
        assert same([row["x"] for row in ds], arrays)
        assert holds(ds.batch(2)) == 2
    with pytest.raises(SourceError, match="row 1 of column 'x' has dtype uint8 and shape"):
        dml.from_items([{"x": arrays[0]}, {"x": arrays[1][0]}])
    with pytest.raises(SourceError, match=r"row 1 of column 'x' does not fit u1\[1,\?\]"):
        dml.from_items([{"x": a} for a in arrays], schema={"x": "u1[1,?]"})


# -------------------------------------------------------------------------- functions of batches


@pytest.mark.law
def test_batches_of_lists_of_arrays() -> None:
    def grown(batch: dict[str, np.ndarray]) -> dict[str, Any]:
        return {"x": [np.full((i, 2), i) for i in batch["id"].tolist()]}

    ds = dml.range(7).map_batches(grown, batch_size=3)
    assert same([row["x"] for row in ds], [np.full((i, 2), i) for i in range(7)])
    assert holds(ds.batch(2)) == 4
    assert holds(dml.range(7).batch(3).map(grown)) == 3


@pytest.mark.law
def test_groups_may_give_lists_of_arrays_and_of_lists() -> None:
    groups = dml.range(6).with_columns(k=col("id") % 2).group_by("k")
    ds = groups.map_groups(
        lambda b: {
            "x": [np.zeros((i, 2)) for i in b["id"].tolist()],
            "l": [[i] * i for i in b["id"].tolist()],
        }
    )
    assert [row["x"].shape[0] for row in ds] == [0, 2, 4, 1, 3, 5]
    assert [len(row["l"]) for row in ds] == [0, 2, 4, 1, 3, 5]
    assert holds(ds) == 6


@pytest.mark.law
@pytest.mark.parametrize("bucketed", [False, True])
def test_functions_of_padded_batches_keep_their_widths(bucketed: bool) -> None:
    ds = lists().bucket_by_length("x", [3, 6], [2, 2, 2]) if bucketed else lists().padded_batch(2)

    def made(b: dict[str, np.ndarray]) -> dict[str, Any]:
        x = b["x"]
        return {"x": x * 2.5, "pairs": x[:, :, None] == x[:, None, :], "sum": x.sum(axis=1)}

    got, given = list(ds.map(made)), list(ds)
    for out, b in zip(got, given, strict=True):
        wanted = made(b)
        assert {n: (a.dtype, a.tolist()) for n, a in out.items()} == {
            n: (a.dtype, a.tolist()) for n, a in wanted.items()
        }
    assert holds(ds.map(made)) == 3
    assert holds(ds.map(made).map(lambda b: {"pairs": b["pairs"].astype("f4"), "x": b["x"]})) == 3


@pytest.mark.law
def test_widths_may_be_declared() -> None:
    kinds = {"x": "int64[?]", "pairs": "bool[?,?]"}
    ds = (
        lists()
        .padded_batch(2)
        .map(
            lambda b: {"x": b["x"], "pairs": b["x"][:, :, None] > b["x"][:, None, :]}, schema=kinds
        )
    )
    assert [(b["x"].shape, b["pairs"].shape) for b in ds] == [
        ((2, 2), (2, 2, 2)),
        ((2, 5), (2, 5, 5)),
        ((1, 7), (1, 7, 7)),
    ]
    assert holds(ds) == 3
    floats = lists().padded_batch(2).map(lambda b: {"x": b["x"]}, schema={"x": "f4[?]"})
    assert [(b["x"].dtype, b["x"].shape) for b in floats][1:] == [("f4", (2, 5)), ("f4", (1, 7))]
    assert holds(floats) == 3
    fixed = lists().padded_batch(2).map(lambda b: {"x": b["x"]}, schema={"x": "i8[2]"})
    with pytest.raises(UDFError, match=r"'x' of i8\[5\], while i8\[2\]") as caught:
        list(fixed)
    assert "schema={'x': 'i8[?]'}" in caught.value.try_
    assert "padded_batch" in caught.value.try_


@pytest.mark.law
def test_declared_lists_stay_lists() -> None:
    ds = lists().padded_batch(2).map(lambda b: {"x": b["x"]}, schema={"x": pa.list_(pa.int64())})
    assert [b["x"].dtype for b in ds] == [object] * 3
    assert holds(ds) == 3


@pytest.mark.law
def test_rows_of_padded_results_are_padded_again() -> None:
    ds = lists().padded_batch(2).map(lambda b: {"x": b["x"] + 1}).unbatch().batch(5)
    (batch,) = ds
    assert batch["x"].shape == (5, 7)
    assert holds(ds) == 1


# ------------------------------------------------------------------ data frames, casts, generators


@pytest.mark.parametrize("fixed", [False, True])
def test_functions_of_pandas_see_arrays_and_may_return_them(*, fixed: bool) -> None:
    def arrays(i: int) -> np.ndarray:
        return np.full((2, 3), i, "u1") if fixed else image(i)

    def doubled(frame: Any) -> Any:
        assert frame["x"].dtype == object
        assert [v.shape for v in frame["x"]] == [arrays(i).shape for i in frame["k"]]
        frame["x"].iloc[0][...] += 0  # it is the function's
        frame["x"] = [v * 2 for v in frame["x"]]
        return frame

    ds = dml.range(9).map(lambda r: {"k": r["id"], "x": arrays(r["id"])})
    made = ds.map_batches(doubled, batch_format="pandas", batch_size=4)
    wanted = [arrays(i) * 2 for i in range(9)]
    assert same([row["x"] for row in made], wanted)
    assert made.to_arrow().schema.field("x").type == IMAGE
    assert holds(made) == 9
    frame = ds.to_pandas()
    assert same(frame["x"], [arrays(i) for i in range(9)])
    assert all(v.flags.writeable for v in frame["x"])


def test_frames_show_missing_arrays_as_none() -> None:
    ds = dml.from_items([{"x": None}, {"x": image(1)}, {"x": image(2)}])
    made = ds.map_batches(lambda frame: frame, batch_format="pandas")
    assert same([row["x"] for row in made], [None, image(1), image(2)])
    two = [None, np.zeros((1, 1), "u1"), np.zeros((1, 1))]
    mixed = ds.map_batches(lambda frame: frame.assign(x=two), batch_format="pandas")
    with pytest.raises(UDFError, match="data frame that Arrow cannot hold: arrays of"):
        list(mixed)


def test_frames_of_batches_have_arrays() -> None:
    (frame,) = images(3).iter_batches(3, batch_format="pandas")
    assert same(frame["x"], [image(i) for i in range(3)])


def test_a_tensor_of_fixed_shape_is_cast_to_an_open_one() -> None:
    fixed = [np.full((2, 3), i, "u1") for i in range(4)]
    ds = dml.from_items([{"x": None if i == 1 else x} for i, x in enumerate(fixed)])
    made = ds.cast(x="u1[?,3]")
    assert str(made.schema) == "x: u1[?,3]"
    assert same([row["x"] for row in made], [fixed[0], None, *fixed[2:]])
    assert holds(made) == 4
    wider = ds.with_columns(y=col("x").cast("f4[?,?]"))
    assert same([row["y"] for row in wider][2:], [x.astype("f4") for x in fixed[2:]])
    assert holds(wider) == 4
    for wrong in ("u1[?,4]", "u1[?]"):
        with pytest.raises(SchemaError, match="not a cast that dml knows"):
            ds.cast(x=wrong)


@pytest.mark.parametrize("shapes", [[(1, 1), (2, 2)], [(3,), (2,)]])
def test_a_generator_may_give_arrays_of_several_shapes(shapes: list[tuple[int, ...]]) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        for i in range(80):
            yield {"k": i, "x": np.full(shapes[i % 2], i, "u1")}

    ds = dml.from_generator(rows)
    assert ds.schema == dml.from_items(list(rows())).schema
    assert same([np.asarray(row["x"], "u1") for row in ds], [row["x"] for row in rows()])


def test_a_generator_of_one_shape_has_that(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()

    def rows() -> Iterator[dict[str, Any]]:
        for i in range(100):
            with log.open("a") as file:
                file.write(".")
            yield {"x": np.full((2, 3), i, "u1")}

    assert str(dml.from_generator(rows).schema) == "x: u1[2,3]"
    assert log.stat().st_size == 64, "so many are looked at"


# ----------------------------------------------------------------------------------------- writers


def test_json_and_webdataset_hold_arrays_of_any_shape(tmp_path: Path) -> None:
    images().write_json(tmp_path / "json")
    read = dml.read_json(str(tmp_path / "json"))
    assert [row["x"] for row in read][:5] == [image(i).tolist() for i in range(5)]
    keyed = images().map(lambda r: {"__key__": str(r["k"]), "npy": r["x"]})
    keyed.write_webdataset(tmp_path / "tar")
    back = dml.read_webdataset(str(tmp_path / "tar"), decode=False)
    arrays = [np.load(io.BytesIO(row["npy"]), allow_pickle=False) for row in back]
    assert same(arrays, [image(i) for i in range(9)])


@pytest.mark.parametrize("verb", ["write_csv", "write_numpy", "write_tfrecords"])
def test_files_that_cannot_hold_them_name_those_that_can(tmp_path: Path, verb: str) -> None:
    with pytest.raises(SchemaError, match=r"'x' is uint8\[\?,\?\]") as caught:
        getattr(images().select("x"), verb)(tmp_path / "made")
    assert "write_parquet() or write_arrow()" in caught.value.try_
    assert not (tmp_path / "made").exists()


def test_taking_tensors_makes_no_index_of_their_numbers() -> None:
    kind = OpenTensor(pa.uint8(), (None, None))
    rows = [np.full((500, 1 + n), n, "u1") for n in range(20)]
    column = column_of([*rows, None], kind)
    index = np.array([3, 20, 0, 19, 3])
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counted)
    try:
        found = arrays_in(taken(column, index))
        most = counted.max_memory()
    finally:
        pa.set_memory_pool(usual)
    wanted = [rows[3], None, rows[0], rows[19], rows[3]]
    assert same(found, wanted)
    assert most is not None
    assert most < sum(row.size for row in rows[:4])
    missing = np.array([False, False, True, False, False])
    assert same(arrays_in(taken(column, index, missing)), [rows[3], None, None, rows[19], rows[3]])
    assert same(arrays_in(taken(column, index[:0])), [])
    ds = images(9).filter(col("k") % 2 == 0).with_options(telemetry_dir="off")
    assert same([row["x"] for row in ds], [image(i) for i in range(0, 9, 2)])
