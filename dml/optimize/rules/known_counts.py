"""Rules of known counts simplify slices that the length of the data decides.

The rules use the data's size, on which fingerprints must not depend; so they run after the normal
form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.io.source import Source
from dml.ops.batch.batch import Batch
from dml.ops.row.segment import Segment
from dml.ops.slice.repeat import Repeat
from dml.ops.slice.skip import Skip
from dml.ops.slice.take import Take
from dml.ops.sort.sort import Sort
from dml.optimize.rule import rule

T = TypeVar("T")


@rule(Take, source="tf.data noop_elimination")
def drop_take_of_less(node: Node) -> Node | None:
    """take(n) of an input that cannot have more than n elements is its input.

    take(0) is excluded, since it does not even read rows that may raise an error.
    """
    match node:
        case Take(input=given) if node.n:
            most = most_elements(given)
            return given if most is not None and most <= node.n else None
    return None


@rule(Take, source="top-k; Graefe, Query evaluation techniques, 1993")
def take_while_sorting(node: Node) -> Node | None:
    """take(n) of a sort keeps only the first n rows in memory, instead of sorting all rows."""
    match node:
        case Take(input=Sort() as lower):
            return _first(node, lower, node.n)
        case Take(input=Skip(input=Sort() as lower) as between):
            below = _first(between, lower, between.n + node.n)
            return None if below is None else node.replace(input=below)
    return None


def _first(node: Take | Skip, lower: Sort, n: int) -> Node | None:
    """Return ``node`` over a sort limited to ``n`` rows; None if the sort is limited already."""
    if lower.most is not None and lower.most <= n:
        return None
    return node.replace(input=lower.replace(most=n))


def most_elements(node: Node) -> int | None:
    """Return an upper bound on the number of elements of ``node``; None if none is known."""
    return along_chain(node, "most", _after, None)


def along_chain(node: Node, name: str, after: Callable[[Node, T], T], start: T) -> T:
    """Return the result of applying ``after(step, result below)`` from the source up to ``node``.

    ``start`` is the result below the source. Long chains are evaluated often, so each node memoizes
    its result under ``name``; nodes never change.
    """
    chain = [node]
    while name not in chain[-1].memo and chain[-1].inputs:
        chain.append(chain[-1].inputs[0])
    found = start
    for step in reversed(chain):
        if name not in step.memo:
            step.memo[name] = after(step, found)
        found = step.memo[name]
    return found


def _after(step: Node, most: int | None) -> int | None:
    match step:
        case Source():
            return step.row_count
        case Take():
            return step.n if most is None else min(most, step.n)
        case Repeat():
            return None if most is None or step.n is None else most * step.n
    if most is None:
        return None
    match step:
        case Skip():
            return max(most - step.n, 0)
        case Batch():
            # rounded up, also where the tail is dropped: it is read, and may fail
            return -(-most // step.n)
    return most if step.rows in (Rows.SAME, Rows.FEWER, Rows.PERMUTED) else None


def one_to_one(step: Node) -> bool:
    """Return True if the operator outputs exactly one element for each input element."""
    if isinstance(step, Segment):
        return not step.predicate
    return step.rows is Rows.SAME
