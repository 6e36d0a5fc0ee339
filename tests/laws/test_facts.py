"""Law: the facts that operators declare hold in random pipelines."""

from __future__ import annotations

from collections.abc import Iterator

from dml.exec.writing.file_writer import KEEPING
from dml.expr.node import Node
from dml.optimize.rules.pushdown import BLIND
from dml.testing.strategies_data import DataPool
from tests.laws.cases import case


def operators(pool: DataPool) -> Iterator[Node]:
    """Every operator of random pipelines, as written, over columns that are known."""
    for number in range(400):
        for node in case(number, pool).node.walk():
            if len(node.inputs) == 1 and node.inputs[0].schema.known and node.schema.known:
                yield node


def test_what_hands_columns_on_says_whether_it_adds_some(pool: DataPool) -> None:
    wrong, adding = [], set()
    for node in operators(pool):
        if node.rows not in {*KEEPING, *BLIND} or hasattr(node, "declared"):
            continue
        given, made = dict(node.inputs[0].schema), dict(node.schema)
        if node.adds:
            adding.add(type(node).__name__)
        if not given.items() <= made.items() or node.adds != (len(made) > len(given)):
            wrong.append(f"{node.title()}: {given} became {made}")
    assert not wrong
    assert "WithRowIndex" in adding
