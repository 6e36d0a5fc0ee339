"""Draw aggregations, joins and sorts, and compute each with dml, Polars and pandas.

A case is drawn once, as a frozen value, and each library has a function that computes it. Floats
are multiples of 1/8, so that their sums are exact in any order. Comments state where the libraries
differ on purpose.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa

NAN = float("nan")
KEYS = ("k", "s", "p", "q", "d")
WORDS = ("", "a", "b", "ab", "é", "Z")
START = dt.datetime(1969, 12, 30)
COLUMNS: dict[str, pa.DataType] = {
    "k": pa.int64(),
    "s": pa.string(),
    "p": pa.bool_(),
    "q": pa.float64(),
    "d": pa.timestamp("us"),
    "i": pa.int64(),
    "f": pa.float64(),
    "l": pa.list_(pa.int64()),
    "m": pa.list_(pa.string()),
    "x": pa.struct([("u", pa.int64()), ("v", pa.string())]),
}


def table(rng: random.Random, count: int, *, odd: tuple[float, ...] = (NAN, -0.0)) -> pa.Table:
    """``count`` rows: keys that come often, values, two lists of equal lengths, and a struct.

    ``odd`` are among the values of the key ``q``.
    ``f`` has no NaN, which is the least and greatest of all in dml, and none of them in Polars.
    """
    draws: dict[str, Callable[[], Any]] = {
        "k": lambda: rng.randrange(3),
        "s": lambda: rng.choice(WORDS),
        "p": lambda: rng.random() < 0.5,
        "q": lambda: rng.choice((0.0, 0.5, -2.0, *odd)),
        "d": lambda: START + dt.timedelta(hours=rng.randrange(4)),
        "i": lambda: rng.randrange(-50, 50),
        "f": lambda: rng.randrange(-99, 99) / 8,
        "x": lambda: {"u": rng.randrange(5), "v": rng.choice((*WORDS, None))},
    }

    def drawn(draw: Callable[[], Any]) -> list[Any]:
        return [None if rng.random() < 0.2 else draw() for _ in range(count)]

    values = {name: drawn(draw) for name, draw in draws.items()}
    values["l"] = drawn(lambda: [rng.randrange(9) for _ in range(rng.randrange(4))])
    values["m"] = [each and [rng.choice(WORDS) for _ in each] for each in values["l"]]
    return pa.table({name: pa.array(values[name], kind) for name, kind in COLUMNS.items()})


def some_keys(rng: random.Random) -> tuple[str, ...]:
    return tuple(rng.sample(KEYS, rng.choice((1, 1, 2, 3))))


# ------------------------------------------------------------------------------------- figures

# Each is (figure, column). Polars takes a null for the first value, the last and one more distinct
# value, where dml passes it over: there Polars is given the values without nulls.
FIGURES = (
    *((name, column) for name in ("sum", "mean", "min", "max") for column in ("i", "f")),
    *((name, "p") for name in ("sum", "any", "all")),
    *((name, column) for name in ("min", "max") for column in ("s", "d")),
    *((name, c) for name in ("first", "last", "n_unique", "count", "implode") for c in "isfp"),
    *((name, column) for name in ("var", "std") for column in ("i", "f")),
    *((name, "i") for name in ("sum_of", "over")),
    ("len", "i"),
)
OF_PRESENT = ("first", "last", "n_unique")
CLOSE = ("var", "std")  # rounded once in dml, as they come elsewhere


@dataclasses.dataclass(frozen=True)
class Figures:
    """Figures of groups by ``keys``; without keys of all rows. ``tens`` is one more key, made."""

    rows: pa.Table
    keys: tuple[str, ...]
    figures: tuple[tuple[str, str], ...]
    tens: bool = False

    def made(self, m: Any) -> dict[str, Any]:
        return {"tens": m.col("i") // 10} if self.tens else {}

    def asked(self, m: Any) -> dict[str, Any]:
        return {f"{name}_{column}": figure(m, name, column) for name, column in self.figures}

    def ours(self, dml: Any) -> pa.Table:
        ds = dml.from_arrow(self.rows, atom_rows=7)
        asked = self.asked(dml)
        groups = ds.group_by(*self.keys, **self.made(dml)) if self.keys else ds
        return groups.agg(**asked).to_arrow()

    def polars(self, pl: Any) -> pa.Table:
        """Its groups have no order; that of dml is the order of their keys."""
        frame = zeroed(pl, self.rows)
        asked = self.asked(pl)
        if not self.keys:
            return frame.select(**asked).to_arrow()
        made = self.made(pl)
        found = frame.group_by(*self.keys, **made).agg(**asked)
        return found.sort(*self.keys, *made, nulls_last=True).to_arrow()

    def pandas(self, pd: Any) -> pa.Table:
        groups = framed(pd, self.rows).groupby(list(self.keys), dropna=False, sort=True)
        asked = {f"{name}_{column}": (column, PANDAS[name]) for name, column in self.figures}
        return plain(groups.agg(**asked).reset_index())


def zeroed(pl: Any, rows: pa.Table) -> Any:
    """The rows, with 0.0 where ``q`` is -0.0: as a key of a group both are shown as 0.0 in dml."""
    q = pl.col("q")
    return pl.from_arrow(rows).with_columns(q=pl.when(q == 0.0).then(0.0).otherwise(q))


def figure(m: Any, name: str, column: str) -> Any:
    """The figure as an expression of the library ``m``."""
    col = m.col(column)
    if name == "len":
        return m.len()
    if name == "sum_of":
        return (col * 2 + 1).sum()
    if name == "over":
        return col.sum() - col.min().fill_null(0) * m.len()
    if name in OF_PRESENT and hasattr(m, "LazyFrame"):
        col = col.drop_nulls()
    return getattr(col, name)()


PANDAS = {
    **{name: name for name in ("mean", "min", "max", "var", "std", "first", "last", "count")},
    "sum": "sum",
    "n_unique": "nunique",
    "len": "size",
}


def figures(rng: random.Random) -> Figures:
    rows = table(rng, rng.choice((0, 1, 9, 40)))
    keys = some_keys(rng) if rng.random() < 0.8 else ()
    asked = tuple(rng.sample(FIGURES, rng.randrange(1, 6)))
    return Figures(rows, keys, asked, tens=rng.random() < 0.3)


# ---------------------------------------------------------------------------------------- joins


@dataclasses.dataclass(frozen=True)
class Join:
    """Two tables side by side where ``left_on`` equals ``right_on``."""

    rows: pa.Table
    other: pa.Table
    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    how: str
    nulls_equal: bool

    def ours(self, dml: Any) -> pa.Table:
        left, right = (dml.from_arrow(each, atom_rows=5) for each in (self.rows, self.other))
        keys = {} if self.how == "cross" else {"left_on": self.left_on, "right_on": self.right_on}
        options = {"how": self.how, "nulls_equal": self.nulls_equal}
        return left.join(right, **keys, **options, suffix="_2").to_arrow()

    def polars(self, pl: Any) -> pa.Table:
        left, right = pl.from_arrow(self.rows), pl.from_arrow(self.other)
        if self.how == "cross":
            crossed = left.join(right, how="cross", suffix="_2", maintain_order="left_right")
            return crossed.to_arrow()
        found = left.join(
            right,
            left_on=self.left_on,
            right_on=self.right_on,
            how="full" if self.how == "outer" else self.how,
            nulls_equal=self.nulls_equal,
            suffix="_2",
            coalesce=None if self.how in ("semi", "anti") else True,
            maintain_order="left_right",
        )
        if self.how == "right":  # keys have their place and name from the right
            found = found.rename(dict(zip(self.right_on, self.left_on, strict=True)))
            found = found.select(*left.columns, *(n for n in found.columns if n not in left))
        return found.to_arrow()

    def pandas(self, pd: Any) -> pa.Table:
        left, right = framed(pd, self.rows), framed(pd, self.other)
        if self.how == "cross":
            return plain(left.merge(right, how="cross", suffixes=("", "_2")))
        found = left.merge(right, how=self.how, on=list(self.left_on), suffixes=("", "_2"))
        return plain(found)


def joins(rng: random.Random) -> Join:
    """Keys with null, NaN and -0.0; few of them, so that rows have several matches, or none."""
    how = rng.choice(("inner", "left", "right", "outer", "semi", "anti", "cross"))
    # of keys that match, -0.0 and 0.0, dml shows the left one, Polars the right one in a right join
    odd = (NAN,) if how == "right" else (NAN, -0.0)
    names = [rng.sample(("i", "f", "p", "q"), 2), rng.sample(("i", "f", "d"), 2)]
    left, right = (
        table(rng, rng.choice((0, 1, 6, 15)), odd=odd).select(sorted({*KEYS[:2], "q", *more}))
        for more in names
    )
    if how == "cross":  # without keys all columns of the right stay
        return Join(left, right, (), (), how, nulls_equal=False)
    keys = rng.choice((("k",), ("s",), ("q",), ("k", "s"), ("q", "k")))
    if rng.random() < 0.3:  # another name on the right
        right = right.rename_columns([f"{n}r" if n in keys else n for n in right.column_names])
        theirs = tuple(f"{name}r" for name in keys)
    else:
        theirs = keys
    return Join(left, right, keys, theirs, how, nulls_equal=rng.random() < 0.4)


# --------------------------------------------------------------------------------------- orders


@dataclasses.dataclass(frozen=True)
class Sort:
    """Rows in the order of ``keys``, equal ones as they stood; ``tens`` is a key before them."""

    rows: pa.Table
    keys: tuple[str, ...]
    descending: tuple[bool, ...]
    nulls_last: bool
    tens: bool = False

    def by(self, m: Any) -> list[Any]:
        """Names, and an expression."""
        return [*([m.col("i") // 10] if self.tens else []), *self.keys]

    def ours(self, dml: Any) -> pa.Table:
        ds = dml.from_arrow(self.rows, atom_rows=7)
        return ds.sort(self.by(dml), self.descending, nulls_last=self.nulls_last).to_arrow()

    def polars(self, pl: Any) -> pa.Table:
        return (
            pl.from_arrow(self.rows)
            .sort(
                self.by(pl),
                descending=self.descending,
                nulls_last=self.nulls_last,
                maintain_order=True,
            )
            .to_arrow()
        )

    def pandas(self, pd: Any) -> pa.Table:
        found = framed(pd, self.rows).sort_values(
            list(self.keys),
            ascending=[not way for way in self.descending],
            na_position="last" if self.nulls_last else "first",
            kind="stable",
        )
        return plain(found)


def sorts(rng: random.Random) -> Sort:
    """NaN goes with the nulls in dml, and counts as the greatest number in Polars."""
    keys, tens = some_keys(rng), rng.random() < 0.3
    ways = tuple(rng.random() < 0.5 for _ in range(len(keys) + tens))
    last = rng.random() < 0.5
    odd = (NAN, -0.0) if last and not any(ways) else (-0.0,)
    return Sort(table(rng, rng.choice((0, 1, 40)), odd=odd), keys, ways, last, tens)


# ------------------------------------------------------------------------------- other questions


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb with the columns that it is given."""

    rows: pa.Table
    verb: str
    names: tuple[str, ...]

    def ours(self, dml: Any) -> pa.Table:
        ds = dml.from_arrow(self.rows, atom_rows=7)
        if self.verb == "value_counts":
            found: pa.Table = ds.value_counts(self.names[0], name="n")
            return found
        return getattr(ds, self.verb)(*self._given()).to_arrow()

    def polars(self, pl: Any) -> pa.Table:
        """Its value_counts leaves open which of equally frequent values is first."""
        frame = pl.from_arrow(self.rows)
        if self.verb == "drop_duplicates":
            found = frame.unique(self.names, keep="first", maintain_order=True)
        elif self.verb == "value_counts":
            keyed = zeroed(pl, self.rows) if self.names[0] == "q" else frame
            groups = keyed.group_by(self.names[0], maintain_order=True).len("n")
            found = groups.sort("n", descending=True, maintain_order=True)
        elif self.verb == "explode":
            found = frame.explode(self.names, empty_as_null=True)
        else:
            found = frame.unnest(self.names)
        return found.to_arrow()

    def pandas(self, pd: Any) -> pa.Table:
        return plain(framed(pd, self.rows).drop_duplicates(list(self.names)))

    def _given(self) -> tuple[Any, ...]:
        return (self.names,) if self.verb == "drop_duplicates" else self.names


def verbs(rng: random.Random) -> Verb:
    rows = table(rng, rng.choice((0, 1, 9, 40)))
    verb = rng.choice(("drop_duplicates", "value_counts", "explode", "unnest"))
    names: dict[str, Callable[[], tuple[str, ...]]] = {
        "drop_duplicates": lambda: some_keys(rng),
        "value_counts": lambda: (rng.choice(KEYS),),
        "explode": lambda: rng.choice((("l",), ("m",), ("l", "m"))),
        "unnest": lambda: ("x",),
    }
    return Verb(rows, verb, names[verb]())


KINDS: tuple[Callable[[random.Random], Any], ...] = (figures, joins, sorts, verbs)


def drawn(seed: int) -> Any:
    """The case number ``seed``: the kinds take turns."""
    return KINDS[seed % len(KINDS)](random.Random(seed))


# --------------------------------------------------------------------------------------- pandas


def framed(pd: Any, rows: pa.Table) -> Any:
    """The rows as a frame whose columns know null."""
    return rows.to_pandas(types_mapper=pd.ArrowDtype)


def plain(frame: Any) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False)


def drawn_for_pandas(seed: int) -> Any:
    """As ``drawn``, of what pandas defines alike.

    pandas takes NaN for null, and has no lists. Null keys of joins are equal ones there, and rows
    of right and outer joins come in another order.
    """
    rng = random.Random(seed)
    rows = table(rng, rng.choice((1, 9, 40)), odd=()).drop_columns(["l", "m", "x"])
    keys = some_keys(rng)
    kind = seed % 4
    if kind == 0:
        known = [each for each in FIGURES if each[0] in PANDAS]
        return Figures(rows, keys, tuple(rng.sample(known, rng.randrange(1, 6))))
    if kind == 1:
        how = rng.choice(("inner", "left", "cross"))
        on = () if how == "cross" else keys
        other = table(rng, rng.choice((1, 6, 15)), odd=()).select([*KEYS, "f"])
        return Join(rows, other, on, on, how, nulls_equal=True)
    if kind == 2:
        ways = tuple(rng.random() < 0.5 for _ in keys)
        return Sort(rows, keys, ways, nulls_last=rng.random() < 0.5)
    return Verb(rows, "drop_duplicates", keys)
