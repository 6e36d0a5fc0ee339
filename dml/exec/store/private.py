"""This file makes namespaces on a disk that only one user can look into.

The system keeps others out, not this program: the folder of the namespace is its owner's alone, so
that nobody else can tell what is in it. The folders above it are open to all for namespaces of
their own, and sticky: nobody moves or removes another's.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dml.errors import CacheError
from dml.exec.store import layout

OURS, OPEN = 0o700, 0o1777


def make_private(root: str, namespace: str) -> None:
    """Make the folder of a namespace its owner's alone; what is in it already, too.

    CacheError for a URL, and for a folder that is another user's; PlanError for what is no name.
    """
    below = layout.namespace(namespace)
    if "://" in root:
        raise _refused(
            root, "who may read a bucket is said by its policy", "a policy of the bucket"
        )
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
            raise _refused(str(folder), "it is another user's", "another namespace")
        folder.chmod(OURS)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise _refused(str(folder), why, "a folder where you may make others") from error


def _refused(at: str, why: str, try_: str) -> CacheError:
    return CacheError("the namespace cannot be made private", at=at, why=why, try_=try_)
