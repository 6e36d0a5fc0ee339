"""This file is the one arithmetic of dml: each math function as a table of IEEE operations.

``step_table("exp", "f8")`` is the meaning of ``exp`` on float64 in the oracle, in the NumPy tier
and in the numba tier, to the last bit. Change a table and every result that used it changes: then
raise ``ARITHMETIC_VERSION``, regenerate ``tests/vectors/math.json`` and write a page in
``docs/decisions``.
"""

from __future__ import annotations

from functools import cache, partial

from dml.kernels import steps_circle, steps_exponential, steps_logarithm
from dml.kernels.steps_formats import FORMATS
from dml.kernels.steps_language import MathStep, StepTable, trace
from dml.kernels.steps_numpy import numpy_apply
from dml.kernels.steps_source import numba_source, usual_source

__all__ = [
    "ARITHMETIC_VERSION",
    "MATH_CODES",
    "MATH_OPS",
    "MathStep",
    "StepTable",
    "numba_source",
    "numpy_apply",
    "step_table",
    "usual_source",
]

ARITHMETIC_VERSION = 1

MATH_CODES = ("f4", "f8")

# The function that writes the table, and its stated error in units in the last place for f4 and f8.
_WRITERS = {
    "exp": (steps_exponential.exp, 1.0, 1.0),
    "expm1": (steps_exponential.expm1, 1.5, 1.5),
    "tanh": (steps_exponential.tanh, 1.75, 1.75),
    "sigmoid": (steps_exponential.sigmoid, 1.75, 1.75),
    "log": (steps_logarithm.log, 1.0, 1.0),
    "log1p": (steps_logarithm.log1p, 1.0, 1.0),
    "log2": (steps_logarithm.log2, 1.0, 1.0),
    "log10": (steps_logarithm.log10, 1.0, 1.0),
    "sin": (steps_circle.sin, 0.55, 1.0),
    "cos": (steps_circle.cos, 0.55, 1.0),
}

MATH_OPS = tuple(sorted(_WRITERS))


@cache
def step_table(name: str, code: str) -> StepTable:
    """Return the table of ``name`` (one of ``MATH_OPS``) on ``code`` (f4 or f8).

    Raises KeyError for any other name or code. The same object is returned each time.
    """
    writer, ulp_f4, ulp_f8 = _WRITERS[name]
    return trace(
        name, code, partial(writer, form=FORMATS[code]), ulp_f4 if code == "f4" else ulp_f8
    )
