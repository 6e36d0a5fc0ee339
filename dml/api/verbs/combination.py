"""Verbs that combine several pipelines are defined here: concatenation, zip, mix, join."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

from dml.api.verbs.step import StepVerbs, declared, function, names_of, needs
from dml.base.user_line import door
from dml.data.schema import Schema
from dml.errors import PlanError
from dml.expr.facts import Needs
from dml.expr.node import Node


class CombineVerbs(StepVerbs):
    """Verbs that combine this pipeline with other pipelines."""

    @door
    def concat(self, *others: Any) -> Self:
        """Append the elements of ``others``, which have the same columns, to this pipeline's.

        The result has this pipeline's settings. Nesting of several ``concat`` has no effect. Raise
        SchemaError for columns that differ, by name, type or order.
        """
        from dml.ops.merge.concat import joined

        nodes = nodes_of("concat", others)
        return self._then(joined, nodes) if nodes else self

    union = concatenate = concat

    def __add__(self, other: object) -> Self:
        return self.concat(other) if isinstance(other, CombineVerbs) else NotImplemented

    @door
    def zip(self, *others: Any) -> Self:
        """Join row i of all inputs until one ends; raise SchemaError if two share a column name."""
        from dml.ops.merge.zip import Zip

        nodes = nodes_of("zip", others)
        return self._then(Zip, nodes) if nodes else self

    @door
    def interleave(
        self,
        *others: Any,
        cycle_length: int | None = None,
        block_length: int = 1,
        num_parallel_calls: int | str | None = None,
        deterministic: bool | None = None,
        schema: Any = None,
        fingerprint: str | None = None,
    ) -> Self:
        """Take ``block_length`` elements of this pipeline and of each of ``others`` in turn.

        A pipeline that has ended is skipped. Raise SchemaError for columns that differ. If the
        argument is a function, it returns a pipeline for each row of this one, as in tf.data; the
        result has the rows of ``cycle_length`` (4) such pipelines in turn. When a pipeline has
        ended, its turn goes to the pipeline of the next row. Pipelines are opened and read ahead in
        ``num_parallel_calls`` threads, at most ``num_workers`` (the default); with
        ``num_workers="auto"``, more if they wait. With 1, or an executor that runs in the caller's
        thread, they are read one by one.
        """
        settings = self._ordered(deterministic, "interleave")
        calls = needs("interleave", None, None, None, None, None, num_parallel_calls)
        if len(others) == 1 and callable(others[0]) and not isinstance(others[0], StepVerbs):
            lengths = 4 if cycle_length is None else cycle_length, block_length
            how = lengths, declared(schema), calls, fingerprint
            freed = self._with(self._node, settings)
            return freed._cycled(others[0], *how)  # noqa: SLF001 - of this class
        if cycle_length is not None or schema is not None or fingerprint is not None:
            raise PlanError(
                "interleave of pipelines with cycle_length=, schema= or fingerprint=",
                why="these are said of a function that gives a pipeline for each row",
                try_=".interleave(lambda row: ..., cycle_length=4), or block_length= alone",
            )
        nodes = nodes_of("interleave", others)
        from dml.ops.merge.interleave import Interleave

        return self._then(Interleave, nodes, block_length, settings=settings) if nodes else self

    def _cycled(
        self,
        fn: Any,
        lengths: tuple[int, int],
        schema: Schema | None,
        calls: Needs,
        name: str | None,
    ) -> Self:
        """Interleave the rows of the pipelines that ``fn`` returns.

        ``lengths`` are the cycle length and the block length, ``calls`` the resources of one
        pipeline, and ``name`` is the fingerprint that the user declares for ``fn``, if any.
        """
        self._rows_only("interleave by a function")
        if isinstance(fn, type):
            raise PlanError(
                f"interleave needs a function, got the class {fn.__name__}",
                why="it is called with each row, and gives a pipeline",
                try_=".interleave(lambda row: dml.read_parquet(row['path']))",
            )
        made = function(partial(_pipeline, fn), "interleave", name)
        from dml.udfs.identity.closure_walk import spelled

        made = dataclasses.replace(made, name=spelled(fn), purity="it gives pipelines")
        from dml.ops.merge.interleave_map import InterleaveMap

        return self._then(InterleaveMap, made, *lengths, schema, calls)

    @door
    def mix(self, *others: Any, weights: Sequence[float] | None = None, stop: str = "all") -> Self:
        """Mix elements of this pipeline and of ``others`` in the shares ``weights`` (None: equal).

        Until a pipeline ends, each pipeline's number of elements in any prefix is within one of its
        share. With ``stop="first"`` the mix then ends; else the others continue by their shares.
        """
        from dml.ops.merge.mix import Mix, whole_weights

        nodes = nodes_of("mix", others)
        shares = whole_weights(weights, len(nodes) + 1)
        return self._then(Mix, nodes, shares, stop) if nodes else self

    sample_from_datasets = interleave_datasets = mix

    @staticmethod
    def choose_from_datasets(
        datasets: Sequence[Any],
        selector: Any,
        stop_on_empty_dataset: bool = True,  # noqa: FBT001, FBT002 - as in tf.data
    ) -> Any:
        """For each row of ``selector``, take the next element of the dataset with that index.

        ``selector`` has one column of integers, which index ``datasets`` from 0. The result ends
        with the selector, or when a row selects a dataset that has ended; without
        ``stop_on_empty_dataset`` such a row is skipped, and the result ends once all datasets have
        ended. An index out of range raises CastError in place of its element.
        """
        from dml.ops.merge.choose import Choose

        first, *others = steps_of("choose_from_datasets", datasets)
        more = tuple(each._node for each in others)  # noqa: SLF001 - handles of this kind
        (numbers,) = nodes_of("choose_from_datasets", ([selector],))
        return first._then(Choose, more, numbers, stop_on_empty_dataset)  # noqa: SLF001

    @door
    def join(
        self,
        other: Any,
        on: str | Sequence[str] | None = None,
        *,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        how: str = "inner",
        suffix: str = "_right",
        nulls_equal: bool = False,
        validate: str | None = None,
    ) -> Self:
        """Join each row of this pipeline with each row of ``other`` that has the same key.

        ``how`` is "inner", "left", "right", "outer" ("full"), "semi", "anti" or "cross". Rows are
        in this pipeline's order, matches of a row in the order of ``other``, and rows of ``other``
        without a match follow at the end. The columns are those of this pipeline, then those of
        ``other`` without its keys, with ``suffix`` if a name exists already. Null matches nothing
        unless ``nulls_equal``; NaN matches NaN. In right and outer joins, keys come from the side
        that has the row. ``validate`` is "1:1", "1:m" or "m:1": "1" on the left means that no row
        of ``other`` matches several rows of this pipeline, and "1" on the right means the reverse.

        ``other`` is read first and kept in memory if it fits; otherwise both inputs are written to
        disk. Raise SchemaError for keys that cannot be compared, and for duplicate column names;
        raise MatchError, in place of the row, if ``validate`` does not hold.
        """
        from dml.ops.join.join import SYNONYMS, Join

        (node,) = nodes_of("join", ([other],))
        left, right = (on, on) if on is not None else (left_on, right_on)
        if on is not None and (left_on is not None or right_on is not None):
            raise PlanError(
                "join with on= and left_on= or right_on=",
                why="on= names the keys of both sides",
                try_="one of the two",
            )
        keys = (_key_names(left), _key_names(right))
        kind = SYNONYMS.get(how, how)
        return self._then(Join, node, *keys, kind, suffix, nulls_equal, validate or "m:m")


def steps_of(verb: str, datasets: Any) -> list[StepVerbs]:
    """Return the pipelines of a non-empty list."""
    given = list(datasets) if isinstance(datasets, list | tuple) else []
    if not given:
        raise PlanError(
            f"{verb} needs a list of pipelines, got {datasets!r}",
            why="there is nothing to begin with",
            try_=f"dml.{verb}([ds, other], ...)",
        )
    nodes_of(verb, (given,))
    return given


def nodes_of(verb: str, datasets: tuple[Any, ...]) -> tuple[Node, ...]:
    """Return the nodes of pipelines, which may be separate arguments or one list."""
    if len(datasets) == 1 and isinstance(datasets[0], list | tuple):
        datasets = tuple(datasets[0])
    for each in datasets:
        if not isinstance(each, StepVerbs):
            raise PlanError(
                f"{verb} needs pipelines, got {each!r}",
                why=f"it is of type {type(each).__name__}",
                try_=f"ds.{verb}(other), where other is a Dataset",
            )
    return tuple(each._node for each in datasets)  # noqa: SLF001 - a handle of the same kind


def _key_names(names: Any) -> tuple[str, ...]:
    """Return column names that are given as one name, as a list, or as None (no names)."""
    return () if names is None else names_of((names,))


def _pipeline(fn: Callable[[dict[str, Any]], Any], row: dict[str, Any]) -> Any:
    """Return the node of the pipeline that ``fn`` returns; any other result unchanged."""
    given = fn(row)
    return given._node if isinstance(given, StepVerbs) else given  # noqa: SLF001 - a handle
