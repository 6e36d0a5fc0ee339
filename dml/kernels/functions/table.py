"""The function table is built here: add a function to ``FUNCTIONS`` of its family's module."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from dml.kernels.functions.function import Function, Params


@functools.cache
def _families() -> dict[str, Function]:
    """Return every function by its name; the first call imports the modules that define them."""
    from dml.kernels.functions import (  # noqa: PLC0415
        element_expressions,
        encoders,
        formats,
        lists,
        moments,
        python,
        strings,
        structs,
        tensors,
        tokens,
    )

    families = strings, lists, moments, structs, encoders, tokens, tensors, formats, python
    return {
        function.name: function
        for family in (*families, element_expressions)
        for function in family.FUNCTIONS
    }


class FunctionTable(Mapping[str, Function]):
    """All functions by name. Names have a dot, as ``str.split``; other operations have none."""

    def __getitem__(self, name: str) -> Function:
        """Return the function of that name."""
        return _families()[name]

    def __contains__(self, name: object) -> bool:
        """Return True if the operation ``name`` is a function of this table."""
        return isinstance(name, str) and "." in name and name in _families()

    def __iter__(self) -> Iterator[str]:
        """Yield all names."""
        return iter(_families())

    def __len__(self) -> int:
        """Return how many functions there are."""
        return len(_families())


FUNCTIONS = FunctionTable()


def may_fail(op: str, params: Params) -> bool:
    """Return True if ``op`` is a function that may raise on some row."""
    return op in FUNCTIONS and FUNCTIONS[op].fails(params)


def versions(op: str) -> tuple[int, ...]:
    """Return the version of ``op`` for fingerprints; () for version 1, and for other operations."""
    version = FUNCTIONS[op].version if op in FUNCTIONS else 1
    return (version,) if version > 1 else ()
