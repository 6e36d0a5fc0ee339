"""This file is dml's entry among the peers: the same workloads, written as a user would.

It runs inside a kit that brings `common` (paths, reference kernels, checks and the measuring loop)
and starts every cell in a process of its own: `python dml_loader.py --data DATA --work w2`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from functools import partial
from typing import Any

import common as c  # type: ignore[import-not-found]

import dml
from dml import col

WINDOW = {"global": None, "window": c.SHUFFLE}


def table(data: str, kind: str = "tab") -> dml.Dataset:
    """W2 in expressions, in written order: transform, keep, shuffle, batch."""
    numbers = [col(n).cast("float32").fill_null(0).clip(0).log1p().clip(high=10) for n in c.NUM]
    words = [((col(n) ^ (col(n) >> 16)) & (c.BUCKETS - 1)).cast("int32") for n in c.CAT]
    return (
        dml.read_parquet(c.files(data, kind))
        .with_columns(num=dml.stack(numbers), cat=dml.stack(words))
        .filter(col("I1") > c.THRESHOLD)
        .select("label", "num", "cat")
        .shuffle(c.SHUFFLE)
        .batch(c.BATCH)
    )


def w2(data: str, kind: str = "tab", rows: int = 4_000_000) -> Any:
    """Tabular: expressions, window shuffle, batches of 8192."""
    ds = table(data, kind)
    return c.Job(lambda: iter(ds), rows, c.check_tab, "expressions, threads, defaults")


def lines(data: str) -> dml.Dataset:
    """W3's cleaning and tokenising: lower case, runs of white space as one space, 512 bytes."""
    text = col("text").str.to_lowercase().str.replace_all(r"[ \t\n\r\v\f]+", " ")
    tokens = text.str.strip_chars(" ").str.tokenize_bytes().list.head(c.MAXLEN)
    ids = tokens.list.eval(dml.element().cast("int32") + 3)
    return dml.read_parquet(c.files(data, "text")).select(ids=ids)


def w3(data: str) -> Any:
    """Text: expressions, buckets by length, padded."""
    ds = lines(data).bucket_by_length("ids", c.BOUNDS, c.BATCHES, padding_values={"ids": 0})
    note = "expressions, bucket_by_length"
    return c.Job(lambda: (b["ids"] for b in ds), 1_000_000, c.check_text, note)


def w3_tokens(data: str) -> Any:
    """Cleaning and tokenising alone, as Arrow tables."""
    ds = lines(data)

    def epoch() -> Any:
        return ds.iter_batches(batch_size=8192, batch_format="arrow")

    def check(batches: Any) -> dict[str, int]:
        rows = ids = tokens = 0
        for batch in batches:
            values = batch.column("ids").combine_chunks().flatten().to_numpy()
            rows, ids, tokens = rows + len(batch), ids + int(values.sum()), tokens + len(values)
        return {"rows": rows, "ids": ids, "tokens": tokens}

    return c.Job(epoch, 1_000_000, check, "expressions, Arrow tables, no buckets")


def w3_by_hand(data: str) -> Any:
    """The same part as the peers do it: a line at a time, in one thread (the kit's function)."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    def epoch() -> Any:
        for file in c.files(data, "text"):
            for batch in pq.ParquetFile(file).iter_batches(8192, columns=["text"]):
                yield [c.tokenise(line.encode()) for line in batch["text"].to_pylist()]

    def check(batches: Any) -> dict[str, int]:
        rows = ids = tokens = 0
        for batch in batches:
            rows, tokens = rows + len(batch), tokens + sum(map(len, batch))
            ids += sum(int(line.sum()) for line in batch)
        return {"rows": rows, "ids": ids, "tokens": tokens}

    return c.Job(epoch, 1_000_000, check, "line by line, no buckets")


# A dict that anybody may change: functions that look into it cannot be proven pure, so they are
# called for every row.
PARAMETERS = {"times": 2, "modulus": 3}


def double(row: dict[str, int]) -> dict[str, int]:
    """The map of W4, as a function that has to be called."""
    return {"x": row["id"] * PARAMETERS["times"] + 1}


def third(row: dict[str, int]) -> bool:
    """The filter of W4, as a function that has to be called."""
    return row["x"] % PARAMETERS["modulus"] == 0


def numbers(job: dml.Dataset) -> Any:
    """An epoch of plain arrays."""
    return lambda: (batch["x"] for batch in job)


def w4(data: str, n: int = 2_000_000) -> Any:
    """Per element: two Python functions called once per row."""
    del data
    ds = dml.range(n).map(double).filter(third).batch(1024)
    return c.Job(numbers(ds), n, c.check_range, f"N={n}, functions called per row")


def w4_bare(data: str, n: int = 2_000_000) -> Any:
    """The same calls from a bare Python loop, in batches of 1024."""
    del data
    import numpy as np  # noqa: PLC0415

    def epoch() -> Any:
        held: list[int] = []
        for i in range(n):
            row = double({"id": i})
            if third(row):
                held.append(row["x"])
                if len(held) == 1024:
                    yield np.array(held, dtype=np.int64)
                    held = []
        if held:
            yield np.array(held, dtype=np.int64)

    return c.Job(epoch, n, c.check_range, f"N={n}, bare loop")


def w4_lifted(data: str, n: int = 100_000_000) -> Any:
    """Per element as written, lifted into expressions by dml."""
    del data
    ds = (
        dml.range(n)
        .map(lambda row: {"x": row["id"] * 2 + 1})
        .filter(lambda row: row["x"] % 3 == 0)
        .batch(1024)
    )
    return c.Job(numbers(ds), n, c.check_range, f"N={n}, row lambdas, lifted")


def w5(data: str, limits_mb: tuple[float, ...] = (1600, 800, 400), row: int = 1_000_000) -> Any:
    """Unlike stages within little memory: ``bench_w5.py``, which lies beside this file."""
    del data
    import bench_w5  # noqa: PLC0415 - Dask, for this one alone

    def run(runs: int) -> dict[str, Any]:
        ds, found = bench_w5.pipeline(width=row), dict[str, Any]()
        with bench_w5.started() as client:
            bench_w5.run(bench_w5.on_cluster(bench_w5.pipeline(16, 1), client), "warm", 400)
            for mb in limits_mb:
                on = bench_w5.on_cluster(ds, client)
                seen = [bench_w5.run(on, "cluster", mb) for _ in range(max(1, runs - 1))]
                found[f"{mb} MB"] = {
                    "seconds": [round(each.seconds, 1) for each in seen],
                    "x_optimum": round(min(each.ratio for each in seen), 2),
                    "rows": seen[-1].rows,
                }
        note = "8 CPU and 4 GPU slots of a Dask cluster, simulated by sleep; limit = memory_limit"
        return {"w5": found, "optimum_s": bench_w5.best_s(), "note": note}

    return run


def w5_light(data: str) -> Any:
    """The same with rows and limits of a quarter."""
    return w5(data, (400, 200, 100), 250_000)


def w6(data: str, tier: str = "disk") -> Any:
    """Images decoded once, kept on disk, later epochs in batches of 64."""
    folder = tempfile.mkdtemp(prefix="bench")

    def decoded(row: dict[str, Any]) -> dict[str, Any]:
        return {"image": c.decode256(row["image"])}

    ds = dml.read_parquet(c.files(data, "image_parquet")).map(decoded, fingerprint="decode256")
    ds = ds.cache(tier=tier).batch(c.IMAGE_BATCH).with_options(cache_dir=folder)
    nbytes = 1000 * c.CACHE_SIDE**2 * 3
    ended = partial(shutil.rmtree, folder)
    return c.Job(lambda: (b["image"] for b in ds), 1000, c.check_cache, tier, ended, nbytes)


def w6_memory(data: str) -> Any:
    """The same in memory."""
    return w6(data, "memory")


def w7(data: str) -> Any:
    """Cold start: the first batch of a small table."""

    def run(runs: int) -> dict[str, Any]:
        del runs
        next(iter(table(data, "tab_small")))
        return {"rss_mb": c.peak_rss_mb()}

    return run


def resumable(kind: str, n: int = 10_000_000) -> dml.Dataset:
    """Ten million numbers, shuffled over all or over windows, in batches of 1024."""
    ds = dml.range(n).with_columns(x=col("id") * 2 + 1)
    return ds.shuffle(WINDOW[kind], seed=1).batch(1024)


def w8(data: str) -> Any:
    """Resume: seconds to save, size of the state, seconds to the next batch, by position."""
    del data

    def run(runs: int) -> dict[str, Any]:
        out = {}
        for kind in WINDOW:
            for k in (10, 100, 1000):
                out[f"{kind}@{k}"] = resumed(kind, k, runs)
        return {"resume": out, "note": "full shuffle / window shuffle 65536"}

    return run


def resumed(kind: str, k: int, runs: int) -> dict[str, Any]:
    """One position of W8."""
    it = iter(resumable(kind))
    for _ in range(k):
        next(it)
    started = time.perf_counter()
    state = it.state_dict()
    save = time.perf_counter() - started
    want, times, exact = next(it), [], True
    it.close()
    for _ in range(runs):
        started = time.perf_counter()
        new = iter(resumable(kind))
        new.load_state_dict(state)
        got = next(new)
        times.append(time.perf_counter() - started)
        new.close()
        exact = exact and all((got[name] == want[name]).all() for name in want)
    return {
        "save_s": round(save, 5),
        "state_mb": len(json.dumps(state)) / 1e6,
        "resume_s": round(sorted(times)[len(times) // 2], 4),
        "exact": exact,
    }


WORK = {
    "w2": w2,
    "w3": w3,
    "w3_by_hand": w3_by_hand,
    "w3_tokens": w3_tokens,
    "w4": w4,
    "w4_bare": w4_bare,
    "w4_lifted": w4_lifted,
    "w5": w5,
    "w5_light": w5_light,
    "w6": w6,
    "w6_memory": w6_memory,
    "w7": w7,
    "w8": w8,
}

if __name__ == "__main__":
    c.main(WORK)
