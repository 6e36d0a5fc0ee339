"""This file trains a small network on pictures: the same losses on every executor and after kills.

    python benchmarks/bench_torch.py FOLDER [KILLS]

Pictures of the folder are decoded, cut at a random place and batched by dml, on threads, processes
and a cluster started as from a shell. The losses of each run must be those of the run on one
thread, bit for bit; so must those of trainings that are killed at random steps and go on.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml

KILLS, CLASSES, SEED = 20, 5, 5
WHERE = ("sync", "threads", "processes", "cluster")


def load(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A picture, cut at a random place."""
    from PIL import Image  # noqa: PLC0415 (an optional dependency)

    with Image.open(row["path"]) as opened:
        whole = np.asarray(opened.convert("RGB").resize((40, 40)), dtype="f4") / 255
    y, x = (int(at) for at in rng.integers(0, 9, 2))
    cut = whole[y : y + 32, x : x + 32].transpose(2, 0, 1)
    return {"image": np.ascontiguousarray(cut), "label": row["label"]}


def rows(folder: str, passes: int) -> dml.Dataset:
    """Batches of pictures, in another order and cut otherwise in every pass."""
    found = sorted(str(path) for path in Path(folder).rglob("*.[Jj][Pp]*[Gg]"))
    ds = dml.from_dict({"path": found, "label": [i % CLASSES for i in range(len(found))]})
    return ds.shuffle(seed=3).random_map(load, fingerprint="cut").repeat(passes).batch(16)


def executed(ds: dml.Dataset, where: str) -> dml.Dataset:
    """Run by ``where``: an executor, or the address of a scheduler."""
    usual: dict[str, Any] = {"telemetry_dir": "off"}
    if where.startswith("tcp:"):
        return ds.with_options(scheduler=where, **usual)
    if where != "sync":
        usual["num_workers"] = 2
    return ds.with_options(executor=where, **usual)


def train(folder: str, saved: Path, where: str, passes: int, die_after: int) -> list[float]:
    """The losses of all steps; with ``saved``, from there. Dies after some steps if told so."""
    import torch  # noqa: PLC0415 (an optional dependency)

    torch.manual_seed(0)
    nn, losses = torch.nn, list[float]()
    ds = executed(rows(folder, passes), where).to_torch()
    convolved = (nn.Conv2d(3, 8, 5), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten())
    model = nn.Sequential(*convolved, nn.Linear(8 * 49, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    parts = (model, optimizer, ds)
    if saved.exists():
        *states, losses = torch.load(saved)
        for each, state in zip(parts, states, strict=True):
            each.load_state_dict(state)
    for step, batch in enumerate(torch.utils.data.DataLoader(ds, batch_size=None), 1):
        loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        torch.save([*(part.state_dict() for part in parts), losses], f"{saved}.new")
        Path(f"{saved}.new").replace(saved)
        if step == die_after:
            os.kill(os.getpid(), signal.SIGKILL)
    return losses


@contextmanager
def from_the_shell(workers: int) -> Iterator[str]:
    """The address of a scheduler and workers started as a user would from a shell."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    module = "distributed.cli.dask_"
    commands = [[f"{module}scheduler", "--host", address, "--no-dashboard"]]
    worker = [f"{module}worker", address, "--nthreads", "1", "--no-dashboard"]
    quiet = subprocess.DEVNULL
    with ExitStack() as stack:
        for command in [*commands, *[worker] * workers]:
            run = [sys.executable, "-m", *command]
            started = subprocess.Popen(run, stdout=quiet, stderr=quiet)  # noqa: S603 (ours)
            stack.callback(started.wait)
            stack.callback(started.terminate)
        yield address


def killed(folder: str, saved: Path, where: str, passes: int, cuts: list[int]) -> tuple[Any, int]:
    """The losses of a training killed after each of these steps, and how often it was killed."""
    import torch  # noqa: PLC0415 (an optional dependency)

    died = 0
    lives = [end - start for start, end in zip([0, *cuts], cuts, strict=False)]
    for steps in [*lives, 0]:
        again = [folder, str(saved), where, str(passes), str(steps)]
        ended = subprocess.run([sys.executable, __file__, *again], check=False)  # noqa: S603 (ours)
        died += ended.returncode == -signal.SIGKILL
    return torch.load(saved)[-1], died


def measured(folder: str, passes: int, kills: int) -> Iterator[str]:
    """Lines of the report."""
    with tempfile.TemporaryDirectory() as scratch, from_the_shell(2) as address:
        whole: list[float] = []
        for name in WHERE:
            where = address if name == "cluster" else name
            begin = time.perf_counter()
            losses = train(folder, Path(scratch) / f"{name}.pt", where, passes, 0)
            whole = whole or losses
            took = time.perf_counter() - begin
            assert losses == whole, name
            yield f"{name}: {len(losses)} losses, {losses[0]:.6f} to {losses[-1]:.6f}, {took:.1f} s"
        cuts = sorted(random.Random(SEED).sample(range(1, len(whole)), kills))  # noqa: S311
        for name in WHERE[1:]:
            where = address if name == "cluster" else name
            saved = Path(scratch) / f"{name}-killed.pt"
            losses, died = killed(folder, saved, where, passes, cuts)
            assert losses == whole, (name, "killed")
            assert died == kills
            yield f"{name}: killed after steps {cuts}, the same {len(losses)} losses"


@pytest.mark.cluster
def test_losses_are_those_of_one_thread(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.Generator(np.random.Philox(1)).integers(0, 256, (20, 48, 48, 3), "u1")
    for number, each in enumerate(pixels):
        image.fromarray(each).save(tmp_path / f"{number}.jpg")
    assert len(list(measured(str(tmp_path), 4, 1))) == 2 * len(WHERE) - 1


def main() -> None:
    """Print the report; or, started by ``killed``, train."""
    if len(sys.argv) > 3:
        folder, saved, where, passes, steps = sys.argv[1:]
        train(folder, Path(saved), where, int(passes), int(steps))
        return
    for line in measured(sys.argv[1], 40, int(sys.argv[2]) if len(sys.argv) == 3 else KILLS):
        print(line, flush=True)


if __name__ == "__main__":
    main()
