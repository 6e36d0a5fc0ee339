"""A function is proven to be a pure function of its arguments, or refused with a reason.

The proof is a list of allowed instructions: loads, arithmetic, comparisons, forward jumps, new
containers, and calls of a few functions known to be pure. Refused are loops, ``try``, imports,
stores into anything but local variables, mutable values from outside, sets that are used for more
than ``in`` (the order of their items differs between processes), ``+=`` on values that may belong
to the caller, and every instruction that is not in the list, so a newer Python can only make fewer
functions provable. A pure function may still raise. The verdict holds for the current state of the
function: globals are read now.
"""

from __future__ import annotations

import builtins
import inspect
import math
import re
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from dml.udfs.identity.bytecode import FLAGS, READS_LOCALS, Instruction, program

SUBSCRIPT = 26  # the BINARY_OP argument of a subscription, in Pythons without BINARY_SUBSCR
IN_PLACE = range(13, SUBSCRIPT)  # the BINARY_OP arguments of +=, -= and so on


class Own(NamedTuple):
    """Values that the function itself created (results, constants, displays), at one instruction.

    ``stack`` has a flag for each entry of Python's stack from the top down, as far as known;
    ``variables`` are the indices of local variables with such values.
    """

    stack: tuple[bool, ...] = ()
    variables: frozenset[int] = frozenset()

    def at(self, depth: int) -> bool:
        """Return True if the entry at ``depth`` (1 is the top) was created by the function."""
        return depth <= len(self.stack) and self.stack[depth - 1]

    def moved(self, pops: int, pushed: tuple[bool, ...]) -> Own:
        return self._replace(stack=pushed + self.stack[pops:])

    def met(self, other: Own | None) -> Own:
        """Return the facts that hold on both paths to an instruction (None: only one path)."""
        if other is None:
            return self
        both = zip(self.stack, other.stack, strict=False)
        return Own(tuple(a and b for a, b in both), self.variables & other.variables)


def in_place(steps: tuple[Instruction, ...]) -> str:
    """Return the objection to an in-place operator on a value that may be the caller's, or "".

    The code must not have loops.
    """
    if not any(step.name == "BINARY_OP" and step.arg in IN_PLACE for step in steps):
        return ""
    arriving: dict[int, Own] = {}
    now: Own | None = Own()
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


def _stepped(now: Own, step: Instruction) -> Own:
    """Return the facts after ``step``; an unknown instruction clears those of the stack."""
    if step.name == "STORE_FAST":
        one = frozenset({step.arg})
        kept = now.variables | one if now.at(1) else now.variables - one
        return Own(now.stack[1:], kept)
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


# Number of stack entries that an instruction pops, and for each that it pushes, True if owned.
# Values loaded from outside count as owned, since they must be plain and cannot change.
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
    "BINARY_SLICE": (3, (False,)),  # a slice of an array is a view
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
# Also allowed where a function may modify containers that it was given or has created: loops,
# ``try``, comprehensions, stores into containers. All that it can reach is private to it, or plain.
EDITING = {
    *("GET_ITER", "FOR_ITER", "END_FOR", "POP_ITER"),
    *("STORE_SUBSCR", "DELETE_SUBSCR", "DELETE_FAST"),
    *("MAKE_FUNCTION", "MAKE_CELL", "LOAD_CLOSURE", "STORE_DEREF", "LOAD_FAST_AND_CLEAR"),
    *("RETURN_GENERATOR", "YIELD_VALUE", "PUSH_EXC_INFO", "CHECK_EXC_MATCH", "POP_EXCEPT"),
    *("RERAISE", "SET_FUNCTION_ATTRIBUTE"),
}
COMPREHENSIONS = {"<listcomp>", "<dictcomp>", "<genexpr>"}
# CALL_INTRINSIC_1: the harmless ones
INTRINSICS = {3: "the end of a generator", 5: "unary +", 6: "a list as a tuple"}
SETS = {"BUILD_SET", "SET_ADD", "SET_UPDATE"}  # allowed directly before CONTAINS_OP
ORDERLESS = "it uses a set for more than `in`: the order of its items differs between processes"
# Descriptions of refused instructions for the author of the function.
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
    "CHECK_EXC_MATCH": "it has try or with",
    "BEFORE_WITH": "it has try or with",
    "PRINT_EXPR": "it prints",
}


BUILTINS = (abs, min, max, round, int, float, bool, len, str, divmod, pow)
# Constants of math, and its deterministic functions of plain numbers; not those of sequences (fsum,
# prod, dist, sumprod), which call methods of the items.
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
# Builtins on containers and their items, whose results are the function's own.
LOOPING = (
    *(sum, any, all, range, enumerate, zip, dict, list, tuple, sorted, reversed, isinstance),
)
MODULES: dict[Any, tuple[str, dict[str, Any]]] = {
    math: ("math", MATH),
    zlib: ("zlib", {name: getattr(zlib, name) for name in ("crc32", "adler32")}),
}
# Modules whose functions depend on more than their arguments.
CHANGING = {"random", "time", "datetime", "os", "uuid", "secrets", "socket", "threading"}
PATTERN = {"sub", "match", "search", "fullmatch"}  # methods of compiled patterns
CALLABLE = [*BUILTINS, *(value for value in MATH.values() if callable(value))]
# Attributes of text, bytes, numbers, dates and dicts that are pure and do not modify the object.
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
DEEPEST = 8  # most levels of functions calling functions, so that the proof stays cheap


# Names by which a function reaches the variables of frames, its own among them.
READS_FRAMES = {
    *("_getframe", "_current_frames", "currentframe", "stack", "trace", "breakpoint", "set_trace"),
    *("f_locals", "f_back", "gi_frame", "cr_frame", "tb_frame"),
}


def lookups(fn: object) -> frozenset[object] | None:
    """Return the keys of ``fn`` if it uses its first argument only for lookups: ``row["x"]``.

    None if it uses the argument otherwise. With keys, the function cannot modify, keep or pass on
    the dict, nor notice its other items, unless something that it calls looks into its frame. It
    may modify or keep a mutable value (a list, an array) that it looks up.
    """
    if not isinstance(fn, types.FunctionType) or fn.__code__.co_argcount < 1:
        return None
    steps, keys = program(fn.__code__).steps, set[object]()
    for place, step in enumerate(steps):
        if "FAST" in step.name and step.arg == 0:
            after = steps[place + 1 : place + 3]
            names = [each.name for each in after]
            if step.name != "LOAD_FAST" or names != ["LOAD_CONST", "BINARY_SUBSCR"]:
                return None
            keys.add(after[0].constant)
        strange = step.name in {"MAKE_CELL", "LOAD_LOCALS"} or step.name.count("FAST") > 1
        if strange or step.text in READS_LOCALS | READS_FRAMES:
            return None
    return frozenset(keys)


def fresh_dict(fn: object) -> int:
    """Return n if every ``return`` of ``fn`` is a dict display with n items; else 0."""
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
    """Return True if a value from outside can never change."""
    if type(value) in (tuple, frozenset):
        return all(plain_value(item) for item in value)  # type: ignore[attr-defined]
    return type(value) in PLAIN


def outside(fn: types.FunctionType, step: Instruction) -> object:
    """Return the value that a LOAD_GLOBAL or LOAD_DEREF step loads; NameError if there is none."""
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


def objection(fn: object, callers: tuple[object, ...] = (), *, edits: bool = False) -> str:
    """Return why ``fn`` is not proven pure, in one short sentence for its author; "" if it is.

    A function is pure if its result depends on the arguments alone and it has no side effects.
    Plain functions, and those they call, are examined by their bytecode, in about 60 microseconds.
    Arguments must be plain, unshared values (numbers, text, dates, dicts, lists), as rows are. With
    ``edits`` the function may modify its arguments, which are not shared, and may contain loops and
    ``try``. ``callers`` are the functions under examination.
    """
    if isinstance(fn, partial):
        if not all(plain_value(value) for value in (*fn.args, *fn.keywords.values())):
            return "it is given an argument beforehand that is not a plain constant"
        return objection(fn.func, callers, edits=edits)
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
    """Yield objections to ``code``, of ``fn`` or of a function in it; "" means no objection.

    ``around`` are the variables of enclosing code that inner functions use.
    """
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
    """Yield objections to a function that may modify its arguments, loop, and catch exceptions."""
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
    """Return True if the handler at ``place`` catches only exceptions that it names."""
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
    """Return the objection to the first loop, set, or instruction not in ``allowed``; else ""."""
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
    """Yield objections to values loaded from outside, and to attributes."""
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
    """Return True if the iteration order of a value differs between processes."""
    if type(value) is tuple:
        return any(map(_orderless, value))
    return type(value) is frozenset


def _value_objection(name: str, value: object, callers: tuple[object, ...], *, edits: bool) -> str:
    if isinstance(value, types.FunctionType | partial):
        why = objection(value, callers, edits=edits)
        return f"it calls {name}(), and of that: {why}" if why else ""
    if isinstance(value, type) and issubclass(value, BaseException):
        known = vars(builtins).get(value.__name__) is value
        return "" if known else f"{name} is an exception class of its own"
    callable_ = [*CALLABLE, *(LOOPING if edits else ())]
    if plain_value(value) or any(value is known for known in callable_):
        return ""
    return _unknown(name, value)


def _attribute_objection(module: object, name: str) -> str:
    """Return why attribute ``name`` of a known module is refused; "" if it is pure."""
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
