"""Compile a plan to a static Dask graph: one task for each stage and group of consecutive units.

A key is (layer, first unit, end, epoch); the layer's name holds the operator's fingerprint and a
nonce, so that no two graphs share a key. The resources of a stage are an annotation of its layer.
The graph of a ``DelayedPart`` keeps annotations through ``dask.optimize``, ``persist`` and
submission: its optimiser only drops unneeded tasks (other optimisers drop annotations: dask#7036).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import pyarrow as pa
from dask._task_spec import DataNode, GraphNode, Task, TaskRef
from dask.base import get_annotations, persist, replace_name_in_key
from dask.core import flatten
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import default_client

from dml.cluster.cluster import workers_of
from dml.cluster.graph import program as work
from dml.cluster.graph.program import GraphProgram, Recipe, Turn, linked
from dml.errors import PlanError
from dml.exec.streams.stream import unsettled
from dml.exec.tasks.partition import TaskList
from dml.exec.tasks.replay_check import impure
from dml.exec.tasks.unit_reader import Reading
from dml.expr.facts import ENDLESS, Needs, Rows
from dml.expr.node import Node
from dml.ops.cache.cache import FIRST
from dml.physical.plan import Plan

Key: TypeAlias = "tuple[Any, ...]"
Ref: TypeAlias = Any  # a TaskRef, which stands for the result of a task of the graph
# Default decoded bytes of the rows of one task: 200 ms of work or more, and
# small enough for a worker to hold several.
TASK_BYTES = 64 << 20
GPU = "GPU"


class DelayedPart(Delayed):
    """The rows of some consecutive units as one ``pyarrow.Table``; a ``dask.delayed`` value."""

    __slots__ = ()

    def _rebuild(self, dsk: Any, *, rename: Mapping[str, str] | None = None) -> DelayedPart:
        """Return this part over a graph ``dsk`` that Dask has optimised, computed or renamed."""
        new = rename or {}
        key = replace_name_in_key(self.key, new)
        if not isinstance(dsk, HighLevelGraph):
            old = ((_name(layer), made.annotations) for layer, made in self.dask.layers.items())
            dsk = _relayered(dsk, {new.get(name, name): each for name, each in old})
        return _part(key, dsk)

    @staticmethod
    def __dask_optimize__(dsk: HighLevelGraph, keys: Any, **_: Any) -> HighLevelGraph:
        """Return the tasks that ``keys`` need, without fusing tasks or dropping annotations."""
        return dsk.cull(set(flatten(keys)))


def _part(key: Key, graph: HighLevelGraph) -> DelayedPart:
    layer = next(layer for layer in graph.layers if _name(layer) == key[0])
    return DelayedPart(key, graph, None, layer)


def _name(layer: str) -> str:
    """Return the first element of the keys in a layer: the layer's name up to the first dot."""
    return layer.partition(".")[0]


def layered(
    tasks: Mapping[Any, Any],
    annotations: Mapping[str, Mapping[str, Any] | None],
    suffix: str = "",
) -> HighLevelGraph:
    """Return a graph whose layers are named by the first element of keys, with ``suffix``."""
    layers: dict[str, dict[Key, Any]] = {}
    below: dict[str, set[str]] = {}
    for key, task in tasks.items():
        if isinstance(key, tuple) and key[0] in annotations:
            layers.setdefault(key[0], {})[key] = task
            needed = task.dependencies if isinstance(task, GraphNode) else ()
            below.setdefault(key[0], set()).update(each[0] for each in needed)
    made = {
        name + suffix: MaterializedLayer(layer, annotations=annotations[name])
        for name, layer in layers.items()
    }
    inner = {name: (below[name] - {name}) & layers.keys() for name in layers}
    return HighLevelGraph(
        made, {name + suffix: {each + suffix for each in found} for name, found in inner.items()}
    )


_relayered_from: WeakValueDictionary[tuple[int, str], HighLevelGraph] = WeakValueDictionary()


def _relayered(
    tasks: Mapping[Any, Any], annotations: Mapping[str, Mapping[str, Any] | None]
) -> HighLevelGraph:
    """Return the graph of ``layered`` with new layer names, since Dask merges layers of one name.

    Parts that Dask rebuilds from one dict of tasks share one graph: many cost no more than one.
    """
    key = id(tasks), min(annotations)
    made = _relayered_from.get(key)
    if made is None:
        made = layered(tasks, annotations, f".{uuid.uuid4().hex[:8]}")
        made.made_of = tasks  # while ``tasks`` lives, no other object has its id
        _relayered_from[key] = made
    return made


class Graph:
    """The graph of ``recipe`` under construction; ``epochs`` are those of the stages, in order.

    Tasks read about ``task_bytes``, by default 64 MiB.
    """

    def __init__(self, recipe: Recipe, epoch: int, task_bytes: int | None) -> None:
        self.plan, self.start = recipe.plan, epoch
        _of_one_input(self.plan)
        _repeatable(self.plan)
        self.epochs = epochs_of(self.plan, epoch)
        self.nonce = uuid.uuid4().hex[:16]
        self.tasks: dict[Key, Any] = {}
        self.annotations: dict[str, dict[str, Any] | None] = {}
        job = recipe.job(self.epochs[0] if self.epochs else epoch)
        each = units_of_a_task(job.reading, task_bytes or TASK_BYTES)
        self.units = TaskList(0, job.reading.places, each, 0)
        self.program = self._program(GraphProgram.of(recipe))
        self.stages = self._stages()
        self.settled: Ref = None
        self.types: Ref = None
        if self.epochs and unsettled(job):
            self._settle()

    def layer(self, node: Node, needs: Sequence[Needs] = (), word: str = "") -> str:
        """Name a layer after ``node``, with the maximum of the resources in ``needs``."""
        title = f"{type(node).__name__.lower()}{word}"
        name = f"dml-{title}-{node.digest.hex()[:16]}{self.nonce}"
        # the user's annotations around this call apply as well
        given = dict(get_annotations())
        resources = {**given.get("resources", {}), **resources_of(needs)}
        given |= {"resources": resources} if resources else {}
        self.annotations[name] = given or None
        return name

    def add(self, layer: str, place: Key, function: Callable[..., Any], *arguments: Any) -> Ref:
        """Add a task with the key (``layer``, *place), and return a reference to the task.

        ``arguments`` may be references to other tasks.
        """
        key = (layer, *place)
        self.tasks[key] = Task(key, function, *arguments)
        return TaskRef(key)

    def _stages(self) -> list[str]:
        first = self.layer((self.plan.stage.source, *self.plan.stage.steps)[-1])
        links = (self.layer(link.steps[-1], [link.needs]) for link in self.plan.links)
        return [first, *links]

    def _program(self, program: GraphProgram) -> Ref:
        """Add the plan as a separate value: it is sent to each worker once, not with each task."""
        layer = self.layer(self.plan.stage.source, word="-program")
        key = layer, "whole"
        self.tasks[key] = DataNode(key, program)
        return TaskRef(key)

    def _settle(self) -> None:
        """Add a task that runs until all types are known, and a task that returns these types."""
        layer = self.layer(self.plan.on_blocks[-1], one_place(self.plan), "-settled")
        given = self.program, self.epochs[0], self.units
        self.settled = self.add(layer, ("rows",), work.settled, *given)
        self.types = self.add(layer, ("types",), itemgetter(0), self.settled)

    def values(self, epoch: int, number: int, *, rows: bool) -> Ref:
        """Add the tasks of all stages for task ``number``; return a reference to their output.

        The output is a table if ``rows``, else pieces.
        """
        task = self.units[number]
        place = task.start, task.stop, epoch
        if self.settled is not None and (epoch, number) == (self.epochs[0], 0):
            if rows:
                return self.add(self.stages[-1], place, work.first_rows, self.program, self.settled)
            return self.add(self.stages[-1], place, itemgetter(1), self.settled)
        found: Ref = task
        for stage, layer in enumerate(self.stages):
            last = layer is self.stages[-1]
            function = work.stage_rows if rows and last else work.run_stage
            found = self.add(layer, place, function, self.program, epoch, stage, found, self.types)
        return found

    def rows(self) -> Iterator[Ref]:
        """Yield references to the tables of all tasks, in order; one empty table without tasks."""
        count = len(self.units)
        turns = [(epoch, n, n == count - 1) for epoch in self.epochs for n in range(count)]
        if not turns:
            yield self.add(self.stages[-1], ("none",), work.table, self.program, [], self.types)
        elif not self.plan.stream:
            yield from (self.values(epoch, number, rows=True) for epoch, number, _ in turns)
        else:
            yield from self._chained(turns)

    def _chained(self, turns: Sequence[tuple[int, int, bool]]) -> Iterator[Ref]:
        """Yield references to tables of a chain of tasks; each resumes where the last stopped.

        A turn is the epoch, the number of the units, and whether they are the last of the epoch.
        """
        stream = self.plan.stream
        chain = self.layer(stream[-1], [node.needs for node in stream], "-chain")
        tables = self.layer(stream[-1])
        before: Ref = None
        for epoch, number, last in turns:
            task = self.units[number]
            place = task.start, task.stop, epoch
            values = self.values(epoch, number, rows=False)
            turn = Turn(self.start, epoch, last)
            before = self.add(chain, place, linked, self.program, turn, before, values, self.types)
            yield self.add(tables, place, attrgetter("rows"), before)

    def parts(self, found: Sequence[Ref]) -> list[DelayedPart]:
        """Return the tasks ``found`` as delayed values; each has the whole graph."""
        whole = layered(self.tasks, self.annotations)
        return [_part(each.key, whole) for each in found]


def units_of_a_task(reading: Reading, task_bytes: int) -> int:
    """Return the number of units whose rows take about ``task_bytes``, judged by two units."""
    if not reading.places:
        return 1
    sample = [reading.unit_at(place).nbytes for place in (0, reading.places // 2)]
    return max(1, task_bytes // max(1, *sample))


def resources_of(needs: Sequence[Needs]) -> dict[str, float]:
    """Return the Dask resources of a task that runs operators with ``needs``, without CPUs."""
    most: dict[str, float] = {}
    for each in needs:
        for name, amount in ((GPU, each.num_gpus), *each.resources):
            most[name] = max(amount, most.get(name, 0))
    return {name: amount for name, amount in most.items() if amount}


def _of_one_input(plan: Plan) -> None:
    """Raise PlanError if an operator of the plan merges several inputs."""
    for node, plans in zip(plan.stream, plan.beside, strict=True):
        if plans:
            verb = type(node).__name__.lower()
            raise PlanError(
                f"a static graph has one source, and {verb} merges several",
                at=node.label(),
                why="their rows meet in order, which needs one who waits for all of them",
                try_="with_options(scheduler=...) and iterate, or write_parquet(...) first",
            )


def _repeatable(plan: Plan) -> None:
    """Raise PlanError if a function must not be called twice, since Dask may rerun tasks."""
    if once := impure(plan.operators):
        raise PlanError(
            "a function declared pure=False cannot be a part of a static graph",
            at=once,
            why="Dask does tasks again whose worker is lost, and the graph may be computed twice",
            try_="iterate, or write_parquet(...) and read it; or leave pure=False out",
        )


def one_place(plan: Plan) -> list[Needs]:
    """Return the needs of all links, for one task; raise PlanError if they are incompatible."""
    needs = [link.needs for link in plan.links]
    if len({tuple(sorted(resources_of([each]))) for each in needs} - {()}) < 2:
        return needs
    raise PlanError(
        "functions of unknown result types need different resources",
        at=plan.on_blocks[-1].label(),
        why="in a graph the first rows run through all of them in one task, to know the types",
        try_="schema={...} for each of these functions, or iterate instead",
    )


def epochs_of(plan: Plan, epoch: int) -> list[int]:
    """Return the epochs in which stages run for ``epoch`` of the plan: several under ``repeat``.

    Raise PlanError if an operator of the stream cannot run in a static graph.
    """
    epochs = [epoch]
    for node in reversed(plan.stream):
        endless = node.passes == ENDLESS
        if endless or node.rows is Rows.ALL or node.waits:
            raise PlanError(
                f"{node.title()} cannot be a part of a static graph",
                at=node.label(),
                why="it has no last pass" if endless else "it needs all rows at one place",
                try_=".repeat(n)" if endless else "to_dask() before it, or iterate instead",
            )
        if node.rows is Rows.WOVEN:
            raise PlanError(
                f"{node.title()} cannot be a part of a static graph",
                at=node.label(),
                why="its function gives pipelines, and a graph is made before any is called",
                try_="to_dask() before it, or iterate instead",
            )
        if node.rows is Rows.KEPT:
            if len(epochs) > 1:
                raise PlanError(
                    f"several passes over {node.title()} cannot be a part of a static graph",
                    at=node.label(),
                    why="each reads the same rows, and a graph keeps none of them",
                    try_=".repeat(n) before .cache(), or iterate instead",
                )
            epochs = [FIRST]
        epochs = [each * node.passes + turn for each in epochs for turn in range(node.passes)]
    return epochs


def compiled(recipe: Recipe, epoch: int, task_bytes: int | None = None) -> list[DelayedPart]:
    """Return a ``DelayedPart`` for each group of units, in order; raise PlanError if impossible."""
    graph = Graph(recipe, epoch, task_bytes)
    return graph.parts(list(graph.rows()))


def data_frame(recipe: Recipe, epoch: int, task_bytes: int | None = None) -> Any:
    """Return a ``dask.dataframe`` of columns in their Arrow types, a partition for each part.

    Raise PlanError if pandas is missing, resources would be lost, or column types are unknown.
    """
    try:
        import dask.dataframe as frames  # noqa: PLC0415 - an extra, and half a second
    except ImportError as error:
        raise PlanError(
            "a data frame of Dask needs pandas", why=str(error), try_="pip install pandas"
        ) from None
    plan = recipe.plan
    if resources_of([node.needs for node in plan.operators]):
        raise PlanError(
            "a data frame of Dask would lose what its functions need",
            at=plan.operators[-1].label(),
            why="its optimiser drops annotations, so tasks would run on any worker (dask#7036)",
            try_="to_dask(), or dask.dataframe.from_delayed(...) of ds.persist()",
        )
    if not plan.schema.known:
        raise PlanError(
            "a data frame of Dask needs to know its columns",
            at=plan.operators[-1].label(),
            why="the types of a function are known only when it has run",
            try_="schema={...} where the function is given",
        )
    graph = Graph(recipe, epoch, task_bytes)
    layer = graph.layer(plan.operators[-1], word="-frame")
    found = [graph.add(layer, rows.key[1:], work.framed, rows) for rows in graph.rows()]
    meta = work.framed(pa.Table.from_batches([], plan.schema.to_arrow()))
    return frames.from_delayed(graph.parts(found), meta=meta, verify_meta=False)


def persisted(parts: Sequence[DelayedPart]) -> list[DelayedPart]:
    """Return the parts, which the current client computes in the background.

    Without a client, the parts are computed here. Raise PlanError if no worker has the resources of
    some task: Dask would wait for ever.
    """
    layers = parts[0].dask.layers.values()
    wanted = [dict((layer.annotations or {}).get("resources", {})) for layer in layers]
    for needed in wanted:
        _offered(needed)
    return list(persist(*parts))


def _offered(needed: Mapping[str, float]) -> None:
    try:
        client: Any = default_client()
    except ValueError:
        return  # a scheduler of this process ignores resources
    workers = workers_of(client).values()
    there = [dict(worker.get("resources", {})) for worker in workers]
    if not there or any(
        all(offered.get(name, 0) >= amount for name, amount in needed.items()) for offered in there
    ):
        return
    raise PlanError(
        f"no worker has {_amounts(needed)}",
        at="persist",
        why=f"{len(there)} workers have {', '.join(sorted({_amounts(each) for each in there}))}",
        try_=f'dask worker --resources "{_amounts(needed).replace(" and ", " ")}"',
    )


def _amounts(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{name}={amount:g}" for name, amount in resources.items()) or "nothing"
