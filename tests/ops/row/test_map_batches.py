"""Test ``map_batches``: groups within atoms, formats, ids, errors, shared memory of results."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml.data.row_slicing import CALLS
from dml.errors import MemoryContractError, PlanError, UDFError
from dml.expr.facts import Rows
from dml.expr.flow import At
from dml.ops.row.flat_map import OUT_ROWS
from dml.ops.row.map_batches import MapBatches
from dml.optimize.phases import optimize
from tests.expr.checks import agrees, holds, node_of, numbers, table
from tests.refusals import refused

Batch = dict[str, Any]
SETTINGS: dict[str, Any] = {"executor": "sync", "telemetry_dir": "off"}


def sized(batch: Batch) -> Batch:
    """Each row with how many were in its group."""
    return {"x": batch["x"], "n": np.full(len(batch["x"]), len(batch["x"]))}


def total(batch: Batch) -> Batch:
    return {"n": np.array([len(batch["x"])]), "sum": batch["x"].sum(keepdims=True)}


def sizes(ds: dml.Dataset, **how: Any) -> list[int]:
    """Of each group."""
    return [row["n"] for row in ds.map_batches(total, **how)]


def test_groups_are_atoms_or_parts_of_one() -> None:
    assert sizes(numbers(8)) == [3, 3, 2]
    assert sizes(numbers(8), batch_size=2) == [2, 1, 2, 1, 2]
    assert sizes(numbers(8), batch_size=100) == [3, 3, 2]
    assert sizes(numbers(0)) == []


def test_rows_that_reach_it_are_grouped() -> None:
    odd = numbers(10).filter(dml.col("x") % 2 == 1)
    assert sizes(odd) == [1, 2, 1, 1]
    assert sizes(odd, batch_size=1) == [1] * 5
    assert sizes(numbers(9).filter(dml.col("x") > 4)) == [1, 3]  # never without rows
    twice = numbers(4).flat_map(lambda row: [row, dict(row)])
    assert sizes(twice) == [6, 2]
    assert sizes(twice.map_batches(lambda b: {"x": b["x"][:2]})) == [2, 2]


@pytest.mark.law
def test_after_what_sees_the_stream_groups_are_counted_from_its_start() -> None:
    for ds in (
        numbers(9).shuffle(4),
        numbers(9).repeat(1),
        numbers(12).skip(3),
        numbers(99).take(9),
    ):
        assert sizes(ds) == [9]
        assert sizes(ds, batch_size=4) == [4, 4, 1]
    assert sizes(numbers(9).skip(0)) == [9]  # as written, whatever a rewriting leaves out
    assert sizes(numbers(20_000).shuffle()) == [1024] * 19 + [544]
    assert sizes(numbers(9).shuffle().map_batches(sized, batch_size=4), batch_size=3) == [3, 3, 3]


@pytest.mark.sample(1)
@pytest.mark.law
@pytest.mark.parametrize("size", [None, 2])
def test_rows_batches_and_resuming(size: int | None) -> None:
    assert holds(numbers(8).map_batches(sized, batch_size=size)) == 8
    assert holds(numbers(8).map_batches(total, batch_size=size).batch(2)) == (
        2 if size is None else 3
    )
    assert holds(numbers(8).map_batches(sized, batch_size=size).filter(dml.col("x") > 4)) == 3
    assert holds(numbers(8).filter(dml.col("x") > 2).map_batches(sized, batch_size=size)) == 5
    assert holds(numbers(8).shuffle(5).map_batches(sized, batch_size=size).take(7)) == 7
    assert holds(numbers(8).skip(1).map_batches(total, batch_size=size)) == (
        1 if size is None else 4
    )
    assert holds(numbers(4).repeat(2).map_batches(sized, batch_size=size).batch(3)) == 3
    assert (
        holds(numbers(8).map_batches(sized, batch_size=size).shuffle(window="atoms", size=2)) == 8
    )
    assert holds(numbers(8).map_batches(sized, batch_size=size).map(dict)) == 8


@pytest.mark.law
def test_an_atom_that_comes_in_several_blocks() -> None:
    many = OUT_ROWS + 5
    grown = numbers(2).flat_map(lambda _: ({"x": i} for i in range(many)))
    assert sizes(grown) == [1024] * 8 + [10]
    assert sizes(grown, batch_size=many) == [many, many]
    long = dml.range(CALLS + 9, atom_rows=CALLS + 9).with_options(**SETTINGS)
    assert sizes(long.map(lambda row: {"x": hash(row["id"])})) == [1024] * 16 + [9]
    small = long.with_options(executor="threads", num_workers=2, target_partition_bytes=300)
    assert sizes(small.map(lambda row: {"x": hash(row["id"])})) == [1024] * 16 + [9]


@pytest.mark.law
def test_ids_stay_while_the_count_stays() -> None:
    drawn = numbers(6).with_columns(u=dml.random())
    same = numbers(6).map_batches(lambda b: b).with_columns(u=dml.random())
    assert [row["u"] for row in drawn] == [row["u"] for row in same]
    other = numbers(6).map_batches(lambda b: {"x": b["x"].repeat(2)}).with_columns(u=dml.random())
    other = other.map_batches(lambda b: {"u": b["u"].repeat(2)}).with_columns(v=dml.random())
    assert len({row["v"] for row in other}) == 24
    assert holds(other) == 24
    assert holds(numbers(5).map_batches(lambda b: {"x": b["x"][:0]})) == 0


@pytest.mark.law
def test_arrow_tables() -> None:
    def doubled(given: pa.Table) -> pa.Table:
        assert isinstance(given, pa.Table)
        return pa.table({"s": given["s"], "y": pa.array([given.num_rows] * given.num_rows)})

    ds = table({"s": pa.array(["a", None, "c", "d"])})
    rows = list(ds.map_batches(doubled, batch_format="arrow"))
    assert rows == [{"s": s, "y": n} for s, n in (("a", 3), (None, 3), ("c", 3), ("d", 1))]
    assert holds(ds.map_batches(doubled, batch_format="arrow")) == 4
    # what comes back may be in either form, whatever was given
    assert holds(ds.map_batches(lambda t: t.to_batches()[0].slice(1), batch_format="arrow")) == 2
    assert holds(ds.map_batches(lambda t: {"n": [t.num_rows]}, batch_format="arrow")) == 2
    assert holds(ds.map_batches(lambda b: pa.table({"n": [len(b["s"])]}))) == 2


def test_tensors_and_nulls_as_arrow() -> None:
    kind = pa.fixed_shape_tensor(pa.int64(), (2,))
    storage = pa.array([[1, 2], None], pa.list_(pa.int64(), 2))
    ds = table({"t": pa.ExtensionArray.from_storage(kind, storage), "i": pa.array([None, 3])})
    agrees(ds.map_batches(lambda t: t, batch_format="arrow"))
    assert ds.map_batches(lambda t: t, batch_format="arrow").to_arrow()["i"].to_pylist() == [
        None,
        3,
    ]


def test_inputs_are_read_only_unless_asked_for() -> None:
    def adding(batch: Batch) -> Batch:
        batch["x"] += 1
        return batch

    with pytest.raises(UDFError, match="read-only"):
        list(numbers(2).map_batches(adding))
    ds = numbers(4)
    assert [row["x"] for row in ds.map_batches(adding, writable=True)] == [1, 2, 3, 4]
    assert [row["x"] for row in ds] == [0, 1, 2, 3]
    assert holds(ds.map_batches(adding, writable=True)) == 4


def test_what_it_keeps_is_its_own() -> None:
    buffer = np.zeros(3, np.int64)
    kept: list[np.ndarray] = []

    def filling(batch: Batch) -> Batch:
        buffer[: len(batch["x"])] = batch["x"]
        kept.append(batch["x"])
        return {"x": buffer[: len(batch["x"])], "same": batch["x"]}

    batches = list(numbers(6).map_batches(filling).batch(3))
    for batch in batches:
        batch["same"][:] = 9
    assert [batch["x"].tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5]]
    assert [array.tolist() for array in kept] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("batched", [False, True])
def test_the_given_dict_may_be_filled_and_returned(*, batched: bool) -> None:
    buffer = np.zeros(3, np.int64)

    def filling(batch: Batch) -> Batch:
        buffer[:] = batch["x"]
        batch["buffer"], batch["list"] = buffer, buffer.tolist()
        return batch

    ds = numbers(6)
    ds = ds.batch(3).map(filling) if batched else ds.map_batches(filling).batch(3)
    for name in ("x", "buffer", "list"):
        assert [batch[name].tolist() for batch in list(ds)] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.law
def test_lists_of_equal_lengths_stay_lists() -> None:
    def counting(batch: Batch) -> Batch:
        return {"l": [np.arange(min(x, 4)) for x in batch["x"]]}

    ds = numbers(9).map_batches(counting)
    assert [len(row["l"]) for row in ds] == [0, 1, 2, 3, 4, 4, 4, 4, 4]
    agrees(ds)


def failing(batch: Batch) -> Batch:
    if 4 in batch["x"]:
        raise LookupError("no four")
    return batch


def failing_row(row: dict[str, Any]) -> dict[str, Any]:
    if row["x"] == 5:
        raise LookupError("no five")
    return row


@pytest.mark.law
def test_an_error_stands_in_the_place_of_its_group() -> None:
    run = iter(numbers(9).map_batches(failing, batch_size=2))
    assert [next(run)["x"] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(UDFError, match="no four") as caught:
        next(run)
    assert caught.value.row == 3  # the first of the group
    agrees(numbers(9).map_batches(failing, batch_size=2))
    for ds in (numbers(9), numbers(9).shuffle(1)):
        agrees(ds.map_batches(failing))
        agrees(ds.map(failing_row).map_batches(sized, batch_size=2))
        agrees(ds.map(failing_row).map_batches(sized))
    run = iter(numbers(9).map(failing_row).map_batches(total, batch_size=2))
    assert [next(run)["n"] for _ in range(3)] == [2, 1, 2]  # 5 is the last of its atom
    with pytest.raises(UDFError, match="no five"):
        next(run)


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (3, "not a dict of arrays"),
        ({"a": [1, 2], "b": [1]}, "unequal lengths"),
        ({"a": 1}, "a single value"),
        (pa.table({}), "an Arrow table with the columns"),
        (pa.Table.from_arrays([pa.array([1])] * 2, ["a", "a"]), "an Arrow table with the columns"),
    ],
)
def test_results_that_are_no_batch(returned: Any, what: str) -> None:
    box = [returned]
    with pytest.raises(UDFError, match=what) as caught:
        list(numbers(2).map_batches(lambda _: box[0]))
    assert caught.value.row == 0


@pytest.mark.law
def test_types_settle_by_the_first_group_or_are_declared() -> None:
    def odd(batch: Batch) -> Batch:
        return {"v": batch["x"] if batch["x"][0] < 3 else batch["x"] / 2}

    with pytest.raises(UDFError, match="column 'v' of double, while int64 is needed"):
        list(numbers(9).map_batches(odd))
    declared = numbers(9).map_batches(odd, schema={"v": "float64"})
    assert str(declared.schema) == "v: double"
    assert holds(declared) == 9


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"batch_size": True},
        {"batch_format": "jax"},
        {"batch_format": "arrow", "writable": True},
    ],
)
def test_refused_options(options: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="map_batches"):
        numbers(3).map_batches(sized, **options)


def test_refused_after_batch() -> None:
    with pytest.raises(PlanError, match="map_batches after batch"):
        numbers(3).batch(2).map_batches(sized)


def test_nothing_is_moved_past_it() -> None:
    plan = optimize(node_of(numbers(9).map_batches(sized).filter(dml.col("x") > 3).take(2)), 0).plan
    assert [type(step).__name__ for step in plan.on_blocks[1:]] == ["MapBatches", "Filter"]
    assert [type(node).__name__ for node in plan.stream] == ["Take"]
    skipping = optimize(
        node_of(numbers(9).map_batches(sized, schema={"x": "i8", "n": "i8"}).skip(4)), 0
    )
    assert [type(node).__name__ for node in skipping.plan.stream] == ["Skip"]
    counted = optimize(node_of(numbers(9).skip(0).map_batches(sized)), 0).plan
    assert [type(node).__name__ for node in counted.stream] == ["MapBatches"]


def test_facts_and_text() -> None:
    node = node_of(numbers(3).map_batches(sized, batch_size=2, num_gpus=1))
    assert isinstance(node, MapBatches)
    assert (node.rows, node.by_atom, node.title()) == (
        Rows.ATOMS,
        True,
        "MapBatches(sized, batch_size=2, num_gpus=1.0)",
    )
    over = node_of(numbers(3).shuffle(2).map_batches(sized, batch_format="arrow"))
    assert over.rows is Rows.RUNS
    assert over.title() == "MapBatches(sized, batch_format='arrow', in runs of 1024)"
    assert over.resume_cost.work_rows == 1024


def test_a_run_that_does_not_fit_is_an_error(tmp_path: Any) -> None:
    node = node_of(numbers(9).shuffle(1).map_batches(sized))
    at = At(0, 0, None, {}, None, 1 << 20, hold_bytes=100)  # type: ignore[arg-type]
    parts = [node.chain()[0].rows_at(np.arange(i, i + 3), ("x",)) for i in (0, 3)]  # type: ignore[attr-defined]
    with pytest.raises(MemoryContractError, match="do not fit"):
        list(node.run_atom(parts, at))  # type: ignore[attr-defined]


@pytest.mark.law
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames_in_and_out(library: str) -> None:
    pytest.importorskip(library)
    ds = dml.from_dict({"x": [1, 2, None, 4], "s": ["a", None, "c", "d"]}, atom_rows=2)

    def seen(frame: Any) -> Any:
        assert type(frame).__module__.startswith(library)
        return frame

    holds(ds.map_batches(seen, batch_format=library))
    same = ds.map_batches(seen, batch_format=library, schema={"x": "f8", "s": "string"})
    assert same.to_dict() == {"x": [1.0, 2.0, None, 4.0], "s": ["a", None, "c", "d"]}
    fewer = ds.map_batches(lambda frame: frame[["s"]].head(1), batch_format=library)
    assert fewer.to_dict() == {"s": ["a", "c"]}


@pytest.mark.law
def test_a_data_frame_of_what_no_column_holds() -> None:
    pandas = pytest.importorskip("pandas")
    ds = dml.range(3).map_batches(lambda _: pandas.DataFrame({"x": [1, "a", object()]}))
    refused(UDFError, lambda: list(ds), "data frame that Arrow cannot hold")


def test_libraries_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    refused(
        PlanError,
        lambda: dml.range(3).map_batches(list, batch_format="polars"),
        "needs the library",
    )


@pytest.mark.parametrize("library", ["pyarrow", "pandas", "polars"])
def test_memory_that_a_function_fills_again_is_not_seen_in_tables(library: str) -> None:
    own = np.zeros(3)
    offsets = pa.array([0, 1, 2, 3], pa.int32())

    def tabled(n: int) -> Any:
        own[:] = n
        if library == "pyarrow":
            lists = pa.ListArray.from_arrays(offsets, pa.array(own))
            return pa.table({"v": pa.array(own), "l": lists})
        frame = pytest.importorskip(library).DataFrame
        return frame({"v": own}, copy=False) if library == "pandas" else frame({"v": own})

    def parts(batch: Batch) -> Any:
        return (tabled(n) for n in batch["x"].tolist())

    for ds in (
        numbers(4).map_batches(parts),
        numbers(4).map_batches(lambda b: tabled(int(b["x"][0])), batch_size=1),
    ):
        made = ds.batch(100).to_arrow()
        wanted = [float(n) for n in range(4) for _ in range(3)]
        assert made["v"].to_pylist() == wanted
        if library == "pyarrow":
            assert made["l"].to_pylist() == [[n] for n in wanted]


def test_a_table_that_is_handed_on_is_not_copied() -> None:
    held: list[int] = []

    def handed(given: pa.Table) -> pa.Table:
        held.append(given["x"].chunk(0).buffers()[1].address)
        return given

    ds = numbers(3).map_batches(handed, batch_format="arrow")
    assert ds.to_arrow()["x"].chunk(0).buffers()[1].address == held[-1]
