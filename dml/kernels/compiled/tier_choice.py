"""For every block, one of two tiers is chosen to run a program: NumPy or compiled kernels.

Both tiers give the same bits, so neither the choice nor the time of a switch affects results.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dml.kernels import interpreter
from dml.kernels.compiled.jit import Kernel, KernelCache
from dml.kernels.functions.function import is_text
from dml.kernels.interpreter import Result
from dml.kernels.program import IMAGES, ChainTools, Program, Rooms
from dml.kernels.vec import NotFusedError, Register, Vec

if TYPE_CHECKING:
    from dml.kernels.compiled.codegen import KernelSource
    from dml.kernels.compiled.fused_program import Fused

# Row-steps (rows times steps) that NumPy runs before kernels are compiled: at about 1 ns each, it
# has then spent 0.3 s, against 0.5 s to compile a kernel and 0.3 s to load numba (KERNELS).
COMPILE_AFTER = 300_000_000
# Row-steps before kernels that an earlier run compiled are loaded from disk.
LOAD_AFTER = 80_000_000

# The cost of a byte of text in NumPy, in row-steps; as one kernel serves all texts, it is already
# compiled more often than other kernels.
BYTE_STEPS = 8
# The cost of an image, of which a kernel saves a third.
IMAGE_STEPS = 500_000

# Most programs with an ``_Entry``; without one, a program is split again, in one or two ms.
MOST_PROGRAMS = 256

MODE = re.compile(r"numpy|compiled|auto|(swap|demote)-at-block-(\d+)")


def _fused(program: Program) -> Fused:
    """Return ``program`` split into kernel calls and a rest for NumPy."""
    from dml.kernels.compiled.fused_program import Fused  # noqa: PLC0415 most runs are over before kernels are worth it

    return Fused(program)


@dataclasses.dataclass(slots=True)
class Counts:
    """Number of blocks by tier; ``refused`` are blocks of NumPy with columns unfit for kernels."""

    numpy: int = 0
    compiled: int = 0
    refused: int = 0


@dataclasses.dataclass(slots=True)
class _Entry:
    """The counts of ``program``; the reference to it keeps its ``id`` unique.

    ``made`` is None before the only check whether the kernels are on disk, then its result.
    """

    program: Program
    fused: Fused | None = None
    blocks: int = 0
    row_steps: int = 0
    made: bool | None = None


class KernelTiers:
    """Runs programs: with NumPy at first, later by compiled kernels, depending on ``mode``.

    ``mode`` is "auto" (compile in the background after ``compile_after`` row-steps, and load
    kernels on disk sooner), "numpy", "compiled" (wait for kernels), "swap-at-block-k" (NumPy for k
    blocks of a program, then wait for kernels) or "demote-at-block-k" (the other way round).
    Kernels are stored under ``directory``. Threads may share an instance. Results never depend on
    the tier.
    """

    def __init__(
        self, directory: Path, mode: str = "auto", compile_after: int = COMPILE_AFTER
    ) -> None:
        found = MODE.fullmatch(mode)
        if found is None:
            raise ValueError(f"{mode!r} is not a mode of the kernel tiers")
        self.kind, self.block = found[1] or mode, int(found[2] or 0)
        self.compile_after, self.load_after = compile_after, min(LOAD_AFTER, compile_after)
        self.cache = KernelCache(directory)
        self.counts = Counts()
        # of all programs: one kernel serves all texts, and another all images
        self.chain_steps = 0
        self._entries: dict[int, _Entry] = {}
        self._made_of = (directory, mode, compile_after)

    def __reduce__(self) -> tuple[Any, ...]:
        return shared, self._made_of

    def run(
        self,
        program: Program,
        inputs: Sequence[Register],
        n: int,
        sel: np.ndarray | None = None,
        *,
        rooms: Rooms | None = None,
    ) -> Result:
        """Return what ``interpreter.run`` returns, computed by the tier chosen for this block.

        Images may be written to ``rooms``.
        """
        entry = self._entry(program)
        rows = n if sel is None else len(sel)
        chain_steps = _chain_steps(program, inputs, rows)
        self.chain_steps += chain_steps
        steps = entry.row_steps + (self.chain_steps if chain_steps else 0)
        tier = self._tier(entry, rows, steps)
        if tier == "numpy" and self.kind == "auto" and rows and steps >= self.load_after:
            tier = "ready" if self._has_compiled_kernels(entry, inputs) else tier
        entry.blocks += 1
        entry.row_steps += rows * len(program.steps)
        if tier == "numpy":
            self.counts.numpy += 1
            return interpreter.run(
                program, inputs, n, sel, ChainTools(rooms=rooms) if rooms else None
            )
        entry.fused = entry.fused or _fused(program)
        waiting = tier == "compiled"
        return _run_compiled(
            entry.fused,
            self.cache,
            inputs,
            n,
            sel,
            counts=self.counts,
            waiting=waiting,
            rooms=rooms,
        )

    def _entry(self, program: Program) -> _Entry:
        # by identity: equality would take -0.0 for 0.0, and costs more than a small block
        entry = self._entries.get(id(program))
        if entry is None:
            if len(self._entries) >= MOST_PROGRAMS:
                self._entries.clear()
            entry = self._entries[id(program)] = _Entry(program)
        return entry

    def _has_compiled_kernels(self, entry: _Entry, inputs: Sequence[Register]) -> bool:
        """Return True if the first call for ``entry`` found all kernels of its program on disk."""
        if entry.made is None:
            entry.fused = entry.fused or _fused(entry.program)
            entry.made = all(
                self.cache.is_compiled(each.name) for each in entry.fused.sources(inputs)
            )
        return entry.made

    def _tier(self, entry: _Entry, rows: int, steps: int) -> str:
        """Return "numpy", "compiled" (wait for kernels) or "ready" (kernels, if loaded)."""
        late = entry.blocks >= self.block
        match self.kind:
            case "swap":
                return "compiled" if late else "numpy"
            case "demote":
                return "numpy" if late else "compiled"
            case "auto":
                return "ready" if steps >= self.compile_after and rows else "numpy"
        return self.kind


def _chain_steps(program: Program, inputs: Sequence[Register], rows: int) -> int:
    """Return the cost of a program's chains in NumPy, in row-steps."""
    if not program.has_chain:
        return 0
    if any(step.op == IMAGES for step in program.steps):
        return IMAGE_STEPS * rows
    texts = (i for i in inputs if not isinstance(i, Vec) and is_text(i.type))
    return BYTE_STEPS * int(sum(text.nbytes for text in texts))


def _run_compiled(
    fused: Fused,
    cache: KernelCache,
    inputs: Sequence[Register],
    n: int,
    sel: np.ndarray | None,
    *,
    counts: Counts,
    waiting: bool,
    rooms: Rooms | None = None,
) -> Result:
    """Run by kernels if all are loaded (after a wait if ``waiting``) and fit, else by NumPy."""
    kernels = _kernels(fused.sources(inputs), cache, waiting=waiting)
    if kernels and None not in kernels:
        try:
            result = fused.run([k for k in kernels if k is not None], inputs, n, sel, rooms)
        except NotFusedError:
            counts.refused += 1
        else:
            counts.compiled += 1
            return result
    counts.numpy += 1
    return interpreter.run(
        fused.program, inputs, n, sel, ChainTools(rooms=rooms) if rooms else None
    )


def _kernels(
    sources: Sequence[KernelSource], cache: KernelCache, *, waiting: bool
) -> list[Kernel | None]:
    found = [cache.get(source.name) for source in sources]
    if None in found:
        cache.request((source.name, source.text) for source in sources)
        if waiting:
            found = [cache.wait(source.name) for source in sources]
    return found


_SHARED: dict[tuple[Any, ...], KernelTiers] = {}


def shared(*made_of: Any) -> KernelTiers:
    """Return the only ``KernelTiers`` of this process with these arguments, shared by all runs."""
    if made_of not in _SHARED:
        _SHARED[made_of] = KernelTiers(*made_of)
    return _SHARED[made_of]
