"""The interpreter runs programs with NumPy, one operation over all rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dml.kernels import (
    arithmetic_ops,
    arrow_ops,
    cast_ops,
    function_ops,
    logic_ops,
    lookup_ops,
    python_ops,
)
from dml.kernels.functions.table import function_of
from dml.kernels.math import MATH_OPS
from dml.kernels.program import CHAIN, CHAINS, ChainTools, Program, Step
from dml.kernels.vec import NEVER, CastFailure, Register, Vec, spread, taken


def math_op(name: str) -> arithmetic_ops.Op:
    """Make the operation of the math function ``name``, computed in the type of the result."""

    def op(args: Sequence[Vec], code: str, _params: tuple[Any, ...]) -> Vec:
        from dml.kernels.math.functions import numpy_apply, step_table  # noqa: PLC0415 - few need it

        values = args[0].values.astype(code, copy=False)
        return Vec(numpy_apply(step_table(name, code), values), args[0].valid)

    return op


NUMERIC_OPS: dict[str, arithmetic_ops.Op] = {
    **{name: math_op(name) for name in MATH_OPS},
    **arithmetic_ops.OPS,
    **python_ops.OPS,
    **logic_ops.OPS,
    **cast_ops.OPS,
    **lookup_ops.OPS,
}


class Result(NamedTuple):
    """One register per output of the program; ``failed`` is true if a check is true in any row.

    ``kept`` are the positions (k,) i8, among the rows computed, of the rows that a program with
    ``keep`` delivers; None for other programs.
    """

    outputs: list[Register]
    failed: bool
    kept: np.ndarray | None = None


def run(
    program: Program,
    inputs: Sequence[Register],
    n: int,
    sel: np.ndarray | None = None,
    tools: ChainTools | None = None,
) -> Result:
    """Compute ``program`` over the ``n`` rows of ``inputs``, or over those in ``sel``.

    ``sel`` (ascending row numbers) is applied to the inputs before anything is computed. Outputs
    have one row per row computed, are contiguous and owned by the caller; only an output that is an
    input itself may, without ``sel``, share the input's memory. In a computed output every NaN is
    the canonical one, and validity is None if all rows are valid. Steps that no output needs are
    not run. Chains run with ``tools``. A CastFailure has the row number in ``inputs``.
    """
    rows = n if sel is None else len(sel)
    registers: list[Register | None] = [
        picked(register, sel) if index in program.reads else None
        for index, register in enumerate(inputs)
    ]
    borrowed = {id(r.values) for r in registers if isinstance(r, Vec)}
    with np.errstate(all="ignore"):
        try:
            for step, dead in zip(program.steps, program.deaths, strict=True):
                wanted = len(registers) in program.needed
                registers.append(apply(step, registers, rows, tools) if wanted else None)
                for register in dead:
                    registers[register] = None
        except CastFailure as failure:
            row = failure.row if sel is None else int(sel[failure.row])
            raise type(failure)(row, failure.value, failure.code) from None
        failed = rows > 0 and any(_holds_anywhere(registers[check]) for check in program.checks)
        first, steps = len(program.inputs), program.steps
        outputs = [
            registers[i] if i < first else delivered(registers[i], rows, borrowed, steps[i - first])
            for i in program.outputs
        ]
        kept = None if program.keep is None else places(registers[program.keep], rows)
    made = outputs if kept is None else delivered_rows(program, outputs, kept)
    return Result(made, failed, kept)


class ElementProgram(Program):
    """A program over the elements of lists, which a step of another program runs."""

    def evaluate(self, inputs: Sequence[Register], rows: int) -> Register:
        """Return the register of the only output; a CastFailure has the number of an element."""
        (found,) = run(self, inputs, rows).outputs
        return found


def delivered_rows(
    program: Program, outputs: Sequence[Register], kept: np.ndarray
) -> list[Register]:
    """Select the rows ``kept`` of ``outputs``; a computed output without nulls has no validity."""
    found = []
    for output, register in zip(program.outputs, outputs, strict=True):
        rows = picked(register, kept)
        computed = output >= len(program.inputs) and isinstance(rows, Vec)
        if computed and rows.valid is not None and rows.valid.all():
            rows = Vec(rows.values)
        found.append(rows)
    return found


def places(flags: Register | None, rows: int) -> np.ndarray:
    """Return the positions where a b1 register is true, (k,) i8; null is not true."""
    if not isinstance(flags, Vec):
        raise TypeError("what is kept is a b1 register")
    held = flags.values if flags.valid is None else flags.values & flags.valid
    return np.flatnonzero(np.broadcast_to(held, (rows,)))


def picked(register: Register, sel: np.ndarray | None) -> Register:
    """Return the rows ``sel`` of ``register``, or all rows if ``sel`` is None."""
    if sel is None:
        return register
    if not isinstance(register, Vec):
        return taken(register, sel)
    # every index is in range, and "clip" spares NumPy from buffering to find that out
    valid = None if register.valid is None else register.valid.take(sel, mode="clip")
    return Vec(register.values.take(sel, axis=0, mode="clip"), valid)


def apply(
    step: Step,
    registers: Sequence[Register | None],
    rows: int,
    tools: ChainTools | None = None,
) -> Register:
    """Compute one step; the caller silences floating-point warnings."""
    if step.op == "lit":
        return literal(step)
    args = [registers[arg] for arg in step.args]
    if step.op in CHAINS:
        from dml.kernels.functions import chains  # noqa: PLC0415 most programs have no chain

        return chains.apply(step, args, rows, tools)
    vecs = [arg for arg in args if isinstance(arg, Vec)]
    if function_of(step.op) is not None:
        return function_ops.apply(step, args, rows)
    if step.code == "arrow" or len(vecs) < len(args):
        return arrow_ops.OPS[step.op](args, step.code, step.params)
    if step.op == "stack":
        # other operations broadcast a literal, but stacked rows need one value per row
        vecs[0] = spread(vecs[0], rows)
    return NUMERIC_OPS[step.op](vecs, step.code, step.params)


def literal(step: Step) -> Register:
    """Return the value of a literal step, without axes; None is a null."""
    if step.code == "arrow":
        return arrow_ops.literal(step.params)
    if step.params[0] is None:
        return Vec(np.zeros((), step.code), NEVER)
    return Vec(np.asarray(step.params[0], step.code))


def _holds_anywhere(register: Register | None) -> bool:
    if not isinstance(register, Vec):
        raise TypeError("a check is a b1 register")
    holds = register.values if register.valid is None else register.values & register.valid
    return bool(holds.any())


def delivered(register: Register | None, rows: int, borrowed: set[int], step: Step) -> Register:
    """Prepare a computed register for the caller: all rows, memory of its own, canonical NaN.

    ``borrowed`` are the ids of arrays that the caller or other outputs have; the result's is added.
    Chains of functions of images and sounds give memory of their own, without odd NaN.
    """
    if not isinstance(register, Vec):
        if isinstance(register, pa.Scalar):
            # pyarrow 26 cannot repeat a list zero times
            return pa.repeat(register, rows) if rows else pa.nulls(0, register.type)
        return register
    if step.op in CHAINS and step.op != CHAIN and id(register.values) not in borrowed:
        borrowed.add(id(register.values))
        return register
    values, valid = spread(register, rows)
    if id(values) in borrowed or not values.flags.owndata or not values.flags.c_contiguous:
        values = values.copy()
    borrowed.add(id(values))
    canonicalise(values)
    if valid is not None:
        valid = np.full(rows, valid) if valid.ndim == 0 else valid.copy()
    return Vec(values, None if valid is None or valid.all() else valid)


def canonicalise(values: np.ndarray) -> None:
    """Give every NaN in ``values`` the canonical bit pattern, in place."""
    if values.dtype.kind != "f":
        return
    nan = np.isnan(values)
    if nan.any():
        values[nan] = np.nan
