"""Consecutive audio functions are one step of a program: each sound passes through all of them."""

from __future__ import annotations

from collections.abc import Sequence

from dml.kernels.audio.sound_rows import SoundChain
from dml.kernels.function_ops import written_out
from dml.kernels.functions.audio import chain_type, type_of
from dml.kernels.functions.row_chain import Making, merged, run
from dml.kernels.program import SOUNDS, ChainTools, Program, Step
from dml.kernels.vec import Register


def chained(program: Program) -> Program:
    """Merge consecutive audio functions of a program into single steps ``SOUNDS``."""
    return merged(program, SOUNDS, SoundChain)


def machine_for(_step: Step) -> None:
    """Return None: libraries compute sounds."""
    return


def apply(step: Step, args: Sequence[Register], rows: int, tools: ChainTools) -> Register:
    """Apply all functions of a chain."""
    columns = [written_out(arg, rows) for arg in args]
    kind = chain_type([link[:2] for link in step.params], type_of(columns[0]))
    return run(SoundChain, step.params, columns, kind, Making(room=tools.room))
