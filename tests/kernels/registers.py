"""Convert columns from and to Python values, for tests of single operations."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dml.kernels.interpreter import Result, run
from dml.kernels.program import Program, Step
from dml.kernels.vec import Register, Vec

NAN, INF = math.nan, math.inf
INTS = {
    "i1": (-(2**7), 2**7 - 1),
    "i8": (-(2**63), 2**63 - 1),
    "u1": (0, 2**8 - 1),
    "u8": (0, 2**64 - 1),
}
FLOATS = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -0.0, 1.0, -1.0])


def ints(code: str) -> st.SearchStrategy[int | None]:
    low, high = INTS[code]
    edges = [v for v in (0, 1, 2, -1, low, high) if low <= v <= high]
    return st.sampled_from(edges) | st.integers(low, high) | st.none()


def vec(values: list[Any], code: str) -> Vec:
    """Values with None for null; what lies under a null is the type's ugliest value."""
    ugly = NAN if code[0] == "f" else 0
    valid = np.array([v is not None for v in values], bool)
    array = np.array([ugly if v is None else v for v in values], code)
    return Vec(array, None if valid.all() else valid)


def items(register: Register) -> list[Any]:
    if not isinstance(register, Vec):
        return list(register.to_pylist())
    valid = np.ones(len(register.values), bool) if register.valid is None else register.valid
    return [v if ok else None for v, ok in zip(register.values.tolist(), valid, strict=True)]


def compute(op: str, args: list[Register], code: str, *params: Any, n: int | None = None) -> Result:
    codes = tuple(arg.code if isinstance(arg, Vec) else "arrow" for arg in args)
    program = Program(codes, (Step(op, tuple(range(len(args))), code, params),), (len(args),))
    rows = n if n is not None else len(args[0].values if isinstance(args[0], Vec) else args[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return run(program, args, rows)


def answer(op: str, args: list[Register], code: str, *params: Any) -> list[Any]:
    return items(compute(op, args, code, *params).outputs[0])


def same(left: list[Any], right: list[Any]) -> bool:
    """Equal, with NaN equal to NaN and zeros told apart."""
    return [repr(v) for v in left] == [repr(v) for v in right]
