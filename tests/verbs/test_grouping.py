"""Test column names in groups: the user's names never collide with internal ones."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col

# Names of data, and those of columns that verbs make for a while.
NAMES = [
    "x", "y", "t", "len", "figure 1", "figure 2", "key 1 of group_by", "key 2 of group_by",
    "key 1 of sort", "column 1 of agg", "the place of a row", "the index of map_with_index",
]  # fmt: skip
ROWS = [(1, 10, 5), (2, 20, 6), (1, 30, 7), (3, 40, 5), (2, 50, 6)]
some = st.permutations(NAMES)


def table(names: list[str]) -> dml.Dataset:
    """Three columns under the first three of ``names``."""
    return dml.from_items([dict(zip(names, row, strict=False)) for row in ROWS])


@pytest.mark.law
@given(columns=some, results=some)
def test_figures_of_groups_have_the_names_that_were_given(
    columns: list[str], results: list[str]
) -> None:
    a, b, c = columns[:3]
    key, other, plain, over, twice = results[:5]
    got = (
        table(columns)
        .group_by(**{key: col(a), other: col(a) % 2})
        .agg(
            **{
                plain: col(b).sum(),
                over: col(b).sum() + col(key) * 100,
                twice: (col(c) * 2).max() + col(other),
            }
        )
    )
    groups: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for row in ROWS:
        groups[row[0]].append(row)
    wanted = []
    for first, rows in sorted(groups.items()):
        total, most = sum(row[1] for row in rows), max(row[2] * 2 for row in rows)
        values = (first, first % 2, total, total + first * 100, most + first % 2)
        wanted.append(dict(zip(results, values, strict=False)))
    assert list(got) == wanted


@pytest.mark.law
@given(columns=some)
def test_what_is_made_for_a_while_takes_no_column_away(columns: list[str]) -> None:
    a, b, _ = columns[:3]
    rows = [dict(zip(columns, row, strict=False)) for row in ROWS]
    made = table(columns)
    assert list(made.sort(-col(a))) == sorted(rows, key=lambda row: -row[a])
    assert list(made.drop_duplicates(a)) == [rows[0], rows[1], rows[3]]
    seen = made.map_with_index(lambda index, row: {"i": index, "names": len(row), "b": row[b]})
    assert list(seen) == [{"i": i, "names": 3, "b": row[b]} for i, row in enumerate(rows)]
    grouped = made.group_by(t=col(a) * 0).map_groups(lambda group: group)
    assert list(grouped) == rows


def test_a_key_may_be_shown_twice() -> None:
    got = table(["x", "y", "z"]).group_by("x", t=col("x")).agg(col("y").sum())
    assert list(got.take(1)) == [{"x": 1, "t": 1, "y": 40}]


def test_groups_show_their_keys_and_their_rows() -> None:
    ds = dml.from_dict({"a": [1], "b": [2]})
    assert repr(ds.group_by("a", c=col("b") + 1)) == f"Groups by 'a', 'c' of {ds!r}"
