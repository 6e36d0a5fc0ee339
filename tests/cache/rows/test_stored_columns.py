"""Test rows and columns that pipelines share through a store, by counting calls."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.cache.eviction import janitor
from dml.cache.store import layout
from dml.cache.store.disk import Disk
from dml.errors import NonDeterminismError
from tests.sampling import amount

pytestmark = pytest.mark.usefixtures("unchecked")

ROWS, GROUPS = 400, 8
FEATURES = 12


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.parquet"
    x = np.arange(ROWS)
    table = {"x": x, "y": x * 0.5, "z": x % 97, "k": pa.array([f"k{n % 7}" for n in x])}
    pq.write_table(pa.table(table), path, row_group_size=ROWS // GROUPS)
    return path


class Calls:
    """Functions that count their calls, by name."""

    def __init__(self) -> None:
        self.count = Counter[str]()

    def udf(self, name: str, of: Callable[..., float]) -> Callable[..., Any]:
        """A function of columns."""

        def counted(*values: Any) -> float:
            self.count[name] += 1
            return of(*values)

        return dml.udf(return_dtype="float64", fingerprint=name)(counted)

    def row(self, name: str, of: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """A function of rows, with the name that it has: the arguments of ``map``."""

        def counted(row: dict[str, Any]) -> dict[str, Any]:
            self.count[name] += 1
            return of(row)

        return {"fn": counted, "fingerprint": name}

    def taken(self) -> dict[str, int]:
        """The calls since the last time."""
        found, self.count = dict(self.count), Counter()
        return found


@pytest.fixture
def calls() -> Calls:
    return Calls()


def on_disk(ds: Dataset, folder: Path, **options: Any) -> Dataset:
    """The same, cached on disk."""
    given = {"cache_dir": str(folder / "kept"), "executor": "sync", **options}
    return ds.cache(tier="disk").with_options(**given)


def kept(ds: Dataset, folder: Path, **options: Any) -> list[dict[str, Any]]:
    """What comes out of it, cached on disk."""
    return list(on_disk(ds, folder, **options))


@pytest.mark.law
def test_jobs_that_share_features_compute_each_once(
    data: Path, tmp_path: Path, calls: Calls
) -> None:
    draw = random.Random(4)
    features = [
        calls.udf(f"feature {k}", lambda value, k=k: value * 2.0 + k) for k in range(FEATURES)
    ]
    asked = computed = 0
    for number in range(amount(80, 200)):
        some = sorted(draw.sample(range(FEATURES), draw.randint(3, 8)))
        cut = 50 if draw.random() < 0.8 else 40
        made = {f"n{number}_{k}": features[k](col("xyz"[k % 3])) for k in some}
        ds = dml.read_parquet(data).filter(col("z") < cut).with_columns(**made).select(*made)
        rows = kept(ds, tmp_path)
        assert rows == [
            {f"n{number}_{k}": [x, x * 0.5, x % 97][k % 3] * 2.0 + k for k in some}
            for x in range(ROWS)
            if x % 97 < cut
        ]
        asked += len(rows) * len(some)
        computed += sum(calls.taken().values())
    assert computed <= 0.1 * asked, f"{1 - computed / asked:.1%} of {asked} were saved"
    entries = list(dml.Catalog(tmp_path / "kept" / "store"))
    assert len(entries) <= 2 * FEATURES, "who finds everything writes nothing"


Pipeline = Callable[["Named"], Dataset]


class Named:
    """A source, and functions that are counted: what the named cases are written with."""

    def __init__(self, data: Path, calls: Calls) -> None:
        self.read = dml.read_parquet(data)
        self.f = calls.udf("f", lambda x: x * 3.0)
        self.g = calls.udf("g", lambda x: x - 1.0)
        self.h = calls.udf("h", lambda x, y: x + y)
        self._calls = calls

    @property
    def decoded(self) -> Dataset:
        """All columns by a function of rows, whose types are declared."""
        decode = self._calls.row("decode", lambda row: {**row, "d": row["x"] + 0.5})
        types = {"x": "int64", "y": "float64", "z": "int64", "k": "string", "d": "float64"}
        return self.read.map(decode["fn"], fingerprint=decode["fingerprint"], schema=types)

    @property
    def opaque(self) -> Dataset:
        """The same, whose types nobody knows before it has run."""
        decode = self._calls.row("decode", lambda row: {"x": row["x"], "d": row["x"] + 0.5})
        return self.read.map(decode["fn"], fingerprint=decode["fingerprint"])

    @property
    def features(self) -> Dataset:
        """Columns of functions beside those of the source."""
        return self.read.with_columns(a=self.f(col("x")), b=self.g(col("y")))


def _more(row: dict[str, Any]) -> dict[str, Any]:
    return {"e": row["d"] * 2}


# A name, the pipelines that were stored, the one that is asked for, and what that may call.
SUBSUMED: dict[str, tuple[list[Pipeline], Pipeline, dict[str, int]]] = {
    "fewer columns": ([lambda n: n.features], lambda n: n.features.select("b"), {}),
    "other names, another order": (
        [lambda n: n.features],
        lambda n: n.features.select("k", c=col("b"), a2=col("a")),
        {},
    ),
    "columns of two entries": (
        [
            lambda n: n.features.select("a"),
            lambda n: n.read.with_columns(c=n.h(col("x"), col("y"))).select("c", "k"),
        ],
        lambda n: n.features.with_columns(c=n.h(col("x"), col("y"))).select("c", "a", "k"),
        {},
    ),
    "some columns of three": (
        [lambda n: n.features.select("a")],
        lambda n: n.features.select("a", "b"),
        {"g": ROWS},
    ),
    "a column computed of stored ones": (
        [lambda n: n.features],
        lambda n: n.features.select(s=col("a") * 2 + col("b")),
        {},
    ),
    "a filter more": (
        [lambda n: n.features.filter(col("z") < 60)],
        lambda n: n.features.filter((col("z") < 60) & (col("x") % 3 == 0)).select("a", "x"),
        {},
    ),
    "a filter on a column that a function made": (
        [lambda n: n.features],
        lambda n: n.features.filter(col("a") > 100).select("b"),
        {},
    ),
    "a narrower constant": (
        [lambda n: n.features.filter(col("z") < 60)],
        lambda n: n.features.filter(col("z") < 31).select("a"),
        {},
    ),
    "one value of a range": (
        [lambda n: n.features.filter((col("z") >= 7) & (col("z") <= 70))],
        lambda n: n.features.filter(col("z") == 7).select("a"),
        {},
    ),
    "filters in another order, before and behind": (
        [lambda n: n.read.filter(col("z") < 60).filter(col("x") > 9).with_columns(a=n.f("x"))],
        lambda n: n.read.filter(col("x") > 9).with_columns(a=n.f("x")).filter(col("z") < 60),
        {},
    ),
    "an earlier cut: a function of stored rows": (
        [lambda n: n.decoded],
        lambda n: n.decoded.map(_more, fingerprint="more"),
        {},
    ),
    "an earlier cut of unknown types": (
        [lambda n: n.opaque],
        lambda n: n.opaque.map(_more, fingerprint="more"),
        {},
    ),
    "an earlier cut: a function of a stored column": (
        [lambda n: n.features],
        lambda n: n.features.with_columns(c=n.h(col("a"), col("b"))).select("c"),
        {"h": ROWS},
    ),
    "an earlier cut under other filters": (
        [lambda n: n.decoded],
        lambda n: n.decoded.filter(col("z") < 10).map(_more, fingerprint="more"),
        {},
    ),
    "another batch size": (
        [lambda n: n.features.batch(4)],
        lambda n: n.features.batch(9, drop_last=True),
        {},
    ),
    "rows for batches": ([lambda n: n.features], lambda n: n.features.batch(9), {}),
    "another order of units": (
        [lambda n: n.features],
        lambda n: n.features.select("a", "x").shuffle(window="atoms", size=2, seed=5),
        {},
    ),
    "a shuffle of what is stored": (
        [lambda n: n.decoded],
        lambda n: n.decoded.shuffle(buffer_size=30, seed=1).batch(7),
        {},
    ),
    "sorted rows of what is stored": (
        [lambda n: n.decoded],
        lambda n: n.decoded.sort("z"),
        {},
    ),
}


def same(got: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> bool:
    """Equal elements: names, order, types and values."""
    listed = [
        [(name, np.asarray(value).dtype, np.asarray(value).tolist()) for name, value in row.items()]
        for rows in (got, wanted)
        for row in rows
    ]
    return listed[: len(got)] == listed[len(got) :] and len(got) == len(wanted)


@pytest.mark.parametrize("name", SUBSUMED)
def test_what_is_stored_serves(name: str, data: Path, tmp_path: Path, calls: Calls) -> None:
    stored, asked, allowed = SUBSUMED[name]
    named = Named(data, calls)
    wanted = list(asked(named).with_options(executor="sync"))
    for each in stored:
        kept(each(named), tmp_path)
    calls.taken()
    status = str(on_disk(asked(named), tmp_path).cache_status())
    assert " from " in status or "keeps all" in status, status
    assert same(kept(asked(named), tmp_path), wanted)
    assert calls.taken() == allowed


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", SUBSUMED)
def test_what_is_stored_serves_whoever_runs_it(
    name: str, data: Path, tmp_path: Path, calls: Calls
) -> None:
    stored, asked, _ = SUBSUMED[name]
    named = Named(data, calls)
    wanted = list(asked(named).with_options(executor="sync"))
    for each in stored:
        list(on_disk(each(named), tmp_path).take(ROWS // 3))  # some units, and not the others
    options = {"executor": "threads", "num_workers": 2, "target_partition_bytes": 400}
    for _ in range(2):
        assert same(kept(asked(named), tmp_path, **options), wanted)
        options = {"executor": "processes", "num_workers": 1}


# What looks like it, and is not: nothing may be taken of what is stored.
APART: dict[str, tuple[Pipeline, Pipeline]] = {
    "a wider constant": (
        lambda n: n.features.filter(col("z") < 31),
        lambda n: n.features.filter(col("z") < 60).select("a"),
    ),
    "a filter less": (
        lambda n: n.features.filter((col("z") < 60) & (col("x") > 3)),
        lambda n: n.features.filter(col("z") < 60).select("a"),
    ),
    "constants of two types": (
        lambda n: n.features.filter(col("z") < 60),
        lambda n: n.features.filter(col("z") < 31.5).select("a"),
    ),
    "a bound that is not in it": (
        lambda n: n.features.filter(col("z") > 60),
        lambda n: n.features.filter(col("z") >= 60).select("a"),
    ),
    "a filter of what is not stored": (
        lambda n: n.features.select("a", "b"),
        lambda n: n.features.filter(col("z") < 60).select("a"),
    ),
    "the same function of another column": (
        lambda n: n.read.with_columns(a=n.f(col("x"))),
        lambda n: n.read.with_columns(a=n.f(col("z"))).select("a"),
    ),
    "a filter on either side of take": (
        lambda n: n.read.with_columns(a=n.f(col("x"))).filter(col("z") < 60),
        lambda n: n.read.with_columns(a=n.f(col("x"))).take(50).filter(col("z") < 60),
    ),
}


@pytest.mark.parametrize("name", APART)
def test_what_is_not_the_same_is_computed(
    name: str, data: Path, tmp_path: Path, calls: Calls
) -> None:
    stored, asked = APART[name]
    named = Named(data, calls)
    wanted = list(asked(named).with_options(executor="sync"))
    needed = calls.taken()
    kept(stored(named), tmp_path)
    calls.taken()
    assert same(kept(asked(named), tmp_path), wanted)
    assert calls.taken() == needed


def evict(folder: Path, places: Callable[[int], bool]) -> None:
    """End some parts of every entry."""
    store = Disk(str(folder / "kept" / "store"), layout.namespace("default"))
    for name, (view, _) in janitor.views(store).items():
        for part in filter(places, list(view.live)):
            assert janitor.evict(store, name, part)


def test_half_of_what_others_stored_serves_its_half(
    data: Path, tmp_path: Path, calls: Calls
) -> None:
    named = Named(data, calls)
    ds = named.features.select("a", "b")
    wanted = list(ds)
    kept(named.features.select("a"), tmp_path)
    kept(named.features.select("b", "k"), tmp_path)
    evict(tmp_path, lambda part: part % 2 == 0)
    calls.taken()
    assert kept(ds, tmp_path) == wanted
    assert calls.taken() == {"f": ROWS // 2, "g": ROWS // 2}
    assert kept(ds, tmp_path) == wanted
    assert not calls.taken(), "what was lacking has been kept"


def test_clearing_a_cache_clears_what_was_kept_for_it(
    data: Path, tmp_path: Path, calls: Calls
) -> None:
    named = Named(data, calls)
    kept(named.features.select("a"), tmp_path)
    ds = on_disk(named.features.select("a", "b"), tmp_path)
    list(ds)
    ds.clear_cache()
    calls.taken()
    list(ds)
    assert calls.taken() == {"f": ROWS, "g": ROWS}


def test_rows_that_turn_out_to_be_others_are_an_error(
    data: Path, tmp_path: Path, calls: Calls
) -> None:
    least = [0]
    kind = calls.row("kind", lambda row: {**row, "x": row["x"] + least[0]})
    types = {"x": "int64", "y": "float64", "z": "int64", "k": "string"}
    rows = dml.read_parquet(data).map(kind["fn"], fingerprint="kind", schema=types)
    ds = rows.filter(col("x") > 100)
    kept(ds.select("y"), tmp_path)
    least[0] = 50
    with pytest.raises(NonDeterminismError, match="rows that were stored"):
        kept(ds.select("y", "z"), tmp_path)


def test_rows_made_of_equal_rows_are_found_by_them(
    data: Path, tmp_path: Path, calls: Calls
) -> None:
    def decoded(name: str, of: Callable[[dict[str, Any]], dict[str, Any]]) -> Dataset:
        given = calls.row(name, of)
        ds = dml.read_parquet(data).map(given["fn"], fingerprint=name).cache(tier="disk")
        upper = calls.row("upper", lambda row: {"w": row["v"] + 1})
        return ds.map(upper["fn"], fingerprint="upper")

    wanted = [{"w": x * 2 + 1} for x in range(ROWS)]
    assert kept(decoded("first", lambda row: {"v": row["x"] * 2}), tmp_path) == wanted
    assert calls.taken() == {"first": ROWS, "upper": ROWS}
    assert kept(decoded("edited", lambda row: {"v": row["x"] + row["x"]}), tmp_path) == wanted
    assert calls.taken() == {"edited": ROWS}, "its rows are the same"
    least = ROWS - ROWS // GROUPS
    other = decoded("other", lambda row: {"v": row["x"] * 2 if row["x"] < least else 0})
    wanted[least:] = [{"w": 1}] * (ROWS - least)
    for _ in range(2):
        assert kept(other, tmp_path) == wanted
    assert calls.taken() == {"other": ROWS, "upper": ROWS // GROUPS}, "one unit is another"
