"""Test programs: invalid ones raise an error, and registers are released after their last use."""

from __future__ import annotations

import pytest

from dml.kernels.program import Program, Step

SQUARE_PLUS = Program(
    inputs=("i8", "i8", "f4"),
    steps=(
        Step("mul", (0, 0), "i8"),
        Step("add", (3, 1), "i8"),
        Step("lt", (3, 4), "b1"),
        Step("neg", (3,), "i8"),
    ),
    outputs=(4,),
    checks=(5,),
)


def test_codes_follow_registers() -> None:
    assert SQUARE_PLUS.codes == ("i8", "i8", "f4", "i8", "i8", "b1", "i8")


def test_registers_die_after_their_last_use_and_outputs_never() -> None:
    assert SQUARE_PLUS.deaths == ((0,), (1,), (), (3, 6))


def test_unread_inputs_are_known() -> None:
    assert SQUARE_PLUS.reads == {0, 1}


def test_a_step_cannot_read_the_future() -> None:
    with pytest.raises(ValueError, match="not yet written"):
        Program(("i8",), (Step("add", (0, 1), "i8"),), (1,))


def test_an_output_must_exist() -> None:
    with pytest.raises(ValueError, match="1 registers only"):
        Program(("i8",), (), (1,))
