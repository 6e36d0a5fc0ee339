"""Test errors: four lines, places that are added once, pickling."""

from __future__ import annotations

import pickle

import pytest

from dml import errors
from dml.errors import DmlError, UDFError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type)]


def test_four_lines() -> None:
    error = DmlError("what", at="here", why="because", try_="that")
    assert str(error).split("\n") == ["what", "  at    here", "  why   because", "  try   that"]
    assert str(DmlError("what")) == "what"


@pytest.mark.parametrize("kind", [k for k in KINDS if issubclass(k, DmlError)])
def test_errors_survive_pickling(kind: type[DmlError]) -> None:
    error = kind("what", at="here", why="because", try_="that")
    error.extra = 3  # type: ignore[attr-defined]
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again)["extra"] == 3


def test_places() -> None:
    error = UDFError("what", operator="f", file="a.parquet", row=3)
    assert error.located("Map(f)").located("Other").at == "Map(f)"
    assert error.under("Map(f)").at == "Map(f)"
    assert error.under("Filter(g)").at == "Filter(g); Map(f)"
    assert DmlError("w", at="x, written in a.py:1").under("y").at == "x, written in a.py:1"
    assert (error.operator, error.file, error.row_group, error.row) == ("f", "a.parquet", None, 3)
