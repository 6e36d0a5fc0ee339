"""A chain of text functions runs through one compiled kernel, byte by byte.

The kernel is driven by tables, so one kernel serves all chains: each byte is mapped by a table, and
of each run of bytes in a set only the first is kept. The text functions make the tables.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dml.kernels.compiled.jit import Kernel
from dml.kernels.functions import bytewise
from dml.kernels.functions.byte_sets import ASCII
from dml.kernels.functions.bytewise import Bytes, Letters, Replaced, Same, SlicedBytes

if TYPE_CHECKING:
    from dml.kernels.compiled.codegen import KernelSource

# If a smaller part of the bytes is kept, it is copied, so that the rest of the memory is freed.
KEPT = 0.75

TEXT = """
@N.kernel
def {entry}({arguments}):
    edges = carray(pointer(table[0, 0]), FAR, np.int64)
    data = carray(pointer(table[0, 1]), FAR, np.uint8)
    member = carray(pointer(table[0, 2]), 256, np.uint8)
    given = carray(pointer(table[0, 3]), 256, {kind})
    out = carray(pointer(table[0, 4]), FAR, {kind})
    ends = carray(pointer(table[0, 5]), FAR, np.int64)
    always, lead = np.uint64(integers[0, 0]), np.uint64(integers[0, 1])
    trail, most = np.uint64(integers[0, 2]), np.uint64(integers[0, 3])
    one = np.uint64(1)
    k = np.uint64(0)
    for row in range(np.uint64(n)):
        first = k
        before = lead
        for i in range(np.uint64(edges[row]), np.uint64(edges[row + one])):
            byte = data[i]
            out[k] = given[byte]
            inside = np.uint64(member[byte])
            k += one - (inside & (before | always))
            before = inside
        if (trail & before) and k > first:
            k -= one
        if k - first > most:
            k = first + most
        ends[row + one] = k
"""


@functools.cache
def source(width: int) -> KernelSource:
    """Return the source of the kernel for values of ``width`` bytes."""
    from dml.kernels.compiled import codegen  # noqa: PLC0415 most runs are over before kernels are worth it

    kind = f"np.uint{8 * width}"
    text = codegen.HEADER + TEXT.format(
        entry=codegen.ENTRY, arguments=", ".join(codegen.ARGUMENTS), kind=kind
    )
    name = "t" + hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    return codegen.KernelSource(name, text, nullable=False, known=())


@dataclasses.dataclass(frozen=True)
class ByteMachine:
    """The kernel's tables: byte b becomes ``given[b]``; of a run of ``members``, only one stays.

    With ``always``, no member stays; with ``lead`` or ``trail``, none at the start or the end of a
    row. If ``others`` is false, the tables are valid for ASCII text only. A row gets at most
    ``most`` values.
    """

    given: np.ndarray
    members: np.ndarray
    others: bool = True
    always: bool = False
    lead: bool = False
    trail: bool = False
    most: int = (1 << 62) - 1

    @property
    def source(self) -> KernelSource:
        """The source of the kernel that uses these tables."""
        return source(self.given.itemsize)

    def before(self, step: Any) -> ByteMachine | None:
        """Return one machine that does what this one does, then ``step``; None if impossible."""
        match step:
            case Same():
                return self
            case Letters():
                return dataclasses.replace(self, given=_through(step, self.given), others=False)
            case SlicedBytes(0, size):
                most = self.most if size is None else min(self.most, size)
                return dataclasses.replace(self, most=most)
            case Replaced() if not self.members.any():
                return self.replacing(step)
        return None

    def replacing(self, step: Replaced) -> ByteMachine:
        """Return one machine for this one, which drops no bytes, and the replacement ``step``."""
        found = step.members.table[self.given]
        others = self.others and not step.members.others
        given = self.given if step.byte is None else np.where(found, step.byte, self.given)
        given = given.astype("u1")
        if step.byte is not None and not step.members.runs:
            return dataclasses.replace(self, given=given, others=others)
        return ByteMachine(
            given,
            found,
            others,
            always=step.byte is None,
            lead=step.lead,
            trail=step.trail,
            most=self.most,
        )

    def run(self, kernel: Kernel, rows: Bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return the concatenated values of all rows, and the offsets of rows, (rows + 1,) i8."""
        data = np.ascontiguousarray(rows.data)
        edges = np.ascontiguousarray(rows.edges)
        word = np.dtype(f"u{self.given.itemsize}")
        out, ends = np.empty(len(data), word), np.zeros(len(edges), "i8")
        held = (edges, data, self.members.view("u1"), self.given, out, ends)
        integers = [self.always, self.lead, self.trail, self.most]
        kernel(
            len(edges) - 1,
            False,  # noqa: FBT003 positional in the signature: no rows are selected
            np.empty(0, "u8"),
            np.array([[pa.py_buffer(array).address for array in held]], "i8"),
            np.array([integers], "i8"),
            np.empty((0, 0)),
            np.empty(0, "i8"),
            np.zeros(2, bool),
        )
        kept = out[: ends[-1]]
        return (kept if len(kept) > KEPT * len(out) else kept.copy()).view(self.given.dtype), ends


def _through(step: Letters, given: np.ndarray) -> np.ndarray:
    """Return the table ``given`` with ``step`` applied to its entries below 128."""
    low = given & np.uint8(ASCII - 1)
    found = step(Bytes(low, np.array([0, len(low)]), ascii=True))
    if found is None:
        raise TypeError("a step over ASCII refused it")
    return np.where(given < ASCII, found.data, given).astype("u1")


def machine_of(steps: Sequence[bytewise.Step]) -> ByteMachine | None:
    """Return one machine that does what ``steps`` do in this order; None if impossible."""
    made: ByteMachine | None = ByteMachine(np.arange(256, dtype="u1"), np.zeros(256, bool))
    for step in steps:
        made = None if made is None else made.before(step)
    return made
