"""Find rank 0 of a split, connect its other ranks, authenticate them, and transfer batches.

Both ends prove that they know the job's secret (the HMAC challenge of ``multiprocessing``) before
anything is unpickled. The traffic is not encrypted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pickle
import secrets
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from dml.base.ownership import own_folder
from dml.errors import PlanError
from dml.exec.process.channel import exactly

# Smaller buffers are part of the message; larger ones are received in place.
SMALL = 1 << 13
HANDSHAKE_S = 10.0
# A host that vanished is noticed within about IDLE + COUNT * EVERY seconds.
KEEPALIVE = {"TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}

LOST = (EOFError, OSError)
# Python 3.11 raises an assertion for a peer that speaks another protocol.
REFUSED = (AuthenticationError, AssertionError, *LOST)


class Wire:
    """One authenticated connection: one sender and one receiver at a time."""

    def __init__(self, end: socket.socket, secret: bytes, *, serving: bool) -> None:
        _attentive(end)
        with _patient(end):
            self._end = end.dup()
            self._through = Connection(end.detach())
            try:
                steps = (deliver_challenge, answer_challenge)
                for step in steps if serving else reversed(steps):
                    step(self._through, secret)
            except BaseException:
                self.close()
                raise

    def send(self, value: Any) -> None:
        """Send one object. Raise OSError if the peer is gone."""
        views: list[memoryview] = []

        def apart(buffer: pickle.PickleBuffer) -> bool:
            view = buffer.raw()
            if view.nbytes >= SMALL:
                views.append(view)
            return view.nbytes < SMALL

        body = pickle.dumps(value, protocol=5, buffer_callback=apart)
        self._through.send_bytes(struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views)))
        self._through.send_bytes(body)
        for view in views:
            self._end.sendall(view)  # not through ``multiprocessing``, whose receiver copies bytes

    def receive(self) -> Any:
        """Receive one object into new memory; raise EOFError or OSError if the peer is gone.

        The message is unpickled, which is safe only after authentication.
        """
        sizes = self._through.recv_bytes()
        body = self._through.recv_bytes()
        buffers = [exactly(self._end, size) for (size,) in struct.iter_unpack("<Q", sizes)]
        return pickle.loads(body, buffers=buffers)  # noqa: S301 - both ends know the job's secret

    def ready(self, patience_s: float) -> bool:
        """Return True if data arrives or the connection ends within ``patience_s`` seconds."""
        return self._through.poll(patience_s)

    def hang_up(self) -> None:
        """Shut the connection down, which wakes threads that send or receive on it."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, which no other thread may use any more."""
        self._end.close()
        self._through.close()


@contextmanager
def _patient(end: socket.socket) -> Iterator[None]:
    """Limit the wait for a silent peer to HANDSHAKE_S during the ``with`` block."""
    option = socket.SO_RCVTIMEO
    with end.dup() as same:
        same.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(HANDSHAKE_S), 0))
        yield
        same.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 0, 0))


def _attentive(end: socket.socket) -> None:
    """Send small messages at once (no Nagle delay), and detect a lost host by keep-alive probes."""
    end.settimeout(None)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that accepts connections at ``host`` only; port 0 takes any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=64)


def called(host: str, port: int, secret: bytes, patience_s: float) -> Wire:
    """Connect to a listener within ``patience_s`` seconds, and check that it knows ``secret``."""
    return Wire(socket.create_connection((host, port), patience_s), secret, serving=False)


LOOPBACK = ("", "localhost", "127.0.0.1", "::1")
# Variables of launchers that distinguish two jobs of one name.
LAUNCH = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")


@dataclasses.dataclass(frozen=True)
class RankPlace:
    """Rank ``rank`` of ``n`` in job ``name``, and where to find rank 0 of the job.

    Either all ranks are on this host and rank 0 writes its address into ``file``, or ``file`` is
    None, rank 0 listens at ``host``:``port`` and all ranks know ``secret``.
    """

    rank: int
    n: int
    name: str
    file: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    secret: bytes = b""


def place_of(
    name: Any, n: Any, rank: Any, address: str | None, env: Mapping[str, str] | None = None
) -> RankPlace:
    """Return the place of this process; ``env`` supplies ``n`` and ``rank`` if they are None.

    Raise PlanError for missing or invalid values.
    """
    known = os.environ if env is None else env
    n, rank = _number("n", n, "WORLD_SIZE", known), _number("rank", rank, "RANK", known)
    if not 0 <= rank < n:
        raise PlanError(
            f"there is no rank {rank} of {n}",
            why="ranks are counted from 0",
            try_=f"rank= from 0 to {n - 1}",
        )
    if not isinstance(name, str) or not name:
        raise PlanError(
            f"job_name={name!r} is not a name",
            why="processes with the same job_name share one run",
            try_='job_name="train"',
        )
    if address is not None:
        host, port = _address(address)
        return RankPlace(rank, n, name, None, host, port, _secret(known))
    if _several_hosts(known):
        raise PlanError(
            f"rank {rank} of job {name!r} does not know where rank 0 is",
            why=f"MASTER_ADDR={known['MASTER_ADDR']!r} says that there are several hosts",
            try_='address="host:port" of rank 0 in every process, and a secret in DML_TOKEN',
        )
    return RankPlace(rank, n, name, _folder(known) / f"{_key(name, known)}.json")


def _number(name: str, given: Any, variable: str, env: Mapping[str, str]) -> int:
    if given is None and variable in env:
        given = int(env[variable]) if env[variable].isdecimal() else env[variable]
    if isinstance(given, bool) or not isinstance(given, int):
        raise PlanError(
            f"streaming_split with job_name needs {name}=, got {given!r}",
            why=f"{variable} is what torchrun sets; here it is {env.get(variable)!r}",
            try_=f"{name}=, or a launcher that sets {variable}",
        )
    return given


def _several_hosts(env: Mapping[str, str]) -> bool:
    here = env.get("LOCAL_WORLD_SIZE")
    if here is not None:
        return here != env.get("WORLD_SIZE", here)
    return env.get("MASTER_ADDR", "") not in LOOPBACK


def _address(address: str) -> tuple[str, int]:
    host, _, port = str(address).rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise PlanError(
            f"address={address!r} is no address",
            why="it is where rank 0 listens, and all others connect to",
            try_='address="10.0.0.1:29600"',
        )
    return host.strip("[]"), int(port)


def _secret(env: Mapping[str, str]) -> bytes:
    if not env.get("DML_TOKEN"):
        raise PlanError(
            "address= without a secret",
            why="whoever can reach that port could take batches, or send them",
            try_="the same long random text in the environment variable DML_TOKEN of all ranks",
        )
    return env["DML_TOKEN"].encode()


def _key(name: str, env: Mapping[str, str]) -> str:
    """Return a file name for job ``name``, which differs for each launch of the job."""
    launch = "\n".join([name, *(env.get(variable, "") for variable in LAUNCH)])
    plain = "".join(c if c.isalnum() or c in "-_" else "_" for c in name[:40])
    return f"{plain}-{hashlib.sha256(launch.encode()).hexdigest()[:12]}"


def _folder(env: Mapping[str, str]) -> Path:
    """Return a folder of this user that other users cannot read, for files of jobs."""
    runtime = env.get("XDG_RUNTIME_DIR")
    base = Path(runtime) / "dml" if runtime else Path(tempfile.gettempdir()) / f"dml-{os.getuid()}"
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = base.lstat()
    except OSError as error:
        raise PlanError(
            f"{base} cannot hold the secret of a job",
            why=error.strerror or str(error),
            try_="XDG_RUNTIME_DIR= a folder of your own",
        ) from error
    closed = found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077
    if not closed or base.is_symlink() or own_folder(base) is None:
        raise PlanError(
            f"{base} cannot hold the secret of a job",
            why="it belongs to another user, or others may look into it, or move it",
            try_=f"chmod 700 {base}, or XDG_RUNTIME_DIR= a folder of your own",
        )
    return base


def announced(place: RankPlace, port: int) -> RankPlace:
    """Write ``port`` and a new secret to the place's file, if it has one; return the new place."""
    if place.file is None:
        return place
    told = dataclasses.replace(place, port=port, secret=secrets.token_hex(32).encode())
    fresh = place.file.with_suffix(f".{os.getpid()}")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump({"host": told.host, "port": port, "secret": told.secret.decode()}, file)
    fresh.replace(place.file)
    return told


def met(place: RankPlace) -> RankPlace | None:
    """Return the place with rank 0's announced address; None until rank 0 has announced it."""
    if place.file is None:
        return place
    try:
        told = json.loads(place.file.read_text(encoding="utf-8"))
        secret = told["secret"].encode()
        return dataclasses.replace(place, host=told["host"], port=told["port"], secret=secret)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def withdrawn(place: RankPlace) -> None:
    """Remove the announcement, unless another rank 0 has replaced it."""
    if place.file is not None and met(place) == place:
        place.file.unlink(missing_ok=True)
