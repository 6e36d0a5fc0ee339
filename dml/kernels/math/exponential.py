"""exp, expm1, tanh and sigmoid are tables of IEEE basic operations.

All four share one reduction. With k the integer nearest to x / ln 2, r = x - k ln 2 is kept as
``high - low`` (Cody and Waite, 1980), and e**r = 1 + r + r c / (2 - c) with c = r - t P(t), t =
r**2: the continued fraction form of FDLIBM (Sun, 1993). The coefficients of P are Chebyshev fits of
(r coth(r / 2) - 2) / t on [0, 0.1203], made with 80 digits.
"""

from __future__ import annotations

from typing import NamedTuple

from dml.kernels.math.float_formats import (
    INF,
    NAN,
    FloatFormat,
    from_hex,
    polynomial,
    two_sum,
    with_sign_of,
)
from dml.kernels.math.step_language import StepValue


class ExponentialConstants(NamedTuple):
    """The literals of the reduction in one format; k * ln2_high is exact."""

    log2_e: float
    ln2_high: float
    ln2_low: float
    fraction: tuple[float, ...]
    tanh_saturates: float


_CONSTANTS = {
    "f8": ExponentialConstants(
        log2_e=float.fromhex("0x1.71547652b82fep+0"),
        ln2_high=float.fromhex("0x1.62e42fee00000p-1"),
        ln2_low=float.fromhex("0x1.a39ef35793c76p-33"),
        fraction=from_hex(
            "0x1.5555555555553p-3 -0x1.6c16c16c0aadbp-9 0x1.1566ab5ba4dbep-14 "
            "-0x1.bbd53071582fap-20 0x1.63f172b27f204p-25"
        ),
        tanh_saturates=22.0,
    ),
    "f4": ExponentialConstants(
        log2_e=float.fromhex("0x1.715476p+0"),
        ln2_high=float.fromhex("0x1.62e000p-1"),
        ln2_low=float.fromhex("0x1.0bfbe8p-15"),
        fraction=from_hex("0x1.555546p-3 -0x1.6b0c7cp-9"),
        tanh_saturates=10.0,
    ),
}


class ReducedExponent(NamedTuple):
    """x = k ln 2 + r, r = high - low, e**r = 1 + high - (low - rest); ``power``: low bits of k."""

    high: StepValue
    low: StepValue
    rest: StepValue
    power: StepValue


def _reduce(x: StepValue, form: FloatFormat) -> ReducedExponent:
    """Reduce x by a multiple of ln 2; the result is meaningless if e**x over- or underflows."""
    given = _CONSTANTS[form.code]
    shifted = x * given.log2_e + form.to_integer
    k = shifted - form.to_integer
    high = x - k * given.ln2_high
    low = k * given.ln2_low
    r = high - low
    t = r * r
    c = r - t * polynomial(t, given.fraction)
    return ReducedExponent(high, low, r * c / (2.0 - c), shifted.bits())


def _mantissa(part: ReducedExponent) -> StepValue:
    """Return e**r, between 0.7 and 1.42, for the reduced argument r of ``part``."""
    return 1.0 + (part.high - (part.low - part.rest))


def _scaled(value: StepValue, part: ReducedExponent, form: FloatFormat) -> StepValue:
    """Return value * 2**k by adding k to the exponent field; the result must be normal."""
    return (value.bits() + (part.power << form.fraction_bits)).from_bits()


def _scale(power: StepValue, form: FloatFormat) -> StepValue:
    """Return 2**k, which must be a normal number; ``power`` ends in the bits of k."""
    return ((power << form.fraction_bits) + form.one_bits).from_bits()


def _scaled_far(
    value: StepValue, x: StepValue, part: ReducedExponent, form: FloatFormat
) -> StepValue:
    """Return value * 2**k rounded once, where it overflows (x > 0) or is denormal (x < 0)."""
    grows = x.trace.lift(0.0, form.code) < x
    nearer = part.power + grows.select(part.power.trace.lift(-1, part.power.code), form.far)
    inside = (
        value * _scale(nearer, form) * grows.select(x.trace.lift(2.0, form.code), 2.0**-form.far)
    )
    vanishes = x < form.exp_underflow
    return (x <= form.exp_overflow).select(vanishes.select(0.0, inside), INF)


def _canonical(x: StepValue, value: StepValue) -> StepValue:
    """Return the canonical NaN where x is NaN, else value."""
    return x.equals(x).select(value, NAN)


def exp(x: StepValue, form: FloatFormat) -> StepValue:
    """Return e**x."""
    part = _reduce(x, form)
    mantissa = _mantissa(part)
    special = _canonical(x, _scaled_far(mantissa, x, part, form))
    return (abs(x) <= form.exp_usual).patch(_scaled(mantissa, part, form), special)


def _less_one(part: ReducedExponent, form: FloatFormat) -> tuple[StepValue, StepValue]:
    """Return 2**k e**r - 1 as a float and a small correction to add to it."""
    scale = _scale(part.power, form)
    base, lost = two_sum(scale, scale.trace.lift(-1.0, form.code))
    total, error = two_sum(base, scale * part.high)
    return total, error + (scale * (part.rest - part.low) + lost)


def expm1(x: StepValue, form: FloatFormat) -> StepValue:
    """Return e**x - 1, accurate near 0; the result for -0.0 is -0.0."""
    part = _reduce(x, form)
    total, correction = _less_one(part, form)
    usual = with_sign_of(total + correction, x, form)
    grown = _scaled_far(_mantissa(part), x, part, form)
    special = _canonical(x, (x < 0.0).select(-1.0, grown))
    return (abs(x) <= form.exp_usual).patch(usual, special)


def tanh(x: StepValue, form: FloatFormat) -> StepValue:
    """Return tanh x: the absolute value of t / (t + 2), with t = expm1(-2 |x|), and x's sign."""
    magnitude = abs(x)
    total, correction = _less_one(_reduce(magnitude * -2.0, form), form)
    t = total + correction
    t_lost = (total - t) + correction
    divisor = t + 2.0
    divisor_lost = ((2.0 - divisor) + t) + t_lost
    quotient = t / divisor
    refined = quotient + (t_lost - quotient * divisor_lost) / divisor
    usual = with_sign_of(abs(refined), x, form)
    one = with_sign_of(x.trace.lift(1.0, form.code), x, form)
    return (magnitude <= _CONSTANTS[form.code].tanh_saturates).patch(usual, _canonical(x, one))


def sigmoid(x: StepValue, form: FloatFormat) -> StepValue:
    """Return 1 / (1 + e**-x); below zero e**x / (1 + e**x), which keeps small results accurate.

    The rounding errors of numerator and denominator enter one correction of the quotient.
    """
    fall = -abs(x)
    part = _reduce(fall, form)
    over_one = part.high - (part.low - part.rest)
    mantissa = over_one + 1.0
    tail = _scaled(mantissa, part, form)
    tail_lost = _scale(part.power, form) * (over_one - (mantissa - 1.0))
    divisor = tail + 1.0
    divisor_lost = ((1.0 - divisor) + tail) + tail_lost
    # All ones below zero: bit masks cost less than a selection on arrays.
    below = x.trace.lift(0, part.power.code) - (x.bits() >> (8 * int(form.code[1]) - 1))
    above = below ^ -1
    numerator = ((tail.bits() & below) | (above & form.one_bits)).from_bits()
    numerator_lost = (tail_lost.bits() & below).from_bits()
    quotient = numerator / divisor
    usual = quotient + (numerator_lost - quotient * divisor_lost) / divisor
    special = (x < 0.0).select(_scaled_far(mantissa, fall, part, form), 1.0)
    return (abs(x) <= form.exp_usual).patch(usual, _canonical(x, special))
