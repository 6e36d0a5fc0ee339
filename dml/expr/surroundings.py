"""This file remembers what a function takes from outside, to tell later whether it still is that.

A function that is lifted is computed with the globals, variables around it, defaults and functions
that it was lifted with; where one is another by now, it has to be called.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from dml.expr.bytecode import Instruction, program
from dml.expr.purity import outside, plain_value
from dml.expr.references import attributes


def surroundings(fn: Callable[..., Any]) -> tuple[object, ...]:
    """All that ``fn``, and what it calls, takes from outside at the moment, and their code."""
    return tuple(_taken(fn, set()))


def unchanged(before: tuple[object, ...], fn: Callable[..., Any]) -> bool:
    """Whether ``fn`` takes the same from outside as when ``before`` was all that it took."""
    now = surroundings(fn)
    return len(now) == len(before) and all(map(_same, now, before))


def _same(now: object, then: object) -> bool:
    if now is then:
        return True
    return type(now) is type(then) and plain_value(now) and repr(now) == repr(then)


def _taken(fn: object, seen: set[object]) -> Iterator[object]:
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
                found = [*_found(fn, step, attributes(steps, place))]
                yield from found
                yield from _taken(found[-1], seen)


def _found(fn: types.FunctionType, step: Instruction, names: Iterable[str]) -> Iterator[object]:
    """What a step loads, and of a module what is taken of it next."""
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
    """A function's code, and that of the comprehensions inside."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from within(inner)
