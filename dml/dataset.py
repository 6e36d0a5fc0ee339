"""This file holds Dataset, the handle that users write pipelines with: one door per operator.

A Dataset is immutable but for its count of epochs: every verb returns a new one, nothing is
computed before it is iterated (or ``count``, ``take_rows``, ``to_arrow`` ... are called).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dml.errors import DmlError, PlanError, SchemaError
from dml.expr.column import Column, wrap
from dml.expr.doors import by_name, door, users_line
from dml.expr.facts import Needs
from dml.expr.node import Node
from dml.expr.ops.batch import Batch
from dml.expr.ops.cast import Cast
from dml.expr.ops.drop import Drop
from dml.expr.ops.fill_null import FillNull
from dml.expr.ops.filter import Filter
from dml.expr.ops.filter_rows import FilterRows
from dml.expr.ops.flat_map import FlatMap
from dml.expr.ops.map_batch import MapBatch
from dml.expr.ops.map_rows import MapRows
from dml.expr.ops.random_map import RandomMap
from dml.expr.ops.rename import Rename
from dml.expr.ops.repeat import Repeat
from dml.expr.ops.select import Select
from dml.expr.ops.shuffle_all import ShuffleAll
from dml.expr.ops.shuffle_atoms import ShuffleAtoms
from dml.expr.ops.shuffle_window import ShuffleWindow
from dml.expr.ops.skip import Skip
from dml.expr.ops.take import Take
from dml.expr.ops.with_columns import WithColumns
from dml.expr.schema import Schema, data_type, schema_of
from dml.expr.text import as_html, tree
from dml.results import Results, wiring
from dml.settings import AUTOTUNE, Settings

if TYPE_CHECKING:
    from dml.expr.calls import UserFunction


def function(
    fn: Any, verb: str, fingerprint: str | None, constructed: tuple[Any, Any] = ((), None)
) -> UserFunction:
    """A user's callable (or class) with its name, and whether it is proven pure."""
    from dml.expr.named import user_function  # noqa: PLC0415 - 11 ms, for functions alone

    return user_function(fn, verb, uuid.uuid4().bytes, fingerprint, constructed)


def _needs(verb: str, *asked: Any) -> Needs:
    """What the user asks for one step; the usual where nothing was."""
    if all(value is None for value in asked):
        return Needs()
    from dml.expr.needs import needs_of  # noqa: PLC0415 - for steps that ask for something

    return needs_of(verb, *asked)


class Dataset(Results):
    """A pipeline. Iterate it for batches (dict of arrays) or, before ``batch``, rows (dicts)."""

    def _then(self, kind: Callable[..., Node], *fields: Any) -> Dataset:
        """A new pipeline with one more step, which knows the user's line."""
        where = users_line()
        try:
            node = kind(self._node, *fields)
        except DmlError as error:
            error.at = f"{error.at}, written in {where}" if where else error.at
            raise
        return self._with(node.placed(where), self._settings)

    def _with(self, node: Node, settings: Settings) -> Dataset:
        return Dataset(node, settings, self._pinned)

    @door
    def select(self, *names: str) -> Dataset:
        """Keep the columns ``names``, in that order."""
        return self._then(Select, _names(names))

    @door
    def drop(self, *names: str) -> Dataset:
        """Leave the columns ``names`` out."""
        return self._then(Drop, _names(names))

    @door
    def rename(self, names: Mapping[str, str] | None = None, **more: str) -> Dataset:
        """Give columns new names: ``rename({"old": "new"})``."""
        given = by_name(names, more)
        _names(tuple(given.values()))
        return self._then(Rename, tuple(given.items()))

    @door
    def with_columns(self, **values: Any) -> Dataset:
        """Add or replace columns by expressions (or literals) over the present ones."""
        if not values:
            raise PlanError(
                "with_columns needs at least one name=expression",
                why="nothing was given",
                try_='.with_columns(z=dml.col("x") + 1)',
            )
        return self._then(WithColumns, tuple((n, wrap(v)) for n, v in values.items()))

    with_column = add_column = with_columns

    @door
    def cast(
        self, types: Mapping[str, Any] | None = None, *, strict: bool = True, **more: Any
    ) -> Dataset:
        """Convert columns: ``cast({"x": "float32"})``; not ``strict`` gives null for misfits."""
        given = by_name(types, more)
        return self._then(Cast, tuple((n, data_type(k)) for n, k in given.items()), strict)

    @door
    def fill_null(self, fills: Mapping[str, Any] | None = None, **more: Any) -> Dataset:
        """Replace nulls by column: ``fill_null({"x": 0.0})``; NaN is not null."""
        given = by_name(fills, more)
        return self._then(FillNull, tuple((n, wrap(v)) for n, v in given.items()))

    @door
    def filter(
        self,
        predicate: Any,
        *,
        fingerprint: str | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | str | None = None,
        resources: Mapping[str, float] | None = None,
        concurrency: int | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Keep rows where an expression is true, or for which a function of the row's dict is.

        What a function asks for, and how a class is constructed, is said as in ``map_batches``.
        """
        asked = num_cpus, num_gpus, memory, resources, concurrency
        made = fn_constructor_args, fn_constructor_kwargs
        if isinstance(predicate, Column):
            if any(each is not None for each in asked) or any(made):
                raise PlanError(
                    "filter by an expression needs nothing of its own",
                    why="resources and constructor arguments are for functions",
                    try_=".filter(expression), or .filter(function, num_cpus=...)",
                )
            return self._then(Filter, predicate.value)
        if isinstance(predicate, bool) or not callable(predicate):
            raise SchemaError(
                f"filter needs an expression or a function, got {predicate!r}",
                why=f"a {type(predicate).__name__} says nothing about a row",
                try_='.filter(dml.col("x") > 0) or .filter(lambda row: ...)',
            )
        self._rows_only("filter by a function")
        fn = function(predicate, "filter", fingerprint, made)
        return self._then(FilterRows, fn, _needs("filter", *asked))

    where = filter

    @door
    def map(
        self,
        fn: Callable[[dict[str, Any]], Mapping[str, Any]] | type,
        *,
        schema: Any = None,
        fingerprint: str | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | str | None = None,
        resources: Mapping[str, float] | None = None,
        concurrency: int | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Replace each row's dict by ``fn`` of it; after ``batch``, each batch's dict of arrays.

        What a function asks for, and how a class is constructed, is said as in ``map_batches``.
        """
        needs = _needs("map", num_cpus, num_gpus, memory, resources, concurrency)
        kind = MapBatch if self._node.batched else MapRows
        made = function(fn, "map", fingerprint, (fn_constructor_args, fn_constructor_kwargs))
        return self._then(kind, made, _declared(schema), needs)

    @door
    def map_batches(
        self,
        fn: Callable[[Any], Any] | type,
        *,
        batch_size: int | None = None,
        batch_format: str = "numpy",
        writable: bool = False,
        schema: Any = None,
        fingerprint: str | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | str | None = None,
        resources: Mapping[str, float] | None = None,
        concurrency: int | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Replace each group of rows by what ``fn`` makes of its dict of arrays.

        Groups are atoms of the source, or ``batch_size`` rows within one (``batch(n).map(f)``
        groups across atoms). The arrays are read-only unless ``writable``;
        ``batch_format="arrow"`` gives a ``pyarrow.Table``. ``fn`` returns a dict of arrays or Arrow
        data, of any number of rows. A class whose instances can be called is constructed once in
        each process, with ``fn_constructor_args`` and ``fn_constructor_kwargs``.

        A task occupies ``num_cpus`` (1), ``num_gpus``, ``memory`` (bytes or "2GiB", beside the
        rows) and ``resources`` (a dict) where it runs, and at most ``concurrency`` run at once.
        None of these changes a result.
        """
        needs = _needs("map_batches", num_cpus, num_gpus, memory, resources, concurrency)
        from dml.expr.ops.map_batches import (  # noqa: PLC0415 - for such functions alone
            MapBatches,
            atoms_are_gone,
        )

        constructed = fn_constructor_args, fn_constructor_kwargs
        made = function(fn, "map_batches", fingerprint, constructed)
        how = batch_size, batch_format, bool(writable), atoms_are_gone(self._node)
        return self._then(MapBatches, made, *how, _declared(schema), needs)

    @door
    def random_map(
        self,
        fn: Callable[[dict[str, Any], Any], Mapping[str, Any]],
        *,
        seed: int | None = None,
        schema: Any = None,
        fingerprint: str | None = None,
    ) -> Dataset:
        """As ``map``, with ``fn(row, rng)``: random numbers keyed by (seed, epoch, row)."""
        self._rows_only("random_map")
        made = function(fn, "random_map", fingerprint)
        return self._then(RandomMap, made, seed, _declared(schema))

    @door
    def flat_map(
        self,
        fn: Callable[[dict[str, Any]], Any] | type,
        *,
        schema: Any = None,
        fingerprint: str | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | str | None = None,
        resources: Mapping[str, float] | None = None,
        concurrency: int | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Replace each row by the dicts that ``fn`` of it yields, in order.

        What a function asks for, and how a class is constructed, is said as in ``map_batches``.
        """
        self._rows_only("flat_map")
        needs = _needs("flat_map", num_cpus, num_gpus, memory, resources, concurrency)
        made = function(fn, "flat_map", fingerprint, (fn_constructor_args, fn_constructor_kwargs))
        return self._then(FlatMap, made, _declared(schema), needs)

    def take(self, n: int) -> Dataset:
        """The first ``n`` elements, lazily (``take_rows`` returns them)."""
        return self._then(Take, n)

    limit = head = take

    def skip(self, n: int) -> Dataset:
        """All but the first ``n`` elements."""
        return self._then(Skip, n)

    def batch(self, n: int, *, drop_last: bool = False) -> Dataset:
        """Runs of ``n`` rows as one element: a dict of arrays."""
        return self._then(Batch, n, drop_last)

    def repeat(self, n: int | None = None) -> Dataset:
        """``n`` passes as one stream; without ``n``, forever."""
        return self._then(Repeat, n)

    @door
    def shuffle(
        self,
        buffer_size: int | None = None,
        *,
        seed: int | None = None,
        reshuffle_each_iteration: bool = True,
        window: str | None = None,
        size: int = 16,
    ) -> Dataset:
        """Keyed random order: of everything, of windows of ``buffer_size``, or of source pieces.

        ``shuffle()`` permutes all rows, ``shuffle(n)`` every run of n elements,
        ``shuffle(window="atoms", size=k)`` the source's pieces, and mixes k of them at a time.
        """
        fresh = bool(reshuffle_each_iteration)
        if window is not None:
            if window != "atoms" or buffer_size is not None:
                raise PlanError(
                    f"shuffle with window={window!r}, buffer_size={buffer_size!r}",
                    why='"atoms" is the only window that has a name, and it takes size=',
                    try_='window="atoms", size=16, or buffer_size= alone',
                )
            return self._then(ShuffleAtoms, size, seed, fresh)
        if buffer_size is None:
            return self._then(ShuffleAll, seed, fresh)
        return self._then(ShuffleWindow, buffer_size, seed, fresh)

    def prefetch(self, n: int | str = AUTOTUNE) -> Dataset:
        """Make ``n`` elements ahead of the consumer, in a thread of their own."""
        return self.with_options(prefetch=n)

    @door
    def with_options(self, **options: Any) -> Dataset:
        """Choose how it runs (see ``dml.Settings``); what comes out stays the same."""
        return self._with(self._node, self._settings.merged(options))

    @door
    def epoch(self, k: object) -> Dataset:
        """The same pipeline with every iteration being epoch ``k``."""
        if isinstance(k, bool) or not isinstance(k, int) or k < 0:
            raise PlanError(
                f"epoch needs an integer of at least 0, got {k!r}",
                why="epochs are counted from 0, one per iteration",
                try_=".epoch(0)",
            )
        return Dataset(self._node, self._settings, k)

    def _rows_only(self, verb: str) -> None:
        if self._node.batched:
            raise PlanError(
                f"{verb} after batch",
                why="it works on rows, and its input is batches",
                try_=f"{verb} before .batch(), or .map(f) of a whole batch",
            )

    @property
    def schema(self) -> Schema:
        """Column names and types; unknown after a function without ``schema=``."""
        return self._node.schema

    @property
    def columns(self) -> list[str]:
        """Column names."""
        return list(self._node.schema)

    @door
    def fingerprint(self, domain: str = "result", *, explain: bool = False) -> str:
        """The name of what this computes: equal text, equal bytes; with ``explain``, its parts."""
        session = wiring()
        name = session.fingerprint_parts if explain else session.fingerprint
        found: str = name(self._node, self._settings, domain)
        return found

    @door
    def explain(self, stage: str | None = None, *, analyze: bool = False) -> str:
        """The pipeline at a station: written, normalized, chosen, physical, rules."""
        text: str = wiring().explain(self._node, self._settings, stage)
        if analyze:
            made = self._quietly()
            for _ in made:
                pass
            self._last = made.report
            text += f"\n{self.stats()}"
        return text

    def __repr__(self) -> str:
        return f"Dataset({self._node.schema})\n{tree(self._node)}"

    def _repr_html_(self) -> str:
        return as_html(repr(self))


def _names(names: tuple[Any, ...]) -> tuple[str, ...]:
    """Names given one by one or as one list."""
    if len(names) == 1 and isinstance(names[0], list | tuple):
        names = tuple(names[0])
    for name in names:
        if not isinstance(name, str):
            raise PlanError(
                f"{name!r} is not a column name",
                why=f"it is of type {type(name).__name__}; names are text",
                try_='"x" rather than col("x")',
            )
    return names


def _declared(schema: Any) -> Schema | None:
    return None if schema is None else schema_of(schema)
