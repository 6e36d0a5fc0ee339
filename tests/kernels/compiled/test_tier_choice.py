"""Test that compiled kernels give the bits of NumPy, for any program, data and tier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.kernels import interpreter
from dml.kernels.compiled.fused_program import Fused
from dml.kernels.compiled.tier_choice import KernelTiers
from dml.kernels.program import Program, Step
from dml.kernels.vec import CastFailure, Register, Vec
from tests.kernels.in_python import in_python
from tests.kernels.programs import (
    BITS,
    DIVISIONS,
    FLOATS,
    ONE_ARGUMENT,
    SAME_TYPE,
    columns,
    programs,
)


@pytest.fixture(scope="session")
def directory() -> Path:
    """Where the suite's kernels stay from run to run."""
    return Path(__file__).parents[3] / ".pytest_cache" / "kernels"


# ------------------------------------------------------------------------- comparing two tiers


def same(left: Register, right: Register) -> None:
    """Equal types, shapes, validity, and bits where valid."""
    if not isinstance(left, Vec):
        assert left.equals(right)
        return
    assert isinstance(right, Vec)
    assert left.values.dtype == right.values.dtype
    assert left.values.shape == right.values.shape
    assert (left.valid is None) == (right.valid is None)
    mask: Any = slice(None)
    if left.valid is not None and right.valid is not None:
        assert left.valid.tolist() == right.valid.tolist()
        mask = left.valid
    assert left.values[mask].tobytes() == right.values[mask].tobytes()


def outcome(run: Callable[[], interpreter.Result]) -> interpreter.Result | tuple[int, str, str]:
    try:
        return run()
    except CastFailure as failure:
        return failure.row, repr(failure.value), failure.code


def agree(one: Callable[[], interpreter.Result], other: Callable[[], interpreter.Result]) -> None:
    left, right = outcome(one), outcome(other)
    if not isinstance(left, interpreter.Result) or not isinstance(right, interpreter.Result):
        assert left == right
        return
    assert left.failed == right.failed
    assert (left.kept is None) == (right.kept is None)
    if left.kept is not None and right.kept is not None:
        assert left.kept.tolist() == right.kept.tolist()
    for a, b in zip(left.outputs, right.outputs, strict=True):
        same(a, b)


# ------------------------------------------------------- kernels as plain Python, any program


@pytest.mark.law
@given(st.data(), programs())
def test_any_program_means_the_same_as_kernels(data: st.DataObject, program: Program) -> None:
    inputs, n, sel = data.draw(columns(program.inputs))
    fused = Fused(program)
    kernels = [in_python(source) for source in fused.sources(inputs)]
    agree(
        lambda: interpreter.run(program, inputs, n, sel),
        lambda: fused.run(kernels, inputs, n, sel),
    )


# ------------------------------------------------------------------ compiled by numba, for real


def everything(code: str) -> Program:
    """Every operation on ``code`` that a kernel can have, over two columns and a condition."""
    steps: list[Step] = []

    def add(op: str, args: Sequence[int], result: str, *params: Any) -> int:
        steps.append(Step(op, tuple(args), result, params))
        return 2 + len(steps)

    floats = code in FLOATS
    # shared steps make few kernels of it all
    a, b, c = add("minimum", (0, 1), code), 1, 2
    outputs = [add(op, (a, b), code) for op in (*SAME_TYPE, *DIVISIONS)]
    outputs += [add(op, (a, b), "b1") for op in ("eq", "lt", "ge")]
    outputs += [add(op, (a,), code) for op in (*ONE_ARGUMENT, "ceil")]
    outputs += [add(op, (a,), "b1") for op in ("is_null", "is_nan")]
    outputs += [add("round", (a,), code, digits) for digits in (0, 2, -1)]
    a = add("maximum", (0, 1), code)
    outputs += [add("if_else", (c, a, b), code), add("hash", (a,), "u8", 5)]
    outputs += [add("cast", (a,), other, False) for other in ("i1", "i8", "u1", "u8", "f4", "b1")]
    for literal in (0, 3) + ((-0.0,) if floats else ()):
        constant = add("lit", (), code, literal)
        outputs += [add(op, (a, constant), code) for op in ("minimum", "maximum")]
    if floats:
        outputs += [add(op, (a,), code) for op in ("sqrt", "log1p")]
        outputs += [add("truediv", (a, b), code), add("fill_nan", (a, b), code)]
    else:
        outputs += [add(op, (a, b), code) for op in BITS]
        outputs += [add("bit_not", (a,), code)]
    outputs += [add("bucketize", (a,), "i8", (-1.5, 0.0, 3.0)), add("is_in", (a,), "b1", (0, 3))]
    return Program((code, code, "b1"), tuple(steps), tuple(outputs))


def random_columns(codes: Sequence[str], n: int, seed: int, *, nulls: bool) -> list[Register]:
    """Bits at random, mixed with small numbers."""
    rng = np.random.default_rng(seed)
    vecs: list[Register] = []
    for code in codes:
        small = rng.integers(0, 8, n)
        if code == "b1":
            values = small > 3
        else:
            bits = rng.integers(0, 256, n * int(code[1]), np.uint8).view(code)
            with np.errstate(all="ignore"):
                signed = small - (0 if code[0] == "u" else 4)
                values = np.where(rng.random(n) < 0.5, bits, signed.astype(code))
        vecs.append(Vec(values, rng.random(n) < 0.8 if nulls else None))
    return vecs


@pytest.mark.slow
@pytest.mark.parametrize("code", ["i1", "i8", "u4", "u8", "f4", "f8"])
def test_every_operation_compiles_to_the_same_bits(code: str, directory: Path, whole: bool) -> None:
    if code not in ("i8", "f4") and not whole:
        pytest.skip("ten seconds to compile, and much like its neighbours")
    program = everything(code)
    tiers = KernelTiers(directory, "compiled")
    run = partial(tiers.run, program)
    nulls = code in ("i8", "f4")
    for seed, n in enumerate((1000, 256, 3, 0)):
        inputs = random_columns(program.inputs, n, seed, nulls=nulls)
        sel = np.flatnonzero(np.random.default_rng(seed).random(n) < 0.3)
        for rows in (None, sel):
            agree(partial(interpreter.run, program, inputs, n, rows), partial(run, inputs, n, rows))
    assert not tiers.cache.failures


PYTHON_STEPS = (
    *((f"py_{name}", "i8") for name in ("add", "sub", "mul", "floordiv", "mod")),
    ("py_truediv", "f8"),
)


@pytest.mark.slow
def test_python_arithmetic_and_its_checks(directory: Path) -> None:
    steps = [Step("minimum", (0, 1), "i8")]
    for op, code in PYTHON_STEPS:
        steps += [Step(op, (2, 1), code), Step(f"overflow_{op[3:]}", (2, 1), "b1")]
    steps += [Step("py_neg", (2,), "i8"), Step("overflow_neg", (2,), "b1")]
    outputs = tuple(range(3, 2 + len(steps)))
    checks = (4,)
    program = Program(("i8", "i8"), tuple(steps), outputs, checks)
    run = partial(KernelTiers(directory, "compiled").run, program)
    for seed, nulls in ((1, False), (2, True)):
        inputs = random_columns(program.inputs, 2000, seed, nulls=nulls)
        expected, got = interpreter.run(program, inputs, 2000), run(inputs, 2000)
        assert expected.failed == got.failed
        for i in range(0, len(outputs), 2):
            same(expected.outputs[i + 1], got.outputs[i + 1])
            # a value says nothing where its check holds
            inside = ~np.asarray(getattr(expected.outputs[i + 1], "values", None))
            left, right = expected.outputs[i], got.outputs[i]
            assert isinstance(left, Vec)
            assert isinstance(right, Vec)
            same(Vec(left.values[inside]), Vec(right.values[inside]))
    calm: list[Register] = [Vec(np.array([1, 2])), Vec(np.array([3, 4]))]
    assert not run(calm, 2).failed


CLIPPED_LOG = Program(
    ("i4", "i4", "u8", "u8"),
    (
        Step("lit", (), "f4", (0.0,)),
        Step("lit", (), "f4", (10.0,)),
        *(
            step
            for j, first in ((0, 6), (1, 11))
            for step in (
                Step("cast", (j,), "f4", (True,)),
                Step("fill_null", (first, 4), "f4"),
                Step("maximum", (first + 1, 4), "f4"),
                Step("log1p", (first + 2,), "f4"),
                Step("minimum", (first + 3, 5), "f4"),
            )
        ),
        Step("stack", (10, 15), "f4"),
        Step("uniform", (2, 3), "f8", (99,)),
        Step("cast", (1,), "i1", (True,)),
    ),
    (16, 17, 0, 18),
)


def clipped_log_columns(n: int) -> list[Register]:
    rng = np.random.default_rng(n)
    dense = [Vec(rng.integers(-5, 99, n).astype("i4"), rng.random(n) < 0.9) for _ in "ab"]
    return [*dense, *(Vec(rng.integers(0, 2**64, n, np.uint64)) for _ in "ab")]


def test_equal_expressions_share_a_kernel() -> None:
    fused = Fused(CLIPPED_LOG)
    assert sorted(len(group.instances) for group in fused.split.groups) == [1, 1, 2]
    assert fused.split.passed == (2,)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["compiled", "swap-at-block-2", "demote-at-block-1"])
def test_a_swap_of_tiers_cannot_be_seen(mode: str, directory: Path) -> None:
    tiers = KernelTiers(directory, mode)
    for n in (300, 1, 0, 700):
        inputs = clipped_log_columns(n)
        agree(
            partial(interpreter.run, CLIPPED_LOG, inputs, n),
            partial(tiers.run, CLIPPED_LOG, inputs, n),
        )
    expected = {"compiled": (0, 4), "swap-at-block-2": (2, 2), "demote-at-block-1": (3, 1)}
    assert (tiers.counts.numpy, tiers.counts.compiled) == expected[mode]


@pytest.mark.slow
def test_a_failed_cast_is_the_same_failure(directory: Path) -> None:
    tiers = KernelTiers(directory, "compiled")
    inputs = clipped_log_columns(50)
    inputs[1] = Vec(np.where(np.arange(50) == 33, 1000, 5).astype("i4"))
    with pytest.raises(CastFailure) as caught:
        tiers.run(CLIPPED_LOG, inputs, 50, np.arange(20, 50))
    assert (caught.value.row, caught.value.value) == (33, 1000)


NARROWED = Program(
    ("f8", "f8"),
    (
        Step("cast", (0,), "f4", (True,)),
        Step("cast", (1,), "f4", (True,)),
        Step("lit", (), "f4", (0.5,)),
        Step("fill_null", (2, 4), "f4"),
        Step("add", (5, 3), "f4"),
    ),
    (6,),
)


@pytest.mark.slow
@pytest.mark.parametrize("planted", [1e300, -3.5e38, np.inf, -np.inf, np.nan, 3.4028235e38])
def test_only_what_was_too_large_fails_to_narrow(planted: float, directory: Path) -> None:
    run = partial(KernelTiers(directory, "compiled").run, NARROWED)
    for row, null, sel in (
        (5, False, None),
        (699, False, None),
        (300, True, None),
        (600, False, 1),
    ):
        values = np.random.default_rng(row).random((2, 700))
        values[row % 2, row] = planted
        valid = np.arange(700) % 7 != 3
        valid[row] = not null
        inputs: list[Register] = [Vec(column, valid) for column in values]
        rows = None if sel is None else np.arange(sel, 700, 3)
        agree(
            partial(interpreter.run, NARROWED, inputs, 700, rows), partial(run, inputs, 700, rows)
        )


def stacked(columns: int) -> Program:
    """A matrix of sums, products and untouched columns, by turns of seventeen."""
    steps: list[Step] = []
    parts: list[int] = []
    for i in range(columns):
        kind = i // 17 % 3
        if kind < 2:
            steps.append(Step(("add", "mul")[kind], (i, (i + 1) % columns), "f4"))
        parts.append(i if kind == 2 else columns + len(steps) - 1)
    steps.append(Step("stack", tuple(parts), "f4"))
    return Program(("f4",) * columns, tuple(steps), (columns + len(steps) - 1,))


@pytest.mark.slow
def test_wide_matrices(directory: Path) -> None:
    program = stacked(120)
    run = partial(KernelTiers(directory, "compiled").run, program)
    for n, nulls in ((1500, False), (300, True), (1, True)):
        inputs = random_columns(program.inputs, n, n, nulls=nulls)
        for rows in (None, np.arange(0, n, 2)):
            agree(partial(interpreter.run, program, inputs, n, rows), partial(run, inputs, n, rows))


@pytest.mark.slow
def test_auto_goes_on_with_numpy_until_kernels_are_there(directory: Path) -> None:
    tiers = KernelTiers(directory, "auto", compile_after=1000)
    inputs = clipped_log_columns(100)
    tiers.run(CLIPPED_LOG, inputs, 100)
    assert tiers.counts.numpy == 1
    tiers.run(CLIPPED_LOG, inputs, 100)
    for call in Fused(CLIPPED_LOG).sources(inputs):
        tiers.cache.wait(call.name)
    tiers.run(CLIPPED_LOG, inputs, 100)
    assert tiers.counts.compiled >= 1


@pytest.mark.parametrize("made", [True, False])
def test_kernels_of_an_earlier_run_are_loaded_sooner_than_others_are_compiled(
    directory: Path, made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = KernelTiers(directory, "auto", compile_after=1000)
    tiers.load_after = 1
    asked: list[int] = []
    monkeypatch.setattr(tiers.cache, "is_compiled", lambda _: made)
    monkeypatch.setattr(tiers.cache, "request", lambda _: asked.append(tiers.counts.numpy))
    for _ in range(5):
        tiers.run(CLIPPED_LOG, clipped_log_columns(100), 100)
    first = 1 if made else -(-1000 // (100 * len(CLIPPED_LOG.steps)))
    assert asked[0] == first


@pytest.mark.slow
def test_strings_stay_with_numpy_and_numbers_do_not(directory: Path) -> None:
    program = Program(
        ("arrow", "i8"),
        (
            Step("is_null", (0,), "b1"),
            Step("hash", (1,), "u8", (0,)),
            Step("if_else", (2, 1, 3), "i8"),
        ),
        (2, 3, 0),
    )
    fused = Fused(program)
    assert (fused.split.rest, len(fused.calls)) == ((0,), 1)
    inputs: list[Register] = [pa.array(["a", None]), Vec(np.array([1, 2]))]
    tiers = KernelTiers(directory, "compiled")
    agree(lambda: interpreter.run(program, inputs, 2), lambda: tiers.run(program, inputs, 2))


@pytest.mark.slow
def test_tensors_are_refused_and_counted(directory: Path) -> None:
    program = Program(("f4",), (Step("add", (0, 0), "f4"),), (1,))
    tiers = KernelTiers(directory, "compiled")
    images: list[Register] = [Vec(np.ones((3, 2), "f4"))]
    agree(lambda: interpreter.run(program, images, 3), lambda: tiers.run(program, images, 3))
    assert (tiers.counts.refused, tiers.counts.numpy, tiers.counts.compiled) == (1, 1, 0)


def test_a_column_that_is_passed_on_needs_no_kernel() -> None:
    fused = Fused(Program(("arrow",), (), (0,)))
    assert not fused.calls
    assert not fused.chains


def test_modes_have_names(directory: Path) -> None:
    with pytest.raises(ValueError, match="'fast' is not a mode"):
        KernelTiers(directory, "fast")
