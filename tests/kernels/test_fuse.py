"""This file tests that kernels give the bits of NumPy, whatever the program, the data, the tier."""

from __future__ import annotations

import ctypes
import math
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dml.kernels import interpret
from dml.kernels.codegen import Source
from dml.kernels.fuse import Fused, Tiers, compiled
from dml.kernels.jit import Kernel, KernelCache
from dml.kernels.program import Program, Step
from dml.kernels.vec import CastFailure, Register, Vec

INTEGERS = ("i1", "i4", "i8", "u1", "u8")
FLOATS = ("f4", "f8")
NUMBERS = INTEGERS + FLOATS


@pytest.fixture(scope="session")
def directory() -> Path:
    """Where the suite's kernels stay from run to run."""
    return Path(__file__).parents[2] / ".pytest_cache" / "kernels"


# ------------------------------------------------------------------------- comparing two tiers


def same(left: Register, right: Register) -> None:
    """Equal types, shapes, validity, and bits where valid."""
    if not isinstance(left, Vec) or not isinstance(right, Vec):
        assert left.equals(right)
        return
    assert left.values.dtype == right.values.dtype
    assert left.values.shape == right.values.shape
    assert (left.valid is None) == (right.valid is None)
    mask: Any = slice(None)
    if left.valid is not None and right.valid is not None:
        assert left.valid.tolist() == right.valid.tolist()
        mask = left.valid
    assert left.values[mask].tobytes() == right.values[mask].tobytes()


def outcome(run: Callable[[], interpret.Result]) -> interpret.Result | tuple[int, str, str]:
    try:
        return run()
    except CastFailure as failure:
        return failure.row, repr(failure.value), failure.code


def agree(one: Callable[[], interpret.Result], other: Callable[[], interpret.Result]) -> None:
    left, right = outcome(one), outcome(other)
    if not isinstance(left, interpret.Result) or not isinstance(right, interpret.Result):
        assert left == right
        return
    assert left.failed == right.failed
    for a, b in zip(left.outputs, right.outputs, strict=True):
        same(a, b)


# ------------------------------------------------------- kernels as plain Python, any program

STRETCH = 1 << 20


def plain_carray(place: Any, length: int, kind: type) -> np.ndarray:
    if isinstance(place, np.ndarray):
        return place.view(kind)[:length]
    return np.frombuffer((ctypes.c_char * STRETCH).from_address(place), kind)


def in_python(source: Source) -> Kernel:
    """The kernel's own text, run by the interpreter on NumPy scalars."""
    natives = types.SimpleNamespace(
        kernel=lambda function: function,
        inlined=lambda function: function,
        carray=plain_carray,
        pointer=int,
        scratch=lambda: np.zeros(256 * 8, np.uint8),
    )
    text = source.text.replace("from dml.kernels.jit import natives\n", "")
    names: dict[str, Any] = {"natives": lambda: natives, "bool": np.bool_}
    exec(compile(text.replace("TILE = 256", "TILE = 8"), source.name, "exec"), names)

    def run(*arguments: Any) -> None:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            names["run"](*arguments)

    return run


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
        vecs.append(Vec(drawn_values(draw, code, n), None if valid is None else np.array(valid, bool)))
    chosen = draw(st.none() | st.sets(st.integers(0, n - 1)) if n else st.none())
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
        if known and self.draw(st.integers(0, 3)):
            return self.draw(st.sampled_from(known))
        if self.draw(st.booleans()) and code != "b1":
            source = self.draw(st.integers(0, len(self.inputs) - 1))
            return self.add("cast", [source], code, self.draw(st.integers(0, 9)) == 0)
        value = self.draw(st.none() | st.just(drawn_values(self.draw, code, 1)[0].item()))
        return self.add("lit", [], code, value)

    def step(self) -> None:
        code = self.draw(st.sampled_from(NUMBERS))
        floats = code in FLOATS
        family = self.draw(st.integers(0, 9))
        if family <= 1:
            op = self.draw(st.sampled_from(SAME_TYPE))
            self.add(op, [self.of(code), self.of(code)], code)
        elif family == 2:
            op = self.draw(st.sampled_from((*ONE_ARGUMENT, *(("sqrt",) if floats else ()))))
            self.add(op, [self.of(code)], code)
        elif family == 3:
            self.add(self.draw(st.sampled_from(DIVISIONS)), [self.of(code), self.of(code)], code)
        elif family == 4 and floats:
            self.add("truediv", [self.of(code), self.of(code)], code)
        elif family == 4:
            self.add(self.draw(st.sampled_from(BITS)), [self.of(code), self.of(code)], code)
        elif family == 5:
            self.add(
                self.draw(st.sampled_from(COMPARISONS)), [self.of(code), self.of(code)], "b1"
            )
        elif family == 6:
            op = self.draw(st.sampled_from(("and", "or")))
            self.add(op, [self.of("b1"), self.of("b1")], "b1")
        elif family == 7:
            self.add("if_else", [self.of("b1"), self.of(code), self.of(code)], code)
        elif family == 8:
            op = self.draw(st.sampled_from(("is_null", "is_nan")))
            self.add(op, [self.of(code)], "b1")
        else:
            self.lookup(code)

    def lookup(self, code: str) -> None:
        match self.draw(st.integers(0, 4)):
            case 0:
                self.add("hash", [self.of(code)], "u8", self.draw(st.integers(0, 2**40)))
            case 1:
                self.add("bucketize", [self.of(code)], "i8", (-math.inf, -1.5, 0.0, 3.0, 1e9))
            case 2:
                self.add("is_in", [self.of(code)], "b1", (0, 1, None, 2.5, -1))
            case 3:
                self.add("round", [self.of(code)], code, self.draw(st.sampled_from((0, 1, -1, 3))))
            case _:
                self.add("fill_nan", [self.of(code), self.of(code)], code)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    inputs = draw(st.lists(st.sampled_from((*NUMBERS, "b1")), min_size=1, max_size=3))
    builder = Builder(draw, inputs)
    for _ in range(draw(st.integers(1, 8))):
        builder.step()
    registers = st.integers(0, len(builder.codes) - 1)
    outputs = draw(st.lists(registers, min_size=1, max_size=4))
    stacked = draw(st.lists(st.sampled_from(outputs), max_size=3))
    stacked = [r for r in stacked if builder.codes[r] == builder.codes[stacked[0]]]
    if stacked:
        outputs.append(builder.add("stack", stacked, builder.codes[stacked[0]]))
    checks = [i for i, c in enumerate(builder.codes) if c == "b1" and i >= len(inputs)]
    return Program(tuple(inputs), tuple(builder.steps), tuple(outputs), tuple(checks[:1]))


@given(st.data(), programs())
@settings(max_examples=150)
def test_any_program_means_the_same_as_kernels(data: st.DataObject, program: Program) -> None:
    inputs, n, sel = data.draw(columns(program.inputs))
    fused = Fused(program)
    kernels = [in_python(source) for source in fused.sources(inputs)]
    agree(
        lambda: interpret.run(program, inputs, n, sel),
        lambda: fused.run(kernels, inputs, n, sel),
    )
