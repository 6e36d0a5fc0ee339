"""The oracle does IEEE arithmetic on Python numbers, without NumPy.

A float32 operation is the float64 one rounded once more, which is exact for + - * / and the square
root, since 53 >= 2 * 24 + 2 (Figueroa, 1995). Every NaN that leaves a function is ``math.nan``.
"""

from __future__ import annotations

import math
import struct

INTEGER_LIMITS = {
    code: (-(1 << bits - 1), (1 << bits - 1) - 1) if code[0] == "i" else (0, (1 << bits) - 1)
    for code in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
    for bits in (8 * int(code[1]),)
}
_LAYOUT = {"f4": ("<f", "<I"), "f8": ("<d", "<Q")}


def wrap(value: int, code: str) -> int:
    """Take an integer modulo the width of its type."""
    low, high = INTEGER_LIMITS[code]
    return (value - low) % (high - low + 1) + low


def rounded(value: float, code: str) -> float:
    """Round a float64 to the type, ties to even, overflow to infinity."""
    if math.isnan(value):
        return math.nan
    if code == "f8":
        return value
    try:
        narrow: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return narrow


def from_integer(value: int, code: str) -> float:
    """Round an integer to the type directly (through float64 it could be rounded twice)."""
    digits = 24 if code == "f4" else 53
    excess = max(value.bit_length() - digits, 0)
    quotient, rest = divmod(abs(value), 1 << excess)
    half = (1 << excess) >> 1
    quotient += excess > 0 and (rest > half or (rest == half and quotient % 2 == 1))
    return math.copysign(float(quotient << excess), value)


def to_bits(value: float, code: str) -> int:
    """Return the bits of a float of the type."""
    as_float, as_integer = _LAYOUT[code]
    bits: int = struct.unpack(as_integer, struct.pack(as_float, value))[0]
    return bits


def from_bits(bits: int, code: str) -> float:
    """Return the float of the type with these bits."""
    as_float, as_integer = _LAYOUT[code]
    value: float = struct.unpack(as_float, struct.pack(as_integer, bits))[0]
    return value


def divide(a: float, b: float, code: str = "f8") -> float:
    """IEEE division: by zero gives an infinity or NaN."""
    if b != 0 or math.isnan(a) or math.isnan(b):
        return rounded(a / b, code) if b != 0 else math.nan
    if a == 0:
        return math.nan
    return math.copysign(math.inf, math.copysign(1.0, a) * math.copysign(1.0, b))


def square_root(a: float, code: str) -> float:
    """IEEE square root; NaN below zero; -0.0 stays."""
    return rounded(math.sqrt(a), code) if a >= 0 else math.nan


def remainder(a: float, b: float) -> float:
    """C's fmod, exact: the sign of a; NaN where a is infinite or b is zero."""
    if math.isnan(a) or math.isnan(b) or math.isinf(a) or b == 0:
        return math.nan
    return math.fmod(a, b)


def floor_divmod(a: float, b: float, code: str) -> tuple[float, float]:
    """Python's ``divmod`` in the given type, for b that is not zero."""
    rest = remainder(a, b)
    quotient = divide(rounded(a - rest, code), b, code)
    if rest == 0:
        rest = math.copysign(0.0, b)
    elif (b < 0) != (rest < 0):
        rest, quotient = rounded(rest + b, code), rounded(quotient - 1.0, code)
    if quotient == 0:
        return math.copysign(0.0, divide(a, b)), rest
    whole = toward(math.floor, quotient)
    if quotient - whole > 0.5:
        whole = rounded(whole + 1.0, code)
    return whole, rounded(rest, code)


def toward(rounding: object, value: float) -> float:
    """``math.floor``, ``ceil``, ``trunc`` or ``round`` of a float as a float of the same sign."""
    if math.isnan(value) or math.isinf(value):
        return math.nan if math.isnan(value) else value
    whole: int = rounding(value)  # type: ignore[operator]
    return math.copysign(float(whole), value) if whole == 0 else float(whole)


def lesser(a: float, b: float) -> float:
    """IEEE 754-2019 minimum: NaN wins, -0.0 is below +0.0."""
    if math.isnan(a) or math.isnan(b):
        return math.nan
    if a == b:
        return a if math.copysign(1.0, a) < 0 else b
    return min(a, b)


def greater(a: float, b: float) -> float:
    """IEEE 754-2019 maximum: NaN wins, +0.0 is above -0.0."""
    return -lesser(-a, -b)
