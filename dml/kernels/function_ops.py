"""This file runs the functions of the table on registers: literals are spread, results checked."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dml.kernels.arrow_ops import as_arrow, as_register
from dml.kernels.functions.table import FUNCTIONS
from dml.kernels.program import Step
from dml.kernels.vec import ARROW_TYPES, Register


def apply(step: Step, args: Sequence[Register], rows: int) -> Register:
    """One function over its arguments; of literals alone it is computed once and stays one."""
    given = [as_arrow(arg) for arg in args]
    constant = all(isinstance(arg, pa.Scalar) for arg in given)
    n = 1 if constant else rows
    arrays = [pa.repeat(arg, n) if isinstance(arg, pa.Scalar) else arg for arg in given]
    result = FUNCTIONS[step.op].run(arrays, step.params)
    if step.code != "arrow" and result.type != ARROW_TYPES[step.code]:
        result = result.cast(ARROW_TYPES[step.code])
    return as_register(result[0] if constant else result, step.code)
