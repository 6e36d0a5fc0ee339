"""This file holds the tables of names for users of other libraries to what dml has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dml

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/coming-from.md").read_text(encoding="utf-8")
PEERS = {"tf.data": "tf_data", "Ray Data": "ray_data"}
# Names of other libraries, and of Python, that the tables send people to.
ELSEWHERE = {"pickle.loads", "pickle.dumps", "tf.data.Dataset.from_generator"}
WORDS = {"target_partition_bytes=", "stratify=", "settings", "iter(ds)", "list(ds)"}


def table(peer: str) -> dict[str, str]:
    """The name there to what is said here."""
    section = PAGE.split(f"## {peer}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
    assert len(dict(rows)) == len(rows), "a name stands twice"
    return dict(rows)


@pytest.mark.parametrize("peer", PEERS)
def test_every_public_method_is_in_the_table(peer: str) -> None:
    names = (ROOT / f"tests/vectors/peers/{PEERS[peer]}.txt").read_text().split()
    assert sorted(table(peer)) == sorted(names)


@pytest.mark.parametrize("peer", PEERS)
def test_what_the_tables_name_is_there(peer: str) -> None:
    said = {code for text in table(peer).values() for code in re.findall(r"`([^`]+)`", text)}
    for code in said - ELSEWHERE - WORDS:
        name = re.match(r"(?:dml\.|\.)?(\w+)", code)
        assert name, code
        owner = dml if code.startswith("dml.") else dml.Dataset
        assert hasattr(owner, name[1]), code


@pytest.mark.parametrize("peer", PEERS)
def test_a_verb_under_its_own_name_is_told(peer: str) -> None:
    """Where dml has the very name, the table says so or says what is different."""
    for name, text in table(peer).items():
        if hasattr(dml.Dataset, name) and callable(getattr(dml.Dataset, name)):
            assert f"`{name}" in text or "settings" in text, name


@pytest.mark.parametrize("peer", PEERS)
def test_a_refusal_gives_its_reason(peer: str) -> None:
    for name, text in table(peer).items():
        if text.startswith("no"):
            assert text.startswith(("no, because ", "not yet")), name


def test_the_ways_in_are_there() -> None:
    """What the last table names exists."""
    section = PAGE.split("## Ways in\n")[1]
    told = [text for _, text in re.findall(r"^\| (`.*`) \| (.*) \|$", section, re.MULTILINE)]
    named = {name for text in told for name in re.findall(r"`dml\.(\w+)", text)}
    assert not [name for name in named if not hasattr(dml, name)]
    assert len(named) > 20
