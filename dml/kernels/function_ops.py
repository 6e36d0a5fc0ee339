"""Functions of the function table run on registers here: literals are expanded, results cast."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dml.kernels.arrow_ops import as_arrow, as_register
from dml.kernels.functions.table import functions
from dml.kernels.program import Step
from dml.kernels.vec import ARROW_TYPES, Register, Vec, spread


def apply(step: Step, args: Sequence[Register], rows: int) -> Register:
    """Apply the function of ``step``; if all ``args`` are literals, the result is a literal."""
    function = functions()[step.op]
    if function.vectors:
        return function.run([written_out(arg, rows) for arg in args], step.params)
    given = [as_arrow(arg) for arg in args]
    # without rows, a function that may fail must not run
    fails = function.fails(step.params)
    constant = not fails and all(isinstance(arg, pa.Scalar) for arg in given)
    n = 1 if constant else rows
    arrays = [pa.repeat(arg, n) if isinstance(arg, pa.Scalar) else arg for arg in given]
    result = function.run(arrays, step.params)
    if step.code != "arrow" and result.type != ARROW_TYPES[step.code]:
        result = result.cast(ARROW_TYPES[step.code])
    return as_register(result[0] if constant else result, step.code)


def written_out(arg: Register, rows: int) -> Register:
    """Expand a literal argument to a value for every row."""
    if isinstance(arg, Vec):
        return spread(arg, rows)
    return pa.repeat(arg, rows) if isinstance(arg, pa.Scalar) else arg
