"""This file finds where a function may change what it did not make: ``+=`` on values of others.

Jumps lead forward only: functions with loops are not examined here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dml.expr.bytecode import FLAGS, Instruction

SUBSCRIPT = 26  # BINARY_OP that is a subscription, in Pythons that have no BINARY_SUBSCR
IN_PLACE = range(13, SUBSCRIPT)  # arguments of BINARY_OP that are +=, -= and so on


class Own(NamedTuple):
    """What a function made itself, at one place: arithmetic results, constants, displays.

    ``stack`` says it of the entries from the top down, as far as known; ``variables`` are numbers.
    """

    stack: tuple[bool, ...] = ()
    variables: frozenset[int] = frozenset()

    def at(self, depth: int) -> bool:
        """Whether the entry that many from the top, which is 1, is known to be its own."""
        return depth <= len(self.stack) and self.stack[depth - 1]

    def moved(self, pops: int, pushed: tuple[bool, ...]) -> Own:
        return self._replace(stack=pushed + self.stack[pops:])

    def met(self, other: Own | None) -> Own:
        """What holds on both ways to a place, if there are two."""
        if other is None:
            return self
        both = zip(self.stack, other.stack, strict=False)
        return Own(tuple(a and b for a, b in both), self.variables & other.variables)


def in_place(steps: tuple[Instruction, ...]) -> str:
    """The objection to ``+=`` and its like on what was not made here; jumps lead forward only."""
    if not any(step.name == "BINARY_OP" and step.arg in IN_PLACE for step in steps):
        return ""
    arriving: dict[int, Own] = {}
    now: Own | None = Own()
    for place, step in enumerate(steps):
        if place in arriving:
            now = arriving[place].met(now)
        if now is None:
            continue
        if step.name == "BINARY_OP" and step.arg in IN_PLACE and not now.at(2):
            return "it changes a value in place (with += or its like) that it did not make itself"
        before, now = now, _stepped(now, step)
        if step.target >= 0:
            taken = before if step.name.endswith("_OR_POP") else now
            arriving[step.target] = taken.met(arriving.get(step.target))
        if step.name == "JUMP" or step.name.startswith(("RETURN", "RAISE")):
            now = None
    return ""


def _stepped(now: Own, step: Instruction) -> Own:
    """What is known after a step; after one that is not described, nothing of the stack."""
    if step.name == "STORE_FAST":
        one = frozenset({step.arg})
        kept = now.variables | one if now.at(1) else now.variables - one
        return Own(now.stack[1:], kept)
    if step.name.startswith("LOAD_FAST"):
        return now.moved(0, (step.arg in now.variables,))
    if step.name == "COPY":
        return now.moved(0, (now.at(step.arg),))
    if step.name == "SWAP":
        known = [now.at(depth) for depth in range(1, max(step.arg, len(now.stack)) + 1)]
        known[0], known[step.arg - 1] = known[step.arg - 1], known[0]
        return now._replace(stack=tuple(known))
    if step.name in COUNTED:
        return now.moved(*COUNTED[step.name](step.arg))
    if step.name in FIXED:
        return now.moved(*FIXED[step.name])
    return now._replace(stack=())


# How many entries an instruction takes from the stack, and whether what it puts there is its own.
# What is loaded from outside counts as its own, since it must be plain and cannot change.
FIXED: dict[str, tuple[int, tuple[bool, ...]]] = {
    **dict.fromkeys(("RESUME", "CACHE", "PRECALL", "KW_NAMES"), (0, ())),
    **dict.fromkeys(("COPY_FREE_VARS", "JUMP"), (0, ())),
    **dict.fromkeys(("LOAD_CONST", "LOAD_DEREF", "PUSH_NULL"), (0, (True,))),
    **dict.fromkeys(("POP_TOP", "JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"), (1, ())),
    **dict.fromkeys(("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"), (1, ())),
    **dict.fromkeys(("POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE"), (1, ())),
    **dict.fromkeys(("UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT"), (1, (True,))),
    **dict.fromkeys(("UNARY_NOT", "TO_BOOL", "CALL_INTRINSIC_1"), (1, (True,))),
    **dict.fromkeys(("FORMAT_SIMPLE", "CONVERT_VALUE"), (1, (True,))),
    **dict.fromkeys(("COMPARE_OP", "CONTAINS_OP", "IS_OP", "FORMAT_WITH_SPEC"), (2, (True,))),
    "BINARY_SUBSCR": (2, (False,)),
    "BINARY_SLICE": (3, (False,)),  # of an array, a slice is a view
    "LOAD_METHOD": (1, (False, False)),
}
COUNTED: dict[str, Callable[[int], tuple[int, tuple[bool, ...]]]] = {
    "BINARY_OP": lambda arg: (2, (arg < SUBSCRIPT,)),
    "LOAD_GLOBAL": lambda arg: (0, (True,) * (1 + (arg & 1))),
    "LOAD_ATTR": lambda arg: (1, (False,) * (1 + (arg & FLAGS.get("LOAD_ATTR", 0)))),
    "FORMAT_VALUE": lambda arg: (2 if arg & 4 else 1, (True,)),
    **dict.fromkeys(("BUILD_STRING", "BUILD_TUPLE", "BUILD_LIST"), lambda arg: (arg, (True,))),
    **dict.fromkeys(("BUILD_SLICE", "BUILD_SET"), lambda arg: (arg, (True,))),
    "BUILD_MAP": lambda arg: (2 * arg, (True,)),
    "BUILD_CONST_KEY_MAP": lambda arg: (arg + 1, (True,)),
    "UNPACK_SEQUENCE": lambda arg: (1, (False,) * arg),
    "CALL": lambda arg: (arg + 2, (False,)),
    "CALL_KW": lambda arg: (arg + 3, (False,)),
}
