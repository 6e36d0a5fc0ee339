"""Test plans as static Dask graphs: they give the rows of a run and keep annotations."""

from __future__ import annotations

import importlib.util
import pickle
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dask as untyped_dask
import distributed as untyped_distributed
import pyarrow as pa
import pytest

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.cluster.graph.graph import DelayedPart, resources_of
from dml.cluster.graph.program import GraphProgram
from dml.errors import DmlError, PlanError, UDFError
from dml.expr.facts import Needs
from dml.testing.strategies_data import DataPool
from tests.laws.cases import case

dask: Any = untyped_dask
distributed: Any = untyped_distributed

SYNC = {"scheduler": "synchronous"}
UNITS = 10


def text(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": row["id"], "s": repr(row["id"])}


def source(rows: int = 1000) -> Dataset:
    """Ten units a task."""
    ds = dml.range(rows, atom_rows=10)
    return ds.with_options(telemetry_dir="off", target_partition_bytes=800, num_workers=2)


PIPELINES: dict[str, Callable[[Dataset], Dataset]] = {
    "source": lambda ds: ds,
    "expressions": lambda ds: ds.filter(col("id") % 3 == 0).with_columns(y=col("id") * 0.5),
    "unknown types": lambda ds: ds.map(text),
    "types settled late": lambda ds: ds.filter(col("id") > 333).map(text),
    "types settled twice": lambda ds: (
        ds.map(text).filter(lambda row: row["x"] > 420).map(lambda row: {"z": len(row["s"])})
    ),
    "a full shuffle": lambda ds: ds.shuffle(seed=3),
    "a row function over a full shuffle": lambda ds: ds.shuffle(seed=3).map(text),
    "pieces": lambda ds: ds.shuffle(window="atoms", size=3),
    "batches": lambda ds: ds.batch(7),
    "batches that end early": lambda ds: ds.batch(7, drop_last=True).take(9),
    "windows": lambda ds: ds.shuffle(130).batch(9),
    "passes": lambda ds: ds.shuffle(25).map(text).repeat(3).shuffle(130).skip(5).batch(9),
    "passes of passes": lambda ds: ds.shuffle(seed=1).repeat(2).shuffle(30).repeat(2).batch(11),
    "batch functions": lambda ds: (
        ds.repeat(2).batch(10).map(lambda batch: {"s": batch["id"].sum(keepdims=True)})
    ),
    "nothing": lambda ds: ds.filter(col("id") < 0),
}


def joined(tables: Any) -> pa.Table:
    return pa.concat_tables([table for table in tables if table.num_columns])


@pytest.mark.law
@pytest.mark.parametrize("name", PIPELINES)
def test_a_graph_gives_the_rows_of_a_run(name: str) -> None:
    ds = PIPELINES[name](source())
    parts = ds.to_dask()
    assert joined(dask.compute(*parts, **SYNC)).equals(ds.to_arrow())
    assert len({part.key for part in parts}) == len(parts)


@pytest.mark.law
@pytest.mark.parametrize("block", range(4))
def test_random_pipelines_are_the_same_as_graphs(block: int, pool: DataPool) -> None:
    for number in range(20 * block, 20 * block + 20):
        one = case(number, pool)
        ds = one.drawn.dataset.epoch(one.epoch).with_options(
            telemetry_dir="off",
            seed=one.seed,
            executor="sync",
            target_partition_bytes=(1, 300, 10**7)[number % 3],
        )
        try:
            parts = ds.to_dask()
        except PlanError:
            continue
        assert told(ds.to_arrow) == told(partial(rows_of, parts)), number


def rows_of(parts: list[DelayedPart]) -> pa.Table:
    tables = dask.compute(*parts, **SYNC)
    return pa.concat_tables([t for t in tables if t.num_columns] or tables[:1])


def told(act: Callable[[], pa.Table]) -> Any:
    """What was made as text, in which NaN equals NaN; or the kind of the error."""
    try:
        made = act()
    except DmlError as error:
        return type(error)
    return str(made.to_pylist()), made.schema if made.num_rows else None


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> DataPool:
    return DataPool(tmp_path_factory.mktemp("pool"))


def test_a_task_is_a_run_of_units() -> None:
    tables = dask.compute(*source().to_dask(), **SYNC)
    assert [table.num_rows for table in tables] == [100] * UNITS
    whole = source().with_options(target_partition_bytes="auto").to_dask()
    assert len(whole) == 1
    assert whole[0].compute(**SYNC).num_rows == 1000


@pytest.mark.law
def test_no_rows_have_columns() -> None:
    (part,) = dml.range(0).to_dask()
    assert part.compute(**SYNC).schema.names == ["id"]
    (part,) = dml.range(0).map(text).to_dask()
    assert part.compute(**SYNC).num_rows == 0


@pytest.mark.law
def test_an_epoch_is_pinned_and_none_is_counted() -> None:
    ds = source().shuffle(seed=1)
    first = joined(dask.compute(*ds.to_dask(), **SYNC))
    second = joined(dask.compute(*ds.epoch(1).to_dask(), **SYNC))
    assert first.equals(ds.epoch(0).to_arrow())
    assert second.equals(ds.epoch(1).to_arrow())
    assert not first.equals(second)
    assert iter(ds).epoch == 0


def test_functions_are_called_once_a_row_and_see_the_first_rows_first() -> None:
    calls: list[int] = []

    def note(row: dict[str, Any], calls: Any = calls) -> dict[str, Any]:
        calls.append(row["id"])
        return {"n": len(calls)}

    ds = source().filter(col("id") >= 250).map(note, fingerprint="note")
    made = joined(dask.compute(*ds.to_dask(), **SYNC))
    assert made["n"].to_pylist()[:50] == list(range(1, 51))
    assert sorted(made["n"].to_pylist()) == list(range(1, 751))
    assert not calls, "a copy went with the function"


def test_two_graphs_share_no_key() -> None:
    first, second = source().to_dask(), source().to_dask()
    assert not {part.key for part in first} & {part.key for part in second}
    layer, start, stop, epoch = first[3].key
    assert (start, stop, epoch) == (30, 40, 0)
    assert layer[:-16] == second[3].key[0][:-16], "the fingerprint is the same"
    tables = dask.compute(*first, *second, **SYNC)
    assert joined(tables).num_rows == 2000


def test_an_error_names_the_row() -> None:
    def divide(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": 1 // (row["id"] - 542)}

    parts = source().map(divide).to_dask()
    assert parts[4].compute(**SYNC).num_rows == 100
    with pytest.raises(UDFError, match="ZeroDivisionError") as caught:
        parts[5].compute(**SYNC)
    assert "row 542" in caught.value.at
    chained = source().shuffle(20).map(divide, schema={"x": "int64"}).to_dask()
    with pytest.raises(UDFError, match="ZeroDivisionError"):
        dask.compute(*chained, **SYNC)


@pytest.mark.parametrize(
    ("ds", "words"),
    [
        (source().repeat(), "endless"),
        (source().repeat().take(5), "no last pass"),
        (source().flat_map(lambda row: [row]).shuffle(), "all rows at one place"),
    ],
)
def test_what_a_graph_cannot_do_is_refused(ds: Dataset, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        ds.to_dask()
    assert words in str(caught.value)
    assert caught.value.at
    assert caught.value.try_


def test_a_function_that_cannot_be_sent_is_refused() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    held = numbers()
    with pytest.raises(PlanError, match="cannot be sent") as caught:
        source().map(lambda row: {"x": row["id"] + next(held)}, fingerprint="held").to_dask()
    assert "generator" in caught.value.why


def test_kinds_and_what_a_frame_refuses() -> None:
    with pytest.raises(PlanError, match="no kind"):
        source().to_dask("bag")
    if importlib.util.find_spec("pandas") is None:
        with pytest.raises(PlanError, match="pip install pandas"):
            source().to_dask("dataframe")
        return
    with pytest.raises(PlanError, match="would lose what its functions need"):
        source().map(text, num_gpus=1, schema={"x": "int64", "s": "string"}).to_dask("dataframe")
    with pytest.raises(PlanError, match="know its columns"):
        source().map(text).to_dask("dataframe")


def test_a_data_frame_has_the_same_rows() -> None:
    pytest.importorskip("pandas")
    columns = {"k": list(range(60)), "n": [1, None, 3] * 20, "s": ["x", None, "z"] * 20}
    ds = dml.from_dict(columns, atom_rows=5).with_options(target_partition_bytes=200)
    frame = ds.to_dask(kind="dataframe")
    assert frame.npartitions > 1
    assert {str(kind) for kind in frame.dtypes} == {"int64[pyarrow]", "string[pyarrow]"}
    made = frame.compute(**SYNC)
    assert made["n"].isna().sum() == 20
    assert pa.Table.from_pandas(made, preserve_index=False).to_pydict() == columns


# ------------------------------------------------------------------------------------- annotations


def test_processors_are_no_resource_of_dask() -> None:
    assert not resources_of([Needs(num_cpus=4)])
    assert resources_of([Needs(num_gpus=0.5), Needs(num_gpus=2, resources=(("disk", 1.0),))]) == {
        "GPU": 2,
        "disk": 1.0,
    }


def asking(ds: Dataset) -> Dataset:
    read = ds.with_columns(y=col("id") * 2)
    mapped = read.map(lambda row: {"x": row["id"], "s": repr(row["y"])}, num_gpus=1)
    return mapped.filter(lambda row: row["x"] % 3 == 0)


def restricted(parts: list[DelayedPart]) -> dict[Any, Any]:
    """Key -> resources, of every task that the parts are made of."""
    found: dict[Any, Any] = {}
    for part in parts:
        for layer in part.dask.layers.values():
            found |= {key: (layer.annotations or {}).get("resources") for key in layer}
    return found


@pytest.mark.law
def test_annotations_survive_what_dask_does_to_graphs() -> None:
    schema = {"x": "int64", "s": "string"}
    ds = source().map(text, num_gpus=2, num_cpus=3, resources={"disk": 1}, schema=schema)
    parts = ds.to_dask()
    wanted = {key for key in restricted(parts) if "-maprows-" in key[0]}
    assert len(wanted) == UNITS
    with dask.config.set({"optimization.fuse.delayed": True}):
        optimised = list(dask.optimize(*parts, dask.delayed(len)([1])))[:-1]
    for each in (parts, optimised, [pickle.loads(pickle.dumps(part)) for part in parts]):
        found = restricted(each)
        assert {key for key, needs in found.items() if needs} == wanted
        assert all(found[key] == {"GPU": 2, "disk": 1} for key in wanted)
        assert joined(dask.compute(*each, **SYNC))["x"].to_pylist() == list(range(1000))
    apart = [dask.optimize(part)[0] for part in parts]
    assert joined(dask.compute(*apart, **SYNC)).num_rows == 1000
    alone = apart[3]
    assert len(restricted([alone])) == 3, "the program, the read and the map of one task"


def test_annotations_of_the_user_hold_too() -> None:
    with dask.annotate(resources={"zone": 1}):
        layers = asking(source()).to_dask()[0].dask.layers
    assert all(layer.annotations["resources"]["zone"] == 1 for layer in layers.values())
    with dask.annotate(priority=7):
        layers = asking(source()).to_dask()[0].dask.layers
    assert all(layer.annotations["priority"] == 7 for layer in layers.values())
    asked = [name for name, layer in layers.items() if "resources" in layer.annotations]
    assert all("-maprows-" in name or "-settled-" in name for name in asked)


def test_unknown_types_that_need_two_places_are_refused() -> None:
    ds = source().map(text, num_gpus=1).map(dict, resources={"disk": 1})
    with pytest.raises(PlanError, match="different resources") as caught:
        ds.to_dask()
    assert "schema=" in caught.value.try_


def test_a_program_is_opened_once_where_it_is() -> None:
    part = source().to_dask()[0]
    (program,) = (node.value for node in part.dask.to_dict().values() if hasattr(node, "value"))
    assert isinstance(program, GraphProgram)
    assert program.recipe is program.recipe
    assert pickle.loads(pickle.dumps(program)).__dict__.keys() == {"packed"}


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two workers in this process, the first of which has a GPU."""
    places = {"protocol": "inproc://", "dashboard_address": ":0"}
    workers = {
        name: {
            "cls": distributed.Worker,
            "options": {"nthreads": 1, "resources": offered, **places},
        }
        for name, offered in (("gpu", {"GPU": 1}), ("plain", {}))
    }
    scheduler = {"cls": distributed.Scheduler, "options": places}
    with distributed.SpecCluster(workers=workers, scheduler=scheduler) as made:
        yield made


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    """Its client, once both workers are there."""
    with distributed.Client(cluster) as made:
        made.wait_for_workers(2)
        yield made


@pytest.mark.cluster
def test_on_a_cluster_every_task_is_where_its_resources_are(cluster: Any, client: Any) -> None:
    parts = asking(source()).to_dask()
    futures = client.compute(list(dask.optimize(*parts)))
    assert joined(client.gather(futures)).num_rows == 334
    tasks = cluster.scheduler.tasks
    needing = {key for key in tasks if "-maprows-" in key[0] or "-settled-" in key[0]}
    assert len(needing) == UNITS - 1 + 2
    for key, task in tasks.items():
        asked = task.resource_restrictions or {}
        assert asked == ({"GPU": 1} if key in needing else {}), key


@pytest.mark.cluster
@pytest.mark.usefixtures("client")
def test_persisted_rows_stay_on_the_workers(cluster: Any) -> None:
    parts = asking(source()).persist()
    assert joined(dask.compute(*parts))["x"].to_pylist() == list(range(0, 1000, 3))
    assert dask.delayed(lambda table: table.num_rows)(parts[0]).compute() == 34
    kept = {key for key in cluster.scheduler.tasks if isinstance(key, tuple)}
    assert {part.key for part in parts} <= kept
    del parts


@pytest.mark.cluster
@pytest.mark.usefixtures("client")
def test_persisting_what_no_worker_has_is_refused() -> None:
    with pytest.raises(PlanError, match="no worker has GPU=2 and disk=1") as caught:
        source().map(text, num_gpus=2, resources={"disk": 1}).persist()
    assert caught.value.why == "2 workers have GPU=1, nothing"
    assert "--resources" in caught.value.try_
    assert "test_graph.py" in caught.value.at


class Constructed:
    """Counts how often it is made, in a folder that workers share."""

    def __init__(self, folder: str) -> None:
        Path(folder, uuid.uuid4().hex).touch()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"x": row["id"]}


@pytest.mark.cluster
@pytest.mark.usefixtures("client")
def test_a_class_is_constructed_once_where_it_runs(tmp_path: Path) -> None:
    made = source().map(
        Constructed, num_gpus=1, schema={"x": "int64"}, fn_constructor_args=(str(tmp_path),)
    )
    assert joined(dask.compute(*made.to_dask()))["x"].to_pylist() == list(range(1000))
    assert len(list(tmp_path.iterdir())) == 1


def test_persisting_without_a_cluster_computes_here() -> None:
    with dask.config.set(SYNC):
        parts = source().map(text).persist()
        assert joined(dask.compute(*parts)).num_rows == 1000
    assert all(len(part.dask.to_dict()) == 1 for part in parts)
