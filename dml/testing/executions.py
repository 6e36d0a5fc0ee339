"""A pipeline can be run in every possible way: plans, drivers, partitions, tiers, policies.

The output must be the same in all of them. ``RunWay`` is one choice of all options that must not
affect the output; ``random_way`` draws such a choice.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, Unpack

from dml.api.session import Nesting
from dml.cache.elements.element_cache import Keeping
from dml.cache.lookup.reuse_report import reuses_entries
from dml.cache.parts.entry import EntryName, entry_of
from dml.cache.rows.run_store import Storing
from dml.cache.store.open_stores import LocalPlace, Where
from dml.cluster.cluster_run import ClusterRun
from dml.errors import DmlError
from dml.exec.delivery.iterator import Elements
from dml.exec.delivery.meter import Tallies
from dml.exec.delivery.tables import Unaccounted
from dml.exec.drivers.processes import Processes
from dml.exec.drivers.sync import Sync
from dml.exec.drivers.threads import Threads
from dml.exec.memory.memory_shares import demands_of, divided
from dml.exec.memory.spill import DiskSpill
from dml.exec.scheduler.baseline_policies import FUSED, POLICIES, policy_of
from dml.exec.slicing.slice_sizes import Cutting
from dml.exec.streams.stream import Streaming
from dml.exec.tasks.job import Job
from dml.exec.tasks.skipped_rows import Allowance
from dml.exec.tasks.slices import Options, PartitionFeed, Tasks
from dml.expr.facts import FilterOrder, Rows
from dml.expr.flow import CHUNK, At, nothing_stored
from dml.expr.node import Node
from dml.kernels.compiled.tier_choice import KernelTiers
from dml.ops.row.segment import Segment
from dml.optimize.fingerprints import asked_names, kept_name, unnamed
from dml.optimize.phases import optimize
from dml.optimize.rules.families import NAMED
from dml.optimize.search.arrangement_space import cut, must_begin
from dml.optimize.search.filter_order import tried_as
from dml.physical.operators import RunChoices
from dml.physical.plan import Plan
from dml.settings import Settings
from dml.testing.fuzz import FuzzPolicy, FuzzTuning

MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class RunWay:
    """The way to run a pipeline: none of these options may change the output.

    ``target_bytes`` is the size of a partition, ``budget`` the bytes of one stream operator before
    it spills, ``tried`` the seed of the evaluation order of filter parts (None: as written),
    ``fuzz`` the seed of a ``FuzzPolicy``, which schedules at random and injects faults (None:
    ``policy`` schedules), ``kept_bytes`` the limit of caches, with entries of earlier runs.
    ``workers`` is the number of processes, used instead of threads; ``scheduler`` is a Dask
    cluster, named as in the settings. Rules named in ``without`` are disabled. ``cuts`` is the seed
    of the stage boundaries (None: only the required ones). ``stores`` names the store of rows,
    with those of earlier runs ("": none); where ``filled`` is false, workers only read from it.
    ``near`` names the folder for local copies of the store ("": none), of at most ``near_bytes``.
    ``slices`` is the seed of the slice sizes (None: sizes follow the measured time). With ``free``,
    elements come in any order. Up to ``max_errors`` errors may each cost rows.
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


WRITTEN = RunWay(rewriting=False)
PLAIN = RunWay()


def random_way(draw: random.Random, *, compiled: float = 0.0) -> RunWay:
    """Draw a way to run; with probability ``compiled`` it uses compiled kernels."""
    kernels = "numpy"
    if draw.random() < compiled:
        block = draw.randint(0, 3)
        kernels = draw.choice(["compiled", f"swap-at-block-{block}", f"demote-at-block-{block}"])
    return RunWay(
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


def streaming(node: Node, way: RunWay, cache: Path, *, epoch: int = 0, seed: int = 0) -> Streaming:
    """Build the stream of the pipeline's plan with all options of ``way``.

    The folder ``cache`` has kernels in its subfolder ``kernels``, and stores under their names.
    """
    plan = optimize(node, seed, rewriting=way.rewriting, without=way.without).plan
    caches: list[Node] = [each for one in plan.all for each in one.stream if each.rows is Rows.KEPT]
    named = partial(kept_name, seed=seed, optimized=way.rewriting, without=way.without)
    names = {each: named(each) for each in caches}
    where = _where(way, cache)
    entries = {
        each: EntryName(where, name.hex(), {})
        for each, name in names.items()
        if where is not None and not each.keeps_in_memory
    }
    keep = Keeping(names, way.kept_bytes, entries=entries)
    store = nothing_stored if where is None else _storing(plan, where, seed, way.filled)
    at = At(
        *(epoch, seed, _tiers(cache / "kernels", way.kernels), {}, DiskSpill, way.budget),
        keep=keep,
        store=store,
        bounded=way.max_errors is not None,
    )
    return _streaming(plan, way, at, Allowance(way.max_errors))


def _where(way: RunWay, cache: Path) -> Where | None:
    """Return the store of rows and the place of its local copies; None without a store."""
    local = LocalPlace(str(cache / way.near), way.near_bytes) if way.near else None
    return Where(str(cache / way.stores), local=local) if way.stores else None


def _storing(plan: Plan, where: Where, seed: int, filled: bool) -> Storing:  # noqa: FBT001 - a field
    """Build the store for all stored steps that have a name, and for whole stages."""
    names: dict[Any, EntryName] = {}
    for each in plan.all:
        steps: list[Any] = [node for node in each.on_blocks if node.rows is Rows.STORED]
        tops = [node for node in each.stage.steps[-1:] if node not in steps]
        for node in (*steps, *tops):
            below = node.input if node in steps else node
            if not unnamed(below):
                named = _named(where, node, below, each.stage.source.unit_count, seed)
                if named.looks or node in steps:
                    key = node.digest, node.root
                    names[key] = dataclasses.replace(named, fills=filled)
    return Storing(names)


def _named(where: Where, node: Any, below: Node, units: int, seed: int) -> EntryName:
    """Return the entry name of the rows of ``below``; rows with ``reuse`` have no equivalents."""
    asked = asked_names(below, seed)
    named = EntryName(where, asked.names[-1], {})
    if node.reuse is not None:
        return named
    named, stored = dataclasses.replace(named, asked=asked), below is not node
    found = reuses_entries(entry_of(named), below.chain(), units, seed, asked=stored)
    return dataclasses.replace(named, looks=found)


def _streaming(plan: Plan, way: RunWay, at: At, allowance: Allowance) -> Streaming:
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
        choices=RunChoices(free=way.free, looks=at.store.looks),
    )


def _cuts(seed: int | None) -> Callable[[], int] | None:
    """Return a function that draws slice sizes in rows; None without a seed."""
    if seed is None:
        return None
    draw = random.Random(seed)  # noqa: S311 - not a secret
    return lambda: draw.choice([1, 2, 3, 7, 20, 1000])


def _any_order(draw: random.Random, node: Segment, _: bytes) -> FilterOrder:
    """Put filter parts in random order and random groups, if none of them can fail."""
    if not all(part.total for part in node.predicate):
        return FilterOrder()
    places = draw.sample(range(len(node.predicate)), len(node.predicate))
    groups: list[tuple[int, ...]] = []
    while places:
        size = draw.randint(1, len(places))
        groups.append(tuple(places[:size]))
        del places[:size]
    return FilterOrder(tuple(groups))


def _any_cuts(draw: random.Random, plan: Plan) -> list[int]:
    """Return the required starts of stages, and random further ones."""
    others = range(1, len(plan.on_blocks))
    drawn = draw.sample(others, draw.randint(0, len(others)))
    return sorted({*must_begin(plan), *drawn})


_TIERS: dict[Path, KernelTiers] = {}


def _tiers(folder: Path, mode: str) -> KernelTiers:
    """Return kernels in ``mode``; all modes of one folder share the loaded kernels."""
    tiers = KernelTiers(folder, mode)
    tiers.cache = _TIERS.setdefault(folder, tiers).cache
    return tiers


def _opened(
    way: RunWay,
    plan: Plan,
    tasks: Tasks,
    job: Job,
    tallies: Tallies,
    **options: Unpack[Options],
) -> PartitionFeed:
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
        tuning=None if way.fuzz is None else FuzzTuning(way.fuzz, job.names),
    )
    if way.scheduler is not None:
        return ClusterRun(Settings(scheduler=way.scheduler))(tasks, job, tallies, **options)
    if way.workers:
        return Processes().open(tasks, job, tallies, **options)
    driver = Threads() if way.threads else Sync()
    return driver.open(tasks, job.starts(tallies.mine), **options)


def _fuzzed(seed: int, least: int, most: int) -> FuzzPolicy:
    return FuzzPolicy(seed, least_slots=least, most_slots=most)


def elements(
    node: Node,
    way: RunWay,
    cache: Path,
    *,
    epoch: int = 0,
    seed: int = 0,
    state: dict[str, Any] | None = None,
) -> Elements:
    """Return the iterator that a user would get from a run in ``way`` from ``state``."""
    run = streaming(node, way, cache, epoch=epoch, seed=seed)
    made = Elements(run, epoch, Unaccounted(), ahead=way.prefetch)
    if state is not None:
        made.load_state_dict(state)
    return made


@dataclasses.dataclass(frozen=True)
class RunOutcome:
    """The delivered elements, with class and text of the error that ended the run ("": none)."""

    elements: list[dict[str, Any]]
    error: str = ""
    text: str = ""


def outcome(iterator: Iterator[dict[str, Any]]) -> RunOutcome:
    """Run to the end, or to the first error."""
    out: list[dict[str, Any]] = []
    try:
        out.extend(iterator)
    except DmlError as error:
        return RunOutcome(out, type(error).__name__, str(error))
    return RunOutcome(out)


def ids(node: Node, way: RunWay, cache: Path, *, epoch: int = 0, seed: int = 0) -> list[Any]:
    """Return the ids of all output rows as (hi, lo), in order."""
    flow = streaming(node, way, cache, epoch=epoch, seed=seed).flow(epoch, None)
    out: list[Any] = []
    try:
        while (block := flow.pull(CHUNK)) is not None:
            high, low = block.ids.arrays()
            out += zip(high.tolist(), low.tolist(), strict=True)
    finally:
        flow.close()
    return out
