"""Compare pipelines of dml with equal ones of tf.data, where it is installed."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml
from tests.peers.tf_programs import drawn, plain

PROGRAMS = 200
SAMPLE = 25


@pytest.fixture(scope="module")
def tf() -> Any:
    """TensorFlow, which is in no extra of dml: `pip install tensorflow-cpu` beside it."""
    tf = pytest.importorskip("tensorflow")
    tf.config.set_visible_devices([], "GPU")
    return tf


@pytest.mark.slow
@pytest.mark.parametrize("block", range(8))
def test_the_same_elements(tf: Any, block: int, whole: bool) -> None:
    programs = range(block, PROGRAMS if whole else SAMPLE, 8)
    rows = 0
    for seed in programs:
        pair = drawn(tf, seed)
        ours = [plain(element) for element in pair.ours]
        theirs = [plain(element) for element in pair.theirs.as_numpy_iterator()]
        assert ours == theirs, f"{seed}: {' . '.join(pair.text)}"
        if pair.kind == "rows" and seed % 3 == 0:
            zero, total = tf.constant(0, tf.int64), pair.ours.reduce(0, folded)
            assert total == pair.theirs.reduce(zero, folded), f"{seed}: {pair.text}"
        rows += len(ours)
    assert rows, "some of them have elements"


def folded(state: Any, row: dict[str, Any]) -> Any:
    """A number that depends on every row and on their order."""
    return (state * 31 + row["i"]) % 1_000_003


SPACE = r"[ \t\n\r\v\f]+"  # \s of TensorFlow lacks \v
BOUNDS, SIZES = [32, 64, 128, 256], [512, 256, 128, 64, 32]


def lines(count: int) -> list[str]:
    """Text with all kinds of white space, of lengths that fill every bucket."""
    rng = random.Random(3)
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789.,  \t\v\f"
    return [
        "x" + "".join(rng.choices(letters, k=int(rng.expovariate(1 / 90)))) for _ in range(count)
    ]


def ids(row: dict[str, Any]) -> dict[str, Any]:
    """At most 512 bytes of the cleaned line, each as a number."""
    text = re.sub(SPACE, " ", row["text"].lower()).strip()
    return {"ids": np.frombuffer(text.encode()[:512], np.uint8).astype(np.int32) + 3}


@pytest.mark.slow
def test_buckets_of_text_have_the_same_content(tf: Any, tmp_path: Path, whole: bool) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(lines(60_000 if whole else 6_000)) + "\n")
    ours = dml.read_text(path).map(ids).bucket_by_length("ids", BOUNDS, SIZES)

    def cleaned(line: Any) -> Any:
        text = tf.strings.strip(tf.strings.regex_replace(tf.strings.lower(line), SPACE, " "))
        return tf.cast(tf.io.decode_raw(tf.strings.substr(text, 0, 512), tf.uint8), tf.int32) + 3

    theirs = tf.data.TextLineDataset(str(path)).map(cleaned)
    theirs = theirs.bucket_by_sequence_length(lambda x: tf.shape(x)[0], BOUNDS, SIZES)
    found = [(batch["ids"].shape, batch["ids"].tobytes()) for batch in ours]
    assert found == [(batch.shape, batch.tobytes()) for batch in theirs.as_numpy_iterator()]
    assert len({shape[1] // 32 for shape, _ in found}) > 4, "short and long ones"
