"""Test that text is read line by line: units, compressed files, damage, long lines."""

from __future__ import annotations

import gzip
import pickle
import random
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dml
from dml.data.block import Block
from dml.errors import PlanError, SourceError
from dml.io.files import records
from dml.io.text.text import read_text
from dml.testing.oracle_sources import table_of
from dml.testing.source_laws import (
    check_other_process,
    check_same_data,
    check_source,
    everything,
    id_pairs,
    units,
)
from tests.io.line_sets import PACK, refusal, written

LINE = st.text(st.sampled_from("ab é\r\x00\u2028"), max_size=5)


def lines(*texts: str) -> pa.Table:
    return pa.table({"text": pa.array(texts, pa.string())})


@pytest.mark.law
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.lists(LINE, max_size=9), st.booleans()), min_size=1, max_size=3),
    st.integers(1, 4),
    st.sampled_from(sorted(PACK)),
    st.sampled_from(["\n", "\r\n"]),
)
def test_the_laws_hold_for_any_lines(
    tmp_path: Path,
    files: list[tuple[list[str], bool]],
    atom_rows: int,
    ending: str,
    newline: str,
) -> None:
    folder = tmp_path / "data"
    shutil.rmtree(folder, ignore_errors=True)
    expected: list[str] = []
    for number, (texts, ended) in enumerate(files):
        whole = "".join(text + newline for text in texts)
        if not ended and texts and texts[-1]:
            whole = whole.removesuffix(newline)
        written(folder, {f"{number}.txt{ending}": whole.encode()})
        stripped = [t.removesuffix("\r") if newline == "\n" else t for t in texts]
        if not ended and texts and texts[-1]:
            stripped[-1] = texts[-1]
        expected += stripped
    for source in (read_text(folder, atom_rows=atom_rows), read_text(folder)):
        check_source(source, lines(*expected))
        assert [row.values["text"] for row in table_of(source).rows] == expected


def test_what_a_line_is(tmp_path: Path) -> None:
    written(tmp_path, {"x.txt": b"\xef\xbb\xbfa\r\n\nb\rc\n\n", "y.txt": b"", "z.txt": b"\n"})
    check_source(read_text(tmp_path), lines("a", "", "b\rc", "", ""))


@pytest.mark.law
def test_names_and_ids_do_not_depend_on_the_place(tmp_path: Path) -> None:
    here = written(tmp_path / "here", {"a/1.txt": b"a\nb\n", "2.txt.gz": b"c\n"})
    shutil.copytree(here, tmp_path / "else")
    source = read_text(here)
    check_same_data(source, read_text(tmp_path / "else"))
    check_same_data(source, pickle.loads(pickle.dumps(source)))
    check_other_process(
        source,
        f"from dml.io.text.text import read_text\nsource = read_text({str(here)!r})",
    )
    assert source.likeness() == read_text(tmp_path / "else").likeness()
    before = id_pairs(everything(source))
    written(here, {"b.txt": b"new\n"})
    more = read_text(here)
    assert more.digest != source.digest
    assert np.array_equal(id_pairs(everything(more))[:3], before)


def test_what_was_counted_travels(tmp_path: Path) -> None:
    source = read_text(written(tmp_path, {"x.txt": b"a\nb\nc\n"}), atom_rows=2)
    assert source.row_count == 3
    (tmp_path / "x.txt").unlink()
    assert pickle.loads(pickle.dumps(source)).row_count == 3


@pytest.mark.law
def test_parts_are_8_mib_and_can_be_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "ATOM_BYTES", 64)
    monkeypatch.setattr(records, "ATOM_ROWS", 8)
    monkeypatch.setattr(records, "WINDOW", 16)
    draw = random.Random(1)
    texts = ["x" * draw.choice([0, 1, 5, 30, 100]) for _ in range(200)]
    data = "".join(f"{text}\n" for text in texts).encode()
    written(tmp_path, {"x.txt": data, "y.txt.gz": data})
    plain, packed = read_text(tmp_path / "x.txt"), read_text(tmp_path / "y.txt.gz")
    check_source(plain, lines(*texts))
    check_source(packed, lines(*texts))
    sizes = [(run.rows, run.stop - run.start) for run in plain.parts]
    assert all(rows <= 8 and (nbytes <= 64 or rows == 1) for rows, nbytes in sizes)
    assert all(unit.atoms == 1 for unit in units(plain))
    assert packed.unit_count == 1
    given_rows = read_text(tmp_path / "x.txt", atom_rows=2)
    check_source(given_rows, lines(*texts))
    assert given_rows.unit_count > 5
    assert any((unit.atoms or 0) > 1 for unit in units(given_rows))


@pytest.mark.law
def test_atoms_of_packed_files_follow_the_longest_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "ATOM_BYTES", 1 << 10)
    monkeypatch.setattr(records, "LARGEST_ATOM", 4 << 10)
    rare = ["x" * 1000] * 6 + ["y"] * 3000
    source = read_text(written(tmp_path, {"x.txt.gz": "\n".join(rare).encode()}))
    assert source.parts[0].widest <= 4 << 10
    check_source(source, lines(*rare))


@pytest.mark.law
@pytest.mark.parametrize("ending", sorted(set(PACK) - {""}))
def test_a_packed_file_that_was_cut_off(tmp_path: Path, ending: str) -> None:
    draw = random.Random(7)
    texts = [f"{draw.random()}" for _ in range(120_000)]
    whole = PACK[ending]("\n".join(texts).encode())
    path = tmp_path / f"x.txt{ending}"
    path.write_bytes(whole[: len(whole) // 2])
    source = read_text(path, atom_rows=100)
    got: list[Block] = []
    (unit,) = units(source)
    with pytest.raises(SourceError, match="damaged") as caught:
        got.extend(source.read(unit, ("text",)))
    rows = sum(block.n for block in got)
    assert rows > 30_000
    assert unit.rows is not None
    assert 1 <= unit.rows - rows <= 100
    assert caught.value.at.endswith(f"row {unit.rows - 1}, line {unit.rows}")
    assert source.row_count is None
    with pytest.raises(SourceError, match="damaged"):
        dml.read_text(path).with_options(telemetry_dir="off").count()


@pytest.mark.law
def test_a_file_that_is_not_what_its_name_says(tmp_path: Path) -> None:
    for ending in set(PACK) - {""}:
        (tmp_path / f"x.txt{ending}").write_bytes(b"plain text\n")
        error = refusal(lambda ending=ending: read_text(tmp_path / f"x.txt{ending}"))  # type: ignore[misc]
        assert "is damaged" in error.what
        written(tmp_path, {"a.txt": b"a\nb\n"})
        ds = dml.read_text([tmp_path / "a.txt", tmp_path / f"x.txt{ending}"])
        batches = iter(ds.batch(2).with_options(telemetry_dir="off"))
        assert next(batches)["text"].tolist() == ["a", "b"]
        with pytest.raises(SourceError, match="is damaged"):
            next(batches)


@pytest.mark.law
def test_a_bit_flip_in_gzip_is_noticed(tmp_path: Path) -> None:
    whole = gzip.compress(b"a line of text\n" * 1000)
    for at in range(12, len(whole) - 4):
        flipped = bytearray(whole)
        flipped[at] ^= 1
        (tmp_path / "x.txt.gz").write_bytes(flipped)
        assert "x.txt.gz" in str(refusal(lambda: read_text(tmp_path / "x.txt.gz")))


def test_what_is_not_utf8_is_named(tmp_path: Path) -> None:
    written(tmp_path, {"x.txt": b"a\nb\n\nc\xff\nd\n"})
    error = refusal(lambda: read_text(tmp_path, atom_rows=2))
    assert error.what == "row 3 of x.txt cannot be read"
    assert error.at.endswith("x.txt, row 3, line 4")
    assert "0xff" in error.why
    written(tmp_path, {"x.txt": "ü".encode()[:1] + b"\n" + "ü".encode()[1:]})
    assert "row 0" in refusal(lambda: read_text(tmp_path)).at


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_line_without_end_is_refused(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "LONGEST", 1000)
    monkeypatch.setattr(records, "WINDOW", 64)
    fits = b"a\n" * 100 + b"x" * 999 + b"\n"
    written(tmp_path, {f"x.txt{ending}": fits})
    assert everything(read_text(tmp_path, atom_rows=10)).n == 101
    for tail in (b"y" * 1001 + b"\n", b"y" * 100_000):
        written(tmp_path, {f"x.txt{ending}": fits + tail})
        source = read_text(tmp_path, atom_rows=10)
        error = refusal(lambda source=source: source)  # type: ignore[misc]
        assert error.what == "a row is longer than 1000 bytes"
        assert error.at.endswith("row 101, line 102")
        assert source.row_count is None


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path, {"x.txt": b"a\nb\nc\n"}) / "x.txt"
    source = read_text(path, atom_rows=1)
    reading = source.read(source.unit(0), ("text",))
    next(reading)
    path.write_bytes(b"a\nb\nc\nd\n")
    with pytest.raises(SourceError, match="has changed"):
        next(reading)
    source = read_text(path)
    path.write_bytes(b"")
    assert "has changed" in refusal(lambda: source).what
    path.unlink()
    with pytest.raises(SourceError, match="does not exist"):
        read_text(path)


def test_shown_as_written(tmp_path: Path) -> None:
    path = str(written(tmp_path, {"x.txt": b"a\nb\n"}) / "x.txt")
    source = read_text(path, atom_rows=1)
    assert source.title() == f"TextSource({path!r}, atom_rows=1)"
    assert source.unit(0).place == "x.txt, rows 0 to 1"
    with pytest.raises(PlanError, match="atom_rows"):
        read_text(path, atom_rows=0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="has no text files"):
        read_text(tmp_path / "empty")


def test_nothing_is_read_before_it_is_needed(tmp_path: Path) -> None:
    (tmp_path / "x.txt.gz").write_bytes(b"not gzip")
    dml.read_text(tmp_path).map(lambda row: row).batch(3)
