"""Compare local times with Python's ``zoneinfo``, in functions of times and in text files."""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pyarrow as pa
import pytest

import dml
from dml import col
from dml.errors import SchemaError
from dml.kernels.functions import table
from dml.kernels.functions.table import functions
from tests.expr.checks import computed

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
ZONES = sorted(available_timezones())
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
FORM = "%Y-%m-%d %H:%M:%S.%f"
FIRST, LAST = (dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (1850, 2150))
MEANS: dict[str, Callable[[dt.datetime], Any]] = {
    "year": lambda t: t.year,
    "quarter": lambda t: (t.month + 2) // 3,
    "month": lambda t: t.month,
    "day": lambda t: t.day,
    "hour": lambda t: t.hour,
    "minute": lambda t: t.minute,
    "second": lambda t: t.second,
    "millisecond": lambda t: t.microsecond // 1000,
    "microsecond": lambda t: t.microsecond,
    "weekday": lambda t: t.isoweekday(),
    "ordinal_day": lambda t: t.timetuple().tm_yday,
    "week": lambda t: t.isocalendar().week,
    "iso_year": lambda t: t.isocalendar().year,
    "date": lambda t: t.date(),
}
AMSTERDAM, PARIS = "Europe/Amsterdam", "Europe/Paris"

Sampled = Callable[[Iterable[Any], int], list[Any]]


def seconds_of(moment: dt.datetime) -> int:
    return (moment - EPOCH) // dt.timedelta(seconds=1)


def moments(draw: random.Random, count: int) -> list[int]:
    """Seconds since 1970 of 1850 to 2150, some of them in a summer since 1970."""
    drawn = [draw.randrange(seconds_of(FIRST), seconds_of(LAST)) for _ in range(count)]
    summers = [dt.datetime(draw.randint(1970, 2149), 7, 1, tzinfo=dt.UTC) for _ in range(4)]
    return [*drawn, *map(seconds_of, summers)]


def shown(ticks: int, unit: str, zone: dt.tzinfo) -> dt.datetime:
    """What Python says that clocks show."""
    return (EPOCH + dt.timedelta(microseconds=ticks * 10**6 // UNITS[unit])).astimezone(zone)


def test_clocks_show_what_zoneinfo_says(sampled: Sampled) -> None:
    draw = random.Random(1)
    for name in sampled(ZONES, 50):
        for unit, size in UNITS.items():
            ticks = [at * size + draw.randrange(size) for at in moments(draw, 8)]
            data = {"t": pa.array([*ticks, None], pa.int64()).view(pa.timestamp(unit, name))}
            clocks = [shown(tick, unit, ZoneInfo(name)) for tick in ticks]
            made = {each: getattr(col("t").dt, each)() for each in MEANS}
            ds = dml.from_arrow(pa.table(data)).select(text=col("t").dt.strftime(FORM), **made)
            found = ds.to_arrow().to_pylist()
            wanted = [
                {"text": t.strftime(FORM), **{each: means(t) for each, means in MEANS.items()}}
                for t in clocks
            ]
            assert found[:-1] == wanted, (name, unit)
            assert set(found[-1].values()) == {None}


def test_text_is_read_as_the_same_instants(sampled: Sampled, tmp_path: Path) -> None:
    draw = random.Random(2)
    kinds = {f"{name} {unit}": (name, unit) for name in sampled(ZONES, 50) for unit in UNITS}
    rows = {
        column: [at * UNITS[unit] + draw.randrange(UNITS[unit]) for at in moments(draw, 3)]
        for column, (_, unit) in kinds.items()
    }
    columns = {c: pa.array(rows[c]).view(pa.timestamp(u, z)) for c, (z, u) in kinds.items()}
    ds = dml.from_arrow(pa.table(columns)).with_options(num_workers=1)
    ds.write_json(tmp_path / "json")
    ds.write_csv(tmp_path / "csv")
    lines = (tmp_path / "json/part-00000.jsonl").read_text().splitlines()
    with (tmp_path / "csv/part-00000.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == list(map(json.loads, lines))
    for i, line in enumerate(map(json.loads, lines)):
        for column, (name, unit) in kinds.items():
            held(line[column], rows[column][i], unit, name)
    schema = {name: column.type for name, column in columns.items()}
    for read, kind in ((dml.read_csv, "csv"), (dml.read_json, "json")):
        back = read(tmp_path / kind, schema=schema).to_arrow()
        assert back.combine_chunks().equals(pa.table(columns).cast(back.schema)), kind


def held(text: str, ticks: int, unit: str, name: str) -> None:
    """Text is the instant, and what clocks show but for seconds of the offset."""
    clock = shown(ticks, unit, ZoneInfo(name))
    read = dt.datetime.fromisoformat(text)
    assert read == clock, (text, name)
    difference = abs(read.replace(tzinfo=None) - clock.replace(tzinfo=None))
    assert difference <= dt.timedelta(seconds=30), (text, name)
    if not (clock.utcoffset() or dt.timedelta()).seconds % 60:
        whole = clock.strftime("%Y-%m-%d %H:%M:%S")
        assert text[:19] == whole, (text, name)
        assert text.endswith("Z" if name == "UTC" else clock.strftime("%z")), (text, name)


@pytest.mark.parametrize(
    ("zone", "moment"),
    [
        (AMSTERDAM, dt.datetime(2050, 7, 1, 12)),
        (AMSTERDAM, dt.datetime(1930, 1, 1, 12, 0, 5)),
        (PARIS, dt.datetime(1900, 1, 1, 23, 59, 59)),
        (PARIS, dt.datetime(9999, 7, 1, 12)),
        (PARIS, dt.datetime(2, 7, 1, 12)),
        ("Australia/Lord_Howe", dt.datetime(2600, 1, 1, 12, 30)),
        ("America/Nuuk", dt.datetime(2199, 12, 31, 23, 30)),
    ],
)
def test_any_year(zone: str, moment: dt.datetime) -> None:
    array = pa.array([moment.replace(tzinfo=ZoneInfo(zone))], pa.timestamp("us", zone))
    wanted = f"{moment.year:04}-{moment:%m-%d %H:%M:%S}"
    assert computed({"t": array}, col("t").dt.strftime("%Y-%m-%d %H:%M:%S")) == [wanted]


def test_every_half_hour_of_two_years() -> None:
    for name in (AMSTERDAM, "Africa/Casablanca", "Australia/Lord_Howe", "America/Nuuk"):
        ticks = range(
            seconds_of(FIRST.replace(year=2086)), seconds_of(FIRST.replace(year=2088)), 1800
        )
        array = pa.array(ticks, pa.int64()).view(pa.timestamp("s", name))
        ds = dml.from_arrow(pa.table({"t": array})).select(text=col("t").dt.strftime(FORM))
        wanted = [shown(tick, "s", ZoneInfo(name)).strftime(FORM) for tick in ticks]
        assert ds.to_arrow()["text"].to_pylist() == wanted


@pytest.mark.parametrize(
    ("zone", "wanted"),
    [
        ("UTC", "1969-12-31 23:59:59"),
        ("+05:30", "1970-01-01 05:29:59"),
        ("+0530", "1970-01-01 05:29:59"),
        ("-00:30", "1969-12-31 23:29:59"),
        ("-23:59", "1969-12-31 00:00:59"),
    ],
)
def test_offsets_as_zones(zone: str, wanted: str) -> None:
    array = pa.array([None, -1], pa.int64()).view(pa.timestamp("s", zone))
    text = col("t").dt.strftime("%Y-%m-%d %H:%M:%S")
    assert computed({"t": array}, text) == [None, wanted]
    assert computed({"t": array[1:]}, text) == [wanted]
    assert computed({"t": array[:0]}, text) == []
    (row,) = dml.from_arrow(pa.table({"t": array[1:]})).iter_rows()
    assert row["t"].strftime("%Y-%m-%d %H:%M:%S") == wanted


@pytest.mark.parametrize("edge", [2**63 - 1, -(2**63)])
def test_the_first_and_the_last_nanosecond(edge: int, tmp_path: Path) -> None:
    zone = "+23:59" if edge > 0 else "-23:59"
    data = {"t": pa.array([edge]).view(pa.timestamp("ns", zone))}
    clock = shown(edge, "ns", dt.datetime.strptime(zone, "%z").tzinfo or dt.UTC)
    assert computed(data, col("t").dt.strftime(FORM)) == [clock.strftime(FORM)]
    dml.from_arrow(pa.table(data)).write_json(tmp_path / "rows")
    text = json.loads((tmp_path / "rows/part-00000.jsonl").read_text())["t"]
    assert dt.datetime.fromisoformat(text) == clock


@pytest.mark.parametrize(
    "zone", ["Nowhere/City", "Europe", "../../etc/passwd", "+24:00", "x" * 999]
)
def test_no_such_zone(zone: str, tmp_path: Path) -> None:
    ds = dml.from_arrow(pa.table({"t": pa.array([0]).view(pa.timestamp("s", zone))}))
    t = col("t").dt
    asked: list[Callable[[], Any]] = [
        lambda: ds.select(x=t.hour()),
        lambda: ds.select(x=t.date()),
        lambda: ds.select(x=t.strftime("%H")),
        lambda: ds.write_json(tmp_path / "json"),
        lambda: ds.write_csv(tmp_path / "csv"),
        lambda: list(ds.iter_rows()),
    ]
    for ask in asked:
        with pytest.raises(SchemaError, match="there is no time zone") as caught:
            ask()
        assert caught.value.try_
    assert ds.select(x=t.epoch("s")).to_arrow()["x"].to_pylist() == [0]


def test_moments_in_lists_are_written_with_whole_minutes(tmp_path: Path) -> None:
    noon = dt.datetime(1930, 1, 1, 12, tzinfo=ZoneInfo(AMSTERDAM))
    moment = pa.array([noon], pa.timestamp("us", AMSTERDAM))
    ds = dml.from_arrow(pa.table({"t": pa.array([moment.to_pylist()], pa.list_(moment.type))}))
    ds.write_json(tmp_path / "rows")
    (text,) = json.loads((tmp_path / "rows/part-00000.jsonl").read_text())["t"]
    assert text == "1930-01-01 12:00:28+00:20"
    assert dt.datetime.fromisoformat(text) == noon


def test_another_version_is_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def name() -> bytes:
        return col("t").dt.hour().value.digest

    before = name()
    assert functions()["dt.hour"].version > 1
    newer = dataclasses.replace(functions()["dt.hour"], version=functions()["dt.hour"].version + 1)
    monkeypatch.setattr(table, "functions", lambda: {**functions(), "dt.hour": newer})
    assert name() != before
