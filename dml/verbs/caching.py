"""This file holds the verbs that say what is computed once, and what there is of it."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import closing
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Self

from dml import checks
from dml.errors import PlanError
from dml.expr.doors import door, users_line
from dml.results import executing, wiring
from dml.verbs.step import Step

if TYPE_CHECKING:
    from dml.keeping import CacheStatus


class CacheVerbs(Step):
    """Verbs around ``cache()``."""

    def cache(self, tier: str = "memory") -> Self:
        """Keep the elements that flow past, so that later epochs do not compute them again.

        Everything below is computed for epoch 0, whatever the epoch: a shuffle or random function
        below ``cache()`` is frozen, one above it goes on changing. Bytes never depend on what is
        kept. ``stats()`` and ``explain()`` say how much that is.

        ``tier="memory"``: in the process that iterates, in order, as many elements as fit into half
        of ``memory_limit`` together with those of other caches; later epochs compute the rest.
        Equal pipelines of the process share them, until the last is gone, or ``clear_cache()``.

        ``tier="disk"``: in the folder of the option ``cache_dir``, by name, for every later run and
        other processes; of row functions over one source by the workers, row group by row group
        (also of batches of their rows, whatever the size), of what sees rows in order (after a
        shuffle, a join) where elements are delivered. Pipelines that are not equal share rows and
        columns that are.

        ``tier="auto"``: there too, where it is worth it; this is ``autocache()``.

        PlanError for another ``tier``.
        """
        from dml.expr.ops.cache import AUTO, DISK, Anchor, Cache

        if tier == AUTO:
            return self.autocache()
        return self._stored("") if tier == DISK else self._then(Cache, tier, Anchor())

    @door
    def autocache(self, reuse: int | None = None) -> Self:
        """Keep the rows here on disk, as ``cache(tier="disk")``, if that is worth it.

        A run decides at the beginning of each pass: PROFILE computes, as what that takes is not
        known yet; PUT keeps what is not there yet, GET reads what is there, COMPUTE does neither.
        What counts is what computing took, as earlier passes and runs have shown, what the disk
        takes to write and read so many bytes, and how often the rows will be asked for:
        ``repeat(n)`` below which this stands and the option ``epochs`` say it; where nobody does,
        as often again as there have been passes. Any number of them may be written; one is kept at
        a time. ``explain()`` and ``cache_status()`` say what is decided and why. Bytes and order
        never depend on it.

        Rows that are others in every epoch (below: a shuffle, a random function) are not frozen.
        ``reuse=4`` draws them once for four epochs, of row functions over one source: the rows
        of epoch ``e`` are those that the input has in epoch ``e // 4``, kept or not.

        PlanError over random steps without ``reuse``, and with it over what sees rows in order.

        Source: Cachew (Graur et al., ATC 2022), 4.4; Revamper (Lee et al., ATC 2021).
        """
        from dml.expr.ops.autocache import AutoStored, frozen, varying
        from dml.expr.ops.cache import AUTO, Anchor, Cache
        from dml.expr.ops.stored import storable

        drawing = varying(self._node)
        if drawing is not None and reuse is None:
            raise frozen(self._node, drawing)
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
        """Kept in the store in ``root``, by the workers where that can be."""
        from dml.expr.ops.cache import DISK, Anchor, Cache
        from dml.expr.ops.stored import Stored, storable

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
        """As ``cache(tier="disk")``, in the folder or at the URL ``path`` instead of ``cache_dir``.

        Filled while the first epoch flows past; every later run that asks for the same reads it.
        """
        return self._stored(checks.place("path", path))

    @door
    def materialize(self) -> Self:
        """Compute all rows now, onto the disk; the pipeline that reads them from there.

        Holds no more than any run. Rows that are there from an earlier run are not computed.

        PlanError for an endless stream. CacheError if afterwards the store does not hold them all,
        which says why: it failed, ``cache_quota`` has no more room, errors cost rows; what is there
        stays. It comes before anything is computed where nothing can be kept. On a cluster each
        machine may have a folder of its own, into which nobody looks.
        """
        self._must_end("materialize")
        cached = self._stored("")
        node = cached._node  # noqa: SLF001 - a handle of this class
        plan = wiring().optimized(node, self._settings).plan
        _keeping().must_keep(plan, self._settings)
        epoch = self._pinned or 0
        run, _ = self._streamed(node, epoch)
        with closing(executing("tables").record_batches(run, epoch)) as batches:
            for _ in batches:
                pass
        losses = [each.losses.by_operator.values() for each in run.running.all]
        lost = sum(loss.rows for each in losses for loss in each)
        _keeping().must_hold(plan, self._settings, lost)
        return cached

    @door
    def cache_status(self) -> CacheStatus:
        """What each ``cache()`` of this pipeline holds now, without running anything.

        Also what the next iteration will do at each ``autocache()``, and why.
        """
        session = wiring()
        plan = session.optimized(self._node, self._settings).plan
        found: CacheStatus = session.kept(plan, self._settings, self._coming)
        return found

    @door
    def clear_cache(self) -> None:
        """Let go of what every ``cache()`` of this pipeline keeps, in this process and on the disk.

        Pipelines that share it lose it too; what comes out stays the same. On a cluster each worker
        also lets go of the same entries on the disk of its machine; a UserWarning names those that
        were not reached, or keep what is pinned there.

        CacheError if one of its entries was pinned by hand: then nothing is let go of. Also if a
        store has something of it and cannot be written: then what this process holds is gone.
        """
        plan = wiring().optimized(self._node, self._settings).plan
        removals = _keeping().clearing(plan, self._settings)
        executing("kept").forget(self._node)
        if "dml.exec.drivers" in sys.modules:  # what a driver process keeps
            executing("drivers").forget(self._node)
        for remove in removals:
            remove()


def _keeping() -> ModuleType:
    return importlib.import_module("dml.keeping")
