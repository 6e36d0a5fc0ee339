"""Verbs that keep computed rows, and report what is kept."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Self

from dml import checks
from dml.api.runs import wiring
from dml.api.verbs.step import StepVerbs
from dml.base.user_line import door, users_line
from dml.errors import PlanError

if TYPE_CHECKING:
    from dml.api.run_storage import CacheStatus


class CacheVerbs(StepVerbs):
    """Verbs that fill, inspect and clear caches."""

    def cache(self, tier: str = "memory") -> Self:
        """Keep the elements that flow past, so that later epochs do not compute them again.

        Everything below is computed for epoch 0, whatever the epoch: a shuffle or random function
        below ``cache()`` is frozen, one above it goes on changing. The bytes of the result never
        depend on what is kept. ``stats()`` and ``explain()`` say how much that is.

        ``tier="memory"``: in the process that iterates, in order, as many elements as fit into half
        of ``memory_limit`` together with those of other caches; later epochs compute the rest.
        Equal pipelines of the process share them, until the last is gone, or ``clear_cache()``.

        ``tier="disk"``: in the folder of the option ``cache_dir``, by fingerprint, for every later
        run and other processes. Row functions over one source are kept by the workers, row group by
        row group (also for batches of their rows, whatever the size); rows after a step that
        depends on order (a shuffle, a join) are kept where elements are delivered. Pipelines that
        are not equal share rows and columns that are.

        ``tier="auto"``: on disk too, where it is worth it; this is ``autocache()``.

        Raise PlanError for another ``tier``.
        """
        from dml.ops.cache.cache import AUTO, DISK, Anchor, Cache

        if tier == AUTO:
            return self.autocache()
        return self._stored("") if tier == DISK else self._then(Cache, tier, Anchor())

    @door
    def autocache(self, reuse: int | None = None) -> Self:
        """Keep the rows here on disk, as ``cache(tier="disk")``, if that is worth it.

        A run decides at the beginning of each pass: PROFILE computes, as the cost is not known yet;
        PUT stores missing rows, GET reads stored rows, COMPUTE does neither. The decision weighs
        the compute time, as measured in earlier passes and runs, the time that the disk takes to
        write and read so many bytes, and how often the rows will be read: ``repeat(n)`` above it
        and the option ``epochs`` say how often; without these, as often again as there have been
        passes. Any number of ``autocache()`` may be written; one is kept at a time. ``explain()``
        and ``cache_status()`` show the decision and its reason. Bytes and order never depend on it.

        Rows that change in every epoch (below: a shuffle, a random function) are not frozen.
        ``reuse=4`` draws them once for four epochs, of row functions over one source: the rows of
        epoch ``e`` are those that the input has in epoch ``e // 4``, kept or not.

        Raise PlanError over random steps without ``reuse``, and with ``reuse`` over steps that
        depend on order.

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
        """Cache as ``cache(tier="disk")``, but in the folder or at the URL ``path``.

        Filled while the first epoch flows past; every later run with the same rows reads it.
        """
        return self._stored(checks.place("path", path))

    @door
    def materialize(self) -> Self:
        """Compute all rows now and store them on disk; return the pipeline that reads them.

        Holds no more memory than any run. Rows that are there from an earlier run are not computed.

        Raise PlanError for an endless stream. Raise CacheError if afterwards the store does not
        hold all rows, with the reason: the store failed, ``cache_quota`` has no more room, errors
        cost rows; stored rows stay. It is raised before anything is computed where nothing can be
        kept. On a cluster each machine may have a folder of its own, which is not checked.
        """
        from dml.exec.delivery import tables

        self._must_end("materialize")
        cached = self._stored("")
        node = cached._node  # noqa: SLF001 - a handle of this class
        plan = wiring().optimized(node, self._settings).plan
        _keeping().must_keep(plan, self._settings)
        epoch = self._pinned or 0
        run, _ = self._streamed(node, epoch)
        with closing(tables.record_batches(run, epoch)) as batches:
            for _ in batches:
                pass
        losses = [each.losses.by_operator.values() for each in run.running.all]
        lost = sum(loss.rows for each in losses for loss in each)
        _keeping().must_hold(plan, self._settings, lost)
        return cached

    @door
    def cache_status(self) -> CacheStatus:
        """Return the contents of each ``cache()`` of this pipeline, without running anything.

        Include the decision of the next iteration at each ``autocache()``, and why.
        """
        session = wiring()
        plan = session.optimized(self._node, self._settings).plan
        found: CacheStatus = session.cache_status(plan, self._settings, self._coming)
        return found

    @door
    def clear_cache(self) -> None:
        """Remove the contents of each ``cache()`` of this pipeline, in this process and on disk.

        Pipelines that share them lose them too; results stay the same. On a cluster each worker
        also removes the same entries on the disk of its machine; a UserWarning names those that
        were not reached, or keep an entry that is pinned there.

        Raise CacheError if one of the entries was pinned by hand: then nothing is removed. Also
        raise it if a store has an entry and cannot be written: then the entries in this process
        are gone.
        """
        from dml.cache.elements import element_cache

        plan = wiring().optimized(self._node, self._settings).plan
        removals = _keeping().clearing(plan, self._settings)
        element_cache.forget(self._node)
        if "dml.ranks.driver.driver_handle" in sys.modules:  # caches in a driver process
            from dml.ranks.driver import driver_handle

            driver_handle.forget(self._node)
        for remove in removals:
            remove()


def _keeping() -> ModuleType:
    from dml.api import run_storage

    return run_storage
