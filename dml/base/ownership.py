"""Folders and files private to this user are created here, and ownership is checked.

A process may execute only files of its own user: another user who could write them could run
programs as that user.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

FOLDER, FILE = 0o700, 0o600
"""The modes of folders and files that are private to one user."""
OTHERS_WRITE = 0o022
ROOT = 0


def make_folders(folder: Path) -> None:
    """Create a folder and its missing parents, each private to this user.

    Existing folders are unchanged. Raises OSError as the file system does.
    """
    if not folder.is_dir():
        make_folders(folder.parent)
        folder.mkdir(FOLDER, exist_ok=True)


def own_file(path: str, flags: int) -> int:
    """Open a file, as the opener in ``open(..., opener=own_file)``: new files are private."""
    return os.open(path, flags | os.O_CLOEXEC, FILE)


def is_own(path: str | os.PathLike[str]) -> bool:
    """Return True for a file or folder that only this user may write; False for any link."""
    try:
        seen = os.lstat(path)
    except OSError:
        return False
    kind = stat.S_ISREG(seen.st_mode) or stat.S_ISDIR(seen.st_mode)
    return kind and seen.st_uid == os.geteuid() and not seen.st_mode & OTHERS_WRITE


def own_folder(path: Path) -> Path | None:
    """Resolve links in ``path``, create the folder if needed, and make it private to this user.

    Return None if the folder is another user's, cannot be created, or could be swapped for another:
    then a user other than root and this one owns a folder above it, or may write there and move its
    entries.
    """
    try:
        if path.is_symlink() and os.lstat(path).st_uid != os.geteuid():
            return None
        real = Path(os.path.realpath(path))
        if not all(_stays(each) for each in real.parents if os.path.lexists(each)):
            return None
        make_folders(real)
        if os.lstat(real).st_uid == os.geteuid():
            real.chmod(FOLDER)
        return real if is_own(real) and all(map(_stays, real.parents)) else None
    except OSError:
        return None


def _stays(folder: Path) -> bool:
    """Return True if only root and this user can move this user's entries of a folder."""
    seen = os.lstat(folder)
    trusted = seen.st_uid in {ROOT, os.geteuid()} and stat.S_ISDIR(seen.st_mode)
    return trusted and (not seen.st_mode & OTHERS_WRITE or bool(seen.st_mode & stat.S_ISVTX))
