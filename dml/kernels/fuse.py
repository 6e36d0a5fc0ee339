"""This file runs programs through compiled kernels, and chooses between them and NumPy.

The two tiers give the same bits, so which one ran, and when it changed, cannot be seen.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dml.kernels import interpret
from dml.kernels.codegen import SUPPORTED, Source, source_of
from dml.kernels.interpret import Result
from dml.kernels.jit import Kernel, KernelCache
from dml.kernels.program import Program
from dml.kernels.shape import CHECK, MATRIX, Group, Instance, split
from dml.kernels.vec import CastFailure, Register, Vec

# Row-steps interpreted before compiling is worth its second of processor time: at about 1 ns each
# NumPy has then spent a third of that (KERNELS: 0.5 s to compile a kernel, 0.3 s to load numba).
COMPILE_AFTER = 300_000_000

# Programs a process remembers; forgetting one costs a millisecond or two to take it apart again.
MOST_PROGRAMS = 256

MODE = re.compile(r"numpy|compiled|auto|(swap|demote)-at-block-(\d+)")


class NotFusedError(Exception):
    """Columns of a kind that kernels do not take (tensors, other dtypes): NumPy does."""


class Fused:
    """One program as kernel calls; ``kernels`` finds a kernel by its source, or None."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.split = split(program, SUPPORTED)
        self.calls = [_Call(program, group) for group in self.split.groups]
        self.rest: Program | None = None
        if self.split.rest or self.split.rest_checks:
            self.rest = dataclasses.replace(
                program,
                outputs=tuple(program.outputs[i] for i in self.split.rest),
                checks=tuple(program.checks[i] for i in self.split.rest_checks),
            )

    def sources(self, inputs: Sequence[Register]) -> list[Source]:
        """The kernels that these columns need."""
        return [call.source(call.has_nulls(inputs)) for call in self.calls]

    def run(
        self,
        kernels: Sequence[Kernel],
        inputs: Sequence[Register],
        n: int,
        sel: np.ndarray | None = None,
    ) -> Result:
        """As ``interpret.run``, through the ``kernels`` of ``sources(inputs)``."""
        block = _Block(self.program, inputs, n, sel)
        for call, kernel in zip(self.calls, kernels, strict=True):
            call.run(kernel, block)
        if block.flags[0]:
            return interpret.run(self.program, inputs, n, sel)
        failed = bool(block.flags[1])
        for i in self.split.passed:
            block.outputs[i] = interpret.picked(inputs[self.program.outputs[i]], sel)
        if self.rest is not None:
            try:
                rest = interpret.run(self.rest, inputs, n, sel)
            except CastFailure:
                # of several failures the whole program's first is the one to raise
                return interpret.run(self.program, inputs, n, sel)
            block.outputs.update(zip(self.split.rest, rest.outputs, strict=True))
            failed = failed or rest.failed
        return Result([block.output(i) for i in range(len(self.program.outputs))], failed)


class _Block:
    """The columns of one run, and the arrays that kernels write."""

    def __init__(
        self, program: Program, inputs: Sequence[Register], n: int, sel: np.ndarray | None
    ) -> None:
        self.program, self.inputs = program, inputs
        self.n = n
        self.gathering = sel is not None
        self.rows = n if sel is None else len(sel)
        index = np.empty(0, "u8") if sel is None else np.ascontiguousarray(sel, "i8").view("u8")
        self.selected = index
        self.flags = np.zeros(2, bool)
        self.outputs: dict[int, Register] = {}
        self.held: list[np.ndarray] = []
        self.present = np.empty(0, bool)

    def column(self, index: int) -> np.ndarray:
        """Values of an input, one contiguous run of numbers."""
        vec = self.inputs[index]
        if not isinstance(vec, Vec) or vec.values.shape != (self.n,):
            raise NotFusedError
        if vec.values.dtype != self.program.inputs[index]:
            raise NotFusedError
        return self.contiguous(vec.values)

    def validity(self, index: int) -> np.ndarray:
        """Validity of an input, written out where there are no nulls."""
        vec = self.inputs[index]
        if isinstance(vec, Vec) and vec.valid is not None:
            return self.contiguous(np.broadcast_to(vec.valid, (self.n,)))
        if not len(self.present):
            self.present = np.ones(self.n, bool)
        return self.present

    def contiguous(self, array: np.ndarray) -> np.ndarray:
        """``array`` in one run; a copy lives as long as this block."""
        if not array.flags.c_contiguous or not array.flags.aligned:
            array = np.array(array, order="C")
            self.held.append(array)
        return array

    def target(self, index: int, code: str, width: int | None, *, known: bool) -> Vec:
        """Arrays for an output: (rows,), or (rows, width) for a matrix."""
        made = self.outputs.get(index)
        if not isinstance(made, Vec):
            shape = (self.rows,) if width is None else (self.rows, width)
            made = Vec(np.empty(shape, code))
        if not known and made.valid is None:
            made = Vec(made.values, np.ones(self.rows, bool))
        self.outputs[index] = made
        return made

    def output(self, index: int) -> Register:
        """A finished output; validity is None if all is valid."""
        made = self.outputs[index]
        computed = self.program.outputs[index] >= len(self.program.inputs)
        if computed and isinstance(made, Vec) and made.valid is not None and made.valid.all():
            return Vec(made.values)
        return made


class _Call:
    """One kernel call per block: all instances of a shape."""

    def __init__(self, program: Program, group: Group) -> None:
        self.shape, self.instances = group.shape, group.instances
        self.program = program
        self.made: dict[bool, Source] = {}
        self.integers, self.floats = self.constants()
        places = list(zip(self.shape.roots, self.instances[0].targets, strict=True))
        widths = [self.width(place[0], root.kind) or 1 for root, place in places]
        self.strides = np.array(widths, "i8")
        # read for every instance of every block: asked for once
        self.codes = self.shape.codes
        self.widths = [self.width(place[0], root.kind) for root, place in places]

    def constants(self) -> tuple[np.ndarray, np.ndarray]:
        """Constants by instance: integers (as 64 bits) and floats, each at its own position."""
        floats = np.zeros((len(self.instances), len(self.shape.constants)), "f8")
        bits = np.zeros(floats.shape, "u8")
        for row, instance in enumerate(self.instances):
            for i, value in enumerate(instance.constants):
                if self.shape.constants[i][0] == "f":
                    floats[row, i] = value
                else:
                    bits[row, i] = int(value) % 2**64
        return bits.view("i8"), floats

    def width(self, output: int, kind: str) -> int | None:
        """Columns of a matrix; None for anything else."""
        if kind != MATRIX:
            return None
        register = self.program.outputs[output] - len(self.program.inputs)
        return len(self.program.steps[register].args)

    def has_nulls(self, inputs: Sequence[Register]) -> bool:
        """True if any instance reads a column with nulls."""
        used = [inputs[i] for instance in self.instances for i in instance.inputs]
        return any(isinstance(vec, Vec) and vec.valid is not None for vec in used)

    def source(self, nullable: bool) -> Source:  # noqa: FBT001 the only thing that varies
        """The kernel's text for columns with or without nulls."""
        if nullable not in self.made:
            self.made[nullable] = source_of(self.shape, nullable=nullable)
        return self.made[nullable]

    def run(self, kernel: Kernel, block: _Block) -> None:
        """Compute every instance over the rows of ``block``."""
        source = self.source(self.has_nulls(block.inputs))
        table = np.array([self.addresses(i, source, block) for i in self.instances], "i8")
        table = table.reshape(len(self.instances), -1)
        kernel(
            block.rows,
            block.gathering,
            block.selected,
            table,
            self.integers,
            self.floats,
            self.strides,
            block.flags,
        )

    def addresses(self, instance: Instance, source: Source, block: _Block) -> list[int]:
        """A row of the kernel's table."""
        found = [address(block.column(i)) for i in instance.inputs]
        if source.nullable:
            found += [address(block.validity(i)) for i in instance.inputs]
        values, validity = [], []
        roots = zip(self.shape.roots, instance.targets, source.known, self.widths, strict=True)
        for root, place, known, width in roots:
            if root.kind == CHECK:
                values.append(0)
                validity.append(0)
                continue
            made = block.target(place[0], self.codes[root.register], width, known=known)
            values.append(address(made.values) + place[1] * made.values.itemsize)
            validity.append(0 if known or made.valid is None else address(made.valid))
        return [*found, *values, *validity]


def address(array: np.ndarray) -> int:
    """Where the memory of ``array`` begins."""
    place: int = array.__array_interface__["data"][0]
    return place


def compiled(program: Program, cache: KernelCache) -> Callable[..., Result] | None:
    """``program`` as a function like ``interpret.run``, without its program argument.

    It waits for its kernels at the first block that needs them, and is NumPy where they fail. None
    if no part of the program can be a kernel.
    """
    fused = Fused(program)
    if not fused.calls:
        return None

    def run(inputs: Sequence[Register], n: int, sel: np.ndarray | None = None) -> Result:
        return _run_compiled(fused, cache, inputs, n, sel, counts=Counts(), waiting=True)

    return run


@dataclasses.dataclass(slots=True)
class Counts:
    """Blocks run by each tier; ``refused`` ones had columns that no kernel takes."""

    numpy: int = 0
    compiled: int = 0
    refused: int = 0


@dataclasses.dataclass(slots=True)
class _Entry:
    """A program met before. It is kept alive, so that its identity stays its own."""

    program: Program
    fused: Fused | None = None
    blocks: int = 0
    row_steps: int = 0


class Tiers:
    """Runs programs, by NumPy at first and by kernels once they are compiled and worth it.

    ``mode`` is "auto" (compile in the background after ``compile_after`` row-steps), "numpy",
    "compiled" (wait for kernels), "swap-at-block-k" (NumPy for k blocks of a program, then wait for
    kernels) or "demote-at-block-k" (the other way round). Kernels are kept under ``directory``.
    Threads may share one. Results never depend on any of this.
    """

    def __init__(
        self, directory: Path, mode: str = "auto", compile_after: int = COMPILE_AFTER
    ) -> None:
        found = MODE.fullmatch(mode)
        if found is None:
            raise ValueError(f"{mode!r} is not a mode of the kernel tiers")
        self.kind, self.block = found[1] or mode, int(found[2] or 0)
        self.compile_after = compile_after
        self.cache = KernelCache(directory)
        self.counts = Counts()
        self._entries: dict[int, _Entry] = {}
        self._made_of = (directory, mode, compile_after)

    def __reduce__(self) -> tuple[Any, ...]:
        return shared, self._made_of

    @property
    def compile_failures(self) -> int:
        """Kernels that could not be made; their programs stay with NumPy."""
        return len(self.cache.failures)

    def run(
        self,
        program: Program,
        inputs: Sequence[Register],
        n: int,
        sel: np.ndarray | None = None,
    ) -> Result:
        """As ``interpret.run``."""
        entry = self._entry(program)
        rows = n if sel is None else len(sel)
        tier = self._tier(entry, rows)
        entry.blocks += 1
        entry.row_steps += rows * len(program.steps)
        if tier == "numpy":
            self.counts.numpy += 1
            return interpret.run(program, inputs, n, sel)
        if entry.fused is None:
            entry.fused = Fused(program)
        waiting = tier == "compiled"
        return _run_compiled(
            entry.fused, self.cache, inputs, n, sel, counts=self.counts, waiting=waiting
        )

    def _entry(self, program: Program) -> _Entry:
        # by identity: equality would take -0.0 for 0.0, and costs more than a small block
        entry = self._entries.get(id(program))
        if entry is None:
            if len(self._entries) >= MOST_PROGRAMS:
                self._entries.clear()
            entry = self._entries[id(program)] = _Entry(program)
        return entry

    def _tier(self, entry: _Entry, rows: int) -> str:
        """The tier of the next block: "numpy", "compiled", or "ready" for kernels if they are."""
        late = entry.blocks >= self.block
        match self.kind:
            case "swap":
                return "compiled" if late else "numpy"
            case "demote":
                return "numpy" if late else "compiled"
            case "auto":
                return "ready" if entry.row_steps >= self.compile_after and rows else "numpy"
        return self.kind


def _run_compiled(
    fused: Fused,
    cache: KernelCache,
    inputs: Sequence[Register],
    n: int,
    sel: np.ndarray | None,
    *,
    counts: Counts,
    waiting: bool,
) -> Result:
    """Through kernels if they can be had, else through NumPy."""
    kernels = _kernels(fused.sources(inputs), cache, waiting=waiting)
    if kernels and None not in kernels:
        try:
            result = fused.run([k for k in kernels if k is not None], inputs, n, sel)
        except NotFusedError:
            counts.refused += 1
        else:
            counts.compiled += 1
            return result
    counts.numpy += 1
    return interpret.run(fused.program, inputs, n, sel)


def _kernels(
    sources: Sequence[Source], cache: KernelCache, *, waiting: bool
) -> list[Kernel | None]:
    found = [cache.get(source.name) for source in sources]
    if None in found:
        cache.request((source.name, source.text) for source in sources)
        if waiting:
            found = [cache.wait(source.name) for source in sources]
    return found


_SHARED: dict[tuple[Any, ...], Tiers] = {}


def shared(*made_of: Any) -> Tiers:
    """The tiers of this process with these parameters: what one run compiled, the next has."""
    if made_of not in _SHARED:
        _SHARED[made_of] = Tiers(*made_of)
    return _SHARED[made_of]
