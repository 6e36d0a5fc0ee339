"""Text: one row per document becomes many rows, one per sentence, by a generator."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import dml
from dml import col

DOCUMENTS = [
    {"title": "road", "text": "The long road goes on. It has no end! Does it turn back?"},
    {"title": "empty", "text": ""},
    {"title": "river", "text": "The river is old. It knows the road."},
]
SENTENCE = re.compile(r"[^.!?]+[.!?]")


def sentences(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The sentences of one document; an empty document has none, which is fine."""
    for place, text in enumerate(SENTENCE.findall(document["text"])):
        words = text.strip().lower().rstrip(".!?").split()
        yield {"title": document["title"], "place": place, "first": words[0], "words": len(words)}


def main() -> None:
    ds = (
        dml.from_items(DOCUMENTS)
        .flat_map(sentences)
        .filter(col("words") >= 4)
        .with_columns(first=col("first").hash(1000), long=col("words") > 4)
    )
    for row in ds:
        print(row)
    assert [row["title"] for row in ds] == ["road", "road", "road", "river", "river"]

    batch = next(iter(ds.batch(4)))
    print({name: f"{array.dtype}{list(array.shape)}" for name, array in batch.items()})
    assert batch["words"].tolist() == [5, 4, 4, 4]
    print(f"\n{ds.explain('physical')}")


if __name__ == "__main__":
    main()
