"""Test math functions: committed vectors, equal bits in all evaluators, accuracy in ulps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import mpmath
import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.kernels.math import MATH_CODES, MATH_OPS, step_evaluator
from dml.kernels.math.functions import (
    StepTable,
    numba_source,
    numpy_apply,
    step_table,
)
from dml.kernels.math.step_language import StepValue, trace
from dml.kernels.rows.ids import mix64
from dml.testing.scalars.floats import from_bits, to_bits
from dml.testing.scalars.steps import evaluate
from tests.vectors import make_vectors

TABLES = [step_table(name, code) for name in MATH_OPS for code in MATH_CODES]
BITS = {"f4": "u4", "f8": "u8"}
EXACT: dict[str, Callable[[Any], Any]] = {
    "exp": mpmath.exp,
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log1p": mpmath.log1p,
    "log2": lambda x: mpmath.log(x, 2),
    "log10": mpmath.log10,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "tanh": mpmath.tanh,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
}
# Where the closest floats lie to a multiple of pi/2 (Kahan; Muller, Elementary Functions, 11.3).
HARD_ANGLES = [
    float.fromhex("0x1.6ac5b262ca1ffp+849"),
    6381956970095103.0 * 2.0**797,
    16367173.0 * 2.0**72,
]

tables = pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.name}-{table.code}")


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return np.array_equal(
        left.view(BITS[left.dtype.str[1:]]), right.view(BITS[right.dtype.str[1:]])
    )


def stray(code: str, n: int, seed: int = 0) -> np.ndarray:
    """Floats of stray bits: every exponent is as likely as any other."""
    bits = mix64(np.arange(seed, seed + n, dtype=np.uint64) * np.uint64(make_vectors.GOLDEN))
    return (bits >> np.uint64(64 - 8 * int(code[1]))).astype(BITS[code]).view(code)


def spread(table: StepTable, n: int) -> np.ndarray:
    """Finite arguments of all sizes that matter for a function."""
    rng = np.random.default_rng(5)
    sizes = [1e-3, 1.0, 8.0, 60.0, 720.0 if table.code == "f8" else 90.0]
    if table.name in ("sin", "cos"):
        sizes += [1e4, 1e6, 1e8, 1e15, 1e30]
    parts = [rng.uniform(-size, size, n) for size in sizes]
    parts += [
        rng.choice([-1, 1], n) * 10.0 ** rng.uniform(-44, 0, n),
        1 + rng.uniform(-0.3, 0.42, n),
    ]
    with np.errstate(invalid="ignore"):  # some stray bits are signalling NaNs
        strays = stray(table.code, n).astype("f8")
    x = np.concatenate([*parts, strays, HARD_ANGLES])
    if table.name.startswith("log"):
        x = np.abs(x)
    if table.name == "log1p":
        x = np.concatenate([x, -rng.uniform(0, 1, n), -(10.0 ** rng.uniform(-20, 0, n))])
    with np.errstate(all="ignore"):
        x = x.astype(table.code)
    return cast("np.ndarray", x[np.isfinite(x)])


# ----------------------------------------------------------------------------------------- vectors


@pytest.mark.law
def test_vectors_are_what_the_oracle_says() -> None:
    assert make_vectors.read("math") == make_vectors.math_vectors()


@tables
def test_numpy_gives_the_vectors(table: StepTable) -> None:
    cases = make_vectors.read("math")[f"{table.name} {table.code}"]
    pairs = np.array([[int(word, 16) for word in case.split()] for case in cases], dtype="u8")
    x, expected = pairs.T.astype(BITS[table.code], order="C").view(table.code)
    assert same_bits(numpy_apply(table, x), expected)


# -------------------------------------------------------------------------------------- equal bits


@pytest.mark.law
@tables
def test_the_oracle_equals_numpy(table: StepTable) -> None:
    x = np.concatenate([stray(table.code, 150), spread(table, 30)])
    expected = np.array([evaluate(table, value) for value in x.tolist()], dtype=table.code)
    assert same_bits(numpy_apply(table, x), expected)


@pytest.mark.law
@given(st.sampled_from(TABLES), st.integers(0, 2**64 - 1))
def test_any_bits_mean_the_same_to_both(table: StepTable, bits: int) -> None:
    bits >>= 64 - 8 * int(table.code[1])
    x = np.array([bits], dtype=BITS[table.code]).view(table.code)
    expected = to_bits(evaluate(table, from_bits(bits, table.code)), table.code)
    assert int(numpy_apply(table, x).view(BITS[table.code])[0]) == expected


def compiled(table: StepTable) -> Callable[[np.ndarray], np.ndarray]:
    """A loop around the generated function."""
    space: dict[str, Any] = {"np": np}
    exec(numba_source(table, "f"), space)
    jit = numba.njit(error_model="numpy")
    full = jit(space["f"])

    @jit
    def loop(x: Any, out: Any) -> None:
        for i in range(x.size):
            out[i] = full(x[i])

    def apply(x: np.ndarray) -> np.ndarray:
        out = np.empty_like(x)
        loop(x, out)
        return out

    return apply


@pytest.mark.law
@pytest.mark.parametrize(
    ("name", "code"),
    [("exp", "f4"), ("log1p", "f4"), ("log1p", "f8"), ("tanh", "f8"), ("sin", "f4")],
)
def test_numba_equals_numpy(name: str, code: str) -> None:
    table = step_table(name, code)
    x = np.concatenate([stray(table.code, 40_000), spread(table, 500)])
    x = np.concatenate([x, np.array(make_vectors.math_inputs(table.code), dtype=table.code)])
    assert same_bits(compiled(table)(x), numpy_apply(table, x))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", MATH_OPS)
def test_numba_equals_numpy_on_every_f4(name: str) -> None:
    table = step_table(name, "f4")
    apply = compiled(table)
    for start in range(0, 1 << 32, 1 << 22):
        x = np.arange(start, start + (1 << 22), dtype=np.uint64).astype("u4").view("f4")
        assert same_bits(apply(x), numpy_apply(table, x)), hex(start)


@pytest.mark.slow
@tables
def test_numba_equals_numpy_densely(table: StepTable) -> None:
    x = np.concatenate([stray(table.code, 1 << 22, seed=1 << 40), spread(table, 1 << 17)])
    assert same_bits(compiled(table)(x), numpy_apply(table, x))


# --------------------------------------------------------------------------------- the NumPy tier


@pytest.mark.law
@tables
def test_blocks_do_not_show(table: StepTable, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.concatenate([spread(table, 20), stray(table.code, 50), spread(table, 9)])
    whole = numpy_apply(table, x)
    for count in (1, 7, 64):
        monkeypatch.setattr(step_evaluator, "BLOCK_BYTES", count * x.itemsize)
        assert same_bits(numpy_apply(table, x), whole)


@tables
def test_nan_is_one_value(table: StepTable) -> None:
    ones = np.array([-1], dtype="i8").view("u8") >> np.uint64(64 - 8 * int(table.code[1]))
    odd = np.concatenate([ones, ones >> np.uint64(1)]).astype(BITS[table.code]).view(table.code)
    found = numpy_apply(table, np.concatenate([odd, np.array([-math.inf], dtype=table.code)]))
    canonical = np.array([math.nan], dtype=table.code)
    for value in found[np.isnan(found)]:
        assert same_bits(np.array([value]), canonical)
    assert np.isnan(found[:2]).all()


@tables
def test_nothing_shows_of_shape_and_memory(table: StepTable) -> None:
    x = np.linspace(0.1, 0.9, 60, dtype=table.code).reshape(3, 4, 5)
    kept = x.copy()
    flat = numpy_apply(table, x.reshape(-1))
    assert same_bits(numpy_apply(table, x), flat.reshape(3, 4, 5))
    assert same_bits(
        numpy_apply(table, x[::2, ::-1, ::3]), flat.reshape(3, 4, 5)[::2, ::-1, ::3].copy()
    )
    assert numpy_apply(table, x[:0]).shape == (0, 4, 5)
    assert numpy_apply(table, np.array(0.5, dtype=table.code)).shape == ()
    assert same_bits(x, kept)


def test_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="exp on f4 was given float64"):
        numpy_apply(step_table("exp", "f4"), np.zeros(1))
    with pytest.raises(KeyError):
        step_table("gamma", "f8")


# ---------------------------------------------------------------------------------------- accuracy


def ulps(table: StepTable, x: np.ndarray) -> Iterator[tuple[float, float]]:
    """Yield (error in units of the last place of the exact value, x) where that is finite."""
    form = np.finfo(table.code)
    largest = mpmath.mpf(float(form.max)) * (1 + mpmath.mpf(2) ** (-form.nmant - 2))
    with mpmath.workprec(1200 if table.name in ("sin", "cos") else 200):
        for value, got in zip(x.tolist(), numpy_apply(table, x).tolist(), strict=True):
            if value == 0 and table.name.startswith("log") and table.name != "log1p":
                continue
            exact = EXACT[table.name](mpmath.mpf(value))
            if abs(exact) >= largest:
                assert math.isinf(got), value
                continue
            place = max(int(mpmath.frexp(exact)[1]) - 1, int(form.minexp)) - form.nmant
            yield float(abs(mpmath.mpf(got) - exact) * mpmath.mpf(2) ** -place), value


@pytest.mark.law
@tables
def test_the_stated_error_holds(table: StepTable) -> None:
    worst, where = max(ulps(table, spread(table, 40)))
    assert worst <= table.ulp, where


@pytest.mark.slow
@pytest.mark.timeout(1800)
@tables
def test_the_stated_error_holds_densely(table: StepTable) -> None:
    worst, where = max(ulps(table, spread(table, 10_000)))
    assert worst <= table.ulp, where


SPECIAL = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (math.inf, math.inf), (-math.inf, 0.0)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (math.inf, math.inf), (-math.inf, -1.0), (-1e9, -1.0)],
    "log": [
        (1.0, 0.0),
        (0.0, -math.inf),
        (-0.0, -math.inf),
        (math.inf, math.inf),
        (-1.0, math.nan),
    ],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -math.inf), (math.inf, math.inf), (-2.0, math.nan)],
    "log2": [(1.0, 0.0), (8.0, 3.0), (2.0**-126, -126.0), (2.0**-149, -149.0), (0.0, -math.inf)],
    "log10": [(1.0, 0.0), (10.0, 1.0), (1000.0, 3.0), (1e10, 10.0), (-math.inf, math.nan)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (math.inf, math.nan), (-math.inf, math.nan)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (math.inf, math.nan), (-math.inf, math.nan)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (math.inf, 1.0), (-math.inf, -1.0), (-30.0, -1.0)],
    "sigmoid": [(0.0, 0.5), (-0.0, 0.5), (math.inf, 1.0), (-math.inf, 0.0), (200.0, 1.0)],
}


@tables
def test_special_arguments(table: StepTable) -> None:
    x, expected = np.array(SPECIAL[table.name], dtype=table.code).T
    assert same_bits(numpy_apply(table, x.copy()), expected.copy())


def test_only_powers_of_two_have_whole_base_two_logarithms() -> None:
    for code, low, high in (("f4", -149, 128), ("f8", -1074, 1024)):
        exponents = np.arange(low, high)
        found = numpy_apply(step_table("log2", code), np.ldexp(1.0, exponents).astype(code))
        assert np.array_equal(found, exponents.astype(code))


@tables
def test_monotonic_functions_hardly_turn_back(table: StepTable) -> None:
    if table.name in ("sin", "cos"):
        return
    x = np.linspace(0.01, 5, 20_001).astype(table.code)
    y = numpy_apply(table, x)
    spacing = np.spacing(np.abs(y[1:]))
    assert (np.diff(y) >= -spacing).all()


# ---------------------------------------------------------------------------------------- language


def test_literals_must_be_exact_and_types_must_meet() -> None:
    with pytest.raises(ValueError, match="not a float32"):
        trace("bad", "f4", lambda x: x + 0.1, 1.0)
    with pytest.raises(TypeError, match="u8 meets f8"):
        trace("bad", "f8", lambda x: x + x.bits(), 1.0)
    with pytest.raises(TypeError, match="returns u8"):
        trace("bad", "f8", StepValue.bits, 1.0)


def test_equal_steps_are_shared_and_unread_ones_dropped() -> None:
    def body(x: StepValue) -> StepValue:
        unread = x * 3.0
        assert unread.code == "f8"
        return (x + 1.0) * (x + 1.0)

    table = trace("square", "f8", body, 1.0)
    assert [step.op for step in table.steps] == ["input", "const", "add", "mul"]
    assert numpy_apply(table, np.array([2.0])).tolist() == [9.0]
    assert evaluate(table, 2.0) == 9.0


def test_bits_of_a_literal_are_a_literal() -> None:
    table = trace(
        "or_one", "f4", lambda x: (x.bits() | x.trace.lift(1.0, "f4").bits()).from_bits(), 1
    )
    assert [step.op for step in table.steps] == ["input", "bits", "const", "or", "float"]
    assert numpy_apply(table, np.zeros(2, dtype="f4")).tolist() == [1.0, 1.0]


def test_no_step_is_a_library_call() -> None:
    allowed = set(step_evaluator.FUNCTIONS) | {"input", "const", "bits", "float"}
    assert {step.op for table in TABLES for step in table.steps} <= allowed
