"""This file proves that a function is a pure function of its arguments, or says why not.

The proof is a list of allowed instructions: loads, arithmetic, comparisons, forward jumps, new
containers, and calls of a few functions known to be pure. Loops, ``try``, imports, stores into
anything but local variables, mutable values from outside, sets that are used for more than ``in``
(the order of their items differs between processes), ``+=`` on what may belong to the caller, and
every instruction that is not in the list are refused, so a newer Python can only make fewer
functions provable. A pure function may still raise. The verdict holds for the function as it
stands: globals are read now.
"""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import math
import re
import types
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from dml.expr.bytecode import READS_LOCALS, Instruction, program
from dml.expr.in_place import in_place
from dml.expr.instructions import (
    ALLOWED,
    COMPREHENSIONS,
    EDITING,
    INTRINSICS,
    ORDERLESS,
    SEEN_AS,
    SETS,
)

BUILTINS = {
    name: getattr(builtins, name)
    for name in (
        *("abs", "min", "max", "round", "int", "float", "bool", "len", "str", "divmod", "pow"),
    )
}
# Constants of math, and those of its functions that take plain numbers and give the same for the
# same ones; not those of sequences (fsum, prod, dist, sumprod), which run what is in them.
MATH = {
    name: getattr(math, name)
    for name in (
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "comb"),
        *("copysign", "cos", "cosh", "degrees", "e", "erf", "erfc", "exp", "exp2", "expm1"),
        *("fabs", "factorial", "floor", "fma", "fmod", "frexp", "gamma", "gcd", "hypot", "inf"),
        *("isclose", "isfinite", "isinf", "isnan", "isqrt", "lcm", "ldexp", "lgamma", "log"),
        *("log10", "log1p", "log2", "modf", "nan", "nextafter", "perm", "pi", "pow", "radians"),
        *("remainder", "sin", "sinh", "sqrt", "tan", "tanh", "tau", "trunc", "ulp"),
    )
    if hasattr(math, name)  # cbrt, exp2 and fma came with later versions
}
# Of containers, and of the values in them: what they give is the function's own.
LOOPING = (
    *(sum, any, all, range, enumerate, zip, dict, list, tuple, sorted, reversed, isinstance),
)
MODULES: dict[Any, tuple[str, dict[str, Any]]] = {
    math: ("math", MATH),
    zlib: ("zlib", {name: getattr(zlib, name) for name in ("crc32", "adler32")}),
}
# Modules whose functions depend on more than what they are given.
CHANGING = {"random", "time", "datetime", "os", "uuid", "secrets", "socket", "threading"}
PATTERN = {"sub", "match", "search", "fullmatch"}  # methods of compiled patterns
CALLABLE = [*BUILTINS.values(), *(value for value in MATH.values() if callable(value))]
# Attributes of text, bytes, numbers, dates and dicts that neither change nor depend on anything.
ATTRIBUTES = {
    *("lower", "upper", "casefold", "capitalize", "title", "swapcase", "strip", "lstrip", "rstrip"),
    *("startswith", "endswith", "removeprefix", "removesuffix", "replace", "split", "rsplit"),
    *("partition", "rpartition", "splitlines", "join", "find", "rfind", "index", "rindex", "count"),
    *("isdigit", "isalpha", "isalnum", "isdecimal", "isnumeric", "isspace", "islower", "isupper"),
    *("isidentifier", "istitle", "isascii", "zfill", "ljust", "rjust", "center", "encode"),
    *("decode", "get", "year", "month", "day", "hour", "minute", "second", "microsecond"),
    *("weekday", "isoweekday", "toordinal", "real", "imag", "numerator", "denominator"),
    *("is_integer", "bit_length", "bit_count", "conjugate"),
}
EDITS = {"items", "keys", "values", "pop", "update", "setdefault", "copy", "append", "extend"}
PLAIN = (int, float, bool, str, bytes, complex, type(None))
DEEPEST = 8  # functions calling functions; deeper is refused, so that the proof stays cheap


@dataclasses.dataclass(frozen=True, slots=True)
class Purity:
    """The verdict on a function; false with a ``reason``, one short sentence for its author."""

    reason: str = ""

    @property
    def pure(self) -> bool:
        """True if the result is a function of the arguments alone, and nothing else happens."""
        return not self.reason

    def __bool__(self) -> bool:
        return self.pure


def proven_pure(fn: object, *, edits: bool = False) -> Purity:
    """Whether ``fn`` is proven to depend on its arguments alone and to change nothing.

    Examines plain functions and those they call, by their bytecode; about 60 microseconds. What is
    passed in must be plain values of its own (numbers, text, dates, dicts, lists), as rows are.
    With ``edits`` it may change the containers that it is given, which nobody else has, and may
    have loops and ``try``.
    """
    return Purity(_objection(fn, (), edits=edits))


def only_looks_up(fn: object) -> bool:
    """True if all that ``fn`` does with its first argument is to look up constants: ``row["x"]``.

    Such a function cannot change the dict that it is given, keep it or hand it on, whatever else it
    does. That holds for the dict alone: a value that is looked up is handed out, and if it is one
    that can change (a list, an array), the function may change or keep it.
    """
    if not isinstance(fn, types.FunctionType) or fn.__code__.co_argcount < 1:
        return False
    steps = program(fn.__code__).steps
    for place, step in enumerate(steps):
        if "FAST" in step.name and step.arg == 0:
            after = [next_step.name for next_step in steps[place + 1 : place + 3]]
            if step.name != "LOAD_FAST" or after != ["LOAD_CONST", "BINARY_SUBSCR"]:
                return False
        if step.name in {"MAKE_CELL", "LOAD_LOCALS"} or step.text in READS_LOCALS:
            return False
    return True


def fresh_dict(fn: object) -> int:
    """N if every return of ``fn`` is a dict display with n items, made for that call; else 0."""
    if not isinstance(fn, types.FunctionType) or fn.__code__.co_flags & inspect.CO_GENERATOR:
        return 0
    steps = program(fn.__code__).steps
    reached = {step.target for step in steps}
    sizes = set()
    for place, step in enumerate(steps):
        if step.name.startswith("RETURN"):
            made = steps[place - 1]
            ends = step.name == "RETURN_VALUE" and place and place not in reached
            known = ends and made.name in {"BUILD_MAP", "BUILD_CONST_KEY_MAP"}
            sizes.add(made.arg if known else 0)
    return sizes.pop() if len(sizes) == 1 else 0


def plain_value(value: object) -> bool:
    """Whether a value from outside can be relied on never to change."""
    if type(value) in (tuple, frozenset):
        return all(plain_value(item) for item in value)  # type: ignore[attr-defined]
    return type(value) in PLAIN


def outside(fn: types.FunctionType, step: Instruction) -> object:
    """The value that a LOAD_GLOBAL or LOAD_DEREF step finds; NameError if there is none."""
    if step.name == "LOAD_DEREF":
        cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
        try:
            return cells[step.text].cell_contents
        except (KeyError, ValueError):
            raise NameError(step.text) from None
    if step.text in fn.__globals__:
        return fn.__globals__[step.text]
    found: Mapping[str, object] = cast("Any", fn).__builtins__
    if step.text not in found:
        raise NameError(step.text)
    return found[step.text]


def _objection(fn: object, callers: tuple[object, ...], *, edits: bool) -> str:
    """Why ``fn`` is not proven pure, or nothing; ``callers`` are being examined already."""
    if isinstance(fn, partial):
        if not all(plain_value(value) for value in (*fn.args, *fn.keywords.values())):
            return "it is given an argument beforehand that is not a plain constant"
        return _objection(fn.func, callers, edits=edits)
    if not isinstance(fn, types.FunctionType):
        return f"only plain functions are examined, not a {type(fn).__name__}"
    if fn in callers:
        return "it calls itself"
    if len(callers) >= DEEPEST:
        return f"its calls are nested more than {DEEPEST} deep"
    code = fn.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return "it is a generator or a coroutine"
    if why := _of_defaults(fn):
        return why
    return next(filter(None, _of_code(fn, code, frozenset(), (*callers, fn), edits=edits)), "")


def _of_defaults(fn: types.FunctionType) -> str:
    defaults = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
    if not all(plain_value(value) for value in defaults):
        return "it has a default argument that is not a plain constant"
    if any(map(_orderless, defaults)):
        return "it has a default argument that is a set, whose order differs between processes"
    return ""


def _of_code(
    fn: types.FunctionType,
    code: types.CodeType,
    around: frozenset[str],
    callers: tuple[object, ...],
    *,
    edits: bool,
) -> Iterator[str]:
    """Objections to ``code``, of ``fn`` or a comprehension in it; ``around`` are its variables."""
    steps, handlers = program(code)
    own = around | set(code.co_cellvars)
    if edits:
        yield from _edited(code, steps, own)
    else:
        yield _refused(steps, ALLOWED) or ("it has try or with" if handlers else "")
        yield in_place(steps)
    yield from _from_outside(fn, steps, own, callers, edits=edits)
    for inner in code.co_consts if edits else ():
        if isinstance(inner, types.CodeType):
            yield from _of_code(fn, inner, own, callers, edits=edits)


def _edited(
    code: types.CodeType, steps: Sequence[Instruction], own: frozenset[str]
) -> Iterator[str]:
    """Objections to a function that may change what it is given, and may loop and catch."""
    yield _refused(steps, ALLOWED | EDITING)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType) and inner.co_name not in COMPREHENSIONS:
            yield "it defines a function inside (a lambda)"
    for place, step in enumerate(steps):
        if step.name == "STORE_DEREF" and (step.text not in own or step.text in code.co_freevars):
            yield SEEN_AS["STORE_DEREF"]
        if step.name == "PUSH_EXC_INFO" and not _named(steps, place + 1):
            yield "it has finally, or catches whatever is raised"


def _named(steps: Sequence[Instruction], place: int) -> bool:
    """Whether a handler that begins at ``place`` catches nothing but exceptions that it names."""
    loaded = 0
    while place < len(steps):
        step = steps[place]
        if step.name == "CHECK_EXC_MATCH":
            place, loaded = steps[place + 1].target, 0
        elif step.name in ("LOAD_GLOBAL", "BUILD_TUPLE"):
            place, loaded = place + 1, loaded + 1
        else:
            return step.name == "RERAISE" and not loaded
    return False


def _refused(steps: Sequence[Instruction], allowed: set[str]) -> str:
    """The first objection to instructions as such; loops are jumps to where control has been."""
    for place, step in enumerate(steps):
        if 0 <= step.target <= place and allowed is ALLOWED:
            return "it has a loop"
        if step.name == "CALL_INTRINSIC_1" and step.arg in INTRINSICS:
            continue
        after = steps[place + 1].name if place + 1 < len(steps) else ""
        if step.name in SETS or type(step.constant) is frozenset:
            if after != "CONTAINS_OP":
                return ORDERLESS
            continue
        if step.name not in allowed:
            return SEEN_AS.get(step.name) or f"it uses {step.name.lower()}, which is not examined"
    return ""


def _from_outside(
    fn: types.FunctionType,
    steps: Sequence[Instruction],
    own: frozenset[str],
    callers: tuple[object, ...],
    *,
    edits: bool,
) -> Iterator[str]:
    """Objections to what is loaded from outside, and to attributes."""
    skip = False
    attributes = ATTRIBUTES | EDITS if edits else ATTRIBUTES
    for step, after in zip(steps, (*steps[1:], steps[-1]), strict=True):
        if step.name in ("LOAD_ATTR", "LOAD_METHOD"):
            if not skip and step.text not in attributes:
                yield f"it uses the attribute .{step.text}"
            skip = False
        elif step.name in ("LOAD_GLOBAL", "LOAD_DEREF") and step.text not in own:
            try:
                value = outside(fn, step)
            except NameError:
                yield f"{step.text!r} is not defined yet"
                return
            named = after.name in ("LOAD_ATTR", "LOAD_METHOD")
            skip = named and (_is_module(value) or (edits and _is_pattern(value, after.text)))
            why = _attribute_objection(value, after.text) if skip else ""
            if named and not skip and isinstance(value, types.ModuleType):
                why, skip = _of_module(value, after.text), True
            yield why or ("" if skip else _value_objection(step.text, value, callers, edits=edits))
            if _orderless(value) and (after.name != "CONTAINS_OP" or isinstance(value, tuple)):
                yield ORDERLESS


def _is_module(value: object) -> bool:
    return isinstance(value, types.ModuleType) and value in MODULES


def _is_pattern(value: object, method: str) -> bool:
    return isinstance(value, re.Pattern) and type(value.pattern) is str and method in PATTERN


def _orderless(value: object) -> bool:
    """Whether a value has an order of iteration that differs between processes."""
    if type(value) is tuple:
        return any(map(_orderless, value))
    return type(value) is frozenset


def _value_objection(name: str, value: object, callers: tuple[object, ...], *, edits: bool) -> str:
    if isinstance(value, types.FunctionType | partial):
        why = _objection(value, callers, edits=edits)
        return f"it calls {name}(), and of that: {why}" if why else ""
    if isinstance(value, type) and issubclass(value, BaseException):
        known = vars(builtins).get(value.__name__) is value
        return "" if known else f"{name} is an exception class of its own"
    callable_ = [*CALLABLE, *(LOOPING if edits else ())]
    if plain_value(value) or any(value is known for known in callable_):
        return ""
    return _unknown(name, value)


def _attribute_objection(module: object, name: str) -> str:
    """Why an attribute of a module, or a method of a pattern, may not be used."""
    if isinstance(module, re.Pattern):
        return ""
    called, known = MODULES[module]
    if name not in known:
        return f"it uses {called}.{name}, which is not known to be pure"
    if vars(module).get(name) is not known[name]:
        return f"{called}.{name} is not what Python ships"
    return ""


def _of_module(module: types.ModuleType, name: str) -> str:
    what = f"it uses {module.__name__}.{name}"
    if module.__name__ in CHANGING:
        return f"{what}, which may give something else each time"
    return f"{what}, which is not known to be pure"


def _unknown(name: str, value: object) -> str:
    if callable(value):
        return f"it uses {name}, which is not known to be pure"
    return f"it reads {name!r}, a {type(value).__name__} that could change"
