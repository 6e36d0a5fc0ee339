"""Test that sort, shuffle and group on workers give the same bytes as in the client process."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

import dml
import dml.cluster.exchange.distributed_sort
import dml.cluster.exchange.sorted_run_transfer
from dml import col
from dml.api.session import optimized
from dml.cluster.cluster_run import input_bytes, why_not
from dml.data.stream_hash import stream_hash
from dml.errors import CastError, DmlError, MemoryContractError, SchemaError, UDFError
from dml.exec.memory.spill import PREFIX
from dml.io.memory.range import Range
from dml.io.source import Unit
from dml.physical.plan import Stage
from dml.settings import Settings
from dml.testing.oracle import Oracle
from tests.cluster.dask_cases import UNCLOSED, clean, cluster, eventually

pytestmark = UNCLOSED
ROWS = 6_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with few keys, nulls, NaN and texts, in three files."""
    root = tmp_path_factory.mktemp("rows")
    for part in range(3):
        rng = np.random.Generator(np.random.Philox(part))
        n = ROWS // 3
        x = rng.normal(size=n).round(1)
        x[::17] = np.nan
        table = pa.table(
            {
                "i": np.arange(n * part, n * part + n),
                "k": pa.array(rng.integers(-9, 9, n), mask=rng.random(n) < 0.1),
                "x": pa.array(x, mask=rng.random(n) < 0.1),
                "s": [None if i % 13 == 0 else f"text {i * 7 % 97}" for i in range(n)],
            }
        )
        pq.write_table(table, root / f"{part}.parquet", row_group_size=250)
    return root


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with cluster() as made, Client(made) as found:
        yield found


def short(row: dict[str, Any]) -> dict[str, Any]:
    """A function that cannot be lifted, with types that only calls tell."""
    return {"i": row["i"], "t": "".join(reversed(row["s"] or ""))}


PIPELINES: dict[str, Callable[[dml.Dataset], dml.Dataset]] = {
    "one key": lambda ds: ds.sort("k").drop("k").batch(64),
    "ties and texts": lambda ds: ds.sort(["s", "x"], descending=[True, False]).select(
        "s", "x", "i"
    ),
    "nulls first": lambda ds: ds.select("x", "i").sort("x", descending=True, nulls_last=False),
    "one value": lambda ds: ds.with_columns(c=dml.lit(1)).sort("c").select("i").batch(100),
    "of functions": lambda ds: ds.map(short).sort("t").batch(50),
    "none": lambda ds: ds.filter(col("i") < 0).sort("i").select("i").batch(10),
    "batches": lambda ds: ds.select("i", "x").map_batches(lambda b: b, num_cpus=2).sort("x"),
    "shuffled": lambda ds: ds.select("i", "s").shuffle(seed=4).batch(32),
    "shuffled children": lambda ds: ds.select("i").flat_map(three).shuffle(seed=2).batch(77),
    "shuffled twice": lambda ds: ds.select("i", "x").shuffle(seed=2).repeat(2).batch(90),
    "groups": lambda ds: ds.group_by("s").agg(
        n=dml.len(), m=col("x").mean(), l=col("x").max(), d=col("i").std()
    ),
    "groups of two": lambda ds: (
        ds.drop_nulls("k").group_by("k", "s").agg(n=col("x").sum()).sort("n")
    ),
    "a group": lambda ds: ds.with_columns(c=dml.lit(1)).group_by("c").agg(n=col("x").sum()),
    "kept values": lambda ds: ds.group_by("s").agg(v=col("i").implode(), f=col("x").first()),
}


def three(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"k": row["i"], "half": half} for half in range(row["i"] % 3)]


def written(folder: Path, name: str, **options: Any) -> dml.Dataset:
    ds = PIPELINES[name](dml.read_parquet(folder))
    return ds.with_options(**{"telemetry_dir": "off", **options}).epoch(0)


def elements(ds: dml.Dataset) -> list[Any]:
    return list(ds.with_options(telemetry_dir="off").epoch(0))


@pytest.mark.sample(8)
@pytest.mark.cluster
@pytest.mark.parametrize("near", [True, False], ids=["disk", "network"])
@pytest.mark.parametrize("name", PIPELINES)
def test_the_same_bytes_as_in_the_client(
    folder: Path, client: Client, name: str, near: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not near:
        monkeypatch.setattr(
            dml.cluster.exchange.sorted_run_transfer.RunFetcher, "_is_near", lambda *_: False
        )
    wanted = stream_hash(written(folder, name, executor="sync"))
    ds = written(folder, name, scheduler=client, target_partition_bytes=20_000, spread=True)
    assert "exchange  " in ds.explain("physical")
    iterator = iter(ds)
    assert stream_hash(iterator) == wanted
    if name != "none":
        report = iterator.memory_report()
        assert report.spilled_runs > 3
        assert report.spilled_bytes > 10_000
        *_, merge = report.stages
        assert merge.name == "merge"
        assert merge.slices > 0 < merge.held_bytes <= report.accounted_bytes
    assert clean(client)


VALUES = {
    "x": st.one_of(st.none(), st.sampled_from([float("nan"), 0.0, -0.0, 1.0]), st.floats(width=32)),
    "s": st.one_of(st.none(), st.text("abé", max_size=3)),
}


@pytest.mark.cluster
@pytest.mark.law
def test_the_same_elements_as_the_oracle(client: Client) -> None:
    """Drawn tables with nulls, NaN and ties, cut into atoms and ranges of a few rows."""

    @given(st.data())
    def holds(data: st.DataObject) -> None:
        n = data.draw(st.integers(0, 60))
        table = {
            each: data.draw(st.lists(of, min_size=n, max_size=n)) for each, of in VALUES.items()
        }
        kinds = [("x", pa.float64()), ("s", pa.string()), ("n", pa.int64())]
        made = pa.table({**table, "n": list(range(n))}, schema=pa.schema(kinds))
        rows = dml.from_arrow(made, atom_rows=data.draw(st.integers(1, 20)))
        keys = data.draw(st.sampled_from([["x"], ["s"], ["s", "x"], ["n"]]))
        down = data.draw(st.lists(st.booleans(), min_size=len(keys), max_size=len(keys)))
        ways = [
            lambda: rows.sort(keys, descending=down, nulls_last=data.draw(st.booleans())),
            lambda: rows.filter(col("n") % 5 != 2).flat_map(doubled).shuffle(seed=7),
            lambda: rows.group_by(*keys).agg(c=dml.len(), t=col("x").min(), u=col("n").sum()),
        ]
        ds = data.draw(st.sampled_from(ways))().with_options(
            telemetry_dir="off",
            target_partition_bytes=data.draw(st.sampled_from([1, 400, 1 << 20])),
        )
        wanted = list(Oracle(ds._node).elements())
        got = list(ds.with_options(scheduler=client, spread=True).epoch(0))
        assert repr(got) == repr(wanted)

    holds()


def doubled(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"n": row["n"], "half": half} for half in range(2)]


@pytest.mark.cluster
@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers(folder: Path, workers: int) -> None:
    wanted = [
        stream_hash(written(folder, name, executor="sync")) for name in ("shuffled", "groups")
    ]
    with cluster(workers) as made, Client(made) as found:
        options = {"scheduler": found, "spread": True, "target_partition_bytes": 50_000}
        got = [stream_hash(written(folder, name, **options)) for name in ("shuffled", "groups")]
    assert got == wanted


@pytest.mark.cluster
def test_a_run_goes_on_elsewhere(folder: Path, client: Client) -> None:
    """A state that was saved on a cluster is one of the sort, wherever it is done."""
    name = "ties and texts"
    wanted = stream_hash(written(folder, name, executor="sync"))
    spread = {"scheduler": client, "spread": True, "target_partition_bytes": 30_000}
    for one, other in ((spread, {"executor": "threads"}), ({"executor": "threads"}, spread)):
        first = iter(written(folder, name, **one))
        got = [next(first) for _ in range(1234)]
        rest = iter(written(folder, name, **other))
        rest.load_state_dict(first.state_dict())
        assert stream_hash([*got, *rest]) == wanted


@pytest.mark.cluster
def test_what_is_left_early_leaves_nothing(folder: Path, client: Client, tmp_path: Path) -> None:
    options = {"scheduler": client, "spread": True, "target_partition_bytes": 10_000}
    iterator = iter(written(folder, "shuffled", **options, spill_dir=str(tmp_path)))
    next(iterator)
    assert list(tmp_path.glob(f"{PREFIX}*/*.arrow"))
    del iterator
    assert clean(client)
    assert eventually(lambda: not list(tmp_path.iterdir()))


@pytest.mark.cluster
def test_errors_are_those_of_the_client(folder: Path, client: Client) -> None:
    def fails(row: dict[str, Any]) -> dict[str, Any]:
        return {"i": row["i"], "y": 1 // (row["i"] - 4321)}

    large = dml.from_dict({"k": [1, 2] * 50, "n": [2**62] * 100}, atom_rows=10)
    pipelines: list[tuple[type[DmlError], dml.Dataset]] = [
        (UDFError, dml.read_parquet(folder).map(fails).sort("y")),
        (SchemaError, dml.read_parquet(folder).map(strange).sort("u")),
        (CastError, large.group_by("k").agg(t=col("n").sum())),
    ]
    for kind, one in pipelines:
        ds = one.with_options(telemetry_dir="off", target_partition_bytes=10_000)
        with pytest.raises(kind) as there:
            list(ds.with_options(scheduler=client, spread=True).epoch(0))
        with pytest.raises(kind) as here:
            list(ds.with_options(executor="sync").epoch(0))
        assert (there.value.what, there.value.why) == (here.value.what, here.value.why)
    assert clean(client)


@pytest.mark.cluster
def test_first_keys_of_too_many_rows_are_an_error(
    folder: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie in every process, and would be more than anybody accounts for."""
    monkeypatch.setattr(dml.cluster.exchange.distributed_sort, "TOLD_PART", 1 << 19)
    options = {"scheduler": client, "spread": True, "target_partition_bytes": 20_000}
    with pytest.raises(MemoryContractError, match="too many to be sorted by workers"):
        list(written(folder, "shuffled", **options, memory_limit=1 << 30))
    assert clean(client)


@pytest.mark.cluster
def test_rows_too_large_for_all_stages_are_an_error(client: Client) -> None:
    """What must be held at once is refused, never taken silently."""
    rows = dml.from_dict({"k": [3, 1, 2], "t": ["x" * 3_000_000] * 3}, atom_rows=1)
    ds = rows.sort("k").with_options(telemetry_dir="off", memory_limit="16MiB")
    with pytest.raises(MemoryContractError, match="too large to be sorted"):
        list(ds.with_options(scheduler=client, spread=True).epoch(0))
    assert clean(client)


def strange(row: dict[str, Any]) -> dict[str, Any]:
    """Columns that only a call tells."""
    found: dict[str, Any] = json.loads(json.dumps({"i": row["i"]}))
    return found


def killed(made: Any, *, disk: bool) -> None:
    """Kill a worker; its disk is lost with it, or can still be seen."""
    nanny = next(iter(made.workers.values()))
    pid, local = nanny.pid, Path(nanny.local_directory)
    os.kill(pid, signal.SIGKILL)
    for each in local.glob(f"worker-*/{PREFIX}{pid}-*") if disk else ():
        shutil.rmtree(each, ignore_errors=True)  # the nanny removes it, too


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize("disk", [False, True], ids=["process", "host"])
@pytest.mark.parametrize("name", ["ties and texts", "shuffled", "groups"])
def test_a_worker_lost_while_ranges_are_merged(folder: Path, name: str, disk: bool) -> None:
    wanted = stream_hash(written(folder, name, executor="sync"))
    with cluster(2, processes=True) as made, Client(made) as found:
        options = {"scheduler": found, "spread": True, "target_partition_bytes": 10_000}
        iterator = iter(written(folder, name, **options, prefetch=0))
        got = [next(iterator) for _ in range(3)]
        killed(made, disk=disk)
        assert stream_hash([*got, *iterator]) == wanted
        assert clean(found)


@pytest.mark.cluster
def test_workers_lost_in_both_rounds(folder: Path, tmp_path: Path) -> None:
    """One dies over a row, once; later another one is killed, and its disk is lost."""
    once = tmp_path / "died"

    def deadly(row: dict[str, Any]) -> dict[str, Any]:
        if row["i"] == ROWS - 500 and not once.exists():
            once.touch()
            os._exit(3)
        return {"i": row["i"], "s": row["s"]}

    ds = dml.read_parquet(folder).map(deadly).sort("s").batch(64)
    with cluster(2, processes=True) as made, Client(made) as found:
        options = {"scheduler": found, "spread": True, "target_partition_bytes": 20_000}
        iterator = iter(ds.with_options(telemetry_dir="off", prefetch=0, **options).epoch(0))
        got = [next(iterator) for _ in range(3)]
        assert once.exists()
        killed(made, disk=True)
        got += iterator
    wanted = dml.read_parquet(folder).select("i", "s").sort("s").batch(64)
    assert stream_hash(got) == stream_hash(elements(wanted.with_options(executor="sync")))


# ---------------------------------------------------------------------------------- what is spread


@pytest.mark.law
def test_what_workers_do() -> None:
    """Sorts, shuffles and groups right above the stages, of inputs that are not small."""
    rows = dml.range(1_000_000).with_columns(k=col("id") % 7)

    def why(ds: dml.Dataset, limit: int = 1 << 20, **options: Any) -> str:
        settings = Settings(executor="distributed", **options)
        return why_not(optimized(ds._node, settings).plan, settings, limit)

    children = rows.flat_map(lambda r: [r])
    for ds in (rows.sort("k"), children.shuffle(), rows.group_by("k").agg(n=dml.len())):
        assert not why(ds)
        assert why(ds, 1 << 40) == "the input is small"
        assert not why(ds, 1 << 40, spread=True)
        assert why(ds, spread=False) == "spread=False"
        assert "autoscale" in why(ds, autoscale=(1, 2))
    nothing = "nothing to spread"
    assert why(rows.batch(3)) == nothing
    assert why(rows.sort("k").take(5)) == nothing, "few rows need no disk"
    assert why(rows.shuffle(buffer_size=10)) == nothing


def test_explain_says_who_does_it() -> None:
    ds = dml.range(1_000_000).group_by("id").agg(n=dml.len())
    ds = ds.with_options(scheduler="tcp://127.0.0.1:9", memory_limit="1MiB")
    assert ds.explain("physical").count("exchange  ") == 2  # the sort, and the groups above it
    told = ds.with_options(memory_limit="1GiB").explain("physical")
    assert "not by the workers, the input is small" in told
    usual = ds.with_options(scheduler=None, executor="threads").explain("physical")
    assert "workers" not in usual
    assert "exchange" not in usual


def test_bytes_of_an_input() -> None:
    assert input_bytes(Stage(Range(0, 1000, 1, 10), ("id",), (), ())) == 8000
    assert input_bytes(Stage(Range(0, 0), ("id",), (), ())) == 0
    unknown: Any = SimpleNamespace(unit_count=3, unit=lambda at: Unit(at, None, None, None, 10, 80))
    assert input_bytes(Stage(unknown, ("id",), (), ())) is None
