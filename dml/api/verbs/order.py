"""Verbs that select, repeat and reorder elements are defined here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from dml.api.verbs.step import StepVerbs, names_of
from dml.base.user_line import door
from dml.errors import PlanError, SchemaError

if TYPE_CHECKING:
    from dml.api.verbs.grouping import Groups


class OrderVerbs(StepVerbs):
    """Verbs that take, skip, repeat, sort, group and shuffle elements."""

    def take(self, n: int) -> Self:
        """Keep only the first ``n`` elements; nothing runs (``take_rows`` returns them now)."""
        from dml.ops.slice.take import Take

        return self._then(Take, n)

    limit = head = take

    def skip(self, n: int) -> Self:
        """Skip the first ``n`` elements."""
        from dml.ops.slice.skip import Skip

        return self._then(Skip, n)

    @door
    def slice(self, offset: int, length: int | None = None) -> Self:
        """Take ``length`` elements (None: all) from number ``offset`` on."""
        rest = self.skip(offset)
        return rest if length is None else rest.take(length)

    @door
    def gather_every(self, n: int, offset: int = 0) -> Self:
        """Take every ``n``-th element from number ``offset`` on."""
        from dml.ops.slice.shard import Shard

        return self.skip(offset)._then(Shard, n, 0)  # noqa: SLF001 - a handle of this class

    def repeat(self, n: int | None = None) -> Self:
        """Repeat the elements: ``n`` passes as one stream; without ``n``, forever."""
        from dml.ops.slice.repeat import Repeat

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
        """Shuffle all rows, windows of ``buffer_size`` elements, or parts of the source.

        ``shuffle()`` permutes all rows, ``shuffle(n)`` every n consecutive elements, and
        ``shuffle(window="atoms", size=k)`` the parts of the source, mixing rows of k parts at a
        time. The order follows from ``seed``; it differs by epoch if ``reshuffle_each_iteration``.
        """
        fresh = bool(reshuffle_each_iteration)
        if window is not None:
            if window != "atoms" or buffer_size is not None:
                raise PlanError(
                    f"shuffle with window={window!r}, buffer_size={buffer_size!r}",
                    why='"atoms" is the only window that has a name, and it takes size=',
                    try_='window="atoms", size=16, or buffer_size= alone',
                )
            from dml.ops.shuffle.shuffle_atoms import ShuffleAtoms

            return self._then(ShuffleAtoms, size, seed, fresh)
        if buffer_size is None:
            from dml.ops.shuffle.shuffle_all import ShuffleAll

            return self._then(ShuffleAll, seed, fresh)
        from dml.ops.shuffle.shuffle_window import ShuffleWindow

        return self._then(ShuffleWindow, buffer_size, seed, fresh)

    random_shuffle = shuffle

    @door
    def sort(
        self,
        by: Any,
        descending: bool | Sequence[bool] = False,  # noqa: FBT001, FBT002 - as elsewhere
        *,
        nulls_last: bool = True,
    ) -> Self:
        """Sort all rows by ``by``: a column, an expression, or a list of them.

        The sort is stable. Numbers are sorted by value, texts by UTF-8 bytes, and False before
        True; NaN and then null follow at the end in both directions. ``nulls_last=False`` puts null
        first, then NaN. ``descending`` is one boolean or one per key. Rows beyond ``memory_limit``
        are sorted on disk. Raise SchemaError for lists, structs and tensors.
        """
        from dml.api.verbs.grouping import sorted_by

        return sorted_by(self, by, descending, nulls_last=nulls_last)

    @door
    def group_by(self, *keys: Any, **named: Any) -> Groups[Self]:
        """Group rows by columns ``keys``, and by expressions: ``group_by(tens=col("x") // 10)``.

        Continue with ``.agg(...)``, ``.len()``, ``.sum("x")`` ... or ``.map_groups(f)``.
        """
        from dml.api.verbs.grouping import grouped

        return grouped(self, keys, named)

    groupby = group_by

    @door
    def agg(self, *figures: Any, **named: Any) -> Self:
        """Make one row of aggregates of all rows: ``agg(n=dml.len(), total=col("x").sum())``."""
        from dml.api.verbs.grouping import aggregated

        return aggregated(self, figures, named)

    aggregate = agg

    @door
    def drop_duplicates(self, subset: str | Sequence[str] | None = None) -> Self:
        """Keep the first row of each value of ``subset`` (None: all columns), in the order of rows.

        Null counts as a value, all NaNs are equal, and -0.0 equals 0.0. The rows are sorted by
        these columns, and then back by position, in memory within ``memory_limit``, else on disk.
        Raise SchemaError for lists and tensors.
        """
        self._rows_only("drop_duplicates")
        given = () if subset is None else names_of((subset,))
        given = given or tuple(self._node.schema.names)
        if not given:
            raise SchemaError(
                "drop_duplicates without names needs known columns",
                why="a function below decides them when it runs",
                try_='drop_duplicates("x"), or schema={...} where the function is given',
            )
        from dml.api.verbs.grouping import without_duplicates

        found: Self = without_duplicates(self, given)
        return found

    distinct = drop_duplicates

    def randomize_block_order(
        self, *, seed: int | None = None, reshuffle_each_iteration: bool = True
    ) -> Self:
        """Deliver the parts of the source in random order, with the order of rows in a part kept.

        The parts are those whose rows ``shuffle(window="atoms")`` mixes: row groups of Parquet
        files, parts of other files, atoms in memory. The order follows from ``seed``. No rows are
        buffered. Raise PlanError unless all earlier operators are filters and maps.
        """
        from dml.ops.shuffle.order_atoms import OrderAtoms

        return self._then(OrderAtoms, 1, seed, bool(reshuffle_each_iteration))
