"""A program is the flat form to which an expression is lowered; it defines what is computed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

# The operation of a step for a sequence of text functions; ``text_chain.chained`` creates it.
CHAIN = "text chain"
# The same for functions of images and of sounds, by ``image_chain.chained`` and ``sound_chain``.
IMAGES, SOUNDS = "image chain", "sound chain"
CHAINS = (CHAIN, IMAGES, SOUNDS)


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """``op`` applied to registers ``args``, giving values of type ``code``.

    ``params`` are the constants of the operation (a literal's value, boundaries, a seed).
    """

    op: str
    args: tuple[int, ...]
    code: str
    params: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Program:
    """Steps in single-assignment form over inputs of types ``inputs``.

    Registers count the inputs first and then the steps; a step reads earlier registers only.
    ``outputs`` are the registers to deliver. ``checks`` are b1 registers: a true row in any of
    them means that the outputs may be wrong for the block. If there is a b1 register ``keep``, only
    rows in which ``keep`` is true are delivered.
    """

    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    checks: tuple[int, ...] = ()
    keep: int | None = None

    def __post_init__(self) -> None:
        for index, step in enumerate(self.steps, start=len(self.inputs)):
            if any(not 0 <= arg < index for arg in step.args):
                raise ValueError(f"step {index} ({step.op}) reads a register not yet written")
        registers = len(self.inputs) + len(self.steps)
        if any(not 0 <= register < registers for register in self.roots):
            raise ValueError(f"the program has {registers} registers only")

    @property
    def roots(self) -> tuple[int, ...]:
        """The registers of outputs, checks and ``keep``."""
        return (*self.outputs, *self.checks, *(() if self.keep is None else (self.keep,)))

    @functools.cached_property
    def has_chain(self) -> bool:
        """True if a step is a chain of functions of texts, images or sounds."""
        return any(step.op in CHAINS for step in self.steps)

    @functools.cached_property
    def codes(self) -> tuple[str, ...]:
        """Type code of every register."""
        return self.inputs + tuple(step.code for step in self.steps)

    @functools.cached_property
    def deaths(self) -> tuple[tuple[int, ...], ...]:
        """For each step, the registers to release after it: no later step or root reads them."""
        last: dict[int, int] = {}
        for index, step in enumerate(self.steps):
            last[len(self.inputs) + index] = index
            last.update((arg, index) for arg in step.args)
        kept = {*self.roots}
        dying: list[list[int]] = [[] for _ in self.steps]
        for register, index in last.items():
            if register not in kept:
                dying[index].append(register)
        return tuple(tuple(registers) for registers in dying)

    @functools.cached_property
    def needed(self) -> frozenset[int]:
        """Registers that an output, a check or ``keep`` depends on."""
        found: set[int] = set()
        waiting = [*self.roots]
        while waiting:
            register = waiting.pop()
            if register not in found:
                found.add(register)
                if register >= len(self.inputs):
                    waiting.extend(self.steps[register - len(self.inputs)].args)
        return frozenset(found)

    @functools.cached_property
    def reads(self) -> frozenset[int]:
        """Inputs that an output, a check or ``keep`` depends on."""
        return frozenset(register for register in self.needed if register < len(self.inputs))


# Memory that a caller offers for results of image functions, so that they are written once: each
# array, a part of the batch that is delivered, is taken by the first result of its shape and type.
Rooms: TypeAlias = "list[np.ndarray]"


@dataclasses.dataclass
class ChainTools:
    """What chains run with: ``kernels``, and ``rooms`` for the results of image functions.

    ``kernels`` have the machine and the kernel of each step by its identity, since equal steps may
    contain -0.0 and 0.0.
    """

    kernels: Mapping[int, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    rooms: Rooms = dataclasses.field(default_factory=list)

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return a room of ``shape`` and ``dtype``, each once, or a new array."""
        for number, array in enumerate(self.rooms):
            if array.shape == shape and array.dtype == dtype:
                return self.rooms.pop(number)
        return np.empty(shape, dtype)
