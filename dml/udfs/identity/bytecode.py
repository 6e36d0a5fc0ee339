"""Bytecode is normalized here, so that equal programs have equal digests.

Programs that differ only in formatting should have one digest, so all that formatting changes is
removed: line numbers, file names, docstrings, names of local variables and ``NOP`` are left out,
constants are encoded where they are used, the target of a jump is the index of an instruction,
jumps to jumps are followed, and superinstructions of newer versions are split. Bytecode differs
between minor versions of Python, and so do these digests.
"""

from __future__ import annotations

import dis
import inspect
import sys
import types
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from dml.base.encoder import Encoder

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"

ALWAYS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
OPPOSITE = {
    "POP_JUMP_IF_TRUE": "POP_JUMP_IF_FALSE",
    "POP_JUMP_IF_FALSE": "POP_JUMP_IF_TRUE",
    "POP_JUMP_IF_NONE": "POP_JUMP_IF_NOT_NONE",
    "POP_JUMP_IF_NOT_NONE": "POP_JUMP_IF_NONE",
}
SILENT = {"CACHE", "NOP", "EXTENDED_ARG", "NOT_TAKEN"}
CACHE = dis.opmap["CACHE"]
# Operations whose argument is a name's index above this many flag bits.
FLAGS = {"LOAD_GLOBAL": 1}
if sys.version_info >= (3, 12):
    FLAGS |= {"LOAD_ATTR": 1, "LOAD_SUPER_ATTR": 2}
# The ``co_flags`` with a meaning: *args, **kwargs, generator, coroutine and the like.
MEANT_FLAGS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ITERABLE_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
CONSTANT_NAMES = {dis.opname[code] for code in dis.hasconst}
CONSTANTS, NAMES, JUMPS = set(dis.hasconst), set(dis.hasname), {*dis.hasjrel, *dis.hasjabs}
# Functions that read local variables by name, which makes these names part of the behaviour.
READS_LOCALS = {"locals", "vars", "dir", "eval", "exec"}


class Instruction(NamedTuple):
    """One instruction; ``target`` is the index of the instruction to which it jumps, or -1."""

    name: str
    arg: int
    target: int = -1
    constant: object = None
    text: str = ""


@lru_cache(maxsize=4096)
def code_name(code: types.CodeType, *, describes: bool = False) -> bytes:
    """Return a digest of ``code``, 16 bytes, which its formatting does not change.

    With ``describes``, the names of the code and of its variables count as well.
    """
    out = CodeEncoder()
    if describes:
        out.add((code.co_name, code.co_qualname, code.co_varnames, code.co_cellvars))
        inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
        out.add(tuple([code_name(each, describes=True) for each in inner]))
    out.tag(b"code " + PYTHON.encode())
    arguments = code.co_argcount + code.co_kwonlyargcount
    arguments += sum(bool(code.co_flags & f) for f in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS))
    named = len(code.co_varnames) if READS_LOCALS & set(code.co_names) else arguments
    out.add((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount))
    out.add((code.co_flags & MEANT_FLAGS, code.co_varnames[:named], code.co_names))
    out.add((len(code.co_cellvars), len(code.co_freevars)))
    steps, handlers = program(code)
    out.add("\n".join([f"{step.name} {step.arg} {step.target}" for step in steps]))
    out.add(tuple([step.constant for step in steps if step.name in CONSTANT_NAMES]))
    out.add(handlers)
    return out.digest()


class CodeEncoder(Encoder):
    """Encodes constants of code, including nested code objects."""

    __slots__ = ()


def put_code(out: Encoder, code: types.CodeType) -> None:
    """Encode a code object by its ``code_name``."""
    out.put(b"C" + code_name(code))


CodeEncoder.table = {**Encoder.table, types.CodeType: put_code}


class NormalizedCode(NamedTuple):
    """The normalized steps of a code object, and its exception handlers.

    A handler is (first protected step, step after the last, first step of the handler, twice the
    stack depth plus a flag); steps are indices.
    """

    steps: tuple[Instruction, ...]
    handlers: tuple[tuple[int, int, int, int], ...]


@lru_cache(maxsize=4096)
def program(code: types.CodeType) -> NormalizedCode:
    """Return the steps of ``code`` without anything that formatting can change."""
    steps, places = _numbered(code)
    handlers = [
        (places[start], places[end], places[target], depth)
        for start, end, target, depth in _exception_table(code)
    ]
    steps, skipped = _straightened(steps)
    targets = {step.target for step in steps} | {handler[2] for handler in handlers}
    dead = skipped - targets
    moved = [0]
    for place in range(len(steps)):
        moved.append(moved[-1] + (place not in dead))
    kept = tuple(
        step._replace(target=moved[step.target]) if dead and step.target >= 0 else step
        for place, step in enumerate(steps)
        if place not in dead
    )
    rows = [(moved[a], moved[b], moved[target], depth) for a, b, target, depth in handlers]
    return NormalizedCode(kept, tuple(_merged(rows)))


def _merged(rows: list[tuple[int, int, int, int]]) -> Iterator[tuple[int, int, int, int]]:
    """Yield the handlers ``rows``: adjacent ranges of one handler joined, empty ranges left out."""
    held: tuple[int, int, int, int] | None = None
    for row in rows:
        if row[0] == row[1]:
            continue
        if held is not None and held[1:2] + held[2:] == row[:1] + row[2:]:
            held = (held[0], *row[1:])
            continue
        if held is not None:
            yield held
        held = row
    if held is not None:
        yield held


def _numbered(code: types.CodeType) -> tuple[list[Instruction], dict[int, int]]:
    """Return instructions without those in ``SILENT``, and the index for each byte offset."""
    places: dict[int, int] = {}
    jumps: dict[int, int] = {}
    steps: list[Instruction] = []
    cells = [name for name in code.co_cellvars if name not in code.co_varnames]
    variables = (*code.co_varnames, *cells, *code.co_freevars)
    for offset, after, op, arg in _decoded(code.co_code):
        places[offset] = len(steps)
        name = dis.opname[op]
        if name in SILENT:
            continue
        if op in JUMPS:
            jumps[len(steps)] = after + 2 * (-arg if "BACKWARD" in name else arg)
            plain = name.replace("_FORWARD_IF", "_IF").replace("_BACKWARD_IF", "_IF")
            steps.append(Instruction(plain, 0))
        elif op in CONSTANTS:
            steps.append(Instruction(name, 0, constant=code.co_consts[arg]))
        elif name.count("_FAST_") == 1 and name.endswith("_FAST"):
            steps += _taken_apart(name, arg)
        elif op in NAMES:
            steps.append(Instruction(name, arg, text=code.co_names[arg >> FLAGS.get(name, 0)]))
        else:
            text = variables[arg] if name.endswith("DEREF") else ""
            steps.append(Instruction(name, arg, text=text))
    places[len(code.co_code)] = len(steps)
    for place, offset in jumps.items():
        steps[place] = steps[place]._replace(target=places[offset])
    return steps, places


def _decoded(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield (offset, offset after it and its caches, operation, argument) of each instruction.

    Decodes like ``dis`` at a tenth of the cost, since ``dis`` also computes source positions.
    """
    offset, size, extended = 0, len(data), 0
    while offset < size:
        op, arg, after = data[offset], data[offset + 1] | extended, offset + 2
        while after < size and data[after] == CACHE:
            after += 2
        extended = arg << 8 if op == dis.EXTENDED_ARG else 0
        yield offset, after, op, arg
        offset = after


def _taken_apart(name: str, arg: int) -> list[Instruction]:
    """Return the two instructions that ``LOAD_FAST_LOAD_FAST`` or the like combines."""
    first, _, second = name.partition("_FAST_")
    return [Instruction(first + "_FAST", arg >> 4), Instruction(second, arg & 15)]


def _straightened(steps: list[Instruction]) -> tuple[list[Instruction], set[int]]:
    """Follow jumps to jumps; a condition that skips over a jump becomes the opposite condition.

    Return the steps, and the indices of jumps that are skipped in this way, or that lead to the
    next step, such as a jump over an empty ``else``.
    """
    made, skipped = [], set()
    for place, step in enumerate(steps):
        if step.target < 0:
            made.append(step)
            continue
        name, target = step.name, step.target
        over = steps[place + 1] if place + 1 < len(steps) else step
        if name in OPPOSITE and target == place + 2 and over.name in ALWAYS:
            name, target = OPPOSITE[name], over.target
            skipped.add(place + 1)
        for _ in range(16):
            if target >= len(steps) or steps[target].name not in ALWAYS:
                break
            target = steps[target].target
        if name in ALWAYS and step.target == place + 1:
            skipped.add(place)
        made.append(Instruction("JUMP" if name in ALWAYS else name, step.arg, target))
    return made, skipped


def _exception_table(code: types.CodeType) -> Iterator[tuple[int, int, int, int]]:
    """Yield (start, end, handler, depth and flag) for each handler; the first three are offsets."""
    table = iter(code.co_exceptiontable)
    for byte in table:
        start, length = 2 * _varint(table, byte), 2 * _varint(table)
        yield start, start + length, 2 * _varint(table), _varint(table)


def _varint(table: Iterator[int], byte: int | None = None) -> int:
    byte = next(table) if byte is None else byte
    value = byte & 63
    while byte & 64:
        byte = next(table)
        value = value << 6 | byte & 63
    return value
