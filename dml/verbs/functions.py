"""This file holds the verbs that call functions: of rows, of groups of rows, of batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from dml.errors import PlanError, SchemaError
from dml.expr.column import Column
from dml.expr.doors import door
from dml.verbs.step import Step, declared, function, needs


class FunctionVerbs(Step):
    """Verbs that call a user's functions, and ``filter`` in both its forms."""

    @door
    def filter(
        self,
        predicate: Any,
        *,
        fingerprint: str | None = None,
        on_error: str = "raise",
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | str | None = None,
        resources: Mapping[str, float] | None = None,
        concurrency: int | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
    ) -> Self:
        """Keep rows where an expression is true, or for which a function of the row's dict is.

        What a function asks for is said as in ``map_batches``, ``on_error`` as in ``map``.
        """
        from dml.expr.ops.filter import Filter
        from dml.expr.ops.filter_rows import FilterRows

        asked = num_cpus, num_gpus, memory, resources, concurrency
        made = fn_constructor_args, fn_constructor_kwargs
        if isinstance(predicate, Column):
            if any(each not in (None, "raise") for each in (*asked, on_error)) or any(made):
                raise PlanError(
                    "filter by an expression needs nothing of its own",
                    why="resources, constructor arguments and on_error are for functions",
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
        return self._then(FilterRows, fn, needs("filter", *asked), on_error)

    where = filter

    @door
    def map(
        self,
        fn: Callable[[dict[str, Any]], Mapping[str, Any]] | type,
        *,
        schema: Any = None,
        fingerprint: str | None = None,
        on_error: str = "raise",
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | str | None = None,
        resources: Mapping[str, float] | None = None,
        concurrency: int | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
    ) -> Self:
        """Replace each row's dict by ``fn`` of it; after ``batch``, each batch's dict of arrays.

        With ``on_error="skip"`` a row (or batch) for which ``fn`` raises is lost, and the run goes
        on: ``stats()`` counts such rows and shows the first error, ``max_errors=`` of the settings
        bounds them. Results that are no row, or do not fit the others, raise all the same.
        What a function asks for, and how a class is constructed, is said as in ``map_batches``.
        """
        from dml.expr.ops.map_batch import MapBatch
        from dml.expr.ops.map_rows import MapRows

        asked = needs("map", num_cpus, num_gpus, memory, resources, concurrency)
        kind = MapBatch if self._node.batched else MapRows
        made = function(fn, "map", fingerprint, (fn_constructor_args, fn_constructor_kwargs))
        return self._then(kind, made, declared(schema), asked, on_error)

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
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | str | None = None,
        resources: Mapping[str, float] | None = None,
        concurrency: int | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
    ) -> Self:
        """Replace each group of rows by what ``fn`` makes of its dict of arrays.

        Groups are atoms of the source, or ``batch_size`` rows within one (``batch(n).map(f)``
        groups across atoms). The arrays are read-only unless ``writable``;
        ``batch_format="arrow"`` gives a ``pyarrow.Table``. ``fn`` returns a dict of arrays or Arrow
        data, of any number of rows. A class whose instances can be called is constructed once in
        each process, with ``fn_constructor_args`` and ``fn_constructor_kwargs``.

        A task occupies ``num_cpus`` (1), ``num_gpus``, ``memory`` (bytes or "2GiB", beside the
        rows) and ``resources`` (a dict) where it runs, and at most ``concurrency`` run at once.
        None of these changes a result. With ``on_error="skip"`` a group for which ``fn`` raises is
        lost, all its rows (see ``map``).
        """
        from dml.expr.ops.map_batches import MapBatches, atoms_are_gone

        asked = needs("map_batches", num_cpus, num_gpus, memory, resources, concurrency)
        constructed = fn_constructor_args, fn_constructor_kwargs
        made = function(fn, "map_batches", fingerprint, constructed)
        how = batch_size, batch_format, bool(writable), atoms_are_gone(self._node)
        return self._then(MapBatches, made, *how, declared(schema), asked, on_error)

    @door
    def random_map(
        self,
        fn: Callable[[dict[str, Any], Any], Mapping[str, Any]],
        *,
        seed: int | None = None,
        schema: Any = None,
        fingerprint: str | None = None,
        on_error: str = "raise",
    ) -> Self:
        """As ``map``, with ``fn(row, rng)``: random numbers keyed by (seed, epoch, row).

        With ``on_error="skip"`` a row for which ``fn`` raises is lost (see ``map``).
        """
        from dml.expr.ops.random_map import RandomMap

        self._rows_only("random_map")
        made = function(fn, "random_map", fingerprint)
        return self._then(RandomMap, made, seed, declared(schema), on_error)

    @door
    def flat_map(
        self,
        fn: Callable[[dict[str, Any]], Any] | type,
        *,
        schema: Any = None,
        fingerprint: str | None = None,
        on_error: str = "raise",
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        memory: int | str | None = None,
        resources: Mapping[str, float] | None = None,
        concurrency: int | None = None,
        fn_constructor_args: Sequence[Any] = (),
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
    ) -> Self:
        """Replace each row by the dicts that ``fn`` of it yields, in order.

        With ``on_error="skip"`` a row is left where ``fn`` raises: what it yielded before stays.
        What a function asks for, and how a class is constructed, is said as in ``map_batches``.
        """
        from dml.expr.ops.flat_map import FlatMap

        self._rows_only("flat_map")
        asked = needs("flat_map", num_cpus, num_gpus, memory, resources, concurrency)
        made = function(fn, "flat_map", fingerprint, (fn_constructor_args, fn_constructor_kwargs))
        return self._then(FlatMap, made, declared(schema), asked, on_error)

    @door
    def ignore_errors(self) -> Self:
        """The same pipeline with ``on_error="skip"`` of every function so far, on all its inputs.

        Errors of sources and of expressions are raised as before.
        """
        from dml.expr.skipping import ignoring

        return self._with(ignoring(self._node), self._settings)
