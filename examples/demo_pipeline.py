"""The pipeline of the demo: modules of text become shuffled batches of token sequences.

Run as a program, it resumes the state given on standard input, and names the rest of the stream.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

import dml
from dml import col
from dml.data.stream_hash import stream_hash

LENGTH, VOCABULARY = 128, 50_000
WORD = re.compile(r"\w+|[^\w\s]")


def sequences(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The module's words as numbers, cut into sequences of one length; the rest is left out."""
    words = [zlib.crc32(word.encode()) % VOCABULARY for word in WORD.findall(row["text"])]
    for i in range(0, len(words) - LENGTH + 1, LENGTH):
        tokens = np.array(words[i : i + LENGTH], dtype=np.int32)
        yield {"tokens": tokens, "package": row["package"], "bytes": row["bytes"]}


def pipeline(folder: str) -> dml.Dataset:
    return (
        dml.read_parquet(folder)
        .filter(col("bytes").between(500, 400_000))
        .flat_map(sequences)
        .with_columns(package=col("package").hash(4096), size=col("bytes").bucketize([4e3, 4e4]))
        .select("tokens", "package", "size")
        .shuffle(buffer_size=2048, seed=7)
        .batch(256)
        .with_options(telemetry_dir="off")
    )


if __name__ == "__main__":
    it = iter(pipeline(sys.argv[1]))
    it.load_state_dict(json.load(sys.stdin))
    print(stream_hash(it))
