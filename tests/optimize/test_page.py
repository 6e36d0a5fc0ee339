"""Compare docs/optimizer.md with the rules of the optimizer.

After a change of rules: ``pytest tests/optimize/test_page.py --update-plans``, then read the diff.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dml import col
from dml.ops.row.segment import Segment
from dml.optimize.lowering import LOWERINGS
from dml.optimize.rule import Choice, Joint, NamedRule, Pass, Rule
from dml.optimize.rules.families import FAMILIES, NAMED
from dml.testing.plans import plan_of
from tests.optimize.tables import flights

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "optimizer.md"
HEADS = {"rules": "| rule | kind |", "families": "| family | rules |"}


def kind(rule: NamedRule) -> str:
    if isinstance(rule, Rule):
        return "law" if rule.absorbed else "rule"
    if isinstance(rule, Choice | Joint):
        return "choice"
    return "pass" if isinstance(rule, Pass) else "lowering"


def file(rule: NamedRule) -> str:
    made = rule.rewrite if isinstance(rule, Rule | Pass) else getattr(rule, "move", None)
    made = rule.choose if isinstance(rule, Joint) else made
    made = rule.ways if isinstance(rule, Choice) else made
    assert made is not None
    return made.__module__.removeprefix("dml.optimize.").replace(".", "/") + ".py"


def tables() -> dict[str, list[str]]:
    rules = [f"| `{r.name}` | {kind(r)} | `{file(r)}` | {r.source} |" for r in NAMED.values()]
    families = [
        f"| `{name}` | {', '.join(f'`{rule}`' for rule in rules)} |"
        for name, rules in FAMILIES.items()
    ]
    return {"rules": rules, "families": families}


def with_tables(text: str) -> str:
    lines = text.split("\n")
    for name, rows in tables().items():
        first = next(i for i, line in enumerate(lines) if line.startswith(HEADS[name])) + 2
        last = first + next(i for i, line in enumerate(lines[first:]) if not line)
        lines[first:last] = rows
    return "\n".join(lines)


def test_the_page_lists_every_rule_and_family(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-plans"):
        PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_tables(text)


def rewrites() -> list[list[str]]:
    text = PAGE.read_text(encoding="utf-8").split("| # | rewrite |")[1]
    return [line.strip("| ").split(" | ") for line in text.split("\n") if re.match(r"\| \d", line)]


def test_every_known_rewrite_has_its_row() -> None:
    rows = rewrites()
    assert [int(number) for number, *_ in rows] == list(range(1, 41))
    words = ("law", "rule", "pass", "lowering", "normal form", "choice", "always", "not here")
    for _, _, here, reason in rows:
        assert here.startswith(words), here
        assert reason


def test_names_and_files_on_the_page_exist() -> None:
    told = set()
    for _, _, here, reason in rewrites():
        names = re.findall(r"`(\w+)`", here)
        told |= set(names)
        for name in names:
            assert name in NAMED, name
        for path in re.findall(r"`([\w/]+\.py)`", reason):
            folders = ("dml/optimize", "dml", ".")
            assert any((ROOT / folder / path).exists() for folder in folders), path
    assert set(NAMED) - told == UNTOLD


# Entries of the normal form, which no other system has by that name.
UNTOLD = {"columns_as_segment", "filter_as_segment", "merge_sorts"}


def test_every_rule_has_a_law_a_source_and_its_phase() -> None:
    for rule in NAMED.values():
        assert rule.law.endswith("."), rule.name
        assert rule.source, rule.name
    assert all(not isinstance(rule, Rule) for rule in LOWERINGS)


def test_equal_parts_of_columns_and_predicates_are_computed_once() -> None:
    ratio = (col("id") + 1).log1p()
    ds = flights().filter(ratio > 0.5).with_columns(a=ratio * 2, b=ratio * 2 + 1, c=ratio)
    (step,) = plan_of(ds.select("a", "b", "c")).stage.steps
    assert isinstance(step, Segment)
    (lowered,) = step.work.programs.made.values()
    assert sum("log1p" in str(each.op) for each in lowered.program.steps) == 1
