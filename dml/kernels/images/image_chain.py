"""Consecutive image functions are one step of a program: each image passes through all of them."""

from __future__ import annotations

from collections.abc import Sequence

from dml.kernels.function_ops import written_out
from dml.kernels.functions.chain_pass import Machine
from dml.kernels.functions.images import BY_NAME
from dml.kernels.functions.row_chain import Making, chain_type, merged, run
from dml.kernels.images import image_kernel
from dml.kernels.images.image_rows import ImageRows
from dml.kernels.program import IMAGES, ChainTools, Program, Step
from dml.kernels.vec import Register


def chained(program: Program) -> Program:
    """Merge consecutive image functions of a program into single steps ``IMAGES``."""
    return merged(program, IMAGES, ImageRows)


def machine_for(_step: Step) -> Machine:
    """Return the kernel that all image chains share."""
    return image_kernel.ImageMachine(image_kernel.source())


def apply(step: Step, args: Sequence[Register], rows: int, tools: ChainTools) -> Register:
    """Apply all functions of a chain, by the kernel if ``tools`` have it for the step."""
    columns = [written_out(arg, rows) for arg in args]
    kind = chain_type(BY_NAME, step.params, columns[0])
    found = tools.kernels.get(id(step))
    making = Making(None if found is None else found[1], tools.room)
    return run(ImageRows, step.params, columns, kind, making)
