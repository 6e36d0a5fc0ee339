"""The phrase table maps each operation to its writer, a function that returns its phrase.

A phrase is the text of a kernel that computes the operation for one row (phrases.py).
"""

from __future__ import annotations

import numpy as np

from dml.kernels.compiled.phrases import (
    Phrase,
    PhraseArguments,
    Writer,
    by_kind,
    every,
    filled,
    nonzero_divisor,
    plain,
    typed,
    wrapping,
)

# Division by zero and least // -1 trap on a processor, so neither is ever executed.
NEGATED = "np.int64(np.uint64(0) - np.uint64({a}))"
SAFE = "({b} if ({b} != {zero}) & ({b} != {minus}) else {one})"
FLOOR_DIVISION = by_kind(
    plain("floor_division_{code}({a}, {b})"),
    plain(f"({NEGATED} if {{b}} == {{minus}} else {{a}} // {SAFE})"),
    plain("{a} // ({b} if {b} != {zero} else {one})"),
)
REMAINDER = by_kind(
    plain("remainder_{code}({a}, {b})"),
    plain(f"({{zero}} if {{b}} == {{minus}} else {{a}} % {SAFE})"),
    plain("{a} % ({b} if {b} != {zero} else {one})"),
)


def by_constant(operation: str, otherwise: Writer) -> Writer:
    """Make a writer of a division whose constant divisor is a literal in the kernel's text.

    LLVM turns such a division into a multiplication. If the divisor is no constant, or is 0 or -1,
    which could trap or give null, ``otherwise`` writes the phrase.
    """

    def write(row: PhraseArguments) -> Phrase:
        given = row.step.params[0] if row.step.params else 0
        if given in (0, -1):
            return otherwise(row)
        text = f"{{a}} {operation} {typed(row.code, given)}"
        return Phrase(typed(row.code, filled(text, row)), every(*row.known))

    return write


COUNT_FITS = "({b} >= {zero}) & ({b} < {width})"


def shift_right(row: PhraseArguments) -> Phrase:
    """Write a right shift; a count outside the type's width gives 0, or -1 for negative numbers."""
    last = typed(row.code, 8 * int(row.code[1]) - 1)
    usual = f"({{b}} if {COUNT_FITS} else {last})"
    text = filled(f"{{a}} >> {usual}", row)
    if row.code[0] == "u":
        text = filled(f"({{a}} >> {usual} if {COUNT_FITS} else {{zero}})", row)
    return Phrase(typed(row.code, text), every(*row.known))


def extreme(sign: str, winning_zero: str, both: str) -> Writer:
    """Make a writer of minimum (``sign`` "<") or maximum (">").

    Of two zeros with different signs, ``winning_zero`` is the result. ``both`` names the function
    for two float columns; if one operand is a literal, a comparison suffices.
    """

    def write(row: PhraseArguments) -> Phrase:
        a, b = row.args
        known = every(*row.known)
        if row.code[0] != "f":
            return Phrase(f"({b} if {b} {sign} {a} else {a})", known)
        kinds = row.step.params
        if kinds[1] == "any" and kinds[0] != "any":
            a, b, kinds = b, a, kinds[::-1]
        if kinds[1] != "any":
            compare = f"{sign}=" if kinds[1] == winning_zero else sign
            return Phrase(f"({b} if {b} {compare} {a} else {a})", known)
        return Phrase(f"{both}({a}, {b})", known)

    return write


def kleene(row: PhraseArguments, settles: str) -> str | None:
    """Return the test that a logical result is not null; None if it never is.

    It is not null if both sides are not null, or if one side alone decides it. ``settles`` is the
    template of the test that a side decides.
    """
    a, b = row.args
    known_a, known_b = row.known
    if known_a is None and known_b is None:
        return None
    ways = [f"({every(known_a, known_b)})"]
    ways.append(f"({every(known_a, settles.format(a))})")
    ways.append(f"({every(known_b, settles.format(b))})")
    return f"({' | '.join(ways)})"


def logical_and(row: PhraseArguments) -> Phrase:
    """Write three-valued ``and``: one false argument decides the result."""
    return Phrase(filled("({a} & {b})", row), kleene(row, "(not {})"))


def logical_or(row: PhraseArguments) -> Phrase:
    """Write three-valued ``or``: one true argument decides the result."""
    return Phrase(filled("({a} | {b})", row), kleene(row, "{}"))


def is_null(row: PhraseArguments) -> Phrase:
    """Write the test that the argument is null; the result is never null."""
    return Phrase("False" if row.known[0] is None else f"(not {row.known[0]})")


def fill_null(row: PhraseArguments) -> Phrase:
    """Write the first argument or, where that is null, the second."""
    known, other = row.known
    if known is None:
        return Phrase(row.args[0])
    value = f"({row.args[0]} if {known} else {row.args[1]})"
    return Phrase(value, None if other is None else f"({known} | {other})")


def fill_nan(row: PhraseArguments) -> Phrase:
    """Write the first argument or, where that is NaN, the second."""
    (a, b), (known, other) = row.args, row.known
    if row.code[0] != "f":
        return Phrase(a, known)
    value = f"({a} if {a} == {a} else {b})"
    if other is None:
        return Phrase(value, known)
    return Phrase(value, every(known, f"(({a} == {a}) | {other})"))


def if_else(row: PhraseArguments) -> Phrase:
    """Write the second argument where the first is true, else the third; null where it is null."""
    condition, a, b = row.args
    known, known_a, known_b = row.known
    chosen = None
    if known_a is not None or known_b is not None:
        chosen = f"({known_a or 'True'} if {condition} else {known_b or 'True'})"
    return Phrase(f"({a} if {condition} else {b})", every(known, chosen))


def cast(row: PhraseArguments) -> Phrase:
    """Write a cast as in NumPy; a value that does not fit fails if strict, else becomes null."""
    (known,) = row.known
    value, misfit = conversion(row.args[0], row.codes[0], row.code)
    if misfit is None:
        return Phrase(value, known)
    if row.step.params and row.step.params[0]:
        return Phrase(value, known, every(known, misfit))
    return Phrase(value, every(known, f"(not {misfit})"))


def conversion(a: str, source: str, target: str) -> tuple[str, str | None]:
    """Return two texts: ``a`` cast to ``target``, and the test that it does not fit.

    The test is None if every value fits.
    """
    if target == "b1":
        return f"({a} != {typed(source, 0)})", None
    if source == "b1":
        return f"({typed(target, 1)} if {a} else {typed(target, 0)})", None
    if target[0] == "f":
        if (source, target) != ("f8", "f4"):
            return typed(target, a), None
        lost = f"((abs(np.float32({a})) == np.float32(np.inf)) & (abs({a}) != np.inf))"
        return typed(target, a), lost
    low, high = np.iinfo(target).min, np.iinfo(target).max
    if source[0] == "f":
        limits = typed(source, float(low)), typed(source, float(high + 1))
        fits = f"((np.trunc({a}) >= {limits[0]}) & (np.trunc({a}) < {limits[1]}))"
        return typed(target, f"{a} if {fits} else {typed(source, 0)}"), f"(not {fits})"
    tests = []
    if np.iinfo(source).min < low:
        tests.append(f"({a} < {typed(source, int(low))})")
    if np.iinfo(source).max > high:
        tests.append(f"({a} > {typed(source, int(high))})")
    return typed(target, a), f"({' | '.join(tests)})" if tests else None


def rounded(row: PhraseArguments) -> Phrase:
    """Write the rounding to ``params[0]`` decimal digits (default 0), ties to even."""
    digits = int(row.step.params[0]) if row.step.params else 0
    a = row.args[0]
    if row.code[0] != "f":
        text = a if digits >= 0 else integer_rounding(a, row.code, -digits)
    elif digits == 0:
        text = typed(row.code, f"np.rint({a})")
    else:
        scale = typed(row.code, f"1e{abs(digits)}" if abs(digits) <= 308 else "np.inf")
        direction = "round_up_digits" if digits > 0 else "round_down_digits"
        text = f"{direction}({a}, {scale})"
    return Phrase(text, *row.known)


def integer_rounding(a: str, code: str, zeros: int) -> str:
    """Return the text that rounds integer ``a`` to a multiple of 10**``zeros``."""
    unit = 10**zeros
    if unit > np.iinfo(code).max:
        return typed(code, 0)
    return typed(code, f"round_integer_{code}({a}, {typed(code, unit)})")


def whole(name: str) -> Writer:
    """Make a writer of ``np.floor``, ``ceil`` or ``trunc``, which leave integers unchanged."""
    return by_kind(plain(f"np.{name}({{a}})"), plain("{a}"))


def hashed(row: PhraseArguments) -> Phrase:
    """Write the hash of a value; the second argument is a constant derived from the seed."""
    a, start = row.args
    if row.codes[0][0] == "f":
        bits = f"float_bits({typed('f8', a)})"
    elif row.codes[0] == "b1":
        bits = f"(np.uint64(1) if {a} else np.uint64(0))"
    else:
        bits = typed("u8", a)
    return Phrase(f"mix64({bits} + {start})", row.known[0])


def uniform(row: PhraseArguments) -> Phrase:
    """Write a draw from [0, 1); arguments: id high, id low, key, constant of the draw number."""
    high, low, key, draw = row.args
    bits = f"mix64(mix64({low} ^ mix64({high} ^ {key})) + {draw}) >> np.uint64(11)"
    return Phrase(f"np.float64(({bits})) * 1.1102230246251565e-16", every(*row.known))


def bucketize(row: PhraseArguments) -> Phrase:
    """Write the count of boundaries up to the value (NaN: all); arguments: value, boundaries."""
    a, *edges = row.args
    if not edges:
        return Phrase("np.int64(0)", row.known[0])
    counts = [f"(np.int64(0) if {a} < {edge} else np.int64(1))" for edge in edges]
    return Phrase(" + ".join(counts), row.known[0])


def is_in(row: PhraseArguments) -> Phrase:
    """Write a membership test; arguments: the value, then the members."""
    a, *members = row.args
    return Phrase(" | ".join(f"({a} == {m})" for m in members) or "False", row.known[0])


def divisible(row: PhraseArguments) -> Phrase:
    """Write a divisibility test; arguments: the value, then the constants of ``multiples``."""
    negated, certain_ = row.step.params
    text = f"is_multiple({', '.join(row.args)})"
    return Phrase(f"not {text}" if negated else text, None if certain_ else row.known[0])


def outside(template: str, floats: str = "False") -> Writer:
    """Make a check that is true where an operand is null, or where ``template`` is true.

    For floats, ``floats`` takes the place of ``template``.
    """

    def write(row: PhraseArguments) -> Phrase:
        text = filled(floats if row.codes[0][0] == "f" else template, row)
        nulls = [f" | (not {known})" for known in dict.fromkeys(row.known) if known is not None]
        return Phrase(f"(({text}){''.join(nulls)})")

    return write


def certain(writer: Writer) -> Writer:
    """Make a writer like ``writer``, but never null: a separate check finds rows with nulls."""
    return lambda row: Phrase(writer(row).value)


LEAST = "np.int64(-9223372036854775808)"
LARGE = "({} > np.int64(9007199254740992)) | ({} < np.int64(-9007199254740992))"
SUM = "np.int64(np.uint64({a}) + np.uint64({b}))"
DIFFERENCE = "np.int64(np.uint64({a}) - np.uint64({b}))"
ABSOLUTE = by_kind(
    plain("abs({a})"), plain(f"({NEGATED} if {{a}} < {{zero}} else {{a}})"), plain("{a}")
)
ZERO_DIVISOR = "({b} == {zero})"

PHRASES: dict[str, Writer] = {
    "null": lambda row: Phrase(typed(row.code, 0), "False"),
    "add": wrapping("+"),
    "sub": wrapping("-"),
    "mul": wrapping("*"),
    "neg": by_kind(plain("-{a}"), plain(NEGATED), plain("{zero} - {a}")),
    "abs": ABSOLUTE,
    "truediv": plain("{a} / {b}"),
    "floordiv": by_constant("//", nonzero_divisor(FLOOR_DIVISION)),
    "mod": by_constant("%", nonzero_divisor(REMAINDER)),
    "bit_and": plain("{a} & {b}"),
    "bit_or": plain("{a} | {b}"),
    "bit_xor": plain("{a} ^ {b}"),
    "bit_not": lambda row: plain("not {a}" if row.code == "b1" else "~{a}")(row),
    "shift_left": plain(
        f"(np.uint64({{a}}) << np.uint64({{b}} if {COUNT_FITS} else {{zero}})"
        f" if {COUNT_FITS} else np.uint64(0))"
    ),
    "shift_right": shift_right,
    "minimum": extreme("<", "negative zero", "lesser"),
    "maximum": extreme(">", "positive zero", "greater"),
    "sqrt": plain("math.sqrt({a})"),
    "floor": whole("floor"),
    "ceil": whole("ceil"),
    "trunc": whole("trunc"),
    "round": rounded,
    "eq": plain("{a} == {b}"),
    "ne": plain("{a} != {b}"),
    "lt": plain("{a} < {b}"),
    "le": plain("{a} <= {b}"),
    "gt": plain("{a} > {b}"),
    "ge": plain("{a} >= {b}"),
    "and": logical_and,
    "or": logical_or,
    "not": plain("not {a}"),
    "is_null": is_null,
    "is_nan": by_kind(plain("{a} != {a}"), lambda row: Phrase("False", *row.known)),
    "fill_null": fill_null,
    "fill_nan": fill_nan,
    "if_else": if_else,
    "cast": cast,
    "hash": hashed,
    "uniform": uniform,
    "bucketize": bucketize,
    "is_in": is_in,
    "divisible": divisible,
    "py_add": certain(wrapping("+")),
    "py_sub": certain(wrapping("-")),
    "py_mul": certain(wrapping("*")),
    "py_neg": certain(by_kind(plain("-{a}"), plain(NEGATED))),
    "py_abs": certain(ABSOLUTE),
    "py_floordiv": certain(by_constant("//", FLOOR_DIVISION)),
    "py_mod": certain(by_constant("%", REMAINDER)),
    "py_truediv": certain(plain("np.float64({a}) / np.float64({b})")),
    "overflow_add": outside(f"(({{a}} ^ {SUM}) & ({{b}} ^ {SUM})) < {{zero}}"),
    "overflow_sub": outside(f"(({{a}} ^ {{b}}) & ({{a}} ^ {DIFFERENCE})) < {{zero}}"),
    "overflow_mul": outside("product_overflows({a}, {b})"),
    "overflow_neg": outside("{a} == " + LEAST),
    "overflow_abs": outside("{a} == " + LEAST),
    "overflow_floordiv": outside(
        f"{ZERO_DIVISOR} | (({{b}} == {{minus}}) & ({{a}} == {LEAST}))", ZERO_DIVISOR
    ),
    "overflow_mod": outside(ZERO_DIVISOR, ZERO_DIVISOR),
    "overflow_truediv": outside(
        " | ".join((ZERO_DIVISOR, LARGE.format("{a}", "{a}"), LARGE.format("{b}", "{b}"))),
        ZERO_DIVISOR,
    ),
}
