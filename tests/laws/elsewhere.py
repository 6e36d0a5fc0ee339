"""The main program of another process that names, runs and resumes pipelines, and prints JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dml.api.dataset import Dataset
from dml.data.stream_hash import stream_hash
from dml.errors import FingerprintError
from dml.testing.executions import PLAIN, elements
from dml.testing.pipelines import NAMED
from dml.testing.strategies_data import DataPool
from tests.laws.cases import case


def name_of(dataset: Dataset) -> str:
    """The fingerprint, or why there is none."""
    try:
        return dataset.fingerprint()
    except FingerprintError as error:
        return error.what


def names(request: dict[str, Any]) -> dict[str, str]:
    """Fingerprints of the named pipelines and of random ones, over data of their own."""
    folder = Path(request["folder"])
    found = {name: name_of(named.make(folder)) for name, named in NAMED.items()}
    pool = DataPool(Path(request["pool"]))
    for number in request["cases"]:
        found[str(number)] = name_of(case(number, pool).drawn.dataset)
    return found


def rests(request: dict[str, Any]) -> list[str]:
    """Stream hashes of what is left from each state."""
    folder, cache = Path(request["folder"]), Path(request["cache"])
    return [
        stream_hash(elements(NAMED[name].make(folder)._node, PLAIN, cache, state=state))
        for name, state in request["states"]
    ]


def hashes(request: dict[str, Any]) -> dict[str, str]:
    """Stream hashes of all named pipelines."""
    folder, cache = Path(request["folder"]), Path(request["cache"])
    return {
        name: stream_hash(elements(named.make(folder)._node, PLAIN, cache))
        for name, named in NAMED.items()
    }


if __name__ == "__main__":
    given = json.loads(sys.stdin.read())
    answer = {"names": names, "rests": rests, "hashes": hashes}[given["what"]](given)
    sys.stdout.write(json.dumps(answer) + "\n")
