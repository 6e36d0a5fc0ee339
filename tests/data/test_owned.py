"""Test that a function's result is delivered as it was when the function returned it.

Functions reuse one buffer for all rows: an array, a view, a list, a dict, or a nested value.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dml
from dml.api.dataset import Dataset
from dml.data.batch_trays import CopiedRows
from dml.data.escape_analysis import owned_row
from tests.expr.checks import QUIET

ROWS = 150
Row = dict[str, Any]
Filled = Callable[[int], Any]


def array(size: int = 3, **kind: Any) -> Filled:
    buffer = np.zeros(size, **kind)

    def filled(number: int) -> Any:
        buffer[:] = number
        return buffer

    return filled


def view() -> Filled:
    buffer = np.zeros((4, 3))

    def filled(number: int) -> Any:
        buffer[1] = number
        return buffer[1]

    return filled


def single() -> Filled:
    buffer = np.zeros(2, np.int64)

    def filled(number: int) -> Any:
        buffer[:] = number
        return buffer[:1].reshape(())[()]

    return filled


def listed() -> Filled:
    buffer = [0, 0]

    def filled(number: int) -> Any:
        buffer[0] = buffer[1] = number
        return buffer

    return filled


def nested() -> Filled:
    inner = [0]

    def filled(number: int) -> Any:
        inner[0] = number
        return [inner, inner]

    return filled


def struct() -> Filled:
    buffer = {"a": 0, "b": [0]}

    def filled(number: int) -> Any:
        buffer["a"] = number
        buffer["b"][0] = number  # type: ignore[index]
        return buffer

    return filled


def in_tuple() -> Filled:
    buffer = [0]

    def filled(number: int) -> Any:
        buffer[0] = number
        return (buffer, buffer)

    return filled


def odd(buffer: Any) -> Filled:
    """Another kind of list or dict, inside of a list."""

    def filled(number: int) -> Any:
        buffer[0 if isinstance(buffer, list) else "a"] = number
        return [buffer]

    return filled


class Listed(list[int]):
    pass


BUFFERS: dict[str, Callable[[], Filled]] = {
    "array": array,
    "wide array": lambda: array(5000),
    "int32": lambda: array(2, dtype="i4"),
    "view": view,
    "scalar": single,
    "list": listed,
    "nested": nested,
    "struct": struct,
    "tuple": in_tuple,
    "ordered": lambda: odd(OrderedDict(a=0)),
    "subclass": lambda: odd(Listed([0])),
}


def in_a_new_dict(filled: Filled) -> Callable[[Row], Row]:
    return lambda row: {"v": filled(row["id"])}


def in_one_dict(filled: Filled) -> Callable[[Row], Row]:
    made: Row = {}

    def function(row: Row) -> Row:
        made["v"] = filled(row["id"])
        return made

    return function


def in_two_dicts(filled: Filled) -> Callable[[Row], Row]:
    both: list[Row] = [{}, {}]

    def function(row: Row) -> Row:
        made: Row = both[row["id"] % 2]
        made["v"] = filled(row["id"])
        return made

    return function


def in_a_mapping(filled: Filled) -> Callable[[Row], Any]:
    made: UserDict[str, Any] = UserDict()

    def function(row: Row) -> Any:
        made["v"] = filled(row["id"])
        return made

    return function


HOLDERS = (in_a_new_dict, in_one_dict, in_two_dicts, in_a_mapping)


def mapped(ds: Dataset, fn: Callable[[Row], Row]) -> Dataset:
    return ds.map(fn)


def drawn(ds: Dataset, fn: Callable[[Row], Row]) -> Dataset:
    return ds.random_map(lambda row, _: fn(row))


def yielded(ds: Dataset, fn: Callable[[Row], Row]) -> Dataset:
    def children(row: Row) -> Iterator[Row]:
        yield fn(row)

    return ds.flat_map(children)


def scanned(ds: Dataset, fn: Callable[[Row], Row]) -> Dataset:
    return ds.scan(0, lambda state, row: (state, fn(row)))


def skipped(ds: Dataset, fn: Callable[[Row], Row]) -> Dataset:
    return ds.map(fn, on_error="skip")


def declared(ds: Dataset, fn: Callable[[Row], Row]) -> Dataset:
    """Results may depend on the row alone, and lie in one buffer all the same."""
    return ds.map(fn, pure=True)


def declared_children(ds: Dataset, fn: Callable[[Row], Row]) -> Dataset:
    return ds.flat_map(lambda row: (fn(row) for _ in "a"), pure=True)


def of_a_generator(ds: Dataset, fn: Callable[[Row], Row]) -> Dataset:
    del ds
    return dml.from_generator(lambda: (fn({"id": number}) for number in range(ROWS)))


VERBS = (mapped, drawn, yielded, scanned, skipped, declared, declared_children, of_a_generator)


def plain(value: Any) -> Any:
    """Without types that the column may change."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(each) for each in value]
    return float(value)


Case = tuple[str, Any, Any]
CASES: list[Case] = [(buffer, in_a_new_dict, verb) for buffer in BUFFERS for verb in VERBS]
CASES += [("nested", holder, verb) for holder in HOLDERS[1:] for verb in VERBS[:4]]


@pytest.mark.parametrize(("buffer", "holder", "verb"), CASES)
def test_a_buffer_that_is_filled_again_is_delivered_as_it_was(
    buffer: str, holder: Any, verb: Any
) -> None:
    # one instance for all threads would be the user's own race
    ds = verb(dml.range(ROWS), holder(BUFFERS[buffer]())).with_options(**QUIET)
    fresh = BUFFERS[buffer]
    got = [plain(row["v"]) for row in ds]
    assert got == [plain(fresh()(number)) for number in range(ROWS)]


@pytest.mark.parametrize("kind", [bool, np.bool_, "array", "list"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("pure", [None, True])
def test_an_answer_that_is_changed_later_counts_as_it_was(
    kind: Any, on_error: str, pure: bool | None
) -> None:
    flag, many = np.zeros(1, bool), list[int]()

    def keep(row: Row) -> Any:
        flag[0] = row["id"] % 3 == 0
        many[:] = [1] * int(flag[0])
        given: dict[Any, Any] = {"array": flag, "list": many}
        return given[kind] if kind in given else kind(flag[0])

    kept = dml.range(ROWS).filter(keep, on_error=on_error, pure=pure).with_options(**QUIET)
    assert [row["id"] for row in kept] == list(range(0, ROWS, 3))


def test_what_nobody_else_has_is_not_copied() -> None:
    def made() -> Row:
        return {"own": np.zeros(4), "view": np.zeros((2, 4))[1], "text": ["a", "b"], "n": 1}

    rows = [made()]
    before = {name: id(value) for name, value in rows[0].items()}
    found = owned_row(rows.pop(), sole=True)
    assert {name: id(value) for name, value in found.items()} == before


def test_what_somebody_has_is_copied() -> None:
    held = {"own": np.zeros(4), "view": np.zeros((2, 4))[1], "text": ["a", "b"]}
    below = held["view"].base
    for name, value in held.items():
        assert owned_row({name: value}, sole=True)[name] is not value
    row: Row = {"view": below[1]}
    before = id(row["view"])
    assert id(owned_row(row, sole=True)["view"]) != before
    assert owned_row(held) is not held


def test_a_dict_that_an_iterator_fills_again_while_types_are_looked_up() -> None:
    def rows() -> Iterator[Row]:
        made: Row = {}
        for number in range(6):
            made["x"], made["y"] = number or None, [number]
            yield made

    got = [(row["x"], row["y"]) for row in dml.from_iterable(rows()).with_options(**QUIET)]
    assert got == [(number or None, [number]) for number in range(6)]


@pytest.mark.parametrize("value", [[1, None], ["a"], [[1], [2]], [np.zeros(2)], []])
def test_a_list_that_a_function_fills_again(value: list[Any]) -> None:
    rows, kept = CopiedRows(), copy.deepcopy(value)
    for _ in range(2):
        rows.append({"l": value, "n": 1})
        value.append(3)
    assert [len(row["l"]) for row in rows] == [len(kept), len(kept) + 1]
    assert all(row["l"] is not value and row["n"] == 1 for row in rows)
