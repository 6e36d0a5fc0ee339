"""Read from an S3 server in the test process, and compare with the same files on disk."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dml
from dml.api.dataset import Dataset
from dml.data.stream_hash import stream_hash
from dml.errors import PlanError, SourceError
from dml.io.stores import stores
from dml.testing.source_laws import check_same_data
from tests.cluster.dask_cases import UNCLOSED, cluster
from tests.io.line_sets import written
from tests.io.store_formats import FORMATS, LINES

server = pytest.importorskip("moto.server")
s3fs = pytest.importorskip("s3fs")

pytestmark = pytest.mark.cluster

SECRET = "open-sesame-4711"
OFF = {"telemetry_dir": "off"}
DOORS: dict[str, str] = {
    "parquet": "read_parquet",
    "arrow": "read_arrow",
    **dict.fromkeys(("npy", "folded", "npz"), "read_numpy"),
    "csv": "read_csv",
    "json": "read_json",
    "text": "read_text",
    "bytes": "read_binary_files",
}


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    """What opens a server of S3 that has a bucket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer(port=0, verbose=False)
    running.start()
    _, port = running.get_host_and_port()
    found = {"key": "AKIDEXAMPLE", "secret": SECRET, "endpoint_url": f"http://127.0.0.1:{port}"}
    with suppress(FileExistsError):  # servers of one process share their buckets
        s3fs.S3FileSystem(**found).mkdir("bucket")
    yield found
    running.stop()


@pytest.fixture(params=FORMATS)
def both(
    request: pytest.FixtureRequest, tmp_path: Path, options: dict[str, Any]
) -> tuple[str, Path, str]:
    """A door, a folder of what it reads, and the same in the bucket."""
    folder = written(tmp_path / "data", FORMATS[request.param][1])
    return DOORS[request.param], folder, put(folder, options, request.param)


def put(folder: Path, options: dict[str, Any], name: str) -> str:
    system = s3fs.S3FileSystem(**options)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name_there = path.relative_to(folder).as_posix()
            system.pipe_file(f"bucket/{name}/{name_there}", path.read_bytes())
    return f"s3://bucket/{name}"


def opened(door: str, place: object, **options: Any) -> Dataset:
    found: Dataset = getattr(dml, door)(place, atom_rows=30, **options)
    return found.with_options(**OFF)


@pytest.mark.sample(4)
def test_the_same_data_as_on_disk(
    both: tuple[str, Path, str], options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    _, folder, url = both
    read = FORMATS[request.node.callspec.params["both"]][0]
    for pattern in ("", "/*", "/**/*"):
        here = read(f"{folder}{pattern}", atom_rows=30)
        there = read(f"{url}{pattern}", atom_rows=30, storage_options=options)
        check_same_data(here, there)


@pytest.mark.sample(9)
@pytest.mark.parametrize("executor", ["sync", "threads", "processes"])
def test_every_executor_gives_the_same(
    both: tuple[str, Path, str], options: dict[str, Any], executor: str
) -> None:
    door, folder, url = both
    here = opened(door, folder).shuffle(seed=3).batch(8)
    there = opened(door, url, storage_options=options).shuffle(seed=3).batch(8)
    chosen = there.with_options(executor=executor, num_workers=2)
    assert stream_hash(iter(chosen)) == stream_hash(iter(here))


@UNCLOSED
def test_a_cluster_gives_the_same_and_the_key_is_in_no_task(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    folder = written(tmp_path / "data", FORMATS["parquet"][1])
    url = put(folder, options, "clustered")
    there = opened("read_parquet", url, storage_options=options).shuffle(seed=3).batch(8)
    with cluster() as made, Client(made) as client:
        chosen = there.with_options(scheduler=client)
        here = opened("read_parquet", folder).shuffle(seed=3).batch(8)
        assert stream_hash(iter(chosen)) == stream_hash(iter(here))
        assert SECRET not in str([*made.scheduler.tasks, *made.scheduler.transition_log])


@pytest.mark.sample(4)
def test_a_run_goes_on_from_anywhere_also_on_disk(
    both: tuple[str, Path, str], options: dict[str, Any]
) -> None:
    door, folder, url = both
    here = opened(door, folder).shuffle(seed=3).batch(3)
    there = opened(door, url, storage_options=options).shuffle(seed=3).batch(3)
    whole = [stream_hash([batch]) for batch in here.epoch(0)]
    for taken in (0, 1, len(whole) // 2):
        it = iter(there.epoch(0))
        begun = [stream_hash([next(it)]) for _ in range(taken)]
        state = json.dumps(it.state_dict())
        assert SECRET not in state
        for place in (here, there):
            other = iter(place.epoch(0))
            other.load_state_dict(json.loads(state))
            assert begun + [stream_hash([batch]) for batch in other] == whole


def test_another_upload_is_noticed(both: tuple[str, Path, str], options: dict[str, Any]) -> None:
    door, folder, url = both
    ds = opened(door, url, storage_options=options)
    assert ds.count()
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size:
            path.write_bytes(path.read_bytes()[:-1] + b"\n\n")
    put(folder, options, url.rpartition("/")[2])
    with pytest.raises(SourceError, match="has changed since it was opened"):
        list(ds.batch(8))


def test_equal_content_uploaded_in_parts_has_the_same_name(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    data = LINES * ((6 << 20) // len(LINES) + 1)
    folder = written(tmp_path / "data", {"a.txt": data[: 6 << 20]})
    system, url = s3fs.S3FileSystem(**options), put(folder, options, "whole")
    with system.open("bucket/parts/a.txt", "wb", block_size=5 << 20) as file:
        file.write(data[: 6 << 20])
    tags = [system.info(f"bucket/{name}/a.txt")["ETag"] for name in ("whole", "parts")]
    assert tags[0] != tags[1]
    read = FORMATS["bytes"][0]
    whole, parts = (read(u, storage_options=options) for u in (url, "s3://bucket/parts"))
    assert whole.identity() == parts.identity() == read(folder).identity()


def test_a_truncated_object(tmp_path: Path, options: dict[str, Any]) -> None:
    folder = written(tmp_path / "data", FORMATS["parquet"][1])
    (folder / "a.parquet").write_bytes((folder / "a.parquet").read_bytes()[:-9])
    url = put(folder, options, "truncated")
    with pytest.raises(SourceError) as caught:
        dml.read_parquet(url, storage_options=options)
    assert caught.value.what == f"{url}/a.parquet is truncated"


def test_what_is_not_there(options: dict[str, Any]) -> None:
    for url in ("s3://no-such-bucket/a.parquet", "s3://bucket/no/such.parquet"):
        with pytest.raises(SourceError) as caught:
            dml.read_parquet(url, storage_options=options)
        assert caught.value.what == f"{url} does not exist"


def test_wrong_credentials_are_said_at_once(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # from now on the server checks keys, and it knows none
    settings = pytest.importorskip("moto.settings")
    monkeypatch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0.0)
    pauses: list[float] = []
    monkeypatch.setattr(stores, "pause", pauses.append)
    for url in ("s3://bucket/locked/a.parquet", "s3://bucket/locked/*.parquet"):
        with pytest.raises(SourceError) as caught:
            dml.read_parquet(url, storage_options=options)
        assert caught.value.what == f"{url} may not be read"
        assert "storage_options" in caught.value.try_
        said = str(caught.value)
        assert not any(each in said for each in (options["key"], options["secret"]))
    assert pauses == []


@pytest.mark.parametrize("form", ["parquet", "arrow", "csv", "json"])
def test_what_was_written_reads_back(options: dict[str, Any], form: str) -> None:
    words = [f"word {i}" for i in range(3000)]
    rows = dml.from_dict({"id": range(3000), "s": words}).with_options(**OFF)
    url = f"s3://bucket/written-{form}"
    getattr(rows, f"write_{form}")(url, rows_per_file=1000, storage_options=options)
    back = getattr(dml, f"read_{form}")(url, storage_options=options).with_options(**OFF)
    assert back.to_pandas()["id"].tolist() == list(range(3000))
    with pytest.raises(PlanError, match="is not empty"):
        getattr(rows, f"write_{form}")(url, storage_options=options)


def test_a_bucket_that_is_not_there_is_said_before_any_work(options: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match="s3://no-such-bucket does not exist"):
        dml.range(3).write_parquet("s3://no-such-bucket/out", storage_options=options)
