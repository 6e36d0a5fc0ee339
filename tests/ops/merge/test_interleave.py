"""Test ``interleave``: blocks of the inputs in a round robin."""

from __future__ import annotations

import pytest

import dml
from dml.errors import PlanError, SchemaError
from tests.expr.checks import QUIET, holds, numbers


def ids(ds: dml.Dataset) -> list[int]:
    return [row["id"] for row in ds.with_options(**QUIET)]


def reference(lengths: list[int], block: int) -> list[int]:
    """A round robin with queues."""
    queues = [[tag * 100 + i for i in range(n)] for tag, n in enumerate(lengths)]
    out: list[int] = []
    while any(queues):
        for queue in queues:
            out += queue[:block]
            del queue[:block]
    return out


@pytest.mark.parametrize("block", range(1, 6))
@pytest.mark.parametrize("inputs", range(1, 6))
def test_a_round_robin(inputs: int, block: int) -> None:
    lengths = [7, 0, 3, 12, 5][:inputs]
    each = [dml.range(t * 100, t * 100 + n, atom_rows=2) for t, n in enumerate(lengths)]
    assert ids(each[0].interleave(*each[1:], block_length=block)) == reference(lengths, block)


@pytest.mark.sample(3)
@pytest.mark.law
@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("n", [0, 1, 7])
def test_every_way_of_running_and_resuming(n: int, block: int) -> None:
    ds, other = numbers(n), numbers(9).shuffle(3, seed=1)
    holds(ds.interleave(other, ds.skip(1), block_length=block))
    holds(ds.interleave(other, block_length=block).shuffle(seed=2).batch(3))
    holds(ds.batch(2).interleave(other.batch(3), block_length=block).repeat(2))


def test_what_is_refused() -> None:
    with pytest.raises(SchemaError, match="different columns"):
        numbers(3).interleave(dml.range(3))
    with pytest.raises(PlanError, match="block_length"):
        numbers(3).interleave(numbers(3), block_length=0)
    with pytest.raises(PlanError, match="interleave needs pipelines"):
        numbers(3).interleave("x")
