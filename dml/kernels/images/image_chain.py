"""Consecutive image functions are one step of a program: each image passes through all of them."""

from __future__ import annotations

from collections.abc import Sequence

from dml.kernels.function_ops import written_out
from dml.kernels.functions.chain_pass import Chaining, Machine
from dml.kernels.functions.images import chain_type, type_of
from dml.kernels.images import image_kernel
from dml.kernels.images.image_rows import WRITERS, ImageLink, Making, run
from dml.kernels.images.steps import STEPS
from dml.kernels.program import IMAGES, ChainTools, Program, Step
from dml.kernels.vec import Register


def chained(program: Program) -> Program:
    """Merge consecutive image functions of a program into single steps ``IMAGES``."""
    return Chaining(
        program,
        IMAGES,
        fits=lambda step: step.op in STEPS or step.op in WRITERS,
        begins=lambda _: True,
        ends=lambda _: False,
        link=_link,
    ).merge_chains()


def _link(step: Step, place: int) -> ImageLink:
    return ImageLink(step.op, step.params, tuple(range(place, place + len(step.args) - 1)))


def machine_for(_step: Step) -> Machine:
    """Return the kernel that all image chains share."""
    return image_kernel.ImageMachine(image_kernel.source())


def apply(step: Step, args: Sequence[Register], rows: int, tools: ChainTools) -> Register:
    """Apply all functions of a chain, by the kernel if ``tools`` have it for the step."""
    columns = [written_out(arg, rows) for arg in args]
    kind = chain_type([link[:2] for link in step.params], type_of(columns[0]))
    found = tools.kernels.get(id(step))
    return run(step.params, columns, kind, Making(None if found is None else found[1], tools.room))
