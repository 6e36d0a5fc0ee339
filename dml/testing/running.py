"""This file runs a pipeline in every way there is: plans, drivers, partitions, tiers, policies.

What comes out must be the same in all of them. ``Way`` is one choice of everything that may not be
seen; ``random_way`` draws one.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, Unpack

from dml.errors import DmlError
from dml.exec.backends.processes import Processes
from dml.exec.backends.sync import Sync
from dml.exec.backends.threads import Threads
from dml.exec.baselines import FUSED, POLICIES, policy_of
from dml.exec.budget import demands_of, divided
from dml.exec.deliver import Elements
from dml.exec.job import Job
from dml.exec.kept import Keeping
from dml.exec.losses import Allowance
from dml.exec.meter import Tallies
from dml.exec.pace import Cutting
from dml.exec.reuse import looks
from dml.exec.slices import Options, Tasks
from dml.exec.spill import DiskSpill
from dml.exec.store.opened import Local, Where
from dml.exec.stored import Named, Storing, entry_of
from dml.exec.stream import Feed, Streaming
from dml.exec.tables import Unaccounted
from dml.expr.facts import Rows, Tried
from dml.expr.flow import CHUNK, At, nothing_stored
from dml.expr.node import Node
from dml.expr.ops.segment import Segment
from dml.kernels.fuse import Tiers
from dml.optimize.allowed import cut, must_begin
from dml.optimize.guards import tried_as
from dml.optimize.names import asked_names, kept_name, unnamed
from dml.optimize.phases import NAMED, optimize
from dml.plan import Plan
from dml.session import Nesting
from dml.settings import Settings
from dml.testing.fuzz import FuzzPolicy

MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Way:
    """How to run: nothing in here may change what comes out.

    ``target_bytes`` is that of a partition, ``budget`` what one stream operator may hold before it
    spills, ``tried`` the seed of the order in which parts of filters are tried (None: as written),
    ``fuzz`` that of a policy that schedules at random, drops and loses (None: the usual
    policy), ``kept_bytes`` what caches may keep, with what earlier runs left there. ``workers`` is
    the number of processes, instead of threads; ``scheduler`` is a Dask cluster, named as in the
    settings. Rules named in ``without`` are not used. ``cuts`` is the seed of where stages end
    (None: where they must). ``policy`` schedules where ``fuzz`` does not. ``stores`` names
    the store that rows are put into, where earlier runs have left theirs ("": none); where it is
    not ``filled``, workers only take what is there. ``near`` names the folder for copies of it
    ("": none), of at most ``near_bytes``. ``slices`` is the seed of where slices are cut (None: by
    the time that they take). ``free`` leaves the order of elements free.
    A run may lose rows to ``max_errors`` errors.
    """

    rewriting: bool = True
    threads: int = 0  # 0: everything in the caller's thread
    target_bytes: int = MIB
    budget: int = 64 * MIB
    kernels: str = "numpy"
    fuzz: int | None = None
    prefetch: int = 0
    limit_bytes: int = 256 * MIB
    tried: int | None = None
    workers: int = 0
    scheduler: Any = None
    kept_bytes: int = MIB
    without: frozenset[str] = frozenset()
    cuts: int | None = None
    policy: str = "adaptive"
    stores: str = ""
    filled: bool = True
    near: str = ""
    near_bytes: int = MIB
    slices: int | None = None
    free: bool = False
    max_errors: int | None = None


WRITTEN = Way(rewriting=False)
PLAIN = Way()


def random_way(draw: random.Random, *, compiled: float = 0.0) -> Way:
    """Any way to run; with the chance ``compiled`` one with compiled kernels."""
    kernels = "numpy"
    if draw.random() < compiled:
        block = draw.randint(0, 3)
        kernels = draw.choice(["compiled", f"swap-at-block-{block}", f"demote-at-block-{block}"])
    return Way(
        rewriting=draw.random() < 0.8,
        threads=draw.choice([0, 1, 2, 4]),
        target_bytes=draw.choice([1, 300, 4096, MIB]),
        budget=draw.choice([1, 2000, MIB]),
        kernels=kernels,
        fuzz=draw.choice([None, draw.randrange(1 << 30)]),
        tried=draw.choice([None, draw.randrange(1 << 30)]),
        prefetch=draw.choice([0, 0, 1, 3]),
        kept_bytes=draw.choice([0, 3000, 6000, 20_000, MIB]),
        without=frozenset(draw.sample(sorted(NAMED), draw.choice([0, 0, 0, 1, 3, 10]))),
        cuts=draw.choice([None, None, draw.randrange(1 << 30)]),
        policy=draw.choice([*POLICIES]),
        stores=draw.choice(["", "store", "store"]),
        slices=draw.choice([None, draw.randrange(1 << 30)]),
    )


def streaming(node: Node, way: Way, cache: Path, *, epoch: int = 0, seed: int = 0) -> Streaming:
    """The pipeline's plan with everything that ``way`` chose.

    What is kept lies in the folder ``cache``: kernels in its ``kernels``, stores by their names.
    """
    plan = optimize(node, seed, rewriting=way.rewriting, without=way.without).plan
    caches: list[Node] = [each for one in plan.all for each in one.stream if each.rows is Rows.KEPT]
    named = partial(kept_name, seed=seed, optimized=way.rewriting, without=way.without)
    names = {each: named(each) for each in caches}
    where = _where(way, cache)
    keep = Keeping(names, way.kept_bytes, where=where)
    store = nothing_stored if where is None else _storing(plan, where, seed, way.filled)
    at = At(
        *(epoch, seed, _tiers(cache / "kernels", way.kernels), {}, DiskSpill, way.budget),
        keep=keep,
        store=store,
        bounded=way.max_errors is not None,
    )
    return _streaming(plan, way, at, Allowance(way.max_errors))


def _where(way: Way, cache: Path) -> Where | None:
    """Where rows are stored, and copied to."""
    local = Local(str(cache / way.near), way.near_bytes) if way.near else None
    return Where(str(cache / way.stores), local=local) if way.stores else None


def _storing(plan: Plan, where: Where, seed: int, filled: bool) -> Storing:  # noqa: FBT001 - a field
    """The store for all stored steps that have a name, and for whole stages."""
    names: dict[Any, Named] = {}
    for each in plan.all:
        steps: list[Any] = [node for node in each.on_blocks if node.rows is Rows.STORED]
        tops = [node for node in each.stage.steps[-1:] if node not in steps]
        for node in (*steps, *tops):
            below = node.input if node in steps else node
            if not unnamed(below):
                named = _named(where, node, below, each.stage.source.unit_count, seed)
                if named.looks or node in steps:
                    key = node.digest, getattr(node, "root", "")
                    names[key] = dataclasses.replace(named, fills=filled)
    return Storing(names)


def _named(where: Where, node: Any, below: Node, units: int, seed: int) -> Named:
    """Where the rows of ``below`` are kept, for ``node``; draws of rows are nobody else's."""
    asked = asked_names(below, seed)
    named = Named(where, asked.names[-1], {})
    if getattr(node, "reuse", None) is not None:
        return named
    named, stored = dataclasses.replace(named, asked=asked), below is not node
    found = looks(entry_of(named), below.chain(), units, seed, asked=stored)
    return dataclasses.replace(named, looks=found)


def _streaming(plan: Plan, way: Way, at: At, allowance: Allowance) -> Streaming:
    if way.tried is not None:
        draw = random.Random(way.tried)  # noqa: S311 - not a secret
        plan = tried_as(plan, partial(_any_order, draw))
    if way.cuts is not None:
        plan = cut(plan, _any_cuts(random.Random(way.cuts), plan))  # noqa: S311 - not a secret
    if way.policy == FUSED:
        plan = cut(plan, ())
    beside = tuple(
        tuple(_streaming(each, way, at, allowance) for each in plans) for plans in plan.beside
    )
    opened = partial(_opened, way, plan)
    inner = Settings(executor="sync", seed=at.seed, optimize=way.rewriting, kernels="numpy")
    return Streaming(
        *(plan, at, opened, way.target_bytes, Tallies()),
        beside=beside,
        allowance=allowance,
        nested=Nesting(inner, allowance, max(1, way.threads)),
        cutting=Cutting(max(1, way.threads, way.workers), way.target_bytes, _cuts(way.slices)),
        in_order=not way.free,
    )


def _cuts(seed: int | None) -> Callable[[], int] | None:
    """Rows of slices, any number of them."""
    if seed is None:
        return None
    draw = random.Random(seed)  # noqa: S311 - not a secret
    return lambda: draw.choice([1, 2, 3, 7, 20, 1000])


def _any_order(draw: random.Random, node: Segment, _: bytes) -> Tried:
    """Parts that cannot fail in any order, in groups of any size."""
    if not all(part.total for part in node.predicate):
        return Tried()
    places = draw.sample(range(len(node.predicate)), len(node.predicate))
    groups: list[tuple[int, ...]] = []
    while places:
        size = draw.randint(1, len(places))
        groups.append(tuple(places[:size]))
        del places[:size]
    return Tried(tuple(groups))


def _any_cuts(draw: random.Random, plan: Plan) -> list[int]:
    """Where stages must begin, and in any other places."""
    others = range(1, len(plan.on_blocks))
    drawn = draw.sample(others, draw.randint(0, len(others)))
    return sorted({*must_begin(plan), *drawn})


_TIERS: dict[Path, Tiers] = {}


def _tiers(folder: Path, mode: str) -> Tiers:
    """Kernels in ``mode``; all modes of one folder share what has been loaded."""
    tiers = Tiers(folder, mode)
    tiers.cache = _TIERS.setdefault(folder, tiers).cache
    return tiers


def _opened(
    way: Way,
    plan: Plan,
    tasks: Tasks,
    job: Job,
    tallies: Tallies,
    **options: Unpack[Options],
) -> Feed:
    asked = (node.needs for node in plan.operators if node.inputs)
    least = max((ceil(needs.num_cpus) for needs in asked), default=1)
    slots = max(least, way.threads, way.workers)
    demands = demands_of(plan, divided(plan, way.limit_bytes, slots, way.target_bytes))
    options |= Options(
        stages=options.get("stages", demands[: 1 + len(job.links)]),
        slots=slots,
        limit_bytes=way.limit_bytes,
        policy=policy_of(way.policy) if way.fuzz is None else _fuzzed(way.fuzz, least, slots),
        watchdog_s=60.0,
    )
    if way.scheduler is not None:
        # loads Dask, which most laws do without
        from dml.exec.backends.dask import Distributed  # noqa: PLC0415

        return Distributed(Settings(scheduler=way.scheduler)).open(tasks, job, tallies, **options)
    if way.workers:
        return Processes().open(tasks, job, tallies, **options)
    driver = Threads() if way.threads else Sync()
    return driver.open(tasks, job.starts(tallies.mine), **options)


def _fuzzed(seed: int, least: int, most: int) -> FuzzPolicy:
    return FuzzPolicy(seed, least_slots=least, most_slots=most)


def elements(
    node: Node,
    way: Way,
    cache: Path,
    *,
    epoch: int = 0,
    seed: int = 0,
    state: dict[str, Any] | None = None,
) -> Elements:
    """The iterator that a user would have, run in this way, from ``state`` on."""
    run = streaming(node, way, cache, epoch=epoch, seed=seed)
    made = Elements(run, epoch, Unaccounted(), ahead=way.prefetch)
    if state is not None:
        made.load_state_dict(state)
    return made


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was delivered, and the kind of error that ended it ("" for none)."""

    elements: list[dict[str, Any]]
    error: str = ""
    text: str = ""


def outcome(iterator: Iterator[dict[str, Any]]) -> Outcome:
    """Run to the end, or to the error."""
    out: list[dict[str, Any]] = []
    try:
        out.extend(iterator)
    except DmlError as error:
        return Outcome(out, type(error).__name__, str(error))
    return Outcome(out)


def ids(node: Node, way: Way, cache: Path, *, epoch: int = 0, seed: int = 0) -> list[Any]:
    """The ids of all rows that come out, (hi, lo), in order."""
    flow = streaming(node, way, cache, epoch=epoch, seed=seed).flow(epoch, None)
    out: list[Any] = []
    try:
        while (block := flow.pull(CHUNK)) is not None:
            high, low = block.ids.arrays()
            out += zip(high.tolist(), low.tolist(), strict=True)
    finally:
        flow.close()
    return out
