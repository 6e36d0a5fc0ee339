"""Value expressions are typed here, and lowered to the flat programs of the kernels.

Types follow NumPy's promotion with weak Python literals (docs/semantics.md, "Values"): a bare
literal adopts the type of the other operand, an integer column with a float literal becomes
float64, and ``/`` gives float64, or float32 if both operands are float32. Operands are cast to one
type here, so kernels never promote.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from dml.base.cached_property import cached_property
from dml.base.open_tensors import OpenTensor
from dml.data.list_marks import plain
from dml.data.schema import CODES, Schema, code_of, shape_of, short, tensor
from dml.errors import SchemaError
from dml.expr.columns.promotion import (
    TypedRegister,
    castable,
    common_type,
    comparable,
    conversion,
    fitting,
    natural,
    parsing,
    rank_of,
    same_family,
    with_literal,
)
from dml.expr.columns.value import ELEMENT, KEYED, Value, value_text
from dml.kernels.functions.function import Function, Kinds, is_bytes, is_text
from dml.kernels.functions.table import function_of
from dml.kernels.program import Program, Step

FLOATS = ("f4", "f8")
COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
ROUNDED = ("floor", "ceil", "trunc", "round")
MATH = ("sqrt", "exp", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tanh", "sigmoid")

# Operations that are no function of a row: the error, its reason, and what to write instead.
MISPLACED = {
    "columns": (
        "stands for several columns, and one is needed",
        "only select and with_columns take them, without a name",
        ".with_columns(dml.all_columns() * 2)",
    ),
    "udf": (
        "calls your function, and cannot stand here",
        "only with_columns and select call functions, once for each row",
        ".with_columns(z=...) before, and then col('z')",
    ),
    "aggregate": (
        "is not computed from a row",
        "aggregates are figures of many rows",
        '.agg(total=col("x").sum()), or .group_by("key").agg(...)',
    ),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Lowered:
    """A program over ``inputs`` (columns and draws), with one output per value, of ``types``."""

    program: Program
    inputs: tuple[Value, ...]
    types: tuple[pa.DataType, ...]

    @cached_property
    def tensors(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The indices of outputs that are tensors, with the shapes of their elements."""
        shapes = ((i, shape_of(kind)) for i, kind in enumerate(self.types))
        return tuple((i, shape) for i, shape in shapes if shape)


def _with_chains(program: Program) -> Program:
    """Return ``program`` with consecutive functions of text, images or sounds as one step."""
    if not any(step.op.startswith(("str.", "image.", "audio.")) for step in program.steps):
        return program
    from dml.kernels.functions.chains import chained  # noqa: PLC0415 most programs have neither

    return chained(program)


def lower(
    values: Sequence[Value], schema: Schema, checks: Sequence[Value] = (), keep: Value | None = None
) -> Lowered:
    """Type ``values`` over columns of ``schema``, and flatten them; equal parts are computed once.

    Each of ``checks`` is a boolean output that must be false. With ``keep``, only rows in which it
    is true are computed. Raise SchemaError for missing columns and operands of no common type.
    """
    work = _Lowering(schema)
    outputs = [work.strong(value) for value in values]
    flags = tuple(work.strong(value).register for value in checks)
    kept = None if keep is None else work.strong(keep).register
    shift = len(work.inputs)
    place = {i: n for n, i in enumerate(work.input_at)}

    def moved(register: int) -> int:
        return place[register] if register in place else register + shift - work.before[register]

    steps = tuple(Step(s.op, tuple(moved(a) for a in s.args), s.code, s.params) for s in work.steps)
    codes = tuple(code_of(kind) for kind in work.input_types)
    out, checked = (tuple(map(moved, each)) for each in ((o.register for o in outputs), flags))
    program = Program(codes, steps, out, checked, None if kept is None else moved(kept))
    return Lowered(_with_chains(program), tuple(work.inputs), tuple(o.kind for o in outputs))


def type_of(value: Value, schema: Schema) -> pa.DataType:
    """Return the Arrow type of ``value`` over columns of ``schema``, or raise SchemaError."""
    return lower([value], schema).types[0]


class _Lowering:
    """One pass over a set of values, which numbers registers in order of first use."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.steps: list[Step] = []
        self.inputs: list[Value] = []
        self.input_types: list[pa.DataType] = []
        self.input_at: list[int] = []
        self.before: list[int] = []  # per register: the number of inputs numbered before it
        self.memo: dict[bytes, TypedRegister] = {}

    def strong(self, value: Value) -> TypedRegister:
        """Return the typed register of ``value``; a bare literal takes its default type."""
        typed = self.typed(value)
        return self.settle(typed, typed.kind) if typed.is_weak else typed

    def typed(self, value: Value) -> TypedRegister:
        """Return the typed register of ``value``, or a weak literal without a register."""
        found = self.memo.get(value.digest)
        if found is None:
            found = HANDLERS.get(value.op, _function)(self, value)
            self.memo[value.digest] = found
        return found

    def input(self, value: Value, kind: pa.DataType) -> TypedRegister:
        """Return a new register; the operator fills it with ``value`` before the program runs."""
        register = self._number()
        self.inputs.append(value)
        self.input_types.append(kind)
        self.input_at.append(register)
        return TypedRegister(register, kind)

    def emit(
        self,
        op: str,
        args: Sequence[TypedRegister],
        kind: pa.DataType,
        params: tuple[Any, ...] = (),
    ) -> TypedRegister:
        """Append a step; return the register of its result, of type ``kind``."""
        step = Step(op, tuple(a.register for a in args), code_of(kind), params)
        self.steps.append(step)
        return TypedRegister(self._number(), kind)

    def _number(self) -> int:
        self.before.append(len(self.inputs))
        return len(self.before) - 1

    def settle(self, typed: TypedRegister, kind: pa.DataType) -> TypedRegister:
        """Return ``typed`` as ``kind``: a literal is created in this type, a register is cast."""
        if typed.is_weak:
            return self.literal(typed.weak, kind)
        if typed.kind == kind:
            return typed
        if pa.types.is_null(typed.kind):
            return self.literal(None, kind)
        return self.emit("cast", [typed], kind, (False,))

    def literal(self, given: Any, kind: pa.DataType) -> TypedRegister:
        """Return a register with the literal ``given``, or null for None, of type ``kind``."""
        value = fitting(given, kind)
        # the type code is complete for numbers; for all other types it is "arrow"
        params = (value, plain(kind)) if code_of(kind) == "arrow" else (value,)
        return self.emit("lit", (), kind, params)

    def common(self, value: Value, args: Sequence[Value]) -> list[TypedRegister]:
        """Return ``args`` of ``value`` in their common type; raise SchemaError if there is none."""
        typed = [self.typed(arg) for arg in args]
        kind = common_type(typed, value)
        return [self.settle(t, kind) for t in typed]


def _needs(typed: TypedRegister, codes: str, value: Value, wanted: str) -> None:
    if code_of(typed.kind)[0] not in codes or code_of(typed.kind) == "arrow":
        raise SchemaError(
            f"{value_text(value)} needs {wanted}",
            why=f"it is given {short(typed.kind)}",
            try_=_instead(typed.kind, value.op),
        )


def _instead(kind: pa.DataType, op: str) -> str:
    """Return the error's advice for an operation ``op`` that does not accept type ``kind``."""
    if op == "add" and is_text(kind):
        return ".str.concat(...) of texts"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return '.dt.epoch("us") before, which are whole numbers'
    if code_of(kind) == "arrow":
        return ".map(f) with a function of Python's values"
    return ".cast(...) before"


def _col(work: _Lowering, value: Value) -> TypedRegister:
    return work.input(value, work.schema.require(value.params[0], "the expression"))


def _lit(work: _Lowering, value: Value) -> TypedRegister:
    given, kind = value.params
    if kind is not None:
        return work.literal(given, kind)
    own = natural(given)
    if own is None:
        raise SchemaError(
            f"{given!r} cannot be a literal",
            why=f"it is a {type(given).__name__}",
            try_="a number, bool, text, bytes, date or None; .map(f) for the rest",
        )
    return TypedRegister(-1, own, given, is_weak=True)


Handler = Callable[[_Lowering, Value], TypedRegister]


def _alike(codes: str, wanted: str) -> Handler:
    """Return the handler of an operation whose operands and result all have the same type.

    ``codes`` are the first letters of allowed type codes; the error calls these ``wanted``.
    """

    def handle(work: _Lowering, value: Value) -> TypedRegister:
        args = work.common(value, value.args)
        _needs(args[0], codes, value, wanted)
        return work.emit(value.op, args, args[0].kind, value.params)

    return handle


def _truediv(work: _Lowering, value: Value) -> TypedRegister:
    typed = [work.typed(arg) for arg in value.args]
    single = all(t.is_weak or code_of(t.kind) == "f4" for t in typed)
    strong = any(not t.is_weak for t in typed)
    kind = common_type(typed, value)
    _needs(TypedRegister(-1, kind), "iuf", value, "numbers")
    result = tensor("f4" if single and strong else "f8", shape_of(kind))
    return work.emit(value.op, [work.settle(t, result) for t in typed], result)


def _bits(work: _Lowering, value: Value) -> TypedRegister:
    args = work.common(value, value.args)
    if args[0].kind == pa.bool_() and value.op in BOOLEAN_BITS:
        return work.emit(BOOLEAN_BITS[value.op], args, pa.bool_())
    _needs(args[0], "iu", value, "integers (or booleans)")
    return work.emit(value.op, args, args[0].kind)


BOOLEAN_BITS = {"bit_and": "and", "bit_or": "or", "bit_xor": "ne", "bit_not": "not"}


def _compare(work: _Lowering, value: Value) -> TypedRegister:
    args = work.common(value, value.args)
    _needs_order(args[0].kind, value)
    if pa.types.is_null(args[0].kind):
        return work.settle(args[0], pa.bool_())
    return work.emit(value.op, args, pa.bool_())


def _needs_order(kind: pa.DataType, value: Value) -> None:
    if not comparable(kind):
        raise SchemaError(
            f"{value_text(value)} compares {short(kind)}",
            why="only numbers, booleans, text, bytes and times are compared",
            try_=".map(f) with a function that compares",
        )


def _logic(work: _Lowering, value: Value) -> TypedRegister:
    args = [work.strong(arg) for arg in value.args]
    for arg in args:
        _needs(arg, "b", value, "booleans")
        _needs_order(arg.kind, value)
    return work.emit(value.op, args, pa.bool_())


def _is_null(work: _Lowering, value: Value) -> TypedRegister:
    return work.emit(value.op, [work.strong(value.args[0])], pa.bool_())


def _scalar(work: _Lowering, value: Value) -> TypedRegister:
    """Return the argument of an operation on single values; raise SchemaError for tensors."""
    arg = work.strong(value.args[0])
    _needs_single(arg.kind, value)
    return arg


def _needs_single(kind: pa.DataType, value: Value) -> None:
    if shape_of(kind):
        why, try_ = f"it is given {short(kind)}", ".map(f) with a function of arrays"
        raise SchemaError(f"{value_text(value)} needs single values", why=why, try_=try_)


def _is_nan(work: _Lowering, value: Value) -> TypedRegister:
    arg = _scalar(work, value)
    _needs(arg, "f", value, "a float")
    return work.emit(value.op, [arg], pa.bool_())


def _fill_null(work: _Lowering, value: Value) -> TypedRegister:
    args = work.common(value, value.args)
    return work.emit(value.op, args, args[0].kind)


def _if_else(work: _Lowering, value: Value) -> TypedRegister:
    condition = work.strong(value.args[0])
    _needs(condition, "b", value, "a boolean condition")
    args = work.common(value, value.args[1:])
    return work.emit(value.op, [condition, *args], args[0].kind)


def _math(work: _Lowering, value: Value) -> TypedRegister:
    arg = work.strong(value.args[0])
    _needs(arg, "iuf", value, "a number")
    to_tens = value.op == "round" and value.params[0] < 0
    if value.op in ROUNDED and code_of(arg.kind)[0] != "f" and not to_tens:
        return arg
    if code_of(arg.kind) not in FLOATS and value.op not in ROUNDED:
        arg = work.settle(arg, tensor("f8", shape_of(arg.kind)))
    return work.emit(value.op, [arg], arg.kind, value.params)


def _cast(work: _Lowering, value: Value) -> TypedRegister:
    kind, strict = value.params
    arg = work.strong(value.args[0])
    kind = tensor(code_of(kind), shape_of(arg.kind)) if kind in CODES else kind
    if arg.kind == kind:
        return arg
    if pa.types.is_null(arg.kind):
        return work.settle(arg, kind)
    if isinstance(kind, OpenTensor) and kind.covers(shape_of(arg.kind)):
        inner = tensor(code_of(kind.value_type), shape_of(arg.kind))
        if arg.kind != inner:
            arg = work.emit("cast", [arg], inner, (strict,))
        return work.emit("cast", [arg], kind, (strict, kind))
    if parser := parsing(arg.kind, kind):
        number = Value(parser, value.args, (strict,))
        return work.strong(Value("cast", (number,), value.params))
    ranks = {rank_of(arg.kind), rank_of(kind)}
    shapes = {shape_of(arg.kind), shape_of(kind)}
    if len(shapes) > 1 or ("arrow" in ranks and not castable(arg.kind, kind)):
        raise SchemaError(
            f"{value_text(value)} is not a cast that dml knows",
            why=f"from {short(arg.kind)} to {short(kind)}",
            try_=conversion(arg.kind, kind),
        )
    # the type code is complete for numbers; for all other types it is "arrow"
    params = (strict, kind) if "arrow" in ranks else (strict,)
    return work.emit("cast", [arg], kind, params)


def _hash(work: _Lowering, value: Value) -> TypedRegister:
    arg = _scalar(work, value)
    if pa.types.is_null(arg.kind):
        return work.settle(arg, pa.uint64())
    if not comparable(arg.kind) or pa.types.is_decimal(arg.kind):
        raise SchemaError(
            f"{value_text(value)} of {short(arg.kind)}",
            why="numbers, booleans, text, bytes and times have hashes",
            try_=".map(f) with a function that hashes",
        )
    return work.emit("hash", [arg], pa.uint64(), value.params)


def _bucketize(work: _Lowering, value: Value) -> TypedRegister:
    arg = _scalar(work, value)
    _needs(arg, "iuf", value, "a number")
    # boundaries stay integers if the column is: beyond 2**53 a float would move them
    floats = code_of(arg.kind) in FLOATS
    edges = tuple(fitting(edge, pa.float64()) if floats else edge for edge in value.params[0])
    return work.emit("bucketize", [arg], pa.int64(), (edges,))


def _is_in(work: _Lowering, value: Value) -> TypedRegister:
    arg = _scalar(work, value)
    _needs_order(arg.kind, value)
    if pa.types.is_null(arg.kind):
        return work.settle(arg, pa.bool_())
    wanted = tuple(fitting(v, with_literal(arg.kind, _member(v), value)) for v in value.params)
    floats = any(isinstance(v, float) for v in wanted) and code_of(arg.kind)[0] in "iu"
    arg = work.settle(arg, pa.float64()) if floats else arg
    return work.emit("is_in", [arg], pa.bool_(), (wanted,))


def _member(value: Any) -> TypedRegister:
    kind = natural(value)
    if kind is None or value is None:
        raise SchemaError(
            f"is_in cannot look for {value!r}",
            why="a null equals nothing" if value is None else f"it is a {type(value).__name__}",
            try_=".is_null() | .is_in(...)" if value is None else "numbers, bools, text, dates",
        )
    return TypedRegister(-1, kind, value, is_weak=True)


def _stack(work: _Lowering, value: Value) -> TypedRegister:
    args = work.common(value, value.args)
    _needs(args[0], "iufb", value, "numbers or booleans")
    _needs_single(args[0].kind, value)
    return work.emit("stack", args, tensor(code_of(args[0].kind), (len(args),)))


def _python(work: _Lowering, value: Value) -> TypedRegister:
    """Return a step of Python's arithmetic on int64, float64 or bool (of lifted functions)."""
    args = work.common(value, value.args)
    kind = pa.float64() if value.op == "py_truediv" else args[0].kind
    if value.op.startswith("overflow"):
        kind = pa.bool_()
    return work.emit(value.op, args, kind, value.params)


def _keyed(work: _Lowering, value: Value) -> TypedRegister:
    """Return the input register of a value that is computed from row ids."""
    if value.op == "random":
        return work.input(value, pa.float64())
    return work.input(value, pa.binary(16) if value.params[0] else pa.uint64())


def _function(work: _Lowering, value: Value) -> TypedRegister:
    """Return the step of a function; raise SchemaError if its arguments have the wrong types."""
    function = function_of(value.op)
    if function is None:
        raise _no_function(value)
    first = work.strong(value.args[0])
    if pa.types.is_null(first.kind) and function.takes.null_as is not None:
        first = work.settle(first, function.takes.null_as)
    kind = plain(first.kind)
    if not function.takes.holds(kind):
        raise _unfit(function, value, kind)
    wanted = function.rest(kind) if function.rest else kind
    each = wanted if isinstance(wanted, tuple) else (wanted,) * (len(value.args) - 1)
    pairs = zip(value.args[1:], each, strict=False)  # the last ones may not be given
    rest = [_further(work, value, *pair, kind) for pair in pairs]
    params = value.params if value.op != "list.eval" else _over_elements(kind, *value.params)
    gives = function.gives(kind, params)
    return work.emit(value.op, [first, *rest], gives, _fitted(function, params, kind))


def _over_elements(kind: pa.DataType, value: Value) -> tuple[Any, ...]:
    """Return the parameters of ``list.eval``: program, type of its results, True if it may fail."""
    lowered = lower([value], Schema({ELEMENT: kind.value_type}))
    program, (found,) = lowered.program, lowered.types
    if shape_of(found) or pa.types.is_null(found):
        raise SchemaError(
            f"list.eval gives lists of {short(found)}",
            why=f"that is the type of {value_text(value)}",
            try_="an expression that gives single values or lists",
        )
    from dml.kernels.interpreter import ElementProgram  # noqa: PLC0415 - few expressions have one

    fields = (getattr(program, each.name) for each in dataclasses.fields(program))
    return ElementProgram(*fields), found, not value.total


def _fitted(function: Function, params: tuple[Any, ...], kind: pa.DataType) -> tuple[Any, ...]:
    """Return the parameters with literals converted to the column's types, or raise SchemaError."""
    if function.literals is None:
        return params
    pairs = zip(params, function.literals(kind, params), strict=True)
    return tuple(p if k is None else _all_fitting(p, k) for p, k in pairs)


def _all_fitting(values: tuple[Any, ...], kind: pa.DataType) -> tuple[Any, ...]:
    """Return ``values`` as values of ``kind``; a long vocabulary of texts is not copied."""
    if is_text(kind) and all(type(value) is str for value in values):
        return values
    return tuple(fitting(value, kind) for value in values)


def _further(
    work: _Lowering, value: Value, arg: Value, wanted: Kinds | pa.DataType, first: pa.DataType
) -> TypedRegister:
    """Return a further argument in type ``wanted``, which the first argument's type requires."""
    if isinstance(wanted, Kinds):
        strong = work.strong(arg)
        if wanted.holds(plain(strong.kind)):
            return strong
        raise SchemaError(
            f"{value_text(value)} needs {wanted.words}",
            why=f"{value_text(arg)} is {short(strong.kind)}",
            try_=f".{value.op.partition('.')[0]}.decode(...) of it"
            if is_bytes(strong.kind)
            else ".cast(...) it before",
        )
    typed = work.typed(arg)
    weak = typed.is_weak or pa.types.is_null(typed.kind)
    if not weak and typed.kind != wanted and not same_family(typed.kind, wanted):
        raise SchemaError(
            f"{value_text(value)} needs {short(wanted)} beside {short(first)}",
            why=f"{value_text(arg)} is {short(typed.kind)}",
            try_=".cast(...) it before",
        )
    return work.settle(typed, wanted)


def _no_function(value: Value) -> SchemaError:
    """Return the error for a value that is not a function of one row."""
    name = "aggregate" if value.op.endswith("_of") else value.op
    unknown = "is not an operation", "there is no function of that name", "one that dir(col) shows"
    what, why, way = MISPLACED.get(name, unknown)
    return SchemaError(f"{value_text(value)} {what}", why=why, try_=way)


def _unfit(function: Function, value: Value, kind: pa.DataType) -> SchemaError:
    words, first = function.takes.words, value_text(value.args[0])
    text_of_bytes = words == "text" and is_bytes(kind)
    listed = words == "text" and pa.types.is_list(kind) and is_text(kind.value_type)
    encoded = words.startswith("decoded") and is_bytes(kind)
    tries = {
        text_of_bytes: ".str.decode() before",
        listed: ".list.join(...) before",
        encoded: f".{function.name.partition('.')[0]}.decode() before",
    }
    return SchemaError(
        f"{function.name.removeprefix('.')} needs {words}, {first} is {short(kind)}",
        why=f"it stands in {value_text(value)}",
        try_=tries.get(True, f"a column of {words.removeprefix('a ')}, or .map(f)"),
    )


PYTHON = ("add", "sub", "mul", "neg", "abs", "floordiv", "mod", "truediv")
HANDLERS: dict[str, Handler] = {
    "col": _col,
    "lit": _lit,
    **dict.fromkeys(KEYED, _keyed),
    **dict.fromkeys(("add", "sub", "mul", "floordiv", "mod"), _alike("iuf", "numbers")),
    **dict.fromkeys(("minimum", "maximum"), _alike("iuf", "numbers")),
    **dict.fromkeys(("neg", "abs"), _alike("iuf", "a number")),
    "truediv": _truediv,
    **dict.fromkeys((*BOOLEAN_BITS, "shift_left", "shift_right"), _bits),
    **dict.fromkeys(COMPARED, _compare),
    **dict.fromkeys(("and", "or", "not"), _logic),
    "is_null": _is_null,
    "is_nan": _is_nan,
    "fill_null": _fill_null,
    "fill_nan": _alike("f", "floats"),
    "if_else": _if_else,
    **dict.fromkeys((*MATH, *ROUNDED), _math),
    "cast": _cast,
    "hash": _hash,
    "bucketize": _bucketize,
    "is_in": _is_in,
    "stack": _stack,
    **{f"{prefix}_{name}": _python for prefix in ("py", "overflow") for name in PYTHON},
}
