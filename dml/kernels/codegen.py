"""This file writes the source of a numba kernel for an expression shape.

A kernel takes tiles of rows through three loops: columns into scratch (gathering selected rows),
the expression over whole tiles (a constant trip count is what LLVM vectorises), results out. Rows
past the end of the last tile are computed from leftovers and dropped.
"""

from __future__ import annotations

import dataclasses
import hashlib

from dml.kernels.kernel_functions import called
from dml.kernels.phrase_book import PHRASES
from dml.kernels.phrases import TYPES, Phrase, Row, typed
from dml.kernels.program import Step
from dml.kernels.shape import CHECK, COLUMN, Shape
from dml.kernels.steps import ARITHMETIC_VERSION, MATH_CODES, MATH_OPS

# Rows per tile: scratch for a handful of columns stays in a 32 kB first-level cache.
TILE = 256

SUPPORTED = frozenset(PHRASES) | {f"{op}_{code}" for op in MATH_OPS for code in MATH_CODES}

HEADER = f'''"""This file is a kernel that dml generated; without it, it is made again."""
import math

import numpy as np

from dml.kernels.jit import natives

N = natives()
carray, pointer, scratch = N.carray, N.pointer, N.scratch
FAR = 1 << 48
TILE = {TILE}
ARITHMETIC = {ARITHMETIC_VERSION}
'''


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Text of a kernel, its name, and which roots it gives a validity for.

    A row of the kernel's table holds addresses: inputs, their validity (if ``nullable``), roots
    (0 for checks), their validity (0 where ``known``).
    """

    name: str
    text: str
    nullable: bool
    known: tuple[bool, ...]


def source_of(shape: Shape, *, nullable: bool) -> Source:
    """The kernel for ``shape`` where inputs may hold nulls, or where none does."""
    writer = _Writer(shape, nullable=nullable)
    body = writer.body()
    text = f"{HEADER}\n{called(body)}\n{body}"
    name = "k" + hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    return Source(name, text, nullable, tuple(known is None for known in writer.root_known()))


class _Writer:
    """Writes one kernel; its methods give lists of lines without their indentation."""

    def __init__(self, shape: Shape, *, nullable: bool) -> None:
        self.shape, self.nullable = shape, nullable
        inputs, constants = len(shape.inputs), len(shape.constants)
        self.values = [f"x{i}" for i in range(inputs)]
        self.values += [f"c{i}" for i in range(constants)]
        self.known: list[str | None] = [f"e{i}" if nullable else None for i in range(inputs)]
        self.known += [None] * constants
        self.failures: list[str] = []
        self.lines = [line for step in shape.steps for line in self.step(step)]

    def step(self, step: Step) -> list[str]:
        """Assign the value of a step, and its validity if it may be null."""
        index = len(self.values)
        row = Row(
            step=step,
            codes=tuple(self.shape.codes[arg] for arg in step.args),
            args=tuple(self.values[arg] for arg in step.args),
            known=tuple(self.known[arg] for arg in step.args),
        )
        phrase = PHRASES[step.op](row) if step.op in PHRASES else _math(row)
        lines = [f"r{index} = {phrase.value}"]
        self.values.append(f"r{index}")
        self.known.append(None if phrase.known is None else f"k{index}")
        if phrase.known is not None:
            lines.append(f"k{index} = {phrase.known}")
        if phrase.failed is not None:
            lines.append(f"f{index} = {phrase.failed}")
            self.failures.append(f"f{index}")
        return lines

    def root_known(self) -> list[str | None]:
        """Validity of each root; checks have none."""
        return [
            None if root.kind == CHECK else self.known[root.register] for root in self.shape.roots
        ]

    def body(self) -> str:
        """The kernel, from its decorator on."""
        lines = ["@N.kernel", f"def {ENTRY}({', '.join(ARGUMENTS)}):"]
        lines += [f"    {line}" for line in self.scratch()]
        lines += [
            "    for start in range(0, n, TILE):",
            "        rows = min(TILE, n - start)",
            "        for row in range(table.shape[0]):",
        ]
        inner = [*self.addresses(), *self.loads(), *self.compute(), *self.stores()]
        lines += [f"            {line}" for line in inner]
        return "\n".join(lines) + "\n"

    def scratch(self) -> list[str]:
        """Tile buffers: s inputs, v their validity, o roots, w theirs, failed casts and checks."""
        codes = self.shape.codes
        buffers = [(f"s{i}", code) for i, code in enumerate(self.shape.inputs)]
        if self.nullable:
            buffers += [(f"v{i}", "b1") for i in range(len(self.shape.inputs))]
        for i, (root, known) in enumerate(zip(self.shape.roots, self.root_known(), strict=True)):
            buffers.append((f"o{i}", codes[root.register]))
            if known is not None:
                buffers.append((f"w{i}", "b1"))
        if self.failures:
            buffers.append(("failed", "b1"))
        return [f"{name} = carray(scratch(), TILE, {TYPES[code]})" for name, code in buffers]

    def addresses(self) -> list[str]:
        """Arrays over the table's addresses, and constants."""
        lines = []
        inputs = self.shape.inputs
        for i, code in enumerate(inputs):
            lines.append(f"p{i} = carray(pointer(table[row, {i}]), FAR, {TYPES[code]})")
            if self.nullable:
                slot = len(inputs) + i
                lines.append(f"q{i} = carray(pointer(table[row, {slot}]), FAR, np.bool_)")
        for i, code in enumerate(self.shape.constants):
            table = "floats" if code[0] == "f" else "integers"
            lines.append(f"c{i} = {typed(code, f'{table}[row, {i}]')}")
        return lines

    def loads(self) -> list[str]:
        """Rows of the inputs into scratch."""
        names = [(f"s{i}", f"p{i}") for i in range(len(self.shape.inputs))]
        if self.nullable:
            names += [(f"v{i}", f"q{i}") for i in range(len(self.shape.inputs))]
        if not names:
            return []
        # unsigned places spare numba the test for negative ones, without which LLVM gathers
        gathered, whole = [], []
        for scratch, column in names:
            at = "np.uint64(start + j)"
            gathered.append("    for j in range(rows):")
            gathered.append(f"        {scratch}[j] = {column}[selected[{at}]]")
            whole += ["    for j in range(rows):", f"        {scratch}[j] = {column}[{at}]"]
        return ["if gathering:", *gathered, "else:", *whole]

    def compute(self) -> list[str]:
        """The expression over one tile, scratch to scratch."""
        lines = [f"x{i} = s{i}[j]" for i in range(len(self.shape.inputs))]
        if self.nullable:
            lines += [f"e{i} = v{i}[j]" for i in range(len(self.shape.inputs))]
        lines += self.lines
        for i, (root, known) in enumerate(zip(self.shape.roots, self.root_known(), strict=True)):
            lines.append(f"o{i}[j] = {self.delivered(root.register, root.kind)}")
            if known is not None:
                lines.append(f"w{i}[j] = {known}")
        if self.failures:
            lines.append(f"failed[j] = {' | '.join(self.failures)}")
        return ["for j in range(TILE):", *(f"    {line}" for line in lines)]

    def delivered(self, register: int, kind: str) -> str:
        """A root's value: checks hold only where known, and NaN is the canonical one."""
        value, known = self.values[register], self.known[register]
        if kind == CHECK:
            return value if known is None else f"{value} & {known}"
        code = self.shape.codes[register]
        if code[0] == "f":
            return f"({value} if {value} == {value} else {TYPES[code]}(np.nan))"
        return value

    def stores(self) -> list[str]:
        """Roots out of scratch: columns in one run, matrices a column in each row."""
        inputs, roots = len(self.shape.inputs), len(self.shape.roots)
        first = inputs * (2 if self.nullable else 1)
        lines = []
        if self.failures:
            lines += ["for j in range(rows):", "    flags[0] |= failed[j]"]
        for i, (root, known) in enumerate(zip(self.shape.roots, self.root_known(), strict=True)):
            if root.kind == CHECK:
                lines += ["for j in range(rows):", f"    flags[1] |= o{i}[j]"]
                continue
            code = self.shape.codes[root.register]
            lines.append(f"y{i} = carray(pointer(table[row, {first + i}]), FAR, {TYPES[code]})")
            at = "start + j" if root.kind == COLUMN else f"(start + j) * strides[{i}]"
            lines += ["for j in range(rows):", f"    y{i}[np.uint64({at})] = o{i}[j]"]
            if known is not None:
                slot = first + roots + i
                lines.append(f"z{i} = carray(pointer(table[row, {slot}]), FAR, np.bool_)")
                place = f"z{i}[np.uint64(start + j)]"
                value = f"w{i}[j]" if root.kind == COLUMN else f"w{i}[j] & {place}"
                lines += ["for j in range(rows):", f"    {place} = {value}"]
        return lines


ENTRY = "run"
ARGUMENTS = (
    "n",
    "gathering",
    "selected",
    "table",
    "integers",
    "floats",
    "strides",
    "flags",
)


def _math(row: Row) -> Phrase:
    """A published function, of the type of its argument."""
    return Phrase(f"{row.step.op}_{row.code}({row.args[0]})", row.known[0])
