"""This file measures functions of text: cleaning and tokenising lines of source code.

    python benchmarks/bench_text.py

Processor time, the best of some runs that take turns; lines are those of Python's own library. The
first case is what training on bytes does: lower case, white space made single, stripped, the first
512 bytes as int32. The functions one after the other are pyarrow's, as dml ran them before chains.
"""

from __future__ import annotations

import dataclasses
import re
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dml import col, element
from dml.data.schema import Schema
from dml.expr.columns.column import Column
from dml.expr.columns.typing import lower
from dml.kernels import interpreter
from dml.kernels.compiled.fused_program import Fused
from dml.kernels.compiled.tier_choice import KernelTiers
from dml.kernels.functions.table import functions
from dml.kernels.program import CHAIN, Program

LINES, BLOCK, RUNS = 400_000, 1 << 16, 5
SPACE = r"[ \t\n\r\v\f]+"
WANTED = 8.0

Way = Callable[[], list[Any]]


@dataclasses.dataclass(frozen=True)
class Case:
    """An expression of lines, and a line at a time in Python."""

    name: str
    value: Column
    by_line: Callable[[str], Any]


def lines() -> pa.Array:
    """Lines that hold something, of ASCII, in the order of their files."""
    found: list[str] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("**/*.py")):
        text = path.read_text("utf-8", errors="replace")
        found += [line for line in text.splitlines() if line.strip() and line.isascii()]
        if len(found) >= LINES:
            break
    return pa.array(found[:LINES])


def cases() -> list[Case]:
    """What is measured."""
    text = col("text").str
    clean = text.to_lowercase().str.replace_all(SPACE, " ").str.strip_chars(" ")
    cut = clean.str.tokenize_bytes().list.head(512)
    words = re.compile(SPACE)

    def ids(line: str) -> np.ndarray:
        cleaned = b" ".join(line.encode().lower().split())[:512]
        return np.frombuffer(cleaned, "u1").astype("i4") + 3

    return [
        Case("clean, bytes as int32", cut.list.eval(element().cast("int32") + 3), ids),
        Case("clean", clean, lambda line: words.sub(" ", line.lower()).strip(" ")),
        Case("words", text.tokenize_words(lower=True), lambda line: line.lower().split()),
    ]


def one_by_one(program: Program) -> Callable[[pa.Array], Any]:
    """The functions as the table has them, chains taken apart."""

    def run(block: pa.Array) -> Any:
        for step in program.steps:
            links = step.params if step.op == CHAIN else ((step.op, step.params),)
            for name, params in links:
                block = functions()[name].run([block], params)
        return block

    return run


def ways(case: Case, text: pa.Array, tiers: KernelTiers) -> dict[str, Way]:
    """Every way to compute a case, over blocks as dml has them."""
    program = lower([case.value.value], Schema({"text": text.type})).program
    blocks = [text.slice(i, BLOCK) for i in range(0, len(text), BLOCK)]
    plain = one_by_one(program)
    made: dict[str, Way] = {
        "a line at a time": lambda: [[case.by_line(s) for s in b.to_pylist()] for b in blocks],
        "one by one": lambda: [plain(b) for b in blocks],
        "dml, NumPy": lambda: [interpreter.run(program, [b], len(b)).outputs[0] for b in blocks],
    }
    fused = Fused(program)
    if fused.calls or fused.texts:
        made["dml, compiled"] = lambda: [tiers.run(program, [b], len(b)).outputs[0] for b in blocks]
    return made


def measured(case: Case, text: pa.Array, tiers: KernelTiers) -> dict[str, float]:
    """Best processor time of each way, ns a byte; all of them give the same."""
    made = ways(case, text, tiers)
    expected = pa.chunked_array(made["one by one"]())
    for name in made.keys() & {"dml, NumPy", "dml, compiled"}:
        assert pa.chunked_array(made[name]()).equals(expected), f"{case.name}: {name} differs"
    best = dict.fromkeys(made, np.inf)
    for _ in range(RUNS):
        for name, way in made.items():
            started = time.process_time()
            way()
            best[name] = min(best[name], time.process_time() - started)
    return {name: 1e9 * spent / text.nbytes for name, spent in best.items()}


def main() -> None:
    """Print the table."""
    text = lines()
    columns = ["a line at a time", "one by one", "dml, NumPy", "dml, compiled"]
    print(f"{len(text):,} lines, {text.nbytes:,} bytes\n")
    print(f"| ns a byte | {' | '.join(columns)} | against lines |\n|{'---|' * 6}")
    with tempfile.TemporaryDirectory() as folder:
        tiers = KernelTiers(Path(folder), "compiled")
        for case in cases():
            spent = measured(case, text, tiers)
            shown = [f"{spent[name]:.2f}" if name in spent else "" for name in columns]
            times = spent["a line at a time"] / min(
                spent[name] for name in columns[2:] if name in spent
            )
            print(f"| {case.name} | {' | '.join(shown)} | {times:.1f}x |", flush=True)
    print(f"\nwanted of the first: {WANTED:g}x")


if __name__ == "__main__":
    main()
