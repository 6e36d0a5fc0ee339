"""This file makes folders and files that are one user's alone, and tells whose a file is.

What a process finds on a disk and executes must be its user's own: whoever else could have written
it would run programs as that user.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

FOLDER, FILE = 0o700, 0o600
"""The modes of what is one user's alone."""
OTHERS_WRITE = 0o022
ROOT = 0


def make_folders(folder: Path) -> None:
    """Make a folder, and those above it that are not there, each for this user alone.

    What is there already stays as it is. OSError as the file system says.
    """
    if not folder.is_dir():
        make_folders(folder.parent)
        folder.mkdir(FOLDER, exist_ok=True)


def own_file(path: str, flags: int) -> int:
    """Open as ``open(..., opener=own_file)`` does: a file that this makes is this user's alone."""
    return os.open(path, flags | os.O_CLOEXEC, FILE)


def is_own(path: str | os.PathLike[str]) -> bool:
    """True for a file or folder of this user that no other may write to; False for any link."""
    try:
        seen = os.lstat(path)
    except OSError:
        return False
    kind = stat.S_ISREG(seen.st_mode) or stat.S_ISDIR(seen.st_mode)
    return kind and seen.st_uid == os.geteuid() and not seen.st_mode & OTHERS_WRITE


def own_folder(path: Path) -> Path | None:
    """The folder ``path`` without links, made if need be, and closed to all other users.

    None if it is another user's, cannot be made, or could be swapped for another: then somebody
    beside root and this user owns a folder above it, or may write there and move what others have.
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
    """Whether nobody but root and this user can move what this user has in a folder."""
    seen = os.lstat(folder)
    trusted = seen.st_uid in {ROOT, os.geteuid()} and stat.S_ISDIR(seen.st_mode)
    return trusted and (not seen.st_mode & OTHERS_WRITE or bool(seen.st_mode & stat.S_ISVTX))
