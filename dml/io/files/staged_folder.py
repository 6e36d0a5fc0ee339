"""A folder of files appears as a whole or not at all, whichever process is killed meanwhile.

Files are written to a hidden sibling of the target, ``.NAME.dml-DIGEST-HOST-PID-...``; it contains
a digest of the name because a long name is truncated. The sibling contains ``lock``, which the
writing process locks during its lifetime, and ``rows``, which becomes the target by one rename. A
sibling with an unlocked lock belongs to a dead process, and is removed by the next writer.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import platform
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dml.errors import DmlError, PlanError, SourceError

# Files that a replaceable folder may contain: files of rows, and hidden files.
SUFFIXES = (
    *(".parquet", ".arrow", ".csv", ".jsonl", ".tfrecord", ".tfrecord.gz"),
    *(".tar", ".tar.gz", ".npy", ".orc"),
)
HIDDEN = (".", "_")
LETTERS = 100  # bytes of the target's name
RENAME_EXCHANGE, HERE = 2, -100
UNABLE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


@contextmanager
def staged(path: str | os.PathLike[str], *, overwrite: bool) -> Iterator[Path]:
    """Yield a folder to write files to; it becomes ``path`` at the end, or is removed on errors.

    Raise PlanError if ``path`` exists and may not be replaced, SourceError for errors of the disk.
    """
    target = located(path)
    try:
        refuse(target, overwrite=overwrite)
        above = _parents(target)
        try:
            with _staging(target) as folder:
                rows = folder / "rows"
                rows.mkdir()
                yield rows
                _commit(folder, target, overwrite=overwrite)
        except BaseException:
            for parent in above:
                with suppress(OSError):  # not empty: another process uses it by now
                    parent.rmdir()
            raise
    except OSError as error:
        raise refused(error, target) from error


def located(path: object) -> Path:
    """Return the absolute path of ``path``; raise PlanError if it is not a local path."""
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    if not name or "\0" in name:
        raise PlanError(
            f"{path!r} is not the name of a folder",
            why="rows are written into a folder of this host, or of a store",
            try_="a path, or a URL such as 's3://bucket/folder'",
        )
    return Path(os.path.realpath(Path(name).expanduser()))


def refused(error: OSError, target: Path) -> DmlError:
    """Build the SourceError for an error of the operating system, located at ``target``."""
    room = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return SourceError(
        "rows could not be written",
        at=str(target),
        why=error.strerror or str(error),
        try_="a disk with more room" if room else "a folder that this user may write to",
    )


def refuse(target: Path, *, overwrite: bool) -> None:
    """Raise PlanError if ``target`` exists and may not be replaced."""
    if not target.exists():
        return
    if not target.is_dir():
        raise PlanError(
            "the target is a file, and rows are written into a folder",
            at=str(target),
            why="files of bounded size need a folder of their own",
            try_="the name of a folder that does not exist yet",
        )
    with os.scandir(target) as entries:
        held = sorted(entries, key=lambda entry: entry.name)
    if held and not overwrite:
        raise PlanError(
            "the target folder is not empty",
            at=str(target),
            why=f"entries in it: {len(held)}, such as {held[0].name!r}",
            try_="another folder, or overwrite=True, which replaces it as a whole",
        )
    strange = [e.name for e in held if not e.is_file() or not _replaceable(e.name)]
    if strange:
        raise PlanError(
            "overwrite=True would remove more than rows",
            at=str(target),
            why=f"the folder also holds {strange[0]!r}",
            try_="another folder, or remove it yourself",
        )


def _replaceable(name: str) -> bool:
    return name.endswith(SUFFIXES) or name.startswith(HIDDEN)


def _parents(target: Path) -> list[Path]:
    """Create the folders above ``target``; return the new ones, the deepest first."""
    made = [parent for parent in target.parents if not parent.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    return made


# ----------------------------------------------------------------------------------------- staging


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """Yield a locked hidden sibling of ``target``; siblings of dead processes are removed."""
    _clear(target)
    folder, lock = _create_locked(target)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def prefix(target: Path) -> str:
    """Return the unique start of the names of staging folders of ``target``."""
    name = os.fsencode(target.name)
    start, digest = name[:LETTERS].decode(errors="ignore"), hashlib.sha256(name).hexdigest()
    return f".{start}.dml-{digest[:8]}-"


def _create_locked(target: Path) -> tuple[Path, int]:
    """Create a staging folder; return it and the descriptor of its lock, held until exit."""
    while True:
        name = f"{prefix(target)}{platform.node()[:64]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        folder = target.parent / name
        folder.mkdir()
        # a clearing process may have removed this folder before it was locked
        with suppress(FileNotFoundError):
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
            with suppress(OSError):  # a file system without locks: nothing is cleared there
                fcntl.flock(lock, fcntl.LOCK_EX)
            if (folder / "lock").exists():
                return folder, lock
            os.close(lock)


def _clear(target: Path) -> None:
    """Remove staging folders of dead processes; restore old rows after an interrupted swap."""
    for name in os.listdir(target.parent):
        if name.startswith(prefix(target)):
            with suppress(OSError):  # locked by a live process, or being cleared by another process
                _bury(target.parent / name, target)


def _bury(folder: Path, target: Path) -> None:
    """Remove ``folder``, which a dead process staged; raise OSError if that process is alive."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        old = folder / "old"
        if old.exists() and not target.exists():
            old.rename(target)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


# ------------------------------------------------------------------------------------------ commit


def sync(path: Path) -> None:
    """Wait until a file or a folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _commit(folder: Path, target: Path, *, overwrite: bool) -> None:
    """Make folder ``rows`` the target in one step: readers see all old rows, or all new ones."""
    rows = folder / "rows"
    if target.exists():
        rows.chmod(stat.S_IMODE(target.stat().st_mode) | stat.S_IRWXU)
    sync(rows)
    if overwrite and target.exists():
        refuse(target, overwrite=True)
        if not _exchanged(rows, target):
            _replaced(folder, target)
    else:
        try:
            rows.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            refuse(target, overwrite=False)
            raise
    sync(target.parent)


def _exchanged(rows: Path, target: Path) -> bool:
    """Swap two folders in one step; return False if the system does not support that."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if not rename(HERE, bytes(rows), HERE, bytes(target), RENAME_EXCHANGE):
        return True
    code = ctypes.get_errno()
    if code in UNABLE:
        return False
    raise OSError(code, os.strerror(code))


def _replaced(folder: Path, target: Path) -> None:
    """Replace the target in two steps; the next writer repairs an interruption between them."""
    old = folder / "old"
    target.rename(old)
    try:
        (folder / "rows").rename(target)
    except BaseException:
        old.rename(target)
        raise
