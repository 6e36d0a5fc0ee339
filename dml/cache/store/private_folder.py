"""Create namespaces on a disk that only one user, or one group, can read.

The file system enforces access, not this program: the folder of the namespace belongs to its owner
or its group, so that no other user can list it. The folders above it are open to all users for
namespaces of their own, and sticky: no user moves or removes another's namespace.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from dml.cache.store import layout
from dml.cache.store.disk import SHARED_FOLDER, Disk
from dml.errors import CacheError

OURS, OPEN = 0o700, 0o1777


def make_private(root: str, namespace: str) -> None:
    """Make the folder of a namespace private to its owner, with its contents.

    Raise CacheError for a URL, and for a folder of another user; PlanError for an invalid name.
    """
    _make(root, namespace, "private", OURS)


def make_shared(root: str, namespace: str, group: str | int | None) -> None:
    """Make the folder of a namespace belong to a group, with a secret for digests.

    Raise errors as ``make_private``, and CacheError for a group that the user is not in.
    """
    _make(root, namespace, "shared", SHARED_FOLDER, group)
    Disk(root, layout.namespace(namespace)).put_if_absent(layout.SECRET, secrets.token_bytes(32))


def _make(root: str, namespace: str, how: str, mode: int, group: str | int | None = None) -> None:
    """Create the folder of a namespace, owned by this user, with mode ``mode``."""
    below = layout.namespace(namespace)
    if "://" in root:
        why, instead = "who may read a bucket is said by its policy", "a policy of the bucket"
        raise _refused(root, why, instead, how)
    top = Path(os.path.abspath(root))
    folder = top / below
    try:
        for each in (top, folder.parent):
            with suppress(FileExistsError):
                each.mkdir(parents=True)
                each.chmod(OPEN)
        with suppress(FileExistsError):
            folder.mkdir(mode=OURS)
        seen = folder.lstat()
        if seen.st_uid != os.geteuid() or folder.is_symlink():
            raise _refused(str(folder), "it is another user's", "another namespace", how)
        if group is not None:
            shutil.chown(folder, group=group)  # clears the set-group-id bit, which is set below
        folder.chmod(mode)
    except (OSError, LookupError) as error:
        why = getattr(error, "strerror", None) or str(error)
        instead = "a folder where you may make others, and a group of yours"
        raise _refused(str(folder), why, instead, how) from error


def _refused(at: str, why: str, try_: str, how: str) -> CacheError:
    return CacheError(f"the namespace cannot be made {how}", at=at, why=why, try_=try_)
