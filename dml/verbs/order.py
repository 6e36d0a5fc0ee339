"""This file holds the verbs of sequence: which elements come, in which order, how often."""

from __future__ import annotations

from typing import Self

from dml.errors import PlanError
from dml.expr.doors import door
from dml.verbs.step import Step


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
