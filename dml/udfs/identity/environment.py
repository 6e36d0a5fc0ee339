"""A lifted function is valid as long as the outside values that it was lifted with are unchanged.

Outside values are the globals, variables of enclosing functions, defaults and called functions. If
one has changed, the function itself is called instead of its expressions.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from dml.udfs.identity.bytecode import Instruction, program
from dml.udfs.identity.references import attributes
from dml.udfs.lifting.purity import outside, plain_value


def surroundings(fn: Callable[..., Any]) -> tuple[object, ...]:
    """Return the code of ``fn`` and its callees, and all outside values that they read."""
    return tuple(_outside_values(fn, set()))


def unchanged(before: tuple[object, ...], fn: Callable[..., Any]) -> bool:
    """Return True if ``surroundings(fn)`` still has the values of ``before``."""
    now = surroundings(fn)
    return len(now) == len(before) and all(map(_same, now, before))


def _same(now: object, then: object) -> bool:
    if now is then:
        return True
    return type(now) is type(then) and plain_value(now) and repr(now) == repr(then)


def _outside_values(fn: object, seen: set[object]) -> Iterator[object]:
    if isinstance(fn, partial):
        yield from (*fn.args, *fn.keywords.values())
        fn = fn.func
    if not isinstance(fn, types.FunctionType) or fn in seen:
        return
    seen.add(fn)
    yield fn.__code__
    yield from (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
    for code in within(fn.__code__):
        steps = program(code).steps
        for place, step in enumerate(steps):
            if step.name == "LOAD_GLOBAL" or step.text in fn.__code__.co_freevars:
                found = [*_loaded_values(fn, step, attributes(steps, place))]
                yield from found
                yield from _outside_values(found[-1], seen)


def _loaded_values(
    fn: types.FunctionType, step: Instruction, names: Iterable[str]
) -> Iterator[object]:
    """Yield the value that a step loads; if that is a module, also the attributes read from it."""
    try:
        value = outside(fn, step)
    except NameError:
        value = NameError
    yield value
    for name in names:
        if not isinstance(value, types.ModuleType):
            return
        value = getattr(value, name, AttributeError)
        yield value


def within(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function, and all code objects nested in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from within(inner)
