"""This file holds the verbs of sequence: which elements come, in which order, how often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from dml.errors import PlanError, SchemaError
from dml.expr.doors import door
from dml.verbs.step import Step, names_of

if TYPE_CHECKING:
    from dml.verbs.grouping import Groups


class OrderVerbs(Step):
    """Verbs that keep, repeat and mix elements."""

    def take(self, n: int) -> Self:
        """The first ``n`` elements, lazily (``take_rows`` returns them)."""
        from dml.expr.ops.take import Take

        return self._then(Take, n)

    limit = head = take

    def skip(self, n: int) -> Self:
        """All but the first ``n`` elements."""
        from dml.expr.ops.skip import Skip

        return self._then(Skip, n)

    @door
    def slice(self, offset: int, length: int | None = None) -> Self:
        """``length`` elements (None: all) from number ``offset`` on."""
        rest = self.skip(offset)
        return rest if length is None else rest.take(length)

    @door
    def gather_every(self, n: int, offset: int = 0) -> Self:
        """Every ``n``-th element from number ``offset`` on."""
        from dml.expr.ops.shard import Shard

        return self.skip(offset)._then(Shard, n, 0)  # noqa: SLF001 - a handle of this class

    def repeat(self, n: int | None = None) -> Self:
        """``n`` passes as one stream; without ``n``, forever."""
        from dml.expr.ops.repeat import Repeat

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
    ) -> Self:
        """Keyed random order: of everything, of windows of ``buffer_size``, or of source pieces.

        ``shuffle()`` permutes all rows, ``shuffle(n)`` every run of n elements,
        ``shuffle(window="atoms", size=k)`` the source's pieces, and mixes k of them at a time.
        """
        from dml.expr.ops.shuffle_all import ShuffleAll
        from dml.expr.ops.shuffle_atoms import ShuffleAtoms
        from dml.expr.ops.shuffle_window import ShuffleWindow

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

    random_shuffle = shuffle

    @door
    def sort(
        self,
        by: Any,
        descending: bool | Sequence[bool] = False,  # noqa: FBT001, FBT002 - as peers have it
        *,
        nulls_last: bool = True,
    ) -> Self:
        """All rows in order of ``by``: a column, an expression, or a list of them.

        Rows of equal keys stay in their order. Numbers go by value, texts by their bytes in UTF-8,
        False before True; then NaN, then null, in both directions: ``nulls_last=False`` gives null
        first, then NaN. ``descending`` is one answer, or one for each key. Holds the rows within
        ``memory_limit``, sorted runs on disk beyond it. SchemaError for lists, structs and tensors.
        """
        from dml.verbs.grouping import sorted_by

        return sorted_by(self, by, descending, nulls_last=nulls_last)

    @door
    def group_by(self, *keys: Any, **named: Any) -> Groups[Self]:
        """The rows by columns ``keys``, and by expressions: ``group_by(tens=col("x") // 10)``.

        Then ``.agg(...)``, ``.len()``, ``.sum("x")`` ..., ``.map_groups(f)``.
        """
        from dml.verbs.grouping import grouped

        return grouped(self, keys, named)

    groupby = group_by

    @door
    def agg(self, *figures: Any, **named: Any) -> Self:
        """One row of figures of all rows: ``agg(n=dml.len(), total=col("x").sum())``.

        As ``group_by(...).agg``, which has a row for each group.
        """
        from dml.verbs.grouping import aggregated

        return aggregated(self, figures, named)

    aggregate = agg

    @door
    def drop_duplicates(self, subset: str | Sequence[str] | None = None) -> Self:
        """The first row of each value of ``subset`` (None: of all columns), in the order of rows.

        Null is a value, all NaNs are one, and -0.0 is 0.0. Sorts by those columns, and by place
        again, within ``memory_limit``, on disk beyond it. SchemaError for lists and tensors.
        """
        from dml.verbs.grouping import without_duplicates

        self._rows_only("drop_duplicates")
        given = () if subset is None else names_of((subset,))
        given = given or tuple(self._node.schema.names)
        if not given:
            raise SchemaError(
                "drop_duplicates without names needs known columns",
                why="a function below decides them when it runs",
                try_='drop_duplicates("x"), or schema={...} where the function is given',
            )
        found: Self = without_duplicates(self, given)
        return found

    distinct = drop_duplicates

    def randomize_block_order(
        self, *, seed: int | None = None, reshuffle_each_iteration: bool = True
    ) -> Self:
        """The pieces of the source in keyed random order, the rows of each as they stand.

        Pieces are what ``shuffle(window="atoms")`` mixes the rows of: row groups of Parquet files,
        parts of other files, atoms in memory. Holds nothing. PlanError over anything but filters
        and maps.
        """
        from dml.expr.ops.order_atoms import OrderAtoms

        return self._then(OrderAtoms, 1, seed, bool(reshuffle_each_iteration))
