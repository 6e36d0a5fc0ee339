"""Test the names of files in a store: versions only increase, and unknown files have no effect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.cache.store import layout
from dml.errors import PlanError

small = st.integers(0, 3)
NAMES = st.one_of(
    st.builds("TOMB.{}".format, small),
    st.builds("{}/part.{}.{}.json".format, small, small, small),
    st.builds("{}/tomb.{}.{}".format, small, small, small),
    st.builds("{}/lease.{}.{}.{}".format, small, small, small, small),
    st.builds("{}/MANIFEST.json".format, small),
)
GARBAGE = st.sampled_from(
    [
        "TOMB.-1",
        "TOMB.01",
        "TOMB.x",
        "part.0.0.json",
        "0/part.0.json",
        "0/part.0.0",
        "0/part.0.0.json~",
    ]
)
FOLDER = layout.entry("ab" * 16)


@pytest.mark.law
@given(st.sets(NAMES), st.lists(GARBAGE))
def test_garbage_changes_nothing(names: set[str], garbage: list[str]) -> None:
    assert layout.viewed(FOLDER, [*garbage, *sorted(names)]) == layout.viewed(FOLDER, names)


@pytest.mark.law
@given(st.sets(NAMES), NAMES)
def test_more_names_never_bring_back_what_has_ended(names: set[str], another: str) -> None:
    before, after = layout.viewed(FOLDER, names), layout.viewed(FOLDER, {*names, another})
    assert after.incarnation >= before.incarnation
    if after.incarnation == before.incarnation:
        assert all(after.version(part) >= before.version(part) for part in range(4))


@pytest.mark.law
@given(st.sets(NAMES))
def test_what_is_dead_may_go(names: set[str]) -> None:
    view = layout.viewed(FOLDER, names)
    dead = layout.dead(view, names)
    left = layout.viewed(FOLDER, names - set(dead))
    assert (left.incarnation, left.live, left.ended) == (view.incarnation, view.live, view.ended)
    assert not [name for name in dead if "tomb" in name and name.startswith(f"{view.incarnation}/")]
    assert not [name for name in dead if name.startswith("TOMB")]
    assert {view.record(part).removeprefix(f"{FOLDER}/") for part in view.live} <= names - set(dead)


@pytest.mark.law
@given(st.sets(NAMES), small)
def test_a_tomb_ends_what_is_there(names: set[str], part: int) -> None:
    view = layout.viewed(FOLDER, names)
    after = layout.viewed(FOLDER, {*names, view.tomb(part).removeprefix(f"{FOLDER}/")})
    assert after.version(part) == view.version(part) + 1
    whole = layout.viewed(FOLDER, {*names, view.end.removeprefix(f"{FOLDER}/")})
    assert whole.incarnation > view.incarnation


@pytest.mark.parametrize(
    "name", ["", "..", "../a" * 4, "AB" * 16, "ab/cd" * 4, "a" * 7, "zz" * 8, "ab" * 65]
)
def test_what_is_no_fingerprint_is_refused(name: str) -> None:
    with pytest.raises(PlanError, match="is not a fingerprint"):
        layout.entry(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "-a", "a" * 65, "a\n", "ü"])
def test_what_is_no_namespace_is_refused(name: str) -> None:
    with pytest.raises(PlanError, match="is not the name of a namespace"):
        layout.namespace(name)
