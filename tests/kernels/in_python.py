"""Run the source of kernels as plain Python, without a compiler."""

from __future__ import annotations

import ctypes
import re
import types
import warnings
from typing import Any

import numpy as np

from dml.kernels.compiled.codegen import KernelSource
from dml.kernels.compiled.jit import Kernel

# Bytes that an address is taken to stand for.
STRETCH = 1 << 20


def plain_carray(place: Any, length: int, kind: Any) -> np.ndarray:
    if isinstance(place, np.ndarray):
        return np.asarray(place.view(kind)[:length])
    memory: Any = (ctypes.c_char * STRETCH).from_address(place)
    return np.frombuffer(memory, kind)


def in_python(source: KernelSource) -> Kernel:
    """The kernel's own text, run by the interpreter on NumPy scalars."""
    natives = types.SimpleNamespace(
        kernel=lambda function: function,
        inlined=lambda function: function,
        carray=plain_carray,
        pointer=int,
        scratch=lambda size: np.zeros(size, np.uint8),
    )
    text = source.text.replace("from dml.kernels.compiled.jit import natives\n", "")
    names: dict[str, Any] = {"natives": lambda: natives, "bool": np.bool_}
    text = re.sub(r"\nTILE = \d+", "\nTILE = 8", text)
    text = text.replace("LANES = 16", "LANES = 2").replace("STRETCH = 1024", "STRETCH = 16")
    exec(compile(text, source.name, "exec"), names)

    def run(*arguments: Any) -> None:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            names["run"](*arguments)

    return run
