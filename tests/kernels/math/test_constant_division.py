"""Test division by constants: few constants become literals in a kernel, many do not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dml.kernels import interpreter
from dml.kernels.compiled.expression_shapes import multiples
from dml.kernels.compiled.fused_program import Fused
from dml.kernels.compiled.tier_choice import KernelTiers
from dml.kernels.program import Program, Step
from dml.kernels.vec import Vec
from tests.kernels.compiled.test_tier_choice import agree, random_columns
from tests.kernels.in_python import in_python

NUMBERS = np.arange(8)
WIDE = st.integers(-(2**63), 2**63 - 1)
EDGES = st.sampled_from([-(2**63), 1 - 2**63, -1, 0, 1, 2**63 - 2, 2**63 - 1])


@given(st.integers(3, 10**4) | st.integers(3, 2**63 - 1), WIDE | EDGES | st.integers(-99, 99))
@example(3 * 2**61, -3 * 2**61)
@example(6, -(2**63))
def test_multiples_of_a_constant(by: int, number: int) -> None:
    if by & (by - 1) == 0:
        return
    inverse, addend, turn, most = multiples(by)
    for x in (number, number // by * by, number // by * by + by - 1):
        if -(2**63) <= x < 2**63:
            z = (x % 2**64 * inverse + addend) % 2**64
            turned = (z >> turn | z << (64 - turn)) % 2**64
            assert (turned <= most) == (x % by == 0)


@pytest.mark.law
@given(
    st.sampled_from(["mod", "py_mod"]),
    st.sampled_from(["eq", "ne"]),
    st.sampled_from([0, 1, -1, 2, 3, -6, 7, 10, 1 << 40, -(2**63)]),
    st.booleans(),
    st.lists(EDGES | WIDE | st.integers(-30, 30), max_size=40),
)
def test_a_remainder_compared_with_zero(
    mod: str, compared: str, by: int, keeping: bool, numbers: list[int]
) -> None:
    steps = [Step("lit", (), "i8", (by,)), Step(mod, (0, 1), "i8"), Step("lit", (), "i8", (0,))]
    steps.append(Step(compared, (3, 2), "b1"))
    program = Program(
        ("i8",), tuple(steps), (0, 4) if keeping else (4,), (), 4 if keeping else None
    )
    fused = Fused(program)
    values = np.array(numbers, "i8")
    for valid in (None, values % 2 == 0):
        inputs = [Vec(values, valid)]
        kernels = [in_python(source) for source in fused.sources(inputs)]
        agree(
            partial(interpreter.run, program, inputs, len(values)),
            partial(fused.run, kernels, inputs, len(values)),
        )


@pytest.mark.slow
@pytest.mark.parametrize(("code", "by"), [("i8", 3), ("i8", -7), ("u8", 10), ("i1", 5)])
def test_numbers_divided_by_stand_in_the_kernel(code: str, by: int, tmp_path: Path) -> None:
    prefixes = ("", "py_") if code == "i8" else ("",)
    names = [f"{prefix}{op}" for prefix in prefixes for op in ("floordiv", "mod")]
    steps = (Step("lit", (), code, (by,)), *(Step(name, (0, 1), code) for name in names))
    program = Program((code,), steps, tuple(range(2, 2 + len(names))))
    run = partial(KernelTiers(tmp_path, "compiled").run, program)
    assert all(f"({by})" in source.text for source in Fused(program).sources([Vec(NUMBERS)]))
    for seed, nulls in ((1, False), (2, True)):
        inputs = random_columns(program.inputs, 2000, seed, nulls=nulls)
        agree(partial(interpreter.run, program, inputs, 2000), partial(run, inputs, 2000))


def test_few_constants_have_a_kernel_of_their_own() -> None:
    def shapes(divisors: Sequence[int]) -> int:
        steps = [step for d in divisors for step in (Step("lit", (), "i8", (d,)), None)]
        program = Program(
            ("i8",),
            tuple(step or Step("mod", (0, at), "i8") for at, step in enumerate(steps)),
            tuple(range(2, 1 + len(steps), 2)),
        )
        return len({source.name for source in Fused(program).sources([Vec(NUMBERS)])})

    assert shapes(range(2, 6)) == 4
    assert shapes(range(2, 9)) == 1
