"""Code that observes names of functions, annotations, or the order of sets is detected here.

These facts, and the order of a class's attributes, are not part of a fingerprint, since most code
does not observe them. Code that does is recognized by the attributes that it reads, and by how it
uses sets: ``list(s)``, ``[... for x in s]``, ``",".join(s)``, ``s.pop()`` expose an order; ``x in
s``, ``sorted(s)``, ``len(s)`` and ``any(... for x in s)`` do not. Not tracked: sets from calls,
containers and rows, and loops over a set that the code created itself.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from dml.udfs.identity.bytecode import Instruction, program

# Attributes and library functions that describe the name and signature of a function or class.
DESCRIBING = frozenset(
    {
        *("__name__", "__qualname__", "__doc__", "__annotations__", "__dict__", "__code__"),
        *("__signature__", "__type_params__", "__annotate__", "co_name", "co_qualname"),
        *("signature", "getfullargspec", "getmembers", "get_annotations", "get_type_hints"),
        *("getdoc", "vars", "dir"),
    }
)
# Attributes that reveal where code was written, what has been imported so far, or the caller.
UNKNOWABLE = frozenset(
    {
        *("__subclasses__", "__globals__", "__firstlineno__", "f_back", "f_code", "f_globals"),
        *("f_lineno", "f_locals", "tb_frame", "tb_lineno", "co_filename", "co_firstlineno"),
        *("co_lines", "co_positions", "co_code", "co_consts", "getsource", "getsourcelines"),
        *("getsourcefile", "_getframe", "currentframe", "get_referrers", "get_objects"),
    }
)
SHOWING = frozenset({"list", "tuple", "iter", "enumerate", "zip", "map", "deque", "chain"})
SHOWING_METHODS = frozenset({"join", "extend", "extendleft", "fromkeys", "from_iterable", "chain"})
MAKING = frozenset({"set", "frozenset"})
MAKING_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})
SET_OPERATIONS = frozenset({"&", "|", "^", "-", "&=", "|=", "^=", "-="})
PLAIN = frozenset({int, float, bool, complex})  # their hash is the same in every process


class Sight(NamedTuple):
    """The facts that code observes, including the functions nested in it.

    ``describes`` is True if the code observes names or annotations of functions or classes.
    ``unknowable`` is an attribute that it reads and that makes a fingerprint impossible, or "".
    ``ordered`` are the names of variables and attributes that may be sets whose order it observes.
    ``own`` is True if it observes the order of a set that it creates.
    """

    describes: bool
    unknowable: str
    ordered: frozenset[str]
    own: bool


@lru_cache(maxsize=4096)
def sight(code: types.CodeType) -> Sight:
    """Return the facts that ``code`` and functions in it observe."""
    texts = {*code.co_names, *(each for each in code.co_consts if type(each) is str)}
    inner = [sight(each) for each in code.co_consts if isinstance(each, types.CodeType)]
    order = _Order()
    order.follow(program(code).steps)
    unknowable = sorted(UNKNOWABLE & set(code.co_names)) + [each.unknowable for each in inner]
    return Sight(
        bool(DESCRIBING & texts) or any(each.describes for each in inner),
        max(unknowable, default=""),
        order.names.union(*(each.ordered for each in inner)),
        order.own or any(each.own for each in inner),
    )


def is_plain(members: set[object] | frozenset[object]) -> bool:
    """Return True if a set built in the same way has the same order in every process."""
    return all(type(member) in PLAIN for member in members)


class _Label(NamedTuple):
    """The known origin of a value on the stack.

    ``kind`` is "name" (read from the variable or attribute ``text``), "method" (of the value above
    it), "set" (created by this code), "constant" (a constant set), "function" (created by this
    code, with the name ``text``), or "flow" (an iterator over the members of ``of``).
    """

    kind: str
    text: str = ""
    of: _Label | None = None


SET = _Label("set")
Stack = list[_Label | None]
JUMPS_AWAY = ("JUMP", "RETURN_VALUE", "RETURN_CONST", "RERAISE", "RAISE_VARARGS")
KEEPING_BELOW = ("STORE_", "POP_", "DELETE_", "SET_", "LIST_APPEND", "MAP_ADD", "DICT_")


class _Order:
    """Tracks the origins of values along straight lines and forward jumps of code."""

    def __init__(self) -> None:
        self.names, self.own = frozenset[str](), False
        self.held: Stack = []
        self.locals: dict[int, _Label | None] = {}

    def follow(self, steps: Sequence[Instruction]) -> None:
        """Process all steps of a code object."""
        pending: dict[int, Stack] = {}
        for place, step in enumerate(steps):
            if place in pending:
                self.held = pending.pop(place)
            handler = HANDLERS.get(step.name)
            if handler is not None:
                handler(self, step, steps[place + 1 : place + 6])
            else:
                self._other(step)
            if step.target > place:
                pending.setdefault(step.target, list(self.held))
            if step.name in JUMPS_AWAY:
                self.held = []

    def shows(self, label: _Label | None, *, loop: bool = False) -> None:
        """Record that code observes a value's order; ignore a ``loop`` over a set it created."""
        if label is None:
            return
        if label.kind == "name":
            self.names |= {label.text}
        elif label.kind == "flow":
            self.shows(label.of)
        elif label.kind == "constant" or (label.kind == "set" and not loop):
            self.own = True

    def pop(self, count: int = 1) -> Stack:
        """Pop and return the ``count`` topmost labels, the top last; None for missing ones."""
        if count <= 0:
            return []
        found = self.held[-count:]
        del self.held[-count:]
        return [None] * (count - len(found)) + found

    def _other(self, step: Instruction) -> None:
        code = dis.opmap.get(step.name)
        if code is None:
            return
        arg = step.arg if code >= dis.HAVE_ARGUMENT else None
        effect = dis.stack_effect(code, arg, jump=False)
        self.pop(-effect)
        self.held += [None] * effect
        if effect <= 0 and self.held and not _keeps(step.name):
            self.held[-1] = None


def _keeps(name: str) -> bool:
    return name.startswith(KEEPING_BELOW) or name in ("RESUME", "PRECALL", "KW_NAMES", "JUMP")


Rest = Sequence[Instruction]


def _load(order: _Order, step: Instruction, _: Rest) -> None:
    if step.name == "LOAD_GLOBAL" and step.arg & 1:
        order.held.append(None)  # the NULL entry beside the function for a call
    order.held.append(_Label("name", step.text))


def _load_local(order: _Order, step: Instruction, _: Rest) -> None:
    order.held.append(order.locals.get(step.arg))


def _load_constant(order: _Order, step: Instruction, _: Rest) -> None:
    value, label = step.constant, None
    if isinstance(value, types.CodeType):
        label = _Label("function", value.co_name)
    elif isinstance(value, frozenset) and not is_plain(value):
        label = _Label("constant")
    order.held.append(label)


def _store_local(order: _Order, step: Instruction, _: Rest) -> None:
    (label,) = order.pop()
    known = order.locals.setdefault(step.arg, label)
    order.locals[step.arg] = label if label == known else None


def _make_function(order: _Order, step: Instruction, _: Rest) -> None:
    (label,) = order.pop()
    if step.name == "MAKE_FUNCTION":
        order.pop(step.arg.bit_count() if "SET_FUNCTION_ATTRIBUTE" not in dis.opmap else 0)
    else:
        order.pop()
    order.held.append(label)


def _attribute(order: _Order, step: Instruction, _: Rest) -> None:
    (label,) = order.pop()
    called = step.name == "LOAD_METHOD" or bool(step.arg & 1 and "LOAD_METHOD" not in dis.opmap)
    order.held += [_Label("method", step.text), label] if called else [_Label("name", step.text)]


def _build_set(order: _Order, step: Instruction, _: Rest) -> None:
    order.pop(step.arg)
    order.held.append(SET)


def _operate(order: _Order, step: Instruction, _: Rest) -> None:
    both = order.pop(2)
    is_set = SET in both and dis._nb_ops[step.arg][1] in SET_OPERATIONS  # type: ignore[attr-defined] # noqa: SLF001
    order.held.append(SET if is_set else None)


def _copy(order: _Order, step: Instruction, _: Rest) -> None:
    order.held.append(order.held[-step.arg] if step.arg <= len(order.held) else None)


def _swap(order: _Order, step: Instruction, _: Rest) -> None:
    if step.arg <= len(order.held):
        held = order.held
        held[-1], held[-step.arg] = held[-step.arg], held[-1]


def _spread(order: _Order, step: Instruction, _: Rest) -> None:
    order.shows(order.pop()[0])
    if step.name != "LIST_EXTEND":
        order.held += [None] * ((step.arg & 0xFF) + (step.arg >> 8) + (step.name == "UNPACK_EX"))


def _iterate(order: _Order, _: Instruction, rest: Rest) -> None:
    (label,) = order.pop()
    below = order.held[-1] if order.held else None
    if below is not None and below.kind == "function":  # a comprehension is called with it
        order.held.append(_Label("flow", "", label))
        return
    built = [step.name for step in rest if step.name.startswith("BUILD_")]
    comprehends = [step for step in rest if step.name == "LOAD_FAST_AND_CLEAR"]
    if not comprehends:
        order.shows(label, loop=True)
    elif built != ["BUILD_SET"]:
        order.shows(label)
    order.held.append(None)


def _call(order: _Order, step: Instruction, _: Rest) -> None:
    given = order.pop(step.arg + (step.name == "CALL_KW"))
    first, second = order.pop(2)
    if first is not None and first.kind in ("method", "function"):  # the next entry is an argument
        given = [second, *given]
    order.held.append(_called(order, first or second, given))


def _call_spread(order: _Order, step: Instruction, _: Rest) -> None:
    order.pop(step.arg & 1)
    order.shows(order.pop()[0])
    order.pop(2)
    order.held.append(None)


def _called(order: _Order, callee: _Label | None, given: Stack) -> _Label | None:
    """Record what a call of ``callee`` observes, and return the label of its result."""
    if callee is None:
        return None
    if callee.kind == "function":
        return _comprehended(order, callee.text, given)
    is_method = callee.kind == "method"
    shows = callee.text in (SHOWING_METHODS if is_method else SHOWING)
    for label in given if shows or (is_method and callee.text == "pop" and len(given) == 1) else ():
        order.shows(label)
    making = MAKING_METHODS if is_method else MAKING
    return SET if callee.text in making and not (is_method and SET not in given) else None


def _comprehended(order: _Order, name: str, given: Stack) -> _Label | None:
    if name == "<setcomp>":
        return SET
    if name == "<genexpr>":
        return next(iter(given), None)
    for label in given if name in ("<listcomp>", "<dictcomp>") else ():
        order.shows(label)
    return None


HANDLERS: dict[str, Callable[[_Order, Instruction, Rest], None]] = {
    **dict.fromkeys(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"), _load),
    **dict.fromkeys(("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"), _load_local),
    **dict.fromkeys(("MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE"), _make_function),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD"), _attribute),
    **dict.fromkeys(("LIST_EXTEND", "UNPACK_SEQUENCE", "UNPACK_EX"), _spread),
    **dict.fromkeys(("CALL", "CALL_KW"), _call),
    "PRECALL": lambda *_: None,
    "CALL_FUNCTION_EX": _call_spread,
    "LOAD_CONST": _load_constant,
    "STORE_FAST": _store_local,
    "BUILD_SET": _build_set,
    "BINARY_OP": _operate,
    "GET_ITER": _iterate,
    "COPY": _copy,
    "SWAP": _swap,
}
