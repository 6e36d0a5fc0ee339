"""Test that fingerprints are equal for equal values in every process, and differ for others."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import math
import os
import struct
import subprocess
import sys
import zoneinfo
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.base.encoder import Encoder
from dml.base.fingerprint import (
    ENTERS,
    SIZE,
    Domain,
    FingerprintPart,
    digest,
    digest_in,
)
from dml.errors import FingerprintError

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "tests" / "vectors" / "fingerprints.json"


class Colour(enum.Enum):
    RED = 1


class Named:
    digest = b"0123456789abcdef"


# What tests/vectors/fingerprints.json holds the names of; no two of these may share a name.
VALUES: dict[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "int 0": 0,
    "int 1": 1,
    "int -1": -1,
    "int 2**63-1": 2**63 - 1,
    "int -2**63": -(2**63),
    "int 2**63": 2**63,
    "int -10**40": -(10**40),
    "float 0": 0.0,
    "float -0": -0.0,
    "float 1": 1.0,
    "float inf": math.inf,
    "float nan": math.nan,
    "float nan with a sign": struct.unpack("<d", b"\0\0\0\0\0\0\xf8\xff")[0],
    "complex": 1 + 2j,
    "text empty": "",
    "text a": "a",
    "text with a nul": "a\0",
    "text beyond the plane": "\U0001f600é",
    "text with a lone surrogate": "\ud800",
    "bytes empty": b"",
    "bytes a": b"a",
    "bytearray a": bytearray(b"a"),
    "tuple empty": (),
    "tuple": (1, "a"),
    "tuple nested": ((1,), "a"),
    "tuple nested otherwise": (1, ("a",)),
    "list empty": [],
    "list": [1, "a"],
    "dict empty": {},
    "dict": {"a": 1, "b": 2},
    "dict with other keys": {1: "a", (2,): "b", None: "c"},
    "set": {1, "a", None, 2.5},
    "set of sets": {frozenset({1}), frozenset({"a", "b"})},
    "frozenset": frozenset({1, "a", None, 2.5}),
    "range": range(1, 10, 2),
    "slice": slice(1, None, 2),
    "ellipsis": ...,
    "date": dt.date(2020, 1, 2),
    "datetime": dt.datetime(2020, 1, 2, 3, 4, 5, 6),
    "datetime with fold": dt.datetime(2020, 1, 2, 3, 4, 5, 6, fold=1),
    "datetime utc": dt.datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
    "datetime in a zone": dt.datetime(2020, 1, 2, 3, 4, tzinfo=zoneinfo.ZoneInfo("UTC")),
    "time": dt.time(1, 2, 3),
    "timedelta": dt.timedelta(1, 2, 3),
    "decimal 1.0": decimal.Decimal("1.0"),
    "decimal 1.00": decimal.Decimal("1.00"),
    "decimal nan": decimal.Decimal("NaN"),
    "enum": Colour.RED,
    "digestible": Named(),
    "numpy float32": np.float32(1),
    "numpy float64": np.float64(1),
    "numpy int64": np.int64(1),
    "numpy bool": np.bool_(True),
    "numpy str": np.str_("a"),
    "numpy datetime": np.datetime64("2020-01-02", "us"),
    "dtype": np.dtype("f4"),
    "dtype of records": np.dtype([("a", "i1"), ("b", "f8", (2,))]),
    "array": np.arange(6),
    "array of another shape": np.arange(6).reshape(2, 3),
    "array of another type": np.arange(6, dtype="i4"),
    "array big endian": np.arange(6, dtype=">i8"),
    "array empty": np.zeros((0, 3)),
    "array of nothing else": np.zeros((3, 0)),
    "array 0d": np.array(1),
    "array of text": np.array(["a", "bc"]),
    "array of objects": np.array([1, "a", None], dtype=object),
    "array of records": np.array([(1, 2.0)], dtype=[("a", "i1"), ("b", "f8")]),
    "arrow type": pa.timestamp("us", "UTC"),
    "arrow nested type": pa.list_(pa.struct({"a": pa.int8(), "b": pa.large_string()})),
    "arrow field": pa.field("a", pa.int8(), nullable=False),
    "arrow schema": pa.schema({"a": pa.int8(), "b": pa.string()}),
    "arrow scalar": pa.scalar(1, pa.int8()),
    "arrow array": pa.array([1, None, 3]),
    "arrow text": pa.array(["a", None, "bc"]),
    "arrow table": pa.table({"a": [1, 2], "b": [[1.5], None], "c": [{"x": True}, {"x": None}]}),
}


def test_the_vectors_hold() -> None:
    kept = json.loads(VECTORS.read_text())
    assert kept["scheme"] == "dml-fp-1"
    assert {name: digest(value).hex() for name, value in VALUES.items()} == kept["names"]


def test_no_two_values_share_a_name() -> None:
    names = {name: digest(value) for name, value in VALUES.items()}
    assert len(set(names.values())) == len(names)
    assert {len(name) for name in names.values()} == {SIZE}


@pytest.mark.sample(1)
@pytest.mark.law
@pytest.mark.parametrize("seed", ["0", "77"])
def test_another_process_gives_the_same_names(seed: str) -> None:
    program = (
        "import importlib.util, json, sys\n"
        "spec = importlib.util.spec_from_file_location('vectors', sys.argv[1])\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "print(json.dumps({n: module.digest(v).hex() for n, v in module.VALUES.items()}))\n"
    )
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program, __file__],
        capture_output=True,
        text=True,
        env=env,
        check=True,
    )
    assert json.loads(done.stdout) == json.loads(VECTORS.read_text())["names"]


def test_order_of_sets_and_dicts_does_not_show() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({1: 1, "b": 2}) == digest({"b": 2, 1: 1})
    assert digest({"a", "b", "c"}) == digest({"c", "b", "a"})


def test_parts_are_not_a_tuple_and_do_not_run_together() -> None:
    assert digest("a", "b") != digest(("a", "b")) != digest("ab") != digest("ab", "")
    assert digest() != digest(None)


def test_layout_of_arrays_does_not_show() -> None:
    wide = np.arange(12.0).reshape(3, 4)
    assert digest(wide[:, ::2]) == digest(wide[:, ::2].copy())
    assert digest(wide.T) == digest(np.ascontiguousarray(wide.T))
    assert digest(wide.T) != digest(wide)


def test_padding_of_records_does_not_show() -> None:
    kind = np.dtype({"names": ["a", "b"], "formats": ["i1", "f8"], "offsets": [0, 8]})
    first, second = np.zeros(2, kind), np.full(32, 255, "u1").view(kind)
    second["a"], second["b"] = 0, 0
    assert digest(first) == digest(second)


class Odd:
    pass


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Odd(), "value[0]: a "),
        ({"a": [1, Odd()]}, "value[0]['a'][1]: "),
        (({"k": (Odd(),)},), "value[0][0]['k'][0]: "),
        ({1, Odd()}, "value[0]{member}: "),
        (len, "value[0]: a builtins.builtin_function_or_method"),
        (np.array([1, Odd()]), "value[0][1]: "),
        (dt.time(1, tzinfo=type("Zone", (dt.tzinfo,), {})()), "value[0].tzinfo: "),
        (type("MyInt", (int,), {})(1), "value[0]: "),
    ],
)
def test_what_has_no_name_is_refused_with_its_path(value: object, path: str) -> None:
    with pytest.raises(FingerprintError) as caught:
        digest(value)
    assert caught.value.what.startswith("cannot fingerprint " + path)
    assert caught.value.try_


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(FingerprintError, match="contains itself"):
        digest(endless)


def test_a_digest_has_16_bytes() -> None:
    assert digest(Named()) != digest(Named().digest)
    with pytest.raises(FingerprintError):
        digest(type("Short", (), {"digest": b"short"})())


def test_every_part_enters_something() -> None:
    assert set(ENTERS) == set(FingerprintPart)
    assert all(ENTERS.values())


@pytest.mark.parametrize("part", FingerprintPart)
@pytest.mark.parametrize("domain", Domain)
def test_a_part_shows_where_it_enters_and_nowhere_else(
    domain: Domain, part: FingerprintPart
) -> None:
    one = digest_in(domain, (FingerprintPart.OPERATOR, "map"), (part, "x"))
    other = digest_in(domain, (FingerprintPart.OPERATOR, "map"), (part, "y"))
    assert (one != other) is (domain in ENTERS[part])


def test_domains_never_share_a_name() -> None:
    assert len({digest_in(domain, (FingerprintPart.OPERATOR, "map")) for domain in Domain}) == 4


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


def spelled(value: Any) -> Any:
    """A value as something that compares equal only if types and bits are equal."""
    if isinstance(value, float):
        return ("float", struct.pack("<d", value))
    if isinstance(value, list | tuple):
        return (type(value).__name__, [spelled(item) for item in value])
    if isinstance(value, dict):
        return ("dict", sorted((key, spelled(item)) for key, item in value.items()))
    return (type(value).__name__, value)


@pytest.mark.law
@given(PLAIN, PLAIN)
def test_names_are_equal_exactly_when_values_are(one: Any, other: Any) -> None:
    assert (digest(one) == digest(other)) is (repr(spelled(one)) == repr(spelled(other)))


def test_an_encoder_can_be_filled_in_steps() -> None:
    out = Encoder()
    out.add("a")
    out.add(1)
    assert out.digest() == digest("a", 1)
    assert out.name_of("b") == digest("b")
    assert out.digest() == digest("a", 1)
