"""Test ``choose_from_datasets``: an input of indices selects the source of the next element."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.errors import CastError, NullValueError, PlanError, SchemaError
from tests.expr.checks import QUIET, agrees, holds, node_of, numbers


def tagged(n: int, tag: int) -> dml.Dataset:
    return dml.range(tag * 100, tag * 100 + n, atom_rows=3).with_options(**QUIET)


def selector(choices: list[Any]) -> dml.Dataset:
    return dml.from_items(choices, {"item": "int64"}, atom_rows=4).with_options(**QUIET)


def reference(lengths: list[int], choices: list[int], *, stop: bool) -> list[int]:
    """What the words say, with lists."""
    left = [list(range(tag * 100, tag * 100 + n)) for tag, n in enumerate(lengths)]
    out = []
    for number in choices:
        if left[number]:
            out.append(left[number].pop(0))
        elif stop:
            break
    return out


@pytest.mark.law
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.integers(0, len(n) - 1), max_size=40))
    ),
    st.booleans(),
)
def test_each_choice_takes_the_next_of_its_input(
    case: tuple[list[int], list[int]], stop: bool
) -> None:
    lengths, choices = case
    inputs = [tagged(n, tag) for tag, n in enumerate(lengths)]
    found = dml.choose_from_datasets(inputs, selector(choices), stop_on_empty_dataset=stop)
    assert [row["id"] for row in found] == reference(lengths, choices, stop=stop)


@pytest.mark.sample(3)
@pytest.mark.law
@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("n", [0, 2, 40])
def test_every_way_of_running_and_resuming(n: int, stop: bool) -> None:
    inputs = [numbers(7), numbers(9).shuffle(3, seed=1), numbers(3).skip(1)]
    which = selector([i * i % 3 for i in range(n)])
    made = dml.choose_from_datasets(inputs, which, stop).with_options(**QUIET)
    holds(made)
    holds(made.shuffle(seed=2).batch(3))
    batches = [each.batch(2) for each in inputs]
    holds(dml.choose_from_datasets(batches, which, stop).with_options(**QUIET).repeat(2))
    holds(made.map(lambda row: {"y": f"{row['x']}"}, fingerprint="y"))


def test_it_ends_once_every_input_is_over() -> None:
    which = selector([0, 1, 1]).repeat()
    found = dml.choose_from_datasets(
        [tagged(3, 0), tagged(5, 1)], which, stop_on_empty_dataset=False
    )
    assert [row["id"] for row in found] == [0, 100, 101, 1, 102, 103, 2, 104]
    assert found.cardinality() is None
    endless = dml.choose_from_datasets([tagged(3, 0).repeat()] * 2, which)
    assert endless.cardinality() == float("inf")


@pytest.mark.law
def test_a_state_is_small_wherever_it_is_taken() -> None:
    which = selector([0, 1, 1, 0] * 500)
    it = iter(dml.choose_from_datasets([tagged(900, 0), tagged(900, 1)], which))
    assert max(len(json.dumps(it.state_dict())) for _ in it) < 1024


@pytest.mark.law
@pytest.mark.parametrize(
    ("wrong", "error"), [(3, CastError), (-1, CastError), (None, NullValueError)]
)
def test_a_choice_that_is_none_stands_at_its_place(wrong: Any, error: type[Exception]) -> None:
    made = dml.choose_from_datasets([numbers(4)] * 3, selector([0, 2, 1, 2, wrong, 0]))
    it = iter(made.with_options(**QUIET))
    assert [next(it)["x"] for _ in range(4)] == [0, 0, 0, 1]
    with pytest.raises(error, match=r"of 3 inputs, row 4 of the selector names") as found:
        next(it)
    assert "test_choose.py" in str(found.value)
    agrees(made)
    agrees(made.take(4))


def test_what_is_refused() -> None:
    which = selector([0])
    with pytest.raises(SchemaError, match="one column of whole numbers"):
        dml.choose_from_datasets([numbers(3)], which.with_columns(more=1))
    with pytest.raises(SchemaError, match="one column of whole numbers"):
        dml.choose_from_datasets([numbers(3)], dml.from_items(["a"]))
    with pytest.raises(SchemaError, match="different columns"):
        dml.choose_from_datasets([numbers(3), dml.range(3)], which)
    with pytest.raises(PlanError, match="rows and batches"):
        dml.choose_from_datasets([numbers(3), numbers(3).batch(2)], which)
    with pytest.raises(PlanError, match="rows and batches"):
        dml.choose_from_datasets([numbers(3)], which.batch(2))
    with pytest.raises(PlanError, match="needs a list of pipelines"):
        dml.choose_from_datasets([], which)
    with pytest.raises(PlanError, match="needs pipelines, got 3"):
        dml.choose_from_datasets([numbers(3), 3], which)  # type: ignore[list-item]
    with pytest.raises(PlanError, match="stop_on_empty_dataset=1"):
        dml.choose_from_datasets([numbers(3)], which, 1)  # type: ignore[arg-type]
    late = which.map(lambda row: {"item": repr(row["item"])}, fingerprint="text")
    with pytest.raises(SchemaError, match="the selector has item: string") as found:
        list(dml.choose_from_datasets([numbers(3)], late).with_options(**QUIET))
    assert "Choose" in str(found.value)


def test_the_doors_of_several_pipelines_are_their_methods() -> None:
    one, two = numbers(3), numbers(5)
    assert (
        node_of(dml.concat(one, two)) == node_of(dml.concat([one, two])) == node_of(one.concat(two))
    )
    beside = two.rename({"x": "y"})
    assert node_of(dml.zip(one, beside)) == node_of(one.zip(beside))
    assert node_of(dml.interleave([one, two], block_length=2)) == node_of(
        one.interleave(two, block_length=2)
    )
    mixed = one.mix(two, weights=[1, 2], stop="first")
    for verb in (dml.mix, dml.sample_from_datasets, dml.interleave_datasets):
        assert node_of(verb(one, two, weights=[1, 2], stop="first")) == node_of(mixed)
    which = selector([0])
    assert node_of(dml.Dataset.choose_from_datasets([one], which)) == node_of(
        dml.choose_from_datasets([one], which)
    )
    doors: list[Any] = [dml.concat, dml.zip, dml.mix, dml.interleave]
    for verb in doors:
        assert node_of(verb(one)) == node_of(one)
        with pytest.raises(PlanError, match="needs a list of pipelines"):
            verb()
