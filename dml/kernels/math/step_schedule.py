"""A schedule gives the steps of a table an order of execution and scratch slots.

The *main* steps are those the result needs when every ``patch`` takes its usual side. The *arm* of
a patch is the further steps that its special side needs. Steps that only reinterpret bits share
their operand's slot and cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dml.kernels.math.step_language import MathStep, StepTable

VIEWS = ("bits", "float")


class Arm(NamedTuple):
    """The steps that compute the rare elements of a ``patch``, and the main steps they read."""

    mask: int
    usual: int
    special: int
    steps: tuple[int, ...]
    reads: tuple[int, ...]


class ScheduledStep(NamedTuple):
    """One step to execute; ``arm`` is set for a patch."""

    op: str
    args: tuple[int, ...]
    out: int
    arm: Arm | None


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Instructions in order; ``slot_of``: the scratch slot of each main step except constants."""

    instructions: tuple[ScheduledStep, ...]
    slot_of: dict[int, int]
    slot_itemsizes: tuple[int, ...]


def itemsize(code: str) -> int:
    """Return the bytes of one value of a type code."""
    return int(code[1])


def schedule(table: StepTable) -> Schedule:
    """Order the steps of a table and give each a slot."""
    steps = table.steps
    main = sorted(_reach(steps, [len(steps) - 1], frozenset()))
    order = [index for index in main if steps[index].op != "const"]
    arms = _arms(steps, order, set(main))
    instructions = tuple(
        ScheduledStep(steps[index].op, steps[index].args, index, arms.get(index))
        for index in order
        if steps[index].op not in ("input", *VIEWS)
    )
    slot_of, sizes = _Slots(steps, order, arms).assign()
    return Schedule(instructions, slot_of, tuple(sizes))


def _reach(
    steps: tuple[MathStep, ...], roots: list[int], stop: frozenset[int] | set[int]
) -> set[int]:
    """Return the steps that ``roots`` need, without ``stop`` and steps that only these need.

    If ``stop`` is empty, the steps are main: of a patch, only the mask and usual side are needed.
    """
    found: set[int] = set()
    open_ = [root for root in roots if root not in stop]
    while open_:
        index = open_.pop()
        found.add(index)
        args = steps[index].args
        if steps[index].op == "patch" and not stop:
            args = args[:2]
        open_.extend(arg for arg in args if arg not in stop and arg not in found)
    return found


def _arms(steps: tuple[MathStep, ...], order: list[int], main: set[int]) -> dict[int, Arm]:
    """Return the arm of each main patch; patches on one mask share the steps of earlier arms."""
    done: dict[int, set[int]] = {}
    arms = {}
    for index in order:
        if steps[index].op != "patch":
            continue
        mask, usual, special = steps[index].args
        known = done.setdefault(mask, set())
        todo = sorted(_reach(steps, [special], main | known))
        known.update(todo)
        read = {arg for step in todo for arg in steps[step].args} | {special}
        arms[index] = Arm(mask, usual, special, tuple(todo), tuple(sorted(read & main)))
    return arms


class _Slots:
    """Allocates slots by a linear scan over the main steps; a view has its operand's slot."""

    def __init__(self, steps: tuple[MathStep, ...], order: list[int], arms: dict[int, Arm]) -> None:
        self.steps, self.order, self.arms = steps, order, arms
        self.owner = {index: index for index in order}
        for index in order:
            if steps[index].op in VIEWS:
                self.owner[index] = self.owner[steps[index].args[0]]
        self.last = self._last_reads()
        for index in arms:
            self._write_in_place(index)

    def _reads(self, index: int) -> Iterable[int]:
        """Return the main steps that are read when step ``index`` is executed."""
        arm = self.arms.get(index)
        read = (arm.mask, arm.usual, *arm.reads) if arm else self.steps[index].args
        return (arg for arg in read if arg in self.owner)

    def _last_reads(self) -> dict[int, int]:
        """Return the last reader of each step with a slot; the result's slot is never freed."""
        last = {index: index for index in self.order}
        for index in self.order:
            for arg in self._reads(index):
                last[self.owner[arg]] = index
        last[self.owner[self.order[-1]]] = len(self.steps)
        return last

    def _write_in_place(self, index: int) -> None:
        """Let the patch ``index`` overwrite its usual side if no later step reads that side."""
        side = self.owner.get(self.arms[index].usual)
        if side is None or self.last[side] != index:
            return
        self.last[side] = self.last[index]
        self.owner = {key: side if value == index else value for key, value in self.owner.items()}

    def assign(self) -> tuple[dict[int, int], list[int]]:
        """Return the slot of each main step and the item sizes of the slots."""
        sizes: list[int] = []
        free: list[int] = []
        slot_of: dict[int, int] = {}
        for index in self.order:
            owner = self.owner[index]
            if owner == index:
                size = itemsize(self.steps[index].code)
                slot = next((slot for slot in free if sizes[slot] == size), None)
                if slot is None:
                    sizes.append(size)
                    slot = len(sizes) - 1
                else:
                    free.remove(slot)
                slot_of[index] = slot
            slot_of[index] = slot_of[owner]
            free.extend(self._freed(index, slot_of))
        return slot_of, sizes

    def _freed(self, index: int, slot_of: dict[int, int]) -> list[int]:
        """Return the slots whose last reader is step ``index``."""
        dying = {self.owner[arg] for arg in (*self._reads(index), index) if arg in self.owner}
        return [
            slot_of[owner]
            for owner in sorted(dying)
            if self.last[owner] == index and owner in slot_of
        ]
