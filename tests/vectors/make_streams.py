"""Write the vectors that pin streams: hashes by the oracle, cuts and saved positions.

`python -m tests.vectors.make_streams` rewrites stream_hashes.json and cuts.json beside it. They
change only with a version bump and a page in docs/decisions.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

from dml.api.dataset import Dataset
from dml.data.stream_hash import stream_hash
from dml.expr.node import Node
from dml.testing.executions import PLAIN, elements
from dml.testing.oracle import Oracle
from dml.testing.pipelines import NAMED, write_data

HERE = Path(__file__).parent
POSITIONS = 5
# Slices are cut alike, however long their rows take.
ALIKE = dataclasses.replace(PLAIN, slices=0)


def states(dataset: Dataset, cache: Path) -> tuple[list[Any], list[dict[str, Any]]]:
    """All elements, and the state before each and after the last, as JSON carries them."""
    iterator = elements(dataset._node, ALIKE, cache)
    found, out = [json.loads(json.dumps(iterator.state_dict()))], []
    for element in iterator:
        out.append(element)
        found.append(json.loads(json.dumps(iterator.state_dict())))
    return out, found


def units_of(source: Any) -> list[list[int]]:
    """Number of the first atom, atoms, rows, rows of an atom, per read unit."""
    units = (source.unit(i) for i in range(source.unit_count))
    return [[unit.atom, unit.atoms, unit.rows, unit.atom_rows] for unit in units]


def hash_of(node: Node) -> str:
    """The stream hash of epoch 0, as the oracle has it."""
    return stream_hash(Oracle(node).elements())


def cuts_of(dataset: Dataset, cache: Path) -> dict[str, Any]:
    """How the source is cut, and the first positions that are saved."""
    _, found = states(dataset, cache)
    positions = [state["position"] for state in found[:POSITIONS]]
    return {"units": units_of(dataset._node.chain()[0]), "positions": positions}


def read(name: str) -> dict[str, Any]:
    """The committed vectors of one file."""
    found: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    return found


def text(vectors: dict[str, Any]) -> str:
    """One pipeline a line."""
    lines = [f" {json.dumps(name)}: {json.dumps(found)}" for name, found in vectors.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = write_data(Path(place))
        made = {name: named.make(folder) for name, named in NAMED.items()}
        hashes = {name: hash_of(dataset._node) for name, dataset in made.items()}
        cuts = {name: cuts_of(dataset, folder) for name, dataset in made.items()}
    (HERE / "stream_hashes.json").write_text(text(hashes), encoding="utf-8")
    (HERE / "cuts.json").write_text(text(cuts), encoding="utf-8")


if __name__ == "__main__":
    main()
