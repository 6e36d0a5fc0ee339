"""This file measures kernels, by NumPy and compiled, against pyarrow.compute, NumPy and Polars.

    POLARS_MAX_THREADS=1 python benchmarks/bench_kernels.py

Every way starts from the same Arrow arrays, in turn with the others, and the best of nine runs
counts, in processor time. What must be equal is compared first. Then processes with an empty kernel
cache run a pipeline of 40 expressions: how soon is its first batch, which wait is the longest?
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import dml
from dml import col
from dml.data.block import from_arrow
from dml.data.schema import Schema
from dml.expr.columns.typing import lower
from dml.kernels import interpreter
from dml.kernels.compiled.fused_program import Fused
from dml.kernels.compiled.tier_choice import KernelTiers
from dml.kernels.program import Program
from dml.kernels.vec import Register, Vec

ROWS, BLOCK, RUNS = 1 << 20, 1 << 16, 9
CHILDREN, CHILD_ROWS, FILES = 3, 1_000_000, 24
DRAW = np.random.default_rng(0)

Way = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """An expression of columns, other ways to compute it, and how near their results must be."""

    name: str
    value: Any
    columns: dict[str, pa.Array]
    others: dict[str, Way]
    error: float = 0.0
    values_a_row: int = 1


# ---------------------------------------------------------------------------------------- the cases


def logarithms() -> list[Case]:
    """clip(log1p(fill_null(x))), in float32 and in float64, of float64 with 5 % nulls."""
    x = pa.array(DRAW.exponential(50, ROWS), mask=DRAW.random(ROWS) < 0.05)

    def arrow(kind: pa.DataType) -> pa.Array:
        zero, most = pa.scalar(0.0, kind), pa.scalar(8.0, kind)
        filled = pc.fill_null(x if kind == x.type else pc.cast(x, kind), zero)
        return pc.min_element_wise(pc.max_element_wise(pc.log1p(filled), zero), most)

    def by_numpy(kind: str) -> np.ndarray:
        values = x.to_numpy(zero_copy_only=False).astype(kind)
        np.nan_to_num(values, copy=False, nan=0.0)
        np.log1p(values, out=values)
        return np.clip(values, 0, 8, out=values)

    cases = []
    for code, kind in (("f4", pa.float32()), ("f8", pa.float64())):
        start = col("x").cast(code) if code == "f4" else col("x")
        others: dict[str, Way] = {
            "pyarrow": lambda kind=kind: arrow(kind).to_numpy(),
            "NumPy": lambda code=code: by_numpy(code),
            "Polars": polars_logarithm(x, code),
        }
        value = start.fill_null(0).log1p().clip(0, 8)
        cases.append(Case(f"clip log1p fill_null, {code}", value, {"x": x}, others, error=1e-6))
    return cases


def polars_logarithm(x: pa.Array, code: str) -> Way:
    """The same in one lazy query."""
    import polars as pl  # noqa: PLC0415

    frame = pl.DataFrame({"x": pl.from_arrow(x)}).lazy()
    kind = pl.Float32 if code == "f4" else pl.Float64
    query = frame.select(pl.col("x").cast(kind).fill_null(0).log1p().clip(0, 8))
    return lambda: np.asarray(query.collect()["x"])


def matrices() -> list[Case]:
    """Columns of float32 side by side, as they are and as logarithms of float64."""
    import polars as pl  # noqa: PLC0415

    cases = []
    for width in (32, 128):
        rows = ROWS // width
        names = [f"c{i}" for i in range(width)]
        columns = {name: pa.array(DRAW.random(rows, "f4")) for name in names}
        frame = pl.DataFrame({name: pl.from_arrow(array) for name, array in columns.items()})
        others: dict[str, Way] = {
            "NumPy": lambda columns=columns: np.stack([c.to_numpy() for c in columns.values()], 1),
            "Polars": lambda frame=frame: frame.to_numpy(order="c"),
        }
        value = dml.stack(*map(col, names))
        cases.append(Case(f"matrix of {width}", value, columns, others, values_a_row=width))
        doubles = {
            name: pa.array(DRAW.random(rows), mask=DRAW.random(rows) < 0.05) for name in names
        }
        parts = [col(name).cast("f4").fill_null(0).log1p().clip(0, 8) for name in names]
        name = f"matrix of {width}, clip log1p fill_null"
        cases.append(Case(name, dml.stack(*parts), doubles, {}, values_a_row=width))
    return cases


def hashes() -> list[Case]:
    """64-bit hashes; those of others are other numbers."""
    import polars as pl  # noqa: PLC0415

    numbers = pa.array(DRAW.integers(0, 1 << 40, ROWS))
    many = pa.array([f"user-{n}" for n in DRAW.integers(0, 1 << 30, ROWS // 4)])
    few = pa.array([f"group-{n}" for n in DRAW.integers(0, 1000, ROWS // 4)])
    kinds = {"int64": numbers, "text": many, "text, 1000 values": few}
    cases = []
    for kind, array in kinds.items():
        name = f"hash of {kind}"
        others: dict[str, Way] = {"Polars": pl.Series(values=pl.from_arrow(array)).hash}
        cases.append(Case(name, col("x").hash(), {"x": array}, others, error=np.inf))
    return cases


def places() -> list[Case]:
    """Buckets, and vectors with a one at a place."""
    x = pa.array(DRAW.random(ROWS))
    cases = []
    for n in (10, 100):
        edges = np.linspace(0.01, 0.99, n)
        others: dict[str, Way] = {
            "NumPy": lambda edges=edges: np.searchsorted(edges, x.to_numpy(), side="right")
        }
        cases.append(Case(f"bucketize, {n} edges", col("x").bucketize(edges), {"x": x}, others))
    spots = DRAW.integers(0, 16, ROWS // 4)
    lists = pa.ListArray.from_arrays(np.arange(0, ROWS // 4 + 1, 3, dtype="i4"), spots)
    eye = np.eye(16, dtype="f4")
    one = {"NumPy": lambda: eye[spots]}
    cases.append(Case("one-hot of 16", col("x").one_hot(16), {"x": pa.array(spots)}, one))
    rows = np.repeat(np.arange(len(lists)), 3)

    def many() -> np.ndarray:
        out = np.zeros((len(lists), 16), "f4")
        out[rows, lists.values.to_numpy()[: len(rows)]] = 1
        return out

    return [*cases, Case("multi-hot of 16", col("x").multi_hot(16), {"x": lists}, {"NumPy": many})]


# ------------------------------------------------------------------------------------ running them


def blocks(columns: dict[str, pa.Array]) -> list[dict[str, pa.Array]]:
    """As dml runs them: 65,536 rows at a time, fewer of wide rows."""
    rows = len(next(iter(columns.values())))
    size = min(BLOCK, max(4096, (1 << 21) // len(columns)))
    return [{k: v.slice(i, size) for k, v in columns.items()} for i in range(0, rows, size)]


def ways(case: Case, tiers: KernelTiers) -> dict[str, Way]:
    """Every way to compute a case; "compiled" only where a kernel takes a part of it."""
    schema = Schema((name, array.type) for name, array in case.columns.items())
    lowered = lower([case.value.value], schema)
    parts = blocks(case.columns)

    def through(run: Callable[[Sequence[Register], int], interpreter.Result]) -> Iterator[Register]:
        for part in parts:
            inputs = [from_arrow(part[value.params[0]]) for value in lowered.inputs]
            yield run(inputs, len(next(iter(part.values())))).outputs[0]

    program: Program = lowered.program
    made: dict[str, Way] = {
        "dml, NumPy": lambda: through(lambda inputs, n: interpreter.run(program, inputs, n))
    }
    fused = Fused(program)
    if fused.calls or fused.texts:
        made["dml, compiled"] = lambda: through(partial(tiers.run, program))
    return made | case.others


def values_of(result: Any) -> np.ndarray:
    """A result in one array."""
    if not isinstance(result, Iterator):
        return np.asarray(result)
    return np.concatenate([part.values for part in result if isinstance(part, Vec)])


def exhausted(result: Any) -> None:
    """Blocks made one after the other and dropped, as a pipeline does that trains."""
    if isinstance(result, Iterator):
        deque(result, maxlen=0)


def checked(case: Case, made: dict[str, Way]) -> None:
    """Both tiers give the same bytes, others the same numbers as far as they can."""
    expected = values_of(made["dml, NumPy"]())
    for name, way in made.items():
        found = values_of(way())
        if name.startswith("dml"):
            assert found.tobytes() == expected.tobytes(), f"{case.name}: {name} has other bits"
        elif case.error < np.inf:
            np.testing.assert_allclose(found, expected, rtol=case.error, err_msg=case.name)


def measured(case: Case, tiers: KernelTiers) -> dict[str, float]:
    """Best processor time of each way, ns a row, or a value of a matrix."""
    made = ways(case, tiers)
    checked(case, made)
    best = dict.fromkeys(made, np.inf)
    for _ in range(RUNS):
        for name, way in made.items():
            started = time.process_time()
            exhausted(way())
            best[name] = min(best[name], time.process_time() - started)
    rows = len(next(iter(case.columns.values()))) * case.values_a_row
    return {name: 1e9 * spent / rows for name, spent in best.items()}


# -------------------------------------------------------------------- a process that has no kernels

CHILD = """
import sys, time
import dml
from dml import col
started, pattern, folder, kernels = float(sys.argv[1]), *sys.argv[2:]
made = {}
for i in range(8):
    x = col(f"c{i % 4}")
    made[f"log{i}"] = x.cast("f4").fill_null(i).log1p().clip(0, 8)
    made[f"scaled{i}"] = ((x.fill_null(0) - i) / (i + 1)).clip(-3, 3)
    made[f"bucket{i}"] = x.fill_null(i).bucketize([10 * i + 1, 10 * i + 50.0])
    made[f"flag{i}"] = (x.fill_null(0) > i) & (x.fill_null(1) < 90)
    made[f"square{i}"] = (x.fill_null(0) * x.fill_null(0)).sqrt().cast("f4")
ds = dml.read_parquet(pattern).select(**made).batch(4096)
ds = ds.with_options(cache_dir=folder, telemetry_dir="off", kernels=kernels)
first, longest, after, last = None, 0.0, 0, None
for batch in ds:
    now = time.time()
    if first is None:
        first, spent = now - started, time.process_time()
    else:
        longest = max(longest, now - last)
    last = now
    after += "numba" in sys.modules
    if after > 500:
        break
print(first, longest, after, now - started, spent)
"""


@dataclasses.dataclass(frozen=True)
class Run:
    """Seconds to the first batch, longest wait after it, batches after the swap, seconds in all.

    And ``spent``, processor seconds to the first batch.
    """

    first: float
    longest: float
    after: float
    whole: float
    spent: float


def fresh() -> tuple[Run, Run]:
    """The best of some processes that find no kernels: with NumPy alone, and with a swap.

    They take turns, so that both meet the same neighbours, and find dml's byte code, as where it
    is installed: the first one, which makes it, does not count.
    """
    columns = {
        f"c{i}": pa.array(DRAW.exponential(50, CHILD_ROWS), mask=DRAW.random(CHILD_ROWS) < 0.05)
        for i in range(4)
    }
    found: dict[str, list[Run]] = {"numpy": [], "auto": []}
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table(columns), f"{folder}/00.parquet", row_group_size=1 << 17)
        for i in range(1, FILES):
            os.link(f"{folder}/00.parquet", f"{folder}/{i:02}.parquet")
        child("numpy", folder, "0")
        for run in range(CHILDREN):
            for kernels, runs in found.items():
                runs.append(child(kernels, folder, f"{kernels}{run}"))
    plain, auto = (min(runs, key=lambda run: run.longest) for runs in found.values())
    return plain, auto


def child(kernels: str, folder: str, name: str) -> Run:
    """One process with a folder of its own for kernels."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    kept["PYTHONPYCACHEPREFIX"] = f"{folder}/bytecode"
    files = f"{folder}/{'*' if kernels == 'auto' else '0[0-2]'}.parquet"
    words = [repr(time.time()), files, f"{folder}/kernels{name}", kernels]
    command = [sys.executable, "-c", CHILD, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=kept)  # noqa: S603
    return Run(*map(float, done.stdout.split()))


# ------------------------------------------------------------------------------------------- tables


def verdict(what: str, *, value: float, wanted: float, unit: str, least: bool = False) -> None:
    """One line that must hold."""
    passed = value >= wanted if least else value <= wanted
    sign = "at least" if least else "at most"
    mark = "PASS" if passed else "behind"
    print(f"| {what} | {value:.2f} {unit} | {sign} {wanted:g} {unit} | {mark} |", flush=True)


def main() -> None:
    """Print both tables."""
    columns = ["dml, NumPy", "dml, compiled", "pyarrow", "NumPy", "Polars"]
    print(f"{os.cpu_count()} processors, load before: {os.getloadavg()[0]:.1f}\n")
    print(f"| ns a row, or a value of a matrix | {' | '.join(columns)} |\n|{'---|' * 6}")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        tiers = KernelTiers(Path(folder), "compiled")
        for case in [*logarithms(), *matrices(), *hashes(), *places()]:
            spent = found[case.name] = measured(case, tiers)
            shown = [f"{spent[name]:.2f}" if name in spent else "" for name in columns]
            print(f"| {case.name} | {' | '.join(shown)} |", flush=True)
    print("\n| must show | measured | wanted | |\n|---|---|---|---|")
    for code, least in (("f4", 10.0), ("f8", 4.0)):
        spent = found[f"clip log1p fill_null, {code}"]
        ratio = spent["pyarrow"] / spent["dml, compiled"]
        verdict(f"{code} against pyarrow.compute", value=ratio, wanted=least, unit="x", least=True)
    spent = found["clip log1p fill_null, f4"]
    verdict("f4, a row", value=spent["dml, compiled"], wanted=1.0, unit="ns")
    spent = found["matrix of 128"]
    verdict("matrix of 128, a value", value=spent["dml, compiled"], wanted=3.0, unit="ns")
    plain, auto = fresh()
    first = min(plain.first, auto.first)
    verdict("first batch of 40 expressions", value=first, wanted=0.6, unit="s")
    spent_s = min(plain.spent, auto.spent)
    verdict("the same, processor time", value=spent_s, wanted=0.6, unit="s")
    delay = max(0.0, auto.longest - plain.longest) * 1000
    verdict("longest wait, beyond that of NumPy alone", value=delay, wanted=150.0, unit="ms")
    waits = f"{1000 * plain.longest:.0f} ms with NumPy alone, {1000 * auto.longest:.0f} ms with"
    print(f"\nlongest waits: {waits} a swap to kernels after {auto.whole:.1f} s")
    print(f"batches after it: {auto.after:.0f}")


if __name__ == "__main__":
    main()
