"""The process of one rank of a job, which records what it receives, and obeys the test.

    python split_rank.py FOLDER {"epochs": 1, "stop": 0, "load": "", "sleep_s": 0, "rows": 1001}

After ``stop`` elements it reports, and waits to be killed; with ``raise`` it ends with an error
instead.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import dml
from dml.ranks.streaming_split import RankElements, RankShare


def pipeline(rows: int, watchdog_s: float = 5.0) -> dml.Dataset:
    made = dml.range(rows, atom_rows=50).with_columns(x=dml.col("id") / 7).shuffle(64).batch(4)
    return made.with_options(watchdog_s=watchdog_s, telemetry_dir="off", num_workers=1)


def note(path: Path, value: Any) -> None:
    with path.open("a") as file:
        file.write(json.dumps(value) + "\n")


def loop(share: RankElements, mine: Path, asked: dict[str, Any]) -> None:
    for step, batch in enumerate(share, 1):
        batch["x"] += 0  # the arrays are writable
        note(mine, batch["id"].tolist())
        time.sleep(asked.get("sleep_s", 0))
        if step == asked.get("stop"):
            mine.with_suffix(".state").write_text(json.dumps(share.state_dict()))
            if asked.get("raise"):
                raise KeyError(step)
            os.write(1, b"ready\n")
            time.sleep(600)


def main(folder: Path, asked: dict[str, Any]) -> None:
    mine = folder / f"rank{os.environ['RANK']}"
    ds = pipeline(asked.get("rows", 1001), asked.get("watchdog_s", 5.0))
    part: RankShare = ds.streaming_split(job_name="test", address=asked.get("address"))
    for _ in range(asked.get("epochs", 1)):
        share = iter(part)
        if asked.get("load"):
            share.load_state_dict(json.loads(Path(asked.pop("load")).read_text()))
        try:
            loop(share, mine, asked)
        except dml.DmlError as error:
            note(mine.with_suffix(".error"), [type(error).__name__, str(error)])
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
