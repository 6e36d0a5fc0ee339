"""A process that trains on several ranks, saves states, and is killed at some point.

    python split_client.py FOLDER {"n": 3, "load": "", "after": 100, "delay_s": 0.001}

Each rank is a thread; with ``"rank": 1`` this process is that rank of a job of several processes. A
rank records each element, then saves the state of that step in a file of its own. The process is
killed ``delay_s`` seconds after all ranks together have received ``after`` elements (0: never).
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import dml
from dml.ranks.streaming_split import RankElements

ROWS = 2000


def spread(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"id": row["id"] * 2 + i} for i in range(row["id"] % 3)]


def pipeline() -> dml.Dataset:
    made = dml.range(ROWS, atom_rows=50).flat_map(spread, fingerprint="spread").shuffle(64).batch(4)
    return made.with_options(
        telemetry_dir="off", num_workers=2, target_partition_bytes=400, watchdog_s=20.0
    )


def rank(share: RankElements, folder: Path, number: int, count: Any, asked: dict[str, Any]) -> None:
    for step, batch in enumerate(share, 1):
        with (folder / f"rank{number}").open("a") as file:
            file.write(json.dumps(batch["id"].tolist()) + "\n")
        fresh = folder / f"new{number}"
        fresh.write_text(json.dumps(share.state_dict()))
        fresh.rename(folder / f"state{number}-{step}")
        if next(count) == asked["after"]:
            threading.Thread(target=killed, args=(asked["delay_s"],)).start()
    (folder / f"done{number}").touch()


def killed(delay_s: float) -> None:
    time.sleep(delay_s)
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, asked: dict[str, Any]) -> None:
    ds, mine = pipeline().epoch(0), asked.get("rank")
    if mine is None:
        shares = dict(enumerate(map(iter, ds.streaming_split(asked["n"]))))
    else:
        shares = {mine: iter(ds.streaming_split(asked["n"], rank=mine, job_name="law"))}
    for share in shares.values() if asked["load"] else ():
        share.load_state_dict(json.loads(Path(asked["load"]).read_text()))
    count = itertools.count(1)
    threads = [
        threading.Thread(target=rank, args=(share, folder, number, count, asked))
        for number, share in shares.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
