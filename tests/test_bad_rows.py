"""Test runs in which a user's function or a value fails."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import dml
from dml import col
from dml.errors import CastError, DmlError, NullValueError, SchemaError, UDFError
from tests.refusals import nothing_left, opened, refused, write

Row = dict[str, Any]
Make = Callable[[dml.Dataset], dml.Dataset]
BAD = 437  # in row group 1 of a.parquet


@pytest.fixture(params=["threads", "sync"])
def ds(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dml.Dataset]:
    with nothing_left(tmp_path / "scratch"):
        yield opened(tmp_path / "data", request.param)


def raising(row: Row, *_: object) -> Row:
    if row["x"] == BAD:
        raise LookupError("no such word")
    return row


def raising_children(row: Row) -> Iterator[Row]:
    yield dict(row)
    yield raising(row)


def only_at_bad(other: Any) -> Callable[[Row], Any]:
    """Gives ``{"a": x}``, and ``other`` on the bad row."""
    return lambda row: other if row["x"] == BAD else {"a": row["x"]}


def failed(ds: dml.Dataset, kind: type[DmlError] = UDFError) -> tuple[list[Any], DmlError]:
    """What was delivered before the error, and the error; afterwards all goes on as before."""
    it = iter(ds)
    got: list[Any] = []
    error = refused(kind, lambda: got.extend(it))
    assert next(it, "closed") == "closed"
    assert it.state_dict()["over"] is False
    return got, error


RAISING: list[Make] = [
    lambda ds: ds.map(raising),
    lambda ds: ds.map(raising).batch(1),
    lambda ds: ds.filter(raising),
    lambda ds: ds.random_map(raising),
    lambda ds: ds.filter(col("x") >= 0).map(raising),
    lambda ds: ds.skip(0).take(900).map(raising),
    lambda ds: ds.map(dict).map(raising),
    lambda ds: ds.repeat(3).map(raising),
    lambda ds: ds.skip(0).repeat().map(raising).batch(1),
]


@pytest.mark.law
@pytest.mark.parametrize("make", RAISING)
def test_a_function_that_raises_names_the_row(ds: dml.Dataset, make: Make) -> None:
    got, error = failed(make(ds))
    assert isinstance(error, UDFError)
    assert (error.file, error.row_group, error.row) == ("a.parquet", 1, BAD)
    assert error.operator == "raising"
    assert "a.parquet, row group 1, row 437" in error.at
    assert error.what == "raising raised LookupError: no such word"
    assert type(error.__cause__) is LookupError
    assert len(got) == BAD  # the rows before it were delivered
    assert len(ds.take_rows(3)) == 3  # and the dataset is as good as before


MERGED: list[Callable[[dml.Dataset, dml.Dataset], dml.Dataset]] = [
    lambda good, bad: good.concat(bad),
    lambda good, bad: good.concat(good.filter(col("x") < 9), bad).repeat(2),
    lambda good, bad: good.interleave(bad, block_length=3),
    lambda good, bad: good.mix(good.concat(bad), weights=[1, 2]),
]


@pytest.mark.law
@pytest.mark.parametrize("merged", MERGED)
def test_the_row_is_named_above_several_inputs(
    ds: dml.Dataset, merged: Callable[[dml.Dataset, dml.Dataset], dml.Dataset]
) -> None:
    good = ds.filter(col("x") != BAD).skip(0)
    _, error = failed(merged(good, ds.filter(col("x") >= 0)).map(raising))
    assert isinstance(error, UDFError)
    assert (error.file, error.row_group, error.row) == ("a.parquet", 1, BAD)


@pytest.mark.parametrize(
    ("make", "delivered"),
    [
        (lambda ds: ds.shuffle(50, seed=1).map(raising), 400),
        (lambda ds: ds.shuffle(seed=1).map(raising), 0),
        (lambda ds: ds.flat_map(raising_children), 2 * BAD + 1),
    ],
)
def test_the_row_is_named_after_shuffles_and_in_generators(
    ds: dml.Dataset, make: Make, delivered: int
) -> None:
    got, error = failed(make(ds))
    assert isinstance(error, UDFError)
    assert (error.file, error.row_group, error.row) == ("a.parquet", 1, BAD)
    assert len(got) >= delivered


def test_a_batch_function_names_where_its_batch_begins(ds: dml.Dataset) -> None:
    def halves(batch: Row) -> Row:
        return {"a": 1 // (batch["x"][0] - 400)} if BAD in batch["x"] else batch

    with np.errstate(all="raise"):
        got, error = failed(ds.batch(100).map(halves))
    assert isinstance(error, UDFError)
    assert (error.row_group, error.row, len(got)) == (1, 400, 4)


WRONG: list[tuple[Any, str]] = [
    (3, "returned 3, which is not a dict"),
    (None, "returned None, which is not a dict"),
    ([1], "returned [1], which is not a dict"),
    ({"b": 1}, "columns ['b'], while ['a'] are needed"),
    ({"a": 1, "b": 1}, "columns ['a', 'b'], while earlier rows had ['a']"),
    ({"a": "text"}, "'text' for column 'a'"),
    ({"a": 1.5}, "1.5 for column 'a'"),
    ({"a": 2**80}, "int64 cannot hold"),
    ({"a": np.zeros(3)}, "for column 'a'"),
    ({"a": object()}, "for column 'a'"),
]


@pytest.mark.law
@pytest.mark.parametrize(("other", "words"), WRONG, ids=[words for _, words in WRONG])
def test_functions_that_change_their_mind(ds: dml.Dataset, other: Any, words: str) -> None:
    got, error = failed(ds.map(only_at_bad(other)))
    assert words in error.what
    assert isinstance(error, UDFError)
    assert (error.file, error.row_group, error.row) == ("a.parquet", 1, BAD)
    assert len(got) == BAD
    assert len(ds.map(only_at_bad(other)).take_rows(BAD)) == BAD  # not asked for, not raised


FIRST_ROWS: list[tuple[Callable[[int], Any], int, str]] = [
    (lambda x: 1 if x < 7 else "a", 7, "of the types int, str"),
    (lambda _: object(), 0, "of the type object"),
    (lambda _: {1, 2}, 0, "of the type set"),
    (lambda x: [1, "a"] if x == 5 else [1], 5, "without a common type"),
    (lambda x: np.zeros((2,) * (1 + (x == 9))), 9, "different shapes, of 1 and 2 axes"),
    (lambda _: np.array([None]), 0, "arrays of object"),
    (lambda _: np.complex128(1), 0, "which no column has"),
    (lambda _: 2**80, 0, "int64 cannot hold"),
]


@pytest.mark.parametrize(("make", "row", "words"), FIRST_ROWS)
def test_first_rows_without_a_type(
    ds: dml.Dataset, make: Callable[[int], Any], row: int, words: str
) -> None:
    got, error = failed(ds.map(lambda given: {"a": make(given["x"])}))
    assert words in error.what
    assert isinstance(error, UDFError)
    assert (error.row, len(got)) == (row, row)


def test_names_are_text(ds: dml.Dataset) -> None:
    assert "a column called 1" in failed(ds.map(lambda row: {cast("str", 1): row["x"]}))[1].what


def test_a_declared_schema_holds(ds: dml.Dataset) -> None:
    failed(ds.map(lambda _: {"a": 1}, schema={"b": "int64"}))
    failed(ds.map(lambda _: {"a": "x"}, schema={"a": "int64"}))
    failed(ds.batch(9).map(lambda batch: {"a": batch["s"]}, schema={"a": "int64"}))


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda _: None, "NoneType"),
        (lambda _: [1], "returned 1, which is not a dict"),
        (lambda _: {"a": 1}, "returned 'a', which is not a dict"),
    ],
)
def test_generators_of_no_rows(ds: dml.Dataset, fn: Callable[[Row], Any], words: str) -> None:
    error = failed(ds.flat_map(fn))[1]
    assert words in error.what
    assert isinstance(error, UDFError)
    assert error.row == 0
    assert "not a dict" not in words or "return [{" in error.try_  # that asks for many of them


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda _: 3, "returned int"),
        (lambda _: {"a": np.zeros(3), "b": np.zeros(4)}, "unequal lengths"),
        (lambda _: {"a": np.array([object()])}, "column 'a' of object"),
        (lambda batch: {"a" if batch["x"][0] < BAD else "b": batch["x"]}, "['a'] are needed"),
        (lambda batch: {"a": batch["x" if batch["x"][0] < BAD else "s"]}, "int64 is needed"),
        (lambda batch: {"a": batch["x"].__iadd__(1)}, "read-only"),
    ],
)
def test_batch_functions(ds: dml.Dataset, fn: Callable[[Row], Any], words: str) -> None:
    assert words in failed(ds.batch(50).map(fn))[1].what


@pytest.mark.law
def test_columns_and_types_known_only_after_a_function(ds: dml.Dataset) -> None:
    some = ds.map(lambda row: {"a": repr(row["s"]), "n": row["x"]})
    failed(some.select("z"), SchemaError)
    failed(some.filter(col("z") > 0), SchemaError)
    failed(some.with_columns(b=col("a") + 1), SchemaError)
    failed(some.shuffle(9).with_columns(b=col("a") + 1), SchemaError)
    assert "needs a boolean, n is int64" in failed(some.filter(col("n")), SchemaError)[1].what


def test_casts_that_do_not_fit(ds: dml.Dataset) -> None:
    got, error = failed(ds.cast({"x": "int8"}), CastError)
    assert "the cast meets 128" in error.what
    assert "a.parquet, row group 0, row 128" in error.at
    assert len(got) == 128


def test_a_null_that_an_array_cannot_hold(tmp_path: Path) -> None:
    ds = dml.read_parquet(write(tmp_path / "data", null_at=BAD)).with_options(telemetry_dir="off")
    with nothing_left(tmp_path / "scratch"):
        got, error = failed(ds.filter(col("x") >= 0).batch(100), NullValueError)
        assert "column 'k' has a null" in error.what
        assert "a.parquet, row group 1, row 437" in error.at
        assert ".fill_null({'k': 0})" in error.try_
        assert len(got) == 4


UNCHANGED: list[Make] = [
    lambda ds: ds.batch(100),
    lambda ds: ds.select("k").shuffle(seed=1).batch(7),
    lambda ds: ds.rename({"k": "label"}).repeat(2).batch(7),
    lambda ds: ds.with_columns(k2=col("k"), x=col("x") + 1).shuffle(9).batch(7),
]
CHANGED: list[Make] = [
    lambda ds: ds.fill_null({"k": 0}).batch(100),
    lambda ds: ds.drop("k").batch(100),
    lambda ds: ds.cast({"k": "float64"}).batch(100),
    lambda ds: ds.filter(col("k").is_not_null()).batch(100),
    lambda ds: ds.take(400).batch(100),
    lambda ds: ds.skip(500).batch(100),
    lambda ds: ds.map(lambda row: {"k": row["k"] or 0}).batch(100),
    lambda ds: ds.batch(100).map(lambda batch: {"x": batch["x"]}),
    lambda ds: ds.repeat(0).batch(100),
    lambda ds: ds.map(lambda row: row),
]


@pytest.mark.law
@pytest.mark.parametrize("make", UNCHANGED)
def test_a_null_that_the_footer_proves_is_refused_before_the_run(
    tmp_path: Path, make: Make
) -> None:
    ds = dml.read_parquet(write(tmp_path / "data", null_at=BAD))
    error = refused(NullValueError, lambda: iter(make(ds)), "row group 1", "counts 1 of 300 rows")
    assert "Batch(" in error.at


@pytest.mark.parametrize("make", CHANGED)
def test_a_null_that_may_never_arrive_is_not_refused(tmp_path: Path, make: Make) -> None:
    ds = dml.read_parquet(write(tmp_path / "data", null_at=BAD)).with_options(telemetry_dir="off")
    deque = list(make(ds))
    assert deque or make is CHANGED[8]


def test_a_null_in_memory_is_refused_before_the_run() -> None:
    ds = dml.from_dict({"k": [1, None, 3], "b": [True, None, False], "f": [1.0, None, 2.0]})
    refused(NullValueError, lambda: iter(ds.select("k").batch(2)), "row 1, is null")
    refused(NullValueError, lambda: iter(ds.select("b").batch(2)), ".fill_null({'b': False})")
    assert np.isnan(next(iter(ds.select("f").batch(3)))["f"][1])


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_exit_that_a_function_raises_is_an_error_of_its_row(
    ds: dml.Dataset, kind: type[BaseException], prefetch: int
) -> None:
    def leaving(row: Row) -> Row:
        if row["x"] == BAD:
            raise kind
        return row

    def leaving_children(row: Row) -> Iterator[Row]:
        yield leaving(row)

    ds = ds.with_options(prefetch=prefetch)
    for made in (ds.map(leaving), ds.filter(leaving), ds.flat_map(leaving_children)):
        _, error = failed(made)
        assert isinstance(error, UDFError)
        assert (error.file, error.row_group, error.row) == ("a.parquet", 1, BAD)
        assert f"raised {kind.__name__}" in error.what
    assert len(ds.take_rows(2)) == 2


@pytest.mark.parametrize("prefetch", [0, 2])
def test_ctrl_c_in_a_function_comes_through(ds: dml.Dataset, prefetch: int) -> None:
    def interrupted(row: Row) -> Row:
        if row["x"] == BAD:
            signal.raise_signal(signal.SIGINT)
        return row

    it = iter(ds.with_options(prefetch=prefetch).map(interrupted).batch(100))
    with pytest.raises(KeyboardInterrupt):
        list(it)
    assert len(ds.take_rows(2)) == 2


class WithoutTextError(Exception):
    def __str__(self) -> Any:
        return 3  # noqa: PLE0307


class WithoutTracebackError(Exception):
    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise ZeroDivisionError


@pytest.mark.parametrize("kind", [WithoutTextError, WithoutTracebackError])
def test_an_exception_that_misbehaves_names_its_row(ds: dml.Dataset, kind: type[Exception]) -> None:
    def raises(row: Row) -> Row:
        if row["x"] == BAD:
            raise kind
        return {"x": row["x"]}

    keeps = ds.map(raises).filter(lambda row: row["x"] >= 0)
    for made in (ds.map(raises), keeps, ds.flat_map(lambda row: [raises(row)])):
        _, error = failed(made)
        assert isinstance(error, UDFError)
        assert (error.row, error.operator != "") == (BAD, True)
        assert f"raised {kind.__name__}" in error.what


class Unreadable(Mapping[str, Any]):
    """A dict that raises what it likes."""

    def __getitem__(self, name: str) -> Any:
        raise ZeroDivisionError

    def __iter__(self) -> Iterator[str]:
        return iter(("a",))

    def __len__(self) -> int:
        return 1


class Nameless:
    def __repr__(self) -> str:
        raise ZeroDivisionError


class Endless(list[int]):
    def __len__(self) -> int:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "make", [Unreadable, Nameless, lambda: {"a": Nameless()}, lambda: {"a": Endless()}]
)
def test_a_result_that_cannot_be_looked_at_names_its_row(
    ds: dml.Dataset, make: Callable[[], Any]
) -> None:
    def fn(row: Row) -> Any:
        return make() if row["x"] == BAD else {"a": row["x"]}

    for made in (ds.map(fn), ds.flat_map(lambda row: [fn(row)])):
        _, error = failed(made)
        assert isinstance(error, UDFError)
        assert error.row == BAD
    _, error = failed(ds.batch(100).map(lambda batch: make() if BAD in batch["x"] else batch))
    assert isinstance(error, UDFError)


@pytest.mark.parametrize("prefetch", ["auto", 0, 3])
@pytest.mark.parametrize("read", [0, 1, 4])
def test_closing_and_forgetting_early(ds: dml.Dataset, prefetch: Any, read: int) -> None:
    batches = ds.with_options(prefetch=prefetch).batch(100)
    with iter(batches) as it:
        for _ in range(read):
            next(it)
    it.close()
    assert next(it, None) is None
    forgotten = iter(batches)
    for _ in range(read):
        next(forgotten)
    del forgotten


def test_two_iterators_at_once(ds: dml.Dataset) -> None:
    batches = ds.shuffle(seed=3).batch(64).epoch(0)
    one, two = iter(batches), iter(batches)
    next(one)
    for left, right in zip(one, list(two)[1:], strict=True):
        assert all(np.array_equal(left[name], right[name]) for name in left)


def test_one_iterator_for_several_threads(ds: dml.Dataset) -> None:
    it, got = iter(ds.select("x").batch(10)), list[Any]()
    readers = [threading.Thread(target=lambda: got.extend(it)) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert sorted(np.concatenate([batch["x"] for batch in got]).tolist()) == list(range(1000))
