"""Plant wrong rules, and define the pipelines in which they change rows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.data.stream_hash import stream_hash
from dml.expr.node import Node
from dml.ops.row.segment import Segment
from dml.ops.slice.take import Take
from dml.optimize import phases
from dml.optimize.rule import Rule, law

Sure = Callable[..., Dataset]
WRONG = law(Node, source="nowhere: it is wrong")


@WRONG
def filter_past_take(node: Node) -> Node | None:
    """filter(take(n)) is take(n) of the filtered."""
    match node:
        case Segment(input=Take() as below) if node.predicate:
            return below.replace(input=node.replace(input=below.input))
    return None


@WRONG
def forgotten_predicate(node: Node) -> Node | None:
    """A filter that keeps all is none."""
    match node:
        case Segment(predicate=parts) if parts:
            return node.replace(predicate=())
    return None


@WRONG
def forgotten_shuffle(node: Node) -> Node | None:
    """Rows are the same in any order."""
    return node.inputs[0] if type(node).__name__ == "ShuffleWindow" else None


def planted(monkeypatch: pytest.MonkeyPatch, rule: Rule) -> None:
    monkeypatch.setattr(phases, "SHAPES", (rule, *phases.SHAPES))


def as_written(ds: Dataset) -> str:
    return stream_hash(ds.with_options(optimize=False, executor="sync", telemetry_dir="off"))


def rows(n: int = 1000, atom_rows: int = 100) -> Dataset:
    return dml.range(n, atom_rows=atom_rows)


def short() -> Dataset:
    return rows().take(50).filter(col("id") % 3 == 0).batch(8)


def filtered() -> Dataset:
    doubled = rows().map(lambda row: {"id": row["id"], "x": row["id"] * 0.5})
    return doubled.filter(col("id") % 3 == 0).shuffle().batch(32)


def mixed() -> Dataset:
    return rows().filter(col("id") % 2 == 0).shuffle(buffer_size=64).batch(32)


def joined() -> Dataset:
    other = rows().with_columns(y=col("id") * 2)
    return rows().filter(col("id") % 3 == 0).join(other, on="id", how="left").batch(32)


PLANTED = {
    "filter_past_take": (short, filter_past_take),
    "forgotten_predicate": (filtered, forgotten_predicate),
    "forgotten_predicate, join": (joined, forgotten_predicate),
    "forgotten_shuffle": (mixed, forgotten_shuffle),
}


def run_again(folder: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(folder / "reproduce.py")],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={"PYTHONPATH": ":".join(map(str, (*paths, Path(dml.__file__).parent.parent)))},
        timeout=120,
    )
