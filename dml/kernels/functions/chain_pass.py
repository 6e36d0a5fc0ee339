"""Consecutive functions of a program are merged into one step, a chain, by one pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dml.kernels.program import Program, Step

if TYPE_CHECKING:
    from dml.kernels.compiled.codegen import KernelSource


class Machine(Protocol):
    """The constants with which a compiled kernel runs a chain."""

    @property
    def source(self) -> KernelSource:
        """The kernel's source."""


@dataclasses.dataclass
class Chaining:
    """One pass over a program: finds the chains of steps, and renumbers the registers.

    A step for which ``fits`` is true continues the chain that makes its first argument, unless
    ``ends(links)``, or begins one, unless ``begins`` is false. ``link`` makes the link of a step,
    whose further arguments begin at the given place among those of the chain.
    """

    program: Program
    op: str
    fits: Callable[[Step], bool]
    begins: Callable[[Step], bool]
    ends: Callable[[tuple[Any, ...]], bool]
    link: Callable[[Step, int], Any]

    def merge_chains(self) -> Program:
        """Return the program with each chain as one step, in the place of its last step."""
        self.first = len(self.program.inputs)
        self.readers = np.bincount(
            [arg for step in self.program.steps for arg in step.args] + [*self.program.roots],
            minlength=self.first + len(self.program.steps),
        )
        # by register: the links of the chain that ends there, and its arguments
        self.chains: dict[int, tuple[tuple[Any, ...], tuple[int, ...]]] = {}
        self.inside: set[int] = set()
        for register, step in enumerate(self.program.steps, start=self.first):
            if self.fits(step):
                self._find(register, step)
        return self._merged()

    def _find(self, register: int, step: Step) -> None:
        """Append ``step`` to the chain that it continues, or begin a new chain with it."""
        given, *others = step.args
        if given in self.chains and self.readers[given] == 1:
            links, args = self.chains[given]
            if self.ends(links):
                return
            del self.chains[given]
            self.inside.add(given)
            made = (*links, self.link(step, len(args) - 1))
            self.chains[register] = made, (*args, *others)
        elif self.begins(step):
            self.chains[register] = (self.link(step, 0),), step.args

    def _merged(self) -> Program:
        numbers = {register: register for register in range(self.first)}
        steps: list[Step] = []
        for register, step in enumerate(self.program.steps, start=self.first):
            if register in self.inside:
                continue
            if register in self.chains:
                links, args = self.chains[register]
                step = Step(self.op, args, step.code, links)  # noqa: PLW2901
            moved = tuple(numbers[arg] for arg in step.args)
            numbers[register] = self.first + len(steps)
            steps.append(dataclasses.replace(step, args=moved))
        outputs = tuple(numbers[register] for register in self.program.outputs)
        checks = tuple(numbers[register] for register in self.program.checks)
        keep = None if self.program.keep is None else numbers[self.program.keep]
        return Program(self.program.inputs, tuple(steps), outputs, checks, keep)
