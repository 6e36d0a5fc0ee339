"""This file trains a network on a GPU with photographs that dml, PyTorch or Grain prepares.

    python benchmarks/bench_gpu.py FOLDER [contestant...] [--model resnet18] [--turns 2]

Paths of JPEG files are shuffled; one function over OpenCV decodes each, crops it at random, resizes
it to 224 x 224 and flips it or not; batches of 64 go to the GPU as bytes, where a network trains in
bfloat16. Each contestant runs in a process of its own, and turns go round them. The first epoch
warms up. ``ceiling`` trains on one batch that lies on the GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml

torch: Any = pytest.importorskip("torch")

PHOTOS, BATCH, SIDE, WORKERS, WARM, ALONE, CLASSES = 6016, 64, 224, 16, 10, 100, 1000
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # without a GPU, only to try this file
NAMES = ("ceiling", "dml", "dml-auto", "dml-processes", "torch", "grain", "grain-ahead")
THREADS: dict[str, Any] = {"executor": "threads", "num_workers": WORKERS}
DML: dict[str, dict[str, Any]] = {
    "dml": THREADS,
    "dml-auto": {},
    "dml-processes": {**THREADS, "executor": "processes"},
    "dml-driver": {**THREADS, "driver": "process"},
}


def photograph(path: str, seed: int) -> np.ndarray:
    """A crop of a photograph as bytes, flipped or not."""
    import cv2  # type: ignore[import-not-found]  # noqa: PLC0415

    draw = random.Random(seed)  # noqa: S311
    image = cv2.imdecode(np.frombuffer(Path(path).read_bytes(), np.uint8), 1)
    height, width = image.shape[:2]
    side = int(min(height, width) * draw.uniform(0.3, 1.0))
    top, left = draw.randint(0, height - side), draw.randint(0, width - side)
    image = cv2.resize(image[top : top + side, left : left + side], (SIDE, SIDE))
    made: np.ndarray = cv2.flip(image, 1) if draw.random() < 0.5 else image
    return made


def augment(row: dict[str, Any], rng: Any) -> dict[str, Any]:
    """A row of dml with its photograph."""
    return {"image": photograph(row["path"], int(rng.integers(1 << 62)))}


def by_dml(paths: list[str], options: dict[str, Any]) -> dml.Dataset:
    """As dml's pages would write it."""
    rows = dml.from_items([{"path": path} for path in paths]).shuffle(seed=1)
    return rows.random_map(augment).batch(BATCH, drop_last=True).with_options(**options)


class Photographs:
    """PyTorch's data set of the same."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> np.ndarray:
        return photograph(self.paths[number], int(torch.randint(1 << 62, ())))


def by_torch(paths: list[str]) -> Any:
    """As PyTorch's pages would write it: a process for each worker, batches in pinned memory."""
    import cv2  # noqa: PLC0415

    kept = {"persistent_workers": True, "prefetch_factor": 4, "pin_memory": DEVICE == "cuda"}
    shape = {"batch_size": BATCH, "shuffle": True, "drop_last": True, "num_workers": WORKERS}
    quiet = lambda _: cv2.setNumThreads(0)  # noqa: E731
    return torch.utils.data.DataLoader(Photographs(paths), worker_init_fn=quiet, **shape, **kept)


def by_grain(paths: list[str], *, ahead: bool) -> Any:
    """As Grain's pages would write it; ``ahead``, batches are made in a thread of their own."""
    import grain  # type: ignore[import-not-found]  # noqa: PLC0415

    class Augment(grain.transforms.RandomMap):  # type: ignore[misc]
        """Of a photograph."""

        def random_map(self, path: str, rng: Any) -> np.ndarray:
            """Load and augment it."""
            return photograph(path, int(rng.integers(1 << 62)))

    many = grain.ReadOptions(num_threads=WORKERS, prefetch_buffer_size=500)
    rows = grain.MapDataset.source(paths).seed(1).shuffle().random_map(Augment())
    made = rows.to_iter_dataset(many).batch(BATCH, drop_remainder=True)
    return (
        grain.experimental.ThreadPrefetchIterDataset(made, prefetch_buffer_size=4)
        if ahead
        else made
    )


def sent(batch: Any) -> Any:
    """The batch on its way to the GPU, out of pinned memory."""
    tensor = torch.as_tensor(batch)
    if DEVICE == "cuda" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(DEVICE, non_blocking=True)


def epochs(name: str, paths: list[str]) -> Callable[[], Iterator[Any]]:
    """What begins an epoch of the contestant ``name``."""
    if name == "ceiling":
        batch = sent(np.stack([photograph(path, 0) for path in paths[:BATCH]]))
        return lambda: itertools.repeat(batch, len(paths) // BATCH)
    if name in DML:
        tensors = by_dml(paths, DML[name]).to_torch(device=DEVICE)
        return lambda: (batch["image"] for batch in tensors)
    made = by_torch(paths) if name == "torch" else by_grain(paths, ahead=name == "grain-ahead")
    return lambda: map(sent, made)


def training(model: str) -> Callable[[Any], None]:
    """One step of a network of torchvision."""
    from torchvision import models  # type: ignore[import-not-found]  # noqa: PLC0415

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    net = getattr(models, model)().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    mean, std = (
        torch.tensor(each, device=DEVICE).view(3, 1, 1) for each in ([118.0] * 3, [59.0] * 3)
    )
    target = torch.arange(BATCH, device=DEVICE) % CLASSES

    def step(images: Any) -> None:
        x = (images.permute(0, 3, 1, 2).float() - mean) / std  # channels last, as the bytes are
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(net(x), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def settled() -> float:
    """The time when all work given to the GPU is done."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def cpu_s() -> float:
    """Processor seconds of this process and of those that it started and that live."""
    import psutil  # noqa: PLC0415

    total = 0.0
    for each in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += sum(each.cpu_times()[:2])
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return total + ended.ru_utime + ended.ru_stime


def contestant(name: str, paths: list[str], model: str) -> dict[str, float]:
    """The second epoch of a training: images a second, first batch, waiting, processors."""
    import cv2  # noqa: PLC0415

    cv2.setNumThreads(0)
    step, begin = training(model), epochs(name, paths)
    one = torch.zeros((BATCH, SIDE, SIDE, 3), dtype=torch.uint8, device=DEVICE)
    for _ in range(WARM):
        step(one)
    began = settled()
    for _ in range(ALONE):
        step(one)
    alone, figures = (settled() - began) / ALONE, dict[str, float]()
    for epoch in ("1", "2"):
        used, began, first, steps = cpu_s(), settled(), 0.0, 0
        for batch in begin():
            first = first or time.perf_counter() - began
            step(batch)
            steps += 1
        wall = settled() - began
        assert steps == len(paths) // BATCH
        figures |= {f"images/s {epoch}": steps * BATCH / wall, f"first ms {epoch}": first * 1e3}
        figures[f"cpu ms {epoch}"] = (cpu_s() - used) / steps / BATCH * 1e3
        figures[f"waits % {epoch}"] = (1 - alone * steps / wall) * 100
    return {"step ms": alone * 1e3, **figures}


def feed(asked: argparse.Namespace) -> None:
    """Print a line for each turn of each contestant."""
    for turn, name in itertools.product(range(asked.turns), asked.names or NAMES):
        command = [sys.executable, __file__, asked.folder, name, "--one"]
        command += ["--model", asked.model, "--photos", str(asked.photos)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            print(
                f"{asked.model} turn {turn + 1} {name:12} FAILED\n{done.stderr[-3000:]}", flush=True
            )
            continue
        figures = json.loads(done.stdout.splitlines()[-1])
        line = "  ".join(f"{key} {value:.2f}" for key, value in figures.items())
        print(f"{asked.model} turn {turn + 1} {name:12} {line}", flush=True)


def main() -> None:
    """Measure what is asked for, or run as one contestant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("names", nargs="*", metavar="contestant")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--photos", type=int, default=PHOTOS)
    parser.add_argument("--one", action="store_true", help="run as a contestant")
    asked = parser.parse_args()
    if not asked.one:
        feed(asked)
        return
    found = sorted(map(str, Path(asked.folder).iterdir()))
    paths = list(itertools.islice(itertools.cycle(found), asked.photos))
    print(json.dumps(contestant(asked.names[0], paths, asked.model)))


if __name__ == "__main__":
    main()
