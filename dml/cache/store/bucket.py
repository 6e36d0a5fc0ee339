"""Keep a namespace of the store in an object store with conditional puts (S3).

``PUT`` with ``If-None-Match: *`` is answered 412 if the name exists, and 409 while another client
puts the name: then the request is repeated. Requests use the library that also reads files there.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dml.cache.store.primitives import (
    TMP,
    Fetched,
    ListedName,
    OvertakenError,
    Sink,
    UnusableError,
    UnwritableError,
)
from dml.io.stores import stores
from dml.io.stores.store_errors import AbsentError, StoreError, shown_url

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

PART_BYTES = 8 << 20  # least bytes of a request, buffered until then; S3 takes 5 MiB or more

Ask = Callable[[Callable[[], Any]], Any]
"""Makes a request, and repeats it while failures are transient."""


class Multipart:
    """Uploads a file to ``path`` in parts; ``ask`` makes the requests, and repeats failed ones."""

    def __init__(self, system: Any, path: str, ask: Ask) -> None:
        bucket, key, _ = system.split_path(path)
        self._system, self._path, self._ask = system, path, ask
        self._where = {"Bucket": bucket, "Key": key}
        self._held, self._sent = bytearray(), list[dict[str, Any]]()
        self._upload: str | None = None
        self._drop: weakref.finalize[..., Multipart] | None = None

    def write(self, data: bytes | memoryview, /) -> None:
        """Append bytes."""
        self._held += data
        if len(self._held) >= PART_BYTES:
            self._send()

    def finish(self) -> None:
        """Complete the upload, so that its name appears."""
        if self._upload is None:
            self._ask(lambda: self._system.pipe_file(self._path, bytes(self._held)))
        else:
            if self._held:
                self._send()
            self._complete(self._upload)
            if self._drop is not None:
                self._drop.detach()
        self._held = bytearray()

    def drop(self) -> None:
        """Abort the upload, unless it is finished."""
        if self._drop is not None:
            self._drop()

    def _send(self) -> None:
        if self._upload is None:
            begun = self._called("create_multipart_upload")
            self._upload = str(begun["UploadId"])
            self._drop = weakref.finalize(
                self, ended, self._system, {**self._where, "UploadId": self._upload}, os.getpid()
            )
        number, body = len(self._sent) + 1, bytes(self._held)
        with _translate_swept(self._path):
            told = self._called("upload_part", UploadId=self._upload, PartNumber=number, Body=body)
        self._sent.append({"PartNumber": number, "ETag": told["ETag"]})
        self._held.clear()

    def _complete(self, upload: str) -> None:
        try:
            self._called(
                "complete_multipart_upload", UploadId=upload, MultipartUpload={"Parts": self._sent}
            )
        except AbsentError:  # aborted by another process, or completed with a lost answer
            with _translate_swept(self._path):
                self._ask(lambda: self._system.info(self._path, refresh=True))

    def _called(self, method: str, **options: Any) -> dict[str, Any]:
        return dict(self._ask(lambda: self._system.call_s3(method, **self._where, **options)))


def ended(system: Any, upload: dict[str, Any], process: int) -> None:
    """Abort an upload, unless another process started it; do nothing if it is finished."""
    if os.getpid() == process:
        with suppress(OSError, RuntimeError, UnusableError):  # as at the end of a process
            system.call_s3("abort_multipart_upload", **upload)


def swept(system: Any, folder: str, ask: Ask, older_s: float, now: float) -> int:
    """Abort the uploads below ``folder`` that are idle for ``older_s``; return their number."""
    bucket, prefix, _ = system.split_path(folder)
    found = ask(lambda: system.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix))
    count = 0
    for each in found.get("Uploads", ()):
        upload = {"Bucket": bucket, "Key": each["Key"], "UploadId": each["UploadId"]}
        with suppress(AbsentError):  # finished meanwhile
            parts = ask(partial(system.call_s3, "list_parts", **upload))
            told = [part["LastModified"] for part in parts.get("Parts", ())]
            last = max([each["Initiated"], *told]).timestamp()
            if now - last > older_s:
                ended(system, upload, os.getpid())
                count += 1
    return count


@contextmanager
def _translate_swept(path: str) -> Iterator[None]:
    """Raise OvertakenError if an upload was aborted; the store is used nevertheless."""
    try:
        yield
    except AbsentError as error:
        raise OvertakenError("files of the store vanish while they are made", at=path) from error


PUTTING_S = (0.05, 0.2, 1.0, 4.0)  # seconds to pause while another client puts the same name
SCHEMES = ("s3", "s3a")  # whose library knows conditional puts


class Bucket:
    """The folder ``below`` (such as ``v1/shared``) of ``url``; ``options`` are passed to fsspec."""

    maps = False

    def __init__(self, url: str, below: str, options: object = None) -> None:
        self._url = shown_url(url).rstrip("/")
        self._store = stores.store_of(url, {"use_listings_cache": False, **dict(options or {})})  # type: ignore[call-overload]
        if self._store.scheme not in SCHEMES:
            raise UnusableError(
                f"{self._store.scheme}:// cannot keep parts",
                at=self._url,
                why="it is not known to put a file only where there is none",
                try_="a folder that all processes see, or s3://",
            )
        with self._translate_errors("opened"):
            self._root = f"{self._store.address.rstrip('/')}/{below}"

    def begin(self, name: str) -> Sink:
        """Return a sink for a name that no other process writes."""

        def ask(request: Callable[[], Any]) -> Any:
            with self._translate_errors("written", absent=True):
                return self._request(name, request, "written")

        with self._translate_errors("written"):
            return Multipart(self._system, self._at(name), ask)

    def put(self, name: str, data: bytes) -> None:
        """Write bytes to a name, which may exist already."""
        with self._translate_errors("written"):
            self._request(name, lambda: self._system.pipe_file(self._at(name), data), "written")

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create ``name``; return True if this call was the first to do so.

        If the answer to a request was lost, the request may have created the name; return False
        then.
        """

        def request() -> bool:
            for pause_s in (*PUTTING_S, None):
                try:
                    self._system.pipe_file(self._at(name), data, mode="create")
                except OSError as error:
                    if _there(error):
                        return False
                    if pause_s is None or not _at_once(error):
                        raise
                    stores.pause(pause_s)
                else:
                    return True
            return False

        with self._translate_errors("written"):
            return self._request(name, request, "written")

    def get(self, name: str) -> bytes | None:
        """Return the bytes of ``name``; None if it does not exist."""
        return self._read(name, lambda: bytes(self._system.cat_file(self._at(name))))

    def fetch(self, name: str) -> Fetched | None:
        """Return the blob ``name``, loaded into memory; None if it does not exist."""
        data = self.get(name)
        return None if data is None else Fetched(data)

    def piece(self, name: str, start: int, count: int) -> memoryview | None:
        """Return ``count`` bytes of a blob from ``start`` on; None if it does not exist."""

        def request() -> bytes:
            return bytes(self._system.cat_file(self._at(name), start=start, end=start + count))

        data = self._read(name, request)
        return None if data is None else memoryview(data)

    def names(self, prefix: str) -> list[str]:
        """Return every name below the folder ``prefix``, relative to the folder."""
        return [name for name, _ in self._listed(prefix)]

    def holds(self) -> bool:
        """Return True if the folder is not empty; lists one folder."""
        return bool(self._read("", lambda: self._system.ls(self._root, detail=False, refresh=True)))

    def delete(self, name: str) -> None:
        """Remove ``name``, if it exists."""
        with self._translate_errors("written"):
            try:
                self._request(name, lambda: self._system.rm_file(self._at(name)), "written")
            except AbsentError:
                return

    def beat(self, name: str) -> bool:
        """Rewrite ``name`` as a heartbeat; return False if it is gone.

        A late rewrite is harmless.
        """
        if self.stamp(name) is None:
            return False
        self.put(name, uuid.uuid4().hex.encode())
        return True

    def stamp(self, name: str) -> str | None:
        """Return a value that changes with every heartbeat; None if the name is gone."""
        info = self._read(name, lambda: self._system.info(self._at(name), refresh=True))
        return None if info is None else stores.version_in(info)[0]

    def list_files(self, prefix: str, *, looking: bool = False) -> list[ListedName]:
        """Return the names below ``prefix`` with sizes in bytes and ages in seconds.

        Ages are by the store's clock, which a new file shows. With ``looking``, no file is written,
        and ages are by the local clock.
        """
        now = time.time() if looking else self._now()
        return [
            ListedName(name, int(info.get("size") or 0), now - _moment(info))
            for name, info in self._listed(prefix)
        ]

    def clear(self, older_s: float) -> int:
        """Remove leftovers of dead writers older than ``older_s``, and return their number."""
        old = [each for each in self.list_files(TMP) if each.age_s > older_s]
        for each in old:
            self.delete(f"{TMP}/{each.name}")
        ask = partial(self._request, self._root)
        with self._translate_errors("read"):
            return len(old) + swept(self._system, self._root, ask, older_s, self._now())

    # ------------------------------------------------------------------------------------- inside

    def _listed(self, prefix: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the names below the folder ``prefix``, with the metadata of the store."""
        top = self._at(prefix)
        found = self._read(prefix, lambda: dict(self._system.find(top, detail=True, refresh=True)))
        start = len(top.rstrip("/")) + 1
        return [(name[start:], info) for name, info in (found or {}).items() if name != top]

    @property
    def _system(self) -> Any:
        return self._store.system

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _request(self, name: str, request: Callable[[], T], done: str = "read") -> T:
        return self._store.request(f"{self._url}/{name}", request, done)

    def _read(self, name: str, request: Callable[[], T]) -> T | None:
        """Return the result of ``request``; None if the name does not exist."""
        with self._translate_errors("read"):
            try:
                return self._request(name, request)
            except AbsentError:
                return None

    def _now(self) -> float:
        """Return the time of the store in seconds, read off a new file."""
        probe = f"{TMP}/{uuid.uuid4().hex}"
        self.put(probe, b"")
        try:
            with self._translate_errors("read"):
                info = self._request(
                    probe, lambda: self._system.info(self._at(probe), refresh=True)
                )
        finally:
            self.delete(probe)
        return _moment(info)

    @contextmanager
    def _translate_errors(self, done: str, *, absent: bool = False) -> Iterator[None]:
        """Translate the library's errors in the ``with`` block; ``absent`` lets AbsentError pass.

        ``done`` is the participle of what failed, such as "written".
        """
        try:
            yield
        except AbsentError as error:
            if absent:
                raise
            raise UnusableError(error.what, at=error.at, why=error.why, try_=error.try_) from error
        except StoreError as error:
            kind = UnwritableError if done == "written" else UnusableError
            raise kind(error.what, at=error.at, why=error.why, try_=error.try_) from error


def _there(error: OSError) -> bool:
    """Return True if a put was refused because the name exists."""
    return isinstance(error, FileExistsError) or _code(error) in ("PreconditionFailed", "412")


def _at_once(error: OSError) -> bool:
    """Return True if a put was refused because another client puts the name right now."""
    return _code(error) in ("ConditionalRequestConflict", "409") or error.errno == errno.EBUSY


def _code(error: OSError) -> str:
    answer = getattr(error.__cause__, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))


def _moment(info: dict[str, Any]) -> float:
    when = info.get("LastModified")
    return when.timestamp() if isinstance(when, datetime) else 0.0
