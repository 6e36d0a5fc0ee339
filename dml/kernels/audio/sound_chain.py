"""Consecutive audio functions are one step of a program: each sound passes through all of them."""

from __future__ import annotations

from collections.abc import Sequence

from dml.kernels.audio.sound_rows import SoundRows
from dml.kernels.function_ops import written_out
from dml.kernels.functions.audio import BY_NAME
from dml.kernels.functions.row_chain import Making, chain_type, merged, run
from dml.kernels.program import SOUNDS, ChainTools, Program, Step
from dml.kernels.vec import Register


def chained(program: Program) -> Program:
    """Merge consecutive audio functions of a program into single steps ``SOUNDS``."""
    return merged(program, SOUNDS, SoundRows)


def machine_for(_step: Step) -> None:
    """Return None: libraries compute sounds."""
    return


def apply(step: Step, args: Sequence[Register], rows: int, tools: ChainTools) -> Register:
    """Apply all functions of a chain."""
    columns = [written_out(arg, rows) for arg in args]
    kind = chain_type(BY_NAME, step.params, columns[0])
    return run(SoundRows, step.params, columns, kind, Making(room=tools.room))
