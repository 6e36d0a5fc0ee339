"""Chains of functions run together: of functions of texts, of images, and of sounds."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from dml.kernels.functions.chain_pass import Machine
from dml.kernels.program import CHAIN, CHAINS, IMAGES, SOUNDS, ChainTools, Program, Step
from dml.kernels.vec import Register


def _module(op: str) -> ModuleType:
    """Return the module with the chains ``op``; most programs have none."""
    if op == IMAGES:
        from dml.kernels.images import image_chain  # noqa: PLC0415

        return image_chain
    if op == SOUNDS:
        from dml.kernels.audio import sound_chain  # noqa: PLC0415

        return sound_chain
    from dml.kernels.functions import text_chain  # noqa: PLC0415

    return text_chain


def chained(program: Program) -> Program:
    """Return ``program`` with consecutive functions of text, images or sounds as one step."""
    for prefix, op in (("str.", CHAIN), ("image.", IMAGES), ("audio.", SOUNDS)):
        if any(step.op.startswith(prefix) for step in program.steps):
            program = _module(op).chained(program)
    return program


def apply(step: Step, args: Sequence[Register], rows: int, tools: ChainTools | None) -> Register:
    """Apply all functions of a chain, by a kernel if ``tools`` have one for the step."""
    found: Register = _module(step.op).apply(step, args, rows, tools or ChainTools())
    return found


def machines(program: Program) -> list[tuple[Step, Machine]]:
    """Return each chain of ``program`` that a kernel can run, with its ``Machine``."""
    if not program.has_chain:
        return []
    steps = (step for step in program.steps if step.op in CHAINS)
    made = ((step, _module(step.op).machine_for(step)) for step in steps)
    return [(step, machine) for step, machine in made if machine is not None]
