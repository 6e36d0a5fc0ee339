"""Compare lifted functions with Python, on rows made to break them."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from dml.data.schema import Schema
from dml.expr.columns.typing import lower
from dml.kernels import interpreter
from dml.kernels.vec import Vec
from dml.udfs.lifting.lifter import Lifted

Row = dict[str, Any]
SCHEMA = Schema(
    {
        "a": pa.float64(), "b": pa.float64(), "c": pa.int64(), "n": pa.int64(), "d": pa.int32(),
        "e": pa.float32(), "p": pa.bool_(), "s": pa.string(),
    }
)  # fmt: skip
FLOATS = [
    0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 3.5, -2.5, 1e308, -1e308, math.inf, -math.inf, math.nan, 5e-324,
    2.0**53, 2.0**63, -(2.0**63), 1e16, 0.1, 7.3, -7.3, 123456.789,
]  # fmt: skip
INTS = [
    0, 1, -1, 2, 3, 7, -7, 10, 2**31, 2**53, 2**53 + 1, -(2**53) - 1, 2**62, 2**63 - 1, -(2**63),
    12345678901, 3037000500,
]  # fmt: skip
EDGES: dict[str, list[Any]] = {
    "a": FLOATS,
    "b": FLOATS,
    "c": INTS,
    "n": INTS,
    "d": [0, 1, -1, 2, 7, -7, 2**31 - 1, -(2**31)],
    "e": [float(np.float32(x)) for x in (0.0, -0.0, 1.5, 3e38, math.inf, math.nan, 0.1, 1e-45)],
    "p": [True, False],
    "s": [
        *(
            "",
            "a",
            "b",
            "ab",
            "é",
            "z",
            "\U0001f600",
            "\uffff",
            " 7 ",
            "1_0",
            "-3.5",
            "nan",
            "1e999",
        ),
        *("\x1cA\x85", "straße", "İ", "Σ", "9" * 30, "a b\x00a", "٣", "²"),
    ],
}


def drawn(seed: int, n: int, *, nulls: bool) -> list[Row]:
    rng = random.Random(seed)
    return [
        {
            name: None if nulls and rng.random() < 0.15 else rng.choice(values)
            for name, values in EDGES.items()
        }
        for _ in range(n)
    ]


def column(name: str, rows: list[Row]) -> Any:
    kind, values = SCHEMA[name], [row[name] for row in rows]
    if kind == pa.string():
        return pa.array(values, kind)
    valid = np.array([value is not None for value in values])
    filled = np.array([0 if value is None else value for value in values], kind.to_pandas_dtype())
    return Vec(filled, None if valid.all() else valid)


def computed(lifted: Lifted, rows: list[Row]) -> tuple[bool, list[tuple[Any, ...]]]:
    """Whether a check failed, and the results of ``rows``."""
    wanted = [value for _, value in lifted.columns or ()]
    wanted += [lifted.predicate] if lifted.predicate is not None else []
    lowered = lower(wanted, SCHEMA, lifted.checks)
    given = [column(value.params[0], rows) for value in lowered.inputs]
    result = interpreter.run(lowered.program, given, len(rows))
    return result.failed, list(
        zip(*(listed(out, len(rows)) for out in result.outputs), strict=True)
    )


def listed(out: Any, n: int) -> list[Any]:
    if not isinstance(out, Vec):
        return list(out.to_pylist())
    valid = np.broadcast_to(True if out.valid is None else out.valid, (n,))
    values = np.broadcast_to(out.values, (n,)).tolist()
    return [value if ok else None for value, ok in zip(values, valid.tolist(), strict=True)]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("d", one) == struct.pack("d", other) or (
            math.isnan(one) and math.isnan(other)
        )
    return type(one) is type(other) and bool(one == other)


def agrees(fn: Callable[[Row], Any], lifted: Lifted, row: Row) -> bool | None:
    """Whether Python gives the same for a row inside the proof; None for a row outside."""
    failed, out = computed(lifted, [row])
    if failed:
        return None
    result = fn(dict(row))
    expected = tuple(result.values()) if isinstance(result, dict) else (result,)
    return len(expected) == len(out[0]) and all(map(same, expected, out[0]))
