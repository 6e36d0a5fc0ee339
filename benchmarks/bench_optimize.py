"""This file measures optimising: pipelines of mixed operators, and the worst shapes there are.

Run ``python benchmarks/bench_optimize.py`` for a table of processor time, the best of several runs,
or ``pytest benchmarks/bench_optimize.py --benchmark-enable``; without the option each pipeline is
optimised once, as a test.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

import dml
from dml import col
from dml.expr.node import Node
from dml.optimize.phases import Optimized, optimize

Shape = Callable[[int], dml.Dataset]
ROWS = 64
COLUMNS = 40


def narrow() -> dml.Dataset:
    """Four columns, the usual table."""
    values = np.arange(ROWS)
    return dml.from_numpy(
        {"id": values, "x": values / 7, "y": values / 3, "label": (values % 5).astype(np.int8)}
    )


def wide() -> dml.Dataset:
    """Forty columns."""
    values = np.arange(ROWS) / 9
    return dml.from_numpy({f"c{i}": values + i for i in range(COLUMNS)})


def mixed(n: int) -> dml.Dataset:
    """What people write, over and over: compute, filter, project, shuffle, slice."""
    ds = narrow()
    verbs: list[Callable[[dml.Dataset, int], dml.Dataset]] = [
        lambda d, i: d.with_columns(z=(col("x") - i) / (col("y") + 1)),
        lambda d, i: d.filter((col("label") != i % 5) & col("x").is_not_null()),
        lambda d, i: d.rename({"z": f"z{i}"}),
        lambda d, _: d.fill_null({"x": 0.0}),
        lambda d, _: d.with_columns(y=col("y").clip(0, 100).log1p(), w=col("x") * 2),
        lambda d, i: d.drop("w", f"z{i - 3}"),
        lambda d, i: d.take(1000 - i),
        lambda d, _: d.cast({"label": "int32"}),
        lambda d, i: d.shuffle(16, seed=i),
        lambda d, _: d.select("id", "x", "y", "label"),
    ]
    for i in range(n - 1):
        ds = verbs[i % len(verbs)](ds, i)
    return ds.batch(8)


def dependent(n: int) -> dml.Dataset:
    """Every column computed from the one before."""
    ds = narrow()
    for i in range(n):
        ds = ds.with_columns(x=col("x") * 0.5 + i)
    return ds


def doubling(n: int) -> dml.Dataset:
    """Every value used twice: a tree would be exponential."""
    ds = narrow()
    for _ in range(n):
        ds = ds.with_columns(x=col("x") + col("x"))
    return ds


def filters(n: int) -> dml.Dataset:
    """Filter over filter."""
    ds = narrow()
    for i in range(n):
        ds = ds.filter(col("x") + col("id") > -i)
    return ds


def alternating(n: int) -> dml.Dataset:
    """Filter, compute and project over many columns."""
    ds = wide()
    names = ds.columns
    for i in range(n):
        a, b = names[i % COLUMNS], names[(7 * i + 3) % COLUMNS]
        match i % 3:
            case 0:
                ds = ds.filter(col(a) < 1e9 + i)
            case 1:
                ds = ds.with_columns(**{a: col(a) + col(b)})
            case _:
                ds = ds.select(*names[i % 7 :], *names[: i % 7])
    return ds


def optimized(node: Node) -> Optimized:
    """All of it, from written to physical."""
    return optimize(node, 0)


# Milliseconds that optimising may take, at these numbers of operators.
LIMITS_MS = {20: 5, 200: 30, 1000: 100}
SHAPES: dict[str, Shape] = {
    "mixed": mixed,
    "dependent": dependent,
    "doubling": doubling,
    "filters": filters,
    "alternating": alternating,
}


@pytest.mark.parametrize("n", LIMITS_MS)
@pytest.mark.parametrize("shape", SHAPES)
def test_optimising(benchmark: Callable[..., Optimized], shape: str, n: int) -> None:
    node = SHAPES[shape](n)._node  # noqa: SLF001 - below the handle is what is measured
    stations = benchmark(optimized, node)
    assert stations.plan.schema == node.schema


def best_ms(node: Node, runs: int = 9) -> float:
    """Milliseconds of processor time of the best run."""
    spent = []
    for _ in range(runs):
        started = time.process_time()
        optimized(node)
        spent.append(time.process_time() - started)
    return min(spent) * 1e3


def main() -> None:
    """Print the table."""
    print(f"| shape | {' | '.join(f'{n} operators' for n in LIMITS_MS)} |")
    print("|---" * (1 + len(LIMITS_MS)) + "|")
    for name, shape in SHAPES.items():
        found = [best_ms(shape(n)._node) for n in LIMITS_MS]  # noqa: SLF001 - as above
        print(f"| {name} | {' | '.join(f'{ms:.1f} ms' for ms in found)} |", flush=True)
    print(f"| limit | {' | '.join(f'{ms} ms' for ms in LIMITS_MS.values())} |")


if __name__ == "__main__":
    main()
