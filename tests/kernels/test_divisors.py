"""This file tests constants that columns are divided by: numbers in a kernel, if few."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dml.kernels import interpret
from dml.kernels.fuse import compiled
from dml.kernels.fused import Fused
from dml.kernels.jit import KernelCache
from dml.kernels.program import Program, Step
from dml.kernels.vec import Vec
from tests.kernels.test_fuse import agree, random_columns

NUMBERS = np.arange(8)


@pytest.mark.slow
@pytest.mark.parametrize(("code", "by"), [("i8", 3), ("i8", -7), ("u8", 10), ("i1", 5)])
def test_numbers_divided_by_stand_in_the_kernel(code: str, by: int, tmp_path: Path) -> None:
    prefixes = ("", "py_") if code == "i8" else ("",)
    names = [f"{prefix}{op}" for prefix in prefixes for op in ("floordiv", "mod")]
    steps = (Step("lit", (), code, (by,)), *(Step(name, (0, 1), code) for name in names))
    program = Program((code,), steps, tuple(range(2, 2 + len(names))))
    run = compiled(program, KernelCache(tmp_path))
    assert run is not None
    assert all(f"({by})" in source.text for source in Fused(program).sources([Vec(NUMBERS)]))
    for seed, nulls in ((1, False), (2, True)):
        inputs = random_columns(program.inputs, 2000, seed, nulls=nulls)
        agree(partial(interpret.run, program, inputs, 2000), partial(run, inputs, 2000))


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
