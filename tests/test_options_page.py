"""Compare docs/options.md with the existing options and their default values."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path
from typing import Any

from dml.settings import Settings

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
ROW = re.compile(r"^\| `(\w+)` \| `(.*?)` \| ", re.MULTILINE)


def told() -> dict[str, Any]:
    return {name: ast.literal_eval(usual) for name, usual in ROW.findall(PAGE.read_text("utf-8"))}


def test_every_option_is_on_the_page_with_its_usual_value() -> None:
    fields = dataclasses.fields(Settings)
    assert told() == {field.name: field.default for field in fields}


def test_every_option_is_told_once_and_in_the_docstring() -> None:
    rows = [name for name, _ in ROW.findall(PAGE.read_text("utf-8"))]
    assert len(rows) == len(set(rows))
    said = re.findall(r"^    (\w+) : ", Settings.__doc__ or "", re.MULTILINE)
    assert sorted(said) == sorted(rows)
