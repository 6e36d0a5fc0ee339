"""This file measures a slow function in dml and, side by side, in Grain, PyTorch and tf.data.

    python benchmarks/bench_peers.py [--turns 5] [--images FOLDER] [--python tf=PATH ...] [job...]

Each contestant runs in a process of its own, with its own Python where one is named: a warm epoch,
then one that is timed, from asking for an iterator to its end. Turns go round the contestants. In
the first jobs a function waits 10 ms a row (800 rows, 8 workers: the ideal is 1.0 s for each
function); ``paths`` and ``parquet`` load and augment photographs with OpenCV in two threads, beside
the same function in a bare pool of threads; ``step`` has a training step of 10 ms between batches.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROWS, WORK_S, WORKERS, BATCH = 800, 0.01, 8, 16
PHOTOS, PHOTO_BATCH, CORES = 2000, 64, 2
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)
PATHS = [f"/x/{number:04d}.jpg" for number in range(ROWS)]
NAMES = ("dml", "grain", "torch", "tf", "pool")
Epoch = Callable[[], Iterator[Any]]


def load(path: Any) -> float:
    """Wait, as for an object store."""
    time.sleep(WORK_S)
    return float(len(path))


def loads(paths: Any) -> np.ndarray:
    """Wait for some rows, one after the other."""
    time.sleep(WORK_S * len(paths))
    return np.ones(len(paths), np.float32)


def again(_row: Any) -> float:
    """Wait once more."""
    time.sleep(WORK_S)
    return 1.0


# ------------------------------------------------------------------------------------ photographs


def photographs(folder: Path) -> list[str]:
    """Paths of so many photographs, some of them several times."""
    found = sorted(map(str, folder.iterdir()))
    return list(itertools.islice(itertools.cycle(found), PHOTOS))


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that lasts as long as the process."""
    return tempfile.TemporaryDirectory()


def packed(images: Path) -> Path:
    """The photographs as a Parquet file, a hundred to a row group."""
    import pyarrow as pa  # noqa: PLC0415 - the peers' environments need none
    import pyarrow.parquet as pq  # noqa: PLC0415

    path = Path(folder().name, "photographs.parquet")
    table = pa.table({"image": [Path(each).read_bytes() for each in photographs(images)]})
    pq.write_table(table, path, row_group_size=100)
    return path


def augmented(encoded: bytes, draw: random.Random) -> np.ndarray:
    """A crop of a photograph, 224 x 224, flipped or not, normalised."""
    import cv2  # noqa: PLC0415

    image = cv2.cvtColor(cv2.imdecode(np.frombuffer(encoded, np.uint8), 1), cv2.COLOR_BGR2RGB)
    height, width = image.shape[:2]
    side = int(min(height, width) * draw.uniform(0.3, 1.0))
    top, left = draw.randint(0, height - side), draw.randint(0, width - side)
    image = cv2.resize(image[top : top + side, left : left + side], (224, 224))
    if draw.random() < 0.5:
        image = image[:, ::-1]
    made: np.ndarray = (image.astype(np.float32) / 255 - MEAN) / STD
    return made


def photograph(path: str, seed: int) -> np.ndarray:
    """The same of a file."""
    return augmented(Path(path).read_bytes(), random.Random(seed))  # noqa: S311


# ------------------------------------------------------------------------------------ contestants


def augment(row: Any, rng: Any) -> Any:
    """A row of dml with a photograph, or its path."""
    data = row["image"] if "image" in row else Path(row["path"]).read_bytes()
    return {"image": augmented(data, random.Random(int(rng.integers(1 << 62))))}  # noqa: S311


def dml_epoch(job: str, images: Path) -> Epoch:
    """As dml's pages would write it."""
    import dml  # noqa: PLC0415

    items = dml.from_items([{"path": path} for path in PATHS])

    def one(row: Any) -> Any:
        return {"y": load(row["path"])}

    def some(batch: Any) -> Any:
        return {"y": loads(batch["path"])}

    def further(row: Any) -> Any:
        return {"y": again(row)}

    made = {
        "items": lambda: items.map(one).batch(BATCH),
        "shuffle.map": lambda: items.shuffle(100).map(one).batch(BATCH),
        "batch.map": lambda: items.batch(10).map(some),
        "filter.map": lambda: items.filter(lambda row: len(row["path"]) > 1).map(one).batch(BATCH),
        "map.shuffle.map": lambda: items.map(one).shuffle(100).map(further).batch(BATCH),
        "step": lambda: items.shuffle(100).map(one).batch(BATCH),
        "step50": lambda: items.shuffle(100).batch(50).map(some),
        "paths": lambda: (
            dml.from_items([{"path": path} for path in photographs(images)])
            .shuffle(seed=1)
            .random_map(augment)
            .batch(PHOTO_BATCH)
        ),
        "parquet": lambda: (
            dml.read_parquet(packed(images)).shuffle(1000).random_map(augment).batch(PHOTO_BATCH)
        ),
    }
    workers = CORES if job in {"paths", "parquet"} else WORKERS
    ds = made[job]().with_options(executor="threads", num_workers=workers)
    return lambda: iter(ds)


def grain_epoch(job: str, images: Path) -> Epoch:
    """As Grain's pages would write it."""
    import grain  # noqa: PLC0415

    class Augment(grain.transforms.RandomMap):  # type: ignore[misc]
        """Of a photograph."""

        def random_map(self, path: str, rng: Any) -> Any:
            """Load and augment it."""
            return photograph(path, int(rng.integers(1 << 62)))

    options = grain.ReadOptions(num_threads=WORKERS, prefetch_buffer_size=64)
    source = grain.MapDataset.source(PATHS)
    if job == "paths":
        two = grain.ReadOptions(num_threads=CORES, prefetch_buffer_size=64)
        photos = grain.MapDataset.source(photographs(images)).seed(1).shuffle()
        return lambda: iter(photos.random_map(Augment()).to_iter_dataset(two).batch(PHOTO_BATCH))
    made = {
        "items": lambda: source.map(load).to_iter_dataset(options).batch(BATCH),
        "shuffle.map": lambda: (
            source.seed(1).shuffle().map(load).to_iter_dataset(options).batch(BATCH)
        ),
        "step": lambda: source.seed(1).shuffle().map(load).to_iter_dataset(options).batch(BATCH),
        "batch.map": lambda: source.batch(10).map(loads).to_iter_dataset(options),
        "filter.map": lambda: (
            source.filter(lambda path: len(path) > 1)
            .map(load)
            .to_iter_dataset(options)
            .batch(BATCH)
        ),
    }
    return lambda: iter(made[job]())


def torch_epoch(job: str, _images: Path) -> Epoch:
    """As PyTorch's pages would write it: a map-style data set, and a process for each worker."""
    from torch.utils.data import DataLoader, Dataset  # noqa: PLC0415

    class Loaded(Dataset):  # type: ignore[misc]
        """One row for one."""

        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, number: int) -> float:
            return load(PATHS[number])

    shuffles = {"items": False, "shuffle.map": True, "step": True}
    loader = DataLoader(
        Loaded(),
        batch_size=BATCH,
        shuffle=shuffles[job],
        num_workers=WORKERS,
        persistent_workers=True,
    )
    return lambda: iter(loader)


def tf_epoch(job: str, _images: Path) -> Epoch:
    """As tf.data's pages would write it, with AUTOTUNE for what is read ahead."""
    import tensorflow as tf  # noqa: PLC0415

    auto = tf.data.AUTOTUNE
    calls = auto if job == "step50" else WORKERS

    def mapped(ds: Any, function: Any, kind: Any = tf.float32) -> Any:
        def call(value: Any) -> Any:
            made: Any = tf.numpy_function(lambda x: np.float32(function(x)), [value], kind)
            return made

        return ds.map(call, num_parallel_calls=calls)

    ds = tf.data.Dataset.from_tensor_slices(PATHS)
    made = {
        "items": lambda: mapped(ds, load).batch(BATCH),
        "shuffle.map": lambda: mapped(ds.shuffle(100), load).batch(BATCH),
        "step": lambda: mapped(ds.shuffle(100), load).batch(BATCH),
        "step50": lambda: mapped(ds.shuffle(100).batch(50), loads),
        "batch.map": lambda: mapped(ds.batch(10), loads),
        "filter.map": lambda: mapped(
            ds.filter(lambda path: tf.strings.length(path) > 1), load
        ).batch(BATCH),
        "map.shuffle.map": lambda: mapped(mapped(ds, load).shuffle(100), again).batch(BATCH),
    }
    options = tf.data.Options()
    options.threading.private_threadpool_size = 2 * WORKERS  # else as many as there are processors
    return lambda: iter(made[job]().prefetch(auto).with_options(options))


def pool_epoch(job: str, images: Path) -> Epoch:
    """The function in a pool of threads, and nothing else: rows in order, stacked in batches."""

    def batches() -> Iterator[Any]:
        with ThreadPoolExecutor(CORES if job == "paths" else WORKERS) as pool:
            if job == "paths":
                made: Iterator[Any] = pool.map(photograph, photographs(images), range(PHOTOS))
                size = PHOTO_BATCH
            else:
                made, size = pool.map(load, PATHS), BATCH
            while some := list(itertools.islice(made, size)):
                yield np.stack(some)

    return batches


EPOCHS = {
    "dml": dml_epoch,
    "grain": grain_epoch,
    "torch": torch_epoch,
    "tf": tf_epoch,
    "pool": pool_epoch,
}
JOBS = {
    "items": NAMES,
    "shuffle.map": ("dml", "grain", "torch", "tf"),
    "batch.map": ("dml", "grain", "tf"),
    "filter.map": ("dml", "grain", "tf"),
    "map.shuffle.map": ("dml", "tf"),
    "step": ("dml", "grain", "torch", "tf"),
    "step50": ("dml", "tf"),
    "paths": ("dml", "grain", "pool"),
    "parquet": ("dml",),
}


def _once(epoch: Epoch, step_s: float) -> dict[str, float]:
    """Seconds to the first batch and to the last, and of processors."""
    used, began, first = _cpu_s(), time.perf_counter(), 0.0
    for _ in epoch():
        first = first or time.perf_counter() - began
        time.sleep(step_s)
    return {"first": first, "all": time.perf_counter() - began, "cpu": _cpu_s() - used}


def _cpu_s() -> float:
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime + found.ru_stime


def _contestant(name: str, job: str, images: Path) -> None:
    if job in {"paths", "parquet"}:
        import cv2  # noqa: PLC0415

        cv2.setNumThreads(0)
    epoch, step_s = EPOCHS[name](job, images), 0.01 if job.startswith("step") else 0.0
    _once(epoch, step_s)
    sys.stdout.write(json.dumps(_once(epoch, step_s)) + "\n")


def _measured(name: str, job: str, arguments: argparse.Namespace) -> dict[str, float]:
    """One turn, in a process."""
    python = dict(each.split("=", 1) for each in arguments.python).get(name, sys.executable)
    command = [python, __file__, "--images", arguments.images, "--one", name, job]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(  # noqa: S603 - itself
        command, capture_output=True, text=True, check=True, env=environment
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure what is asked for, and print a line for each job and contestant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="*")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--images", default="images")
    parser.add_argument("--python", nargs="*", default=[], metavar="NAME=PATH")
    parser.add_argument("--names", nargs="*", default=NAMES)
    parser.add_argument("--one", action="store_true", help="run as a contestant")
    arguments = parser.parse_args()
    if arguments.one:
        name, job = arguments.jobs
        _contestant(name, job, Path(arguments.images))
        return
    for job in arguments.jobs or JOBS:
        names = [name for name in JOBS[job] if name in arguments.names]
        turns: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _, name in itertools.product(range(arguments.turns), names):
            turns[name].append(_measured(name, job, arguments))
        for name, found in turns.items():
            middle = {key: statistics.median(each[key] for each in found) for key in found[0]}
            figures = "  ".join(f"{key} {value:.2f} s" for key, value in middle.items())
            sys.stdout.write(f"{job:16} {name:6} {figures}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
