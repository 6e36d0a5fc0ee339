"""This file measures text: cleaning and tokenising lines of source code, and batches by length.

    python benchmarks/bench_text.py

Processor time, the best of some runs that take turns; lines are those of Python's own library. The
first case is what training on bytes does: lower case, white space made single, stripped, the first
512 bytes as int32. The functions one after the other are pyarrow's, as dml ran them before chains.

The second table has whole pipelines: sentences of a Parquet file become tokens, in padded batches
of similar length. They run with lists copied once, from the blocks where they are into the padded
array, and with rows first joined to a block for each batch; the two take turns in one process. The
times of both without the tokens' own are those of grouping and padding alone.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dml
from dml import col, element
from dml.data.schema import Schema
from dml.data.stream_hash import stream_hash
from dml.exec.delivery import prefetch
from dml.expr.batch_run import ScatteredBatch
from dml.expr.columns.column import Column
from dml.expr.columns.typing import lower
from dml.kernels import interpreter
from dml.kernels.compiled.fused_program import Fused
from dml.kernels.compiled.tier_choice import KernelTiers
from dml.kernels.functions.table import functions
from dml.kernels.program import CHAIN, Program
from dml.udfs.calling.batch_arrays import BatchConversion

LINES, BLOCK, RUNS = 400_000, 1 << 16, 5
SPACE = r"[ \t\n\r\v\f]+"
WANTED = 8.0
SENTENCES, WORDS, PAIRS = 200_000, 5000, 5
BOUNDS, SIZES = (8, 16, 24, 32, 48, 64, 96), (512, 256, 256, 128, 128, 64, 64, 32)
IDS = {f"w{i}": i + 2 for i in range(WORDS)}

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


def write_sentences(folder: Path) -> None:
    """Write sentences of words from a long-tailed vocabulary; some are much longer than others."""
    draw = np.random.default_rng(0)
    counts = draw.lognormal(3.0, 0.6, SENTENCES).round().clip(1, 200).astype(int)
    words = np.array([f"W{i}" for i in range(WORDS)])[
        draw.zipf(1.3, counts.sum()).clip(1, WORDS) - 1
    ]
    ends = counts.cumsum()
    found = [" ".join(words[end - n : end]) for n, end in zip(counts, ends, strict=True)]
    pq.write_table(pa.table({"text": found}), folder / "text.parquet", row_group_size=20_000)


def looked_up(row: dict[str, Any]) -> dict[str, Any]:
    """The number of each word, by a function of rows."""
    return {"tokens": [IDS.get(word, 1) for word in row["text"].lower().split()]}


def sentences(folder: Path) -> dict[str, tuple[dml.Dataset, int]]:
    """Pipelines to tokens, and how many tokens stand for a word."""
    text, ds = col("text").str.to_lowercase(), dml.read_parquet(str(folder / "text.parquet"))
    words = text.str.split(" ").list.eval(element().hash(30_000))
    return {
        "bytes": (ds.with_columns(tokens=text.str.tokenize_bytes()).select("tokens"), 4),
        "hashed words": (ds.with_columns(tokens=words).select("tokens"), 1),
        "function of rows": (ds.map(looked_up), 1),
    }


def joined_first(batch: ScatteredBatch, made: BatchConversion) -> tuple[dict[str, Any], int]:
    """The arrays of a batch whose rows are first joined to a block."""
    block = batch.block()
    return made(block), block.nbytes


def spent_s(ds: dml.Dataset) -> float:
    """Processor seconds of one epoch."""
    started = time.process_time()
    for _ in ds:
        pass
    return time.process_time() - started


def by_length(folder: Path) -> None:
    """Print the table of batches by length: medians of pairs of runs that take turns."""
    print("\n| processor s | tokens alone | joined first | copied once | of all | of batches |")
    print("|---" * 6 + "|")
    unfused = mock.patch.object(prefetch, "gathered_arrays", joined_first)
    for name, (written, each) in sentences(folder).items():
        tokens = written.with_options(telemetry_dir="off", num_workers=1).epoch(0)
        ds = tokens.bucket_by_length("tokens", [each * bound for bound in BOUNDS], SIZES)
        with unfused:
            expected = stream_hash(ds)
        assert stream_hash(ds) == expected
        found = list[tuple[float, float, float]]()
        for _ in range(PAIRS):
            with unfused:
                before = spent_s(ds)
            started = time.process_time()
            tokens.to_arrow()
            alone = time.process_time() - started
            found.append((alone, before, spent_s(ds)))
        alone, before, after = (statistics.median(each) for each in zip(*found, strict=True))
        of_all = statistics.median(pair[1] / pair[2] for pair in found)
        shown = [f"{value:.3f}" for value in (alone, before, after)]
        batches = (before - alone) / (after - alone)
        print(f"| {name} | {' | '.join(shown)} | {of_all:.2f}x | {batches:.1f}x |", flush=True)


def main() -> None:
    """Print the tables."""
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
    with tempfile.TemporaryDirectory() as folder:
        write_sentences(Path(folder))
        by_length(Path(folder))


if __name__ == "__main__":
    main()
