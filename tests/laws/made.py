"""Run a pipeline of one kind, and list every file, folder and socket that it creates.

    python -m tests.laws.made KIND

The process has a temporary folder and caches of its own, and a umask of 0, so that each listed mode
is the one that dml sets. It prints what exists during the run and after it, and what another user
could do with it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dml
from dml.api.dataset import Dataset
from dml.exec.memory.memory_meter import descendants
from tests.idle import no_drivers, no_workers

OTHER = 65534  # a user who has nothing
LOOK_S = 0.005
LISTENS = 0x10000  # of the flags in /proc/net/unix
SILENT = 9  # connections that say nothing, to each that listens
ROWS = 40_000
JOB = "made"


def worked(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "t": str(row["id"]) * 3}


def table(folder: Path) -> Path:
    path = folder / "numbers.parquet"
    draw = np.random.Generator(np.random.Philox(3))
    rows = {"id": np.arange(ROWS), "x": draw.random(ROWS), "k": draw.integers(0, 50, ROWS)}
    rows |= {f"w{i}": draw.random(ROWS) for i in range(8)}
    pq.write_table(pa.table(rows), path, row_group_size=2000)
    return path


class Listing:
    """What there is below the folders that dml may write to, and what its processes have open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.seen: dict[str, tuple[str, str, int]] = {}
        self.others: dict[str, list[str]] = {}
        self.alone = False  # the processes that this one has begun are not dml's
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)

    def work(self) -> None:
        while not self.over.wait(LOOK_S):
            self.look()

    def look(self) -> dict[str, tuple[str, str, int]]:
        """What is there now; all that was ever there is kept in ``seen``."""
        now = {**dict(self.paths()), **dict(self.listeners())}
        self.seen.update(now)
        return now

    def paths(self) -> Iterator[tuple[str, tuple[str, str, int]]]:
        """By place: kind, mode and owner."""
        for top in ("tmp", "cache", "state"):
            for folder, folders, files in os.walk(self.root / top):
                for name in folders + files:
                    yield from self.path(Path(folder, name))
        mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
        for name in os.listdir("/dev/shm"):  # others have theirs there, too
            if "dml" in name or f"/dev/shm/{name}" in mapped:
                yield from self.path(Path("/dev/shm", name))

    def path(self, path: Path) -> Iterator[tuple[str, tuple[str, str, int]]]:
        with contextlib.suppress(OSError):
            found = path.lstat()
            kind = stat.filemode(found.st_mode)[0]
            near = path.is_relative_to(self.root)
            name = str(path.relative_to(self.root) if near else path)
            yield name, (kind, oct(stat.S_IMODE(found.st_mode)), found.st_uid)

    def listeners(self) -> Iterator[tuple[str, tuple[str, str, int]]]:
        """Sockets of dml's processes that take connections, but for those that files stand for."""
        own = set(self.opened())
        for kind in ("tcp", "tcp6"):
            for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
                place, state, inode = (line.split()[at] for at in (1, 3, 9))
                if state == "0A" and f"socket:[{inode}]" in own:
                    yield f"{kind} {_address(place)}", ("listener", "", os.getuid())
        for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
            _, _, _, flags, _, _, inode, *path = line.split()
            named = path and not path[0].startswith("@")
            if int(flags, 16) & LISTENS and f"socket:[{inode}]" in own and not named:
                yield " ".join(["unix", *path]), ("listener", "", os.getuid())

    def opened(self) -> Iterator[str]:
        """Where descriptors lead."""
        for pid in [os.getpid(), *([] if self.alone else descendants(os.getpid()))]:
            with contextlib.suppress(OSError):
                for name in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        yield os.readlink(f"/proc/{pid}/fd/{name}")


def _address(text: str) -> str:
    host, _, port = text.partition(":")
    if len(host) == 8:
        host = ".".join(str(each) for each in reversed(bytes.fromhex(host)))
    return f"{host}:{int(port, 16)}"


def _silent(root: Path, name: str) -> socket.socket:
    """A connection that says nothing; OSError where nobody listens."""
    kind, _, address = name.partition(" ")
    end = socket.socket(socket.AF_INET if kind == "tcp" else socket.AF_UNIX)
    host, _, port = address.rpartition(":")
    end.connect((host, int(port)) if kind == "tcp" else os.fspath(root / name))
    return end


# ----------------------------------------------------------------------------------- another user


def tried(root: Path, names: list[str]) -> dict[str, list[str]]:
    """What another user can do with each of these; {} if this process cannot become another."""
    if os.getuid():
        return {}
    ours, theirs = os.pipe()
    pid = os.fork()  # not a program: another user may not even read this interpreter
    if not pid:
        _as_another(root, names, theirs)
    os.close(theirs)
    with open(ours, encoding="utf-8") as file:
        found: dict[str, list[str]] = json.load(file)
    os.waitpid(pid, 0)
    return found


def _as_another(root: Path, names: list[str], told: int) -> None:
    """In a process of its own, which ends."""
    try:
        os.setgroups([])
        os.setresgid(OTHER, OTHER, OTHER)
        os.setresuid(OTHER, OTHER, OTHER)
        found = {name: able(root, name) for name in names}
        with open(told, "w", encoding="utf-8") as file:
            json.dump(found, file)
    except BaseException:  # noqa: BLE001 (nothing of this process goes on in it)
        traceback.print_exc()
    finally:
        os._exit(0)


def able(root: Path, name: str) -> list[str]:
    """What this user can do with a file, folder or listener."""
    if name.startswith("tcp "):
        return ["is answered"] if _answers(name.split()[1]) else []
    path = root / name
    ways: dict[str, Callable[[], object]] = {
        "read": lambda: path.read_bytes() if path.is_file() else os.listdir(path),
        "write": lambda: os.close(os.open(path, os.O_WRONLY)),
        "make in it": (path / "of another").touch,
        "remove": lambda: path.rmdir() if path.is_dir() else path.unlink(),
        "connect": lambda: socket.socket(socket.AF_UNIX).connect(str(path)),
    }
    return [way for way, act in ways.items() if _succeeds(act)]


def _succeeds(act: Callable[[], object]) -> bool:
    try:
        act()
    except OSError:
        return False
    return True


def _answers(address: str) -> bool:
    """Whether a stranger who says something gets more than a challenge."""
    host, _, port = address.rpartition(":")
    with socket.socket() as end:
        end.settimeout(2)
        end.connect((host, int(port)))
        heard = b""
        try:
            end.sendall(b"\0\0\0\x10GET / HTTP/1.0\r\n")
            while chunk := end.recv(4096):
                heard += chunk
        except OSError:
            return b"#CHALLENGE#" not in heard
    return b"#CHALLENGE#" not in heard or b"#WELCOME#" in heard


# ------------------------------------------------------------------------------------------- kinds


class Made:
    """One run in this process: what was there when."""

    def __init__(self, root: Path) -> None:
        self.root, self.listing = root, Listing(root)
        self.able: dict[str, list[str]] = {}
        self.silent: list[socket.socket] = []
        self.table = table(root)
        self.source = dml.read_parquet(self.table)

    def looked(self) -> None:
        """Look now, and let another user try; also those wait who connect and say nothing."""
        now = [*self.listing.look()]
        for name in now:
            with contextlib.suppress(OSError):
                self.silent += [_silent(self.root, name) for _ in range(SILENT)]
        for name, ways in tried(self.root, now).items():
            self.able.setdefault(name, [])
            self.able[name] += [way for way in ways if way not in self.able[name]]

    def taken(self, ds: Dataset, **options: Any) -> None:
        """A run, looked at after its first element."""
        it = iter(ds.with_options(num_workers=2, **{"telemetry_dir": "off", **options}))
        next(it)
        self.looked()
        for _ in it:
            pass

    def small(self, ds: Dataset, executor: str = "threads") -> None:
        self.taken(ds, executor=executor, memory_limit="64MiB", target_partition_bytes="256KiB")

    def split(self) -> None:
        """Rank 0 here, rank 1 in a process of its own."""
        code = "from tests.laws.made import reader; reader()"
        other = subprocess.Popen([sys.executable, "-c", code])
        ds = dml.range(4000).batch(10).with_options(telemetry_dir="off")
        share = iter(ds.streaming_split(2, rank=0, job_name=JOB))
        next(share)
        self.looked()
        for _ in share:
            pass
        assert other.wait(60) == 0

    def state(self) -> None:
        """A state is a value: where it is kept is the loop's choice."""
        ds = self.source.map(worked).batch(100).with_options(telemetry_dir="off").epoch(0)
        it, rest = iter(ds), iter(ds)
        next(it)
        rest.load_state_dict(it.state_dict())
        assert len(list(rest)) == len(list(it))

    def cluster(self) -> None:
        """The side of the client: scheduler and workers are Dask's."""
        from distributed import Client

        from tests.processes import cluster_of_processes

        self.listing.alone = True
        with cluster_of_processes(2) as made, Client(made, set_as_default=False) as client:
            self.taken(self.source.map(worked).batch(100), scheduler=client)

    def ended(self) -> dict[str, Any]:
        """After the run, and after the processes that dml keeps for the next one."""
        no_workers(60)
        no_drivers(60)
        gc.collect()
        time.sleep(0.2)
        after = [*self.listing.look()]
        self.looked()
        return {"seen": self.listing.seen, "after": after, "able": self.able}


def reader() -> None:
    ds = dml.range(4000).batch(10).with_options(telemetry_dir="off")
    for _ in ds.streaming_split(2, rank=1, job_name=JOB):
        pass


KINDS: dict[str, Callable[[Made], None]] = {
    "threads": lambda m: m.taken(m.source.map(worked).batch(100), executor="threads"),
    "processes": lambda m: m.taken(m.source.map(worked).batch(100), executor="processes"),
    "driver": lambda m: m.taken(m.source.map(worked).batch(100), driver="process"),
    "split": Made.split,
    "cached in memory": lambda m: m.taken(m.source.map(worked).cache().batch(100)),
    "cached on disk": lambda m: m.taken(m.source.map(worked).cache("disk").batch(100)),
    "sorted": lambda m: m.small(m.source.sort("x").batch(100)),
    "shuffled": lambda m: m.small(m.source.filter(dml.col("x") > 0).shuffle().batch(100)),
    "grouped": lambda m: m.small(m.source.group_by("id").agg(n=dml.col("x").sum())),
    "iterator": lambda m: m.taken(
        dml.from_iterable(({"id": n} for n in range(500)), schema={"id": "int64"}).map(worked),
        executor="processes",
    ),
    "kernels": lambda m: m.taken(
        m.source.with_columns(y=dml.col("x").log1p() * 3 + dml.col("w1").sqrt()).batch(100),
        kernels="compiled",
    ),
    "telemetry": lambda m: m.taken(m.source.map(worked).batch(100), telemetry_dir=None),
    "verified": lambda m: m.taken(m.source.map(worked).batch(100), verify="sample"),
    "state": Made.state,
    "cluster": Made.cluster,
}


def main(kind: str) -> None:
    """Run it, and print what came of it."""
    warnings.simplefilter("ignore")
    os.umask(0)
    made = Made(Path(os.environ["DML_MADE"]))
    made.listing.look()
    before = {**made.listing.seen}
    made.listing.thread.start()
    KINDS[kind](made)
    found = made.ended()
    made.listing.over.set()
    found["seen"] = {name: each for name, each in found["seen"].items() if name not in before}
    os.write(1, (json.dumps(found) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1])
