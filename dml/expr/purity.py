"""This file proves that a function is a pure function of its arguments, or says why not.

The proof is a list of allowed instructions: loads, arithmetic, comparisons, forward jumps, new
containers, and calls of a few functions known to be pure. Loops, ``try``, imports, stores into
anything but local variables, mutable values from outside, and every instruction that is not in the
list are refused, so a newer Python can only make fewer functions provable. A pure function may
still raise. The verdict holds for the function as it stands: globals are read now.
"""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import math
import types
from collections.abc import Iterator, Mapping

from dml.expr.bytecode import READS_LOCALS, Instruction, program

ALLOWED = {
    *("RESUME", "CACHE", "PUSH_NULL", "POP_TOP", "COPY", "SWAP", "PRECALL", "COPY_FREE_VARS"),
    *("LOAD_FAST", "LOAD_FAST_CHECK", "STORE_FAST", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"),
    *("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_ATTR", "LOAD_METHOD"),
    *("BINARY_OP", "BINARY_SUBSCR", "BINARY_SLICE", "COMPARE_OP", "CONTAINS_OP", "IS_OP"),
    *("UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_NOT", "UNARY_INVERT", "TO_BOOL"),
    *("BUILD_MAP", "BUILD_CONST_KEY_MAP", "BUILD_TUPLE", "BUILD_LIST", "BUILD_SET", "BUILD_SLICE"),
    *("DICT_UPDATE", "DICT_MERGE", "LIST_EXTEND", "LIST_APPEND", "SET_UPDATE", "SET_ADD"),
    *("BUILD_STRING", "FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE"),
    *("UNPACK_SEQUENCE", "UNPACK_EX", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "KW_NAMES"),
    *("LIST_TO_TUPLE", "MAP_ADD"),
    *("JUMP", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE"),
    *("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP", "LOAD_ASSERTION_ERROR", "RAISE_VARARGS"),
}
INTRINSICS = {5: "unary +", 6: "a list as a tuple"}  # CALL_INTRINSIC_1: the harmless ones
# What a refused instruction looks like to the person who wrote it.
SEEN_AS = {
    "FOR_ITER": "it has a loop",
    "GET_ITER": "it has a loop",
    "END_FOR": "it has a loop",
    "STORE_SUBSCR": "it changes a container in place",
    "DELETE_SUBSCR": "it changes a container in place",
    "STORE_SLICE": "it changes a container in place",
    "STORE_ATTR": "it sets an attribute",
    "DELETE_ATTR": "it deletes an attribute",
    "STORE_GLOBAL": "it changes a global variable",
    "DELETE_GLOBAL": "it changes a global variable",
    "STORE_DEREF": "it changes a variable of an enclosing function",
    "IMPORT_NAME": "it imports a module",
    "MAKE_FUNCTION": "it defines a function inside (a lambda or a comprehension)",
    "MAKE_CELL": "it shares a variable with a function inside",
    "YIELD_VALUE": "it is a generator",
    "RETURN_GENERATOR": "it is a generator",
    "GET_AWAITABLE": "it awaits something",
    "LOAD_BUILD_CLASS": "it defines a class inside",
    "PUSH_EXC_INFO": "it has try or with",
    "BEFORE_WITH": "it has try or with",
    "PRINT_EXPR": "it prints",
}
BUILTINS = {
    name: getattr(builtins, name)
    for name in (
        *("abs", "min", "max", "round", "int", "float", "bool", "len", "str", "divmod", "pow"),
    )
}
# Every function and constant of math gives the same for the same arguments.
MATH = {name: value for name, value in vars(math).items() if not name.startswith("_")}
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


def proven_pure(fn: object) -> Purity:
    """Whether ``fn`` is proven to depend on its arguments alone and to change nothing.

    Examines plain functions and those they call, by their bytecode; about 60 microseconds. What is
    passed in must be plain values of its own (numbers, text, dates, dicts, lists), as rows are.
    """
    return Purity(_objection(fn, ()))


def only_looks_up(fn: object) -> bool:
    """True if all that ``fn`` does with its first argument is to look up constants: ``row["x"]``.

    Such a function cannot change the argument, keep it or hand it on, whatever else it does.
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
    found: Mapping[str, object] = fn.__builtins__  # type: ignore[attr-defined]
    if step.text not in found:
        raise NameError(step.text)
    return found[step.text]


def _objection(fn: object, callers: tuple[object, ...]) -> str:
    """Why ``fn`` is not proven pure, or nothing; ``callers`` are being examined already."""
    if not isinstance(fn, types.FunctionType):
        return f"only plain functions are examined, not a {type(fn).__name__}"
    if fn in callers:
        return "it calls itself"
    if len(callers) >= DEEPEST:
        return f"its calls are nested more than {DEEPEST} deep"
    code = fn.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return "it is a generator or a coroutine"
    defaults = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
    if not all(plain_value(value) for value in defaults):
        return "it has a default argument that is not a plain constant"
    steps, handlers = program(code)
    found = _refused(steps)
    if found is None and handlers:
        return "it has try or with"
    return found or next(_from_outside(fn, steps, (*callers, fn)), "")


def _refused(steps: tuple[Instruction, ...]) -> str | None:
    """The first objection to instructions as such; loops are jumps to where control has been."""
    for place, step in enumerate(steps):
        if 0 <= step.target <= place:
            return "it has a loop"
        if step.name == "CALL_INTRINSIC_1" and step.arg in INTRINSICS:
            continue
        if step.name not in ALLOWED:
            return SEEN_AS.get(step.name) or f"it uses {step.name.lower()}, which is not examined"
    return None


def _from_outside(
    fn: types.FunctionType, steps: tuple[Instruction, ...], callers: tuple[object, ...]
) -> Iterator[str]:
    """Objections to what is loaded from outside, and to attributes."""
    skip = False
    for step, after in zip(steps, (*steps[1:], steps[-1]), strict=True):
        if step.name in ("LOAD_ATTR", "LOAD_METHOD"):
            if not skip and step.text not in ATTRIBUTES:
                yield f"it uses the attribute .{step.text}"
            skip = False
        elif step.name in ("LOAD_GLOBAL", "LOAD_DEREF"):
            try:
                value = outside(fn, step)
            except NameError:
                yield f"{step.text!r} is not defined yet"
                return
            skip = value is math and after.name in ("LOAD_ATTR", "LOAD_METHOD")
            yield from _value_objection(step.text, value, after if skip else None, callers)


def _value_objection(
    name: str, value: object, attribute: Instruction | None, callers: tuple[object, ...]
) -> Iterator[str]:
    if attribute is not None:
        if vars(math).get(attribute.text, MATH) is not MATH.get(attribute.text):
            yield f"math.{attribute.text} is not what Python ships"
    elif isinstance(value, types.FunctionType):
        if why := _objection(value, callers):
            yield f"it calls {name}(), and of that: {why}"
    elif isinstance(value, type) and issubclass(value, BaseException):
        if vars(builtins).get(value.__name__) is not value:
            yield f"{name} is an exception class of its own"
    elif not plain_value(value) and not any(value is known for known in CALLABLE):
        yield _unknown(name, value)


def _unknown(name: str, value: object) -> str:
    if callable(value):
        return f"it uses {name}, which is not known to be pure"
    return f"it reads {name!r}, a {type(value).__name__} that could change"
