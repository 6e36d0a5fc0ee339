"""This file writes the source of a numba kernel for an expression shape.

A kernel takes tiles of rows through three loops: columns into scratch (gathering selected rows),
the expression over whole tiles (a constant trip count is what LLVM vectorises), results out. Rows
past the end of the last tile are computed from leftovers and dropped.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence

from dml.kernels.phrases import PHRASES, TYPES, Phrase, Row, typed
from dml.kernels.program import Step
from dml.kernels.shape import CHECK, COLUMN, Shape

# Rows per tile: scratch for a handful of columns stays in a 32 kB first-level cache.
TILE = 256

# Part of a kernel's name: raise it when the same shape is to become other machine code.
VERSION = 1

HEADER = '''"""This file is a kernel that dml generated; it may be deleted at any time."""
import math
import numpy as np
from dml.kernels.jit import natives
N = natives()
carray, pointer, scratch = N.carray, N.pointer, N.scratch
FAR = 1 << 48
TILE = {tile}
'''

# Functions that phrases call, by name. They repeat what NumPy does, step by step.
FUNCTIONS = {
    "mix64": """
def mix64(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
""",
    "float_bits": """
def float_bits(x):
    bits = (x + np.float64(0.0)).view(np.uint64)
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
    "floor_division": """
def floor_division(a, b):
    kind = type(a)
    rest = math.fmod(a, b)
    if b == 0:
        return a / b
    quotient = (a - rest) / b
    if rest != 0 and (b < 0) != (rest < 0):
        quotient = quotient - ONE(a)
    if quotient == 0:
        return math.copysign(a - a if False else ZERO(a), a / b)
    floor = np.floor(quotient)
    return floor + ONE(a) if quotient - floor > HALF(a) else floor
""",
    "remainder": """
def remainder(a, b):
    rest = math.fmod(a, b)
    if b == 0:
        return rest
    if rest == 0:
        return math.copysign(rest, b)
    return rest + b if (b < 0) != (rest < 0) else rest
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
    "round_integer": """
def round_integer(x, step, kind):
    quotient = kind(x // step)
    rest = kind(x - quotient * step)
    above = kind(step - rest)
    up = (rest > above) | ((rest == above) & (quotient & kind(1) == kind(1)))
    return kind(kind(quotient + kind(up)) * step)
""",
    "product_overflows": """
def product_overflows(a, b):
    if abs(np.float64(a) * np.float64(b)) < 4611686018427387904.0:
        return False
    least = np.int64(-9223372036854775808)
    if a == -1 or b == -1:
        return (a == least) | (b == least)
    return (a * b) // a != b
""",
}
