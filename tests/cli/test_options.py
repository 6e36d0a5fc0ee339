"""Test the execution options of ``dml run``: equal batches on each executor, or a clear error."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Any

import pytest

PIPELINE = """
import dml

def doubled(row):
    return {"id": row["id"] * 2, "text": str(row["id"])}

ds = dml.range(900).map(doubled).shuffle(100, seed=1).batch(64).with_options(telemetry_dir="off")
"""


def options_seen() -> dict[str, Any]:
    options: dict[str, Any] = sys.modules["dml_target"].ds.options
    return options


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("", {}),
        ("--executor sync", {"executor": "sync"}),
        ("--num-workers 3", {"num_workers": 3}),
        ("--num-workers auto", {"num_workers": "auto"}),
        ("--memory-limit 1.5MiB", {"memory_limit": 3 << 19}),
        ("--memory-limit 1048576", {"memory_limit": 1 << 20}),
        ("--memory-limit auto", {"memory_limit": "auto"}),
        ("--scheduler tcp://a:1", {"scheduler": "tcp://a:1"}),
        (
            "--scheduler tcp://a:1 --executor distributed",
            {"scheduler": "tcp://a:1", "executor": "distributed"},
        ),
    ],
)
def test_only_what_was_asked_reaches_the_pipeline(
    dml: Callable[..., Any], written: Callable[..., Any], arguments: str, wanted: dict[str, Any]
) -> None:
    assert dml("run", written("ds = FakeDataset()"), *arguments.split()).code == 0
    assert options_seen() == wanted


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("--executor spark", "'spark'"),
        ("--num-workers 0", "'0'"),
        ("--num-workers two", "'two'"),
        ("--memory-limit lots", "'lots'"),
        ("--memory-limit 0", "'0'"),
        ("--scheduler tcp://a:1 --executor threads", "not 'threads'"),
    ],
)
def test_options_without_a_meaning_are_wrong_usage(
    dml: Callable[..., Any], written: Callable[..., Any], arguments: str, word: str
) -> None:
    told = dml("run", written("ds = FakeDataset()"), *arguments.split())
    assert told.code == 2
    assert word in told.err


@pytest.mark.law
def test_a_scheduler_that_is_not_there(
    dml: Callable[..., Any], written: Callable[..., Any]
) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # taken, and nobody listens
        address = f"tcp://127.0.0.1:{held.getsockname()[1]}"
        target = written(PIPELINE + "ds = ds.with_options(connect_timeout_s=0.5)")
        told = dml("run", target, "--scheduler", address, "--json", "--quiet")
    assert told.code == 1
    what, at, why, try_ = told.err.splitlines()[-4:]
    assert what == "WorkerLostError: the scheduler cannot be reached"
    assert address in at
    assert (why.split()[0], try_.split()[0]) == ("why", "try")
    assert told.json["error"]["kind"] == "WorkerLostError"


@pytest.mark.slow
def test_processes_deliver_what_one_thread_does(
    dml: Callable[..., Any], written: Callable[..., Any]
) -> None:
    target = written(PIPELINE)
    wanted = dml("run", target, "--hash", "--json", "--executor", "sync").json
    asked = ("--executor", "processes", "--num-workers", 2, "--memory-limit", "256MiB")
    assert (
        dml("run", target, "--hash", "--json", *asked).json["stream_hash"]
        == (wanted["stream_hash"])
    )


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:unclosed:Warning")
def test_a_cluster_delivers_what_one_thread_does(
    dml: Callable[..., Any], written: Callable[..., Any]
) -> None:
    from distributed import LocalCluster

    from dml.cluster.cluster import connected

    target = written(PIPELINE)
    wanted = dml("run", target, "--hash", "--json", "--executor", "sync").json
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as cluster:
        asked = ("--scheduler", cluster.scheduler_address)
        told = dml("run", target, "--hash", "--json", "--quiet", *asked)
        connected(cluster.scheduler_address, 5.0).close()  # which the end of a process does
    assert told.code == 0
    assert told.json["stream_hash"] == wanted["stream_hash"]
    assert told.json["operators"]
