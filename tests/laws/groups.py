"""Create control groups that limit a process to an exact amount of memory.

They are of version 2 if it has the memory controller, else of version 1. This requires root, or a
group to which the user may write.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")
OWN = Path("/proc/self/cgroup")
# Seconds that processes which were killed may take to leave their group.
LEAVE_S = 10.0


@dataclasses.dataclass(frozen=True)
class Version:
    """How one version is mounted, and what it calls the files."""

    kind: str
    option: str
    controller: str
    limit: str
    peak: str


VERSIONS = (
    Version("cgroup2", "", "", "memory.max", "memory.peak"),
    Version("cgroup", "memory", "memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
)
# Of version 2 a controller is handed down by name.
HANDED_DOWN = "cgroup.subtree_control"


@dataclasses.dataclass(frozen=True)
class Group:
    """A control group of memory."""

    path: Path
    version: Version

    def entering(self, command: list[str]) -> list[str]:
        """``command``, begun inside: what it takes counts from its first page on."""
        script = 'echo $$ > "$0" && exec "$@"'
        return ["/bin/sh", "-c", script, str(self.path / "cgroup.procs"), *command]

    def peak_bytes(self) -> int:
        """The most that it ever had, with pages of files that the system may drop; 0 if unknown."""
        with suppress(OSError, ValueError):
            return int((self.path / self.version.peak).read_text(encoding="ascii"))
        return 0

    def killed(self) -> int:
        """How many of its processes the system has killed for memory."""
        for name in ("memory.events", "memory.oom_control"):
            with suppress(OSError):
                lines = (self.path / name).read_text(encoding="ascii").splitlines()
                return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
        return 0


def _mounted(version: Version) -> Path | None:
    """Where ``version`` is mounted with its memory controller."""
    for line in MOUNTS.read_text(encoding="utf-8").splitlines():
        _, path, kind, options, *_ = line.split()
        if kind == version.kind and (not version.option or version.option in options.split(",")):
            return Path(path)
    return None


def _parents(version: Version) -> Iterator[Path]:
    """The group of this process, and those above it: some of them may have groups below."""
    root = _mounted(version)
    if root is None:
        return
    for line in OWN.read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if version.controller in controllers.split(","):
            own = root / path.lstrip("/")
            yield from (each for each in (own, *own.parents) if each.is_relative_to(root))


def _made(parent: Path, version: Version, name: str, nbytes: int) -> Group | None:
    path = parent / name
    try:
        if not version.controller:
            (parent / HANDED_DOWN).write_text("+memory", encoding="ascii")
        path.mkdir()
    except OSError:
        return None
    try:
        (path / version.limit).write_text(str(nbytes), encoding="ascii")
    except OSError:
        path.rmdir()
        return None
    return Group(path, version)


def _make(name: str, nbytes: int) -> Group | None:
    for version in VERSIONS:
        for parent in _parents(version):
            group = _made(parent, version, name, nbytes)
            if group is not None:
                return group
    return None


@cache
def missing() -> str:
    """What there must be for control groups, and is not."""
    try:
        with limited(1 << 30):
            return ""
    except OSError as error:
        return str(error)


@contextmanager
def limited(nbytes: int) -> Iterator[Group]:
    """A group of ``nbytes``, gone with all that is left in it; OSError where none can be made."""
    group = _make(f"dml-{os.getpid()}-{time.monotonic_ns()}", nbytes)
    if group is None:
        raise OSError("no control group of memory can be made here")
    try:
        yield group
    finally:
        _remove(group)


def _remove(group: Group) -> None:
    until = time.monotonic() + LEAVE_S
    while True:
        for line in (group.path / "cgroup.procs").read_text(encoding="ascii").splitlines():
            with suppress(ProcessLookupError):
                os.kill(int(line), 9)
        with suppress(OSError):
            group.path.rmdir()
            return
        if time.monotonic() > until:
            raise OSError(f"processes stay in {group.path}")
        time.sleep(0.01)
