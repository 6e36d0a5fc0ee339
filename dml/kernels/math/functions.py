"""Each math function of dml is defined once, as a table of IEEE operations.

``step_table("exp", "f8")`` is the meaning of ``exp`` on float64 in the oracle, in the NumPy tier
and in the numba tier, to the last bit. Change a table and every result that used it changes: then
raise ``ARITHMETIC_VERSION``, regenerate ``tests/vectors/math.json`` and write a page in
``docs/decisions``.
"""

from __future__ import annotations

from functools import cache, partial

from dml.kernels.math import exponential, logarithm, trigonometry
from dml.kernels.math.float_formats import FORMATS
from dml.kernels.math.step_evaluator import numpy_apply
from dml.kernels.math.step_language import MathStep, StepTable, trace
from dml.kernels.math.step_source import numba_source

__all__ = [
    "MathStep",
    "StepTable",
    "numba_source",
    "numpy_apply",
    "step_table",
]

# The function that makes the table, and its error bound in units in the last place for f4 and f8.
_WRITERS = {
    "exp": (exponential.exp, 1.0, 1.0),
    "expm1": (exponential.expm1, 1.5, 1.5),
    "tanh": (exponential.tanh, 1.75, 1.75),
    "sigmoid": (exponential.sigmoid, 1.75, 1.75),
    "log": (logarithm.log, 1.0, 1.0),
    "log1p": (logarithm.log1p, 1.0, 1.0),
    "log2": (logarithm.log2, 1.0, 1.0),
    "log10": (logarithm.log10, 1.0, 1.0),
    "sin": (trigonometry.sin, 0.55, 1.0),
    "cos": (trigonometry.cos, 0.55, 1.0),
}


@cache
def step_table(name: str, code: str) -> StepTable:
    """Return the table of ``name`` (one of ``MATH_OPS``) on ``code`` (f4 or f8).

    Raises KeyError for any other name or code. The same object is returned each time.
    """
    writer, ulp_f4, ulp_f8 = _WRITERS[name]
    return trace(
        name, code, partial(writer, form=FORMATS[code]), ulp_f4 if code == "f4" else ulp_f8
    )
