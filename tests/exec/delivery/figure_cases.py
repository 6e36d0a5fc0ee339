"""The experiments of the streaming batch paper, as workloads of the virtual cluster.

Seconds, bytes and slots are those of the paper where it states them. Where it states only results,
they are chosen so that the ratios between stages are those of the text. No cost is added for what
other systems spend apart from scheduling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from dml.exec.scheduler.baseline_policies import Static, policy_of
from dml.exec.scheduler.messages import Event, Resources, Run, SliceDone, TaskFailed
from dml.exec.scheduler.policy import Demand, Policy, Seq
from dml.verify.simulate.virtual_cluster import ClusterTrace, TaskTruth, VirtualCluster

MB, GB = 10**6, 10**9
Slots = dict[str, float]
# What a partition costs beside its work: benchmarks/bench_scheduling.py, benchmarks/bench_dask.py.
EMBEDDED_S, DASK_S = 60e-6, 4e-3


@dataclass(frozen=True, eq=False)
class Work:
    """Stages over ``units`` units, what their tasks really do, and where."""

    stages: Sequence[Demand]
    truth: Sequence[TaskTruth | Callable[[Seq], TaskTruth]]
    slots: Slots
    units: int

    def run(
        self, policy: str, limit_bytes: int, *, ordered: bool = False, seed: int = 0
    ) -> ClusterTrace:
        """Run under the policy of that name."""
        return self.under(policy_of(policy), limit_bytes, ordered=ordered, seed=seed)

    def under(
        self, policy: Policy, limit_bytes: int, *, ordered: bool = False, seed: int = 0
    ) -> ClusterTrace:
        """Run under ``policy``."""
        made = (self.stages, self.truth, self.slots, limit_bytes, policy)
        return VirtualCluster(*made, ordered=ordered, seed=seed, watched=False).run(self.units)

    def static(
        self, quotas: Sequence[int], limit_bytes: int, *, ordered: bool = False
    ) -> ClusterTrace:
        """Run with so many slots for each stage."""
        stages = [
            replace(stage, max_parallel=quota)
            for stage, quota in zip(self.stages, quotas, strict=True)
        ]
        return replace(self, stages=stages).under(Static(), limit_bytes, ordered=ordered)


def cpu(name: str, nbytes: int, seconds: float) -> Demand:
    return Demand(name, output_bytes=nbytes, seconds=seconds)


def gpu(name: str, nbytes: int, seconds: float) -> Demand:
    return Demand(name, (("gpu", 1.0),), nbytes, seconds=seconds)


# ------------------------------------------------------------------------------- 5.3.1 and Figure 9

MEMORY_BOUND_S = 150.0  # (160 * 5 s + 800 * 0.5 s) / 8 processors


def memory_aware(part_mb: int = 100, *, noise: float = 0.0) -> Work:
    """160 loads of 500 MB in 5 s, 0.5 s for 100 MB to transform on 8 CPUs and infer on 4 GPUs.

    Partitions of 500 MB are the ablation without streaming repartition.
    """
    slices, part = 500 // part_mb, part_mb * MB
    load_s, rest_s = 5.0 / slices, part_mb / 200
    stages = [cpu("load", part, load_s), cpu("transform", part, rest_s), gpu("infer", 0, rest_s)]
    truth = [TaskTruth(load_s, part, slices, noise=noise), TaskTruth(rest_s, part, noise=noise)]
    slots = {"cpu": 8.0, "gpu": 4.0}
    return Work(stages, [*truth, TaskTruth(rest_s, noise=noise)], slots, 160)


def memory_aware_fused() -> Work:
    """The same in one stage: a processor and a GPU for 1 s to load and 1 s for the rest."""
    stage = Demand("all", (("cpu", 1.0), ("gpu", 1.0)), 100 * MB)
    return Work([stage], [TaskTruth(2.0, 0, 5)], {"cpu": 8.0, "gpu": 4.0}, 160)


FIFTIETH_S = (0.1, 0.05, 0.05)  # of a load, a transformation, an inference
FIFTIETH_BOUND_S = 3.0  # 160 loads and transformations on 8 processors


def fiftieth(*, whole: bool = False) -> Work:
    """160 tasks of the same in 3 s; inference needs a hundredth of a processor, at four places.

    ``whole`` makes one stage of all three.
    """
    every = (("cpu", 1.0),)
    if whole:
        fused = Demand("all", every, 8, max_parallel=4)
        return Work([fused], [TaskTruth(sum(FIFTIETH_S), 8)], {"cpu": 8.0}, 160)
    stages = [Demand("load", every, 8), Demand("transform", every, 8)]
    stages.append(Demand("infer", (("cpu", 0.01),), 8, max_parallel=4))
    return Work(stages, [TaskTruth(each, 8) for each in FIFTIETH_S], {"cpu": 8.0}, 160)


# ---------------------------------------------------------------------------------- Figures 6a, 6b

IMAGE_LIMIT = 8 * GB


@cache
def images(count: int = 400) -> Work:
    """8 CPUs and a GPU that makes 4 images/s; reading takes a second, writing half of one."""
    stages = [cpu("read", 10 * MB, 1.0), gpu("generate", 10 * MB, 0.25), cpu("write", 0, 0.5)]
    truth = [TaskTruth(1.0, 10 * MB), TaskTruth(0.25, 10 * MB), TaskTruth(0.5)]
    return Work(stages, truth, {"cpu": 8.0, "gpu": 1.0}, count)


def images_fused(count: int = 400) -> Work:
    """One task that does all of it."""
    stage = Demand("all", (("cpu", 1.0), ("gpu", 1.0)), 20 * MB)
    return Work([stage], [TaskTruth(1.75, 0)], {"cpu": 8.0, "gpu": 1.0}, count)


@cache
def videos(clips: int = 400, *, drift: bool = True) -> Work:
    """Decode and encode on 8 CPUs, generate on a GPU; decoding takes from 4 s to 12 s, rising."""

    def decoded(seq: Seq) -> TaskTruth:
        return TaskTruth(4.0 + 8.0 * seq[0] / clips if drift else 4.0, 50 * MB)

    stages = [cpu("decode", 50 * MB, 4.0), gpu("generate", 100 * MB, 0.8), cpu("encode", 0, 4.0)]
    rest = TaskTruth(0.8, 100 * MB), TaskTruth(4.0)
    return Work(stages, [decoded, *rest], {"cpu": 8.0, "gpu": 1.0}, clips)


def quotas(cpus: int) -> Iterable[tuple[int, int, int]]:
    """Every way to give two stages processors of their own, with one slot of a GPU between."""
    return [(a, 1, b) for a in range(1, cpus) for b in range(1, cpus - a + 1)]


@cache
def best_static(work: Work, limit_bytes: int) -> tuple[tuple[int, int, int], ClusterTrace]:
    """The fastest of all static ways, found by trying them; the most even of equal ones."""
    found = [(each, work.static(each, limit_bytes)) for each in quotas(int(work.slots["cpu"]))]
    return min(found, key=lambda pair: (pair[1].seconds, abs(pair[0][0] - pair[0][2])))


def first_output_s(trace: ClusterTrace, last: int = 2, seconds: float = 0.5) -> float:
    """When the first result was there."""
    return min(at for at, run in trace.launches if run.stage == last) + seconds


# ------------------------------------------------------------------------------- A.1 and Figure 10


def fractional(units: int) -> Work:
    """A stage of 1 s feeds one of 2 s on 8 processors."""
    stages = [cpu("first", 1, 1.0), cpu("second", 1, 2.0)]
    return Work(stages, [TaskTruth(1.0, 1), TaskTruth(2.0, 1)], {"cpu": 8.0}, units)


ROWS = 8192  # of 1 MB


def sizes(rows: int, beside_s: float) -> Work:
    """8192 rows of 1 MB, 10 ms each in two stages, in partitions of ``rows``; what each costs.

    Partitions take a fifth more or less, as real ones do: equal ones are balanced at any size.
    """
    seconds, nbytes = 0.01 * rows + beside_s, rows * MB
    stages = [cpu("first", nbytes, seconds), cpu("second", 0, seconds)]
    truth = [TaskTruth(seconds, nbytes, noise=0.2), TaskTruth(seconds, noise=0.2)]
    return Work(stages, truth, {"cpu": 8.0}, ROWS // rows)


def rows_per_s(rows: int, beside_s: float) -> float:
    """Throughput with partitions of ``rows`` rows, the mean of three runs."""
    work = sizes(rows, beside_s)
    runs = [work.run("adaptive", 1000 * GB, seed=seed).seconds for seed in range(3)]
    return ROWS * len(runs) / sum(runs)


@cache
def plateau(beside_s: float) -> dict[int, float]:
    """Throughput by the size of partitions, as part of the best."""
    found = {1 << n: rows_per_s(1 << n, beside_s) for n in range(14)}
    best = max(found.values())
    return {rows: each / best for rows, each in found.items()}


# ------------------------------------------------------------------------------ Figures 6d and 6c


class Dispatched(VirtualCluster):
    """Every slice passes one dispatcher first, which takes its time for each."""

    dispatch_s = DASK_S
    free_at = 0.0

    def _at(self, delay_s: float, event: Event) -> None:
        if isinstance(event, SliceDone):
            self.free_at = max(self.free_at, self.now) + self.dispatch_s
            delay_s += self.free_at - self.now
        super()._at(delay_s, event)


def scaled(nodes: int, parts: int = 3840) -> ClusterTrace:
    """Classify videos, 16 in a partition, on nodes of 6 CPUs and half a GPU."""
    stages = [cpu("decode", 64 * MB, 8.8), gpu("classify", 0, 0.69)]
    truth = [TaskTruth(8.8, 64 * MB), TaskTruth(0.69)]
    slots = {"cpu": 6.0 * nodes, "gpu": nodes / 2}
    made = (stages, truth, slots, 4 * GB * nodes)
    return Dispatched(*made, ordered=False, watched=False).run(parts)


SMALL, LARGE = {"cpu": 4.0, "gpu": 1.0}, {"cpu": 12.0, "gpu": 1.0}
DECODE_S, PART = 4.8, 64 * MB


class Hosts(VirtualCluster):
    """A node of 4 CPUs and a GPU, and one of 8 CPUs, which goes and comes back.

    What ran on it is lost with it: those slices start again where there is room.
    """

    gone_at, back_at = 600.0, 660.0

    def outage(self) -> None:
        """Let the large node go and come back, at its times."""
        self.where: dict[Seq, str] = {}
        self.lost: list[tuple[Seq, float]] = []
        self.done: list[tuple[float, int]] = []
        self._at(self.gone_at, Resources(SMALL, 64 * GB))
        self._at(self.back_at, Resources(LARGE, 64 * GB))

    def step(self, event: Event) -> None:
        """One event; the end of a slice gives its place back, the loss of a node its slices up."""
        gone = isinstance(event, Resources) and event.slots == SMALL
        if isinstance(event, SliceDone):
            del self.where[event.seq]
            self.done.append((self.now, len(event.seq) - 1))
        super().step(event)
        if gone:
            self._lose([seq for seq, node in self.where.items() if node == "large"])

    def _lose(self, seqs: Sequence[Seq]) -> None:
        started = {run.seq: at for run, at in self.core.running()}
        self.lost = [(seq, started[seq]) for seq in seqs]
        kept = [item for item in self._events if getattr(item[2], "seq", None) not in seqs]
        self._events[:] = sorted(kept)
        for seq in seqs:
            del self.where[seq]
            self.step(TaskFailed(seq, lost=True))

    def _launch(self, run: Run) -> None:
        small = sum(node == "small" and len(seq) == 1 for seq, node in self.where.items())
        on_small = run.stage == 1 or small < SMALL["cpu"]
        self.where[run.seq] = "small" if on_small else "large"
        super()._launch(run)


def outage(parts: int = 3000) -> Hosts:
    """Classify videos on both nodes while one is away for a minute."""
    stages = [cpu("decode", PART, DECODE_S), gpu("classify", 0, 0.346)]
    truth = [TaskTruth(DECODE_S, PART), TaskTruth(0.346)]
    cluster = Hosts(stages, truth, LARGE, 64 * GB, ordered=False, watched=False)
    cluster.outage()
    cluster.run(parts)
    return cluster
