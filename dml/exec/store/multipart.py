"""This file writes a name of an object store little by little: what S3 calls a multipart upload.

What is small is put at once. An upload whose writer died is no name, and costs its bytes until it
is ended: the store tells which there are.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dml.exec.store.primitives import OvertakenError, UnusableError
from dml.expr.sources.store_errors import AbsentError

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

PART_BYTES = 8 << 20  # of one request, held until it is sent; S3 takes 5 MiB or more

Ask = Callable[[Callable[[], Any]], Any]
"""Makes a request, again while its failures may pass."""


class Multipart:
    """A name that is written; ``path`` is what the library calls it, ``ask`` makes requests."""

    def __init__(self, system: Any, path: str, ask: Ask) -> None:
        bucket, key, _ = system.split_path(path)
        self._system, self._path, self._ask = system, path, ask
        self._where = {"Bucket": bucket, "Key": key}
        self._held, self._sent = bytearray(), list[dict[str, Any]]()
        self._upload: str | None = None
        self._drop: weakref.finalize[..., Multipart] | None = None

    def write(self, data: bytes | memoryview, /) -> None:
        """Bytes that follow those before."""
        left = memoryview(data).cast("B") if len(data) else memoryview(b"")
        while left:
            room = PART_BYTES - len(self._held)
            self._held += left[:room]
            left = left[room:]
            if len(self._held) == PART_BYTES:
                self._send()

    def finish(self) -> None:
        """Give it its name."""
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
        """Leave nothing of it, if it is not finished."""
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
        with _told(self._path):
            told = self._called("upload_part", UploadId=self._upload, PartNumber=number, Body=body)
        self._sent.append({"PartNumber": number, "ETag": told["ETag"]})
        self._held.clear()

    def _complete(self, upload: str) -> None:
        try:
            self._called(
                "complete_multipart_upload", UploadId=upload, MultipartUpload={"Parts": self._sent}
            )
        except AbsentError:  # it was ended by another, or completed and the answer was lost
            with _told(self._path):
                self._ask(lambda: self._system.info(self._path, refresh=True))

    def _called(self, method: str, **options: Any) -> dict[str, Any]:
        return dict(self._ask(lambda: self._system.call_s3(method, **self._where, **options)))


def ended(system: Any, upload: dict[str, Any], process: int) -> None:
    """End an upload, unless another process has it; nothing if it is finished."""
    if os.getpid() == process:
        with suppress(OSError, RuntimeError, UnusableError):  # as at the end of a process
            system.call_s3("abort_multipart_upload", **upload)


def swept(system: Any, folder: str, ask: Ask, older_s: float, now: float) -> int:
    """End the uploads below a folder that nobody has sent anything to for so long; how many."""
    bucket, prefix, _ = system.split_path(folder)
    found = ask(lambda: system.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix))
    count = 0
    for each in found.get("Uploads", ()):
        upload = {"Bucket": bucket, "Key": each["Key"], "UploadId": each["UploadId"]}
        with suppress(AbsentError):  # it has been finished
            parts = ask(partial(system.call_s3, "list_parts", **upload))
            told = [part["LastModified"] for part in parts.get("Parts", ())]
            last = max([each["Initiated"], *told]).timestamp()
            if now - last > older_s:
                ended(system, upload, os.getpid())
                count += 1
    return count


@contextmanager
def _told(path: str) -> Iterator[None]:
    """What was cleared away is no reason to give up the store."""
    try:
        yield
    except AbsentError as error:
        raise OvertakenError("files of the store vanish while they are made", at=path) from error
