"""The constants of both float formats and the building blocks of all math functions are here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dml.kernels.math.step_language import StepValue

NAN = math.nan
INF = math.inf


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """The layout of one IEEE format, and where scaling by its exponent field stops being exact."""

    code: str
    fraction_bits: int
    bias: int
    sign_bits: int
    fraction_mask: int
    one_bits: int
    inf_bits: int
    min_normal_bits: int
    to_integer: float  # adding it rounds to an integer and leaves that integer in the low bits
    exp_usual: float  # exp is normal on both sides up to here
    exp_overflow: float  # exp is inf above
    exp_underflow: float  # exp is 0 below
    far: int  # a power of two that scales normal results to denormal ones


def _format(code: str, fraction_bits: int, **limits: Any) -> FloatFormat:
    """Return the format of a type code; ``limits`` are where scaling stops being exact."""
    bits = 8 * int(code[1])
    bias = (1 << (bits - fraction_bits - 2)) - 1
    return FloatFormat(
        code,
        fraction_bits,
        bias,
        sign_bits=1 << (bits - 1),
        fraction_mask=(1 << fraction_bits) - 1,
        one_bits=bias << fraction_bits,
        inf_bits=(2 * bias + 1) << fraction_bits,
        min_normal_bits=1 << fraction_bits,
        to_integer=1.5 * 2.0**fraction_bits,
        **limits,
    )


F8 = _format("f8", 52, exp_usual=708.0, exp_overflow=710.0, exp_underflow=-746.0, far=512)
F4 = _format("f4", 23, exp_usual=87.0, exp_overflow=89.0, exp_underflow=-104.0, far=64)
FORMATS = {"f4": F4, "f8": F8}


def from_hex(numbers: str) -> tuple[float, ...]:
    """Return the floats of a text of hexadecimal numbers, with blanks between."""
    return tuple(map(float.fromhex, numbers.split()))


def polynomial(z: StepValue, coefficients: tuple[float, ...]) -> StepValue:
    """Return c0 + c1 z + c2 z**2 + ... by Horner's rule."""
    total = z * coefficients[-1] + coefficients[-2]
    for coefficient in reversed(coefficients[:-2]):
        total = total * z + coefficient
    return total


def two_sum(a: StepValue, b: StepValue) -> tuple[StepValue, StepValue]:
    """Return the rounded sum and its exact error, of any a and b (Knuth, TAOCP 2, 4.2.2)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def with_sign_of(magnitude: StepValue, x: StepValue, form: FloatFormat) -> StepValue:
    """Return ``magnitude`` with x's sign; its own sign must be positive, or that of x."""
    return (magnitude.bits() | (x.bits() & form.sign_bits)).from_bits()
