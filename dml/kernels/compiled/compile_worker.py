"""Kernels are compiled in a process of their own, so that no pipeline waits for the compiler.

python -m dml.kernels.compiled.compile_worker DIRECTORY NAME...
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from dml.kernels.compiled.jit import load, publish

# Niceness: the pipeline that requested the kernels needs the processors more.
POLITENESS = 5


def main(arguments: Sequence[str]) -> int:
    """Compile the sources in ``arguments`` (directory, names); return 0 if all succeed, else 1."""
    directory, names = Path(arguments[0]), arguments[1:]
    os.nice(POLITENESS)
    os.umask(0o077)  # files to be loaded must not be writable by other users
    failed = 0
    for name in names:
        try:
            compile_once(directory, name)
        except Exception as error:  # noqa: BLE001 the other kernels may still compile
            sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")
            failed = 1
    return failed


def compile_once(directory: Path, name: str) -> None:
    """Compile one source unless that is done; wait for another process that is compiling it."""
    marker = directory / f"{name}.done"
    with locked(directory / f"{name}.lock"):
        if not marker.exists():
            load(directory / f"{name}.py")
            publish(marker, "")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock ``path`` exclusively in the ``with`` block; the system frees a dead process's lock."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
