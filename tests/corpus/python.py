"""Run functions of the corpus in plain Python and in the engine, and count their calls."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

import dml
from dml.data.schema import Schema
from dml.errors import DmlError
from dml.udfs.lifting.lifter import Lifted, Refusal, lift
from tests.corpus.case import Case, Row

OPTIONS: dict[str, Any] = {"executor": "sync", "telemetry_dir": "off", "prefetch": 0}
INT64 = range(-(2**63), 2**63)


class OutsideArrowError(Exception):
    """Python's result is an integer that no column holds."""


def code_of(case: Case) -> types.CodeType:
    """The code that a call of the function runs."""
    fn: Any = case.fn
    fn = getattr(fn, "func", fn)
    fn = getattr(fn, "__func__", fn)
    code: Any = (fn if isinstance(fn, types.FunctionType) else type(fn).__call__).__code__
    assert isinstance(code, types.CodeType)
    return code


def one(case: Case, row: Row) -> Any:
    """What Python makes of a row: the new row, the row or None for a filter, or an exception."""
    given = dict(row)
    try:
        result = case.fn(row)
    except Exception as error:  # noqa: BLE001 - that is what is compared
        return error
    if case.keeps:
        return given if result else None
    plain = {name: as_plain(value) for name, value in result.items()}
    beyond = any(type(value) is int and value not in INT64 for value in plain.values())
    return OutsideArrowError(plain) if beyond else plain


def as_plain(value: Any) -> Any:
    """A value as rows hold it: NumPy's scalars are Python's."""
    return value.item() if isinstance(value, np.generic) else value


def same(a: Any, b: Any) -> bool:
    """Equal rows to the bit and in type; all NaNs are one."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or a.hex() == b.hex()
    return bool(a == b)


@dataclasses.dataclass
class Seen:
    """What the engine gave: rows until ``error``, and how often it called the function."""

    rows: list[Row]
    calls: int
    error: DmlError | None


@contextlib.contextmanager
def counted(code: types.CodeType, names: dict[str, Any]) -> Iterator[list[int]]:
    """Count calls of ``code`` on rows; a run on a symbolic row has other globals."""
    calls = [0]

    def look(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is code and frame.f_globals is names:
            calls[0] += 1

    sys.setprofile(look)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def pipeline(case: Case, table: pa.Table, *, optimize: bool = True) -> dml.Dataset:
    """The pipeline that a user would write."""
    given = dml.from_arrow(table).with_options(optimize=optimize, **OPTIONS)
    if case.keeps:
        return given.filter(case.fn)
    schema = None if case.settles is None else pa.schema(case.settles)
    return given.map(case.fn, schema=schema)


def in_engine(case: Case, table: pa.Table, *, optimize: bool = True) -> Seen:
    """Run it."""
    rows: list[Row] = []
    ds, error = pipeline(case, table, optimize=optimize), None
    with counted(code_of(case), sys.modules[case.module].__dict__) as calls:
        try:
            rows.extend(ds.iter_rows())
        except DmlError as found:
            error = found
    return Seen(rows, calls[0], error)


def lifted(case: Case) -> str:
    """Why it is not lifted, or nothing."""
    found = lift(case.fn, Schema(case.columns))
    if isinstance(found, Refusal):
        return found.reason
    assert isinstance(found, Lifted)
    return "" if (found.columns is None) is case.keeps else "it is no map"
