"""A PyTorch training is killed on its way; its losses are, bit for bit, those of one whole run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import dml


def picture(row: dict, rng: np.random.Generator) -> dict:
    """A noisy bar, upright or lying: what the network must tell apart."""
    image = rng.normal(0, 0.5, (12, 12)).astype("f4")
    at, upright = int(rng.integers(2, 10)), row["id"] % 2
    (image.T if upright else image)[at] += 1
    return {"image": image, "upright": upright}


def train(saved: Path, executor: str, die_after: int) -> list[float]:
    torch.manual_seed(0)
    rows = dml.range(480).shuffle().random_map(picture, fingerprint="bars").repeat(2)
    ds = rows.batch(32).with_options(executor=executor, telemetry_dir="off").to_torch()
    nn, losses = torch.nn, list[float]()
    model = nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.Flatten(), nn.Linear(512, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if saved.exists():
        *states, losses = torch.load(saved)
        for each, state in zip((model, optimizer, ds), states, strict=True):
            each.load_state_dict(state)  # the dataset's is a few hundred bytes
    for step, batch in enumerate(torch.utils.data.DataLoader(ds, batch_size=None), 1):
        loss = nn.functional.cross_entropy(model(batch["image"][:, None]), batch["upright"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        torch.save([*(p.state_dict() for p in (model, optimizer, ds)), losses], f"{saved}.new")
        Path(f"{saved}.new").replace(saved)  # whole or not at all
        if step == die_after:
            os.kill(os.getpid(), signal.SIGKILL)
    return losses


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
        sys.exit()
    with tempfile.TemporaryDirectory() as scratch:
        whole, saved = train(Path(scratch) / "whole.pt", "sync", 0), f"{scratch}/killed.pt"
        for die_after in ("11", "6", "0"):
            again = [sys.executable, __file__, saved, "threads", die_after]
            subprocess.run(again, check=False)  # noqa: S603 - this very file
        assert torch.load(saved)[-1] == whole
    print(f"{len(whole)} losses, equal to the last bit; the last one is {whole[-1]:.4f}")
