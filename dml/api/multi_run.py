"""Several pipelines run as one, so that the steps that they share run once."""

from __future__ import annotations

import dataclasses
import os
import textwrap
from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import permutations
from typing import Any

from dml.api.cost_profile import estimates_of
from dml.api.resources import RunResources, verifies
from dml.api.run_storage import without
from dml.api.session import every_choice, optimized, streamed
from dml.errors import PlanError
from dml.exec.streams.multi_run import FileReceiver, Receiver, RunMember, TableReceiver, outcomes
from dml.exec.streams.stream import Streaming
from dml.exec.streams.tee import Taps
from dml.exec.tasks.replay_check import impure
from dml.exec.writing.file_writer import Planned, check_columns, cuts_of, made_in, place_of
from dml.expr.node import Node
from dml.ops.cache.shared import Shared
from dml.optimize.explain.physical_text import physical_text
from dml.optimize.search.shared_prefixes import Together, Weighed, run_shared_once, together
from dml.physical.operators import RunChoices
from dml.physical.plan import Plan
from dml.settings import Settings


@dataclasses.dataclass(frozen=True, eq=False)
class WantedRun:
    """A run of ``node``: ``write`` says how rows are written; None returns them as a table."""

    node: Node
    settings: Settings
    epoch: int
    write: Planned | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class RunGroup:
    """Pipelines with equal settings and epoch, by their index in the call, and shared steps."""

    numbers: tuple[int, ...]
    settings: Settings
    epoch: int
    plan: Together

    def node(self, number: int) -> Node:
        """Return the node that runs for pipeline ``number``."""
        return self.plan.nodes[self.numbers.index(number)]


def collected(wanted: Sequence[WantedRun]) -> list[Any]:
    """Return a table or a written folder for each pipeline; if one fails, no folder appears."""
    _refuse_twice(wanted)
    parts = [part for group in groups_of(wanted) for part in _parts(group)]
    with ExitStack() as stack:
        receivers = _receivers(wanted, stack)
        runs = [_members(*part, wanted, receivers) for part in parts]
        done = outcomes(runs)
    return [done[number] for number in range(len(wanted))]


def _refuse_twice(wanted: Sequence[WantedRun]) -> None:
    """Raise PlanError for two writes into one folder, or one into a folder of the other."""
    writes = [each.write.asked.path for each in wanted if each.write is not None]
    named = [(path, place_of(path)) for path in writes]
    for (one, place), (other, among) in permutations(named, 2):
        if place == among:
            raise PlanError(
                f"collect_all writes {os.fspath(one)!r} twice",
                why="a folder holds the rows of one pipeline",
                try_="a folder for each, or dml.concat([...]).write_parquet(...)",
            )
        if place.startswith(among.rstrip("/") + "/"):
            raise PlanError(
                f"collect_all writes {os.fspath(one)!r} inside {os.fspath(other)!r}",
                why="a folder appears as a whole, with the rows of one pipeline and nothing else",
                try_="folders beside each other",
            )


def groups_of(wanted: Sequence[WantedRun]) -> Iterator[RunGroup]:
    """Yield groups of pipelines that may share steps: those with equal epoch and settings."""
    left = list(range(len(wanted)))
    while left:
        first = wanted[left[0]]
        alike = [number for number in left if _alike(first, wanted[number])]
        left = [number for number in left if number not in alike]
        nodes = [wanted[number].node for number in alike]
        plan = _together(nodes, first.settings)
        yield RunGroup(tuple(alike), first.settings, first.epoch, plan)


def _alike(one: WantedRun, other: WantedRun) -> bool:
    same = one.settings.scheduler is other.settings.scheduler
    return same and one.settings == other.settings and one.epoch == other.epoch


def _together(nodes: Sequence[Node], settings: Settings) -> Together:
    """Choose the steps to share; none if sharing is off, or if samples of the rows are verified."""
    off = not settings.optimize or run_shared_once.name in without(settings)
    if off or verifies(settings) or len(nodes) < 2:
        return Together(tuple(nodes), ())
    workers = RunResources.of(settings, optimized(nodes[0], settings).plan).workers
    return together(nodes, partial(_weighed, settings), workers)


def _weighed(settings: Settings, node: Node) -> Weighed:
    plan = optimized(node, settings).plan
    found = estimates_of(plan, settings)
    return Weighed(plan, tuple(0.0 if e.seconds is None else e.seconds.typical for e in found))


def _parts(group: RunGroup) -> Iterator[tuple[RunGroup, tuple[int, ...]]]:
    """Yield ``group`` with the indices of each set of pipelines connected by shared steps."""
    sets = [{number} for number in group.numbers]
    for step in group.plan.steps:
        takers = {group.numbers[i] for i in step.takers}
        joined = [each for each in sets if each & takers]
        sets = [each for each in sets if not each & takers] + [set[int]().union(*joined)]
    for each in sorted(sets, key=min):
        yield group, tuple(sorted(each))


def _receivers(wanted: Sequence[WantedRun], stack: ExitStack) -> list[Receiver]:
    """Return the receiver of each pipeline's rows: a table, or files in a new folder.

    The folders appear, in the order of ``wanted``, when ``stack`` is left without an error.
    """
    made: list[Receiver] = []
    for each in reversed(wanted):
        if each.write is None:
            made.append(TableReceiver())
            continue
        asked = each.write.asked
        storage = {"storage_options": asked.storage_options, "overwrite": asked.overwrite}
        folder = stack.enter_context(made_in(asked.path, **storage))
        cuts = partial(cuts_of, asked.group_rows, asked.file_rows)
        made.append(FileReceiver(os.fspath(asked.path), folder, asked.form, cuts))
    return made[::-1]


def _members(
    group: RunGroup,
    numbers: Sequence[int],
    wanted: Sequence[WantedRun],
    receivers: Sequence[Receiver],
) -> tuple[list[RunMember], Taps]:
    """Open the runs of some pipelines of a group, each with an equal part of the memory limit.

    The second result passes the rows of shared steps on to each of these runs.
    """
    settings, epoch = group.settings, group.epoch
    runs: dict[int, tuple[Streaming, int]] = {}
    for number in numbers:
        runs[number] = _run(group.node(number), settings, epoch, len(numbers))
        asked = wanted[number].write
        if asked is not None:
            check_columns(runs[number][0], asked.asked.form)
    takers = _takers({number: run for number, (run, _) in runs.items()})
    taps = Taps(takers, epoch)
    members = [
        RunMember(
            number,
            dataclasses.replace(run, tap=taps.of(number), choices=_sharing(run.choices, run.plan)),
            ahead_bytes,
            receivers[number],
            partial(_run, wanted[number].node, settings, epoch),
            epoch,
            called=any(fn.purity for each in run.plan.operators if (fn := each.calls) is not None),
            once=any(impure(each.operators) for each in run.plan.all),
        )
        for number, (run, ahead_bytes) in runs.items()
    ]
    return members, taps


def _run(node: Node, settings: Settings, epoch: int, among: int = 1) -> tuple[Streaming, int]:
    run, resources = streamed(node, settings, epoch, among)
    return run, resources.budget.ahead_bytes


def _takers(runs: dict[int, Streaming]) -> dict[bytes, list[Hashable]]:
    """Return the consumers of each shared node, by its digest: runs, or shared nodes above it."""
    passed = {
        number: [node.digest for node in run.plan.stream if isinstance(node, Shared)]
        for number, run in runs.items()
    }
    every = [key for keys in passed.values() for key in set(keys)]
    takers: dict[bytes, list[Hashable]] = {}
    for number, keys in passed.items():
        shared = [key for key in keys if every.count(key) > 1]
        for key, taker in zip(shared, [*shared, number][1:], strict=True):
            if taker not in takers.setdefault(key, []):
                takers[key].append(taker)
    return takers


def _sharing(choices: RunChoices, plan: Plan) -> RunChoices:
    """Return ``choices`` for a run that shares the ``Shared`` places of ``plan``, if it has any."""
    shared = frozenset(node.digest for node in plan.stream if isinstance(node, Shared))
    if not shared:
        return choices
    return dataclasses.replace(choices, sliced=False, exchanged=0, shared=shared)


def explained_together(wanted: Sequence[WantedRun]) -> str:
    """Explain the shared steps, their reasons, and how each pipeline runs with them."""
    lines: list[str] = []
    for group in groups_of(wanted):
        for step in group.plan.steps:
            takers = ", ".join(str(group.numbers[i] + 1) for i in step.takers)
            lines.append(f"shared {step.number}: by pipelines {takers}; {step.why}")
            lines += [f"  {node.title()}" for node in reversed(step.node.chain())]
    for number, each in enumerate(wanted):
        group = next(g for g in groups_of(wanted) if number in g.numbers)
        plan, settings = optimized(group.node(number), each.settings).plan, each.settings
        resources = RunResources.of(settings, plan, len(group.numbers))
        choices = every_choice(plan, settings, resources, looks=False)
        choices[plan] = _sharing(choices[plan], plan)
        text = physical_text(plan, choices, estimates_of(plan, settings))
        lines += [f"pipeline {number + 1}", textwrap.indent(text, "  ")]
    return "\n".join(lines)
