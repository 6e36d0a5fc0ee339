"""Draw well-typed programs and columns for them, for tests that compare tiers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dml.kernels.program import Program, Step
from dml.kernels.vec import Register, Vec

INTEGERS = ("i1", "i4", "i8", "u1", "u8")
FLOATS = ("f4", "f8")
NUMBERS = INTEGERS + FLOATS


def drawn_values(draw: st.DrawFn, code: str, n: int) -> np.ndarray:
    if code == "b1":
        elements: st.SearchStrategy[Any] = st.booleans()
    elif code in FLOATS:
        special = [0.0, -0.0, 1.0, -1.5, math.nan, math.inf, -math.inf, 3e38, 300.0]
        elements = st.sampled_from(special) | st.floats(width=32 if code == "f4" else 64)
    else:
        limits = np.iinfo(code)
        edges = [v for v in (0, 1, -1, 7, limits.min, limits.max) if v >= limits.min]
        elements = st.sampled_from(edges) | st.integers(int(limits.min), int(limits.max))
    return np.array(draw(st.lists(elements, min_size=n, max_size=n)), code)


@st.composite
def columns(draw: st.DrawFn, codes: Sequence[str]) -> tuple[list[Register], int, np.ndarray | None]:
    n = draw(st.integers(0, 20))
    vecs: list[Register] = []
    for code in codes:
        valid = draw(st.none() | st.lists(st.booleans(), min_size=n, max_size=n))
        mask = None if valid is None else np.array(valid, bool)
        vecs.append(Vec(drawn_values(draw, code, n), mask))
    chosen: set[int] | None = draw(st.none() | st.sets(st.integers(0, max(n - 1, 0)), max_size=n))
    return vecs, n, None if chosen is None else np.array(sorted(chosen), np.int64)


SAME_TYPE = ("add", "sub", "mul", "minimum", "maximum", "fill_null")
ONE_ARGUMENT = ("neg", "abs", "floor", "trunc")
DIVISIONS = ("floordiv", "mod")
BITS = ("bit_and", "bit_or", "bit_xor", "shift_left", "shift_right")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


class Builder:
    """Draws a well-typed program step by step."""

    def __init__(self, draw: st.DrawFn, inputs: Sequence[str]) -> None:
        self.draw, self.inputs = draw, tuple(inputs)
        self.codes: list[str] = list(inputs)
        self.steps: list[Step] = []

    def add(self, op: str, args: Sequence[int], code: str, *params: Any) -> int:
        self.steps.append(Step(op, tuple(args), code, params))
        self.codes.append(code)
        return len(self.codes) - 1

    def of(self, code: str) -> int:
        """A register of type ``code``: one that exists, a literal, or a cast."""
        known = [i for i, c in enumerate(self.codes) if c == code]
        known_one: bool = self.draw(st.booleans())
        if known and known_one:
            return self.draw(st.sampled_from(known))
        if self.draw(st.booleans()) and code != "b1":
            source = self.draw(st.integers(0, len(self.inputs) - 1))
            strict: int = self.draw(st.integers(0, 9))
            return self.add("cast", [source], code, strict == 0)
        value: Any = drawn_values(self.draw, code, 1)[0].item()
        if self.draw(st.integers(0, 4)) == 0:
            value = None
        return self.add("lit", [], code, value)

    def step(self) -> None:
        code = self.draw(st.sampled_from(NUMBERS))
        two, floats = [self.of(code), self.of(code)], code in FLOATS
        exact = ("truediv",) if floats else BITS
        alone = (*ONE_ARGUMENT, "sqrt") if floats else ONE_ARGUMENT
        family = self.draw(st.integers(0, 5))
        if family == 0:
            self.add(self.draw(st.sampled_from((*SAME_TYPE, *DIVISIONS, *exact))), two, code)
        elif family == 1:
            self.add(self.draw(st.sampled_from(alone)), two[:1], code)
        elif family == 2:
            self.add(self.draw(st.sampled_from(COMPARISONS)), two, "b1")
        elif family == 3:
            logic = self.draw(st.sampled_from(("and", "or")))
            self.add(logic, [self.of("b1"), self.of("b1")], "b1")
        elif family == 4:
            self.add("if_else", [self.of("b1"), *two], code)
        else:
            self.lookup(code)

    def lookup(self, code: str) -> None:
        match self.draw(st.integers(0, 5)):
            case 0:
                self.add("hash", [self.of(code)], "u8", self.draw(st.integers(0, 2**40)))
            case 1:
                self.add("bucketize", [self.of(code)], "i8", (-math.inf, -1.5, 0.0, 3.0, 1e9))
            case 2:
                self.add("is_in", [self.of(code)], "b1", (0, 1, None, 2.5, -1))
            case 3:
                op = self.draw(st.sampled_from(("is_null", "is_nan")))
                self.add(op, [self.of(code)], "b1")
            case 4:
                self.add("round", [self.of(code)], code, self.draw(st.sampled_from((0, 1, -1, 3))))
            case _:
                self.add("fill_nan", [self.of(code), self.of(code)], code)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    inputs = draw(st.lists(st.sampled_from((*NUMBERS, "b1")), min_size=1, max_size=3))
    builder = Builder(draw, inputs)
    for _ in range(draw(st.integers(1, 8))):
        builder.step()
    flags = [i for i, c in enumerate(builder.codes) if c == "b1"]  # stacks are no flags
    registers = st.integers(0, len(builder.codes) - 1)
    outputs = draw(st.lists(registers, min_size=1, max_size=4))
    stacked = draw(st.lists(st.sampled_from(outputs), max_size=3))
    stacked = [r for r in stacked if builder.codes[r] == builder.codes[stacked[0]]]
    if stacked:
        outputs.append(builder.add("stack", stacked, builder.codes[stacked[0]]))
    keep = draw(st.none() | st.sampled_from(flags)) if flags else None
    checks = [i for i in flags if i >= len(inputs)]
    return Program(tuple(inputs), tuple(builder.steps), tuple(outputs), tuple(checks[:1]), keep)
