"""URLs are expanded to lists of files in stores, as ``paths`` does for local paths."""

from __future__ import annotations

import difflib
import glob
import posixpath
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

from dml.errors import SourceError
from dml.io.files.paths import TRY, FileKind, twice
from dml.io.stores.store_errors import AbsentError, StoreError, shown_url
from dml.io.stores.stores import ObjectStore, Remote, store_of, version_in

# Parallel requests for metadata that a listing does not contain.
ASKING_THREADS = 16


def find_files(
    urls: Sequence[str], kind: FileKind, options: object
) -> tuple[str, dict[str, Remote]]:
    """Return the common folder of the files that ``urls`` denote, and the files by sorted name.

    As for ``expand``, a folder denotes the files of this ``kind`` in and below it that are not
    hidden. Listings are requested from the store now. Raise SourceError for missing, empty or
    repeated paths, and for URLs of several stores.
    """
    stores: dict[int, ObjectStore] = {}
    jobs: list[tuple[ObjectStore, str, str]] = []
    for url in urls:
        store = store_of(url, options)
        jobs.append((stores.setdefault(id(store.system), store), store.address, url))
    if len({store.scheme for store in stores.values()}) > 1:
        raise SourceError(
            "the files lie in several stores",
            why=" and ".join(sorted({f"{store.scheme}://" for store in stores.values()})),
            try_="a source for each, then concat",
        )
    with ThreadPoolExecutor(ASKING_THREADS) as pool:
        meant = pool.map(lambda job: _files(job[0], job[1], job[2], kind), jobs)
        files = [file for several in meant for file in several]
    files.sort(key=lambda file: file.address)
    root, names = _named([_plain(file.store, file.address) for file in files])
    for one, after in pairwise(sorted(names)):
        if one == after:
            raise twice(files[names.index(one)].url)
    return root, dict(sorted(zip(names, files, strict=True)))


def _plain(store: ObjectStore, address: str) -> str:
    """Return ``address`` without the query of a web URL, whose "?" is not a wildcard."""
    return address.partition("?")[0] if _is_web(store) else address


def _is_web(store: ObjectStore) -> bool:
    return store.scheme in ("http", "https")


def _named(paths: list[str]) -> tuple[str, list[str]]:
    """Return the common folder of all ``paths``, and their names in it."""
    parts = [path.split("/") for path in paths]
    depth = 0
    most = min(len(each) for each in parts) - 1
    while depth < most and len({each[depth] for each in parts}) == 1:
        depth += 1
    return "/".join(parts[0][:depth]), ["/".join(each[depth:]) for each in parts]


def _files(store: ObjectStore, address: str, url: str, kind: FileKind) -> list[Remote]:
    """Return the files that one URL denotes."""
    shown = shown_url(url)
    if glob.has_magic(_plain(store, address)):
        matched = store.request(shown, lambda: store.system.glob(address, detail=True))
        files = {
            name: info for name, info in matched.items()
            if _is_file(info) and not _hidden_from(address, name)
        }  # fmt: skip
        if files:
            return _described(store, files)
    try:
        if _is_web(store) and address.endswith("/"):
            info: dict[str, Any] = {"type": "directory"}
        else:
            info = store.info(address, shown)
    except AbsentError as error:
        raise _missing(store, address, shown, error) from None
    if info.get("type") != "directory":
        return [_remote(store, address, info)]
    below = {
        name: each for name, each in _below(store, address, shown).items()
        if not kind.endings or name.lower().endswith(kind.endings)
    }  # fmt: skip
    if not below:
        ends = f"files that end in {', '.join(kind.endings)}, or a pattern for other names"
        raise SourceError(
            f"{shown} has no {kind.word} files",
            why=_contents(store, address),
            try_=ends if kind.endings else TRY,
        )
    return _described(store, below)


def _is_file(info: Mapping[str, Any]) -> bool:
    """Return True for a file, but not for an empty object that represents a folder."""
    return info.get("type") == "file" and not str(info.get("name", "")).endswith("/")


def _below(store: ObjectStore, address: str, shown: str) -> dict[str, dict[str, Any]]:
    """Return the files in a folder and its subfolders that are not hidden."""
    start = len(address.rstrip("/")) + 1
    found = store.fresh(shown, lambda system: system.find(address, detail=True))
    return {
        name: info
        for name, info in found.items()
        if _is_file(info)
        and not any(part.startswith((".", "_")) for part in name[start:].split("/"))
    }


def _hidden_from(pattern: str, name: str) -> bool:
    """Return True if a part of ``name`` begins with a dot, but none of ``pattern`` does."""
    fixed = re.split(r"[*?\[]", pattern)[0].count("/")
    asked = pattern.split("/")[fixed:]
    dotted = any(part.startswith(".") for part in asked)
    return not dotted and any(part.startswith(".") for part in name.split("/")[fixed:])


def _described(store: ObjectStore, listing: Mapping[str, dict[str, Any]]) -> list[Remote]:
    """Return the files of a listing; missing metadata is requested, several files at a time."""
    told = dict(listing)
    lacking = [
        name for name, info in listing.items()
        if not isinstance(info.get("size"), int) or not version_in(info)[1]
    ]  # fmt: skip
    with ThreadPoolExecutor(ASKING_THREADS) as pool:
        asked = pool.map(lambda name: store.info(name, _url(store, name)), lacking)
        told |= dict(zip(lacking, asked, strict=True))
    return [_remote(store, name, info) for name, info in sorted(told.items())]


def _url(store: ObjectStore, address: str) -> str:
    return shown_url(str(store.system.unstrip_protocol(address)))


def _remote(store: ObjectStore, address: str, info: Mapping[str, Any]) -> Remote:
    size, url = info.get("size"), _url(store, address)
    if not isinstance(size, int):
        raise SourceError(
            f"{url} does not say how large it is",
            why="parts of a file are asked for by their place in it",
            try_="a copy in a folder of this machine",
        )
    return Remote(store, address, url, size, *version_in(info))


def _missing(store: ObjectStore, address: str, shown: str, error: SourceError) -> SourceError:
    """Build the error for a missing file, with the existing files and a similar name."""
    parent = posixpath.dirname(address.rstrip("/"))
    if glob.has_magic(_plain(store, address)):
        return SourceError(f"no file matches {shown}", why=_contents(store, parent), try_=TRY)
    names = _names(store, parent)
    if not names:
        return error
    near = difflib.get_close_matches(posixpath.basename(address), names, n=1)
    try_ = f"did you mean {posixpath.dirname(shown)}/{near[0]}?" if near else TRY
    return SourceError(f"{shown} does not exist", why=_listing(parent, names), try_=try_)


def _contents(store: ObjectStore, folder: str) -> str:
    return _listing(folder, _names(store, folder))


def _listing(folder: str, names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{folder} has {', '.join(names[:3]) or 'nothing'}{more}"


def _names(store: ObjectStore, folder: str) -> list[str]:
    """Return the names in a folder for messages; [] if the store does not list the folder."""
    try:
        return store.names(folder, folder)
    except StoreError:
        return []
