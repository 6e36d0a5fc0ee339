"""Workarounds for users of Polars, as the tables describe them."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dml
from dml import Dataset, col

Workaround = Callable[[Path], None]
Row = dict[str, Any]


def rows() -> Dataset:
    """Keys, numbers and texts."""
    return dml.from_dict({"k": [1, 2, 2, 1], "x": [1.0, 2.0, 3.0, 6.0], "s": ["ab", "b", "a", ""]})


def copied(_: Path) -> None:
    mine = rows().shuffle()
    first = mine.to_list()
    assert mine.with_options().to_list() == first


def carried(_: Path) -> None:
    """A sum so far, and the value before."""

    def step(state: list[float | None], row: Row) -> tuple[list[float | None], Row]:
        total = (state[0] or 0.0) + row["x"]
        return [total, row["x"]], {"total": total, "before": state[1]}

    found = rows().scan([0.0, None], step).to_dict()
    assert found == {"total": [1.0, 3.0, 6.0, 12.0], "before": [None, 1.0, 2.0, 3.0]}


def latest(_: Path) -> None:
    trades = dml.from_dict({"t": [2, 5], "price": [None, None], "trade": [True, True]})
    quotes = dml.from_dict({"t": [1, 4, 6], "price": [10, 40, 60], "trade": [False] * 3})
    typed = trades.cast(price="int64")

    def step(price: int | None, row: Row) -> tuple[int | None, Row]:
        price = price if row["trade"] else row["price"]
        return price, {**row, "price": price}

    found = quotes.concat(typed).sort("t").scan(None, step, schema=quotes.schema)
    assert found.filter(col("trade")).to_dict() == {
        "t": [2, 5],
        "price": [10, 40],
        "trade": [True] * 2,
    }


def medians(_: Path) -> None:
    assert np.median(rows().to_numpy()["x"]) == 2.5


def medians_of_groups(_: Path) -> None:
    def middle(group: dict[str, np.ndarray]) -> dict[str, Any]:
        return {"k": group["k"][:1], "middle": np.median(group["x"], keepdims=True)}

    found = rows().drop("s").group_by("k").map_groups(middle)
    assert found.to_dict() == {"k": [1, 2], "middle": [3.5, 2.5]}


def neighbours(_: Path) -> None:
    def mean(batch: dict[str, np.ndarray]) -> dict[str, Any]:
        return {"mean": batch["x"].mean(keepdims=True)}

    found = rows().select("x").window(3, 1).map(mean)
    assert [batch["mean"].tolist() for batch in found] == [[2.0], [11 / 3]]


def in_order(_: Path) -> None:
    assert rows().sort("x").to_dict() == rows().to_dict()


def tables(_: Path) -> None:
    assert rows().to_arrow().filter(pc.field("x") > 2).num_rows == 2


def renamed(_: Path) -> None:
    assert rows().rename({"x": "y"}).columns == ["k", "y", "s"]


def of_each_value(_: Path) -> None:
    made = rows().select(y=dml.apply(math.atan, "x", return_dtype="float64"))
    assert made.to_dict()["y"] == [math.atan(x) for x in (1.0, 2.0, 3.0, 6.0)]


def of_bits(_: Path) -> None:
    made = rows().select(y=dml.apply(int.bit_count, "k", return_dtype="int64"))
    assert made.to_dict()["y"] == [1, 1, 1, 1]


def of_texts(_: Path) -> None:
    made = rows().select(y=dml.apply(str.title, "s", return_dtype="string"))
    assert made.to_dict()["y"] == ["Ab", "B", "A", ""]


def of_lists(_: Path) -> None:
    lists = dml.from_dict({"x": [[3, 1], [2]]})
    made = lists.select(y=dml.apply(np.argmin, "x", return_dtype="int64"))
    assert made.to_dict()["y"] == [1, 0]


def of_moments(_: Path) -> None:
    moments = dml.from_dict({"m": [dt.datetime(2024, 2, 28)]})
    day = dt.timedelta(days=1)
    made = moments.select(y=dml.apply(lambda m: m + day, "m", return_dtype="timestamp[us]"))
    assert made.to_dict()["y"] == [dt.datetime(2024, 2, 29)]


def made_lists(_: Path) -> None:
    kind = pa.list_(pa.int64())
    made = rows().select(y=dml.apply(lambda k: [k] * k, "k", return_dtype=kind))
    assert made.to_dict()["y"] == [[1], [2, 2], [2, 2], [1]]


def other_types(_: Path) -> None:
    assert rows().select(y=col("k").cast("float32")).to_dict()["y"] == [1.0, 2.0, 2.0, 1.0]


def of_the_group(_: Path) -> None:
    ds = rows()
    found = ds.join(ds.group_by("k").agg(total=col("x").sum()), on="k")
    assert found.to_dict()["total"] == [7.0, 5.0, 5.0, 7.0]


def whole_rows(_: Path) -> None:
    ds = rows()
    assert ds.filter(lambda row: row["k"] == 1).to_dict()["x"] == [1.0, 6.0]
    assert ds.sort("x", descending=True).take(1).to_dict()["x"] == [6.0]
    assert ds.slice(1, 2).to_dict()["x"] == [2.0, 3.0]
    assert ds.unique("k") == [1, 2]
    assert ds.value_counts("k").to_pydict() == {"k": [1, 2], "count": [2, 2]}
    assert ds.concat(ds).count() == 8


def spans(_: Path) -> None:
    moments = dml.from_dict({"m": [dt.datetime(2024, 2, 28, 13, 45)]})
    assert moments.select(y=col("m").dt.truncate("1h")).to_dict() == {
        "y": [dt.datetime(2024, 2, 28, 13)]
    }


def fields(_: Path) -> None:
    made = dml.from_items([{"x": {"a": 1, "b": 2}}]).unnest("x").with_columns(a=col("b") + 1)
    assert made.to_dict() == {"a": [3], "b": [2]}


def as_polars(ours: Dataset, theirs: Callable[[Any], Any]) -> None:
    """The same rows as Polars gives."""
    pl = pytest.importorskip("polars")
    frame = theirs(pl.LazyFrame(rows().to_dict())).collect()
    assert ours.to_polars().to_dict(as_series=False) == frame.to_dict(as_series=False)


def least(_: Path) -> None:
    as_polars(rows().sort("x").take(2), lambda lf: lf.bottom_k(2, by="x").sort("x"))


def greatest(_: Path) -> None:
    as_polars(
        rows().sort("x", descending=True).take(2),
        lambda lf: lf.top_k(2, by="x").sort("x").reverse(),
    )


def turned(_: Path) -> None:
    back = rows().with_row_index().sort("index", descending=True)
    as_polars(back.drop("index"), lambda lf: lf.reverse())
    as_polars(back.take(2).sort("index").drop("index"), lambda lf: lf.tail(2))


def pivoted(_: Path) -> None:
    wide = (
        rows()
        .group_by("k")
        .agg(
            a=dml.when(col("s") == "a").then(col("x")).otherwise(None).sum(),
            b=dml.when(col("s") == "b").then(col("x")).otherwise(None).sum(),
        )
    )
    assert wide.to_dict() == {"k": [1, 2], "a": [0.0, 3.0], "b": [0.0, 2.0]}


def long(_: Path) -> None:
    ds = rows().select("k", "x").map(lambda row: {"a": row["k"], "b": int(row["x"])})
    found = ds.flat_map(lambda row: [{"name": n, "value": row[n]} for n in row])
    assert found.take(2).to_dict() == {"name": ["a", "b"], "value": [1, 1]}


def updated(_: Path) -> None:
    ds, other = rows(), dml.from_dict({"s": ["b", "a"], "x": [20.0, None]})
    joined = ds.join(other, on="s", how="left")
    made = joined.with_columns(x=col("x_right").fill_null(col("x"))).drop("x_right")
    as_polars(made, lambda lf: lf.update(to_polars(other).lazy(), on="s"))


def to_polars(ds: Dataset) -> Any:
    """A frame, where Polars is."""
    pytest.importorskip("polars")
    return ds.to_polars()


def merged(_: Path) -> None:
    as_polars(rows().concat(rows()).sort("x"), lambda lf: lf.merge_sorted(lf, "x"))


def nulls(_: Path) -> None:
    ds = rows().with_columns(x=dml.when(col("k") == 1).then(None).otherwise(col("x")))
    assert ds.agg(x=col("x").is_null().sum()).to_dict() == {"x": [2]}


def months(_: Path) -> None:
    days = [dt.datetime(2024, 1, 31), dt.datetime(2024, 2, 1), dt.datetime(2024, 1, 1)]
    found = dml.from_dict({"m": days}).group_by(month=col("m").dt.truncate("1mo")).len()
    assert found.to_dict() == {"month": [days[2], days[1]], "len": [2, 1]}


def pairs(_: Path) -> None:
    ds, other = rows().select("x"), dml.from_dict({"y": [2.0, 5.0]})
    found = ds.join(other, how="cross").filter(col("x") < col("y"))
    assert found.to_dict() == {"x": [1.0, 1.0, 2.0, 3.0], "y": [2.0, 5.0, 5.0, 5.0]}


RUN: dict[str, dict[str, Workaround]] = {
    "Polars": {
        "clone": copied,
        "shift": carried,
        "join_asof": latest,
        "median": medians,
        "rolling": neighbours,
        "set_sorted": in_order,
        "sql": tables,
        "bottom_k": least,
        "top_k": greatest,
        "reverse": turned,
        "tail": turned,
        "pivot": pivoted,
        "unpivot": long,
        "update": updated,
        "merge_sorted": merged,
        "null_count": nulls,
        "group_by_dynamic": months,
        "join_where": pairs,
    },
    "Polars' columns": {
        "arctan": of_each_value,
        "cat": other_types,
        "bitwise_count_ones": of_bits,
        "cum_sum": carried,
        "rolling_mean": neighbours,
        "over": of_the_group,
        "filter": whole_rows,
        "median": medians_of_groups,
        "name": renamed,
        "repeat_by": made_lists,
        "set_sorted": in_order,
    },
    "Polars' namespaces": {
        "str.to_titlecase": of_texts,
        "list.arg_min": of_lists,
        "dt.offset_by": of_moments,
        "dt.round": spans,
        "struct.with_fields": fields,
    },
}
