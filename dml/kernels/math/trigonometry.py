"""sin and cos are tables of IEEE basic operations, for arguments of every size.

x = n pi/2 + r with |r| <= pi/4. Up to 2**20 pi/2 in size, n pi/2 is subtracted in three exact parts
of 33 bits and a rest (Cody and Waite, 1980); beyond, x / 2 pi is taken modulo 1 with 128 exact bits
after the point (Payne and Hanek, 1983). r is a sum of two floats, good to more than 60 bits even
next to a multiple of pi/2. f4 arguments are widened, which makes both parts short. The coefficients
are Chebyshev fits of (sin r - r) / r**3 and (cos r - 1 + z / 2) / z**2 on z = r**2 in [0, 0.6175],
made with 80 digits; the two sums are FDLIBM's k_sin.c and k_cos.c (Sun, 1993).
"""

from __future__ import annotations

from typing import NamedTuple

from dml.kernels.math.float_formats import F8, NAN, FloatFormat, from_hex, polynomial, two_sum
from dml.kernels.math.step_language import StepValue

NEAR = 2.0**20 * 1.5707963267948966

_TWO_OVER_PI = float.fromhex("0x1.45f306dc9c883p-1")
_HALF_PI_PARTS = from_hex(
    "0x1.921fb54400000p+0 0x1.0b4611a600000p-34 0x1.3198a2e000000p-69 0x1.b839a252049c1p-104"
)
_HALF_PI_COARSE = float.fromhex("0x1.921fb50000000p+0")
_HALF_PI_FINE = float.fromhex("0x1.110b4611a6263p-26")
_HALF_PI_REST = float.fromhex("0x1.0b4611a626331p-34")
_SIN = from_hex(
    "-0x1.5555555555555p-3 0x1.1111111110babp-7 -0x1.a01a019e81f4bp-13 0x1.71de379452125p-19 "
    "-0x1.ae6008b321baep-26 0x1.5e0a44fa8765ap-33"
)
_COS = from_hex(
    "0x1.5555555555555p-5 -0x1.6c16c16c16963p-10 0x1.a01a019f4dd4cp-16 -0x1.27e4fa16bdc76p-22 "
    "0x1.1eeb67c12a0b4p-29 -0x1.907cce35dd891p-37"
)
_SIN_SHORT = from_hex(
    "-0x1.555555545d002p-3 0x1.11110deca6724p-7 -0x1.a013a4297b6ebp-13 0x1.6dbcecf905c4ap-19"
)
_COS_SHORT = from_hex(
    "0x1.5555555502764p-5 -0x1.6c16bf5336b80p-10 0x1.a015c235d9e45p-16 -0x1.2523910390f05p-22"
)
# The first 1216 bits of 1 / (2 pi) after the point.
_TURN = int(
    "28be60db9391054a7f09d5f47d4d377036d8a5664f10e4107f9458eaf7aef1586dc91b8e909374b801924bba"
    "827464873f877ac72c4a69cfba208d7d4baed1213a671c09ad17df904e64758e60d4ce7d272117e2ef7e4a0e"
    "c7fe25fff7816603fbcbc462d6829b47db4d9fb3c9f2c26dd3d18fd9a797fa8b5d49eeb1faf97c5ecf41ce7d"
    "e294a4ba9afed7ec47e357421580cc11bf1edaea",
    16,
)
_WORD = 0xFFFFFFFF
# Entry j: the 32 bits that follow bit 8 j - 32 of 1 / (2 pi); bits before the point are zero.
_TURN_WORDS = tuple((_TURN >> (1216 - 8 * j)) & _WORD for j in range(148))


class Angle(NamedTuple):
    """x = quarters pi/2 + high + low; only the two low bits of ``quarters`` (u8) are used."""

    high: StepValue
    low: StepValue
    quarters: StepValue


def _near_quarters(x: StepValue) -> tuple[StepValue, StepValue]:
    """Return the number of quarter turns nearest to x as a float and as bits."""
    shifted = x * _TWO_OVER_PI + F8.to_integer
    return shifted - F8.to_integer, shifted.bits()


def _near(x: StepValue) -> Angle:
    """Reduce |x| <= NEAR: n has 20 bits and a part of pi/2 has 33, so that products are exact."""
    n, quarters = _near_quarters(x)
    first = x - n * _HALF_PI_PARTS[0]
    second, lost = two_sum(first, -(n * _HALF_PI_PARTS[1]))
    third, lost_again = two_sum(second, -(n * _HALF_PI_PARTS[2]))
    small = (lost + lost_again) - n * _HALF_PI_PARTS[3]
    high = third + small
    return Angle(high, small - (high - third), quarters)


def _fraction_of_turn(x: StepValue) -> tuple[StepValue, StepValue]:
    """Return |x| / 2 pi modulo 1 in two u8 words, for |x| >= 2**20, to better than 2**-125."""
    bits = abs(x).bits()
    above = (bits >> 52) - (1023 + 20)
    place = (above >> 3) & 127
    words = [(place + 4 * i).lookup(_TURN_WORDS) for i in range(6)]
    factor = ((bits & F8.fraction_mask) | (1 << 52)) << (above & 7)
    low = [(factor & _WORD) * word for word in words[:5]]
    high = [(factor >> 32) * word for word in words]
    limb = (low[3] & _WORD) + (low[4] >> 32) + (high[4] & _WORD) + (high[5] >> 32)
    limbs = [limb & _WORD]
    for i in (2, 1, 0):
        limb = (
            (low[i] & _WORD)
            + (low[i + 1] >> 32)
            + (high[i + 1] & _WORD)
            + (high[i + 2] >> 32)
            + (limb >> 32)
        )
        limbs.append(limb & _WORD)
    return (limbs[3] << 32) | limbs[2], (limbs[1] << 32) | limbs[0]


def _piece(word: StepValue, exponent: int) -> StepValue:
    """Return ``word``, below 2**52, times 2**exponent, through the fraction field of a float."""
    return (word | ((1023 + 52 + exponent) << 52)).from_bits() - 2.0 ** (52 + exponent)


def _times_half_pi(high: StepValue, low: StepValue) -> tuple[StepValue, StepValue]:
    """Return (high + low) pi/2 in two floats; products of halves are exact (Dekker, 1971)."""
    lead = (high.bits() & 0xFFFFFFFFF8000000).from_bits()
    first, second = lead * _HALF_PI_COARSE, (high - lead) * _HALF_PI_COARSE
    total = first + second
    small = ((first - total) + second) + (low * _HALF_PI_COARSE + high * _HALF_PI_FINE)
    result = total + small
    return result, small - (result - total)


def _far(x: StepValue) -> Angle:
    """Reduce |x| >= 2**20 by exact integer steps; the result for other x is meaningless."""
    first, second = _fraction_of_turn(x)
    moved = first + (1 << 61)
    signed = (moved & ((1 << 62) - 1)) - (1 << 61)
    flip = (signed < (1 << 63)).select(x.trace.lift(0, "u8"), (1 << 64) - 1)
    first, second = signed ^ flip, second ^ flip
    top, middle = _piece(first >> 32, -30), _piece(first & _WORD, -62)
    total = top + middle
    rest = (middle - (total - top)) + (_piece(second >> 32, -94) + _piece(second & _WORD, -126))
    high = total + rest
    high, low = _times_half_pi(high, rest - (high - total))
    sign = (x.bits() ^ flip) & F8.sign_bits
    quarters = moved >> 62
    turned = x < 0.0
    return Angle(
        (high.bits() ^ sign).from_bits(),
        (low.bits() ^ sign).from_bits(),
        turned.select((quarters ^ 3) + 1, quarters),
    )


def _reduce(x: StepValue, near: Angle) -> Angle:
    """Return ``near`` where |x| <= NEAR, else the far reduction of x."""
    usual = abs(x) <= NEAR
    far = _far(x)
    return Angle(
        usual.patch(near.high, far.high),
        usual.patch(near.low, far.low),
        usual.patch(near.quarters, far.quarters),
    )


def _sin_part(angle: Angle) -> StepValue:
    """Return sin(high + low) for |high| <= pi/4."""
    r, low = angle.high, angle.low
    z = r * r
    cubed = z * r
    return r - ((z * (low * 0.5 - cubed * polynomial(z, _SIN[1:])) - low) - cubed * _SIN[0])


def _cos_part(angle: Angle) -> StepValue:
    """Return cos(high + low) for |high| <= pi/4."""
    r, low = angle.high, angle.low
    z = r * r
    half = z * 0.5
    lead = 1.0 - half
    return lead + (((1.0 - lead) - half) + ((z * z) * polynomial(z, _COS) - r * low))


def _quarter(x: StepValue, form: FloatFormat, start: int) -> StepValue:
    """Return sin(x + start pi/2)."""
    if form.code == "f4":
        return _quarter_short(x, start)
    angle = _reduce(x, _near(x))
    quarters = angle.quarters + start
    odd = (quarters & 1).equals(1)
    value = odd.select(_cos_part(angle), _sin_part(angle))
    value = (value.bits() ^ ((quarters & 2) << 62)).from_bits()
    return (abs(x) < float("inf")).patch(value, NAN)


def _quarter_short(x: StepValue, start: int) -> StepValue:
    """Return sin(x + start pi/2) for f4, computed in f8 and rounded once at the end."""
    wide = x.widen()
    n, quarters = _near_quarters(wide)
    first = (wide - n * _HALF_PI_PARTS[0]) - n * _HALF_PI_REST
    usual = abs(wide) <= NEAR
    far = _far(wide)
    r = usual.patch(first, far.high)
    quarters = usual.patch(quarters, far.quarters) + start
    z = r * r
    sine = r + (z * r) * polynomial(z, _SIN_SHORT)
    cosine = (1.0 - z * 0.5) + (z * z) * polynomial(z, _COS_SHORT)
    value = (quarters & 1).equals(1).select(cosine, sine)
    value = (value.bits() ^ ((quarters & 2) << 62)).from_bits()
    return (abs(x) < float("inf")).patch(value.narrow(), NAN)


def sin(x: StepValue, form: FloatFormat) -> StepValue:
    """Return the sine of x radians; -0.0 for -0.0, and NaN for infinities."""
    value = _quarter(x, form, 0)
    return (x.equals(0.0)).select(x, value)


def cos(x: StepValue, form: FloatFormat) -> StepValue:
    """Return the cosine of x radians; NaN for infinities."""
    return _quarter(x, form, 1)
