"""A training loop on a host of its own, which reports each batch and the hash of all batches."""

from __future__ import annotations

import sys
from pathlib import Path

from dml.data.stream_hash import stream_hash
from tests.laws.kills import HANG_S, within
from tests.laws.phases import Graves, pipeline


def main() -> None:
    """Run the pipeline over the folder and on the cluster that the arguments name."""
    folder, address, row_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    ds = pipeline(folder, Graves(folder), row_s, scheduler=address)
    got = []
    for batch in within(iter(ds), HANG_S):
        got.append(batch)
        print(len(got), flush=True)  # noqa: T201 (who started this process listens)
    print(stream_hash(got), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
