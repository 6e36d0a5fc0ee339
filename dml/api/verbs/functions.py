"""Verbs that call users' functions for rows, groups of rows or batches are defined here."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Self

from dml.api.verbs.step import StepVerbs, a_test, bounded, declared, function, needs
from dml.base.user_line import door
from dml.errors import PlanError
from dml.expr.columns.column import Column

if TYPE_CHECKING:
    from dml.api.verbs.function_columns import Udf

# The name of the temporary index column.
PLACE = "the index of map_with_index"


class FunctionVerbs(StepVerbs):
    """Verbs that call users' functions; ``filter`` also accepts an expression."""

    @door
    def filter(
        self,
        predicate: Any,
        *others: Any,
        fingerprint: str | None = None,
        on_error: str = "raise",
        pure: bool | None = None,
        timeout: float | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | str | None = None,
        resources: Mapping[str, float] | None = None,
        concurrency: int | str | None = None,
        num_parallel_calls: int | str | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
    ) -> Self:
        """Keep the rows for which a function of the row's dict, or all expressions, are true.

        Resources of a function are as in ``map_batches``, its other options as in ``map``.
        """
        from dml.ops.row.filter import Filter
        from dml.ops.row.filter_rows import FilterRows

        occupied, calls = (num_cpus, num_gpus, memory, resources), (concurrency, num_parallel_calls)
        made = fn_constructor_args, fn_constructor_kwargs
        if isinstance(predicate := _all_of(predicate, others), Column):
            asked = any(each is not None for each in (*occupied, pure, timeout))
            if asked or bounded("filter", *calls) or on_error != "raise" or any(made):
                raise PlanError(
                    "filter by an expression needs nothing of its own",
                    why="resources, constructor arguments and other options are for functions",
                    try_=".filter(expression), or .filter(function, num_cpus=...)",
                )
            return self._then(Filter, predicate.value)
        a_test("filter", predicate)
        self._rows_only("filter by a function")
        wants = needs("filter", *occupied, *calls)
        fn = function(predicate, "filter", fingerprint, made, wants, pure=pure, timeout=timeout)
        return self._then(FilterRows, fn, wants, on_error)

    where = filter

    @door
    def map(
        self,
        fn: Callable[[dict[str, Any]], Mapping[str, Any]] | type,
        *,
        schema: Any = None,
        fingerprint: str | None = None,
        on_error: str = "raise",
        pure: bool | None = None,
        timeout: float | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | str | None = None,
        resources: Mapping[str, float] | None = None,
        concurrency: int | str | None = None,
        num_parallel_calls: int | str | None = None,
        deterministic: bool | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
    ) -> Self:
        """Replace each row's dict by ``fn(row)``; after ``batch``, each batch's dict of arrays.

        With ``on_error="skip"`` a row (or batch) for which ``fn`` raises is dropped: ``stats()``
        shows the number and the first error, and ``max_errors`` limits the number. Results that are
        not rows, or have other types than earlier ones, are errors nevertheless. Resources and
        classes are declared as in ``map_batches``. ``deterministic=False`` delivers elements as
        they finish. ``pure=True`` declares that results depend on arguments alone. With
        ``pure=False`` no call is repeated: losing a worker during a call raises ``ReplayError``. A
        call longer than ``timeout`` seconds (without construction) raises FunctionTimeoutError.
        """
        from dml.ops.batch.map_batch import MapBatch
        from dml.ops.row.map_rows import MapRows

        occupied = num_cpus, num_gpus, memory, resources
        asked = needs("map", *occupied, concurrency, num_parallel_calls)
        kind = MapBatch if self._node.batched else MapRows
        constructed = fn_constructor_args, fn_constructor_kwargs
        made = function(fn, "map", fingerprint, constructed, asked, pure=pure, timeout=timeout)
        settings = self._ordered(deterministic, "map")
        wanted = declared(schema, batched=self._node.batched)
        return self._then(kind, made, wanted, asked, on_error, settings=settings)

    @door
    def map_with_index(
        self,
        fn: Callable[[int, dict[str, Any]], Mapping[str, Any]],
        *,
        schema: Any = None,
        fingerprint: str | None = None,
    ) -> Self:
        """Replace each row's dict by ``fn(index, row)``; ``index`` starts at 0 in every epoch."""
        self._rows_only("map_with_index")
        if isinstance(fn, type) or not callable(fn):
            raise PlanError(
                f"map_with_index needs a function, got {fn!r}",
                why="it is called with the place of each row, and the row",
                try_=".map_with_index(lambda index, row: ...)",
            )
        taken, place = self._node.schema, PLACE
        while place in taken:
            place += "'"
        given = partial(_numbered, fn) if place == PLACE else partial(_numbered, fn, place=place)
        made = function(given, "map_with_index", fingerprint)
        from dml.udfs.identity.closure_walk import spelled

        made = dataclasses.replace(made, name=spelled(fn))
        from dml.ops.row.with_row_index import WithRowIndex

        numbered = self._then(WithRowIndex, place, 0)
        from dml.ops.row.map_rows import MapRows

        return numbered._then(MapRows, made, declared(schema))  # noqa: SLF001 - of this class

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
        on_error: str = "raise",
        pure: bool | None = None,
        timeout: float | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | str | None = None,
        resources: Mapping[str, float] | None = None,
        concurrency: int | str | None = None,
        num_parallel_calls: int | str | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
    ) -> Self:
        """Replace each group of rows by the result of ``fn`` for its dict of arrays.

        A group has ``batch_size`` (1,024) rows of one atom; ``batch(n).map(f)`` groups across
        atoms. The arrays are read-only unless ``writable``; with ``batch_format`` "arrow", ``fn``
        receives a ``pyarrow.Table``, with "pandas" or "polars" a ``DataFrame``. ``fn`` returns a
        dict of arrays, Arrow data or a data frame (NaN of pandas is null) of any number of rows, or
        an iterator of those. A class is instantiated (with ``fn_constructor_args``) per concurrent
        call. A task occupies ``num_cpus`` (1), ``num_gpus``, ``memory`` (bytes or "2GiB") and
        ``resources``; at most ``concurrency`` (``num_parallel_calls``) run at once. See ``map``.
        """
        from dml.ops.row.map_batches import MapBatches, atoms_are_gone

        _with_library(batch_format)
        calls = concurrency, num_parallel_calls
        asked = needs("map_batches", num_cpus, num_gpus, memory, resources, *calls)
        made = fn_constructor_args, fn_constructor_kwargs
        called = function(fn, "map_batches", fingerprint, made, asked, pure=pure, timeout=timeout)
        how = called, batch_size, batch_format, bool(writable), atoms_are_gone(self._node)
        return self._then(MapBatches, *how, declared(schema), asked, on_error)

    @door
    def random_map(
        self,
        fn: Callable[[dict[str, Any], Any], Mapping[str, Any]] | type,
        *,
        seed: int | None = None,
        schema: Any = None,
        fingerprint: str | None = None,
        on_error: str = "raise",
        pure: bool | None = None,
        timeout: float | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | str | None = None,
        resources: Mapping[str, float] | None = None,
        concurrency: int | str | None = None,
        num_parallel_calls: int | str | None = None,
        deterministic: bool | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
    ) -> Self:
        """Replace each row's dict by ``fn(row, rng)``, where (seed, epoch, row) determine ``rng``.

        ``on_error``, ``pure`` and ``timeout`` are as in ``map``, resources and classes as in
        ``map_batches``.
        """
        from dml.ops.row.random_map import RandomMap

        self._rows_only("random_map")
        occupied = num_cpus, num_gpus, memory, resources
        asked = needs("random_map", *occupied, concurrency, num_parallel_calls)
        constructed = fn_constructor_args, fn_constructor_kwargs
        made = function(
            fn, "random_map", fingerprint, constructed, asked, pure=pure, timeout=timeout
        )
        settings = self._ordered(deterministic, "random_map")
        how = made, seed, declared(schema), asked, on_error
        return self._then(RandomMap, *how, settings=settings)

    @door
    def flat_map(
        self,
        fn: Callable[[dict[str, Any]], Any] | type,
        *,
        schema: Any = None,
        fingerprint: str | None = None,
        on_error: str = "raise",
        pure: bool | None = None,
        timeout: float | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | str | None = None,
        resources: Mapping[str, float] | None = None,
        concurrency: int | str | None = None,
        num_parallel_calls: int | str | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
    ) -> Self:
        """Replace each row by the dicts that ``fn(row)`` yields, in order.

        With ``on_error="skip"``, if ``fn`` raises, the dicts that it has yielded for the row are
        kept and the rest is dropped. Resources and constructor arguments are as in ``map_batches``,
        ``pure`` as in ``map``. ``timeout`` limits the seconds in which ``fn`` computes all dicts of
        a row.
        """
        from dml.ops.row.flat_map import FlatMap

        self._rows_only("flat_map")
        occupied = num_cpus, num_gpus, memory, resources
        asked = needs("flat_map", *occupied, concurrency, num_parallel_calls)
        constructed = fn_constructor_args, fn_constructor_kwargs
        made = function(fn, "flat_map", fingerprint, constructed, asked, pure=pure, timeout=timeout)
        return self._then(FlatMap, made, declared(schema), asked, on_error)

    @door
    def scan(
        self,
        initial_state: Any,
        fn: Callable[[Any, dict[str, Any]], tuple[Any, Mapping[str, Any]]],
        *,
        schema: Any = None,
        fingerprint: str | None = None,
    ) -> Self:
        """Replace each row's dict by ``new`` from ``state, new = fn(state, row)``, in order.

        The first call of an epoch gets ``initial_state``, each later call the previous state.
        States are saved in positions, so they must consist of None, booleans, numbers, text, bytes,
        lists, tuples, dicts with text keys, NumPy scalars and arrays, and have at most 64 KiB.
        Raise UDFError for other states.
        """
        from dml.ops.row.scan import Scan, written

        self._rows_only("scan")
        made = function(fn, "scan", fingerprint)
        return self._then(Scan, written(initial_state), made, declared(schema))

    @door
    def ignore_errors(self) -> Self:
        """Set ``on_error="skip"`` for all earlier functions, on all inputs."""
        from dml.udfs.calling.error_policy import ignoring

        return self._with(ignoring(self._node), self._settings)


@door
def udf(
    *, return_dtype: Any, fingerprint: str | None = None, timeout: float | None = None
) -> Callable[[Callable[..., Any]], Udf]:
    """Turn a function of values into a function of columns, for ``with_columns`` and ``select``.

    ``@dml.udf(return_dtype="float64")`` above ``def f(x, y)`` allows ``f(col("x"), col("y") + 1)``.
    The function is called once for each row, with Python scalars as in ``map`` and None for null,
    and its result must fit ``return_dtype``. UDFError names the row that raised or does not fit,
    FunctionTimeoutError the row for which the call took longer than ``timeout`` seconds.
    """
    from dml.api.verbs.function_columns import Udf

    return lambda fn: Udf(fn, return_dtype, fingerprint, timeout)


@door
def apply(
    fn: Callable[..., Any],
    *columns: Any,
    return_dtype: Any,
    fingerprint: str | None = None,
    timeout: float | None = None,
) -> Column:
    """Return the column of ``fn``'s results, called row by row on ``columns``; see ``udf``."""
    from dml.api.verbs.function_columns import Udf

    return Udf(fn, return_dtype, fingerprint, timeout)(*columns)


def _all_of(predicate: Any, others: Sequence[Any]) -> Any:
    """Return the expression that all of some expressions are true; a function stands alone."""
    if others and not all(isinstance(each, Column) for each in (predicate, *others)):
        raise PlanError(
            "filter takes one function, or expressions",
            why=f"{1 + len(others)} predicates were given, and not all of them are expressions",
            try_=".filter(f).filter(g)",
        )
    return reduce(operator.and_, others, predicate)


def _with_library(batch_format: str) -> None:
    """Raise PlanError if the library of ``batch_format`` is not installed."""
    from dml.udfs.calling.data_frames import LIBRARIES

    if batch_format in LIBRARIES:
        from dml.io.extras import extra

        extra(batch_format, f"map_batches with batch_format={batch_format!r}", batch_format)


def _numbered(
    fn: Callable[[int, dict[str, Any]], Any], row: dict[str, Any], place: str = PLACE
) -> Any:
    return fn(row.pop(place), row)
