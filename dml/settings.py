"""The options of a run are one frozen ``Settings`` value, read once and passed down."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from dml.checks import (
    AUTO,
    count,
    flag,
    folder,
    most,
    names,
    namespace,
    nearest,
    of_kind,
    offered,
    one_of,
    port,
    seconds,
    some,
    unfit,
)
from dml.errors import PlanError

AUTOTUNE = AUTO
SIZE = r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)[bB]?\s*"
EXECUTORS = ("auto", "threads", "processes", "distributed", "sync")
KERNELS = ("auto", "numpy", "compiled")
VERIFY = ("off", "kept", "sample")
DRIVERS = ("here", "process")
TUNE = ("auto", "off")
TUNING = ("auto", "threads")
FOLDERS = ("cache_dir", "cache_local_dir", "telemetry_dir", "trace_dir", "verify_dir", "spill_dir")
SCHEDULER_POLICIES = ("adaptive", "conservative", "optimistic", "staged", "static", "fused")
MINIMIZE = ("time", "cost")
SCALING = ("gain", "cachew", "cpu")

Auto = Literal["auto"]


def parse_bytes(size: object, name: str = "size") -> int:
    """Return ``size`` in bytes: a positive integer, or a text such as ``"128MiB"`` or ``"64k"``.

    ``name`` is the option that the PlanError for an invalid size names.
    """
    if isinstance(size, str):
        match = re.fullmatch(SIZE, size)
        if match is None:
            raise PlanError(
                f"{name}={size!r} is not a size",
                why="a size is a number of bytes or a text such as '128MiB'",
                try_=f"{name}='128MiB'",
            )
        number, letter, binary = match.groups()
        power = " kMGT".index(letter.replace("K", "k") or " ")
        size = int(float(number) * (1024 if binary else 1000) ** power)
    if isinstance(size, bool) or not isinstance(size, int) or size <= 0:
        raise PlanError(
            f"{name} must be a positive number of bytes, got {size!r}",
            why="a size is a number of bytes or a text such as '128MiB'",
            try_=f"{name}='128MiB'",
        )
    return size


@dataclasses.dataclass(frozen=True)
class Autoscale:
    """Limits on the workers of a Dask cluster object, and the policy that scales between them.

    Parameters
    ----------
    min : least number of workers
    max : greatest number of workers
    rho : a worker is added to w workers if its gain is at least this fraction of 1/(w+1), the
        ideal gain
    minimize : "time", or "cost", which counts the trainer as 30 workers
    policy : "gain" is dml's own; "cachew" adds workers one by one while each is worth 3 %; "cpu"
        keeps processors 80 % busy (docs/scaling.md)
    window : batches between two decisions
    """

    min: int
    max: int
    rho: float = 0.5
    minimize: str = "time"
    policy: str = "gain"
    window: int = 100

    def __post_init__(self) -> None:
        for name, usual in (
            ("min", "(1, 8)"),
            ("max", "(1, 8)"),
            ("window", "dml.Autoscale(1, 8)"),
        ):
            some(f"autoscale {name}", getattr(self, name), f"autoscale={usual}")
        if self.max < self.min:
            swapped = f"autoscale=({self.max}, {self.min})"
            raise unfit("autoscale max", self.max, f"at least min={self.min}", swapped)
        if isinstance(self.rho, bool) or not isinstance(self.rho, int | float):
            raise unfit("autoscale rho", self.rho, "a number between 0 and 1")
        if not 0 < self.rho < 1:
            raise unfit("autoscale rho", self.rho, "a number between 0 and 1", "autoscale rho=0.5")
        one_of("autoscale minimize", self.minimize, MINIMIZE)
        one_of("autoscale policy", self.policy, SCALING)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Options of a run; only ``seed`` changes rows, and only ``deterministic=False`` their order.

    Sizes are bytes or texts such as ``"512MiB"``; integer options also accept ``"auto"``.

    Parameters
    ----------
    executor : "threads", "processes" (for functions that hold the GIL), "distributed" (a Dask
        cluster), or "sync" (everything in the caller's thread, for pdb). "auto" is "threads", or
        "processes" if functions are proven pure and processes are expected, or measured during the
        run, to be clearly faster
    scheduler : the Dask cluster to run on, which implies executor "distributed": an address, a
        ``distributed.Client``, or a cluster object; None is the current client of this process
    num_workers : worker threads or processes; "auto" is the number of cores this process may use,
        or every thread of the cluster. Where functions or files keep threads waiting, "auto" runs
        more of them, up to 64, as long as the rows per second rise (docs/options.md)
    tune : "off" keeps the numbers that "auto" settings begin with; "auto" adapts them in the run
    driver : where work outside of the workers runs: "here", in the caller's process, or in a
        separate "process", from which the caller's process only takes finished elements
        (docs/clusters.md). Verbs that compute at once (``count``, writes) always run here
    resources : resources of this host besides processors, such as {"GPU": 2, "disk": 1}, which
        limit how many steps that request them (``num_gpus=``, ``resources=``) run in parallel.
        NVIDIA GPUs are counted if none are given. The workers of a cluster declare their resources
        with ``dask worker --resources`` instead
    memory_limit : bytes that all processes of the run may use together; "auto" is a quarter of the
        memory of the machine, of its control group if that is less, or of all workers of a cluster
    target_partition_bytes : bytes of one partition; "auto" derives it from the memory limit
    prefetch : batches computed ahead of the consumer, in a thread; with 0 each batch is computed on
        request, in the consumer's thread. "auto" begins with 0, changes to 2 once the consumer
        waited over 100 microseconds for most batches, and then to as many, up to 64, as keep it
        from waiting (docs/options.md says when it stays at 0)
    scheduler_policy : order in which tasks that are ready start; "adaptive" is suited to all
    pipelines, the other policies imitate other systems, for comparison (docs/scheduling.md)
    deterministic : False delivers elements as soon as they are computed, each exactly once, so that
        a slow row delays no other; batches may then contain other rows. It applies to the last
        function before the last ``batch``, if later operators only form batches, change elements or
        repeat. Otherwise order is kept, as it is with executor "sync" or ``verify="sample"``, for
        caches on disk, for writes, and for operators that return all rows at once
    seed : the seed of all operators with ``seed=None``
    kernels : "auto" starts in NumPy and changes to compiled code; "numpy" and "compiled" use only
        one of the two
    optimize : False runs the pipeline as it was written
    cache_dir : folder of the rows of ``cache(tier="disk")``, and of compiled kernels, which are in
        a subfolder private to this user. None is the user's cache folder. Kernels are stored there
        too if ``cache_dir`` is an s3:// URL, or if other users could write to it (docs/cache.md)
    cache_quota : limit in bytes of all rows in the namespace, as "1GiB"; None is no limit
    cache_namespace : the namespace in the cache store that rows are written to and read from
    cache_local_dir : a folder on a disk of each machine, for copies of cached rows that take longer
        to read from the store. None copies rows of an object store to the user's cache folder, and
        copies no other rows; "off" copies none at all (docs/cache.md)
    cache_local_quota : limit in bytes of these copies; None is a tenth of the disk
    autocache : True acts as if ``autocache()`` followed every Python function of rows or batches
        that uses neither clocks nor random numbers and whose input is the same in every epoch; it
        may then be called in the first epochs only
    epochs : number of iterations to come, from which ``autocache()`` estimates what is worth
        caching; None is unknown
    telemetry_dir : folder that events of runs are appended to; None is the user's cache folder,
        "off" writes none
    trace_dir : folder to which each run writes a timeline of its slices and of the training loop's
        waits, for ui.perfetto.dev; None writes none
    metrics_port : port of 127.0.0.1 at which Prometheus reads figures of this process's runs (from
        /metrics); None serves none, and a port in use is a warning
    plain_text : True writes literals, paths, and values of variables that functions read to the
        cache store and telemetry, as text. False writes digests in their place, except for the
        bounds of numeric ranges in the index of the store, which must be compared
    disable_rules : rules of the optimizer, or families of them, that are not used, such as
        ("filter_before_sort", "projection_pushdown"); all are in docs/optimizer.md
    max_errors : the run fails if functions with on_error="skip" raise more errors than this; None
        is no limit
    verify : "kept" computes a few cached rows again when a process first uses an entry of a cache
        on disk, and occasionally later; if they differ, the entry is not used again, with a warning
        (docs/cache.md). "sample" also computes some rows of every pass again by the plan as written
        and compares the bytes before delivery; if they differ, the epoch is restarted as written,
        or ends with a VerificationError if it has delivered rows already (docs/verify.md). "off"
        compares nothing
    verify_samples : maximum number of samples of a pass: its first rows, and rows drawn by the
        seed; each is an atom of at most 65,536 rows and about 8 MiB, or several small atoms
    verify_dir : where a report of a difference is written as a folder, WITH ROWS OF YOUR DATA in
        it; nothing is sent anywhere. None is the folder of telemetry, or the user's cache folder
    spread : whether the workers of a cluster compute full shuffles, sorts and groups, on their
        disks (docs/clusters.md). "auto" does so unless the input is small, True always, False
        never: then these are computed in the process that delivers the rows
    spill_dir : the folder for rows that exceed the memory limit, here and on the workers of a
        cluster; None is the system's folder for temporary files, or Dask's own of each worker
    autoscale : numbers of workers between which a Dask cluster object is scaled during a run:
        (min, max) or an ``Autoscale``; None does not scale it
    watchdog_s : seconds of waiting after which a message names the unit that a consumer waits for
    connect_timeout_s : seconds after which a scheduler that does not answer is an error
    worker_wait_s : seconds after which a cluster without any worker is an error
    worker_silent_s : seconds without a heartbeat of a cluster's worker, after which other workers
        compute its running tasks and stored results again. Such a worker is stopped, unreachable,
        or its process never releases the GIL
    speculative : True starts a task of processes or a cluster a second time if it takes much longer
        than similar tasks and other workers are idle; the first result counts. Use it if your
        functions may be called twice for a row; it never applies to classes, nor to user-defined
        sources. "auto" does so if every function is proven pure; False never does
    shared_memory : workers of a cluster share results with processes of their host through shared
        memory (docs/clusters.md); False sends results to them as to all other hosts
    """

    executor: str = "auto"
    num_workers: int | Auto = "auto"
    tune: str = "auto"
    driver: str = "here"
    resources: Mapping[str, float] | tuple[tuple[str, float], ...] | None = None
    memory_limit: int | str = "auto"
    target_partition_bytes: int | str = "auto"
    prefetch: int | Auto = "auto"
    scheduler_policy: str = "adaptive"
    deterministic: bool = True
    seed: int = 0
    kernels: str = "auto"
    optimize: bool = True
    disable_rules: Sequence[str] = ()
    cache_dir: str | None = None
    cache_quota: int | str | None = None
    cache_namespace: str = "default"
    cache_local_dir: str | None = None
    cache_local_quota: int | str | None = None
    autocache: bool = False
    epochs: int | None = None
    telemetry_dir: str | None = None
    trace_dir: str | None = None
    metrics_port: int | None = None
    plain_text: bool = False
    max_errors: int | None = None
    verify: str = "kept"
    verify_samples: int = 3
    verify_dir: str | None = None
    watchdog_s: float = 60.0
    connect_timeout_s: float = 10.0
    worker_wait_s: float = 60.0
    worker_silent_s: float = 60.0
    speculative: bool | Auto = "auto"
    shared_memory: bool = True
    spread: bool | Auto = "auto"
    spill_dir: str | None = None
    autoscale: Autoscale | tuple[int, int] | None = None
    scheduler: Any = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        one_of("executor", self.executor, EXECUTORS)
        one_of("kernels", self.kernels, KERNELS)
        one_of("driver", self.driver, DRIVERS)
        one_of("tune", self.tune, TUNE)
        one_of("verify", self.verify, VERIFY)
        one_of("scheduler_policy", self.scheduler_policy, SCHEDULER_POLICIES)
        flag("speculative", self.speculative)
        flag("spread", self.spread)
        for name in ("memory_limit", "target_partition_bytes"):
            if getattr(self, name) != AUTOTUNE:
                object.__setattr__(self, name, parse_bytes(getattr(self, name), name))
        count("num_workers", self.num_workers, least=1)
        count("prefetch", self.prefetch, least=0)
        object.__setattr__(self, "resources", offered("resources", self.resources))
        most("max_errors", self.max_errors)
        most("epochs", self.epochs)
        some("verify_samples", self.verify_samples)
        of_kind("seed", self.seed, (int,), "an integer")
        for name in ("watchdog_s", "connect_timeout_s", "worker_wait_s", "worker_silent_s"):
            seconds(name, getattr(self, name))
        if not _a_scheduler(self.scheduler):
            wanted = "an address such as 'tcp://10.0.0.1:8786', a distributed.Client or a cluster"
            raise unfit("scheduler", self.scheduler, wanted)
        self._fits()
        object.__setattr__(
            self, "autoscale", _scaled(self.autoscale, self.executor, self.scheduler)
        )
        for name in ("autocache", "deterministic", "optimize", "plain_text", "shared_memory"):
            of_kind(name, getattr(self, name), (bool,), "True or False")
        object.__setattr__(self, "disable_rules", names("disable_rules", self.disable_rules))
        namespace(self.cache_namespace)
        for name in FOLDERS:
            object.__setattr__(self, name, folder(name, getattr(self, name)))

    def _fits(self) -> None:
        if self.metrics_port is not None:
            port("metrics_port", self.metrics_port)
        for name in ("cache_quota", "cache_local_quota"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, parse_bytes(getattr(self, name), name))
        if self.driver == "process" and (self.executor == "sync" or self.autoscale is not None):
            sync = self.executor == "sync"
            raise PlanError(
                f"{'executor=sync' if sync else 'autoscale='} is for driver='here'",
                why="it runs all in the caller's thread"
                if sync
                else "it scales an object of this process by what it measures in the training loop",
                try_="driver='here', or another executor" if sync else "leave one of both out",
            )
        if self.resources and self.executor == "distributed":
            raise PlanError(
                "resources= are those of this host, and the run is on a cluster",
                why="each worker of a cluster says itself what it has",
                try_='dask worker ADDRESS --resources "GPU=1", and leave resources out',
            )

    @property
    def tunes(self) -> bool:
        """True if a run on threads may choose how many slices of a stage run at once."""
        asked = self.tune == "auto" and self.num_workers == AUTOTUNE
        return asked and self.executor in TUNING and self.scheduler_policy == "adaptive"

    @property
    def here(self) -> Settings:
        """These settings with ``driver="here"``, for verbs that always run in this process."""
        return self if self.driver == "here" else dataclasses.replace(self, driver="here")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, with a client or cluster replaced by its address, if any."""
        return {**self.__dict__, "scheduler": address_of(self.scheduler)}

    def merged(self, options: dict[str, Any]) -> Settings:
        """Return a copy with ``options`` changed; a scheduler implies executor "distributed".

        Raise PlanError for an unknown option, and for a scheduler with another executor.
        """
        known = [f.name for f in dataclasses.fields(self)]
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise PlanError(
                f"with_options has no option {unknown[0]!r}",
                why=f"docs/options.md lists all {len(known)}",
                try_=nearest(unknown[0], known),
            )
        if options.get("scheduler") is not None:
            options = {"executor": "distributed", **options}
            if options["executor"] != "distributed":
                raise PlanError(
                    f"executor={options['executor']!r} uses no scheduler, and one is given",
                    why="a scheduler is that of a Dask cluster",
                    try_='executor="distributed", or leave executor out',
                )
        return dataclasses.replace(self, **options)


def _a_scheduler(value: object) -> bool:
    """Return True for None, an address, a client, or a cluster object of any library."""
    if isinstance(value, str):
        return bool(value)
    return value is None or hasattr(value, "scheduler_address") or hasattr(value, "scheduler")


def address_of(scheduler: Any) -> str | None:
    """Return the address at which another process can reach a scheduler; None if unknown."""
    if isinstance(scheduler, str):
        return scheduler
    found = getattr(scheduler, "scheduler_address", None)
    found = found or getattr(getattr(scheduler, "scheduler", None), "address", None)
    return found if isinstance(found, str) and not found.startswith("inproc") else None


def scales(scheduler: Any) -> Any:
    """Return the cluster object with which a scheduler or client can be scaled, or None."""
    each = (scheduler, getattr(scheduler, "cluster", None))
    return next((one for one in each if hasattr(one, "scale")), None)


def _scaled(value: Any, executor: str, scheduler: Any) -> Autoscale | None:
    """Return the option ``autoscale`` as an Autoscale, or None.

    Raise PlanError if the executor or the scheduler cannot be scaled.
    """
    if value is None:
        return None
    if isinstance(value, tuple | list) and len(value) == 2:
        value = Autoscale(*value)
    if not isinstance(value, Autoscale):
        wanted = "(min, max) or a dml.Autoscale"
        raise unfit("autoscale", value, wanted, "autoscale=(1, 8)")
    if executor not in ("auto", "distributed"):
        raise not_scaled(f"executor={executor!r} has no workers that come and go")
    if scheduler is not None and scales(scheduler) is None:
        raise not_scaled(f"scheduler={scheduler!r} can be reached, and not be made larger")
    return value


def not_scaled(why: str) -> PlanError:
    """Build the PlanError for ``autoscale`` without a cluster object that can be scaled."""
    return PlanError(
        "autoscale needs a Dask cluster object",
        why=why,
        try_="scheduler=cluster, such as a LocalCluster, SLURMCluster or KubeCluster",
    )


def user_folder(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the default folder for this user's files: ``$XDG_CACHE_HOME/dml`` or ``~/.cache/dml``.

    Without a writable home, as in many containers, return a private folder among temporary files,
    and log that once; return None if that folder cannot be created.
    """
    base = environ.get("XDG_CACHE_HOME", "")
    usual = base if os.path.isabs(base) else os.path.expanduser("~/.cache")
    if os.path.isabs(usual) and _writable(usual):
        return os.path.join(usual, "dml")
    return _temporary(os.geteuid())


def _writable(folder: str) -> bool:
    """Return True if files can be created below a folder, which need not exist yet."""
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    return os.access(folder, os.W_OK | os.X_OK)


@functools.cache
def _temporary(user: int) -> str | None:
    """Return the private temporary folder of user id ``user``; None if it cannot be created."""
    import logging  # noqa: PLC0415 - as below
    import tempfile  # noqa: PLC0415 - for few users, and it loads half a dozen others

    try:
        folder = os.path.join(tempfile.gettempdir(), f"dml-{user}")
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
    except OSError:
        return None
    if found.st_uid != user or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
        return None
    logging.getLogger("dml").warning(
        "there is no home folder to write to: kernels, caches and telemetry lie in %s"
        " (XDG_CACHE_HOME= names another)",
        folder,
    )
    return folder
