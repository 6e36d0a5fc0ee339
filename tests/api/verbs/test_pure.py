"""Test ``pure=``: the declarations that it accepts, and their effects on a run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import dml
from dml.api.dataset import Dataset
from dml.api.session import optimized
from dml.cluster.cluster_run import why_not
from dml.errors import CacheError, PlanError
from dml.exec.drivers import promotion
from dml.exec.scheduler.speculation import repeatable
from dml.settings import Settings
from tests.exec.process.test_task_runner import job_of

ROWS = 100
VERBS = ["filter", "map", "random_map", "flat_map", "map_batches", "map of batches"]
SEEN: list[int] = []
LOCK = threading.Lock()


def looked(*given: Any) -> Any:
    """Nothing can be proven of it, and it has no name elsewhere."""
    with LOCK:
        SEEN.append(1)
    return given[0]


class Adder:
    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"n": row["id"] + 1}


def by(verb: str, fn: Any, **more: Any) -> Dataset:
    ds = dml.range(ROWS)
    if verb == "map of batches":
        return ds.batch(10).map(fn, **more)
    made: Dataset = getattr(ds, verb)(fn, **more)
    return made


def fn_of(ds: Dataset) -> Any:
    return ds._node.calls


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("word", ["yes", 1, 0.0])
def test_what_is_no_word_for_it_is_refused(verb: str, word: object) -> None:
    with pytest.raises(PlanError, match=f"with pure={word!r}") as caught:
        by(verb, looked, pure=word)
    assert all((caught.value.what, caught.value.at, caught.value.why, caught.value.try_))
    assert "test_pure.py" in caught.value.at


def test_an_expression_has_no_purity_of_its_own() -> None:
    for word in (True, False):
        with pytest.raises(PlanError, match="needs nothing of its own"):
            dml.range(3).filter(dml.col("id") > 1, pure=word)


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_declared_counts_for_what_is_proven(verb: str) -> None:
    assert fn_of(by(verb, looked)).purity
    assert not fn_of(by(verb, looked, pure=True)).purity
    assert "declared impure" in fn_of(by(verb, lambda *given: given[0], pure=False)).purity


def test_the_fingerprint_is_that_of_the_function() -> None:
    names = {by("map", Adder, pure=word).fingerprint() for word in (None, True, False)}
    assert len(names) == 1


def test_what_is_declared_pure_may_move_and_be_done_twice() -> None:
    for fn in (looked, Adder):
        said, unsaid, refused = (
            job_of(by("map", fn, pure=word, schema={"id": "int64"})) for word in (True, None, False)
        )
        assert promotion.pure(said.steps)
        assert repeatable(said, "auto")
        for job in (unsaid, refused):
            assert not promotion.pure(job.steps)
            assert not repeatable(job, "auto")
        assert not repeatable(refused, True)


def test_what_is_declared_impure_is_called_though_it_could_be_proven() -> None:
    row = {"map": lambda row: {"id": row["id"] + 1}, "filter": lambda row: row["id"] > 3}
    for verb, fn in row.items():
        assert "computed as expressions" in by(verb, fn).explain("physical")
        told = by(verb, fn, pure=False).explain("physical")
        assert "called for each row: declared impure (pure=False)" in told


def test_explain_says_what_is_declared_pure() -> None:
    told = by("map", lambda row: {"id": row["id"] + len(SEEN)}, pure=True).explain("physical")
    assert "called for each row, declared pure: " in told


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("executor", ["sync", "threads", "auto"])
def test_what_is_declared_impure_is_called_once(verb: str, executor: str) -> None:
    SEEN.clear()
    fn = looked if verb != "flat_map" else lambda row: [looked(row)]
    ds = by(verb, fn, pure=False).with_options(executor=executor, telemetry_dir="off")
    list(ds)
    each = {"map_batches": 1, "map of batches": 10}
    assert len(SEEN) == each.get(verb, ROWS)


def named(row: dict[str, Any]) -> dict[str, Any]:
    return {"n": row["id"] + 1}


def test_nothing_of_what_is_declared_impure_is_stored(tmp_path: Path) -> None:
    options = {"cache_dir": str(tmp_path), "telemetry_dir": "off"}
    list(by("map", named).cache(tier="disk").with_options(**options))
    kept = sorted(tmp_path.rglob("*.arrow"))
    assert kept
    ds = by("map", named, pure=False).cache(tier="disk").with_options(**options)
    for _ in range(2):
        with pytest.warns(UserWarning, match="declared impure"):
            list(ds)
        counted = ds.stats().records[1]
        assert counted["python_calls"] == ROWS, "nothing is taken of what was stored for others"
    assert sorted(tmp_path.rglob("*.arrow")) == kept
    with pytest.raises(CacheError, match="materialize can keep nothing") as caught:
        ds.materialize()
    assert "declared impure" in caught.value.why


def test_what_is_kept_in_memory_of_it_is_for_its_own_pipeline() -> None:
    for word, calls in ((None, [ROWS, 0, 0]), (False, [ROWS, 0, ROWS])):
        first, other = (
            by("map", named, pure=word, schema={"n": "int64"})
            .cache()
            .with_options(telemetry_dir="off", executor="sync")
            for _ in range(2)
        )
        made = []
        for ds in (first, first, other):
            list(ds)
            made.append(ds.stats().records[1]["python_calls"])
        assert made == calls, word


def test_a_static_graph_is_refused() -> None:
    ds = by("map", named, pure=False)
    for verb in (ds.to_dask, ds.persist):
        with pytest.raises(PlanError, match="part of a static graph") as caught:
            verb()
        assert "named" in caught.value.at


def test_workers_of_a_cluster_do_not_sort_it_on_their_disks() -> None:
    settings = Settings(spread=True)
    told = []
    for word in (None, False):
        ds = by("map", named, pure=word).sort("n")
        told.append(why_not(optimized(ds._node, settings).plan, settings, 1))
    assert told == ["", "a function below is declared impure (pure=False)"]
