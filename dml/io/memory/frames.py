"""Data frames of other libraries, which are already in memory, become sources here."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dml.errors import SourceError
from dml.io.memory.memory import Memory, from_table


def from_pandas(frame: Any, *, atom_rows: int | None = None) -> Memory:
    """Read columns of a pandas DataFrame; named index levels come first, unnamed ones are dropped.

    Numbers without missing values are not copied. All values that pandas treats as missing are
    null: NaN of float columns too. Raises SourceError for names that are not text or occur twice,
    and for objects that no column can contain.
    """
    if not (hasattr(frame, "iloc") and hasattr(frame, "columns") and hasattr(frame, "index")):
        raise _stranger(frame, "from_pandas", "pandas.DataFrame", "a Series: .to_frame()")
    levels = {name: i for i, name in enumerate(frame.index.names) if name is not None}
    names = [*levels, *frame.columns]
    for name in names:
        if not isinstance(name, str):
            raise SourceError(
                f"column names are text, got {name!r}",
                why=f"the frame has columns {names}",
                try_='frame.rename(columns=str), or frame.columns = ["a", "b"]',
            )
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SourceError(f"two columns are called {twice!r}", why=f"the columns are {names}")
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
        index = {
            name: pa.array(frame.index.get_level_values(i), from_pandas=True)
            for name, i in levels.items()
        }
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SourceError(
            "the data frame has a column that Arrow cannot hold",
            why=" ".join(str(error).split()),
            try_='one type per column: frame["x"].astype(...)',
        ) from None
    columns = dict(zip(table.column_names, table.columns, strict=True))
    return from_table(pa.table({**index, **columns}), atom_rows=atom_rows)


def from_polars(frame: Any, *, atom_rows: int | None = None) -> Memory:
    """Read columns of a Polars DataFrame over its memory; a LazyFrame is collected now.

    Categories become text; texts are copied, numbers are not.
    """
    if type(frame).__name__ == "LazyFrame" and hasattr(frame, "collect"):
        frame = _collected(frame)
    if not (hasattr(frame, "to_arrow") and hasattr(frame, "columns")):
        raise _stranger(frame, "from_polars", "polars.DataFrame", "a Series: .to_frame()")
    for name, kind in frame.schema.items():
        if "Object" in str(kind):  # Arrow would get the addresses of the objects
            raise SourceError(
                f"column {name!r} is {kind}, which no column can hold",
                why="its values are objects of Python, and Polars does not know what is in them",
                try_=f"frame.drop({name!r}), or a column of numbers, texts, lists or structs",
            )
    try:
        table = pa.table(frame)
    except pa.ArrowException as error:
        raise SourceError(
            "the data frame has a column that Arrow cannot hold",
            why=" ".join(str(error).split()),
            try_='another type: frame.with_columns(pl.col("x").cast(pl.Int64))',
        ) from None
    return from_table(table, atom_rows=atom_rows)


def _collected(frame: Any) -> Any:
    try:
        return frame.collect()
    except Exception as error:  # any error of the user's query
        raise SourceError(
            f"the LazyFrame cannot be collected: {type(error).__name__}",
            why=" ".join(str(error).split()),
            try_="frame.collect() alone, outside of the pipeline",
        ) from error


def _stranger(given: object, door: str, wanted: str, also: str) -> SourceError:
    kind = type(given)
    return SourceError(
        f"{door} needs a {wanted}, got a {kind.__module__}.{kind.__qualname__}",
        try_=f"from_arrow(...) for what speaks Arrow; of {also}",
    )
