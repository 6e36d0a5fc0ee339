"""Fixtures for tests of the cache store: a folder, and a bucket of an S3 server."""

from __future__ import annotations

import importlib
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dml.cache.store import layout
from dml.cache.store.bucket import Bucket
from dml.cache.store.disk import Disk
from dml.cache.store.primitives import StorePlace

BELOW = layout.namespace("shared")


@pytest.fixture(scope="session")
def bucket_options() -> Iterator[dict[str, Any]]:
    """What opens a server of S3 that has a bucket."""
    server, s3fs = pytest.importorskip("moto.server"), pytest.importorskip("s3fs")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer(port=0, verbose=False)
    responses = importlib.import_module("moto.s3.responses").S3Response
    whole, one = responses.put_object, threading.Lock()

    def put_object(self: Any) -> Any:
        """As one step, as S3 has it: this server looks for the key, and makes it later."""
        with one:
            return whole(self)

    patched = pytest.MonkeyPatch()
    patched.setattr(responses, "put_object", put_object)
    running.start()
    _, port = running.get_host_and_port()
    found = {"key": "AKIDEXAMPLE", "secret": "none", "endpoint_url": f"http://127.0.0.1:{port}"}
    with suppress(FileExistsError):  # servers of one process share their buckets
        s3fs.S3FileSystem(**found).mkdir("keeping")
    yield found
    running.stop()
    patched.undo()


@pytest.fixture(params=["disk", pytest.param("bucket", marks=pytest.mark.cluster)])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], StorePlace]:
    """Opens one place anew, each time as another process would."""
    if request.param == "disk":
        return lambda: Disk(tmp_path / "root", BELOW)
    url = f"s3://keeping/{uuid.uuid4().hex}"
    options = request.getfixturevalue("bucket_options")
    return lambda: Bucket(url, BELOW, options)


@pytest.fixture
def place(opened: Callable[[], StorePlace]) -> StorePlace:
    return opened()
