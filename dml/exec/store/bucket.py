"""This file is a namespace of the store in an object store that can put what is absent (S3).

``PUT`` with ``If-None-Match: *`` is answered 412 if the name is there, and 409 while somebody else
puts it: then it is asked again. Requests go through the library that reads files there.
"""

from __future__ import annotations

import errno
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from dml.exec.store.multipart import Multipart, swept
from dml.exec.store.primitives import TMP, Found, Sink, UnusableError, UnwritableError
from dml.expr.sources import stores
from dml.expr.sources.store_errors import AbsentError, StoreError, shown_url

T = TypeVar("T")

PUTTING_S = (0.05, 0.2, 1.0, 4.0)  # pauses while somebody else puts the same name
SCHEMES = ("s3", "s3a")  # whose library knows conditional puts


class Bucket:
    """The folder ``below`` (such as ``v1/shared``) of a URL; its options are those of fsspec."""

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
        with self._told("opened"):
            self._root = f"{self._store.address.rstrip('/')}/{below}"

    def begin(self, name: str) -> Sink:
        """Write a name that nobody else writes, little by little."""

        def ask(request: Callable[[], Any]) -> Any:
            with self._told("written", absent=True):
                return self._asked(name, request, "written")

        with self._told("written"):
            return Multipart(self._system, self._at(name), ask)

    def put(self, name: str, data: bytes) -> None:
        """The same of bytes."""
        with self._told("written"):
            self._asked(name, lambda: self._system.pipe_file(self._at(name), data), "written")

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Whether this was the first to make ``name``.

        A request whose answer was lost may have made it; then this says False, as if another had.
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

        with self._told("written"):
            return self._asked(name, request, "written")

    def get(self, name: str) -> bytes | None:
        """The bytes of ``name``, None if it is not there."""
        with self._told("read"):
            try:
                return bytes(self._asked(name, lambda: self._system.cat_file(self._at(name))))
            except AbsentError:
                return None

    def fetch(self, name: str) -> Loaded | None:
        """A blob, None if it is not there."""
        data = self.get(name)
        return None if data is None else Loaded(data)

    def piece(self, name: str, start: int, count: int) -> memoryview | None:
        """Some of the bytes of a blob, None if it is not there."""

        def request() -> bytes:
            return bytes(self._system.cat_file(self._at(name), start=start, end=start + count))

        with self._told("read"):
            try:
                return memoryview(self._asked(name, request))
            except AbsentError:
                return None

    def names(self, prefix: str) -> list[str]:
        """Every name below the folder ``prefix``."""
        return [name for name, _ in self._listed(prefix)]

    def holds(self) -> bool:
        """Whether anything is there; one folder is listed."""

        def request() -> bool:
            return bool(self._system.ls(self._root, detail=False, refresh=True))

        with self._told("read"):
            try:
                return self._asked("", request)
            except AbsentError:
                return False

    def delete(self, name: str) -> None:
        """Remove a name, if it is there."""
        with self._told("written"):
            try:
                self._asked(name, lambda: self._system.rm_file(self._at(name)), "written")
            except AbsentError:
                return

    def beat(self, name: str) -> bool:
        """Write a name of one's own anew; one that was removed meanwhile comes back, to no harm."""
        if self.stamp(name) is None:
            return False
        self.put(name, uuid.uuid4().hex.encode())
        return True

    def stamp(self, name: str) -> str | None:
        """What changes with every beat; None if the name is gone."""
        with self._told("read"):
            try:
                info = self._asked(name, lambda: self._system.info(self._at(name), refresh=True))
            except AbsentError:
                return None
        return stores.version_in(info)[0]

    def found(self, prefix: str, *, looking: bool = False) -> list[Found]:
        """As ``names``, with sizes and ages by the store's own clock, which costs a file there.

        Who is ``looking`` takes their own clock.
        """
        now = time.time() if looking else self._now()
        return [
            Found(name, int(info.get("size") or 0), now - _moment(info))
            for name, info in self._listed(prefix)
        ]

    def clear(self, older_s: float) -> int:
        """Clear away what dead writers left, which nobody wrote for so long; how many."""
        old = [each for each in self.found(TMP) if each.age_s > older_s]
        for each in old:
            self.delete(f"{TMP}/{each.name}")
        ask = partial(self._asked, self._root)
        with self._told("read"):
            return len(old) + swept(self._system, self._root, ask, older_s, self._now())

    # ------------------------------------------------------------------------------------- inside

    def _listed(self, prefix: str) -> list[tuple[str, dict[str, Any]]]:
        """Names below a folder, and what the store says of them."""
        top = self._at(prefix)

        def request() -> dict[str, dict[str, Any]]:
            return dict(self._system.find(top, detail=True, refresh=True))

        with self._told("read"):
            try:
                found = self._asked(prefix, request)
            except AbsentError:
                return []
        start = len(top.rstrip("/")) + 1
        return [(name[start:], info) for name, info in found.items() if name != top]

    @property
    def _system(self) -> Any:
        return self._store.system

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _asked(self, name: str, request: Callable[[], T], done: str = "read") -> T:
        return self._store.asked(f"{self._url}/{name}", request, done)

    def _now(self) -> float:
        """The moment that a file gets that is made now."""
        probe = f"{TMP}/{uuid.uuid4().hex}"
        self.put(probe, b"")
        try:
            with self._told("read"):
                info = self._asked(probe, lambda: self._system.info(self._at(probe), refresh=True))
        finally:
            self.delete(probe)
        return _moment(info)

    @contextmanager
    def _told(self, done: str, *, absent: bool = False) -> Iterator[None]:
        """What the library says in the store's words; ``absent`` keeps what is not there."""
        try:
            yield
        except AbsentError as error:
            if absent:
                raise
            raise UnusableError(error.what, at=error.at, why=error.why, try_=error.try_) from error
        except StoreError as error:
            kind = UnwritableError if done == "written" else UnusableError
            raise kind(error.what, at=error.at, why=error.why, try_=error.try_) from error


class Loaded:
    """One blob in memory."""

    identity: str | None = None  # it came over a network, and is checked each time

    def __init__(self, data: bytes) -> None:
        self._data, self.size = data, len(data)

    def piece(self, start: int, count: int) -> memoryview:
        """Some of the bytes."""
        return memoryview(self._data)[start : start + count]

    def buffer(self) -> pa.Buffer:
        """All bytes."""
        return pa.py_buffer(self._data)


def _there(error: OSError) -> bool:
    """Whether a put was refused because the name is there."""
    return isinstance(error, FileExistsError) or _code(error) in ("PreconditionFailed", "412")


def _at_once(error: OSError) -> bool:
    """Whether a put was refused because somebody else puts the name right now."""
    return _code(error) in ("ConditionalRequestConflict", "409") or error.errno == errno.EBUSY


def _code(error: OSError) -> str:
    answer = getattr(error.__cause__, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))


def _moment(info: dict[str, Any]) -> float:
    when = info.get("LastModified")
    return when.timestamp() if isinstance(when, datetime) else 0.0
