"""Read CSV of drawn dialects, and drawn Parquet files of four writers, and compare the rows."""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from tests.sampling import amount

LETTERS = [*"ab1 ,;|:\t'\"\n\r", "\r\n", '""', "é", "\u2028", "😀"]
ENDS = ("\n", "\r\n", "\r")
QUOTING = (csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC)
PARTS = 4  # of each test


def text(draw: random.Random) -> str:
    return "x" + "".join(draw.choices(LETTERS, k=draw.randrange(9)))


def table_of(draw: random.Random) -> tuple[dict[str, str], list[list[Any]]]:
    """Types of columns by name, and rows of them; texts are not empty, which would be a null."""
    make: dict[str, Callable[[], Any]] = {
        "int64": lambda: draw.choice([0, -1, 7, 2**63 - 1, -(2**63), draw.getrandbits(40)]),
        "float64": lambda: draw.choice([0.5, -1e300, 1e-7, draw.gauss(0, 1e6)]),
        "string": lambda: text(draw),
    }
    kinds = [draw.choice([*make]) for _ in range(draw.randint(1, 5))]
    rows = [[make[kind]() for kind in kinds] for _ in range(draw.randrange(30))]
    for row in rows if len(kinds) > 1 else ():  # a row of one null would be an empty line
        place = draw.randrange(len(kinds))
        if kinds[place] != "string" and draw.random() < 0.3:
            row[place] = None
    return {f"c{number} {text(draw)}": kind for number, kind in enumerate(kinds)}, rows


@pytest.mark.law
@pytest.mark.parametrize("part", range(PARTS))
def test_csv_of_any_dialect(part: int, tmp_path: Path) -> None:
    for number in range(part, amount(60, 500), PARTS):
        draw = random.Random(number)
        types, rows = table_of(draw)
        header, end = draw.random() < 0.8, draw.choice(ENDS)
        form: Any = {"delimiter": draw.choice(",;|:\t"), "quotechar": draw.choice("\"'")}
        path = tmp_path / f"{number}.csv"
        # Python's writer puts quotes around letters that end its own lines, and no others
        form["quoting"] = draw.choice(QUOTING if end == "\r\n" else QUOTING[1:])
        with path.open("w", encoding=draw.choice(["utf-8", "utf-8-sig"]), newline="") as file:
            writer = csv.writer(file, lineterminator=end, **form)
            writer.writerows(([[*types]] if header else []) + rows)
        if draw.random() < 0.3:  # the last line has no end
            path.write_bytes(path.read_bytes().removesuffix(end.encode()))
        if not header and not rows:
            continue
        names = [*types] if header else [f"f{place}" for place in range(len(types))]
        found = dml.read_csv(
            path,
            schema=dict(zip(names, types.values(), strict=True)),
            delimiter=form["delimiter"],
            quote=form["quotechar"],
            header=header,
            atom_rows=draw.choice([None, 1, 7]),
        ).to_arrow()
        assert found.column_names == names, number
        assert [[*row.values()] for row in found.to_pylist()] == rows, number


def columns(draw: random.Random) -> pa.Table:
    """Some columns of kinds that every writer has."""
    zero = dt.datetime(2001, 2, 3, 4, 5, 6, 789)
    kinds: dict[str, tuple[Callable[[], Any], pa.DataType]] = {
        "i": (lambda: draw.getrandbits(62), pa.int64()),
        "s": (lambda: draw.randrange(-100, 100), pa.int16()),
        "f": (lambda: draw.gauss(0, 1), pa.float64()),
        "b": (lambda: draw.random() < 0.5, pa.bool_()),
        "t": (lambda: text(draw), pa.string()),
        "d": (lambda: dt.date(2001, 2, draw.randrange(1, 29)), pa.date32()),
        "w": (lambda: zero + dt.timedelta(microseconds=draw.getrandbits(50)), pa.timestamp("us")),
        "p": (lambda: decimal.Decimal(draw.randrange(10**8)) / 100, pa.decimal128(12, 2)),
    }
    names = draw.sample([*kinds], draw.randint(1, len(kinds)))
    nulls, count = draw.choice([0.0, 0.2, 1.0]), draw.choice([0, 1, 10, 500])
    found = {}
    for name in names:
        make, kind = kinds[name]
        found[name] = pa.array(
            [None if draw.random() < nulls else make() for _ in range(count)], kind
        )
    return pa.table(found)


def by_pyarrow(draw: random.Random, table: pa.Table, path: Path) -> None:
    pq.write_table(
        table,
        path,
        row_group_size=draw.choice([3, 100, 1000]),
        compression=draw.choice(["none", "snappy", "zstd", "gzip"]),
        use_dictionary=draw.random() < 0.5,
        data_page_version=draw.choice(["1.0", "2.0"]),
        data_page_size=draw.choice([100, 1 << 20]),
        write_statistics=draw.random() < 0.7,
        write_page_index=draw.random() < 0.5,
        version=draw.choice(["1.0", "2.4", "2.6"]),
    )


def by_polars(draw: random.Random, table: pa.Table, path: Path) -> None:
    pl = pytest.importorskip("polars")
    frame: Any = pl.from_arrow(table)
    size, compression = draw.choice([10, 1000]), draw.choice(["uncompressed", "snappy", "zstd"])
    frame.write_parquet(path, row_group_size=size, compression=compression)


def by_duckdb(draw: random.Random, table: pa.Table, path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    compression = draw.choice(["uncompressed", "snappy", "zstd", "gzip"])
    made = f"FORMAT parquet, COMPRESSION {compression}, ROW_GROUP_SIZE {draw.choice([2048, 9000])}"
    with duckdb.connect() as there:
        there.register("made", table)
        there.execute(f"COPY made TO '{path}' ({made})")


def by_fastparquet(draw: random.Random, table: pa.Table, path: Path) -> None:
    fastparquet = pytest.importorskip("fastparquet")
    plain = table.drop_columns([name for name in ("d", "p") if name in table.column_names])
    frame = (
        plain
        if plain.num_columns
        else table.select([]).append_column("z", pa.array([0] * len(table)))
    ).to_pandas()
    offsets = draw.choice([50, 100_000])
    fastparquet.write(
        str(path), frame, row_group_offsets=offsets, compression=draw.choice([None, "GZIP"])
    )


WRITERS = (by_pyarrow, by_polars, by_duckdb, by_fastparquet)


@pytest.mark.law
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_parquet_of_any_writer(
    write: Callable[[random.Random, pa.Table, Path], None], tmp_path: Path
) -> None:
    for number in range(amount(8, 50)):
        draw = random.Random(f"{write.__name__} {number}")
        path = tmp_path / f"{number}.parquet"
        write(draw, columns(draw), path)
        wanted = pq.read_table(path)
        found = dml.read_parquet(path).to_arrow()
        assert found.column_names == wanted.column_names, number
        for name in wanted.column_names:
            assert found[name].to_pylist() == wanted[name].to_pylist(), (number, name)
