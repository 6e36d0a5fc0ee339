"""This file runs several pipelines as one: what they have in common is made once."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import permutations
from typing import Any

from dml.costing import estimates_of
from dml.errors import PlanError
from dml.exec.likeness import impure
from dml.exec.stream import Streaming
from dml.exec.tee import Taps
from dml.exec.together import Folder, Member, Receiver, Rows, outcomes
from dml.exec.write import Planned, cuts_of, known, made_in, place_of
from dml.expr.node import Node
from dml.expr.ops.shared import Shared
from dml.keeping import without
from dml.optimize.explain import explained, indented
from dml.optimize.together import Together, Weighed, run_shared_once, together
from dml.resources import Resources, verifies
from dml.session import optimized, streamed
from dml.settings import Settings


@dataclasses.dataclass(frozen=True, eq=False)
class Wanted:
    """One of the pipelines: ``epoch`` of ``node``, as rows or as the files of ``write``."""

    node: Node
    settings: Settings
    epoch: int
    write: Planned | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Pipelines of equal settings, by their numbers among all, and how they run together."""

    numbers: tuple[int, ...]
    settings: Settings
    epoch: int
    plan: Together

    def node(self, number: int) -> Node:
        """What runs for pipeline ``number``."""
        return self.plan.nodes[self.numbers.index(number)]


def collected(wanted: Sequence[Wanted]) -> list[Any]:
    """A table, or what was written, of each; nothing is left behind if one of them fails."""
    _refuse_twice(wanted)
    parts = [part for group in groups_of(wanted) for part in _parts(group)]
    with ExitStack() as stack:
        receivers = _receivers(wanted, stack)
        runs = [_members(*part, wanted, receivers) for part in parts]
        done = outcomes(runs)
    return [done[number] for number in range(len(wanted))]


def _refuse_twice(wanted: Sequence[Wanted]) -> None:
    """PlanError for two writes into one folder, or one into a folder of the other."""
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


def groups_of(wanted: Sequence[Wanted]) -> Iterator[Group]:
    """Pipelines that may share: those of one epoch and of equal settings."""
    left = list(range(len(wanted)))
    while left:
        first = wanted[left[0]]
        alike = [number for number in left if _alike(first, wanted[number])]
        left = [number for number in left if number not in alike]
        nodes = [wanted[number].node for number in alike]
        plan = _together(nodes, first.settings)
        yield Group(tuple(alike), first.settings, first.epoch, plan)


def _alike(one: Wanted, other: Wanted) -> bool:
    same = one.settings.scheduler is other.settings.scheduler
    return same and one.settings == other.settings and one.epoch == other.epoch


def _together(nodes: Sequence[Node], settings: Settings) -> Together:
    """How they run; each as it is where sharing is switched off, or would not be compared."""
    off = not settings.optimize or run_shared_once.name in without(settings)
    if off or verifies(settings) or len(nodes) < 2:
        return Together(tuple(nodes), ())
    workers = Resources.of(settings, optimized(nodes[0], settings).plan).workers
    return together(nodes, partial(_weighed, settings), workers)


def _weighed(settings: Settings, node: Node) -> Weighed:
    plan = optimized(node, settings).plan
    found = estimates_of(plan, settings)
    return Weighed(plan, tuple(0.0 if e.seconds is None else e.seconds.typical for e in found))


def _parts(group: Group) -> Iterator[tuple[Group, tuple[int, ...]]]:
    """Pipelines of a group that share something with each other; the others one by one."""
    sets = [{number} for number in group.numbers]
    for step in group.plan.steps:
        takers = {group.numbers[i] for i in step.takers}
        joined = [each for each in sets if each & takers]
        sets = [each for each in sets if not each & takers] + [set[int]().union(*joined)]
    for each in sorted(sets, key=min):
        yield group, tuple(sorted(each))


def _receivers(wanted: Sequence[Wanted], stack: ExitStack) -> list[Receiver]:
    """Tables, and folders that appear when ``stack`` is left, the first of them first."""
    made: list[Receiver] = []
    for each in reversed(wanted):
        if each.write is None:
            made.append(Rows())
            continue
        asked = each.write.asked
        storage = {"storage_options": asked.storage_options, "overwrite": asked.overwrite}
        folder = stack.enter_context(made_in(asked.path, **storage))
        cuts = partial(cuts_of, asked.group_rows, asked.file_rows)
        made.append(Folder(os.fspath(asked.path), folder, asked.form, cuts))
    return made[::-1]


def _members(
    group: Group, numbers: Sequence[int], wanted: Sequence[Wanted], receivers: Sequence[Receiver]
) -> tuple[list[Member], Taps]:
    """The runs of some pipelines of a group, each with an equal part of the memory number."""
    settings, epoch = group.settings, group.epoch
    runs: dict[int, tuple[Streaming, int]] = {}
    for number in numbers:
        runs[number] = _run(group.node(number), settings, epoch, len(numbers))
        asked = wanted[number].write
        if asked is not None:
            known(runs[number][0], asked.asked.form)
    taps = Taps(_takers({number: run for number, (run, _) in runs.items()}), epoch)
    members = [
        Member(
            number,
            dataclasses.replace(run, taps=taps.of(number)),
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
    """Who takes from each shared node: a run, or a shared node above it in all that pass both."""
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


def explained_together(wanted: Sequence[Wanted]) -> str:
    """What is made once, why, and each pipeline as it runs beside the others."""
    lines: list[str] = []
    for group in groups_of(wanted):
        for step in group.plan.steps:
            takers = ", ".join(str(group.numbers[i] + 1) for i in step.takers)
            lines.append(f"shared {step.number}: by pipelines {takers}; {step.why}")
            lines += [f"  {node.title()}" for node in reversed(step.node.chain())]
    for number, each in enumerate(wanted):
        group = next(g for g in groups_of(wanted) if number in g.numbers)
        text = explained(optimized(group.node(number), each.settings), "physical")
        lines += [f"pipeline {number + 1}", indented(text)]
    return "\n".join(lines)
