"""Random pipelines call these users' functions: some can be lifted, some cannot.

Each maker returns a function and the columns of its result. Functions of ``CLEAN`` never fail on
rows whose columns ``n`` and ``f`` are numbers; functions of ``ROUGH`` fail, or change their types.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

Row = dict[str, Any]
Kinds = dict[str, pa.DataType]
Made = tuple[Callable[..., Any], Kinds]
Draw = random.Random


def _affine(draw: Draw, kinds: Kinds) -> Made:
    k, b = draw.choice([2, -3, 7]), draw.choice([0, 1, -5])
    return lambda row: {**row, "n": row["n"] * k + b}, kinds


def _quotients(draw: Draw, _kinds: Kinds) -> Made:
    k = draw.choice([2, 3, -4])
    out = {"n": pa.int64(), "f": pa.float64(), "q": pa.int64()}
    return lambda row: {"n": row["n"] // k, "f": row["n"] / k, "q": row["n"] % k}, out


def _floats(draw: Draw, kinds: Kinds) -> Made:
    k = draw.choice([0.5, -2.0, 1e308])
    return lambda row: {**row, "g": row["f"] * k - row["n"]}, {**kinds, "g": pa.float64()}


def _compared(draw: Draw, kinds: Kinds) -> Made:
    k = draw.choice([0, 5, 9])
    out = {**kinds, "p": pa.bool_()}
    return lambda row: {**row, "p": row["n"] > k and row["f"] < 2.0}, out


def _branching(_draw: Draw, kinds: Kinds) -> Made:
    return lambda row: {**row, "n": row["n"] if row["n"] > 3 else -row["n"]}, kinds


def _absent(draw: Draw, kinds: Kinds) -> Made:
    """Return null where a column is null."""
    name = draw.choice([n for n, kind in kinds.items() if pa.types.is_integer(kind)])
    fn = lambda row: {**row, "m": None if row[name] is None else row[name] % 10}  # noqa: E731
    return fn, {**kinds, "m": pa.int64()}


def _loop(_draw: Draw, kinds: Kinds) -> Made:
    def fn(row: Row) -> Row:
        total = 0
        for part in range(row["n"] % 50):
            total += part
        return {**row, "total": total}

    return fn, {**kinds, "total": pa.int64()}


def _words(_draw: Draw, _kinds: Kinds) -> Made:
    def fn(row: Row) -> Row:
        found = [str(value) for value in row.values() if isinstance(value, str)]
        return {"n": row["n"], "f": row["f"], "text": " ".join(found), "words": len(found)}

    return fn, {"n": pa.int64(), "f": pa.float64(), "text": pa.string(), "words": pa.int64()}


def _vector(_draw: Draw, _kinds: Kinds) -> Made:
    def fn(row: Row) -> Row:
        return {"n": row["n"], "f": row["f"], "v": np.array([row["n"], row["f"]])}

    tensor = pa.fixed_shape_tensor(pa.float64(), (2,))
    return fn, {"n": pa.int64(), "f": pa.float64(), "v": tensor}


def _listed(_draw: Draw, _kinds: Kinds) -> Made:
    def fn(row: Row) -> Row:
        return {"n": row["n"], "f": row["f"], "w": list(range(row["n"] % 4 + 1))}

    return fn, {"n": pa.int64(), "f": pa.float64(), "w": pa.list_(pa.int64())}


def _changing(_draw: Draw, _kinds: Kinds) -> Made:
    """Mix integers and floats in one column: the first rows determine its type."""
    out = {"n": pa.int64(), "f": pa.float64(), "z": pa.float64()}
    return lambda row: {"n": row["n"], "f": row["f"], "z": row["n"] if row["n"] % 5 else 2.0}, out


def _sometimes_none(_draw: Draw, _kinds: Kinds) -> Made:
    out = {"n": pa.int64(), "f": pa.float64(), "z": pa.int64()}
    return lambda row: {"n": row["n"], "f": row["f"], "z": row["n"] if row["n"] % 3 else None}, out


def _raising(draw: Draw, kinds: Kinds) -> Made:
    k = draw.choice([13, 17, -4])
    return lambda row: {**row, "n": row["n"] // (row["n"] - k)}, kinds


def _forgetful(_draw: Draw, kinds: Kinds) -> Made:
    """Omit columns where ``n`` is 11."""
    return lambda row: dict(row) if row["n"] != 11 else {"n": row["n"]}, kinds


def _large(_draw: Draw, kinds: Kinds) -> Made:
    return lambda row: {**row, "n": row["n"] * 2**59}, kinds


def _fraction(_draw: Draw, _kinds: Kinds) -> Made:
    out = {"n": pa.int64(), "f": pa.float64(), "z": pa.float64()}
    return lambda row: {"n": row["n"], "f": row["f"], "z": row["n"] if row["n"] % 7 else 0.5}, out


CLEAN = (
    *(_affine, _quotients, _floats, _compared, _branching, _absent, _loop, _words, _vector),
    *(_listed, _changing, _sometimes_none),
)
ROUGH = (_raising, _forgetful, _large, _fraction)


def row_function(draw: Draw, kinds: Kinds, *, rough: bool) -> Made:
    """Return a function of a row, and the columns of its result."""
    return draw.choice(ROUGH if rough else CLEAN)(draw, dict(kinds))


def value_function(draw: Draw, *, rough: bool) -> tuple[Callable[[int, float], Any], pa.DataType]:
    """Return a function of an integer and a float, and the type of its result."""
    k = draw.choice([2, -3])

    def rest(n: int, _f: float) -> int:
        return 7 // (n - 13) + k

    def large(n: int, _f: float) -> int:
        return n * 100

    if rough:
        return draw.choice([(rest, pa.int64()), (large, pa.int8())])

    def scaled(n: int, f: float) -> float:
        return f * k - n if not math.isnan(f) else float(n)

    def word(n: int, f: float) -> str | None:
        return f"{n} {f > k}" if n % 3 else None

    def pair(n: int, f: float) -> list[float]:
        return [f] * (n % 3)

    listed = pa.list_(pa.float64())
    return draw.choice([(scaled, pa.float64()), (word, pa.string()), (pair, listed)])


def random_function(draw: Draw, kinds: Kinds) -> Made:
    """Return a function of a row and random numbers."""
    low = draw.choice([0, -5])

    def jitter(row: Row, rng: Any) -> Row:
        return {**row, "f": row["f"] + rng.normal(), "r": int(rng.integers(low, 50))}

    def draws(row: Row, rng: Any) -> Row:
        found = [rng.random() for _ in range(row["n"] % 3)]
        return {"n": row["n"], "f": sum(found, 0.0), "r": rng.permutation(4)}

    if draw.random() < 0.6:
        return jitter, {**kinds, "r": pa.int64()}
    tensor = pa.fixed_shape_tensor(pa.int64(), (4,))
    return draws, {"n": pa.int64(), "f": pa.float64(), "r": tensor}


def many_function(draw: Draw, kinds: Kinds) -> Made:
    """Return a function from a row to some rows."""
    k = draw.choice([2, 3])

    def several(row: Row) -> Iterator[Row]:
        for part in range(row["n"] % k):
            yield {**row, "part": part}

    def split(row: Row) -> list[Row]:
        words = next((v for v in row.values() if isinstance(v, str)), "").split()
        return [{"n": row["n"], "f": row["f"], "word": word} for word in words]

    if draw.random() < 0.6:
        return several, {**kinds, "part": pa.int64()}
    return split, {"n": pa.int64(), "f": pa.float64(), "word": pa.string()}


def keeping_function(draw: Draw) -> Callable[[Row], Any]:
    """Return a filter function of a row."""
    k = draw.choice([2, 3, 5])
    opaque: Callable[[Row], Any] = lambda row: len(str(row["n"])) % k  # noqa: E731
    return draw.choice([lambda row: row["n"] % k, lambda row: row["n"] > k, opaque])


def losing(draw: Draw) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a wrapper that makes a function raise for some rows, by their ``n``."""
    k = draw.choice([1, 2, 3, 5, 7])
    only = draw.randrange(k)

    def wrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
        def raises(row: Row, *drawn: Any) -> Any:
            if row["n"] % k == only:
                raise LookupError(row["n"])
            return fn(row, *drawn)

        return raises

    return wrapped


def breaking(fn: Callable[[Row], Any]) -> Callable[[Row], Iterator[Row]]:
    """Wrap a function from a row to some rows, so that it may raise after its first row."""

    def breaks(row: Row) -> Iterator[Row]:
        for number, made in enumerate(fn(row)):
            if number and row["n"] % 4 == 1:
                raise LookupError(number)
            yield made

    return breaks


def losing_groups(draw: Draw, fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap a function of a group, so that it raises for some groups, by the first row's ``n``."""
    k = draw.choice([1, 2, 3])

    def raises(group: Any) -> Any:
        first = group["n"][0]
        number = first.as_py() if isinstance(first, pa.Scalar) else first
        if number is not None and number % k == 0:
            raise LookupError(number)
        return fn(group)

    return raises


def in_parts(
    draw: Draw, fn: Callable[[Any], Any], *, breaks: bool
) -> Callable[[Any], Iterator[Any]]:
    """Wrap a function of groups as a generator that yields its result in parts of a few rows.

    With ``breaks``, the generator raises between two parts.
    """
    k, wrong = draw.choice([1, 2, 7]), draw.choice([1, 2]) if breaks else None

    def parts(group: Any) -> Iterator[Any]:
        made = fn(group)
        rows = len(made if isinstance(made, pa.Table | pa.RecordBatch) else made["n"])
        for start in range(0, rows, k):
            if start // k == wrong:
                raise LookupError(start)
            if isinstance(made, dict):
                yield {name: array[start : start + k] for name, array in made.items()}
            else:
                yield made.slice(start, k)

    return parts


def batch_function(draw: Draw, kinds: Kinds) -> Made:
    """Return a function of a dict of arrays, and the columns of its result."""
    if draw.random() < 0.5:
        return lambda batch: {**batch, "n": batch["n"] * 2}, kinds

    def summed(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {
            "n": batch["n"],
            "f": np.nan_to_num(batch["f"]),
            "double": batch["n"][:, None] * [1, 2],
        }

    def resized(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        times = len(batch["n"]) % 3
        return {"n": np.repeat(batch["n"], times), "f": np.repeat(batch["f"], times)}

    if draw.random() < 0.3:
        return resized, {"n": pa.int64(), "f": pa.float64()}
    tensor = pa.fixed_shape_tensor(pa.int64(), (2,))
    return summed, {"n": pa.int64(), "f": pa.float64(), "double": tensor}


def group_function(draw: Draw, kinds: Kinds, *, rough: bool) -> tuple[Any, Kinds, str]:
    """Return a function of groups of rows, its result columns, and the format of its input.

    The result depends on the number of rows in the group.
    """
    if draw.random() < 0.4:
        return (*_of_tables(draw, kinds), "arrow")
    if draw.random() < 0.3:
        return (*batch_function(draw, kinds), "numpy")
    k = draw.choice([13, 17, -4])

    def sized(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if rough and k in batch["n"]:
            raise ValueError(k)
        size = np.full(len(batch["n"]), len(batch["n"]))
        return {"n": batch["n"] + 1, "f": batch["f"], "size": size}

    return sized, {"n": pa.int64(), "f": pa.float64(), "size": pa.int64()}, "numpy"


def _of_tables(draw: Draw, kinds: Kinds) -> Made:
    k = draw.choice([1, 3])

    def sized(table: pa.Table) -> pa.Table:
        size = pa.array([table.num_rows] * table.num_rows, pa.int64())
        return table.select(["n", "f"]).append_column("size", size)

    def first(table: pa.Table) -> pa.RecordBatch:
        return table.slice(0, k).combine_chunks().to_batches()[0]

    if draw.random() < 0.5:
        return sized, {"n": pa.int64(), "f": pa.float64(), "size": pa.int64()}
    return first, kinds


def scan_function(
    draw: Draw, kinds: Kinds, *, rough: bool
) -> tuple[Any, Callable[[Any, Row], Any], Kinds]:
    """Return an initial state, a function of state and row, and the columns of its rows."""
    makers = (_sums, _last, _bounds, _moments)
    return draw.choice(makers)(draw, kinds, draw.choice([7, 13, 20]) if rough else 99)


def _sums(draw: Draw, kinds: Kinds, wrong: int) -> tuple[Any, Callable[[Any, Row], Any], Kinds]:
    def fn(state: Any, row: Row) -> Any:
        total = state + row["n"]
        return (total if row["n"] != wrong else {total}), {**row, "s": total % 1000}

    return draw.choice([0, 5]), fn, {**kinds, "s": pa.int64()}


def _last(_draw: Draw, _kinds: Kinds, wrong: int) -> tuple[Any, Callable[[Any, Row], Any], Kinds]:
    """Mutate the state, and return it in the rows too."""

    def fn(state: Any, row: Row) -> Any:
        state.append(row["f"])
        del state[:-3]
        made = {"n": row["n"], "f": row["f"], "last": state}
        return (state, made) if row["n"] != wrong else made

    return [], fn, {"n": pa.int64(), "f": pa.float64(), "last": pa.list_(pa.float64())}


def _bounds(_draw: Draw, kinds: Kinds, wrong: int) -> tuple[Any, Callable[[Any, Row], Any], Kinds]:
    def fn(state: Any, row: Row) -> Any:
        low = min(state["low"], row["f"])
        return {"low": low, "rows": state["rows"] + 1}, {**row, "f": low / (row["n"] - wrong)}

    return {"low": float("inf"), "rows": 0}, fn, kinds


def _moments(
    _draw: Draw, kinds: Kinds, _wrong: int
) -> tuple[Any, Callable[[Any, Row], Any], Kinds]:
    def fn(state: Any, row: Row) -> Any:
        one = np.array([row["n"], 1.0])
        new = one if state is None else state + one
        return new, {**row, "f": float(new[0] / new[1])}

    return None, fn, kinds
