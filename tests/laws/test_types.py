"""Law: the engine infers the expression types of the oracle, and rejects the same expressions."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dml.data.schema import Schema
from dml.errors import DmlError, SchemaError
from dml.expr.columns.typing import type_of
from dml.expr.columns.value import Value
from dml.testing.oracle_types import typed
from dml.testing.strategies_data import columns
from dml.testing.strategies_expressions import Expressions

BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "minimum", "maximum", "eq", "lt", "and"),
    *("bit_and", "bit_xor", "shift_left", "fill_null", "fill_nan", "stack", "or"),
)
UNARY = ("neg", "abs", "not", "bit_not", "is_null", "is_nan", "sqrt", "exp", "floor")
LITERALS = (1, -1, 300, 2**40, True, 0.5, None, "a", b"a", 2**63 - 1)
TYPES = (pa.int8(), pa.uint64(), pa.float32(), pa.bool_(), pa.string())


def wild(draw: random.Random, kinds: dict[str, pa.DataType], depth: int) -> Value:
    """Any tree of operations, most of which have no type."""
    if depth == 0 or draw.random() < 0.2:
        name = Value("col", (), (draw.choice(list(kinds)),))
        return draw.choice([name, name, Value("lit", (), (draw.choice(LITERALS), None))])
    a, b, c = (wild(draw, kinds, depth - 1) for _ in "abc")
    match draw.choice(["binary", "binary", "binary", "unary", "if", "cast", "in", "other"]):
        case "binary":
            return Value(draw.choice(BINARY), (a, b))
        case "unary":
            return Value(draw.choice(UNARY), (a,))
        case "if":
            return Value("if_else", (a, b, c))
        case "cast":
            return Value("cast", (a,), (draw.choice(TYPES), draw.random() < 0.5))
        case "in":
            return Value("is_in", (a,), tuple(draw.sample(LITERALS, 2)))
    hashed, bucketed = Value("hash", (a,), (0,)), Value("bucketize", (a,), ((0.0, 1.0),))
    return draw.choice([hashed, bucketed, Value("round", (a,), (draw.choice([0, -1]),))])


def said(kind_of: Callable[..., Any], *given: Any) -> Any:
    """The type, or that there is none."""
    try:
        return kind_of(*given)
    except SchemaError:
        return "refused"


def test_types_and_refusals_are_the_oracles(many: Callable[[int, int], int]) -> None:
    refused = 0
    for number in range(many(3000, 50_000)):
        draw = random.Random(number)
        kinds = columns(draw)
        value = wild(draw, kinds, draw.choice([1, 1, 2, 3]))
        wanted = said(lambda *given: typed(*given).kind, value, kinds)
        found = said(type_of, value, Schema(kinds))
        assert found == wanted, (value, kinds)
        refused += wanted == "refused"
    assert 0.1 < refused / number < 0.9


def test_what_the_generator_draws_has_types_most_of_the_time() -> None:
    draw, kinds = random.Random(0), columns(random.Random(1))
    good = 0
    for _ in range(300):
        try:
            typed(Expressions(draw, kinds).any().value, kinds)
            good += 1
        except DmlError:
            continue
    assert good > 200
