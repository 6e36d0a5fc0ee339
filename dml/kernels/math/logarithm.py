"""log, log1p, log2 and log10 are tables of IEEE basic operations.

x = 2**k m with m in [sqrt(1/2), sqrt(2)); f = m - 1, s = f / (2 + f), and log m = f - h + s (h + R)
with h = f**2 / 2 and R = z L(z), z = s**2 (FDLIBM e_log.c, s_log1p.c and FreeBSD k_log.h, Sun
1993). The coefficients of L are Chebyshev fits of (log((1 + s) / (1 - s)) / s - 2) / z on [0,
0.02945], made with 80 digits.
"""

from __future__ import annotations

from typing import NamedTuple

from dml.kernels.math.float_formats import INF, NAN, FloatFormat, from_hex, polynomial, with_sign_of
from dml.kernels.math.step_language import StepValue


class LogarithmConstants(NamedTuple):
    """The literals of one format; products with a ``high`` literal are exact."""

    sqrt_half_bits: int
    # bits of 2**fraction_bits: an integer or-ed in is read back by one subtraction
    integer_bits: int
    coarse_mask: int  # keeps the leading half of a fraction
    denormal_shift: int
    ln2_high: float
    ln2_low: float
    log2_e_high: float
    log2_e_low: float
    log10_e_high: float
    log10_e_low: float
    log10_2_high: float
    log10_2_low: float
    series: tuple[float, ...]


_CONSTANTS = {
    "f8": LogarithmConstants(
        sqrt_half_bits=0x3FE6A09E667F3BCD,
        integer_bits=0x4330000000000000,
        coarse_mask=0xFFFFFFFF00000000,
        denormal_shift=54,
        ln2_high=float.fromhex("0x1.62e42fee00000p-1"),
        ln2_low=float.fromhex("0x1.a39ef35793c76p-33"),
        log2_e_high=float.fromhex("0x1.7154700000000p+0"),
        log2_e_low=float.fromhex("0x1.94ae0bf85ddf4p-22"),
        log10_e_high=float.fromhex("0x1.bcb7b00000000p-2"),
        log10_e_low=float.fromhex("0x1.526e50e32a6abp-26"),
        log10_2_high=float.fromhex("0x1.34413509f6000p-2"),
        log10_2_low=float.fromhex("0x1.9fef311f12b36p-42"),
        series=from_hex(
            "0x1.5555555555558p-1 0x1.99999999952b2p-2 0x1.2492492df6947p-2 0x1.c71c62debf86bp-3 "
            "0x1.7462b69705382p-3 0x1.39fe208c33457p-3 0x1.2b5b5fb2eac92p-3"
        ),
    ),
    "f4": LogarithmConstants(
        sqrt_half_bits=0x3F3504F3,
        integer_bits=0x4B000000,
        coarse_mask=0xFFFFF000,
        denormal_shift=25,
        ln2_high=float.fromhex("0x1.62e000p-1"),
        ln2_low=float.fromhex("0x1.0bfbe8p-15"),
        log2_e_high=float.fromhex("0x1.714000p+0"),
        log2_e_low=float.fromhex("0x1.47652cp-12"),
        log10_e_high=float.fromhex("0x1.bca000p-2"),
        log10_e_low=float.fromhex("0x1.7b1526p-14"),
        log10_2_high=float.fromhex("0x1.344000p-2"),
        log10_2_low=float.fromhex("0x1.3509f8p-18"),
        series=from_hex("0x1.55555cp-1 0x1.997c2ap-2 0x1.2ee73ep-2"),
    ),
}


class ReducedArgument(NamedTuple):
    """x = 2**k (1 + f); log(1 + f) = f - half + tail; ``k`` is a float."""

    k: StepValue
    f: StepValue
    half: StepValue
    tail: StepValue


def _reduce(x: StepValue, form: FloatFormat) -> ReducedArgument:
    """Split a positive normal x into k and f, and compute the parts of log(1 + f)."""
    given = _CONSTANTS[form.code]
    moved = x.bits() + (form.one_bits - given.sqrt_half_bits)
    k = ((moved >> form.fraction_bits) | given.integer_bits).from_bits() - (
        2.0**form.fraction_bits + form.bias
    )
    f = ((moved & form.fraction_mask) + given.sqrt_half_bits).from_bits() - 1.0
    s = f / (f + 2.0)
    z = s * s
    half = f * (f * 0.5)
    tail = s * (half + z * polynomial(z, given.series))
    return ReducedArgument(k, f, half, tail)


def _positive(x: StepValue, form: FloatFormat) -> tuple[StepValue, ReducedArgument, StepValue]:
    """Return whether x is positive and normal, the parts of x, and log x at 0, inf and below 0."""
    usual = (x.bits() - form.min_normal_bits) < (form.inf_bits - form.min_normal_bits)
    shift = _CONSTANTS[form.code].denormal_shift
    part = _reduce(usual.patch(x, x * 2.0**shift), form)
    part = part._replace(k=usual.patch(part.k, part.k - float(shift)))
    special = x.equals(0.0).select(-INF, x.equals(INF).select(x, NAN))
    return usual, part, special


def _finish(x: StepValue, usual: StepValue, value: StepValue, special: StepValue) -> StepValue:
    """Return value for positive finite x (denormals included), else special."""
    finite = x.trace.lift(0.0, x.code) < x
    return usual.patch(value, finite.select((x < INF).select(value, special), special))


def log(x: StepValue, form: FloatFormat) -> StepValue:
    """Return the natural logarithm of x: -inf at both zeros, NaN below."""
    given = _CONSTANTS[form.code]
    usual, part, special = _positive(x, form)
    small = part.half - (part.tail + part.k * given.ln2_low)
    return _finish(x, usual, part.k * given.ln2_high - (small - part.f), special)


def log1p(x: StepValue, form: FloatFormat) -> StepValue:
    """Return log(1 + x), accurate near 0: -0.0 at -0.0, -inf at -1, NaN below.

    u = 1 + x is rounded; the error, x - (u - 1), is exact where it matters, and divided by u it is
    added as a correction.
    """
    given = _CONSTANTS[form.code]
    u = x + 1.0
    part = _reduce(u, form)
    correction = (x - (u - 1.0)) / u
    small = part.half - (part.tail + (part.k * given.ln2_low + correction))
    value = with_sign_of(part.k * given.ln2_high - (small - part.f), x, form)
    special = x.equals(INF).select(x, x.equals(-1.0).select(x.trace.lift(-INF, form.code), NAN))
    return ((u.bits() - 1) < (form.inf_bits - 1)).patch(value, special)


def _halves(part: ReducedArgument, form: FloatFormat) -> tuple[StepValue, StepValue]:
    """Return log(1 + f) as a leading part of few bits and the rest."""
    high = ((part.f - part.half).bits() & _CONSTANTS[form.code].coarse_mask).from_bits()
    return high, ((part.f - high) - part.half) + part.tail


def log2(x: StepValue, form: FloatFormat) -> StepValue:
    """Return the logarithm of x to base 2, which is exact at powers of two."""
    given = _CONSTANTS[form.code]
    usual, part, special = _positive(x, form)
    high, low = _halves(part, form)
    leading = high * given.log2_e_high
    trailing = (low + high) * given.log2_e_low + low * given.log2_e_high
    total = part.k + leading
    return _finish(x, usual, (trailing + ((part.k - total) + leading)) + total, special)


def log10(x: StepValue, form: FloatFormat) -> StepValue:
    """Return the logarithm of x to base 10."""
    given = _CONSTANTS[form.code]
    usual, part, special = _positive(x, form)
    high, low = _halves(part, form)
    leading = high * given.log10_e_high
    trailing = (
        part.k * given.log10_2_low + (low + high) * given.log10_e_low
    ) + low * given.log10_e_high
    whole = part.k * given.log10_2_high
    total = whole + leading
    return _finish(x, usual, (trailing + ((whole - total) + leading)) + total, special)
