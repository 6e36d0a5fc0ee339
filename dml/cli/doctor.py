"""The command ``dml doctor``: resources of this machine, and problems with them."""

from __future__ import annotations

import contextlib
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import pyarrow as pa

from dml.base import host
from dml.base.amounts import bytes_text
from dml.base.control_groups import cpu_quota
from dml.base.ownership import make_folders
from dml.cli.output import Output, json_option
from dml.errors import PlanError
from dml.fleet.collector import telemetry_root
from dml.kernels.compiled.jit import kernels_in
from dml.plugins import OPS, SOURCES, installed, plugin
from dml.settings import user_folder

PACKAGES: Final = (
    "dml", "numpy", "pyarrow", "numba", "dask", "distributed", "xxhash", "cloudpickle", "click",
    "rich",
)  # fmt: skip
POOLS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
PROBE_BYTES: Final = 32 << 20
SLOW_BYTES_PER_S: Final = 50e6
"""Below this a local disk gives a warning: most sources would be faster than cached epochs."""


class Check(NamedTuple):
    """One finding: ``status`` is "ok", "warn" (could be better) or "bad" (something fails).

    ``value`` is what was found; ``advice`` says what to do, and is "" if nothing.
    """

    group: str
    name: str
    value: Any
    status: str = "ok"
    advice: str = ""


@click.command()
@click.option("--cache-dir", type=click.Path(path_type=Path), help="Look at this cache folder.")
@click.option("--telemetry-dir", help='Look at this telemetry folder; "off" for none.')
@json_option
@click.pass_obj
def doctor(output: Output, *, cache_dir: Path | None, telemetry_dir: str | None) -> int:
    """Check versions, cores, memory, disks and caches; exit code 1 when something is broken."""
    cache = cache_dir or Path(user_folder(os.environ) or f"{os.devnull}/dml")
    found = list(checks(cache, telemetry_dir))
    bad = any(each.status == "bad" for each in found)
    value = {"ok": not bad, "checks": [each._asdict() for each in found]}
    output.answer(value, lambda: "\n".join(map(line, found)))
    return int(bad)


def checks(cache: Path, telemetry_dir: str | None) -> Iterator[Check]:
    """Yield all findings, in the order in which they are shown."""
    yield from versions()
    yield from cores()
    yield from memory()
    yield from pools()
    yield from disk(cache)
    yield from compiled(cache)
    yield from telemetry(telemetry_root(telemetry_dir))
    yield from plugins()


def versions() -> Iterator[Check]:
    """Check the versions of Python and dml's packages, without importing large packages."""
    yield Check("version", "python", platform.python_version())
    for name in PACKAGES:
        try:
            yield Check("version", name, metadata.version(name))
        except metadata.PackageNotFoundError:
            status = "warn" if name == "dml" else "bad"
            yield Check("version", name, None, status, f"pip install {name}")


def cores() -> Iterator[Check]:
    """Report the number of cores, and how many of them the control groups allow."""
    yield Check("cores", "usable", host.cores())
    quota = cpu_quota()
    if quota is not None:
        yield Check("cores", "cgroup quota", quota)
    yield Check("cores", "host class", host.host_class())


def memory() -> Iterator[Check]:
    """Report the bytes of memory of the machine, and the limit of the control group."""
    yield Check("memory", "machine bytes", host.machine_bytes())
    yield Check("memory", "cgroup limit bytes", host.cgroup_bytes())


def pools() -> Iterator[Check]:
    """Report thread pools that would compete with dml's own workers."""
    yield Check("threads", "arrow cpu", pa.cpu_count())
    yield Check("threads", "arrow io", pa.io_thread_count())
    for name in POOLS:
        yield Check("threads", name, os.environ.get(name))


def disk(cache: Path) -> Iterator[Check]:
    """Write, sync and read back 32 MiB in the cache folder, which is created if missing."""
    yield Check("disk", "cache folder", str(cache))
    try:
        write_s, read_s = _probe(cache)
    except OSError as error:
        advice = "with_options(cache_dir=...) on a disk that can be written"
        yield Check("disk", "cache folder writable", str(error), "bad", advice)
        return
    for name, seconds in (("write", write_s), ("read", read_s)):
        speed = PROBE_BYTES / seconds
        slow = speed < SLOW_BYTES_PER_S
        advice = "keep the cache on a local disk" if slow else ""
        yield Check("disk", f"{name} bytes/s", round(speed), "warn" if slow else "ok", advice)


def _probe(folder: Path) -> tuple[float, float]:
    """Return the seconds to write and sync 32 MiB, and to read it (perhaps from page cache)."""
    payload = os.urandom(PROBE_BYTES)
    make_folders(folder)
    with tempfile.TemporaryFile(dir=folder) as file:
        begin = time.perf_counter()
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
        written = time.perf_counter()
        with contextlib.suppress(AttributeError, OSError):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        file.read()
        return written - begin, time.perf_counter() - written


def compiled(cache: Path) -> Iterator[Check]:
    """Report compiled kernels on disk; without any, the first runs compile."""
    found = kernels_in(cache).rglob("*.nbc")
    sizes = [path.stat().st_size for path in found if path.is_file()]
    yield Check("kernels", "compiled files", len(sizes))
    yield Check("kernels", "compiled bytes", sum(sizes))


def telemetry(root: Path | None) -> Iterator[Check]:
    """Check whether events of runs can be stored."""
    yield Check("telemetry", "folder", "off" if root is None else str(root))
    if root is None:
        return
    try:
        make_folders(root)
        with tempfile.TemporaryFile(dir=root):
            yield Check("telemetry", "writable", value=True)
    except OSError as error:
        advice = 'with_options(telemetry_dir=...), or "off"'
        yield Check("telemetry", "writable", str(error), "bad", advice)


def plugins() -> Iterator[Check]:
    """List the plugins of installed packages, and check that each can be loaded."""
    for group, kind in ((SOURCES, "source"), (OPS, "op")):
        for each in installed(group):
            package = f" of {each.dist.name} {each.dist.version}" if each.dist else ""
            name, found = f"{kind} {each.name}", f"{each.value}{package}"
            try:
                plugin(group, each.name)
            except PlanError as error:
                yield Check("plugins", name, found, "bad", error.why or error.what)
            else:
                yield Check("plugins", name, found)


def line(check: Check) -> str:
    """Format one check for people."""
    mark = "" if check.status == "ok" else f"  [{check.status}] {check.advice}"
    return f"{check.group:<10}{check.name:<22}{_value_text(check)}{mark}"


def _value_text(check: Check) -> str:
    if "bytes" in check.name and isinstance(check.value, int):
        return bytes_text(check.value)
    return "-" if check.value is None else str(check.value)
