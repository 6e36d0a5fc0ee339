"""A program that reads a folder of images under a memory limit, for the law about large ones."""

from __future__ import annotations

import json
import os
import sys

import dml
from dml import col
from tests.laws.adversarial_run import say


def main() -> None:
    folder, executor, limit = sys.argv[1:]
    image = dml.vision.imagenet_train(224)
    ds = dml.read_images(folder).with_columns(image=image, size=col("image").image.size())
    options = {"executor": executor, "memory_limit": int(limit), "num_workers": 4}
    ds = ds.batch(32).with_options(**options, telemetry_dir="off")
    rows = sum(len(batch["image"]) for batch in ds)
    say(json.dumps({"rows": rows, "total": 0, "error": []}))
    os._exit(0)


if __name__ == "__main__":
    main()
