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
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from dml.expr.bytecode import FLAGS, READS_LOCALS, Instruction, program

ALLOWED = {
    *("RESUME", "CACHE", "PUSH_NULL", "POP_TOP", "COPY", "SWAP", "PRECALL", "COPY_FREE_VARS"),
    *("LOAD_FAST", "LOAD_FAST_CHECK", "STORE_FAST", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"),
    *("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_ATTR", "LOAD_METHOD"),
    *("BINARY_OP", "BINARY_SUBSCR", "BINARY_SLICE", "COMPARE_OP", "CONTAINS_OP", "IS_OP"),
    *("UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_NOT", "UNARY_INVERT", "TO_BOOL"),
    *("BUILD_MAP", "BUILD_CONST_KEY_MAP", "BUILD_TUPLE", "BUILD_LIST", "BUILD_SLICE"),
    *("DICT_UPDATE", "DICT_MERGE", "LIST_EXTEND", "LIST_APPEND"),
    *("BUILD_STRING", "FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE"),
    *("UNPACK_SEQUENCE", "UNPACK_EX", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "KW_NAMES"),
    *("LIST_TO_TUPLE", "MAP_ADD"),
    *("JUMP", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE"),
    *("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP", "LOAD_ASSERTION_ERROR", "RAISE_VARARGS"),
}
INTRINSICS = {5: "unary +", 6: "a list as a tuple"}  # CALL_INTRINSIC_1: the harmless ones
SETS = {"BUILD_SET", "SET_ADD", "SET_UPDATE"}  # allowed directly before CONTAINS_OP
ORDERLESS = "it uses a set for more than `in`: the order of its items differs between processes"
SUBSCRIPT = 26  # BINARY_OP that is a subscription, in Pythons that have no BINARY_SUBSCR
IN_PLACE = range(13, SUBSCRIPT)  # arguments of BINARY_OP that are +=, -= and so on
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
    if any(map(_orderless, defaults)):
        return "it has a default argument that is a set, whose order differs between processes"
    steps, handlers = program(code)
    found = _refused(steps) or ("it has try or with" if handlers else "") or _in_place(steps)
    return found or next(_from_outside(fn, steps, (*callers, fn)), "")


def _refused(steps: tuple[Instruction, ...]) -> str:
    """The first objection to instructions as such; loops are jumps to where control has been."""
    for place, step in enumerate(steps):
        if 0 <= step.target <= place:
            return "it has a loop"
        if step.name == "CALL_INTRINSIC_1" and step.arg in INTRINSICS:
            continue
        if step.name in SETS:
            if steps[place + 1].name != "CONTAINS_OP":
                return ORDERLESS
            continue
        if step.name not in ALLOWED:
            return SEEN_AS.get(step.name) or f"it uses {step.name.lower()}, which is not examined"
    return ""


class _Own(NamedTuple):
    """What a function made itself, at one place: arithmetic results, constants, displays.

    ``stack`` says it of the entries from the top down, as far as known; ``variables`` are numbers.
    """

    stack: tuple[bool, ...] = ()
    variables: frozenset[int] = frozenset()

    def at(self, depth: int) -> bool:
        """Whether the entry that many from the top, which is 1, is known to be its own."""
        return depth <= len(self.stack) and self.stack[depth - 1]

    def moved(self, pops: int, pushed: tuple[bool, ...]) -> _Own:
        return self._replace(stack=pushed + self.stack[pops:])

    def met(self, other: _Own | None) -> _Own:
        """What holds on both ways to a place, if there are two."""
        if other is None:
            return self
        both = zip(self.stack, other.stack, strict=False)
        return _Own(tuple(a and b for a, b in both), self.variables & other.variables)


def _in_place(steps: tuple[Instruction, ...]) -> str:
    """The objection to ``+=`` and its like on what was not made here; jumps lead forward only."""
    if not any(step.name == "BINARY_OP" and step.arg in IN_PLACE for step in steps):
        return ""
    arriving: dict[int, _Own] = {}
    now: _Own | None = _Own()
    for place, step in enumerate(steps):
        if place in arriving:
            now = arriving[place].met(now)
        if now is None:
            continue
        if step.name == "BINARY_OP" and step.arg in IN_PLACE and not now.at(2):
            return "it changes a value in place (with += or its like) that it did not make itself"
        before, now = now, _stepped(now, step)
        if step.target >= 0:
            taken = before if step.name.endswith("_OR_POP") else now
            arriving[step.target] = taken.met(arriving.get(step.target))
        if step.name == "JUMP" or step.name.startswith(("RETURN", "RAISE")):
            now = None
    return ""


def _stepped(now: _Own, step: Instruction) -> _Own:
    """What is known after a step; after one that is not described, nothing of the stack."""
    if step.name == "STORE_FAST":
        one = frozenset({step.arg})
        kept = now.variables | one if now.at(1) else now.variables - one
        return _Own(now.stack[1:], kept)
    if step.name.startswith("LOAD_FAST"):
        return now.moved(0, (step.arg in now.variables,))
    if step.name == "COPY":
        return now.moved(0, (now.at(step.arg),))
    if step.name == "SWAP":
        known = [now.at(depth) for depth in range(1, max(step.arg, len(now.stack)) + 1)]
        known[0], known[step.arg - 1] = known[step.arg - 1], known[0]
        return now._replace(stack=tuple(known))
    if step.name in COUNTED:
        return now.moved(*COUNTED[step.name](step.arg))
    if step.name in FIXED:
        return now.moved(*FIXED[step.name])
    return now._replace(stack=())


# How many entries an instruction takes from the stack, and whether what it puts there is its own.
# What is loaded from outside counts as its own, since it must be plain and cannot change.
FIXED: dict[str, tuple[int, tuple[bool, ...]]] = {
    **dict.fromkeys(("RESUME", "CACHE", "PRECALL", "KW_NAMES"), (0, ())),
    **dict.fromkeys(("COPY_FREE_VARS", "JUMP"), (0, ())),
    **dict.fromkeys(("LOAD_CONST", "LOAD_DEREF", "PUSH_NULL"), (0, (True,))),
    **dict.fromkeys(("POP_TOP", "JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"), (1, ())),
    **dict.fromkeys(("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"), (1, ())),
    **dict.fromkeys(("POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE"), (1, ())),
    **dict.fromkeys(("UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT"), (1, (True,))),
    **dict.fromkeys(("UNARY_NOT", "TO_BOOL", "CALL_INTRINSIC_1"), (1, (True,))),
    **dict.fromkeys(("FORMAT_SIMPLE", "CONVERT_VALUE"), (1, (True,))),
    **dict.fromkeys(("COMPARE_OP", "CONTAINS_OP", "IS_OP", "FORMAT_WITH_SPEC"), (2, (True,))),
    "BINARY_SUBSCR": (2, (False,)),
    "BINARY_SLICE": (3, (False,)),  # of an array, a slice is a view
    "LOAD_METHOD": (1, (False, False)),
}
COUNTED: dict[str, Callable[[int], tuple[int, tuple[bool, ...]]]] = {
    "BINARY_OP": lambda arg: (2, (arg < SUBSCRIPT,)),
    "LOAD_GLOBAL": lambda arg: (0, (True,) * (1 + (arg & 1))),
    "LOAD_ATTR": lambda arg: (1, (False,) * (1 + (arg & FLAGS.get("LOAD_ATTR", 0)))),
    "FORMAT_VALUE": lambda arg: (2 if arg & 4 else 1, (True,)),
    **dict.fromkeys(("BUILD_STRING", "BUILD_TUPLE", "BUILD_LIST"), lambda arg: (arg, (True,))),
    **dict.fromkeys(("BUILD_SLICE", "BUILD_SET"), lambda arg: (arg, (True,))),
    "BUILD_MAP": lambda arg: (2 * arg, (True,)),
    "BUILD_CONST_KEY_MAP": lambda arg: (arg + 1, (True,)),
    "UNPACK_SEQUENCE": lambda arg: (1, (False,) * arg),
    "CALL": lambda arg: (arg + 2, (False,)),
    "CALL_KW": lambda arg: (arg + 3, (False,)),
}


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
            if _orderless(value) and (after.name != "CONTAINS_OP" or isinstance(value, tuple)):
                yield ORDERLESS


def _orderless(value: object) -> bool:
    """Whether a value has an order of iteration that differs between processes."""
    if type(value) is tuple:
        return any(map(_orderless, value))
    return type(value) is frozenset


def _value_objection(
    name: str, value: object, attribute: Instruction | None, callers: tuple[object, ...]
) -> Iterator[str]:
    if attribute is not None:
        yield from _math_objection(attribute.text)
    elif isinstance(value, types.FunctionType):
        if why := _objection(value, callers):
            yield f"it calls {name}(), and of that: {why}"
    elif isinstance(value, type) and issubclass(value, BaseException):
        if vars(builtins).get(value.__name__) is not value:
            yield f"{name} is an exception class of its own"
    elif not plain_value(value) and not any(value is known for known in CALLABLE):
        yield _unknown(name, value)


def _math_objection(name: str) -> Iterator[str]:
    if name not in MATH:
        yield f"it uses math.{name}, which is not known to be pure"
    elif vars(math).get(name) is not MATH[name]:
        yield f"math.{name} is not what Python ships"


def _unknown(name: str, value: object) -> str:
    if callable(value):
        return f"it uses {name}, which is not known to be pure"
    return f"it reads {name!r}, a {type(value).__name__} that could change"
