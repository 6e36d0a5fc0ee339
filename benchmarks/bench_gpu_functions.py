"""This file calls a network on a GPU as a class with ``num_gpus=1``, on each executor.

    python benchmarks/bench_gpu_functions.py [--rows 15360] [executor...]

Pictures are drawn on processors in batches of 256, and a network of torchvision runs on them. Rows
are compared with those of a bare loop over the same batches, bit for bit. Instances and calls leave
files in a folder, which are counted.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml
from dml.base.host import gpus

torch: Any = pytest.importorskip("torch")

BATCH, SIDE = 256, 112
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # without a GPU, only to try this file
ONE: dict[str, Any] = {"resources": {"GPU": 1}}
WHERE: dict[str, dict[str, Any]] = {
    "threads": {"executor": "threads", **ONE},
    "processes": {"executor": "processes", **ONE},
    "auto": {} if gpus() else ONE,
    "cluster": {},
}


def pixels(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Pictures that depend on the number of the first row."""
    drawn = np.random.Generator(np.random.Philox(int(batch["id"][0])))
    shape = len(batch["id"]), 3, SIDE, SIDE
    return {"id": batch["id"], "x": drawn.integers(0, 256, shape, np.uint8)}


class Model:
    """A network on the GPU; a folder gets a file for each instance, and one during each call."""

    def __init__(self, folder: str) -> None:
        from torchvision import models  # type: ignore[import-not-found]  # noqa: PLC0415

        torch.manual_seed(0)
        torch.backends.cudnn.deterministic = True
        self.net, self.folder = models.resnet18().eval().to(DEVICE), Path(folder)
        (self.folder / f"made-{os.getpid()}-{time.monotonic_ns()}").touch()

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The network's answer, computed in float32."""
        try:
            (self.folder / "busy").touch(exist_ok=False)
        except FileExistsError:
            (self.folder / f"overlap-{os.getpid()}-{time.monotonic_ns()}").touch()
        with torch.inference_mode():
            y = self.net(torch.tensor(batch["x"]).to(DEVICE).float().div(255)).cpu().numpy()
        (self.folder / "busy").unlink(missing_ok=True)
        return {"id": batch["id"], "y": y}


def pipeline(rows: int, verb: str, folder: str) -> dml.Dataset:
    """Pictures, then the network."""
    ds = dml.range(rows, atom_rows=BATCH).map_batches(pixels, batch_size=BATCH)
    given: dict[str, Any] = {"num_gpus": 1, "fn_constructor_args": (folder,)}
    if verb == "map":
        return ds.batch(BATCH).map(Model, **given)
    return ds.map_batches(Model, batch_size=BATCH, **given).batch(BATCH)


def bare(rows: int) -> np.ndarray:
    """The rows of a loop without a pipeline, whose times are printed."""
    found, model_s = list[np.ndarray](), 0.0
    with tempfile.TemporaryDirectory() as folder:
        model = Model(folder)
        model(pixels({"id": np.arange(BATCH)}))
        began = time.perf_counter()
        for at in range(0, rows, BATCH):
            given = pixels({"id": np.arange(at, at + BATCH)})
            start = time.perf_counter()
            found.append(model(given)["y"])
            model_s += time.perf_counter() - start
        whole_s = time.perf_counter() - began
    each = 1e3 / len(found)
    print(f"bare loop: {whole_s * each:.1f} ms a batch, {model_s * each:.1f} of it the network")
    return np.concatenate(found)


def measured(ds: dml.Dataset, folder: str, wanted: np.ndarray) -> str:
    """How long two epochs take, and what the instances left in their folder."""
    took, same = [], True
    for _ in range(2):
        began = time.perf_counter()
        found = np.concatenate([batch["y"] for batch in ds])
        took.append((time.perf_counter() - began) / len(wanted) * BATCH * 1e3)
        same = same and found.tobytes() == wanted.tobytes()
    left = [each.name.split("-") for each in Path(folder).iterdir()]
    made = [name[1] for name in left if name[0] == "made"]
    overlaps = sum(name[0] == "overlap" for name in left)
    seen = f"{len(made)} instances in {len(set(made))} processes, {overlaps} calls at once"
    return f"{took[0]:.1f}, then {took[1]:.1f} ms a batch; same bytes: {same}; {seen}"


def cluster(stack: contextlib.ExitStack) -> dict[str, Any]:
    """Options of a run on a cluster of this host whose one worker has the GPU."""
    import distributed  # noqa: PLC0415

    usual = {"n_workers": 1, "threads_per_worker": 4, "dashboard_address": ":0"}
    made = stack.enter_context(distributed.LocalCluster(silence_logs=50, **usual, **ONE))
    return {"scheduler": stack.enter_context(distributed.Client(made, set_as_default=False))}


def main() -> None:
    """Print a line for each executor and verb."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="executor")
    parser.add_argument("--rows", type=int, default=60 * BATCH)
    asked = parser.parse_args()
    print("GPUs that dml counts:", gpus())
    wanted = bare(asked.rows)
    for where, verb in itertools.product(asked.names or WHERE, ("map", "map_batches")):
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            options = cluster(stack) if where == "cluster" else WHERE[where]
            ds = pipeline(asked.rows, verb, folder).with_options(**options)
            print(f"{where}, {verb}: {measured(ds, folder, wanted)}", flush=True)


if __name__ == "__main__":
    main()
