"""Test that CSV is cut into rows as by Arrow, typed once, and refused where rows do not fit."""

from __future__ import annotations

import csv
import io
import random
import shutil
import subprocess
import sys
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dml
from dml.errors import PlanError, SchemaError, SourceError
from dml.io.csv import csv as csv_module
from dml.io.csv.csv import CsvForm, read_csv
from dml.io.files import records
from dml.testing.oracle_sources import table_of
from dml.testing.source_laws import check_other_process, check_same_data, check_source, everything
from tests.expr.checks import agrees
from tests.io.line_sets import PACK, refusal, written

ROW = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.sampled_from([0.5, -0.0, 1e-310, float("inf"), float("nan"), 3.0]),
    st.text(st.sampled_from('ab",\n\r é'), max_size=4),
)
SCHEMA = pa.schema({"i": pa.int64(), "f": pa.float64(), "s": pa.string()})
TYPES = {"i": "int64", "f": "float64", "s": "string"}


def text_of(rows: list[tuple[int | None, float | None, str]], newline: str) -> bytes:
    """CSV with every text in quotes."""
    lines = ["i,f,s"]
    for i, f, s in rows:
        quoted = s.replace('"', '""')
        numbers = ("" if i is None else str(i), "" if f is None else repr(f))
        lines.append(f'{numbers[0]},{numbers[1]},"{quoted}"')
    return (newline.join(lines) + newline).encode()


@pytest.mark.law
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(st.lists(ROW, max_size=7), min_size=1, max_size=3),
    st.integers(1, 4),
    st.sampled_from(["", ".gz", ".zst"]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_the_laws_hold_for_any_rows(
    tmp_path: Path,
    files: list[list[tuple[int | None, float | None, str]]],
    atom_rows: int,
    ending: str,
    newline: str,
) -> None:
    folder = tmp_path / "data"
    shutil.rmtree(folder, ignore_errors=True)
    for number, rows in enumerate(files):
        written(folder, {f"{number}.csv{ending}": text_of(rows, newline)})
    columns = [[row[i] for rows in files for row in rows] for i in range(3)]
    expected = pa.table(
        [pa.array(c, t) for c, t in zip(columns, SCHEMA.types, strict=True)], SCHEMA
    )
    for each in (None, atom_rows):
        source = read_csv(folder, schema=TYPES, atom_rows=each)
        check_source(source, expected)
        assert [row.values["s"] for row in table_of(source).rows] == columns[2]


@pytest.mark.law
def test_rows_end_where_arrow_ends_them() -> None:
    draw, dialect, tried = random.Random(1), CsvForm(",", '"', (), header=True), 0
    for _ in range(3000):
        letters = (draw.choice(["a", ",", '"', '"', "\n", "\r\n", "\r"]) for _ in range(12))
        raw = "".join(letters).encode()
        ends = dialect.ends(raw)
        tail = raw[ends[-1] :] if len(ends) else raw
        try:
            rows = len(ends) + bool(tail and dialect.last(tail))
        except SourceError:
            continue
        other: list[pc.InvalidRow] = []

        def skip(row: pc.InvalidRow, other: list[pc.InvalidRow] = other) -> str:
            other.append(row)
            return "skip"

        if not rows:
            continue
        parsing = pc.ParseOptions(newlines_in_values=True, invalid_row_handler=skip)
        reading = pc.ReadOptions(use_threads=False, column_names=["x", "y"])
        table = pc.read_csv(pa.BufferReader(raw), reading, parsing)
        assert table.num_rows + len(other) == rows, raw
        tried += 1
    assert tried > 500


LINE_ENDS = st.sampled_from(["\n", "\r", "\r\n", "\n\n", "\r\r", "\n\r", "\r\n\r"])


PLAIN = ("a", "é", "aé")
ENDINGS = st.sampled_from(["", ".gz"])


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, str, str]:
    """CSV of two columns of text, with its delimiter and quote; every line ends as it likes."""
    delimiter, quote = draw(st.sampled_from(",;\t")), draw(st.sampled_from(['"', "'", ""]))
    letters = st.sampled_from(
        ["a", "é", " ", *(["\n", "\r", "\r\n", delimiter, quote] if quote else [])]
    )
    lines = []
    for _ in range(draw(st.integers(1, 6))):
        values = draw(st.lists(st.lists(letters, max_size=3).map("".join), min_size=2, max_size=2))
        if quote:
            bare = draw(st.booleans())
            doubled = [quote + value.replace(quote, quote * 2) + quote for value in values]
            values = [v if bare and v in PLAIN else d for v, d in zip(values, doubled, strict=True)]
        lines.append(delimiter.join(values) + draw(LINE_ENDS))
    text = "".join(lines)
    return text if draw(st.booleans()) else text.rstrip("\r\n"), delimiter, quote


def pythons(text: str, delimiter: str, quote: str) -> list[list[str]]:
    """The rows that Python's own reader finds."""
    lines = io.StringIO(text, newline="")
    if not quote:
        return [
            row for row in csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE) if row
        ]
    return [row for row in csv.reader(lines, delimiter=delimiter, quotechar=quote) if row]


@pytest.mark.law
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(texts(), st.integers(1, 9), st.sampled_from(["", "x,y\r", "\ufeffx,y\n", "\ufeff"]), ENDINGS)
def test_lines_end_where_pythons_csv_has_their_ends(
    tmp_path: Path, rows: tuple[str, str, str], window: int, before: str, ending: str
) -> None:
    text, delimiter, quote = rows
    data = (before.replace(",", delimiter) + text).encode()
    path = written(tmp_path, {f"x.csv{ending}": data}) / f"x.csv{ending}"
    options: Any = {"delimiter": delimiter, "quote": quote, "header": "x" in before}
    expected = [{"x": x, "y": y} for x, y in pythons(*rows)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "WINDOW", window)
        for atom_rows in (None, 1, 2):
            types = {"x": "string", "y": "string"}
            source = read_csv(path, schema=types, atom_rows=atom_rows, **options)
            assert source.row_count == len(expected)
            assert everything(source).to_arrow().to_pylist() == expected


@pytest.mark.parametrize("ending", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("after", ["\n", "\r", "\r\n"])
def test_a_header_may_end_in_any_way(tmp_path: Path, ending: str, after: str) -> None:
    for header in ("a,b", '"a","b"', '\ufeffa,"b"'):
        text = f"{header}{ending}1,2{after}3,4{after}"
        source = read_csv(written(tmp_path, {"x.csv": text.encode()}))
        assert everything(source).to_arrow().to_pydict() == {"a": [1, 3], "b": [2, 4]}
        assert source.row_count == 2


@pytest.mark.law
@pytest.mark.parametrize("ending", ["\n", "\r", "\r\n"])
def test_a_part_begins_after_any_end_of_a_line(tmp_path: Path, ending: str) -> None:
    rows = 1_200_000  # two parts, and windows that end within them
    text = ending.join(["a,b", *(f"{n},x" for n in range(rows))])
    source = read_csv(written(tmp_path, {"x.csv": text.encode()}))
    assert len(source.parts) > 1
    assert everything(source).to_arrow()["a"].to_pylist() == list(range(rows))


@pytest.mark.parametrize("window", [1, 2, 1 << 20])
def test_a_place_counts_lines_of_any_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr("dml.io.files.records.WINDOW", window)
    data = b'a,b\r1,"x\r\ny"\n\r2,x\r\nno,x\r3,x\n'
    error = refusal(lambda: read_csv(written(tmp_path, {"x.csv": data}), schema={"a": "int64"}))
    assert error.at.endswith("row 2, line 6")


@pytest.mark.law
def test_types_are_those_of_the_first_rows(tmp_path: Path) -> None:
    files = {
        "a.csv": b"i,f,d,s,n,b\n",
        "b.csv.gz": b"i,f,d,s,n,b\n1,2,2024-02-29,x,,true\n,0.5,,,,false\n",
        "c.csv": b"\xef\xbb\xbfi,f,d,s,n,b\n7,,,nan,later,true",
    }
    source = read_csv(written(tmp_path, files), atom_rows=1)
    assert (
        str(source.schema) == "i: int64, f: double, d: date32[day], s: string, n: string, b: bool"
    )
    check_source(
        source,
        pa.table(
            {
                "i": [1, None, 7],
                "f": [2.0, 0.5, None],
                "d": pa.array(["2024-02-29", None, None]).cast(pa.date32()),
                "s": ["x", "", "nan"],
                "n": ["", "", "later"],
                "b": [True, False, True],
            }
        ),
    )
    declared = read_csv(tmp_path, columns=["f", "i"], schema={"i": "string", "f": "float32"})
    assert everything(declared).to_arrow().to_pydict() == {
        "f": [2.0, 0.5, None],
        "i": ["1", "", "7"],
    }


@pytest.mark.law
def test_options(tmp_path: Path) -> None:
    written(tmp_path, {"x.tsv": b"1\t'a\n'\n-\t-\n\n3\tb\"\n"})
    path = tmp_path / "x.tsv"
    options = {"delimiter": "\t", "header": False, "quote": "'", "null_values": ["-"]}
    source = read_csv(path, **options, atom_rows=2)  # type: ignore[arg-type]
    check_source(source, pa.table({"f0": [1, None, 3], "f1": ["a\n", None, 'b"']}))
    named = read_csv(path, schema={"n": "int8", "s": "string"}, **options)  # type: ignore[arg-type]
    assert str(named.schema) == "n: int8, s: string"
    assert [row.values for row in table_of(named).rows][1] == {"n": None, "s": None}
    bare = read_csv(written(tmp_path, {"q.csv": b'a,b\n5",x"\n'}) / "q.csv", quote="")
    assert everything(bare).to_arrow().to_pylist() == [{"a": '5"', "b": 'x"'}]
    for wrong in ({"delimiter": ",,"}, {"quote": "«"}, {"delimiter": "\n"}):
        with pytest.raises(PlanError, match="one ASCII letter"):
            read_csv(path, **wrong)  # type: ignore[arg-type]
    assert len({read_csv(path, **o).digest for o in (options, {**options, "header": True})}) == 2  # type: ignore[arg-type]


@pytest.mark.law
@pytest.mark.parametrize(
    ("row", "why"),
    [
        (b"x,1", "column 'a': conversion error to int64: invalid value 'x'"),
        (b"1.5,1", "column 'a'"),
        (b"1", "Expected 2 columns, got 1: 1"),
        (b"1,2,3", "Expected 2 columns, got 3"),
        (b"1,\xff", "column 'b'"),
        (b'1,"2', "within quotes"),
    ],
)
def test_a_row_that_does_not_fit_is_named(tmp_path: Path, row: bytes, why: str) -> None:
    for ending in ("", ".gz"):
        before = b'a,b\n1,"x\ny"\n\n' + b"2,x\n" * 6
        after = b"" if b'"' in row else b"\n3,x\n"
        files = {"a.csv": b"a,b\n1,x\n", f"x.csv{ending}": before + row + after}
        folder = written(tmp_path / f"of{ending}", files)
        error = refusal(partial(read_csv, folder, atom_rows=4))
        assert why in error.why
        assert error.at.endswith("row 7, line 11")
        assert error.try_


def test_a_first_row_that_does_not_fit(tmp_path: Path) -> None:
    error = refusal(lambda: read_csv(written(tmp_path, {"x.csv": b"a,b\n1\n2,3\n"})))
    assert error.at.endswith("row 0, line 2")
    source = read_csv(written(tmp_path, {"x.csv": b"a,b\n1,2\n3\n"}))
    assert str(source.schema) == "a: int64, b: int64"
    assert refusal(lambda: source).at.endswith("row 1, line 3")


def test_headers(tmp_path: Path) -> None:
    for name, files, what in (
        ("empty", {"x.csv": b""}, "has no header"),
        ("twice", {"x.csv": b"a,a\n"}, "two columns called 'a'"),
        ("differs", {"x.csv": b"a,b\n1,2\n", "y.csv": b"b,a\n1,2\n"}, "other columns"),
        ("bytes", {"x.csv": b"\xff,b\n1,2\n"}, "cannot be read"),
    ):
        folder = written(tmp_path / name, files)
        with pytest.raises(SourceError, match=what):
            read_csv(folder)
    with pytest.raises(SourceError, match="has no columns"):
        read_csv(written(tmp_path / "none", {"x.csv": b""}), header=False)
    good = written(tmp_path / "good", {"x.csv": b"a,b\n1,2\n"})
    with pytest.raises(SchemaError, match="needs column 'c'"):
        read_csv(good, schema={"c": "int64"})
    with pytest.raises(SchemaError, match="needs column 'c'"):
        read_csv(good, columns=["c"])
    with pytest.raises(SchemaError, match="cannot be list"):
        read_csv(good, schema={"a": pa.list_(pa.int64())})


@pytest.mark.law
def test_names_do_not_depend_on_the_place(tmp_path: Path) -> None:
    here = written(tmp_path / "here", {"a.csv": b"a\n1\n", "b.csv.bz2": b"a\n2\n"})
    shutil.copytree(here, tmp_path / "else")
    source = read_csv(here)
    check_same_data(source, read_csv(tmp_path / "else"))
    code = f"from dml.io.csv.csv import read_csv\nsource = read_csv({str(here)!r})"
    check_other_process(source, code)
    assert source.digest != read_csv(here, schema={"a": "int32"}).digest


def test_every_packing(tmp_path: Path) -> None:
    for ending in PACK:
        written(tmp_path, {f"x{ending[1:]}.csv{ending}": b"a\n1\n2\n"})
    assert dml.read_csv(tmp_path).with_options(telemetry_dir="off").count() == 2 * len(PACK)


@pytest.mark.law
def test_nulls_of_text_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n,s\n1,x\nNA,NA\n,\n")
    assert dml.read_csv(path, null_values=["NA"]).to_dict() == {
        "n": [1, None, None],
        "s": ["x", None, None],
    }
    assert dml.read_csv(path, schema={"n": "string"}).to_dict()["s"] == ["x", "NA", ""]
    agrees(dml.read_csv(path, null_values=["NA"], atom_rows=2), epochs=(0,))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_quote_that_does_not_close_is_named_where_it_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    text = b'a,b\n1,2\n"x\ny","' + b"5,6\n" * 1000  # the row begins a line above the quote
    folder = written(tmp_path, {f"x.csv{ending}": text})
    schema = {"a": "string", "b": "string"}
    cut = refusal(lambda: read_csv(folder, schema=schema))
    assert cut.what == "a quoted value has no end"
    monkeypatch.setattr(records, "LONGEST", 1000)
    monkeypatch.setattr(records, "WINDOW", 200)
    longer = refusal(lambda: read_csv(folder, schema=schema))
    assert (longer.what, longer.why) == (
        "a row is longer than 1000 bytes",
        "a quote opens on that line, and nothing closes it",
    )
    for error in (cut, longer):
        assert error.at.endswith("row 1, line 4")
        assert "quote=''" in error.try_


def test_a_quote_of_a_header_that_does_not_close_is_named(tmp_path: Path) -> None:
    error = refusal(lambda: read_csv(written(tmp_path, {"x.csv": b'"a\nb","c\n1,2\n'})))
    assert error.at.endswith("x.csv, line 2")


def test_what_follows_a_quote_that_does_not_close_takes_no_memory() -> None:
    window = b'1,2\n3,"' + b"4\n" * (2 << 20)
    tracemalloc.start()
    ends = CsvForm(",", '"', (), header=True).ends(window)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert ends.tolist() == [4]
    assert peak < 1.5 * len(window)


def test_rows_have_a_most_of_columns(tmp_path: Path) -> None:
    few = b",".join(b"c%d" % i for i in range(2000)) + b"\n"
    many = b",".join(b"c%d" % i for i in range(40_000)) + b"\n"
    long = b",".join(b"%d" % i * 200 for i in range(2000)) + b"\n"  # more than Arrow reads at once
    for name, data in {"few": few + few, "long": long + few}.items():
        folder = written(tmp_path / name, {"x.csv": data})
        assert everything(read_csv(folder)).n == 1
    error = refusal(lambda: read_csv(written(tmp_path / "many", {"x.csv": many + many})))
    assert error.what == "the header of x.csv has 40000 columns"
    assert error.at.endswith("x.csv, line 1")
    error = refusal(lambda: read_csv(tmp_path / "many", header=False))
    assert "40000 values" in error.why
    assert error.at.endswith("row 0, line 1")
    quoted = b'"' + b"," * 40_000 + b'",1\n'
    found = read_csv(written(tmp_path / "quoted", {"x.csv": quoted}), header=False)
    assert len(found.schema) == 2


@pytest.mark.parametrize("header", ["a", '"a\rb"', '"a\nb"', '"a\r\nb",c', '\ufeff"a\nb"'])
@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\r"])
def test_a_header_alone_has_names_however_it_ends(header: str, end: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes((header + end).encode())
    names = [each.strip('"') for each in header.removeprefix("\ufeff").split(",")]
    assert dml.read_csv(path).to_arrow().column_names == names


# ----------------------------------------------------------------------------- many columns

HEADER = st.lists(
    st.text(st.sampled_from('ab",\n é'), max_size=4).filter(lambda name: name.strip()),
    min_size=1, max_size=9, unique=True,
)  # fmt: skip


@given(names=HEADER, marked=st.booleans(), end=st.sampled_from(["\n", "\r\n", ""]))
def test_names_are_those_that_arrow_reads(
    tmp_path_factory: pytest.TempPathFactory, *, names: list[str], marked: bool, end: str
) -> None:
    """In quotes where they need them, and where they do not."""
    out = io.StringIO()
    csv.writer(out).writerow(names)
    line = out.getvalue().removesuffix("\r\n") + end
    text = (b"\xef\xbb\xbf" if marked else b"") + line.encode()
    path = tmp_path_factory.mktemp("names") / "a.csv"
    path.write_bytes(text)
    ended = text if end else text + b"\n"
    parsing = pc.ParseOptions(newlines_in_values=True)
    wanted = pc.read_csv(pa.BufferReader(ended), parse_options=parsing).column_names
    assert list(read_csv(str(path)).schema) == wanted


@settings(deadline=None)
@given(st.integers(1, 7), st.lists(st.lists(ROW, min_size=2, max_size=2), min_size=1, max_size=5))
def test_columns_are_the_same_however_many_are_decoded_at_once(
    tmp_path_factory: pytest.TempPathFactory, most: int, rows: list[list[Any]]
) -> None:
    path = tmp_path_factory.mktemp("groups") / "a.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([f"{name}{part}" for part in range(2) for name in "ifs"])
        writer.writerows([value for part in row for value in part] for row in rows)
    found: list[Any] = []
    for at_once in (most, 1 << 12):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(csv_module, "AT_ONCE", at_once)
            try:
                found.append(everything(read_csv(str(path))).to_arrow())
            except SourceError as error:
                found.append(str(error))
    assert repr(found[0]) == repr(found[1])
    assert isinstance(found[0], str) or found[0].schema == found[1].schema


WIDE = """
import resource, sys
import dml

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

before = peak()
ds = dml.read_csv(sys.argv[1]).with_options(executor="sync", telemetry_dir="off")
assert [row["c9"] for row in ds] == [9, 10, 11]
print(peak() - before)
"""


@pytest.mark.law
def test_three_rows_of_the_most_columns_take_little_memory(tmp_path: Path) -> None:
    count = csv_module.MOST_COLUMNS
    lines = [",".join(f"c{column}" for column in range(count))]
    lines += [",".join(str(column + row) for column in range(count)) for row in range(3)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    command = [sys.executable, "-c", WIDE, str(tmp_path / "a.csv")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(run.stdout) < 200, "MiB; all columns at once took 570"
