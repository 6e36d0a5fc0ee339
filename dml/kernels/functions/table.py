"""This file is the table of functions: to add one, write it in its family and name it there."""

from __future__ import annotations

from dml.kernels.functions import (
    encoders,
    evaluated,
    formats,
    lists,
    moments,
    python,
    strings,
    structs,
    tensors,
    tokens,
)
from dml.kernels.functions.function import Function, Params

FUNCTIONS: dict[str, Function] = {
    function.name: function
    for family in (
        *(strings, lists, moments, structs, encoders, tokens, tensors, evaluated, formats),
        python,
    )
    for function in family.FUNCTIONS
}


def may_fail(op: str, params: Params) -> bool:
    """True if ``op`` is a function that may raise on some row."""
    return op in FUNCTIONS and FUNCTIONS[op].fails(params)


def versions(op: str) -> tuple[int, ...]:
    """What names ``op`` beside itself: its version, if it is a function that had another before."""
    version = FUNCTIONS[op].version if op in FUNCTIONS else 1
    return (version,) if version > 1 else ()
