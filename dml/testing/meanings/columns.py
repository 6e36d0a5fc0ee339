"""The oracle computes the operators of columns, and ``filter`` by an expression."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from dml.errors import SchemaError
from dml.expr.columns.column import Column, col
from dml.expr.columns.placeholder_columns import all_columns, columns_of, row_id
from dml.expr.columns.value import Value
from dml.expr.columns.value import col as column
from dml.expr.node import Node
from dml.ops.row.cast import Cast
from dml.ops.row.drop import Drop
from dml.ops.row.fill_null import FillNull
from dml.ops.row.filter import Filter
from dml.ops.row.rename import Rename
from dml.ops.row.select import Select
from dml.ops.row.unnest import Unnest
from dml.ops.row.with_columns import WithColumns
from dml.testing.draws import Draw, Drawn
from dml.testing.meaning import OperatorMeaning, OperatorUse, OracleRun, TypedRow, Units
from dml.testing.oracle_rows import Kinds
from dml.testing.oracle_steps import has_random
from dml.testing.oracle_types import Expr, code, shape, typed
from dml.testing.oracle_values import Draws, value_of

# The output columns of a column operator, as expressions over the input's columns.
Written = Callable[[Any, Kinds], dict[str, Value]]


def columns(written: Written) -> Callable[[OracleRun, Any, int, Units], Iterator[Any]]:
    """Return the stream of a column operator: ``written`` gives the new columns of every row."""

    def stream(oracle: OracleRun, node: Any, epoch: int, units: Units) -> Iterator[Any]:
        for element in oracle.stream(node.input, epoch, units):
            if isinstance(element, list):
                yield [_computed(oracle, node, written, one, epoch) for one in element]
            else:
                yield _computed(oracle, node, written, element, epoch)

    return stream


def _computed(
    oracle: OracleRun, node: Node, written: Written, one: TypedRow, epoch: int
) -> TypedRow:
    exprs, kinds = _exprs(oracle, node, written, one.kinds)
    values = {}
    for place, (name, expr) in enumerate(exprs.items()):
        draws = Draws(oracle.ordinal(node), place, epoch, oracle.seed)
        values[name] = value_of(expr, one.row.values, one.row.id, draws)
    return one.made(values, kinds)


def _exprs(
    oracle: OracleRun, node: Any, written: Written, given: Kinds
) -> tuple[dict[str, Expr], Kinds]:
    """Return the output columns of ``node`` over the ``given`` columns, and their types."""
    key = (id(node), id(given))
    if key not in oracle.exprs:
        exprs = {name: typed(v, given) for name, v in written(node, given).items()}
        kinds = {name: expr.kind for name, expr in exprs.items()}
        oracle.exprs[key] = (given, (exprs, kinds))
    found: tuple[dict[str, Expr], Kinds] = oracle.exprs[key][1]
    return found


def _known(names: Iterable[str], given: Kinds) -> dict[str, Value]:
    """Return columns of the input by name; SchemaError where a name is missing."""
    found = {name: column(name) for name in names}
    for name in found:
        if name not in given:
            raise SchemaError(f"there is no column {name!r}")
    return found


def _selected(node: Select, given: Kinds) -> dict[str, Value]:
    return _known(node.names, given)


def _with_columns(node: WithColumns, given: Kinds) -> dict[str, Value]:
    return {**_known(given, given), **dict(node.values)}


def _dropped(node: Drop, given: Kinds) -> dict[str, Value]:
    dropped = _known(node.names, given)
    kept = {name: value for name, value in _known(given, given).items() if name not in dropped}
    if not kept:
        raise SchemaError("drop leaves no column")
    return kept


def _renamed(node: Rename, given: Kinds) -> dict[str, Value]:
    new = dict(node.names)
    _known(new, given)
    names = [new.get(name, name) for name in given]
    if len(set(names)) < len(names):
        raise SchemaError("rename gives two columns one name")
    return dict(zip(names, _known(given, given).values(), strict=True))


def _cast(node: Cast, given: Kinds) -> dict[str, Value]:
    old = _known((name for name, _ in node.kinds), given)
    cast = {name: Value("cast", (old[name],), (kind, node.strict)) for name, kind in node.kinds}
    return {**_known(given, given), **cast}


def _filled(node: FillNull, given: Kinds) -> dict[str, Value]:
    old = _known((name for name, _ in node.fills), given)
    filled = {name: Value("fill_null", (old[name], fill)) for name, fill in node.fills}
    return {**_known(given, given), **filled}


def _unnested(node: Unnest, given: Kinds) -> dict[str, Value]:
    _known(node.names, given)
    out: dict[str, Value] = {}
    for name, kind in given.items():
        fields = {name: column(name)}
        if name in node.names:
            fields = {f.name: Value("struct.field", (column(name),), (f.name,)) for f in kind}
        if set(fields) & set(out):
            raise SchemaError("unnest gives two columns one name")
        out |= fields
    return out


def filter(oracle: OracleRun, node: Filter, epoch: int, units: Units) -> Iterator[Any]:
    """Yield rows (or rows of batches) where the predicate is true; empty batches vanish."""
    for element in oracle.stream(node.input, epoch, units):
        if isinstance(element, list):
            kept = [one for one in element if _passes(oracle, node, one, epoch)]
            if kept:
                yield kept
        elif _passes(oracle, node, element, epoch):
            yield element


def _passes(oracle: OracleRun, node: Filter, one: TypedRow, epoch: int) -> bool:
    key = (id(node), id(one.kinds))
    if key not in oracle.exprs:
        expr = typed(node.predicate, one.kinds)
        if expr.kind not in (pa.bool_(), pa.null()):
            raise SchemaError(f"{node.predicate!r} is {expr.kind}, no boolean")
        oracle.exprs[key] = (one.kinds, expr)
    draws = Draws(oracle.ordinal(node), 0, epoch, oracle.seed)
    return value_of(oracle.exprs[key][1], one.row.values, one.row.id, draws) is True


def _draw_with_columns(draw: Draw, drawn: Drawn) -> None:
    values: dict[str, Column] = {}
    for _ in range(draw.choice([1, 1, 2, 3])):
        spare = [name for name in drawn.kinds if name not in ("n", "f")]
        name = draw.choice([*"ghk", *spare])
        values[name] = drawn.expressions(draw).any()
    drawn.then(drawn.dataset.with_columns(**values), {**drawn.kinds, **drawn.believed(values)})


def _draw_filter(draw: Draw, drawn: Drawn) -> None:
    predicate = drawn.expressions(draw).boolean(2)
    drawn.believed({"p": predicate})
    drawn.then(drawn.dataset.filter(predicate))


def _draw_select(draw: Draw, drawn: Drawn) -> None:
    names = [n for n in drawn.kinds if n in ("n", "f") or draw.random() < 0.6]
    draw.shuffle(names)
    names = names or list(drawn.kinds)
    drawn.then(drawn.dataset.select(*names), {n: drawn.kinds[n] for n in names})


def _draw_select_several(draw: Draw, drawn: Drawn) -> Any:
    """Select columns by type, or all but one, where the types are known."""
    if not drawn.dataset.schema.known or not drawn.functional:
        return False
    left = draw.choice([n for n in drawn.kinds if n != "n"])
    every = all_columns().exclude(left)
    both = drawn.dataset.select(every, g=col(left))
    if draw.random() < 0.5:
        both = drawn.dataset.with_columns(columns_of("floating").fill_nan(0.5), g=row_id())
    drawn.then(both)
    return None


def _draw_drop(draw: Draw, drawn: Drawn) -> Any:
    spare = [n for n in drawn.kinds if n not in ("n", "f") or draw.random() < 0.03]
    if not spare or len(drawn.kinds) < 2:
        return False
    name = draw.choice(spare)
    drawn.then(drawn.dataset.drop(name), {n: k for n, k in drawn.kinds.items() if n != name})
    return None


def _draw_rename(draw: Draw, drawn: Drawn) -> Any:
    spare = [n for n in drawn.kinds if n not in ("n", "f")]
    if not spare:
        return False
    old, new = draw.choice(spare), draw.choice("uvw")
    kinds = {new if n == old else n: kind for n, kind in drawn.kinds.items()}
    if len(kinds) < len(drawn.kinds):
        return False
    drawn.then(drawn.dataset.rename({old: new}), kinds)
    return None


def _draw_cast(draw: Draw, drawn: Drawn) -> Any:
    spare = [n for n, k in drawn.kinds.items() if n not in ("n", "f") and code(k) != "arrow"]
    if not spare:
        return False
    name, word = draw.choice(spare), draw.choice(["i1", "i4", "u2", "f4", "f8", "b1", "f8", "i8"])
    word = "string" if not shape(drawn.kinds[name]) and draw.random() < 0.1 else word
    strict = draw.random() < (0.5 if drawn.rough else 0.03)
    kinds = drawn.believed({name: col(name).cast(word, strict=strict)})
    drawn.then(drawn.dataset.cast({name: word}, strict=strict), {**drawn.kinds, **kinds})
    return None


def _draw_fill_null(draw: Draw, drawn: Drawn) -> Any:
    spare = [n for n, k in drawn.kinds.items() if code(k) != "arrow" or pa.types.is_string(k)]
    if not spare:
        return False
    name = draw.choice(spare)
    fill: Any = "x" if pa.types.is_string(drawn.kinds[name]) else draw.choice([0, 1, 0.5])
    if code(drawn.kinds[name]) == "b1":
        fill = True
    kinds = drawn.believed({name: col(name).fill_null(fill)})
    drawn.then(drawn.dataset.fill_null({name: fill}), {**drawn.kinds, **kinds})
    return None


POINT = pa.struct([("p", pa.int64()), ("q", pa.string())])


def _draw_unnest(draw: Draw, drawn: Drawn) -> Any:
    """Unnest a struct made from the row, sometimes null; the other columns are dropped."""
    if not drawn.functional:
        return False
    made = drawn.dataset.map(_pointed, schema={"n": "int64", "s": POINT, "f": "float64"})
    made = made.filter(col("n") > 3) if draw.random() < 0.3 else made
    drawn.then(made.unnest("s"))
    return None


def _pointed(row: dict[str, Any]) -> dict[str, Any]:
    point = None if row["n"] % 5 == 2 else {"p": row["n"], "q": None if row["n"] % 2 else "a"}
    return {"n": row["n"], "s": point, "f": row["f"]}


MEANINGS = (
    OperatorMeaning(Unnest, columns(_unnested), (OperatorUse("unnest", _draw_unnest),)),
    OperatorMeaning(
        WithColumns,
        columns(_with_columns),
        (OperatorUse("with_columns", _draw_with_columns, rows=3, batches=3),),
        draws=lambda node: any(has_random(value) for _, value in node.values),
    ),
    OperatorMeaning(
        Filter,
        filter,
        (OperatorUse("filter", _draw_filter, rows=2, batches=2),),
        draws=lambda node: has_random(node.predicate),
    ),
    OperatorMeaning(
        Select,
        columns(_selected),
        (
            OperatorUse("select", _draw_select, batches=1),
            OperatorUse("several columns", _draw_select_several, batches=1),
        ),
    ),
    OperatorMeaning(Drop, columns(_dropped), (OperatorUse("drop", _draw_drop, batches=1),)),
    OperatorMeaning(Rename, columns(_renamed), (OperatorUse("rename", _draw_rename, batches=1),)),
    OperatorMeaning(Cast, columns(_cast), (OperatorUse("cast", _draw_cast, batches=1),)),
    OperatorMeaning(
        FillNull,
        columns(_filled),
        (OperatorUse("fill_null", _draw_fill_null, batches=1),),
        draws=lambda node: any(has_random(value) for _, value in node.fills),
    ),
)
