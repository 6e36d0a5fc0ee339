"""A phrase is the text in a kernel that computes one operation for one row.

A *writer* is a function that returns the phrase for a step and its arguments. A phrase must give
the same bits as the operation in NumPy. numba widens integers (i4 + i4 is i8, u8 with i8 is f8), so
every result is narrowed at once, and operands always have equal types. No phrase may trap, whatever
bytes there are under a null or past the last row of a tile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

from dml.kernels.program import Step

TYPES = {
    "b1": "np.bool_",
    "i1": "np.int8",
    "i2": "np.int16",
    "i4": "np.int32",
    "i8": "np.int64",
    "u1": "np.uint8",
    "u2": "np.uint16",
    "u4": "np.uint32",
    "u8": "np.uint64",
    "f4": "np.float32",
    "f8": "np.float64",
}


@dataclasses.dataclass(frozen=True, slots=True)
class PhraseArguments:
    """A step with type codes, names and validity names of its arguments (None: never null)."""

    step: Step
    codes: tuple[str, ...]
    args: tuple[str, ...]
    known: tuple[str | None, ...]

    @property
    def code(self) -> str:
        """Type code of the result."""
        return self.step.code


@dataclasses.dataclass(frozen=True, slots=True)
class Phrase:
    """Expressions for one row: its value, whether it is not null, whether a cast failed.

    ``known`` is None if the value is never null, ``failed`` is None if no cast can fail.
    """

    value: str
    known: str | None = None
    failed: str | None = None


Writer: TypeAlias = Callable[[PhraseArguments], Phrase]


def typed(code: str, text: str | float) -> str:
    """Return ``text`` converted to the type of ``code``."""
    return f"{TYPES[code]}({text})"


def every(*conditions: str | None) -> str | None:
    """Join ``conditions`` by "&", leaving out None, which is always true; None if none is left."""
    named = list(dict.fromkeys(c for c in conditions if c is not None))
    return " & ".join(named) or None


def plain(template: str) -> Writer:
    """Make a writer of ``template`` ({a}, {b}: arguments; {zero}, {one}: constants of a's type).

    The phrase is null where an argument is null.
    """

    def write(row: PhraseArguments) -> Phrase:
        return Phrase(typed(row.code, filled(template, row)), every(*row.known))

    return write


def filled(template: str, row: PhraseArguments) -> str:
    """Replace the fields of ``template`` by argument names of ``row`` and constants."""
    code = row.codes[0]
    numbers = {"zero": 0, "one": 1, "minus": -1, "width": 8 * int(code[1])}
    texts = {word: typed(code, n) for word, n in numbers.items() if f"{{{word}}}" in template}
    return template.format(**dict(zip("abc", row.args, strict=False)), **texts, code=code)


def wrapping(operation: str) -> Writer:
    """Make a writer of an operation in which integers wrap modulo two to the power of their width.

    numba tells LLVM that signed 64-bit integers never overflow, so i8 is computed as u8.
    """
    usual = plain(f"{{a}} {operation} {{b}}")
    unsigned = plain(f"np.uint64({{a}}) {operation} np.uint64({{b}})")
    return lambda row: (unsigned if row.codes[0] == "i8" else usual)(row)


def by_kind(floats: Writer, integers: Writer, unsigned: Writer | None = None) -> Writer:
    """Make a writer that uses one of the given writers, by the type of the first argument."""

    def write(row: PhraseArguments) -> Phrase:
        kind = row.codes[0][0]
        return {"f": floats, "u": unsigned or integers}.get(kind, integers)(row)

    return write


def nonzero_divisor(writer: Writer) -> Writer:
    """Make a writer like ``writer``, whose phrase is also null where the second argument is 0."""

    def write(row: PhraseArguments) -> Phrase:
        phrase = writer(row)
        nonzero = filled("({b} != {zero})", row)
        return dataclasses.replace(phrase, known=every(phrase.known, nonzero))

    return write
