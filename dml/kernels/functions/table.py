"""The function table is built here: add a function to ``FUNCTIONS`` of its family's module."""

from __future__ import annotations

import functools

from dml.kernels.functions.function import Function, Params


@functools.cache
def functions() -> dict[str, Function]:
    """Return every function by its name, as ``str.split``.

    The first call imports the modules that define them.
    """
    from dml.kernels.functions import (  # noqa: PLC0415
        audio,
        boxes,
        element_expressions,
        encoders,
        formats,
        images,
        lists,
        moments,
        python,
        strings,
        structs,
        tensors,
        tokens,
        video,
    )

    families = (
        strings, lists, moments, structs, encoders, tokens, tensors, formats, python,
        images, boxes, audio, video,
    )  # fmt: skip
    return {
        function.name: function
        for family in (*families, element_expressions)
        for function in family.FUNCTIONS
    }


def function_of(op: str) -> Function | None:
    """Return the function ``op``; None for other operations, whose names have no dot."""
    return functions().get(op) if "." in op else None


def may_fail(op: str, params: Params) -> bool:
    """Return True if ``op`` is a function that may raise on some row."""
    function = function_of(op)
    return function is not None and function.fails(params)


def versions(op: str) -> tuple[int | str, ...]:
    """Return the version of ``op`` for fingerprints; () for version 1, and for other operations.

    It is followed by the versions of the libraries that compute the result, if there are any.
    """
    function = function_of(op)
    if function is None:
        return ()
    own = () if function.version == 1 else (function.version,)
    return own if function.tool is None else (*own, function.tool())
