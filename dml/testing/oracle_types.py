"""The oracle infers the types of expressions: NumPy's promotion and weak literals, written out.

The rules are independent of the engine's. ``typed`` turns an expression into a tree in which every
operation has operands of one type, so that it can be computed on the values of a row.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dml.base.open_tensors import OpenTensor
from dml.data.list_marks import plain
from dml.errors import SchemaError
from dml.expr.columns.value import ELEMENT, Value
from dml.kernels.math import MATH_OPS
from dml.testing.functions.meaning import Holds
from dml.testing.functions.table import MEANINGS

Kinds = Mapping[str, pa.DataType]

CODES: dict[pa.DataType, str] = {
    pa.bool_(): "b1", pa.float32(): "f4", pa.float64(): "f8",
    pa.int8(): "i1", pa.int16(): "i2", pa.int32(): "i4", pa.int64(): "i8",
    pa.uint8(): "u1", pa.uint16(): "u2", pa.uint32(): "u4", pa.uint64(): "u8",
}  # fmt: skip
KINDS = {code: kind for kind, code in CODES.items()}
LITERALS: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.datetime: pa.timestamp("us"),
    dt.date: pa.date32(),
    type(None): pa.null(),
}
TEXT = (pa.string(), pa.large_string())
BINARY = (pa.binary(), pa.large_binary())


@dataclass(frozen=True)
class Expr:
    """An operation with operands of the right types; ``kind`` is the type of its result.

    ``weak`` marks a bare literal, which takes the type of the other operands.
    """

    op: str
    args: tuple[Expr, ...]
    kind: pa.DataType
    params: tuple[Any, ...] = ()
    weak: bool = False


def code(kind: pa.DataType) -> str:
    """Return two letters for numbers, booleans and tensors of them, "arrow" for other types."""
    if isinstance(kind, pa.FixedShapeTensorType):
        kind = kind.value_type
    return CODES.get(kind, "arrow")


def shape(kind: pa.DataType) -> tuple[int, ...]:
    """Return the shape of a tensor type, () for any other type."""
    return tuple(kind.shape) if isinstance(kind, pa.FixedShapeTensorType) else ()


def of_code(letters: str, dims: tuple[int, ...] = ()) -> pa.DataType:
    """Return the type with a code and an element shape."""
    return pa.fixed_shape_tensor(KINDS[letters], dims) if dims else KINDS[letters]


def typed(value: Value, columns: Kinds) -> Expr:
    """Infer every type of ``value`` over ``columns``; SchemaError where there is none."""
    return _strong(_typed(value, columns))


def _typed(value: Value, columns: Kinds) -> Expr:
    return RULES.get(value.op, _function)(value, columns)


def _strong(expr: Expr) -> Expr:
    return _as(expr, expr.kind) if expr.weak else expr


def _args(value: Value, columns: Kinds) -> list[Expr]:
    return [_typed(arg, columns) for arg in value.args]


def _as(expr: Expr, kind: pa.DataType) -> Expr:
    """Convert ``expr`` to ``kind``: a literal takes the type, any other expression is cast."""
    if expr.weak or pa.types.is_null(expr.kind):
        value = expr.params[0] if expr.weak else None
        return Expr("lit", (), kind, (_literal_in(value, kind),))
    return expr if expr.kind == kind else Expr("cast", (expr,), kind, (False,))


def _literal_in(value: Any, kind: pa.DataType) -> Any:
    letters = code(kind)
    if value is None:
        return None
    if letters[0] in "iu" and not isinstance(value, float):
        bits = 8 * int(letters[1])
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if letters[0] == "i" else (0, 2**bits)
        if not low <= value < high:
            raise SchemaError(f"{value} is no {kind}")
        return int(value)
    if letters in ("f4", "f8"):
        return float(value)
    return bool(value) if letters == "b1" else value


# --------------------------------------------------------------------------------- common types


def _joined(value: Value, args: Sequence[Expr]) -> list[Expr]:
    kind = _common(value, args)
    return [_as(arg, kind) for arg in args]


def _common(value: Value, args: Sequence[Expr]) -> pa.DataType:
    """Return the common type: of columns first, then of literals; nulls fit every type."""
    known = [arg for arg in args if not pa.types.is_null(arg.kind)]
    columns = [arg.kind for arg in known if not arg.weak]
    literals = [arg.kind for arg in known if arg.weak]
    if not columns:
        columns, literals = literals, []
    kind = columns[0] if columns else pa.null()
    for other in columns[1:]:
        kind = _wider(value, kind, other)
    for other in literals:
        kind = _met(value, kind, other)
    return kind


def _wider(value: Value, a: pa.DataType, b: pa.DataType) -> pa.DataType:
    if a == b:
        return a
    one, two = code(a), code(b)
    if "arrow" in (one, two) or shape(a) != shape(b):
        raise _clash(value, a, b)
    found = promoted(one, two)
    if found is None:
        raise _clash(value, a, b)
    return of_code(found, shape(a))


def promoted(one: str, two: str) -> str | None:
    """NumPy's result type of two codes; None for u8 with a signed integer, where it would be f8."""
    if one == two:
        return one
    if "b1" in (one, two):
        return two if one == "b1" else one
    (k, a), (m, b) = sorted([(one[0], int(one[1])), (two[0], int(two[1]))])
    if k == m:
        return f"{k}{max(a, b)}"
    if (k, m) == ("i", "u"):
        width = max(a, 2 * b)
        return f"i{width}" if width <= 8 else None
    # a float and an integer: float32 holds 16 bits exactly
    return "f4" if a == 4 and b <= 2 else "f8"


def _met(value: Value, column: pa.DataType, literal: pa.DataType) -> pa.DataType:
    """Return the type of a column with a bare literal: the column's, unless its kind is lesser."""
    order = "bif"
    a, b = code(column)[0].replace("u", "i"), code(literal)[0]
    if a in order and b in order:
        wide = order.index(b) <= order.index(a)
        return column if wide else of_code(code(literal), shape(column))
    if a not in order and (column == literal or _alike(column, literal)):
        return column
    raise _clash(value, column, literal)


def _alike(a: pa.DataType, b: pa.DataType) -> bool:
    dated = all(pa.types.is_timestamp(k) or pa.types.is_date(k) for k in (a, b))
    return dated or all(k in TEXT for k in (a, b)) or all(k in BINARY for k in (a, b))


def _clash(value: Value, a: pa.DataType, b: pa.DataType) -> SchemaError:
    return SchemaError(f"{value!r}: {a} and {b} have no common type")


def _require(expr: Expr, letters: str, value: Value) -> Expr:
    if code(expr.kind)[0] not in letters or code(expr.kind) == "arrow":
        raise SchemaError(f"{value!r} cannot take {expr.kind}")
    return expr


def _scalar(expr: Expr, value: Value) -> Expr:
    if shape(expr.kind):
        raise SchemaError(f"{value!r} cannot take tensors")
    return expr


def _plain(expr: Expr, value: Value) -> Expr:
    if pa.types.is_nested(plain(expr.kind)):
        raise SchemaError(f"{value!r} cannot take {expr.kind}")
    return _scalar(expr, value)


# ----------------------------------------------------------------------------------------- rules


def _col(value: Value, columns: Kinds) -> Expr:
    if value.params[0] not in columns:
        raise SchemaError(f"no column {value.params[0]!r}")
    return Expr("col", (), columns[value.params[0]], value.params)


def _lit(value: Value, _columns: Kinds) -> Expr:
    given, kind = value.params
    if kind is not None:
        return Expr("lit", (), kind, (_literal_in(given, kind),))
    if type(given) not in LITERALS:
        raise SchemaError(f"{given!r} is no literal")
    return Expr("lit", (), LITERALS[type(given)], (given,), weak=True)


def _draw(value: Value, _columns: Kinds) -> Expr:
    return Expr("random", (), pa.float64(), value.params)


def _row_id(value: Value, _columns: Kinds) -> Expr:
    return Expr("row_id", (), pa.binary(16) if value.params[0] else pa.uint64(), value.params)


def _arithmetic(value: Value, columns: Kinds) -> Expr:
    args = _joined(value, _args(value, columns))
    _require(args[0], "iuf", value)
    return Expr(value.op, tuple(args), args[0].kind, value.params)


def _truediv(value: Value, columns: Kinds) -> Expr:
    args = _args(value, columns)
    common = _common(value, args)
    _require(Expr("", (), common), "iuf", value)
    columns_given = [arg for arg in args if not arg.weak]
    single = bool(columns_given) and all(code(arg.kind) == "f4" for arg in columns_given)
    kind = of_code("f4" if single else "f8", shape(common))
    return Expr("truediv", tuple(_as(arg, kind) for arg in args), kind)


def _bits(value: Value, columns: Kinds) -> Expr:
    args = _joined(value, _args(value, columns))
    logic = {"bit_and": "and", "bit_or": "or", "bit_xor": "ne", "bit_not": "not"}
    if code(args[0].kind) == "b1" and value.op in logic:
        return Expr(logic[value.op], tuple(args), pa.bool_())
    _require(args[0], "iu", value)
    return Expr(value.op, tuple(args), args[0].kind)


def _comparison(value: Value, columns: Kinds) -> Expr:
    args = _joined(value, _args(value, columns))
    return Expr(value.op, tuple(_plain(arg, value) for arg in args), pa.bool_())


def _logic(value: Value, columns: Kinds) -> Expr:
    args = [_require(_strong(arg), "b", value) for arg in _args(value, columns)]
    return Expr(value.op, tuple(args), pa.bool_())


def _is_null(value: Value, columns: Kinds) -> Expr:
    return Expr("is_null", (_strong(_typed(value.args[0], columns)),), pa.bool_())


def _is_nan(value: Value, columns: Kinds) -> Expr:
    arg = _scalar(_require(_strong(_typed(value.args[0], columns)), "f", value), value)
    return Expr("is_nan", (arg,), pa.bool_())


def _fill(value: Value, columns: Kinds) -> Expr:
    args = _joined(value, _args(value, columns))
    if value.op == "fill_nan":
        _require(args[0], "f", value)
    return Expr(value.op, tuple(args), args[0].kind)


def _if_else(value: Value, columns: Kinds) -> Expr:
    condition, *rest = _args(value, columns)
    condition = _require(_strong(condition), "b", value)
    args = _joined(value, rest)
    return Expr("if_else", (condition, *args), args[0].kind)


def _math(value: Value, columns: Kinds) -> Expr:
    arg = _require(_strong(_typed(value.args[0], columns)), "iuf", value)
    whole = value.op in ("floor", "ceil", "trunc", "round")
    if not whole and code(arg.kind) not in ("f4", "f8"):
        arg = _as(arg, of_code("f8", shape(arg.kind)))
    return Expr(value.op, (arg,), arg.kind, value.params)


def _cast(value: Value, columns: Kinds) -> Expr:
    kind, strict = value.params
    arg = _strong(_typed(value.args[0], columns))
    if kind in CODES:
        kind = of_code(code(kind), shape(arg.kind))
    if arg.kind == kind or pa.types.is_null(arg.kind):
        return _as(arg, kind)
    if isinstance(kind, OpenTensor) and kind.covers(shape(arg.kind)):
        return Expr("cast", (_as(arg, of_code(code(kind.value_type), shape(arg.kind))),), kind, ())
    if arg.kind in TEXT and code(kind)[0] in "iuf":
        parser = "str.to_float" if code(kind)[0] == "f" else "str.to_integer"
        return _cast(Value("cast", (Value(parser, value.args, (strict,)),), value.params), columns)
    pairs = ((TEXT, BINARY), (BINARY, TEXT))
    coded = any(arg.kind in given and kind in wanted for given, wanted in pairs)
    plain = (code(arg.kind) != "arrow" and not shape(arg.kind)) or arg.kind == pa.date32()
    coded |= plain and kind in TEXT
    if "arrow" in (code(arg.kind), code(kind)) and not (coded or _alike(arg.kind, kind)):
        raise SchemaError(f"{value!r}: {arg.kind} does not convert to {kind}")
    return Expr("cast", (arg,), kind, (strict,))


def _hash(value: Value, columns: Kinds) -> Expr:
    arg = _plain(_strong(_typed(value.args[0], columns)), value)
    return Expr("hash", (arg,), pa.uint64(), value.params)


def _bucketize(value: Value, columns: Kinds) -> Expr:
    arg = _scalar(_require(_strong(_typed(value.args[0], columns)), "iuf", value), value)
    floats = code(arg.kind) in ("f4", "f8")
    edges = tuple(float(edge) if floats else edge for edge in value.params[0])
    return Expr("bucketize", (arg,), pa.int64(), (edges,))


def _is_in(value: Value, columns: Kinds) -> Expr:
    arg = _plain(_strong(_typed(value.args[0], columns)), value)
    if pa.types.is_null(arg.kind):
        return _as(arg, pa.bool_())
    wanted = []
    for given in value.params:
        if given is None or type(given) not in LITERALS:
            raise SchemaError(f"is_in cannot look for {given!r}")
        wanted.append(_literal_in(given, _met(value, arg.kind, LITERALS[type(given)])))
    if code(arg.kind)[0] in "iu" and any(isinstance(given, float) for given in wanted):
        arg = _as(arg, pa.float64())
    return Expr("is_in", (arg,), pa.bool_(), (tuple(wanted),))


def _stack(value: Value, columns: Kinds) -> Expr:
    args = _joined(value, _args(value, columns))
    letters = code(_scalar(_require(args[0], "iufb", value), value).kind)
    return Expr("stack", tuple(args), of_code(letters, (len(args),)))


def _function(value: Value, columns: Kinds) -> Expr:
    meaning = MEANINGS.get(value.op)
    if meaning is None:
        raise SchemaError(f"the oracle knows no operation {value.op}")
    first, *others = _args(value, columns)
    first = _strong(first)
    if pa.types.is_null(first.kind) and meaning.null_as is not None:
        first = _as(first, meaning.null_as)
    kind = plain(first.kind)
    if not meaning.takes(kind):
        raise SchemaError(f"{value!r} cannot take {first.kind}")
    if meaning.rest is not None:
        wanted = meaning.rest(kind)
        each = wanted if isinstance(wanted, tuple) else (wanted,) * len(others)
        others = [_beside(value, *pair) for pair in zip(others, each, strict=False)]
    params = meaning.settled(kind, value.params)
    if value.op == "list.eval":  # an expression of the elements
        params = (typed(params[0], {ELEMENT: kind.value_type}),)
    return Expr(value.op, (first, *others), meaning.gives(kind, params), params)


def _beside(value: Value, expr: Expr, wanted: pa.DataType | Holds) -> Expr:
    """Convert a further argument of a function to the type that the first argument requires."""
    if not isinstance(wanted, pa.DataType):
        expr = _strong(expr)
        if not wanted(plain(expr.kind)):
            raise SchemaError(f"{value!r} cannot take {expr.kind}")
        return expr
    null = pa.types.is_null(expr.kind)
    literal = expr.weak and not null and _met(value, wanted, expr.kind) == wanted
    if not (null or literal or expr.kind == wanted or _alike(expr.kind, wanted)):
        raise _clash(value, expr.kind, wanted)
    return _as(expr, wanted)


RULES: dict[str, Callable[[Value, Kinds], Expr]] = {
    "col": _col,
    "lit": _lit,
    "random": _draw,
    "row_id": _row_id,
    **dict.fromkeys(("add", "sub", "mul", "floordiv", "mod", "minimum", "maximum"), _arithmetic),
    **dict.fromkeys(("neg", "abs"), _arithmetic),
    "truediv": _truediv,
    **dict.fromkeys(("bit_and", "bit_or", "bit_xor", "bit_not"), _bits),
    **dict.fromkeys(("shift_left", "shift_right"), _bits),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _comparison),
    **dict.fromkeys(("and", "or", "not"), _logic),
    "is_null": _is_null,
    "is_nan": _is_nan,
    **dict.fromkeys(("fill_null", "fill_nan"), _fill),
    "if_else": _if_else,
    **dict.fromkeys((*MATH_OPS, "sqrt", "floor", "ceil", "trunc", "round"), _math),
    "cast": _cast,
    "hash": _hash,
    "bucketize": _bucketize,
    "is_in": _is_in,
    "stack": _stack,
}
