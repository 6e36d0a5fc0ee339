"""Verbs of sorting, grouping and aggregation append their steps here.

Keys that are expressions become temporary columns, which are dropped afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Generic, TypeVar

from dml.api.verbs.step import declared, function, name_of, names_of
from dml.base.user_line import Answering, door
from dml.errors import PlanError
from dml.expr.columns.column import Column, col, wrap
from dml.expr.columns.expansion import keyed
from dml.expr.columns.operators import Aliased
from dml.expr.columns.value import Value, rebuilt
from dml.expr.facts import Needs
from dml.ops.group.aggregate import Aggregate
from dml.ops.group.aggregate_functions import Part
from dml.ops.group.aggregate_table import FIGURES
from dml.ops.group.key_runs import FirstOfRun, RunBatches
from dml.ops.group.map_group import MapGroup
from dml.ops.sort.sort import Sort

D = TypeVar("D")
# The name of the temporary column of each row's position in the stream.
PLACE = "the place of a row"
SUFFIX = "_of"


def sorted_by(rows: D, by: Any, descending: Any, *, nulls_last: bool) -> D:
    """Sort ``rows`` by the keys ``by``; the other arguments are those of ``OrderVerbs.sort``."""
    given = list(by) if isinstance(by, list | tuple) else [by]
    ways = _ways(descending, len(given))
    made: dict[str, Column] = {}
    names = [_named(key, made, "sort", _columns(rows)) for key in given]
    if not names:
        raise PlanError("sort by nothing", why="no key was given", try_='.sort("x")')
    keyed: Any = _with(rows, made)
    ordered = _then(keyed, Sort, tuple(names), ways, bool(nulls_last))
    found: D = ordered.drop(*made) if made else ordered
    return found


def _with(rows: Any, made: dict[str, Column]) -> Any:
    return rows.with_columns(**made) if made else rows


def _columns(rows: Any) -> frozenset[str]:
    """Return the names of the columns, as far as they are known."""
    return frozenset(rows._node.schema)  # noqa: SLF001 - a handle of this package


def spare(name: str, taken: Collection[str]) -> str:
    """Return a name for a temporary column: ``name``, or a similar one that is not ``taken``."""
    while name in taken:
        name += "'"
    return name


def _named(key: Any, made: dict[str, Column], verb: str, taken: Collection[str]) -> str:
    """Return the column of a key; if the key is an expression, add a new column to ``made``."""
    if isinstance(key, str):
        return key
    if not isinstance(key, Column):
        raise PlanError(
            f"{verb} by {key!r}",
            why=f"it is of type {type(key).__name__}; keys are names or expressions",
            try_=f'.{verb}("x") or .{verb}(dml.col("x") % 10)',
        )
    if key.value.op == "col":
        return str(key.value.params[0])
    name = spare(f"key {len(made) + 1} of {verb}", {*taken, *made})
    made[name] = key
    return name


def _ways(descending: Any, keys: int) -> tuple[bool, ...]:
    ways = tuple(descending) if isinstance(descending, Sequence) else (descending,) * keys
    if len(ways) == keys and all(isinstance(way, bool) for way in ways):
        return ways
    raise PlanError(
        f"sort with descending={descending!r}",
        why=f"it is one boolean, or one for each of {keys} keys",
        try_="descending=True",
    )


def _then(rows: Any, kind: Any, *fields: Any) -> Any:
    return rows._then(kind, *fields)  # noqa: SLF001 - a handle of this package


class Groups(Answering, Generic[D]):
    """The rows of a pipeline grouped by keys; an aggregate returns one row per group.

    Groups are in ascending order of the keys: numbers, then NaN, then null. Null is a valid key;
    all NaNs form one group, and -0.0 and 0.0 form one group with the key 0.0.
    """

    _title = "the result of group_by"

    def __init__(self, rows: D, keys: dict[str, Value]) -> None:
        self._rows, self._keys = rows, keys

    def __repr__(self) -> str:
        return f"Groups by {', '.join(map(repr, self._keys))} of {self._rows!r}"

    @door
    def agg(self, *figures: Any, **named: Any) -> D:
        """Return one row per group: its keys, then ``figures``, expressions over aggregates.

        ``agg(total=col("x").sum(), mean=col("x").mean())``; an unnamed figure has the name of the
        only column that it reads. The columns that are read are sorted by the keys, in memory
        within ``memory_limit``, else on disk.
        """
        found: D = _figures(self._rows, self._keys, _by_name(figures, named))
        return found

    aggregate = agg

    @door
    def len(self, name: str = "len") -> D:
        """Count the rows of each group, in the column ``name`` (int64) next to its keys."""
        return self.agg(**{name_of(name): Column(Value("len_of"))})

    @door
    def count(self, name: str = "count") -> D:
        """Count the rows of each group as ``len`` does, in the column ``name``."""
        return self.len(name)

    @door
    def sum(self, *columns: str) -> D:
        """Compute the sum of each of ``columns`` by group, under the column's name."""
        return self.agg(**{name: col(name).sum() for name in _some(columns)})

    @door
    def mean(self, *columns: str) -> D:
        """Compute the mean of each of ``columns`` by group, under the column's name."""
        return self.agg(**{name: col(name).mean() for name in _some(columns)})

    @door
    def min(self, *columns: str) -> D:
        """Compute the least value of each of ``columns`` by group, under the column's name."""
        return self.agg(**{name: col(name).min() for name in _some(columns)})

    @door
    def max(self, *columns: str) -> D:
        """Compute the greatest value of each of ``columns`` by group, under the column's name."""
        return self.agg(**{name: col(name).max() for name in _some(columns)})

    @door
    def std(self, *columns: str, ddof: int = 1) -> D:
        """Compute each column's standard deviation by group; the divisor is count - ``ddof``."""
        return self.agg(**{name: col(name).std(ddof) for name in _some(columns)})

    @door
    def var(self, *columns: str, ddof: int = 1) -> D:
        """Compute each column's variance by group; the divisor is count - ``ddof``."""
        return self.agg(**{name: col(name).var(ddof) for name in _some(columns)})

    @door
    def map_groups(
        self,
        fn: Any,
        *,
        schema: Any = None,
        fingerprint: str | None = None,
        on_error: str = "raise",
        timeout: float | None = None,
    ) -> D:
        """Replace each group by the rows that ``fn`` returns for the dict of arrays of its columns.

        ``fn`` returns a dict of arrays of equal length, or of single values for one row. Rows of a
        group are in the order of the input; a group must fit in memory. ``on_error="skip"`` drops a
        group for which ``fn`` raises, or takes longer than ``timeout`` seconds.
        """
        names, made = _made_keys(self._keys, _columns(self._rows))
        ordered = _sorted_by_keys(_with(self._rows, made), names)
        grouped = _then(ordered, RunBatches, names)
        batches = grouped.drop(*made) if made else grouped
        called = function(fn, "map_groups", fingerprint, timeout=timeout)
        mapped = _then(batches, MapGroup, called, declared(schema), Needs(), on_error)
        found: D = mapped.unbatch()
        return found


def grouped(rows: D, keys: tuple[Any, ...], named: dict[str, Any]) -> Groups[D]:
    """Group ``rows`` by the columns ``keys``, and by the expressions ``named``."""
    if len(keys) == 1 and isinstance(keys[0], list | tuple):
        keys = tuple(keys[0])
    found: dict[str, Value] = {}
    for key in keys:
        if isinstance(key, Aliased):
            if key.name in {**found, **named}:
                raise _twice("group_by", key.name)
            found[key.name] = key.value
            continue
        made: dict[str, Column] = {}
        name = _named(key, made, "group_by", ())
        if made:
            raise PlanError(
                f"group_by an expression without a name: {key!r}",
                why="a group shows its keys as columns",
                try_=".group_by(tens=...)",
            )
        found[name] = col(name).value
    found |= dict(keyed(named, "group_by"))
    if not found:
        raise PlanError("group_by nothing", why="no key was given", try_='.group_by("x"), or .agg')
    return Groups(rows, found)


def aggregated(rows: D, figures: tuple[Any, ...], named: dict[str, Any]) -> D:
    """Return a pipeline of one row: the aggregates of all ``rows``."""
    found: D = _figures(rows, {}, _by_name(figures, named))
    return found


def without_duplicates(rows: Any, subset: tuple[str, ...]) -> Any:
    """Keep the first row of each combination of values of ``subset``, in the order of the rows."""
    place = spare(PLACE, _columns(rows))
    ordered = _sorted_by_keys(rows.with_row_index(place), subset, "drop_duplicates")
    firsts = _then(ordered, FirstOfRun, subset)
    return _sorted_by_keys(firsts, (place,), "drop_duplicates").drop(place)


def _sorted_by_keys(rows: Any, names: tuple[str, ...], verb: str = "group_by") -> Any:
    return _then(rows, Sort, names, (False,) * len(names), True, verb)  # noqa: FBT003 - a field


def _made_keys(
    keys: dict[str, Value], taken: Collection[str]
) -> tuple[tuple[str, ...], dict[str, Column]]:
    """Return the names of the columns to group by, and the ones that must be computed first."""
    made: dict[str, Column] = {}
    values = (Column(value) for value in keys.values())
    return tuple(_named(value, made, "group_by", taken) for value in values), made


def _shown_keys(
    keys: dict[str, Value], taken: Collection[str]
) -> tuple[tuple[str, ...], dict[str, Column]]:
    """Return the same as ``_made_keys`` for keys in the result: renamed keys are computed, too."""
    same = {name for name, value in keys.items() if value.op == "col" and value.params[0] == name}
    made: dict[str, Column] = {}
    for name, value in keys.items():
        if name not in same:
            number = len(made) + 1
            made[spare(f"key {number} of group_by", {*taken, *made})] = Column(value)
    others = iter(made)
    return tuple(name if name in same else next(others) for name in keys), made


def _by_name(figures: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for figure in figures:
        name, value = _figure_of(figure)
        if name in found or name in named:
            raise _twice("agg", name)
        found[name] = value
    return found | dict(keyed(named, "agg"))


def _twice(verb: str, name: str) -> PlanError:
    return PlanError(
        f"{verb} makes two columns {name!r}", why="a table has a name once", try_=f"{verb}(y=...)"
    )


def _figure_of(figure: Any) -> tuple[str, Value]:
    if isinstance(figure, Aliased):
        return figure.name, figure.value
    value = wrap(figure)
    if len(value.refs) != 1:
        raise PlanError(
            f"agg of {figure!r} without a name",
            why=f"it looks at {len(value.refs)} columns, and takes the name of one",
            try_=".agg(name=...)",
        )
    (name,) = value.refs
    return name, value


class _Figures:
    """The columns to compute before grouping, the aggregates, and the names in use."""

    def __init__(self, keys: dict[str, str], taken: Collection[str]) -> None:
        self.keys = keys  # key name -> its column
        self.taken = {*taken, *keys.values()}
        self.before: dict[str, Column] = {}
        self.parts: list[Part] = []
        self.found: dict[Value, str] = {}

    def over(self, value: Value, name: str | None = None) -> Value:
        """Return ``value`` with each aggregate replaced by the column of the aggregate's result.

        If ``value`` itself is an aggregate, that column is called ``name``.
        """
        op = value.op.removesuffix(SUFFIX)
        if op != value.op and op in FIGURES:
            return col(self._figure(value, op, name)).value
        if value.op == "col":
            column = value.params[0]
            if column in self.keys:
                return col(self.keys[column]).value
            raise PlanError(
                f"{column!r} in agg is neither a key nor an aggregate",
                why="a group has many values of it",
                try_=f"col({column!r}).first(), .sum(), .implode() ...",
            )
        return rebuilt(value, self.over)

    def _figure(self, value: Value, op: str, name: str | None) -> str:
        if value in self.found and name is None:
            return self.found[value]
        name = spare(f"figure {len(self.parts) + 1}", self.taken) if name is None else name
        self.found.setdefault(value, name)
        self.parts.append((name, op, self._column(value), value.params))
        return name

    def _column(self, value: Value) -> str | None:
        if not value.args:
            return None
        below = value.args[0]
        _no_figure(below)
        if below.op == "col":
            return str(below.params[0])
        column = spare(f"column {len(self.before) + 1} of agg", self.taken)
        self.before[column] = Column(below)
        return column


def _no_figure(value: Value) -> None:
    if value.op.removesuffix(SUFFIX) in FIGURES and value.op.endswith(SUFFIX):
        raise PlanError(
            f"an aggregate of an aggregate: {value!r}",
            why="a group has one value of it",
            try_=".agg(...) twice",
        )
    for arg in value.args:
        _no_figure(arg)


def _figures(rows: Any, keys: dict[str, Value], figures: dict[str, Value]) -> Any:
    if not figures:
        raise PlanError("agg of nothing", why="no aggregate was given", try_="agg(n=dml.len())")
    both = sorted(keys.keys() & figures.keys())
    if both:
        raise PlanError(
            f"agg makes a second column {both[0]!r}", why="a key has that name", try_="agg(y=...)"
        )
    taken = {*_columns(rows), *keys, *figures}
    names, made = _shown_keys(keys, taken)
    work = _Figures(dict(zip(keys, names, strict=True)), taken)
    over = {name: work.over(value, name) for name, value in figures.items()}
    ready = _with(rows, made | work.before)
    looked_at = dict.fromkeys((*names, *(part[2] for part in work.parts if part[2] is not None)))
    ready = ready.select(*looked_at) if looked_at else ready
    ordered = _sorted_by_keys(ready, names) if names else ready
    found = _then(ordered, Aggregate, names, tuple(work.parts))
    return _finished(found, dict(zip(names, keys, strict=True)), over)


def _finished(found: Any, keys: dict[str, str], over: dict[str, Value]) -> Any:
    """Select keys and results under the requested names, in that order."""
    made = {name: Column(v) for name, v in over.items() if v.op != "col" or v.params[0] != name}
    renamed = {column: name for column, name in keys.items() if column != name}
    found = _with(found, made)
    found = found.rename(renamed) if renamed else found
    plain = not made and not renamed
    return found if plain else found.select(*keys.values(), *over)


def _some(columns: tuple[Any, ...]) -> tuple[str, ...]:
    names = names_of(columns)
    if names:
        return names
    raise PlanError("no column is named", why="nothing was given", try_='.sum("x")')
