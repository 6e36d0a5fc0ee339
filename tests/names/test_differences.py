"""Law: two pipelines have a reported difference exactly if their fingerprints differ."""

from __future__ import annotations

import functools
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dml
from dml import col, lit
from dml.api.catalog import describe_pipeline
from dml.base.fingerprint import digest
from dml.expr.columns.column import Column
from dml.optimize.explain.fingerprint_text import MOST, FingerprintText, from_json, keyed, to_json
from dml.optimize.explain.fingerprint_tree import SpelledPart, function_parts, short_repr
from dml.optimize.explain.name_differences import Difference, common, first_difference, nearest
from dml.testing.strategies import pipeline
from dml.testing.strategies_data import DataPool
from tests.sampling import amount

SEEDS = st.integers(0, 400)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> DataPool:
    return DataPool(tmp_path_factory.mktemp("pool"))


def drawn(seed: int, pool: DataPool) -> dml.Dataset:
    return pipeline(random.Random(seed), pool).dataset


def story(ds: dml.Dataset) -> FingerprintText:
    return describe_pipeline(ds, "ds", "test")


@pytest.mark.law
@settings(deadline=None, max_examples=amount(25, 60))
@given(SEEDS, SEEDS)
def test_two_pipelines_differ_exactly_where_their_fingerprints_do(
    pool: DataPool, one: int, other: int
) -> None:
    a, b = drawn(one, pool), drawn(other, pool)
    unnamed = any(fn.reason for ds in (a, b) for n in ds._node.walk() if (fn := n.calls))
    if unnamed:
        return
    found = dml.why_miss(a, b)
    assert bool(found) == (a.fingerprint() != b.fingerprint())
    assert bool(dml.why_miss(b, a)) == bool(found)
    assert len(str(found).splitlines()) == (4 if found else 1)
    assert "nothing of the kind here, nothing of the kind there" not in str(found)
    kept = from_json(json.loads(json.dumps(to_json(story(a)))))
    assert bool(first_difference(kept, story(b))) == bool(found)
    assert not first_difference(kept, story(a))


@pytest.mark.law
@settings(deadline=None, max_examples=amount(15, 30))
@given(st.lists(SEEDS, min_size=1, max_size=4), SEEDS)
def test_the_nearest_has_most_operators_in_common(
    pool: DataPool, kept: list[int], asked: int
) -> None:
    stories, mine = [story(drawn(seed, pool)) for seed in kept], story(drawn(asked, pool))
    most = max(common(mine, each) for each in stories)
    differences = [first_difference(mine, each) for each in stories if common(mine, each) == most]
    assert nearest(mine, stories) in differences


def test_nothing_kept_is_no_reason() -> None:
    assert nearest(story(dml.range(3)), []).kind == "nothing"


# ----------------------------------------------------------------------------------- what is shown


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


@pytest.mark.law
@given(JSONS, JSONS, JSONS)
def test_anything_that_was_written_down_is_read(one: object, two: object, three: object) -> None:
    found = from_json({"operators": one, "made_of": two, "written": three})
    assert isinstance(first_difference(found, story(dml.range(3))), Difference)


@pytest.mark.law
@given(JSONS)
def test_what_is_no_part_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match="not a part"):
        SpelledPart.read(given)


class Shouting:
    def __repr__(self) -> str:
        raise RuntimeError("not now")


@given(st.one_of(st.text(), st.binary(), st.integers(), st.lists(st.integers()), st.floats()))
def test_what_is_shown_is_one_short_line(value: object) -> None:
    assert len(short_repr(value)) < 200
    assert len(short_repr(value).splitlines()) <= 1


def test_values_that_cannot_be_shown_are_said_to_be_of_their_class() -> None:
    assert short_repr(Shouting()) == "an instance of Shouting"
    assert short_repr(object()) == "an instance of object"
    assert short_repr(list(range(1000))) == "a list of 1000"
    assert short_repr(short_repr) == "short_repr"


@pytest.mark.law
def test_a_function_that_reaches_much_is_written_down_in_little() -> None:
    table = {str(i): {str(j): j for j in range(100)} for i in range(100)}

    def looked_up(row: dict[str, int]) -> dict[str, object]:
        return {"v": [table[str(row["id"])]]}

    ds = dml.range(3).map(looked_up)
    about = to_json(story(ds))
    assert len(json.dumps(about)) < 100_000
    table["7"]["8"] = 0
    changed = story(dml.range(3).map(looked_up))
    found = first_difference(from_json(about), changed)
    assert found.kind in {"item", "closure"}
    assert "table" in found.path


def test_functions_that_reach_themselves_are_spelled_out() -> None:
    def down(n: int) -> int:
        return 0 if n == 0 else down(n - 1)

    parts = function_parts("down", down)
    assert parts
    assert 0 < parts[0].size() < MOST


def test_long_values_are_not_written_down() -> None:
    """Text is shown by its beginning, so that what is told of an entry stays short."""
    secret = "x" * 1000
    ds = dml.range(3).map(lambda row: {"v": secret + str(row["id"])})
    assert secret[:200] not in json.dumps(to_json(story(ds)))


# ------------------------------------------------------------------------ what makes no difference

DATA = dml.from_dict({"x": [1, 2, 3], "y": [1.0, 2.0, 3.0]})
KEPT = [col("x") > 1, col("y") < 3.0, col("x") + col("y") > 2]


@given(st.permutations(KEPT), st.permutations(KEPT))
def test_the_order_of_filters_hides_no_other_difference(
    one: list[Column], other: list[Column]
) -> None:
    a, b = (functools.reduce(dml.Dataset.filter, each, DATA) for each in (one, other))
    assert not dml.why_miss(a, b)
    found = dml.why_miss(a.with_columns(z=col("x") + 1), b.with_columns(z=col("x") + 2))
    assert (found.kind, found.path, found.here, found.there) == ("constant", "column 'z'", "1", "2")
    assert found.operator.startswith("WithColumns(z=")


def test_the_order_of_filters_that_may_fail_is_a_difference() -> None:
    first, second = (col("x").cast("i1") > at for at in (0, 1))
    a, b = (DATA.filter(one).filter(two) for one, two in ((first, second), (second, first)))
    assert dml.why_miss(a, b).kind == "filters"


def test_a_mirrored_comparison_hides_no_other_difference() -> None:
    x, y = col("x"), col("y")
    found = dml.why_miss(DATA.filter(x > y + 1), DATA.filter(y + 2 < x))
    assert (found.kind, found.here, found.there) == ("constant", "1", "2")
    z = dml.why_miss(
        DATA.filter(x > 1).with_columns(z=y + 1), DATA.filter(lit(1) < x).with_columns(z=y + 2)
    )
    assert z.operator.startswith("WithColumns(z=")
    none = dml.why_miss(DATA.filter(x > 1).select("x"), DATA.filter(lit(1) < x).select("y"))
    assert (none.kind, none.operator[:6]) == ("columns", "Select")


def named(name: str, *parameters: str, by: int, around: str = "") -> Any:
    """Return a function called ``name`` that adds ``by``, or calls what the variable holds."""
    space: dict[str, Any] = {}
    added = f"{around}(row['x'])" if around else f"row['x'] + {by}"
    inner = f"def {name}(row):\n        return {{'x': {added}, 'text': str(print)}}"
    text = f"def outer({around}):\n    {inner}\n    return {name}"
    exec(text, space)  # the name in the code is the function's own
    return space["outer"](*([(lambda value: value + by)] if around else []))


@pytest.mark.parametrize("keyed_by", [None, "secret"])
@pytest.mark.parametrize("around", ["", "f"])
def test_functions_of_other_names_are_compared_inside(around: str, keyed_by: str | None) -> None:
    a = DATA.map(named("one", by=1, around=around))
    assert not dml.why_miss(a, DATA.map(named("other", by=1, around=around)))
    mine, theirs = story(a), story(DATA.map(named("other", by=2, around=around)))
    if keyed_by is not None:
        mine, theirs = (
            keyed(each, lambda text: digest(keyed_by, text).hex()) for each in (mine, theirs)
        )
    found = first_difference(mine, theirs)
    assert found.kind == ("closure" if around else "constant")
    assert (found.here, found.there) == ("1", "2")


def test_the_name_of_a_variable_around_a_function_is_a_difference() -> None:
    a, b = (DATA.map(named(name, by=1, around=around)) for name, around in ("af", "bg"))
    found = dml.why_miss(a, b)
    assert (found.kind, found.path, found.there) == ("function", "a.f", "nothing of the kind")


def test_a_named_and_an_unnamed_function_of_other_names_are_told_apart() -> None:
    a = DATA.map(named("one", by=1))
    b = DATA.map(named("other", by=1), fingerprint="mine")
    assert dml.why_miss(a, b).kind == "given name"
    assert "other" in dml.why_miss(a, b).other
