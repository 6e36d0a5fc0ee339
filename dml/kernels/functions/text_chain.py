"""Consecutive text functions are merged into one step, and run without intermediate columns.

A part of the rows goes through all functions while it is in the processor's cache.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from dml.kernels import function_ops
from dml.kernels.arrow_ops import as_arrow
from dml.kernels.compiled.jit import Kernel
from dml.kernels.functions import bytewise, text_kernel
from dml.kernels.functions.bytewise import Bytes, bytes_of, text_of
from dml.kernels.functions.chain_pass import Chaining
from dml.kernels.functions.function import is_text
from dml.kernels.functions.text_kernel import ByteMachine
from dml.kernels.program import CHAIN, ChainTools, Program, Step
from dml.kernels.vec import ARROW_TYPES, CastFailure, Register, from_arrow

# Bytes that go through all functions at a time: with their results they stay in the cache.
TOGETHER = 1 << 19

# Functions that take or return lists of bytes, which may continue a chain.
OF_LISTS = {"str.tokenize_bytes", "list.slice"}

# An expression of the elements, which ends a chain.
EVALUATED = "list.eval"

# Functions of lists of any type; after a chain, the lists are known to be of bytes.
OF_ANY_LISTS = {"list.slice", EVALUATED}

Links: TypeAlias = tuple[tuple[str, tuple[Any, ...]], ...]


def chained(program: Program) -> Program:
    """Merge consecutive text functions of a program into single steps.

    Such a step is a ``CHAIN``, whose parameters are the name and parameters of each function.
    """
    if not any(_is_chainable(step) and step.op not in OF_ANY_LISTS for step in program.steps):
        return program
    return Chaining(
        program,
        CHAIN,
        fits=_is_chainable,
        begins=lambda step: step.op not in OF_ANY_LISTS,
        ends=lambda links: links[-1][0] == EVALUATED,
        link=lambda step, _: (step.op, step.params),
    ).merge_chains()


def _is_chainable(step: Step) -> bool:
    if step.op == EVALUATED:
        return len(step.args) == 1
    return bytewise.step_of(step.op, step.params) is not None


def apply(step: Step, args: Sequence[Register], rows: int, tools: ChainTools) -> Register:
    """Apply all functions of a chain, by a kernel if ``tools`` have one for the step."""
    (given,) = args
    if not isinstance(given, pa.Array) or not is_text(given.type) or not len(given):
        return _one_by_one(step.params, given, rows)
    # the bytes under nulls may be anything
    filled = given.fill_null("") if given.null_count else given
    way: Any = tools.kernels.get(id(step))  # its machine is a ``ByteMachine``
    found = None if way is None else _by_kernel(way, step.params, given, filled)
    return _by_numpy(step.params, given, filled) if found is None else found


def _by_kernel(
    way: tuple[ByteMachine, Kernel], links: Links, given: pa.Array, filled: pa.Array
) -> pa.Array | None:
    """Return the chain's result from its kernel; None if text that must be ASCII is not."""
    machine, kernel = way
    rows = bytes_of(filled)
    if not machine.others and not bytewise.is_ascii(rows.data):
        return None
    data, edges = machine.run(kernel, rows)
    if links[-1][0] != EVALUATED and links[-1][0] not in OF_LISTS:
        return text_of(Bytes(data, edges, ascii=False), given.type, _present(given))
    return _listed(data, edges, given)


def _by_numpy(links: Links, given: pa.Array, filled: pa.Array) -> Register:
    """Return the chain's result from NumPy, computed for a part of the rows at a time."""
    ending = links[-1][0] == EVALUATED
    over_bytes = links[:-1] if ending else links
    parts = [_through(over_bytes, part, given.type) for part in _parts(filled)]
    made = _assembled(over_bytes, given, parts)
    return _one_by_one(links[-1:], made, len(given)) if ending else made


def machine_for(step: Step) -> ByteMachine | None:
    """Return the tables with which a kernel runs a chain; None if there are none.

    If the chain ends with ``list.eval``, its expression becomes part of the tables.
    """
    links = step.params
    ending = links[-1][0] == EVALUATED
    machine = text_kernel.machine_of([step for _, step in _steps(links[:-1] if ending else links)])
    if machine is None or not ending:
        return machine
    every = pa.array([list(range(256))], pa.list_(pa.uint8()))
    try:
        found = _one_by_one(links[-1:], every, 1)
    except CastFailure:
        return None  # it fails for some bytes, which may never occur
    values = as_arrow(found).values
    if values.null_count or values.type not in ARROW_TYPES.values() or values.type == pa.bool_():
        return None
    return dataclasses.replace(machine, given=from_arrow(values).values[machine.given])


def _one_by_one(links: Links, given: Register, rows: int) -> Register:
    for name, params in links:
        given = function_ops.apply(Step(name, (0,), "arrow", params), [given], rows)
    return given


@functools.lru_cache(maxsize=256)
def _steps(links: Links) -> tuple[tuple[Links, bytewise.Step], ...]:
    """Return the steps over bytes that compute ``links``, each with the functions it computes."""
    made: list[tuple[Links, bytewise.Step]] = []
    for link in links:
        step = bytewise.step_of(*link)
        if step is None:
            raise TypeError(f"{link[0]} is no step over bytes")
        both = bytewise.joined(made[-1][1], step) if made else None
        if both is None:
            made.append(((link,), step))
        else:
            made[-1] = (*made[-1][0], link), both
    return tuple(made)


def _through(links: Links, part: Bytes, kind: pa.DataType) -> Bytes:
    """Run all steps on ``part``; where a step cannot handle it, run its text functions instead."""
    for meant, step in _steps(links):
        found = step(part)
        if found is None:
            array = text_of(part, kind)
            found = bytes_of(_one_by_one(meant, array, len(array)))
        part = found
    return part


def _parts(text: pa.Array) -> Iterator[Bytes]:
    """Yield the rows of a column in parts whose bytes stay in the cache."""
    whole = bytes_of(text)
    places = np.arange(TOGETHER, len(whole.data), TOGETHER)
    cuts = [0, *np.unique(whole.edges.searchsorted(places)).tolist(), len(text)]
    for first, end in itertools.pairwise(cuts):
        edges = whole.edges[first : end + 1]
        data = whole.data[edges[0] : edges[-1]]
        yield Bytes(data, edges - edges[0], bytewise.is_ascii(data))


def _assembled(links: Links, given: pa.Array, parts: Sequence[Bytes]) -> pa.Array:
    """Join all parts to one column: text, or lists of bytes."""
    lengths = np.concatenate([np.diff(part.edges) for part in parts])
    edges = np.zeros(len(lengths) + 1, "i8")
    np.cumsum(lengths, out=edges[1:])
    data = parts[0].data if len(parts) == 1 else np.concatenate([part.data for part in parts])
    if links[-1][0] in OF_LISTS:
        return _listed(data, edges, given)
    return text_of(Bytes(data, edges, ascii=False), given.type, _present(given))


def _present(given: pa.Array) -> pa.Array | None:
    return given.is_valid() if given.null_count else None


def _listed(data: np.ndarray, edges: np.ndarray, given: pa.Array) -> pa.Array:
    mask = given.is_null() if given.null_count else None
    return pa.ListArray.from_arrays(pa.array(edges.astype("i4")), pa.array(data), mask=mask)
