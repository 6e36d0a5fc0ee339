"""Write tests/vectors/tfrecord with TensorFlow, and the values that TensorFlow reads there.

python tests/vectors/make_tfrecords.py, where TensorFlow is installed; the tests do not need it.
"""

from __future__ import annotations

import base64
import importlib
import json
import random
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "tfrecord"
ROWS = 16


def rows() -> list[dict[str, Any]]:
    """Features with one value, none, many, and absent ones."""
    draw = random.Random(7)
    found = []
    for i in range(ROWS):
        row: dict[str, Any] = {
            "id": [i],
            "edge": [draw.choice([0, -1, 2**63 - 1, -(2**63), 127, 128, 2**31])],
            "ids": [draw.randrange(-(2**40), 2**40) for _ in range(draw.randrange(30))],
            "x": [draw.choice([0.0, -1.5, 3.0e38, float("inf"), 0.1])],
            "xs": [draw.random() for _ in range(draw.randrange(4))],
            "image": [draw.randbytes(draw.randrange(20))],
            "words": [word.encode() for word in draw.choices(["a", "", "höher"], k=i % 3)],
        }
        if i % 5 == 0:
            del row["image"]
        found.append(row)
    return found


def example(tf: Any, row: dict[str, Any]) -> Any:
    def feature(values: list[Any], name: str) -> Any:
        if name in ("image", "words"):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if name in ("x", "xs"):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    features = {name: feature(values, name) for name, values in row.items()}
    return tf.train.Example(features=tf.train.Features(feature=features))


def shown(example: Any) -> dict[str, list[Any]]:
    """An Example as JSON: kinds by name, bytes in base 64, floats as their own text."""
    found = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        values = list(getattr(feature, kind).value)
        if kind == "bytes_list":
            values = [base64.b64encode(value).decode() for value in values]
        found[name] = [kind, [float(v).hex() for v in values] if kind == "float_list" else values]
    return found


def main() -> None:
    tf = importlib.import_module("tensorflow")
    FOLDER.mkdir(exist_ok=True)
    examples = [example(tf, row).SerializeToString(deterministic=True) for row in rows()]
    for kind, name in (("", "plain.tfrecord"), ("GZIP", "gzip.tfrecord.gz"), ("ZLIB", "zlib.bin")):
        with tf.io.TFRecordWriter(str(FOLDER / name), kind) as writer:
            for each in examples:
                writer.write(each)
    ids = tf.train.FeatureList(feature=[example(tf, {"id": [1]}).features.feature["id"]])
    lists = tf.train.FeatureLists(feature_list={"ids": ids})
    sequence = tf.train.SequenceExample(feature_lists=lists)
    with tf.io.TFRecordWriter(str(FOLDER / "sequence.tfrecord")) as writer:
        writer.write(sequence.SerializeToString())
    read = tf.data.TFRecordDataset(str(FOLDER / "plain.tfrecord")).as_numpy_iterator()
    parsed = [shown(tf.train.Example.FromString(record)) for record in read]
    lines = ",\n".join(json.dumps(row, sort_keys=True) for row in parsed)
    (FOLDER / "parsed.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
