"""Files outside the folders of this machine are accessed by URL through fsspec.

Every request goes through ``ObjectStore.request``: transient failures are retried after a pause,
other failures raise errors that name the URL. Credentials may be secret: they are sent to workers,
but never part of a name, text or error. Files are read by ranges, without implicit prefetch.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import posixpath
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from dml.errors import DmlError, InternalError, PlanError, SourceError
from dml.io.stores.store_errors import (
    StoreError,
    absent,
    error_text,
    passing,
    refused,
    scrubbed,
    secrets_in,
    unknown,
)

T = TypeVar("T")
Range = tuple[int, int]

# Pauses before retries, in seconds: stores that respond "slow down" mean about a second, and a
# training loop should not wait out a failure that outlasts a quarter of a minute.
WAITS_S = (0.25, 1.0, 4.0, 10.0)
pause: Callable[[float], None] = time.sleep

# Maximum size of a file that may be sent whole in response to a range request: some web servers do
# not support ranges, which for a small file only costs time.
MOST_WHOLE = 8 << 20

# Names of version fields in stores, the best first. Those of WEAK are timestamps, which two
# versions may share: they can prove a change, but not that nothing changed.
STRONG = ("ETag", "etag", "generation", "md5Hash", "content_md5", "Content-MD5", "sha")
WEAK = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ObjectStore:
    """A file system that fsspec opens from the URL of one of its files; picklable."""

    scheme: str
    _url: str
    _options: Mapping[str, Any]

    @property
    def system(self) -> Any:
        """The file system, opened once per process."""
        held: tuple[int, Any] | None = self.__dict__.get("_opened")
        if held is None or held[0] != os.getpid():
            held = (os.getpid(), self._resolve()[0])
            self.__dict__["_opened"] = held
        return held[1]

    @property
    def address(self) -> str:
        """The path that the file system uses for the URL."""
        return str(self._resolve()[1])

    def _resolve(self) -> tuple[Any, Any]:
        # imported at the first use of a URL, since the import takes as long as all of dml
        fsspec = importlib.import_module("fsspec.core")
        self._check_scheme()
        try:
            found: tuple[Any, Any] = fsspec.url_to_fs(self._url, **self._options)
        except Exception as error:  # noqa: BLE001 - a store's library may raise whatever it likes
            why = self.scrubbed(f"{type(error).__name__}: {error}")
        else:
            return found
        raise SourceError(  # as below: without the library's error as context
            f"{self.scheme}:// cannot be opened",
            why=why,
            try_="the URL as the store's own tools have it, and their names of the options",
        )

    def _check_scheme(self) -> None:
        """Raise SourceError unless fsspec supports the scheme and its library is installed."""
        fsspec = importlib.import_module("fsspec")
        try:
            fsspec.get_filesystem_class(self.scheme)
        except ImportError as error:
            raise absent(error, self.scheme) from None
        except ValueError:
            raise unknown(self.scheme, fsspec.available_protocols()) from None

    def scrubbed(self, text: str) -> str:
        """Return ``text`` without credentials."""
        parts = urlsplit(self._url)
        web = parts.scheme in ("http", "https")
        inside = [parts.password or "", *(v for _, v in parse_qsl(parts.query) if web)]
        return scrubbed(text, iter([*secrets_in(self._options), *inside]))

    def request(self, url: str, request: Callable[[], T], done: str = "read") -> T:
        """Return ``request()``; retry transient failures, raise StoreError for a permanent one."""
        for wait_s in (*WAITS_S, None):
            try:
                return request()
            except DmlError:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                failure = error
            # raised outside of the except block: else the library's error is attached as context
            if wait_s is None or not passing(failure):
                raise refused(failure, url, self.scrubbed(error_text(failure)), done)
            pause(wait_s)
        raise InternalError("a request has no end")

    def fresh(self, url: str, ask: Callable[[Any], T]) -> T:
        """Return ``ask(system)``, requested as by ``request``, bypassing caches of listings."""

        def request() -> T:
            self.system.invalidate_cache()
            return ask(self.system)

        return self.request(url, request)

    def info(self, address: str, url: str) -> dict[str, Any]:
        """Return current metadata of a file or folder."""
        return dict(self.fresh(url, lambda system: system.info(address)))

    def names(self, folder: str, url: str) -> list[str]:
        """Return the names in a folder, sorted."""
        found = self.fresh(url, lambda system: system.ls(folder, detail=False))
        return sorted(posixpath.basename(str(name).rstrip("/")) for name in found)

    def __getstate__(self) -> dict[str, Any]:
        """Return the URL and options, without the connections of this process."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}

    def __repr__(self) -> str:
        return f"Store({self.scheme}://)"


def store_of(url: str, options: object) -> ObjectStore:
    """Return the store of a URL; raise PlanError for invalid options."""
    if not isinstance(options, Mapping | None) or not all(
        isinstance(k, str) for k in options or {}
    ):
        raise PlanError(
            "storage_options must be a dict of names and values",
            why=f"it is of type {type(options).__name__}",
            try_='storage_options={"key": ..., "secret": ...}, as fsspec takes them',
        )
    return ObjectStore(url.partition(":")[0], url, dict(options or {}))


def version_in(info: Mapping[str, Any]) -> tuple[str, bool]:
    """Return a file's version in the store, "" if none, and True if it proves equal content."""
    for name in (*STRONG, *WEAK):
        found = info.get(name)
        if found not in (None, ""):
            text = found.isoformat() if hasattr(found, "isoformat") else str(found)
            letters = text.strip().strip('"')
            return f"{name.lower()} {letters}", name in STRONG
    return "", False


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Remote:
    """One file of a store as it was when the source was built; ``url`` is for messages.

    ``certain``: an equal ``version`` means equal content.
    """

    store: ObjectStore
    address: str
    url: str
    size: int
    version: str
    certain: bool

    def check(self) -> None:
        """Raise SourceError if the file differs from the listed version; takes one request."""
        now = self.store.info(self.address, self.url)
        size, (version, _) = now.get("size"), version_in(now)
        if (size, version) != (self.size, self.version):
            raise changed(StoreError, self.url, self.url, self.size, size)

    def fetch(self, ranges: Sequence[Range], *, checked: bool = True) -> list[bytes]:
        """Fetch the bytes of every range (start, stop), requested together.

        The version is checked after the fetch; with ``checked=False`` the caller must do this. A
        version never recurs, so bytes read before a successful check are of the listed version.
        """
        found: dict[int, bytes] = {
            i: b"" for i, (start, stop) in enumerate(ranges) if start == stop
        }
        try:
            if len(found) < len(ranges):
                self.store.request(self.url, lambda: self._ask(ranges, found))
        except SourceError:
            self.check()
            raise
        if checked:
            self.check()
        return [found[i] for i in range(len(ranges))]

    def _ask(self, ranges: Sequence[Range], found: dict[int, bytes]) -> None:
        """Fetch the ranges missing in ``found`` and add them; raise permanent failures first."""
        lacking = [i for i in range(len(ranges)) if i not in found]
        starts, stops = zip(*(ranges[i] for i in lacking), strict=True)
        system = self.store.system
        if len(lacking) == 1:
            got = [system.cat_file(self.address, start=starts[0], end=stops[0])]
        else:
            paths = [self.address] * len(lacking)
            got = system.cat_ranges(paths, list(starts), list(stops), on_error="return")
        failures: list[BaseException] = []
        for i, data in zip(lacking, got, strict=True):
            if isinstance(data, BaseException):
                failures.append(data)
                continue
            found[i] = self._part(data, *ranges[i])
            if len(found[i]) < ranges[i][1] - ranges[i][0]:
                failures.append(ConnectionError(f"bytes {ranges[i]} came as {len(found.pop(i))}"))
        if failures:
            raise min(failures, key=passing)  # permanent failures first

    def _part(self, data: bytes, start: int, stop: int) -> bytes:
        """Return the requested bytes of a response, which may be a whole small file.

        Raise StoreError if the response is longer and not a whole small file.
        """
        if len(data) <= stop - start:
            return data
        if len(data) == self.size <= MOST_WHOLE:
            return data[start:stop]
        raise StoreError(
            f"{self.url} cannot be read in parts",
            why=f"{stop - start} bytes were asked for, {len(data)} came: the server has no ranges",
            try_="a server that has, or a copy in a folder of this machine",
        )

    def __repr__(self) -> str:
        return f"Remote({self.url!r})"


def changed(kind: type[SourceError], name: str, path: str, size: int, now: object) -> SourceError:
    """Build the error, of class ``kind``, for a file that has changed."""
    return kind(
        f"{name} has changed since it was opened",
        at=path,
        why=f"it had {size} bytes and now has {now}"
        if now != size
        else f"it has still {size} bytes, but was written to",
        try_="make the source again, of files that nobody writes",
    )
