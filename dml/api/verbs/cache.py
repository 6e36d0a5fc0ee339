"""Verbs that cache computed rows, and report the contents of caches, are defined here."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Self

from dml import checks
from dml.api.runs import wiring
from dml.api.verbs.step import StepVerbs
from dml.base.user_line import door, users_line
from dml.errors import PlanError

if TYPE_CHECKING:
    from dml.api.cache_contents import CacheStatus


class CacheVerbs(StepVerbs):
    """Verbs that fill, inspect and clear caches."""

    def cache(self, tier: str = "memory") -> Self:
        """Cache the elements that pass, so that later epochs do not compute them again.

        Steps before ``cache()`` always run as in epoch 0: a shuffle or random function before it is
        the same in every epoch, and one after it changes as usual. Results never depend on which
        elements are cached; ``stats()`` and ``explain()`` report these.

        ``tier="memory"`` caches in the process that iterates, from the first element on, as many as
        fit into half of ``memory_limit`` together with other caches; later epochs compute the rest.
        Equal pipelines in the process share the elements until the last of them is deleted, or
        ``clear_cache()`` is called.

        ``tier="disk"`` caches in the folder of the option ``cache_dir``, by fingerprint, for all
        later runs and other processes. Rows of row functions over one source are stored by the
        workers, row group by row group, also if they are then batched. Rows after a step that
        depends on order (a shuffle, a join) are stored by the process that delivers elements.
        Different pipelines share equal rows and columns.

        ``tier="auto"`` is ``autocache()``: on disk if that saves time. Raise PlanError for another
        ``tier``.
        """
        from dml.ops.cache.cache import AUTO, DISK, Anchor, Cache

        if tier == AUTO:
            return self.autocache()
        return self._stored("") if tier == DISK else self._then(Cache, tier, Anchor())

    @door
    def autocache(self, reuse: int | None = None) -> Self:
        """Cache the rows here on disk, as ``cache(tier="disk")`` does, if that saves time.

        A run decides at the beginning of each pass: PROFILE computes, as the cost is not known yet;
        PUT stores missing rows, GET reads stored rows, COMPUTE does neither. The decision depends
        on the compute time measured in earlier passes and runs, the time to write and read the
        bytes, and the number of coming reads. A later ``repeat(n)`` and the option ``epochs``
        declare this number; without them, as many further passes are expected as there were so far.
        A pipeline may have any number of ``autocache()``; at most one of them caches at a time.
        ``explain()`` and ``cache_status()`` show the decision and its reason. Bytes and order of
        the result never depend on it.

        Rows that differ in every epoch, because of an earlier shuffle or random function, still
        differ. ``reuse=4`` draws them once for four epochs, for row functions over one source:
        epoch ``e`` has the rows of epoch ``e // 4`` of the input, cached or not. Raise PlanError
        over random steps without ``reuse``, and with it over steps that depend on order.

        Source: Cachew (Graur et al., ATC 2022), 4.4; Revamper (Lee et al., ATC 2021).
        """
        from dml.ops.cache.autocache import AutoStored, frozen, varying
        from dml.ops.cache.cache import AUTO, Anchor, Cache

        drawing = varying(self._node)
        if drawing is not None and reuse is None:
            raise frozen(self._node, drawing)
        from dml.ops.cache.stored import storable

        if storable(self._node):
            return self._then(partial(AutoStored, reuse=reuse))
        if reuse is not None:
            raise PlanError(
                "autocache(reuse=) is of row functions over one source",
                why="shuffles, batches, slices, joins and steps with resources lie below it",
                try_="autocache(reuse=) above the row functions, and the others above that",
            )
        return self._then(Cache, AUTO, Anchor())

    def _stored(self, root: str) -> Self:
        """Append a cache in the store ``root``, filled by the workers where possible."""
        from dml.ops.cache.cache import DISK, Anchor, Cache
        from dml.ops.cache.stored import Stored, storable

        if storable(self._node):
            return self._then(Stored, root)
        below = self._node.inputs[0] if self._node.regroups and self._node.inputs else None
        if below is not None and storable(below):  # batches of any size are made of the same rows
            kept = Stored(below, root).placed(users_line())
            return self._with(self._node.map_inputs(lambda _: kept), self._settings)
        if root:
            raise PlanError(
                "a snapshot in a folder of its own is of row functions over one source",
                why="shuffles, batches, slices, joins and steps with resources lie below it",
                try_='.cache(tier="disk"), with cache_dir=, or .snapshot() above the row functions',
            )
        return self._then(Cache, DISK, Anchor())

    @door
    def snapshot(self, path: str | os.PathLike[str]) -> Self:
        """Cache as ``cache(tier="disk")`` does, but in the folder or at the URL ``path``.

        The first epoch stores the rows as they are computed; later runs with equal rows read them.
        """
        return self._stored(checks.place("path", path))

    @door
    def materialize(self) -> Self:
        """Compute all rows now and store them on disk; return the pipeline that reads them.

        The memory limit is that of any run. Rows that an earlier run stored are not computed again.
        Raise PlanError for an endless stream. Raise CacheError, with the reason, if the store does
        not contain all rows afterwards: the store failed, ``cache_quota`` is used up, or rows were
        skipped because of errors; stored rows remain. If nothing can be stored at all, it is raised
        before anything is computed. On a cluster whose machines have cache folders of their own,
        missing rows are not detected.
        """
        from dml.api.cache_contents import must_hold, must_keep
        from dml.exec.delivery import tables

        self._must_end("materialize")
        cached = self._stored("")
        node = cached._node  # noqa: SLF001 - a handle of this class
        plan = wiring().optimized(node, self._settings).plan
        must_keep(plan, self._settings)
        epoch = self._pinned or 0
        run, _ = self._streamed(node, epoch)
        with closing(tables.record_batches(run, epoch)) as batches:
            for _ in batches:
                pass
        losses = [each.losses.by_operator.values() for each in run.running.all]
        lost = sum(loss.rows for each in losses for loss in each)
        must_hold(plan, self._settings, lost)
        return cached

    @door
    def cache_status(self) -> CacheStatus:
        """Return the contents of each ``cache()`` of this pipeline, without running anything.

        For each ``autocache()``, include the decision of the next iteration, and the reason.
        """
        from dml.api.cache_contents import CacheStatus
        from dml.api.explanation import cached

        plan = wiring().optimized(self._node, self._settings).plan
        return CacheStatus(each for _, each in cached(plan, self._settings, self._coming))

    @door
    def clear_cache(self) -> None:
        """Remove the contents of each ``cache()`` of this pipeline, in this process and on disk.

        Pipelines that share the contents lose them too; results stay the same. On a cluster, each
        worker also removes these entries on the disk of its machine; a UserWarning names workers
        that were not reached, or where an entry is pinned. Raise CacheError, without removing
        anything, if an entry is pinned. Raise it also if a store cannot be written to; the entries
        in this process are then removed.
        """
        from dml.api.cache_contents import clearing
        from dml.cache.elements import element_cache

        plan = wiring().optimized(self._node, self._settings).plan
        removals = clearing(plan, self._settings)
        element_cache.forget(self._node)
        if "dml.ranks.driver.driver_handle" in sys.modules:  # caches in a driver process
            from dml.ranks.driver import driver_handle

            driver_handle.forget(self._node)
        for remove in removals:
            remove()
