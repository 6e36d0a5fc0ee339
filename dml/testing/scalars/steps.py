"""The oracle's math functions evaluate a published step table on one Python float.

They share the tables with the engine and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dml.kernels.math.functions import StepTable
from dml.kernels.math.step_language import MathStep
from dml.testing.scalars.floats import divide, from_bits, rounded, to_bits

_FLOAT_OPS: dict[str, Callable[[float, float], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": divide,
}
_INTEGER_OPS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
}
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "lt": lambda a, b: bool(a < b),
    "le": lambda a, b: bool(a <= b),
    "eq": lambda a, b: bool(a == b),
}


def evaluate(table: StepTable, x: float) -> float:
    """Return the function of ``table`` at x, a float that the table's type holds."""
    values: list[Any] = []
    for step in table.steps:
        values.append(x if step.op == "input" else _evaluate_step(table, step, values))
    result: float = rounded(values[-1], table.code)
    return result


def _evaluate_step(table: StepTable, step: MathStep, values: list[Any]) -> Any:
    """Return the value of one step."""
    if step.op == "const":
        return step.literal
    args = [values[arg] for arg in step.args]
    if step.op in _COMPARISONS:
        return _COMPARISONS[step.op](*args)
    if step.op in ("select", "patch"):
        return args[1] if args[0] else args[2]
    if step.op == "lookup":
        return args[1][args[0]]
    if step.code[0] == "u":
        if step.op == "bits":
            return to_bits(args[0], table.steps[step.args[0]].code)
        return _INTEGER_OPS[step.op](*args) % (1 << 8 * int(step.code[1]))
    return _evaluate_float(step, args)


def _evaluate_float(step: MathStep, args: list[Any]) -> float:
    """Return the value of a step that makes a float."""
    if step.op in _FLOAT_OPS:
        return rounded(_FLOAT_OPS[step.op](*args), step.code)
    if step.op == "float":
        return from_bits(args[0], step.code)
    if step.op == "neg":
        return float(-args[0])
    if step.op == "abs":
        return abs(float(args[0]))
    return rounded(args[0], step.code)  # widen, narrow
