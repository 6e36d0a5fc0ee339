"""This file holds the scalar functions that generated kernels call, as source for numba.

Each repeats step by step what NumPy computes. ``KIND`` stands for the NumPy type in functions that
exist once per type, which are named with the type's code at the end.
"""

from __future__ import annotations

import re

from dml.kernels.phrases import TYPES
from dml.kernels.steps import MATH_CODES, MATH_OPS, numba_source, step_table

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
    """Definitions of the functions that ``text`` calls, in the order of their names."""
    found = (definition(name) for name in sorted(set(CALL.findall(text))))
    return "".join(source for source in found if source)


def definition(name: str) -> str:
    """Source of one function with its decorator; empty if it is not one of ours."""
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
    """The function put inside its caller by LLVM, so that the loop around it can be vectorised."""
    return source.replace(f"def {name}(", f"@N.inlined\ndef {name}(")
