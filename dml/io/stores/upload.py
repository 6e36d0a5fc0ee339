"""Files written on this machine are uploaded to an object store: all of them, or none.

A store cannot rename folders, so files do not appear all at once, as they do on a disk
(``staged_folder.py``). They appear one after the other, each complete, once all rows are written.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from dml.errors import PlanError
from dml.io.files.staged_folder import refused
from dml.io.stores.store_errors import AbsentError, ForbiddenError, StoreError, shown_url
from dml.io.stores.stores import ObjectStore, store_of

# Parallel uploads, and the bytes of each in memory: a part in the terms of S3.
THREADS, PART_BYTES = 4, 8 << 20


@contextmanager
def uploading(url: str, options: object, *, overwrite: bool) -> Iterator[Path]:
    """Yield a folder for files that are then uploaded to the folder ``url`` of a store.

    Nothing is uploaded if the ``with`` block raises; uploads are undone if one of them fails. Raise
    PlanError if the folder ``url`` is not empty, or for ``overwrite``, since no store can replace a
    folder in one step. Raise SourceError if the store or the disk refuses an operation.
    """
    store, shown = store_of(url, options), shown_url(url).rstrip("/")
    address = store.address.rstrip("/")
    _refuse(store, address, shown, overwrite=overwrite)
    try:
        with tempfile.TemporaryDirectory(prefix="dml-upload-") as name:
            folder = Path(name)
            yield folder
            _put(store, address, shown, sorted(folder.iterdir()))
    except OSError as error:
        raise refused(error, Path(tempfile.gettempdir())) from error


def _refuse(store: ObjectStore, address: str, shown: str, *, overwrite: bool) -> None:
    """Raise the errors that can be detected before any upload."""
    if store.scheme in ("http", "https"):
        raise PlanError(
            "files cannot be put onto a web server",
            at=shown,
            why=f"{store.scheme}:// is only read",
            try_="a folder, or the folder of an object store",
        )
    if overwrite:
        raise PlanError(
            "overwrite=True cannot be kept in a store",
            at=shown,
            why="a folder there cannot be replaced at once, and half of it is nobody's data",
            try_="a new folder; remove the old one when nobody reads it any more",
        )
    bucket = address.partition("/")[0]
    if bucket and bucket != address:
        with suppress(ForbiddenError):
            store.info(bucket, f"{store.scheme}://{bucket}")
    held: list[str] = []
    with suppress(AbsentError):
        held = store.names(address, shown)
    if held:
        raise PlanError(
            "the target folder is not empty",
            at=shown,
            why=f"entries in it: {len(held)}, such as {held[0]!r}",
            try_="another folder",
        )


def _put(store: ObjectStore, address: str, shown: str, files: list[Path]) -> None:
    """Upload every file under its name; remove all if an upload fails."""
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            asked = [
                pool.submit(_put_one, store, path, f"{address}/{path.name}", f"{shown}/{path.name}")
                for path in files
            ]
            try:
                for each in asked:
                    each.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    except BaseException:
        for path in files:
            with suppress(StoreError):  # the file was never uploaded
                removing = partial(store.system.rm_file, f"{address}/{path.name}")
                store.request(f"{shown}/{path.name}", removing, "removed")
        raise


def _put_one(store: ObjectStore, path: Path, address: str, shown: str) -> None:
    """Upload one file, which appears in the store once it is complete."""

    def request() -> None:
        with (
            open(path, "rb") as made,
            store.system.open(address, "wb", block_size=PART_BYTES) as to,
        ):
            shutil.copyfileobj(made, to, PART_BYTES)

    store.request(shown, request, "written")
