"""Test errors for names and arguments that dml does not have: they say what was meant."""

from __future__ import annotations

import abc
import copy
import inspect
import math
import pickle
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import dml
from dml import col
from dml.api.verbs.grouping import Groups
from dml.base import other_names
from dml.errors import ArgumentError, DmlError, UnknownNameError
from dml.expr.columns.column import Column
from dml.expr.columns.operators import ALONE, INFIX

ROOT = Path(__file__).parents[2]
DS = dml.range(10)

Wrong = Callable[[], Any]


def anything(value: object) -> Any:
    """The value, whose names no checker knows."""
    return value


NAMES: dict[str, tuple[Wrong, str, str]] = {
    "misspelt": (lambda: anything(DS).btach, "a Dataset has no 'btach'", "did you mean 'batch'?"),
    "of itertools": (lambda: anything(DS).batched, "a Dataset has no 'batched'", "`batch(n)`"),
    "of pandas": (lambda: anything(col("x")).fillna, "'fillna'", '`col("x").fill_null(0)`'),
    "of a Series": (lambda: anything(col("x").dt).dayofweek, ".dt has no", ".dt.weekday()"),
    "of Polars": (lambda: anything(DS).tail, "a Dataset has no 'tail'", "take(n)"),
    "of Ray": (lambda: anything(DS).iter_torch_batches, "iter_torch_batches", "to_torch("),
    "of a hub": (lambda: anything(DS).push_to_hub, "push_to_hub", "write_parquet(path)"),
    "a function": (lambda: anything(dml).read_parquett, "dml has no", "read_parquet"),
    "a column": (lambda: anything(col("x")).strr, "a column has no 'strr'", "'str'"),
    "of a column": (lambda: anything(col("x")).arg_max, "a column has no 'arg_max'", "pl.Expr"),
    "of texts": (lambda: anything(col("x").str).upper, ".str has no 'upper'", "to_uppercase"),
    "of texts in Polars": (lambda: anything(col("x").str).json_decode, ".str has no", "Polars"),
    "of groups": (lambda: anything(DS.group_by("id")).summ, "group_by has no 'summ'", "sum"),
    "of a namespace": (lambda: anything(col("x")).contains, "a column has no", ".str.contains or"),
    "a column of the rows": (lambda: anything(DS).id, "a Dataset has no 'id'", '.select("id")'),
    "a source": (lambda: anything(DS).from_items, "a Dataset has no", "dml.from_items(...)"),
    "of the class": (lambda: anything(dml.Dataset).read_csv, "dml.Dataset", "dml.read_csv(...)"),
    "like nothing": (lambda: anything(DS).zzqx, "a Dataset has no 'zzqx'", "coming-from.md"),
}


ARGUMENTS: dict[str, tuple[Wrong, str, str]] = {
    "of a hub": (
        lambda: anything(DS).map(dict, batched=True),
        "map has no argument",
        "map_batches",
    ),
    "of Ray": (
        lambda: anything(DS).iter_batches(prefetch_batches=2),
        "iter_batches has",
        "prefetch",
    ),
    "misspelt": (lambda: anything(dml).read_parquet("x", colums=[]), "has no argument", "columns="),
    "none is like it": (lambda: anything(DS).take(3, zzqx=1), "take has no argument", "take(n)"),
    "too few": (lambda: anything(DS).batch(), "missing a required argument: 'n'", "batch(n, ...)"),
    "too many": (lambda: anything(DS).batch(1, 2, 3), "too many positional", "batch(n, ...)"),
    "twice": (lambda: anything(DS).batch(1, n=2), "multiple values for argument 'n'", "batch(n"),
    "an object": (lambda: anything(DS).with_options({}), "too many", "with_options(name=value)"),
    "of a column": (lambda: anything(col("x")).cast(), "cast: missing a required", "cast(kind"),
    "of texts": (lambda: anything(col("x").str).slice(), "slice: missing", "slice(offset"),
}


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        *((case, (UnknownNameError, AttributeError)) for case in NAMES.values()),
        *((case, (ArgumentError, TypeError)) for case in ARGUMENTS.values()),
    ],
    ids=[*(f"a name {each}" for each in NAMES), *(f"arguments {each}" for each in ARGUMENTS)],
)
def test_what_is_not_there_is_an_error_that_says_what_was_meant(
    case: tuple[Wrong, str, str], kind: tuple[type[Exception], type[Exception]]
) -> None:
    wrong, what, try_ = case
    with pytest.raises(kind[0]) as raised:
        wrong()
    error: Any = raised.value
    assert issubclass(*kind), "what Python would raise"
    assert what in error.what
    assert try_ in error.try_
    assert "written in test_other_names.py" in error.at
    assert error.why
    assert "Verbs" not in str(error), "a class that users do not know"
    assert error.__cause__ is None
    assert error.__suppress_context__


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (lambda: anything(DS).batch(3, drop_remainder=True), lambda: DS.batch(3, drop_last=True)),
        (lambda: anything(DS).batch(batch_size=3), lambda: DS.batch(3)),
        (lambda: anything(DS).repeat(count=2), lambda: DS.repeat(2)),
        (lambda: anything(DS).sort("id", reverse=True), lambda: DS.sort("id", descending=True)),
        (lambda: anything(DS).sort(key="id"), lambda: DS.sort("id")),
        (lambda: anything(DS).prefetch(buffer_size=2), lambda: DS.prefetch(2)),
    ],
)
def test_synonyms_are_accepted(given: Any, wanted: Any) -> None:
    assert given().fingerprint() == wanted().fingerprint()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: anything(DS).batch(3, drop_last=True, drop_remainder=True),
        lambda: anything(DS).batch(3, batch_size=3),
        lambda: anything(DS).take(count=2, batch_size=3),
        lambda: anything(DS).repeat(batch_size=3),
        lambda: anything(DS).streaming_split(batch_size=3),
        lambda: anything(DS).skip(buffer_size=3),
    ],
)
def test_a_synonym_of_another_verb_or_beside_the_name_itself_is_an_error(wrong: Wrong) -> None:
    with pytest.raises(ArgumentError):
        wrong()


def test_arguments_of_a_users_function_are_handed_on_as_they_are() -> None:
    assert DS.pipe(lambda _, k: type(k), np.int64(3)) is np.int64
    assert DS.apply(lambda _, k: type(k), np.int64(3)) is np.int64


@pytest.mark.parametrize(
    ("wrong", "way"),
    [
        (lambda: math.log(anything(col("x"))), ".log()"),
        (lambda: int(anything(col("x"))), ".cast(...)"),
        (lambda: np.tan(anything(col("x"))), "map_batches(f)"),
        (lambda: np.add.reduce(anything(col("x"))), "map_batches(f)"),
        (lambda: dml.Dataset(anything({"x": [1]})), "dml.from_dict"),
        (lambda: DS.sample(3), ".shuffle(seed=1).take(n)"),
        (lambda: DS.with_options(wrkers=3), "did you mean 'num_workers'?"),
    ],
)
def test_what_python_and_numpy_ask_for_is_answered(wrong: Wrong, way: str) -> None:
    with pytest.raises(dml.DmlError, match=re.escape(way)) as raised:
        wrong()
    assert re.search(r"written in test_other_names\.py|made by its class", str(raised.value))
    assert "__" not in str(raised.value).replace("test_other_names", "")


def test_a_dataset_among_others_stays_one_object_for_numpy() -> None:
    found = np.array([DS, DS], dtype=object)
    assert found.shape == (2,)
    assert found[1] is DS
    assert [np.int64(1), DS].index(DS) == 1


class Abstract(dml.Dataset, abc.ABC):
    """A subclass with a metaclass of its own."""


@pytest.mark.parametrize(
    ("name", "left"),
    [
        (n, left)
        for n in sorted({*INFIX} - {"divmod"})
        for left in (True, False)
        if left or n != "power"
    ],
)
def test_functions_of_numpy_with_two_arguments_are_operators(name: str, *, left: bool) -> None:
    ufunc, x = getattr(np, name), anything(col("id"))
    ds = dml.from_dict({"id": [-7, 0, 1, 6, 60]})
    with np.errstate(all="ignore"):
        wanted = ufunc(ds.to_numpy()["id"], 3) if left else ufunc(3, ds.to_numpy()["id"])
    for three in (3, np.int64(3)):
        made = ufunc(x, three) if left else ufunc(three, x)
        got = ds.with_columns(y=made).to_arrow()["y"].to_pylist()
        assert [a for a in got if a is not None] == [
            w for a, w in zip(got, wanted.tolist(), strict=True) if a is not None
        ]
    assert repr(np.float64(2.0) * x) == repr(2.0 * col("id"))
    assert repr(x * np.float64(2.0)) == repr(col("id") * 2.0)
    assert repr(divmod(np.int64(7), x)) == repr(divmod(7, col("id")))


@pytest.mark.parametrize("name", sorted(ALONE))
def test_functions_of_numpy_with_one_argument_are_methods(name: str) -> None:
    values = [3, 1] if name == "invert" else [0.5, 2.0]
    ds = dml.from_dict({"x": values})
    got = ds.with_columns(y=getattr(np, name)(anything(col("x")))).to_numpy()["y"]
    assert got.tolist() == pytest.approx(getattr(np, name)(np.array(values)).tolist())


def test_a_sum_of_pipelines_is_their_concatenation() -> None:
    assert (DS + DS.take(2)).fingerprint() == DS.concat(DS.take(2)).fingerprint()
    with pytest.raises(TypeError, match="unsupported operand"):
        anything(DS) + 3


def test_a_type_error_of_a_users_function_is_its_own() -> None:
    def needs_two(a: Any, b: Any) -> Any:
        return a

    with pytest.raises(TypeError, match="missing 1 required positional argument") as raised:
        DS.pipe(anything(needs_two))
    assert not isinstance(raised.value, ArgumentError)


def test_a_property_that_fails_says_why() -> None:
    class Odd(dml.Dataset):
        @property
        def size(self) -> int:
            raise AttributeError("of its own")

    with pytest.raises(AttributeError, match="of its own"):
        _ = Odd(DS._node, DS._settings).size


def test_who_looks_for_names_finds_none() -> None:
    """Libraries and notebooks ask objects for names that they may have."""
    for each in (DS, col("x"), col("x").str, dml, DS.group_by("id")):
        assert not hasattr(each, "zzqx")
        assert getattr(each, "_repr_mimebundle_", None) is None
        assert getattr(each, "__array_interface__", None) is None
    assert copy.copy(col("x").value) == col("x").value
    assert copy.copy(DS).fingerprint() == DS.fingerprint()


def test_errors_survive_pickling() -> None:
    for wrong in (NAMES["of Ray"][0], ARGUMENTS["too few"][0]):
        with pytest.raises(dml.DmlError) as raised:
            wrong()
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.parametrize("kind", [dml.Dataset, Column, Groups])
def test_every_public_method_answers(kind: type) -> None:
    methods = {name: inspect.getattr_static(kind, name) for name in dir(kind) if name[0] != "_"}
    bare = [
        name
        for name, found in methods.items()
        if isinstance(found, FunctionType) and not hasattr(found, "__wrapped__")
    ]
    assert not bare


def test_every_synonym_is_a_name_that_some_verb_has() -> None:
    known = {
        name
        for each in (*vars(dml).values(), *(found for _, found in inspect.getmembers(dml.Dataset)))
        if isinstance(each, FunctionType)
        for name in inspect.signature(each).parameters
    }
    assert {*other_names.SYNONYMS.values()} <= known
    assert all(hasattr(dml.Dataset, verb) for verb in other_names.COUNTS)


def test_the_pages_are_in_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    pages = {path.relative_to(ROOT) for path in other_names._pages()}
    assert len(pages) > 3
    for page in pages:
        assert any(str(page) == given or page.is_relative_to(given) for given in included), page
    assert all(re.fullmatch(r"dml/docs/coming-from(\.md)?", to) for to in included.values())


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda ds: ds.select(range(2)), "take(n), slice(offset, n)"),
        (lambda ds: ds.drop(lambda row: row), "with_columns(x=...) first"),
        (lambda _: dml.from_items([("a.jpg", 1)]), "a dict for each row in place of a tuple"),
        (lambda _: dml.from_generator(lambda: [("a", 1)]), "a dict for each row in place of"),
    ],
)
def test_what_others_select_or_give_is_answered(call: Any, named: str) -> None:
    with pytest.raises(DmlError) as raised:
        call(dml.from_dict({"a": [1, 2], "s": ["x", "y"]}))
    assert named in raised.value.try_
    assert "written in test_other_names.py" in raised.value.at


def test_what_others_write_is_accepted() -> None:
    ds = dml.from_dict({"a": [1, 2], "s": ["x", "y"]})
    assert ds.schema() == ds.schema
    assert ds.select("*").columns == ["a", "s"]
    assert ds.select(["*"]).columns == ds.select(["*"], z=col("a")).columns[:2] == ["a", "s"]
    assert ds.select(col("a") + 1).columns == ds.select(col("a")).columns == ["a"]
    assert ds.select(col("a").alias("b"), "*").columns == ["b", "a", "s"]
    odd = dml.from_dict({"a": [1], "*": [2]})
    assert odd.select("*").columns == ["*"]
