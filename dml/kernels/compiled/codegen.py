"""The source of a numba kernel is generated for an expression shape.

A kernel processes rows in tiles. The loops over a tile have a constant trip count, so that LLVM
vectorises them; they compute from columns into scratch memory, which is then copied to the outputs.
A full tile without a selection is read in place. Selected rows, and the rows of an incomplete last
tile, are first copied into scratch; the last of them is repeated to fill the tile.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re

from dml.kernels.compiled.expression_shapes import CHECK, COLUMN, KEEP, MATRIX, ExpressionShape
from dml.kernels.compiled.phrase_table import PHRASES, conversion
from dml.kernels.compiled.phrases import TYPES, Phrase, PhraseArguments, every, typed
from dml.kernels.math import ARITHMETIC_VERSION, MATH_CODES, MATH_OPS
from dml.kernels.math.functions import numba_source, step_table
from dml.kernels.program import Step

SINGLE = {
    "mix64": """
def mix64(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
""",
    "float_bits": """
def float_bits(x):
    bits = np.float64(x + np.float64(0.0)).view(np.uint64)
    return bits if x == x else np.uint64(0x7FF8000000000000)
""",
    "lesser": """
def lesser(a, b):
    m = b if (b < a) | (b != b) else a
    return -((-a) - b) if (a == b) & (m == 0) else m
""",
    "greater": """
def greater(a, b):
    m = b if (b > a) | (b != b) else a
    return a + b if (a == b) & (m == 0) else m
""",
    "round_up_digits": """
def round_up_digits(x, scale):
    r = np.rint(x * scale) / scale
    return r if r - r == 0 else x
""",
    "round_down_digits": """
def round_down_digits(x, scale):
    r = np.rint(x / scale) * scale
    return r if r - r == 0 else x
""",
    "is_multiple": """
def is_multiple(x, inverse, addend, turn, most):
    z = np.uint64(x) * inverse + addend
    return ((z >> turn) | (z << ((np.uint64(64) - turn) & np.uint64(63)))) <= most
""",
    "product_overflows": """
def product_overflows(a, b):
    if abs(np.float64(a) * np.float64(b)) < 4611686018427387904.0:
        return False
    least = np.int64(-9223372036854775808)
    if a == -1 or b == -1:
        return (a == least) | (b == least)
    return np.int64(np.uint64(a) * np.uint64(b)) // a != b
""",
}

PER_TYPE = {
    "floor_division": """
def floor_division_CODE(a, b):
    if b == 0:
        return KIND(a / b)
    rest = KIND(np.fmod(a, b))
    quotient = KIND((a - rest) / b)
    if rest != 0 and (b < 0) != (rest < 0):
        quotient = KIND(quotient - KIND(1.0))
    if quotient == 0:
        return KIND(math.copysign(KIND(0.0), KIND(a / b)))
    floor = KIND(np.floor(quotient))
    return KIND(floor + KIND(1.0)) if quotient - floor > KIND(0.5) else floor
""",
    "remainder": """
def remainder_CODE(a, b):
    rest = KIND(np.fmod(a, b))
    if b == 0:
        return rest
    if rest == 0:
        return KIND(math.copysign(rest, b))
    return KIND(rest + b) if (b < 0) != (rest < 0) else rest
""",
    "round_integer": """
def round_integer_CODE(x, step):
    quotient = KIND(x // step)
    rest = KIND(np.uint64(x) - np.uint64(quotient) * np.uint64(step))
    above = KIND(step - rest)
    up = (rest > above) | ((rest == above) & (KIND(quotient & KIND(1)) == KIND(1)))
    return KIND((np.uint64(quotient) + np.uint64(1 if up else 0)) * np.uint64(step))
""",
}

CALL = re.compile(r"\b([a-z][a-z0-9_]*)\(")


def called(text: str) -> str:
    """Return the source of every function defined here that ``text`` calls, sorted by name."""
    found = (definition(name) for name in sorted(set(CALL.findall(text))))
    return "".join(source for source in found if source)


def definition(name: str) -> str:
    """Return the source of function ``name`` with its decorator; "" if it is not defined here."""
    if name in SINGLE:
        return _inlined(SINGLE[name], name)
    family, _, code = name.rpartition("_")
    if family in PER_TYPE:
        text = PER_TYPE[family].replace("CODE", code).replace("KIND", TYPES[code])
        return _inlined(text, name)
    if family in MATH_OPS and code in MATH_CODES:
        return _inlined(numba_source(step_table(family, code), name), name)
    return ""


def _inlined(source: str, name: str) -> str:
    """Decorate function ``name`` for inlining, so that LLVM can vectorise the loop around it."""
    return source.replace(f"def {name}(", f"@N.inlined\ndef {name}(")


# Rows per tile: scratch for a handful of columns stays in a 32 kB first-level cache.
TILE = 256
# Columns of a matrix that are buffered before they are stored row by row, and rows per tile of
# kernels with matrices, so that the buffered columns stay in that cache.
LANES = 16
MATRIX_TILE = 128
# Rows that one instance computes before the next instance starts: enough for hardware prefetch, and
# few enough that their part of a matrix (512 kB with 128 columns) fits a second-level cache.
STRETCH = 1024

SUPPORTED = frozenset(PHRASES) | {f"{op}_{code}" for op in MATH_OPS for code in MATH_CODES}

HEADER = f'''"""This file is a kernel that dml generated; without it, it is made again."""
import math

import numpy as np

from dml.kernels.compiled.jit import natives

N = natives()
carray, pointer, scratch = N.carray, N.pointer, N.scratch
FAR = 1 << 48
LANES = {LANES}
STRETCH = {STRETCH}
ARITHMETIC = {ARITHMETIC_VERSION}
'''


@dataclasses.dataclass(frozen=True, slots=True)
class KernelSource:
    """Name and text of a kernel; ``known`` has a flag for each root: True if it is never null.

    A row of the kernel's address table has, in this order: inputs, validity of inputs (only if
    ``nullable``), roots (0 for checks), validity of roots (0 for ``known`` roots; for ``keep``, the
    number of kept rows).
    """

    name: str
    text: str
    nullable: bool
    known: tuple[bool, ...]


def source_of(shape: ExpressionShape, *, nullable: bool) -> KernelSource:
    """Generate the kernel for ``shape``; only if ``nullable``, its inputs may have nulls."""
    writer = _Writer(shape, nullable=nullable)
    body = writer.body()
    text = f"{HEADER}TILE = {writer.tile}\n\n{called(body)}\n{body}"
    name = "k" + hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    return KernelSource(name, text, nullable, tuple(known is None for known in writer.root_known()))


class _Writer:
    """Generates one kernel; most methods return lines of source, without indentation.

    Arrays in a kernel: p, q are an input and its validity; s, v are scratch for a tile of p and q;
    t, u are the tile that is read, in place or in scratch; g is the tile of an input cast to f4;
    o, w are scratch for a root and its validity; y, z are an output and its validity. Values in one
    row: x, e are an input and its validity, c is a constant, r, k, f are a step's value, validity
    and failure.
    """

    def __init__(self, shape: ExpressionShape, *, nullable: bool) -> None:
        self.shape, self.nullable = shape, nullable
        inputs, constants = len(shape.inputs), len(shape.constants)
        self.first_root = inputs * (2 if nullable else 1)
        self.matrices = [i for i, root in enumerate(shape.roots) if root.kind == MATRIX]
        self.keep = next((i for i, r in enumerate(self.shape.roots) if r.kind == KEEP), None)
        self.tile = MATRIX_TILE if self.matrices else TILE
        self.values = [f"x{i}" for i in range(inputs)]
        self.values += [f"c{i}" for i in range(constants)]
        self.known: list[str | None] = [f"e{i}" if nullable else None for i in range(inputs)]
        self.known += [None] * constants
        self.canonical = [code[0] != "f" for code in shape.inputs + shape.constants]
        self.narrowed: list[int] = []
        self.doubts: list[int] = []
        self.failures: list[str] = []
        self.lines = [line for step in shape.steps for line in self.step(step)]

    def step(self, step: Step) -> list[str]:
        """Add a register for ``step``; return lines for its value, validity and failed casts."""
        index = len(self.values)
        row = PhraseArguments(
            step=step,
            codes=tuple(self.shape.codes[arg] for arg in step.args),
            args=tuple(self.values[arg] for arg in step.args),
            known=tuple(self.known[arg] for arg in step.args),
        )
        phrase = PHRASES[step.op](row) if step.op in PHRASES else _math(row)
        lines = [f"r{index} = {phrase.value}"]
        if self.narrows(step):
            lines = self.narrow(step.args[0], index, checked=phrase.failed is not None)
        elif phrase.failed is not None:
            lines.append(f"f{index} = {phrase.failed}")
            self.failures.append(f"f{index}")
        self.values.append(f"r{index}")
        self.canonical.append(self.has_one_nan(step))
        self.known.append(None if phrase.known is None else f"k{index}")
        if phrase.known is not None:
            lines.append(f"k{index} = {phrase.known}")
        return lines

    def has_one_nan(self, step: Step) -> bool:
        """Return True if every NaN in the result of ``step`` has the canonical bits."""
        if step.code[0] != "f" or step.op not in PHRASES:
            return True
        if step.op in ("minimum", "maximum"):
            # a literal with a kind other than "any" is no NaN
            pairs = zip(step.args, step.params, strict=True)
            return all(kind != "any" or self.canonical[arg] for arg, kind in pairs)
        return step.op == "cast" and self.shape.codes[step.args[0]][0] != "f"

    def narrows(self, step: Step) -> bool:
        """Return True if ``step`` casts an 8-byte input to f4, which is done in a separate loop.

        The main loop then reads f4, so that one vector register holds twice as many rows.
        """
        if step.op != "cast" or step.code != "f4" or step.args[0] >= len(self.shape.inputs):
            return False
        code = self.shape.inputs[step.args[0]]
        return code in ("i8", "u8") or (code == "f8" and step.params == (True,))

    def narrow(self, column: int, index: int, *, checked: bool) -> list[str]:
        """Return lines that read input ``column``, cast to f4, into register ``index``.

        If ``checked``, an infinity sets ``doubt``: the input may be finite, but too large for f4.
        """
        if column not in self.narrowed:
            self.narrowed.append(column)
        lines = [f"r{index} = g{column}[j]"]
        if checked and column not in self.doubts:
            self.doubts.append(column)
            lines.append(f"doubt |= abs(r{index}) == np.float32(np.inf)")
        return lines

    def root_known(self) -> list[str | None]:
        """Return for each root the variable that is true where the root is not null, or None.

        A root is an output. None stands for a check, ``keep``, and an output without nulls.
        """
        return [
            None if root.kind in (CHECK, KEEP) else self.known[root.register]
            for root in self.shape.roots
        ]

    def body(self) -> str:
        """Return the source of the kernel function with its decorator."""
        lines = ["@N.kernel", f"def {ENTRY}({', '.join(ARGUMENTS)}):"]
        lines += [f"    {line}" for line in [*self.scratch(), *self.strides()]]
        lines += ["    count = 0"] if self.keep is not None else []
        inner = [*self.constants(), *self.loads(), *self.narrowing(), *self.compute()]
        inner += [*self.reports(), *self.stores()]
        lines += [
            "    for stretch in range(0, n, STRETCH):",
            "        first = last = 0",
            "        while first < table.shape[0]:",
            *(f"            {line}" for line in self.group()),
            "            for start in range(stretch, min(n, stretch + STRETCH), TILE):",
            "                rows = min(TILE, n - start)",
            "                whole = (rows == TILE) & (not gathering)",
            "                for row in range(first, last):",
            *(f"                    {line}" for line in inner),
            *(f"                {line}" for line in self.turned()),
            "            first = last",
        ]
        lines += [f"    {line}" for line in self.counted()]
        return "\n".join(lines) + "\n"

    def counted(self) -> list[str]:
        """Store the number of kept rows where the kernel table has the validity of ``keep``."""
        if self.keep is None:
            return []
        slot = self.first_root + len(self.shape.roots) + self.keep
        return [f"carray(pointer(table[0, {slot}]), 1, np.int64)[0] = count"]

    def scratch(self) -> list[str]:
        """Allocate scratch for one tile of each input, narrowed input and root."""
        codes = self.shape.codes
        buffers = [(f"s{i}", code, 1) for i, code in enumerate(self.shape.inputs)]
        if self.nullable:
            buffers += [(f"v{i}", "b1", 1) for i in range(len(self.shape.inputs))]
        buffers += [(f"g{i}", "f4", 1) for i in self.narrowed]
        for i, (root, known) in enumerate(zip(self.shape.roots, self.root_known(), strict=True)):
            if root.kind != CHECK:
                buffers.append((f"o{i}", codes[root.register], LANES if root.kind == MATRIX else 1))
            if known is not None:
                buffers.append((f"w{i}", "b1", 1))
        return [
            f"{name} = carray(scratch({self.tile * lanes * int(code[1])}), {self.tile * lanes},"
            f" {TYPES[code]})"
            for name, code, lanes in buffers
        ]

    def strides(self) -> list[str]:
        """Read matrix widths before all loops, since LLVM must assume that stores change them."""
        return [f"stride{i} = strides[{i}]" for i in self.matrices]

    def group(self) -> list[str]:
        """Return lines that move ``last`` to the end of a group of instances.

        A group has instances with adjacent matrix columns; without matrices, it has one instance.
        """
        if not self.matrices:
            return ["last += 1"]
        tests = ["last < table.shape[0]", "last - first < LANES"]
        for i in self.matrices:
            slot, width = self.first_root + i, self.shape.codes[self.shape.roots[i].register][1]
            tests.append(f"table[last, {slot}] == table[last - 1, {slot}] + {width}")
        return ["last += 1", f"while {' and '.join(tests)}:", "    last += 1"]

    def constants(self) -> list[str]:
        """Read the constants of the current instance from its row of the constant tables."""
        lines = []
        for i, code in enumerate(self.shape.constants):
            table = "floats" if code[0] == "f" else "integers"
            lines.append(f"c{i} = {typed(code, f'{table}[row, {i}]')}")
        return lines

    def loads(self) -> list[str]:
        """Load a tile of each input: full tiles without selection in place, others into scratch."""
        inputs = self.shape.inputs
        columns = [("p", "s", "t", i, i, code) for i, code in enumerate(inputs)]
        if self.nullable:
            columns += [("q", "v", "u", i, len(inputs) + i, "b1") for i in range(len(inputs))]
        if not columns:
            return []
        lying, gathered, first, padded = [], [], [], []
        for column, scratch, tile, i, slot, code in columns:
            begin = f"table[row, {slot}] + start * {code[1]}"
            lying.append(f"    {tile}{i} = carray(pointer({begin}), TILE, {TYPES[code]})")
            pointed = f"    {column}{i} = carray(pointer(table[row, {slot}]), FAR, {TYPES[code]})"
            # unsigned indices save numba the test for negative ones, so that LLVM can gather
            at = "np.uint64(start + j)"
            into = f"            {scratch}{i}[j] = {column}{i}"
            gathered += [pointed, "    if gathering:", "        for j in range(rows):"]
            gathered += [f"{into}[selected[{at}]]", "    else:", "        for j in range(rows):"]
            gathered.append(f"{into}[{at}]")
            padded.append(f"        {scratch}{i}[j] = {scratch}{i}[rows - 1]")
            first.append(f"    {tile}{i} = {scratch}{i}")
        padding = ["    for j in range(rows, TILE):", *padded]
        return ["if whole:", *lying, "else:", *gathered, *padding, *first]

    def narrowing(self) -> list[str]:
        """Cast a tile of each 8-byte input in ``narrowed`` to f4."""
        lines = []
        for i in self.narrowed:
            lines += ["for j in range(TILE):", f"    g{i}[j] = np.float32(t{i}[j])"]
        return lines

    def compute(self) -> list[str]:
        """Compute the roots of one tile into scratch, and the flags of the tile (see ``flags``)."""
        lines = [f"x{i} = t{i}[j]" for i in range(len(self.shape.inputs))]
        if self.nullable:
            lines += [f"e{i} = u{i}[j]" for i in range(len(self.shape.inputs))]
        lines += self.lines
        for i, (root, known) in enumerate(zip(self.shape.roots, self.root_known(), strict=True)):
            delivered = self.delivered(root.register, root.kind)
            if root.kind == CHECK:
                lines.append(f"held |= {delivered}")
            else:
                place = "np.uint64((row - first) * TILE + j)" if root.kind == MATRIX else "j"
                lines.append(f"o{i}[{place}] = {delivered}")
            if known is not None:
                lines.append(f"w{i}[j] = {known}")
        if self.failures:
            lines.append(f"bad |= {' | '.join(self.failures)}")
        started = [f"{name} = False" for name in self.flags()]
        return [*started, "for j in range(TILE):", *(f"    {line}" for line in lines)]

    def flags(self) -> list[str]:
        """Return a tile's flags: bad (a cast failed), doubt (may have), held (a check is true)."""
        bad = ["bad"] if self.failures or self.doubts else []
        doubt = ["doubt"] if self.doubts else []
        held = ["held"] if any(root.kind == CHECK for root in self.shape.roots) else []
        return [*bad, *doubt, *held]

    def delivered(self, register: int, kind: str) -> str:
        """Return the expression for a root's value: NaN made canonical, null checks made false."""
        value, known = self.values[register], self.known[register]
        if kind in (CHECK, KEEP):
            return value if known is None else f"{value} & {known}"
        code = self.shape.codes[register]
        if code[0] == "f" and not self.canonical[register]:
            return f"({value} if {value} == {value} else {TYPES[code]}(np.nan))"
        return value

    def reports(self) -> list[str]:
        """Test every row of a tile whose casts to f4 are in doubt, and set the kernel's flags."""
        lines = []
        for i in self.doubts:
            _, lost = conversion(f"t{i}[j]", "f8", "f4")
            lines += ["if doubt:", "    for j in range(TILE):"]
            lines.append(f"        bad |= {every(f'u{i}[j]' if self.nullable else None, lost)}")
        for place, name in enumerate(("bad", "held")):
            if name in self.flags():
                lines.append(f"flags[{place}] |= {name}")
        return lines

    def stores(self) -> list[str]:
        """Copy columns and validity of a tile from scratch to outputs; matrices: see ``turned``."""
        if self.keep is not None:
            return self.append_kept(self.keep)
        first, roots = self.first_root, len(self.shape.roots)
        lines = []
        for i, (root, known) in enumerate(zip(self.shape.roots, self.root_known(), strict=True)):
            code = self.shape.codes[root.register]
            if root.kind == COLUMN:
                begin = f"table[row, {first + i}] + start * {code[1]}"
                lines.append(f"y{i} = carray(pointer({begin}), TILE, {TYPES[code]})")
                lines += ["for j in range(rows):", f"    y{i}[j] = o{i}[j]"]
            if known is not None:
                begin = f"table[row, {first + roots + i}] + start"
                lines.append(f"z{i} = carray(pointer({begin}), TILE, np.bool_)")
                value = f"w{i}[j]" if root.kind == COLUMN else f"w{i}[j] & z{i}[j]"
                lines += ["for j in range(rows):", f"    z{i}[j] = {value}"]
        return lines

    def append_kept(self, keep: int) -> list[str]:
        """Append the kept rows of a tile to those of earlier tiles, without a branch.

        Every row is written, and the next row overwrites it if it is not kept.
        """
        first, roots = self.first_root, len(self.shape.roots)
        places = [(f"y{keep}", first + keep, "np.int64", "start + j")]
        for i, (root, known) in enumerate(zip(self.shape.roots, self.root_known(), strict=True)):
            if root.kind == COLUMN:
                code = self.shape.codes[root.register]
                places.append((f"y{i}", first + i, TYPES[code], f"o{i}[j]"))
            if known is not None:
                places.append((f"z{i}", first + roots + i, "np.bool_", f"w{i}[j]"))
        lines = [
            f"{name} = carray(pointer(table[row, {slot}]), FAR, {kind})"
            for name, slot, kind, _ in places
        ]
        lines.append("for j in range(rows):")
        lines += [f"    {name}[np.uint64(count)] = {value}" for name, _, _, value in places]
        return [*lines, f"    count += o{keep}[j]"]

    def turned(self) -> list[str]:
        """Copy the columns of each matrix from scratch to the outputs, row by row."""
        lines = []
        for i in self.matrices:
            code, slot = self.shape.codes[self.shape.roots[i].register], self.first_root + i
            begin = f"table[first, {slot}] + start * stride{i} * {code[1]}"
            lines.append(f"y{i} = carray(pointer({begin}), FAR, {TYPES[code]})")
            for test, count in (("if last - first == LANES:", "LANES"), ("else:", "last - first")):
                lines += [test, "    for j in range(rows):", f"        for k in range({count}):"]
                place = f"np.uint64(j * stride{i} + k)"
                lines.append(f"            y{i}[{place}] = o{i}[np.uint64(k * TILE + j)]")
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


def _math(row: PhraseArguments) -> Phrase:
    """Return the call of a math function for the type of the step."""
    return Phrase(f"{row.step.op}_{row.code}({row.args[0]})", row.known[0])
