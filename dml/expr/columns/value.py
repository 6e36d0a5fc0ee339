"""``Value`` is the node of column expressions: an immutable tree with a fingerprint.

``col`` here returns a ``Value``; the class with operators is ``dml.expr.columns.column.Column``.
Two values are equal if their digests are. ``refs`` are the columns that a value reads, ``total`` is
True if it cannot raise an error on any row, ``draws`` if it depends on the row's id.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from dml.base.fingerprint import digest

EMPTY: frozenset[str] = frozenset()

# The class of a column: its namespaces and operators return columns of the same class.
C = TypeVar("C")
# The name of the column that expressions inside of ``list.eval`` read.
ELEMENT = "element()"

# Operations that read the row's id instead of columns.
KEYED = ("random", "row_id")

# Comparisons that ``canonical`` mirrors; the second group has interchangeable arguments.
MIRRORED = {"gt": "lt", "ge": "le"}
COMMUTATIVE = {
    "add", "mul", "eq", "ne", "and", "or", "minimum", "maximum", "bit_and", "bit_or", "bit_xor",
}  # fmt: skip

# Functions of images, sounds and videos, and those of them that read the header alone.
MEDIA = ("image.", "audio.", "video.")
HEADERS = (
    "image.size",
    "image.random_crop_box",
    "image.random_resized_crop_box",
    "audio.info",
)

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "&", "or": "|",
    "bit_and": "&", "bit_or": "|", "bit_xor": "^", "shift_left": "<<", "shift_right": ">>",
    "py_add": "+", "py_sub": "-", "py_mul": "*", "py_truediv": "/", "py_floordiv": "//",
    "py_mod": "%",
}  # fmt: skip
PREFIX = {"neg": "-", "not": "~", "bit_not": "~", "py_neg": "-"}


class Value:
    """One operation ``op`` on ``args``, with plain data ``params``; values are immutable."""

    __slots__ = (
        "_digest",
        "args",
        "calls",
        "depth",
        "draws",
        "op",
        "params",
        "refs",
        "slow",
        "total",
    )

    def __init__(self, op: str, args: tuple[Value, ...] = (), params: tuple[Any, ...] = ()) -> None:
        self.op, self.args, self.params = op, args, params
        self._digest: bytes | None = None
        refs = frozenset(params) if op == "col" else EMPTY
        depth, draws, total = 0, op in KEYED, not _may_fail(op, params)
        calls, slow = op == "udf", op[:6] in MEDIA and op not in HEADERS
        for arg in args:
            refs = refs | arg.refs if refs else arg.refs
            calls, slow = calls or arg.calls, slow or arg.slow
            depth = max(depth, arg.depth)
            draws, total = draws or arg.draws, total and arg.total
        self.refs: frozenset[str] = refs
        self.draws: bool = draws
        self.total: bool = total
        # True if the value calls a user's function; verbs extract such calls
        self.calls: bool = calls
        # True if a row takes a millisecond, as images, sounds and videos do
        self.slow: bool = slow
        # operations on the longest path down, including this one
        self.depth: int = depth + 1

    @property
    def digest(self) -> bytes:
        """The fingerprint of the value as written, 16 bytes."""
        if self._digest is None:
            name = (self.op, *_versions(self.op))
            self._digest = digest(*name, self.params, *(a.digest for a in self.args))
        return self._digest

    @property
    def random(self) -> bool:
        """True if the value draws random numbers."""
        return self.op == "random" or any(arg.random for arg in self.args if arg.draws)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Value) and self.digest == other.digest)

    def __repr__(self) -> str:
        return value_text(self)


def _may_fail(op: str, params: tuple[Any, ...]) -> bool:
    """Return True if the operation itself, not its arguments, may raise an error on some row."""
    if "." in op:
        from dml.kernels.functions.table import may_fail  # noqa: PLC0415 - few columns use any

        return may_fail(op, params)
    return op == "cast" and bool(params[1])


def _versions(op: str) -> tuple[int | str, ...]:
    if "." not in op:
        return ()
    from dml.kernels.functions.table import versions  # noqa: PLC0415 - few columns use any

    return versions(op)


def col(name: str) -> Value:
    """Return the column ``name`` of the input rows."""
    return Value("col", (), (name,))


def lit(value: Any, kind: Any = None) -> Value:
    """Return a constant; without a type ``kind`` it adapts to the other operand."""
    return Value("lit", (), (value, kind))


def substitute(value: Value, env: Mapping[str, Value], memo: dict[int, Value]) -> Value:
    """Return ``value`` with each column in ``env`` replaced by its value there.

    ``memo`` has results by object id, so that shared parts are replaced once, and a chain of a
    thousand steps takes linear time. Each ``env`` needs its own ``memo``.
    """
    if value.op == "col":
        return env.get(value.params[0], value)
    found = memo.get(id(value))
    if found is None:
        found = rebuilt(value, lambda arg: substitute(arg, env, memo))
        memo[id(value)] = found
    return found


def rebuilt(value: Value, fn: Callable[[Value], Value]) -> Value:
    """Return ``value`` with ``fn(arg)`` for each argument; ``value`` itself if none changed."""
    if not value.args:
        return value
    args = tuple(fn(arg) for arg in value.args)
    if all(a is b for a, b in zip(args, value.args, strict=True)):
        return value
    return Value(value.op, args, value.params)


def bind_draws(value: Value, ordinal: int, place: int) -> Value:
    """Return ``value`` with unassigned draws assigned to operator ``ordinal``, column ``place``."""
    if not value.draws:
        return value
    if value.op == "random":
        seed, stream, bound = value.params
        return value if bound is not None else Value("random", (), (seed, stream, (ordinal, place)))
    return rebuilt(value, lambda arg: bind_draws(arg, ordinal, place))


def bottom_up(values: Iterable[Value], better: Callable[[Value], Value]) -> dict[int, Value]:
    """Return ``better(part)`` for every part of ``values``, by the part's object id.

    Arguments are replaced before the operations that use them, and shared parts once.
    """
    done: dict[int, Value] = {}
    stack = list(values)
    while stack:
        value = stack[-1]
        if id(value) in done:
            stack.pop()
            continue
        pending = [arg for arg in value.args if id(arg) not in done]
        if pending:
            stack += pending
            continue
        stack.pop()
        done[id(value)] = better(rebuilt(value, lambda arg: done[id(arg)]))
    return done


def operands(values: Iterable[Value], *ops: str) -> Iterator[Value]:
    """Yield ``values``, with each operation in ``ops`` replaced by its arguments, at any depth."""
    waiting = [*values][::-1]
    while waiting:
        value = waiting.pop()
        if value.op in ops:
            waiting += reversed(value.args)
        else:
            yield value


def joined(op: str, parts: Iterable[Value]) -> Value:
    """Return ``parts`` (at least one) joined by the binary operation ``op``, from the left."""
    return functools.reduce(lambda left, right: Value(op, (left, right)), parts)


def walk(values: Iterable[Value]) -> Iterator[Value]:
    """Yield every operation in ``values`` once, before its arguments, left to right."""
    seen: set[int] = set()
    stack = [*values][::-1]
    while stack:
        value = stack.pop()
        if id(value) not in seen:
            seen.add(id(value))
            stack += reversed(value.args)
            yield value


def canonical(value: Value, memo: dict[int, Value]) -> Value:
    """Return a normal form: equal for values that certainly give equal bits.

    ``a > b`` becomes ``b < a``; arguments of commutative operations are sorted by digest. No float
    is re-associated and no comparison negated, since that would change results for NaN.
    """
    found = memo.get(id(value))
    if found is None:
        args = tuple(canonical(arg, memo) for arg in value.args)
        op = value.op
        if op in MIRRORED:
            op, args = MIRRORED[op], args[::-1]
        elif op in COMMUTATIVE:
            args = tuple(sorted(args, key=lambda a: a.digest))
        same = op == value.op and all(a is b for a, b in zip(args, value.args, strict=True))
        found = value if same else Value(op, args, value.params)
        memo[id(value)] = found
    return found


def value_text(value: Value) -> str:
    """Return the value as a user would write it, shortened to at most 160 characters."""
    text = _value_text(value, 6)
    return text if len(text) <= 160 else text[:157] + "..."


def _value_text(value: Value, depth: int) -> str:
    if value.op in LEAVES:
        return LEAVES[value.op](*value.params)
    if depth == 0:
        return "..."
    args = [_value_text(arg, depth - 1) for arg in value.args]
    if value.op in INFIX:
        return f"({args[0]} {INFIX[value.op]} {args[1]})"
    if value.op in PREFIX:
        return f"{PREFIX[value.op]}{args[0]}"
    shown = value.params[: _unusual(value.op, value.params)]
    params = [str(p) if not isinstance(p, str) else repr(p) for p in shown if p is not None]
    if value.op == "udf":
        return f"{value.params[0].name}({', '.join(args)})"
    if "." in value.op:
        return f"{args[0]}.{value.op.removeprefix('.')}({', '.join([*args[1:], *params])})"
    return f"{value.op}({', '.join([*args, *params])})"


def _unusual(op: str, params: tuple[Any, ...]) -> int:
    """Return the number of parameters of a function up to the last that the user gave."""
    if "." not in op:
        return len(params)
    from dml.kernels.functions.table import function_of  # noqa: PLC0415 - few columns use any

    function, count = function_of(op), len(params)
    for usual in reversed(() if function is None else function.usual):
        if params[count - 1] != usual:
            break
        count -= 1
    return count


def _several(kinds: tuple[Any, ...] | None, left: tuple[str, ...]) -> str:
    """Return a selection as a user writes it: columns of ``kinds`` (None: all) except ``left``."""
    words = "" if kinds is None else ", ".join(repr(str(kind)) for kind in kinds)
    chosen = "all_columns()" if kinds is None else f"columns_of({words})"
    return f"{chosen}.exclude({', '.join(map(repr, left))})" if left else chosen


LEAVES: dict[str, Callable[..., str]] = {
    "col": str,
    "lit": lambda value, _kind: repr(value),
    "columns": _several,
}
