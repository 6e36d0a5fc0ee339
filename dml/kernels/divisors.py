"""This file says how to divide by constants without a division.

Source: Warren, Hacker's Delight, 10-17: a multiple of an odd number, times its inverse modulo two
to the 64, is a small number, and nothing else is; factors of two are turned to the upper end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dml.kernels.program import Program, Step

DIVISIONS = ("floordiv", "mod", "py_floordiv", "py_mod")
WORD = 2**64


class Divisible(NamedTuple):
    """A step that asks whether ``register`` (i8) is, or is not, a multiple of ``by``.

    ``certain`` says that it is never null, whatever the register is.
    """

    register: int
    by: int
    negated: bool
    certain: bool


def divisors(program: Program) -> set[Any]:
    """The constants that a program divides columns by."""
    given = [_literal(program, step.args[1]) for step in program.steps if step.op in DIVISIONS]
    return {number for number in given if number is not None}


def divisible(program: Program, step: Step) -> Divisible | None:
    """What ``step`` asks if it compares the remainder of whole numbers with 0; else None."""
    first = len(program.inputs)
    if step.op not in ("eq", "ne"):
        return None
    for rest, zero in (step.args, step.args[::-1]):
        made = program.steps[rest - first] if rest >= first else None
        if made is None or made.op not in ("mod", "py_mod") or made.code != "i8":
            continue
        by = _literal(program, made.args[1])
        if by and _literal(program, zero) == 0 and abs(by) & (abs(by) - 1):
            return Divisible(made.args[0], abs(by), step.op == "ne", made.op == "py_mod")
    return None


def multiples(by: int) -> tuple[int, int, int, int]:
    """What tells multiples of ``by`` (no power of two): inverse, addend, turn, the largest."""
    turn = (by & -by).bit_length() - 1
    odd = by >> turn
    addend = (2**63 - 1) // odd & -(2**turn)
    return pow(odd, -1, WORD), addend, turn, 2 * addend >> turn


def _literal(program: Program, register: int) -> Any:
    """The number that a register is in every row; None if it is none."""
    first = len(program.inputs)
    step = program.steps[register - first] if register >= first else None
    return step.params[0] if step is not None and step.op == "lit" else None
