"""A training process is killed, without warning, and another goes on with the very next batch.

The parent starts this file as a child, which saves its state after every batch and then kills
itself; a second child resumes. Together they see the epoch exactly once, in the same order.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import dml


def pipeline() -> dml.Dataset:
    return dml.range(10_000).shuffle(seed=5).batch(100).with_options(telemetry_dir="off")


def train(folder: Path, die_after: int) -> None:
    """Go on from the saved state, if there is one; die after so many batches of this process."""
    checkpoint, log = folder / "state.json", folder / "seen.txt"
    it = iter(pipeline())
    if checkpoint.exists():
        it.load_state_dict(json.loads(checkpoint.read_text()))
    for number, batch in enumerate(it, 1):
        with log.open("a") as file:  # the "training step"
            file.write(" ".join(map(str, batch["id"])) + "\n")
        fresh = checkpoint.with_suffix(".new")
        fresh.write_text(json.dumps(it.state_dict()))
        fresh.replace(checkpoint)  # whole or not at all
        if number == die_after:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for die_after in (37, 21, 0):
            command = [sys.executable, __file__, scratch, str(die_after)]
            code = subprocess.run(command, check=False).returncode  # noqa: S603 - this very file
            print("killed" if code == -signal.SIGKILL else "finished")
        seen = (Path(scratch) / "seen.txt").read_text().splitlines()
        size = (Path(scratch) / "state.json").stat().st_size
    whole = [" ".join(map(str, batch["id"])) for batch in pipeline()]
    assert seen == whole
    print(f"{len(seen)} batches, each once and in order; the state has {size} bytes")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        main()
