"""Connect the Dask cluster of a run: its client, its workers, and their versions.

No cluster is configured or started. A client that dml opens (for an address, or a cluster object)
is kept for the next run and closed with the process; a client of the user is used unchanged.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import logging
import weakref
from collections.abc import Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import dask
import distributed
from distributed.core import rpc

from dml.errors import DmlError, PlanError, WorkerLostError

CPU, GPU = "cpu", "gpu"
DASK_GPU = "GPU"
ASKED = ("dml", "numpy", "pyarrow", "distributed")

_log = logging.getLogger("dml")


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterWorker:
    """A worker: its threads, its memory in bytes, and its resources by the names that dml uses."""

    address: str
    name: str
    threads: int
    memory: int
    resources: Mapping[str, float]

    @property
    def host(self) -> str:
        """The name or address of the worker's host."""
        return urlsplit(self.address).hostname or self.address

    @property
    def resources_text(self) -> str:
        """The name and resources of the worker, for messages."""
        custom = "".join(f" {key}={value:g}" for key, value in sorted(self.resources.items()))
        return f"{self.name or self.address}: cpu={self.threads}{custom}"


def member(address: str, info: Mapping[str, Any]) -> ClusterWorker:
    """Return the worker at ``address``; ``info`` is the scheduler's description of it."""
    given = info.get("resources") or {}
    resources = {GPU if key == DASK_GPU else key: float(n) for key, n in given.items()}
    name, memory = str(info.get("name", "")), int(info.get("memory_limit") or 0)
    return ClusterWorker(address, name, int(info["nthreads"]), memory, resources)


def dask_resources(asked: Mapping[str, float]) -> dict[str, float]:
    """Return the resources that Dask must reserve: all but processors, which dml counts."""
    return {DASK_GPU if key == GPU else key: n for key, n in asked.items() if key != CPU}


def totals(members: Mapping[str, ClusterWorker]) -> dict[str, float]:
    """Return the resources of all workers together."""
    found = {CPU: 0.0}
    for each in members.values():
        found[CPU] += each.threads
        for key, amount in each.resources.items():
            found[key] = found.get(key, 0.0) + amount
    return found


# ------------------------------------------------------------------------------------- the client

LIVE = ("running", "connecting")  # status of a usable client
_OPENED: dict[str, distributed.Client] = {}
_CERTIFICATES: list[dask.config.set] = []  # at most one: the certificates of the current run
_OF_CLUSTERS: weakref.WeakKeyDictionary[Any, distributed.Client] = weakref.WeakKeyDictionary()


def connected(scheduler: Any, timeout_s: float) -> distributed.Client:
    """Return the client for ``scheduler`` (see Settings), after checking that it answers.

    Raise PlanError if there is no client, or it is asynchronous; raise WorkerLostError if it is
    closed, or the scheduler does not answer within ``timeout_s``.
    """
    client = met_before(scheduler)
    ours = not isinstance(scheduler, distributed.Client | None)
    if ours and (client is None or client.status not in LIVE):
        if not _OPENED and not _OF_CLUSTERS:
            atexit.register(close_all)
        client = _ours(scheduler)[scheduler] = _opened(scheduler, timeout_s)
    if client is None:
        raise PlanError(
            "executor='distributed' needs a cluster",
            why="no scheduler= is given, and this process has no distributed.Client",
            try_="scheduler='tcp://host:8786', or client = distributed.Client(...) before the run",
        )
    if client.status not in LIVE:
        raise WorkerLostError(
            "the client of the cluster is closed",
            at=repr(client),
            why=f"its status is {client.status!r}",
            try_="a new distributed.Client, or scheduler='tcp://...'",
        )
    if client.asynchronous:
        raise PlanError(
            "an asynchronous client cannot be waited for",
            at=repr(client),
            why="iterating over a dataset blocks the loop that this client needs",
            try_="a Client without asynchronous=True, or the address of the scheduler",
        )
    return client


def met_before(scheduler: Any) -> distributed.Client | None:
    """Return the existing client for ``scheduler``, or None; sends no request."""
    if isinstance(scheduler, distributed.Client):
        return scheduler
    if scheduler is None:
        with contextlib.suppress(ValueError):
            return distributed.get_client()
        return None
    return _ours(scheduler).get(scheduler)


def certificates(scheduler: Any) -> dict[str, Any]:
    """Return the security settings of a client or cluster object, as a Dask configuration."""
    security = getattr(scheduler, "security", None)
    if not isinstance(security, distributed.Security):
        return {}
    found = {
        "tls.ca-file": security.tls_ca_file,
        "tls.client.cert": security.tls_client_cert,
        "tls.client.key": security.tls_client_key,
        "require-encryption": security.require_encryption,
    }
    return {f"distributed.comm.{key}": value for key, value in found.items() if value is not None}


def configure(config: Mapping[str, Any]) -> None:
    """Replace the previous run's Dask configuration by ``config``, a result of ``certificates``."""
    if _CERTIFICATES:
        _CERTIFICATES.pop().__exit__(None, None, None)
    _CERTIFICATES.append(dask.config.set(config))


def _ours(scheduler: Any) -> MutableMapping[Any, distributed.Client]:
    """Return the clients that dml opened, by scheduler, for schedulers of this one's type."""
    return _OPENED if isinstance(scheduler, str) else _OF_CLUSTERS


def workers_of(client: distributed.Client) -> dict[str, dict[str, Any]]:
    """Return the workers as the scheduler describes them now, by address.

    Call it on any thread but the event loop's. ``Client.scheduler_info`` is not used, since it may
    list no workers while it updates itself, every two seconds.
    """
    found: dict[str, Any] = client.sync(client.scheduler.identity, n_workers=-1)
    return dict(found["workers"])


def _opened(start: Any, timeout_s: float) -> distributed.Client:
    try:
        if isinstance(start, str):
            _ask(start, timeout_s)
        return distributed.Client(start, timeout=timeout_s, set_as_default=False)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        shown = start if isinstance(start, str) else repr(start)
        raise WorkerLostError(
            "the scheduler cannot be reached",
            at=str(shown),
            why=str(error) or f"no answer within {timeout_s:g} s",
            try_="the address that `dask scheduler` printed, reachable from here",
        ) from error


def _ask(address: str, timeout_s: float) -> None:
    """Raise an exception unless a scheduler answers at ``address`` within ``timeout_s``.

    Without this check, a client would wait for ever if another program listens at the address, and
    a failed client disturbs the end of the process. The request runs on a thread of its own, since
    a notebook's thread already runs an event loop.
    """
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, asyncio.wait_for(_identity(address), timeout_s)).result()


async def _identity(address: str) -> None:
    security = distributed.Security().get_connection_args("client")
    async with rpc(address, connection_args=security) as scheduler:
        await scheduler.identity(n_workers=0)


def close_all() -> None:
    """Close the clients that dml opened."""
    for client in (*_OPENED.values(), *_OF_CLUSTERS.values()):
        client.close(timeout=2)
    _OPENED.clear()
    _OF_CLUSTERS.clear()


# ------------------------------------------------------------------------------------- the workers


def _probe(packages: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of ``packages`` on a worker; sent by value, since it may lack dml."""
    import platform as machine  # noqa: PLC0415 - none of this module is there
    from importlib import metadata as installed  # noqa: PLC0415

    found = {"python": machine.python_version()}
    for each in packages:
        try:
            found[each] = installed.version(each)
        except installed.PackageNotFoundError:
            try:
                found[each] = str(__import__(each).__version__)
            except (ImportError, AttributeError):
                found[each] = ""
    return found


_probe.__module__ = "__main__"  # cloudpickle sends functions of ``__main__`` by value


def unfit(member: ClusterWorker, there: Any, here: Mapping[str, str]) -> DmlError | None:
    """Return an error if the worker has another Python or dml; warn of other packages' versions."""
    where = f"worker {member.name or member.address} at {member.address}"
    if not isinstance(there, Mapping):
        return WorkerLostError("a worker did not answer", at=where, why=repr(there))
    differing = {key: there[key] for key in here if there[key] != here[key]}
    for key, found in differing.items():
        serious = key == "dml" or not found
        serious |= key == "python" and _minor(found) != _minor(here[key])
        if serious:
            return PlanError(
                f"{key} is another one on a worker",
                at=where,
                why=f"{key} {found or 'is not installed'} there, {here[key]} here",
                try_=f"install {key}=={here[key]} on the workers",
            )
        _log.warning("%s has %s %s; here it is %s", where, key, found, here[key])
    return None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
