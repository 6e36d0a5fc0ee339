"""This file holds the options of a run: one frozen value, read once and passed down."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, Literal

from dml.errors import PlanError

AUTOTUNE = "auto"
SIZE = r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)[bB]?\s*"
EXECUTORS = ("auto", "threads", "processes", "distributed", "sync")
KERNELS = ("auto", "numpy", "compiled")
VERIFY = ("off", "sample")

Auto = Literal["auto"]


def parse_bytes(size: object, name: str = "size") -> int:
    """Bytes of ``"128MiB"``, ``"1.5GB"``, ``"64k"`` or a plain number; must be positive."""
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
class Settings:
    """What a run may choose without changing a single byte of what it delivers (but ``seed``).

    Sizes are bytes or texts such as ``"512MiB"``; integer knobs also accept ``"auto"``.

    Parameters
    ----------
    executor : "auto" is "threads", or "processes" where that is clearly expected to be faster and
        functions are proven pure; "processes" (for functions that hold Python's lock),
        "distributed" (a Dask cluster), or "sync": everything in the caller's thread, for pdb
    scheduler : the cluster of "distributed", which naming one implies: an address, a
        ``distributed.Client``, or a cluster object; None is the current client of this process
    num_workers : worker threads or processes; "auto" is the number of cores this process may use,
        or every thread of the cluster
    resources : what this host has beside processors, such as {"GPU": 2, "disk": 1}: steps that ask
        for some of it (``num_gpus=``, ``resources=``) run at once as far as it reaches. The workers
        of a cluster say themselves what they have (``dask worker --resources``)
    memory_limit : bytes that the whole run may hold, one number; "auto" is a quarter of the machine
    target_partition_bytes : bytes of one partition, "auto" derives it from the memory limit
    prefetch : batches made ahead of the consumer; 0 makes each batch when it is asked for
    deterministic : True; order is always kept in this version, and False is refused
    seed : what ``seed=None`` means everywhere
    kernels : "auto" starts in NumPy and swaps in compiled code; "numpy" and "compiled" pin a tier
    cache_dir : where compiled kernels are kept; None is the user's cache folder
    telemetry_dir : where events of runs are appended; None is the user's cache folder, "off" none
    disable_rules : rules of the optimizer, or families of them, that are not used, such as
        ("filter_before_sort", "projection_pushdown"); all are in docs/optimizer.md
    max_errors : a run in which functions with on_error="skip" raise more errors than this fails;
        None is any number
    verify : "sample" makes some rows of every pass again by the plan as written, without rewriting
        and compiled kernels, and compares the bytes before they go on (docs/verify.md); where they
        differ the epoch is begun again as written, with a warning, or ends with a
        VerificationError if rows of it are gone already. Functions that are not proven pure are
        never called twice: what follows them is not compared. "off" compares nothing
    verify_samples : samples of a pass, at most: its first rows, others drawn by the seed; each is
        an atom of at most 65,536 rows and about 8 MiB, or small ones together
    verify_dir : where a folder that shows a difference is written, WITH ROWS OF YOUR DATA in it;
        nothing is sent anywhere. None is the folder of telemetry, or the user's cache folder
    watchdog_s : a consumer that waits longer than this is told which unit it waits for
    connect_timeout_s : a scheduler that does not answer within so many seconds is an error
    worker_wait_s : a cluster that has had no worker for so many seconds is an error
    """

    executor: str = "auto"
    num_workers: int | Auto = "auto"
    resources: Mapping[str, float] | tuple[tuple[str, float], ...] | None = None
    memory_limit: int | str = "auto"
    target_partition_bytes: int | str = "auto"
    prefetch: int | Auto = "auto"
    deterministic: bool = True
    seed: int = 0
    kernels: str = "auto"
    optimize: bool = True
    disable_rules: Sequence[str] = ()
    cache_dir: str | None = None
    telemetry_dir: str | None = None
    max_errors: int | None = None
    verify: str = "off"
    verify_samples: int = 3
    verify_dir: str | None = None
    watchdog_s: float = 60.0
    connect_timeout_s: float = 10.0
    worker_wait_s: float = 60.0
    scheduler: Any = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        _one_of("executor", self.executor, EXECUTORS)
        _one_of("kernels", self.kernels, KERNELS)
        _one_of("verify", self.verify, VERIFY)
        for name in ("memory_limit", "target_partition_bytes"):
            if getattr(self, name) != AUTOTUNE:
                object.__setattr__(self, name, parse_bytes(getattr(self, name), name))
        _count("num_workers", self.num_workers, least=1)
        _count("prefetch", self.prefetch, least=0)
        object.__setattr__(self, "resources", _offered("resources", self.resources))
        _most("max_errors", self.max_errors)
        _some("verify_samples", self.verify_samples)
        _is("seed", self.seed, (int,), "an integer")
        for name in ("watchdog_s", "connect_timeout_s", "worker_wait_s"):
            _seconds(name, getattr(self, name))
        if not _a_scheduler(self.scheduler):
            wanted = "an address such as 'tcp://10.0.0.1:8786', a distributed.Client or a cluster"
            raise _unfit("scheduler", self.scheduler, wanted)
        self._here()
        for name in ("deterministic", "optimize"):
            _is(name, getattr(self, name), (bool,), "True or False")
        if not self.deterministic:
            raise PlanError(
                "deterministic=False has no meaning yet",
                why="order is always kept in this version: saved states rest on it",
                try_="leave deterministic out",
            )
        object.__setattr__(self, "disable_rules", _names("disable_rules", self.disable_rules))
        for name in ("cache_dir", "telemetry_dir", "verify_dir"):
            _folder(name, getattr(self, name))

    def _here(self) -> None:
        if self.resources and self.executor == "distributed":
            raise PlanError(
                "resources= are those of this host, and the run is on a cluster",
                why="each worker of a cluster says itself what it has",
                try_='dask worker ADDRESS --resources "GPU=1", and leave resources out',
            )

    def __getstate__(self) -> dict[str, Any]:
        """What another process can use: of a client or cluster its address, if it has one there."""
        return {**self.__dict__, "scheduler": address_of(self.scheduler)}

    def merged(self, options: dict[str, Any]) -> Settings:
        """A copy with some options changed; an unknown option is a PlanError that lists them.

        A scheduler without an executor chooses "distributed".
        """
        known = [f.name for f in dataclasses.fields(self)]
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise PlanError(
                f"with_options has no option {unknown[0]!r}",
                why="known options: " + ", ".join(known),
                try_=_nearest(unknown[0], known),
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
    """True for an address, a client, or a cluster object, of whichever library."""
    if isinstance(value, str):
        return bool(value)
    return value is None or hasattr(value, "scheduler_address") or hasattr(value, "scheduler")


def address_of(scheduler: Any) -> str | None:
    """The address of a scheduler that another process could reach, if it is known."""
    if isinstance(scheduler, str):
        return scheduler
    found = getattr(scheduler, "scheduler_address", None)
    found = found or getattr(getattr(scheduler, "scheduler", None), "address", None)
    return found if isinstance(found, str) and not found.startswith("inproc") else None


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else "one of those"


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        text = value.lower() if isinstance(value, str) else ""
        near = difflib.get_close_matches(text, known, n=1, cutoff=0.5)
        wanted = near[0] if near else known[0]
        raise _unfit(name, value, f"one of {', '.join(known)}", f"{name}={wanted!r}")


def _count(name: str, value: object, least: int) -> None:
    if value == AUTOTUNE:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _unfit(name, value, f"an integer of at least {least} or 'auto'", f"{name}='auto'")


def _offered(name: str, value: Any) -> tuple[tuple[str, float], ...]:
    """Pairs of a resource and how much of it there is; GPUs by the name that stages know."""
    pairs = tuple(value.items()) if isinstance(value, Mapping) else value
    if value is None:
        return ()
    if not isinstance(pairs, tuple) or not all(map(_amount, pairs)):
        wanted = "a dict from names to positive numbers, processors left out"
        raise _unfit(name, value, wanted, f'{name}={{"GPU": 1}}')
    return tuple(sorted(("gpu" if k.upper() == "GPU" else k, float(n)) for k, n in pairs))


def _amount(pair: Any) -> bool:
    """True for the name of a resource, which processors are not, and a positive number."""
    if not isinstance(pair, tuple) or len(pair) != 2 or isinstance(pair[1], bool):
        return False
    named = isinstance(pair[0], str) and pair[0] and pair[0].upper() != "CPU"
    return bool(named) and isinstance(pair[1], int | float) and 0 < pair[1] < math.inf


def _most(name: str, value: object) -> None:
    known = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if value is not None and not known:
        raise _unfit(name, value, "an integer of at least 0, or None", f"{name}=None")


def _some(name: str, value: Any) -> None:
    _is(name, value, (int,), "an integer of at least 1")
    if value < 1:
        raise _unfit(name, value, "an integer of at least 1")


def _seconds(name: str, value: Any) -> None:
    _is(name, value, (int, float), "positive seconds")
    if not value > 0:
        raise _unfit(name, value, "positive seconds")


def _names(name: str, value: Any) -> tuple[str, ...]:
    listed = isinstance(value, list | tuple | set | frozenset)
    if not listed or not all(isinstance(each, str) for each in value):
        one = value if isinstance(value, str) and value else "filter_before_sort"
        raise _unfit(name, value, "a list or tuple of names", f"{name}=({one!r},)")
    return tuple(sorted(set(value)))


def _folder(name: str, value: object) -> None:
    wanted = "the name of a folder, or None"
    _is(name, value, (str, NoneType), wanted)
    if isinstance(value, str) and "\0" in value:
        raise _unfit(name, value, wanted, f"{name} without a null character")


def _is(name: str, value: object, kinds: tuple[type, ...], wanted: str) -> None:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise _unfit(name, value, wanted)


def _unfit(name: str, value: object, wanted: str, try_: str = "") -> PlanError:
    return PlanError(
        f"{name} must be {wanted}, got {value!r}",
        why=f"it is of type {type(value).__name__}" if not try_ else "no other value has a meaning",
        try_=try_ or f"leave {name} out to get what is usual",
    )
