"""Test which arrays of a function are used without a copy: those to which it kept no reference."""

from __future__ import annotations

import ctypes
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml.data.escape_analysis import ReferenceCounts, owned_row

ROWS = 6

Batch = dict[str, np.ndarray]


def fresh(returned: list[Any]) -> set[int]:
    """What is safe of what a function made that was given nothing."""
    return ReferenceCounts({}).begun().safe(returned)


def _dict(made: Batch) -> Any:
    return made


def _array(made: Batch) -> Any:
    return made["x"]


def _view(made: Batch) -> Any:
    return made["x"][1:]


def _buffer(made: Batch) -> Any:
    return memoryview(cast("Any", made["x"]))


def _weak(made: Batch) -> Any:
    return weakref.ref(made["x"])


def _values(made: Batch) -> Any:
    return made.values()


def _iterator(made: Batch) -> Any:
    return iter([made["x"]])


def _pointer(made: Batch) -> Any:
    return made["x"].ctypes.data_as(ctypes.POINTER(ctypes.c_int64))


def _closed_over(made: Batch) -> Callable[[], Any]:
    return lambda: made["x"]


WAYS = [_dict, _array, _view, _buffer, _weak, _values, _iterator, _pointer, _closed_over]


@pytest.mark.parametrize("keep", WAYS)
def test_what_is_kept_in_any_way_is_shared(keep: Callable[[Batch], Any]) -> None:
    returned: list[Any] = [{"x": np.arange(ROWS), "y": np.arange(ROWS) * 2.0}]
    kept = keep(returned[0])
    found = fresh(returned)
    assert id(returned[0]["x"]) not in found
    del kept


def test_what_nobody_has_is_not() -> None:
    returned: list[Any] = [{"x": np.arange(ROWS), "y": np.ones((ROWS, 3), np.float32)}]
    assert fresh(returned) == {id(each) for each in returned[0].values()}


@pytest.mark.parametrize(
    "array",
    [
        np.arange(ROWS)[::2],
        np.arange(2 * ROWS).reshape(2, ROWS).T,
        np.ones((ROWS, 2), order="F"),
        np.arange(ROWS).astype(">i8"),
        np.array(["a"] * ROWS),
        np.array([None] * ROWS),
        np.ma.masked_array(np.arange(ROWS), mask=[True] * ROWS),
        np.frombuffer(bytearray(8 * ROWS)),
        [1] * ROWS,
    ],
    ids=lambda array: str(getattr(array, "dtype", "list")),
)
def test_what_has_other_memory_or_another_kind_is_copied(array: Any) -> None:
    returned: list[Any] = [{"x": array}]
    del array
    assert fresh(returned) == set()


def test_one_array_as_two_columns_is_shared() -> None:
    array = np.arange(ROWS)
    returned: list[Any] = [{"x": array, "y": array}]
    del array
    assert fresh(returned) == set()


class Refilling:
    """Keeps what it returns in one of the ``WAYS``, and writes over it at the next batch."""

    def __init__(self, keep: Callable[[Batch], Any]) -> None:
        self.keep = keep
        self.kept: Any = None

    def __call__(self, batch: Batch) -> Batch:
        if self.kept is not None:
            self._spoil(self.kept)
        made = {"x": batch["id"] + 1}
        self.kept = self.keep(made)
        return made

    @staticmethod
    def _spoil(kept: Any) -> None:
        if isinstance(kept, memoryview | np.ndarray):
            np.asarray(kept)[:] = -1
        elif isinstance(kept, dict):
            kept["x"][:] = -1
        elif callable(kept):  # a weak reference may be dead
            array = kept()
            if array is not None:
                array[:] = -1
        elif hasattr(kept, "contents"):
            kept[0] = -1
        else:
            for array in kept:
                array[:] = -1


@pytest.mark.parametrize("keep", WAYS)
@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_rows_stay_what_they_were_whatever_a_function_keeps(
    keep: Callable[[Batch], Any], executor: str
) -> None:
    function = Refilling(keep)
    ds = dml.range(64, atom_rows=64).map_batches(function, batch_size=4)
    rows = ds.with_options(executor=executor, num_workers=1, telemetry_dir="off").to_numpy()
    assert rows["x"].tolist() == list(range(1, 65))


def _base(given: Batch) -> Any:
    return given["x"].base


def _root(given: Batch) -> Any:
    """What lies below everything, an array or a buffer."""
    root: Any = given["x"]
    while getattr(root, "base", None) is not None:
        root = root.base
    return root


def _buffer_below(given: Batch) -> Any:
    return memoryview(cast("Any", given["x"].base))


def _weak_below(given: Batch) -> Any:
    return weakref.ref(given["x"].base)


def _nothing(_: Batch) -> Any:
    return None


RETURNS: dict[str, Callable[[Batch], Batch]] = {
    "the dict": lambda given: given,
    "another": lambda given: {**given, "z": given["x"] + 1},
    "twice": lambda given: {"x": given["x"], "y": given["x"]},
    "after others": lambda given: {"y": given.pop("y"), "x": given["x"]},
}


def _spoil(kept: Any) -> None:
    """Write to what was kept, or to what lies below it."""
    found = kept["x"] if isinstance(kept, dict) else kept
    if callable(found):
        found = found()
    while isinstance(found, np.ndarray) and isinstance(found.base, np.ndarray):
        found = found.base
    if isinstance(found, np.ndarray):
        found.setflags(write=True)
    if found is not None and not memoryview(found).readonly:
        np.asarray(found).view(np.uint8)[:] = 255


class Passing:
    """Keeps some of what it is given or returns, and writes over it at the next batch."""

    def __init__(
        self,
        given: Callable[[Batch], Any],
        returned: Callable[[Batch], Any],
        returns: Callable[[Batch], Batch],
    ) -> None:
        self.given, self.returned, self.returns = given, returned, returns
        self.kept: list[Any] = []

    def __call__(self, batch: Batch) -> Batch:
        for kept in self.kept:
            _spoil(kept)
        self.kept = [self.given(batch)]
        made = self.returns(batch)
        self.kept.append(self.returned(made))
        return made


GIVEN_WAYS = [_dict, _array, _view, _weak, _closed_over, _base, _root, _buffer_below, _weak_below]
HELD = [(way, _nothing) for way in GIVEN_WAYS] + [(_nothing, way) for way in (_dict, _array, _root)]


@pytest.mark.parametrize(("given", "returned"), HELD)
@pytest.mark.parametrize("returns", RETURNS)
@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_rows_stay_what_they_were_whatever_of_those_given_is_kept(
    given: Callable[[Batch], Any], returned: Callable[[Batch], Any], returns: str, executor: str
) -> None:
    x, y = np.arange(1024.0), np.arange(1024.0)
    function = Passing(given, returned, RETURNS[returns])
    ds = dml.from_numpy({"x": x, "y": y}).map_batches(function, batch_size=64)
    rows = ds.with_options(executor=executor, num_workers=1, telemetry_dir="off").to_numpy()
    assert rows["x"].tolist() == x.tolist()


@pytest.mark.parametrize("way", [_dict, _array, _root])
def test_rows_in_mapped_files_stay_what_they_were(way: Callable[[Batch], Any]) -> None:
    memory = memoryview(bytearray(8 * ROWS))
    array = np.frombuffer(memory, np.int64).reshape(-1).view()
    array.setflags(write=False)
    given = {"x": array}
    del array
    handed = ReferenceCounts(given).begun()
    kept = way(given)
    returned: list[Any] = [{**given}]
    assert handed.safe(returned) == set()
    del kept


def test_a_generator_may_write_to_what_it_gave() -> None:
    def several(batch: Batch) -> Iterator[Batch]:
        out = {**batch}
        del batch
        yield out
        _spoil(out)

    x = np.arange(1024.0)
    ds = dml.from_numpy({"x": x}).map_batches(several, batch_size=64)
    assert ds.with_options(telemetry_dir="off").to_numpy()["x"].tolist() == x.tolist()


def test_an_array_that_was_turned_into_another_kind_is_taken_as_that() -> None:
    def turned(batch: Batch) -> Batch:
        setattr(batch["x"], "dtype", np.dtype(">f8"))  # noqa: B010 (to mypy it cannot be set)
        return batch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        ds = dml.from_numpy({"x": np.arange(8.0).byteswap()}).map_batches(turned)
        rows = ds.with_options(executor="sync", telemetry_dir="off").to_arrow()
    assert rows["x"].to_pylist() == list(range(8))


BY_BATCHES: dict[str, Callable[[dml.Dataset, Any], dml.Dataset]] = {
    "map_batches": lambda ds, fn: ds.map_batches(fn),
    "map of batches": lambda ds, fn: ds.batch(ROWS).map(fn).unbatch(),
    "map_groups": lambda ds, fn: ds.group_by("k").map_groups(fn),
}


@pytest.mark.parametrize("verb", BY_BATCHES)
@pytest.mark.parametrize("returns", ["the dict", "another", "after others", "with another"])
def test_what_is_given_and_returned_is_not_copied(
    verb: str, returns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []
    safe = ReferenceCounts.safe

    def noted(handed: ReferenceCounts, returned: list[Any]) -> set[int]:
        taken = safe(handed, returned)
        found.extend(id(each) in taken for each in returned[0].values())
        return taken

    def added(given: Batch) -> Batch:
        given["z"] = given["x"] + 1
        return given

    monkeypatch.setattr(ReferenceCounts, "safe", noted)
    columns = {name: np.arange(float(ROWS)) for name in "xy"}
    ds = dml.from_numpy({**columns, "k": np.zeros(ROWS)})
    made = BY_BATCHES[verb](ds, {**RETURNS, "with another": added}[returns])
    made.with_options(executor="sync", telemetry_dir="off").to_numpy()
    assert len(found) > 1
    assert all(found)


def test_rows_of_a_generator_that_fills_one_array_again_and_again() -> None:
    def several(batch: Batch) -> Iterator[Batch]:
        array = np.empty(2, np.int64)
        for start in range(0, len(batch["id"]), 2):
            array[:] = batch["id"][start : start + 2]
            yield {"x": array}

    ds = dml.range(64, atom_rows=64).map_batches(several)
    assert ds.with_options(telemetry_dir="off").to_numpy()["x"].tolist() == list(range(64))


def test_large_arrays_are_neither_copied_before_nor_after_the_function() -> None:
    """Where they lie: what the next function is given is the memory that the last one made."""
    makers: list[int] = []
    takers: list[int] = []

    def made(batch: Batch) -> Batch:
        array = np.ones((len(batch["id"]), 1000))
        makers.append(array.ctypes.data)
        return {"x": array}

    def given(batch: Batch) -> Batch:
        takers.append(batch["x"].ctypes.data)
        assert not batch["x"].flags.writeable
        return {"y": batch["x"][:, 0].copy()}

    ds = dml.range(32, atom_rows=8).map_batches(made).map_batches(given)
    ds.with_options(executor="sync", telemetry_dir="off").to_numpy()
    assert len(makers) == 4
    assert makers == takers


def _set_back(x: np.ndarray) -> np.ndarray:
    x.setflags(write=True)
    x *= 2
    return x


def _by_pointer(x: np.ndarray) -> np.ndarray:
    """As libraries do that take the memory and do not look at the flag."""
    numbers = (ctypes.c_double * x.size).from_address(x.ctypes.data)
    np.ctypeslib.as_array(numbers)[:] *= 2
    return x + 0


GIVEN: dict[str, Callable[[np.ndarray], dml.Dataset]] = {
    "arrays": lambda x: dml.from_numpy({"x": x}),
    "arrow": lambda x: dml.from_arrow(pa.table({"x": x})),
    "a cache": lambda x: dml.from_numpy({"x": x}).map_batches(lambda b: {"x": b["x"] + 0}).cache(),
}


@pytest.mark.law
@pytest.mark.parametrize("write", [_set_back, _by_pointer])
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("executor", ["sync", "threads", "processes"])
def test_who_writes_to_what_is_given_reaches_nobody(
    write: Callable[[np.ndarray], np.ndarray], given: str, executor: str
) -> None:
    x = np.arange(8.0)
    ds = GIVEN[given](x).batch(4).map(lambda b: {"x": write(b["x"])})
    if given != "a cache":
        ds = GIVEN[given](x).map_batches(lambda b: {"x": write(b["x"])}).batch(4)
    ds = ds.with_options(executor=executor, num_workers=2, telemetry_dir="off")
    for _ in range(3):
        assert np.concatenate([b["x"] for b in ds]).tolist() == [2 * n for n in range(8)]
    assert x.tolist() == list(range(8))


def test_groups_that_are_kept_and_changed_later_are_what_they_were() -> None:
    kept: list[np.ndarray] = []

    def keep(group: Batch) -> Batch:
        for each in kept:
            each[:] = -1
        group["x"].setflags(write=True)
        kept.append(group["x"])
        return {"x": group["x"]}

    ds = dml.from_dict({"k": [0, 0, 1, 1, 2, 2], "x": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]})
    found = ds.group_by("k").map_groups(keep).with_options(executor="sync").to_numpy()
    assert found["x"].tolist() == [1, 2, 3, 4, 5, 6]


class Heavy(np.ndarray):
    def __deepcopy__(self, _: object) -> Heavy:
        raise MemoryError


@pytest.mark.parametrize("row", [{"a": np.zeros(2).view(Heavy)}, np.zeros(2).view(Heavy)])
def test_what_there_is_no_memory_to_copy_is_not_shared_instead(row: Any) -> None:
    with pytest.raises(MemoryError):
        owned_row(row)
