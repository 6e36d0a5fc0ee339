"""A fused program runs by calls of compiled kernels with the addresses of its columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dml.kernels import interpreter
from dml.kernels.compiled.codegen import SUPPORTED, KernelSource, source_of
from dml.kernels.compiled.expression_shapes import (
    CHECK,
    KEEP,
    MATRIX,
    ShapeGroup,
    split,
    split_kept,
)
from dml.kernels.compiled.jit import Kernel
from dml.kernels.functions.chains import machines
from dml.kernels.interpreter import Result
from dml.kernels.program import ChainTools, Program, Rooms
from dml.kernels.vec import CastFailure, NotFusedError, Register, Vec


class Fused:
    """A program split into kernel calls and a rest that the interpreter runs."""

    def __init__(self, program: Program) -> None:
        self.program = program
        kept = split_kept(program, SUPPORTED)
        self.keeps, self.whole = kept is not None, program
        if program.keep is not None and kept is None:
            # all rows are computed, and the kept ones selected afterwards
            outputs = (*program.outputs, program.keep)
            program = self.whole = dataclasses.replace(program, outputs=outputs, keep=None)
        self.split = kept or split(program, SUPPORTED)
        self.calls = [_Call(program, group) for group in self.split.groups]
        self.chains = machines(program)
        self.rest: Program | None = None
        if self.split.rest or self.split.rest_checks:
            self.rest = dataclasses.replace(
                program,
                outputs=tuple(program.outputs[i] for i in self.split.rest),
                checks=tuple(program.checks[i] for i in self.split.rest_checks),
            )

    def sources(self, inputs: Sequence[Register]) -> list[KernelSource]:
        """Return the source of each kernel, in the variant for ``inputs`` with or without nulls."""
        return [
            *(call.source(call.has_nulls(inputs)) for call in self.calls),
            *(machine.source for _, machine in self.chains),
        ]

    def run(
        self,
        kernels: Sequence[Kernel],
        inputs: Sequence[Register],
        n: int,
        sel: np.ndarray | None = None,
        rooms: Rooms | None = None,
    ) -> Result:
        """Return what ``interpreter.run`` returns; ``kernels`` are those of ``sources(inputs)``."""
        block = _Block(self.whole, inputs, n, sel)
        count = len(self.calls)
        for call, kernel in zip(self.calls, kernels[:count], strict=True):
            call.run(kernel, block)
        pairs = zip(self.chains, kernels[count:], strict=True)
        chains = {id(step): (machine, kernel) for (step, machine), kernel in pairs}
        tools = ChainTools(chains, rooms or [])
        if block.flags[0]:
            return interpreter.run(self.program, inputs, n, sel)
        failed = bool(block.flags[1])
        for i in self.split.passed:
            block.outputs[i] = interpreter.picked(inputs[self.whole.outputs[i]], sel)
        if self.rest is not None:
            try:
                rest = interpreter.run(self.rest, inputs, n, sel, tools)
            except CastFailure:
                # of several failures, the first in the whole program is raised
                return interpreter.run(self.program, inputs, n, sel)
            block.outputs.update(zip(self.split.rest, rest.outputs, strict=True))
            failed = failed or rest.failed
        return self.result(block, failed=failed)

    def result(self, block: _Block, *, failed: bool) -> Result:
        """Return the program's outputs for ``block``, and ``failed``: whether a check failed.

        If the program has ``keep``, the outputs are those of the kept rows.
        """
        numbers = range(len(self.program.outputs))
        if self.program.keep is None:
            return Result([block.output(i) for i in numbers], failed)
        if not self.keeps:
            kept = interpreter.places(block.output(len(numbers)), block.rows)
            outputs = [block.output(i) for i in numbers]
            return Result(interpreter.delivered_rows(self.program, outputs, kept), failed, kept)
        kept = block.cut()
        for i in self.split.passed:
            block.outputs[i] = interpreter.picked(block.outputs[i], kept)
        return Result([block.output(i) for i in numbers], failed, kept)


# Sets of output arrays, by (output, type code), reused by programs with ``keep``: a run takes a set
# and returns it at its end.
_FREE: list[dict[tuple[int, str], np.ndarray]] = []
# Most rows of a reused array.
MOST_AGAIN = 1 << 18


def _take_arrays() -> dict[tuple[int, str], np.ndarray]:
    try:
        return _FREE.pop()
    except IndexError:
        return {}


# Selected rows of a block without a selection.
NOTHING = np.empty(0, "u8")
# Most entries of a table that Python fills faster than NumPy does.
FEW = 16


class _Block:
    """The columns that kernels read in one run of a program, and the arrays that they write."""

    def __init__(
        self, program: Program, inputs: Sequence[Register], n: int, sel: np.ndarray | None
    ) -> None:
        self.program, self.inputs = program, inputs
        self.n = n
        self.gathering = sel is not None
        self.rows = n if sel is None else len(sel)
        self.selected = NOTHING if sel is None else np.ascontiguousarray(sel, "i8").view("u8")
        self.flags = np.zeros(2, bool)
        self.outputs: dict[int, Register] = {}
        self.held: list[np.ndarray] = []
        self.columns: dict[int, int] = {}
        self.valid: dict[int, int] = {}
        self.memory: dict[tuple[int, str], np.ndarray] = {}
        if program.keep is not None:  # which rows are kept, and how many
            self.kept, self.count = np.empty(0, "i8"), np.zeros(1, "i8")
            self.memory = _take_arrays()

    def column(self, index: int) -> int:
        """Return the address of an input's values; raise NotFusedError if no kernel takes them."""
        if index not in self.columns:
            vec = self.inputs[index]
            if not isinstance(vec, Vec) or vec.values.shape != (self.n,):
                raise NotFusedError
            if vec.values.dtype != self.program.inputs[index]:
                raise NotFusedError
            self.columns[index] = self.contiguous(vec.values)
        return self.columns[index]

    def validity(self, index: int) -> int:
        """Return the address of an input's validity; without nulls, of an array of True."""
        vec = self.inputs[index]
        valid = vec.valid if isinstance(vec, Vec) else None
        place = index if valid is not None else -1
        if place not in self.valid:
            present = np.ones(self.n, bool) if valid is None else valid
            if present.shape != (self.n,):
                present = np.broadcast_to(present, (self.n,))
            self.held.append(present)
            self.valid[place] = self.contiguous(present)
        return self.valid[place]

    def contiguous(self, array: np.ndarray) -> int:
        """Return the address of ``array``, made contiguous; a copy lives as long as this block."""
        if not array.flags.c_contiguous or not array.flags.aligned:
            array = np.array(array, order="C")
            self.held.append(array)
        return address(array)

    def target(self, index: int, code: str, width: int | None, *, known: bool) -> Vec:
        """Return the arrays for output ``index``: (rows,), or (rows, width) for a matrix.

        Unless the output is ``known`` not to have nulls, there is an array for its validity.
        """
        made = self.outputs.get(index)
        if not isinstance(made, Vec):
            shape = (self.rows,) if width is None else (self.rows, width)
            again = self.program.keep is not None and width is None
            made = Vec(self.again(index, code) if again else np.empty(shape, code))
        if not known and made.valid is None:
            made = Vec(made.values, np.ones(self.rows, bool))
        self.outputs[index] = made
        return made

    def again(self, index: int, code: str) -> np.ndarray:
        """Return memory (rows,) for output ``index``, which may be reused after this block ends."""
        if self.rows > MOST_AGAIN:
            return np.empty(self.rows, code)
        found = self.memory.get((index, code))
        if found is None or len(found) < self.rows:
            found = self.memory[index, code] = np.empty(self.rows, code)
        return found[: self.rows]

    def keeping(self) -> tuple[int, int]:
        """Return two addresses for a kernel: for the row numbers of kept rows, and their count."""
        self.kept = self.again(-1, "i8")
        return address(self.kept), address(self.count)

    def cut(self) -> np.ndarray:
        """Return the row numbers of the kept rows; shorten the computed outputs to their count."""
        count = int(self.count[0])
        for i, made in self.outputs.items():
            # copied: the next block writes to the same memory
            if isinstance(made, Vec) and self.program.outputs[i] >= len(self.program.inputs):
                valid = None if made.valid is None else made.valid[:count].copy()
                self.outputs[i] = Vec(made.values[:count].copy(), valid)
        kept = self.kept[:count].copy()
        _FREE.append(self.memory)
        return kept

    def output(self, index: int) -> Register:
        """Return output ``index``; the validity of a computed output is None if all are valid."""
        made = self.outputs[index]
        computed = self.program.outputs[index] >= len(self.program.inputs)
        if computed and isinstance(made, Vec) and made.valid is not None and made.valid.all():
            return Vec(made.values)
        return made


class _Call:
    """The kernel call that computes all instances of one shape for a block."""

    def __init__(self, program: Program, group: ShapeGroup) -> None:
        self.shape, self.instances = group.shape, group.instances
        self.program = program
        self.made: dict[bool, KernelSource] = {}
        self.integers, self.floats = self.constants()
        places = list(zip(self.shape.roots, self.instances[0].targets, strict=True))
        # read for every instance of every block, so computed once
        self.codes = self.shape.codes
        self.widths = [self.width(place[0], root.kind) for root, place in places]
        self.strides = np.array([width or 1 for width in self.widths], "i8")
        self.keeps = any(root.kind == KEEP for root in self.shape.roots)
        self.read = sorted({i for instance in self.instances for i in instance.inputs})
        self.written = self.targets()
        self.layouts = {nullable: self.layout(nullable=nullable) for nullable in (False, True)}
        self.filled = {nullable: _pairs(*layout) for nullable, layout in self.layouts.items()}

    def targets(self) -> dict[tuple[int, int], int]:
        """Return for each (root, output) the index of the address of its values.

        The address of its validity follows. Indices count from a block's first output address.
        Instances of one matrix share an entry.
        """
        found: dict[tuple[int, int], int] = {}
        for i, root in enumerate(self.shape.roots):
            for instance in self.instances if root.kind not in (CHECK, KEEP) else ():
                found.setdefault((i, instance.targets[i][0]), 2 * len(found))
        return found

    def layout(self, *, nullable: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return the kernel's address table: indices into a block's addresses, and bytes to add.

        Both are (instances, slots) i8; a slot is one address of a kernel (see ``KernelSource``).
        """
        inputs, roots = len(self.shape.inputs), len(self.shape.roots)
        first = inputs * (2 if nullable else 1)
        places = np.zeros((len(self.instances), first + 2 * roots), "i8")
        beyond = np.zeros(places.shape, "i8")
        start = 1 + len(self.read) * (2 if nullable else 1)
        keeping = start + 2 * len(self.written)
        for row, instance in enumerate(self.instances):
            columns = [1 + self.read.index(i) for i in instance.inputs]
            places[row, :inputs] = columns
            if nullable:
                places[row, inputs:first] = np.array(columns, "i8") + len(self.read)
            for i, (output, column) in enumerate(instance.targets):
                if self.shape.roots[i].kind == KEEP:
                    places[row, [first + i, first + roots + i]] = keeping, keeping + 1
                elif self.shape.roots[i].kind != CHECK:
                    place = start + self.written[i, output]
                    places[row, [first + i, first + roots + i]] = place, place + 1
                    size = int(self.codes[self.shape.roots[i].register][1])
                    beyond[row, first + i] = column * size
        return places, beyond

    def constants(self) -> tuple[np.ndarray, np.ndarray]:
        """Return two tables (instances, constants): i8 for integers and booleans, f8 for floats."""
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
        """Return the number of columns of ``output`` if its roots are of a matrix, else None."""
        if kind != MATRIX:
            return None
        register = self.program.outputs[output] - len(self.program.inputs)
        return len(self.program.steps[register].args)

    def has_nulls(self, inputs: Sequence[Register]) -> bool:
        """Return True if any instance reads a column of ``inputs`` that has nulls."""
        read = (inputs[i] for i in self.read)
        return any(isinstance(vec, Vec) and vec.valid is not None for vec in read)

    def source(self, nullable: bool) -> KernelSource:  # noqa: FBT001 the only thing that varies
        """Return the kernel's source for columns with or without nulls."""
        if nullable not in self.made:
            self.made[nullable] = source_of(self.shape, nullable=nullable)
        return self.made[nullable]

    def run(self, kernel: Kernel, block: _Block) -> None:
        """Compute every instance over the rows of ``block``."""
        source = self.source(self.has_nulls(block.inputs))
        kernel(
            block.rows,
            block.gathering,
            block.selected,
            self.addresses(source, block),
            self.integers,
            self.floats,
            self.strides,
            block.flags,
        )

    def addresses(self, source: KernelSource, block: _Block) -> np.ndarray:
        """Return the kernel's table: a row of addresses for each instance."""
        found = [0, *[block.column(i) for i in self.read]]
        if source.nullable:
            found += [block.validity(i) for i in self.read]
        for i, output in self.written:
            code, width = self.codes[self.shape.roots[i].register], self.widths[i]
            made = block.target(output, code, width, known=source.known[i])
            valid = None if source.known[i] else made.valid
            found += [address(made.values), 0 if valid is None else address(valid)]
        if self.keeps:
            found += block.keeping()
        if pairs := self.filled[source.nullable]:
            return np.array([[found[place] + more for place, more in row] for row in pairs], "i8")
        places, beyond = self.layouts[source.nullable]
        return np.asarray(np.array(found, "i8").take(places) + beyond)


def _pairs(places: np.ndarray, beyond: np.ndarray) -> list[list[tuple[int, int]]]:
    """Return a layout as a list of (index, bytes to add) per instance; [] beyond ``FEW`` slots."""
    if places.size > FEW:
        return []
    rows = zip(places.tolist(), beyond.tolist(), strict=True)
    return [list(zip(*row, strict=True)) for row in rows]


def address(array: np.ndarray) -> int:
    """Return the address of a contiguous ``array``, in a sixth of the time that NumPy takes."""
    place: int = pa.py_buffer(array).address
    return place
