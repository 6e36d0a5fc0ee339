"""Test that JSON lines become rows of settled types, and that errors name an invalid line."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dml
from dml.errors import SchemaError, SourceError
from dml.io.files.lines import RowError
from dml.io.json.json import check_depth, check_keys, read_json
from dml.testing.oracle_sources import table_of
from dml.testing.source_laws import check_other_process, check_same_data, check_source, everything
from tests.io.line_sets import refusal, written

SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "f": pa.float64(),
        "s": pa.string(),
        "b": pa.bool_(),
        "l": pa.list_(pa.int64()),
        "d": pa.struct({"a": pa.int64(), "b": pa.string()}),
    }
)
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.sampled_from([0.5, -0.0, 1e-310, float("inf"), float("nan")]),
        "s": st.none() | st.text(st.sampled_from('a\n"\\é {}[]\u2028'), max_size=4),
        "b": st.none() | st.booleans(),
        "l": st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3),
        "d": st.none() | st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.text(max_size=0)}),
    },
)


@pytest.mark.law
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(st.lists(ROWS, max_size=7), min_size=1, max_size=3),
    st.integers(1, 4),
    st.sampled_from(["", ".gz"]),
    st.sampled_from(["\n", "\r\n", "\n \t\n\n  "]),
)
def test_the_laws_hold_for_any_objects(
    tmp_path: Path, files: list[list[dict[str, Any]]], atom_rows: int, ending: str, newline: str
) -> None:
    folder = tmp_path / "data"
    shutil.rmtree(folder, ignore_errors=True)
    for number, rows in enumerate(files):
        text = newline.join(map(json.dumps, rows))
        written(folder, {f"{number}.jsonl{ending}": text.encode()})
    every = [row for rows in files for row in rows]
    for each in (None, atom_rows):
        source = read_json(folder, schema=SCHEMA, atom_rows=each)
        check_source(source, pa.Table.from_pylist(every, SCHEMA))
        assert [row.values["l"] for row in table_of(source).rows] == [r.get("l") for r in every]


def test_types_are_those_of_the_first_rows(tmp_path: Path) -> None:
    first = b'{"when": "2024-02-29", "l": [], "n": null, "d": {"t": "2024-01-01"}}\n{"x": 1}\n'
    written(tmp_path, {"a.json": b"", "b.json": first, "c.json": b'{"n": "text", "l": ["q"]}'})
    source = read_json(tmp_path, atom_rows=1)
    assert everything(source).to_arrow().to_pylist() == [
        {"when": "2024-02-29", "l": [], "n": None, "d": {"t": "2024-01-01"}, "x": None},
        {"when": None, "l": None, "n": None, "d": None, "x": 1},
        {"when": None, "l": ["q"], "n": "text", "d": None, "x": None},
    ]
    dated = read_json(tmp_path, columns=["when"], schema={"when": pa.timestamp("us")})
    assert str(dated.schema) == "when: timestamp[us]"
    with pytest.raises(SchemaError, match="needs column 'y'"):
        read_json(tmp_path, columns=["y"])


@pytest.mark.law
@pytest.mark.parametrize(
    ("row", "why"),
    [
        (b"[1]", "it is an array"),
        (b"3", "from object to number"),
        (b'{"x": "text"}', "from number to string"),
        (b'{"x": 1.5}', "1.5"),
        (b'{"x": 99999999999999999999}', "int64"),
        (b'{"x": 1, "new": 2}', "unexpected field"),
        (b'{"x": 1, "x": 2}', "twice"),
        (b'{"x": 1', "Missing a comma"),
        (b'{"x": 1} {"x": 2}', "2 objects are where 1"),
        (b'{"s": "\xff"}', "UTF8"),
        (b'{"s": "\x00"}', "quotation mark"),
        (b'{"x":' + b"[" * 1_000_000, "array"),
    ],
)
def test_a_line_that_is_no_row_is_named(tmp_path: Path, row: bytes, why: str) -> None:
    first = b'{"x": 1, "s": "a"}\n'
    data = first + b"\n" + b'{"x": 2}\n' * 6 + row + b'\n{"x": 3}\n'
    for ending in ("", ".gz"):
        folder = written(tmp_path / f"of{ending}", {"a.json": first, f"x.json{ending}": data})
        error = refusal(partial(read_json, folder, atom_rows=4))
        assert why in error.why
        assert error.at.endswith("row 7, line 9")
        assert error.try_


def test_keys_that_nobody_asked_for_may_be_new(tmp_path: Path) -> None:
    written(tmp_path, {"x.json": b'{"x": 1, "y": 2}\n{"x": 2, "z": [[1]]}\n'})
    assert everything(read_json(tmp_path, columns=["x"])).n == 2


@pytest.mark.parametrize("deep", ["[" * 200 + "]" * 200, '{"a":' * 100_000 + "1" + "}" * 100_000])
def test_depth_is_refused_where_types_are_guessed(tmp_path: Path, deep: str) -> None:
    written(tmp_path, {"x.json": ('{"x":' + deep + "}\n").encode()})
    with pytest.raises(SourceError, match="first row"):
        read_json(tmp_path)
    brackets = json.dumps({"x": "[" * 200 + '"\\'}) + "\n" + '{"x": "{"}\n' * 200
    assert read_json(written(tmp_path, {"x.json": brackets.encode()})).row_count == 201


def test_a_set_without_columns(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="has no columns"):
        read_json(written(tmp_path, {"x.json": b"\n \n"}))
    check_source(read_json(tmp_path, schema={"x": "int64"}), pa.table({"x": pa.array([], "int64")}))


@pytest.mark.law
def test_names_do_not_depend_on_the_place(tmp_path: Path) -> None:
    here = written(tmp_path / "here", {"a.json": b'{"x": 1}', "b.ndjson.gz": b'{"x": 2}\n'})
    shutil.copytree(here, tmp_path / "else")
    source = read_json(here)
    check_same_data(source, read_json(tmp_path / "else"))
    code = f"from dml.io.json.json import read_json\nsource = read_json({str(here)!r})"
    check_other_process(source, code)
    assert source.digest != read_json(here, schema={"x": "int32"}).digest


def test_a_key_that_is_no_text_is_damage(tmp_path: Path) -> None:
    path = written(tmp_path, {"a.json": b'{"\xff": 1}\n'}) / "a.json"
    assert "no UTF-8" in refusal(lambda: read_json(path)).why


@pytest.mark.parametrize("text", ['[{"a": 1}, {"a": 2}]', '[\n  {"a": 1},\n  {"a": 2}\n]\n'])
def test_a_file_that_is_one_array_is_called_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(SourceError) as raised:
        read_json(tmp_path / "rows.json")
    assert raised.value.why == "it is an array, and a row is an object on a line"
    assert "json.load" in raised.value.try_


@pytest.mark.law
def test_an_object_over_several_lines_is_called_so(tmp_path: Path) -> None:
    rows = '{"a": 1},\n' * 120_000  # more than is looked at for types
    (tmp_path / "rows.json").write_text('{"rows": [\n' + rows + '{"a": 2}]}\n')
    with pytest.raises(SourceError) as raised:
        read_json(tmp_path / "rows.json")
    assert raised.value.why.startswith("the object does not end on its line: ")
    assert "json.load" in raised.value.try_


def keys(count: int, start: int = 0) -> bytes:
    return b",".join(b'"k%d": 1' % i for i in range(start, start + count))


@pytest.mark.parametrize(
    "line",
    [
        b"{%b}" % keys(10_001),
        b'{"a": {%b}}' % keys(10_000),
        b'{"a": [%b]}' % b",".join(b"{%b}" % keys(1, i) for i in range(10_000)),
        b"{%b}" % b",".join(b'"o%d": {%b}' % (i, keys(1999)) for i in range(6)),
        b"\n".join(b"{%b}" % keys(1, i) for i in range(10_001)),
        b"{%b}" % b",".join(b'":%d": ":"' % i for i in range(10_001)),
    ],
    ids=["object", "nested", "list", "again", "rows", "colons"],
)
def test_rows_have_a_most_of_keys(tmp_path: Path, line: bytes) -> None:
    folder = written(tmp_path, {"x.jsonl": b'{"first": 1}\n' + line + b"\n"})
    error = refusal(lambda: read_json(folder))
    assert ", row " in error.at
    assert ", line " in error.at
    with pytest.raises(RowError) as caught:
        check_keys(line)
    assert caught.value.try_


def test_many_objects_with_few_keys_may_be_in_a_row(tmp_path: Path) -> None:
    row = b'{"a": [%b], "\\"b": {"a": ":{"}}' % b",".join([b'{"k": [{"l": 1}]}'] * 20_000)
    found = everything(read_json(written(tmp_path, {"x.jsonl": row + b"\n" + row})))
    assert found.n == 2


def test_a_text_without_an_end_is_looked_through_once() -> None:
    unclosed = b'{"a": "' + rb"\"" * 1_000_000
    rows = b"\n".join([b'{"k": 1, "l": 2}'] * 3000)
    check_depth(unclosed)  # from every quote in it again, these would take days
    check_keys(unclosed + b"\n" + rows)
    with pytest.raises(RowError, match="nested"):
        check_depth(unclosed + b'\n{"a": %b' % (b"[" * 65))


def test_many_rows_of_many_other_keys_are_refused(tmp_path: Path) -> None:
    data = b"\n".join(b'{"k%d": 1}' % (i % 9000) for i in range(60_000))
    with pytest.raises(RowError, match="60000 rows have 280 keys and more"):
        check_keys(data)


def test_short_rows_behind_long_ones_are_refused_where_they_would_be_many_values(
    tmp_path: Path,
) -> None:
    long = b"{%b}\n" % keys(9000)
    folder = written(tmp_path, {"x.jsonl": long * 12 + b"{}\n" * 20_000})
    error = refusal(lambda: read_json(folder))
    assert "rows of an atom, each of 9000 values" in error.why
    assert "atom_rows" in error.try_
    few = read_json(folder, columns=["k1"], atom_rows=5000)
    assert everything(few).n == 20_012


def test_nesting_without_end_is_refused_or_never_looked_at(tmp_path: Path) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    first = written(tmp_path / "first", {"x.jsonl": b'{"a": %b}\n' % deep})
    assert "nested" in refusal(lambda: read_json(first)).why
    rows = b'{"a": 1, "b": 1}\n' * 70_000 + b'{"a": 2, "b": %b}\n' % deep
    later = written(tmp_path / "later", {"x.jsonl": rows})
    assert refusal(lambda: read_json(later)).at.endswith("row 70000, line 70001")
    assert everything(read_json(later, columns=["a"])).n == 70_001


def test_a_column_of_several_types_hides_no_type_of_others(tmp_path: Path) -> None:
    """The rows before it have nothing else to say; others behind it do."""
    path = tmp_path / "rows.jsonl"
    rows: list[dict[str, Any]] = [
        {"i": i, "t": 5 if i == 21 else "a", "v": i * 1.5 if i >= 60 else None, "w": None}
        for i in range(300)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ds = dml.read_json(path)
    assert {n: str(k) for n, k in ds.schema.items()} == {
        "i": "int64", "t": "string", "v": "double", "w": "string",
    }  # fmt: skip
    some = dml.read_json(path, columns=["i", "v"])
    assert some.filter(dml.col("v") > 400).count() == sum((r["v"] or 0) > 400 for r in rows)
    with pytest.raises(SourceError, match="row 21"):
        list(ds)
