"""Run the workarounds that the tables for users of other libraries recommend.

There is one function for each row that refuses a name, and for some rows that refer to another
name. Each function uses what its row names first, and checks the result.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from tests.peer_tables import CODE, Door, Reading
from tests.test_coming_from import TABLES
from tests.workarounds import expressions, pipelines

RUN = {**pipelines.RUN, **expressions.RUN}
CASES = [(peer, name) for peer, found in RUN.items() for name in found]


@pytest.mark.law
@pytest.mark.parametrize(("peer", "name"), CASES)
def test_it_does_what_the_table_says(peer: str, name: str, tmp_path: Path) -> None:
    RUN[peer][name](tmp_path)


@pytest.mark.parametrize(("peer", "name"), CASES)
def test_it_uses_what_the_table_names(peer: str, name: str) -> None:
    """The first way that the row names, after a reason if it gives one, is what is run."""
    table = TABLES[peer]
    way = re.sub("^no, because [^;]+; ", "", table.told()[name])
    doors: list[Door] = []
    Reading(table.owner, doors).of(ast.parse(CODE.findall(way)[0], mode="eval").body, top=True)
    source = inspect.getsource(RUN[peer][name])
    assert all(door.function.__name__ in source for door in doors)
    assert doors or "pickle" in source


@pytest.mark.parametrize("peer", TABLES)
def test_every_refusal_has_one(peer: str) -> None:
    """A row that refuses several names has one way for all of them."""
    refused = [names for names, text in TABLES[peer].rows() if text.startswith("no, because ")]
    run = RUN.get(peer, {}).keys()
    assert not [names for names in refused if not run & set(names)]
