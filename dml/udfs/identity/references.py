"""The external names that code reads, and the attributes that it reads from them, are found here.

Modules that a function imports itself are followed through its local variables: ``import time as
t`` and ``t.time()`` read ``time`` from the module of that name.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from dml.udfs.identity.bytecode import Instruction, program

WITHIN = ("IMPORT_FROM", "SWAP", "POP_TOP")  # between ``import a.b as`` and the name it is bound to
FREE = ("LOAD_DEREF", "LOAD_CLASSDEREF")


class Reference(NamedTuple):
    """An external name that code reads, and the attributes that it reads from this name.

    ``kind`` is "global", "free" (a variable of an enclosing function), "import" (``names`` are a
    module and the name imported from it; ``level`` is that of a relative import), "taken" (as
    "import", with the attributes that are read where the imported name is used), or "write" (the
    code changes a variable that outlives the call).
    """

    kind: str
    names: tuple[str, ...]
    level: int = 0


@lru_cache(maxsize=4096)
def references(code: types.CodeType) -> tuple[Reference, ...]:
    """Return the external names that ``code`` and functions in it read, sorted and distinct."""
    steps, own = program(code).steps, set(code.co_cellvars)
    found, known = set(_references(code)), dict(_imported(steps))
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            for ref in references(inner):
                if ref.kind != "free" or ref.names[0] not in own:
                    found.add(ref)
                elif ref.names[0] in known:
                    found.add(_with_attributes(known[ref.names[0]], ref.names[1:]))
    return tuple(sorted(found))


def _references(code: types.CodeType) -> Iterator[Reference]:
    steps = program(code).steps
    stored = {step.text for step in steps if step.name in ("STORE_NAME", "IMPORT_NAME")}
    for place, step in enumerate(steps):
        if step.name == "LOAD_GLOBAL":
            yield Reference("global", (step.text, *attributes(steps, place)))
        elif step.name in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            if step.text not in stored and step.text != "__name__":
                yield Reference("global", (step.text, *attributes(steps, place)))
        elif step.name in FREE and step.text in code.co_freevars:
            yield Reference("free", (step.text, *attributes(steps, place)))
        elif step.name == "IMPORT_NAME":
            yield from _imports(steps, place)
        elif _writes(step, code):
            yield Reference("write", (step.text,))
    yield from _uses(steps, dict(_imported(steps)))


def _writes(step: Instruction, code: types.CodeType) -> bool:
    """Return True if ``step`` assigns a variable that outlives the call."""
    if step.name in ("STORE_GLOBAL", "DELETE_GLOBAL"):
        return True
    return step.name in ("STORE_DEREF", "DELETE_DEREF") and step.text in code.co_freevars


def attributes(steps: Sequence[Instruction], place: int) -> Iterator[str]:
    """Yield the attributes that are read in a chain directly after the step at ``place``."""
    for step in steps[place + 1 :]:
        if step.name not in ("LOAD_ATTR", "LOAD_METHOD"):
            return
        yield step.text


def _imports(steps: Sequence[Instruction], place: int) -> Iterator[Reference]:
    """Yield the references of ``import a.b`` or ``from a import b, c`` at ``place``."""
    level, wanted = _import_arguments(steps, place)
    for name in wanted or ("",):
        yield Reference("import", (steps[place].text, *filter(None, [name])), level)


def _import_arguments(steps: Sequence[Instruction], place: int) -> tuple[int, tuple[str, ...]]:
    """Return level and names of the import at ``place``: the two constants loaded before it."""
    level, wanted = steps[place - 2].constant, steps[place - 1].constant
    return level if isinstance(level, int) else 0, wanted if isinstance(wanted, tuple) else ()


def _imported(steps: Sequence[Instruction]) -> Iterator[tuple[int | str, Reference]]:
    """Yield (variable, import): a variable's number, or its name if inner functions use it."""
    for place, step in enumerate(steps):
        if step.name == "IMPORT_NAME":
            bind = _bound_names if _import_arguments(steps, place)[1] else _bound_module
            for stored, found in bind(steps, place):
                yield stored.arg, found
                yield stored.text or stored.arg, found


def _bound_module(
    steps: Sequence[Instruction], place: int
) -> Iterator[tuple[Instruction, Reference]]:
    """Yield the binding of ``import a.b``: variable a to module a; with ``as x``, x to a.b."""
    module, rest = steps[place].text, steps[place + 1 :]
    between = len(list(takewhile(lambda step: step.name in WITHIN, rest)))
    name = module if between else module.partition(".")[0]
    for step in rest[between : between + 1]:
        if step.name in ("STORE_FAST", "STORE_DEREF"):
            yield step, Reference("taken", (name,), _import_arguments(steps, place)[0])


def _bound_names(
    steps: Sequence[Instruction], place: int
) -> Iterator[tuple[Instruction, Reference]]:
    """Yield the bindings of ``from a import b, c as d``: the variables b and d."""
    level, name = _import_arguments(steps, place)[0], ""
    for step in steps[place + 1 :]:
        if step.name == "IMPORT_FROM":
            name = step.text
        elif name and step.name in ("STORE_FAST", "STORE_DEREF"):
            yield step, Reference("taken", (steps[place].text, name), level)
        else:
            return


def _uses(
    steps: Sequence[Instruction], known: Mapping[int | str, Reference]
) -> Iterator[Reference]:
    """Yield the imports ``known`` by variable, with the attributes read from these variables."""
    for place, step in enumerate(steps if known else ()):
        if step.name.startswith(("LOAD_FAST", "LOAD_DEREF")) and step.arg in known:
            yield _with_attributes(known[step.arg], tuple(attributes(steps, place)))


def _with_attributes(module: Reference, attributes: tuple[str, ...]) -> Reference:
    return module._replace(names=(*module.names, *attributes))
