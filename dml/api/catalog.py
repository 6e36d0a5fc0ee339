"""The catalog lists cache entries, looks pipelines up, and explains cache misses."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from dml import checks
from dml.api.dataset import Dataset
from dml.api.runs import wiring
from dml.base.user_line import door
from dml.errors import CacheError, PlanError
from dml.settings import Settings, parse_bytes

if TYPE_CHECKING:
    from dml.api.cache_advice import WorthKeeping
    from dml.cache.eviction.catalogue import Catalogue, Entry, VerifiedEntry
    from dml.cache.eviction.janitor import Swept
    from dml.expr.node import Node
    from dml.optimize.explain.fingerprint_text import FingerprintText
    from dml.optimize.explain.name_differences import Difference

SHORTEST = 4  # the fewest first letters by which a fingerprint may be given


@door
def why_miss(a: Dataset, b: Dataset) -> Difference:
    """Return the first difference between two pipelines, source first: why they share no entry.

    ``print`` shows the differing part, its operators and source lines, both values, and a remedy.
    Programs read the fields: ``kind`` ("constant", "code", "content", "order" ...), ``path`` (a
    file, or how a function refers to the differing value), and the value in ``a`` as ``here`` and
    in ``b`` as ``there``. The result is false if both pipelines have the same fingerprint. Files
    are read as by ``fingerprint()``; nothing is computed. ``Catalog.why_miss`` compares a pipeline
    with entries of a store.

    >>> import dml
    >>> data = dml.range(10)
    >>> print(dml.why_miss(data.take(3), data.take(4)).what)
    the option n= differs
    """
    from dml.optimize.explain import name_differences

    here, there = describe_pipeline(a, "a", "why_miss"), describe_pipeline(b, "b", "why_miss")
    return name_differences.first_difference(here, there)


@door
def worth_keeping(*pipelines: Dataset, room: int | str | None = None) -> WorthKeeping:
    """Return which rows of several pipelines are worth caching in a store of ``room`` bytes.

    Candidates are the rows at each ``autocache()``; rows that several pipelines compute are one
    candidate. The result names the rows, or shares of them, with which all coming epochs of all
    pipelines together take the least time; ``print`` shows it as a table. It is estimated from
    measurements of this process or telemetry: nothing runs or is stored. ``room=None`` means no
    limit. Raise PlanError if an argument is not a pipeline, or ``room`` is not a size.
    """
    from dml.api import cache_advice

    jobs = [_written(each, f"number {n}", "worth_keeping") for n, each in enumerate(pipelines)]
    epochs = [each._coming for each in pipelines]  # noqa: SLF001 - a class of this package
    made: WorthKeeping = cache_advice.worth_keeping(
        [(*job, epoch) for job, epoch in zip(jobs, epochs, strict=True)],
        None if room is None else parse_bytes(room, "room"),
    )
    return made


class Lookup(NamedTuple):
    """The result of a cache lookup: ``parts`` of the entry's ``of`` parts are stored.

    ``of`` is None if unknown. ``reuse`` says how the missing parts could be computed from entries
    of other pipelines; ``quarantined`` says why the entry must not be read, and is "" if it may be.
    """

    fingerprint: str
    parts: int
    of: int | None
    reuse: str = ""
    quarantined: str = ""

    @property
    def state(self) -> str:
        """The word "hit" if all parts are stored, "partial" if some are, "miss" if none is."""
        if self.of is not None and self.parts >= self.of:
            return "hit"
        return "partial" if self.parts else "miss"

    def __str__(self) -> str:
        count = f"{self.parts:,} of {'?' if self.of is None else format(self.of, ',')} parts"
        said = f"quarantined: {self.quarantined}" if self.quarantined else ""
        told = "; ".join(filter(None, (count, said, self.reuse)))
        return f"{self.state}  {self.fingerprint}  {told}"


class Catalog:
    """The cache entries in one namespace of a store, by fingerprint.

    ``path`` is a folder or ``s3://`` URL: that of a store, of a snapshot, or of a ``cache_dir``,
    where the store is the folder ``store``. None is the store in the user's cache folder.
    ``catalog.path`` is the path of the store that was found. Creating a catalog writes nothing.
    Raise CacheError if there is no store, or it cannot be read; raise PlanError for an invalid
    path, namespace or fingerprint. Methods accept a prefix of a fingerprint, of at least 4 letters,
    if only one entry has it.
    """

    @door
    def __init__(
        self, path: str | os.PathLike[str] | None = None, namespace: str = "default"
    ) -> None:
        from dml.cache.eviction import catalogue

        self.path: str = catalogue.store_in(_store_path(path))
        self.namespace = namespace
        place = catalogue.place_at(self.path, namespace)
        self._kept: Catalogue = catalogue.Catalogue(place)

    @classmethod
    @door
    def private(
        cls, path: str | os.PathLike[str] | None = None, namespace: str = "default"
    ) -> Catalog:
        """Create a namespace on a local disk that no other user of the machine can read.

        The namespace's folder is created for you alone, whatever the umask. Call this before the
        first run that uses the namespace; for a ``cache_dir``, pass ``<cache_dir>/store`` as
        ``path``. Raise CacheError if the folder belongs to another user or is in a bucket.
        """
        from dml.cache.eviction import catalogue
        from dml.cache.store import private_folder

        given = _store_path(path)
        root = given if "://" in given else catalogue.store_in(given)
        private_folder.make_private(root, namespace)
        return cls(root, namespace)

    @classmethod
    @door
    def shared(
        cls,
        path: str | os.PathLike[str] | None = None,
        namespace: str = "default",
        *,
        group: str | int | None = None,
    ) -> Catalog:
        """Create a namespace on a local disk that only a group of users can read and write.

        ``group`` is one of your groups; None is your primary one. The group may read and evict all
        entries. Descriptions of entries contain keyed digests, which only the group can compare
        with those of other pipelines. Otherwise as ``private``: call it before the first run;
        ``path`` and errors are the same. Also raise CacheError if there is no such group.
        """
        from dml.cache.eviction import catalogue
        from dml.cache.store import private_folder

        given = _store_path(path)
        root = given if "://" in given else catalogue.store_in(given)
        private_folder.make_shared(root, namespace, group)
        return cls(root, namespace)

    def __repr__(self) -> str:
        return f"Catalog({self.path!r}, namespace={self.namespace!r})"

    @door
    def __iter__(self) -> Iterator[Entry]:
        """Iterate, in order of fingerprints, over every entry that has at least one stored part."""
        return self._kept.entries()

    @door
    def entry(self, fingerprint: str) -> Entry:
        """Return one entry: its parts, rows and bytes, the pipeline that made it, and its use."""
        whole = self._whole(fingerprint)
        found = self._kept.entry(whole)
        if found is None:
            raise self._absent(fingerprint)
        return found

    @door
    def lookup(self, ds: Dataset) -> Lookup:
        """Look up the rows of the ``cache()`` nearest to the end of a pipeline.

        For a pipeline without ``cache()``, look up its output rows. The cost does not grow with the
        number of entries: one folder is listed for the entry, and a few for other entries that
        could supply missing parts. Files of the pipeline are read if they have not been
        fingerprinted yet.
        """
        from dml.cache.eviction import quarantine

        fingerprint, of, _ = self._find_name(ds, "lookup")
        view = self._kept.view(fingerprint)
        parts, told = self._kept.counted(view)
        of = of if told is None else told
        whole = of is not None and parts >= of
        wrong = quarantine.words(self._kept.quarantined(view))
        return Lookup(fingerprint, parts, of, "" if whole else self._reuse(ds), wrong)

    @door
    def why_miss(self, ds: Dataset, fingerprint: str | None = None) -> Difference:
        """Return the first difference between a pipeline and an entry; false if there is none.

        Without ``fingerprint``, compare with the entry that shares the most operators with the
        pipeline, from the source on; this reads the descriptions of all entries. If the pipeline's
        own entry was quarantined, return the reason for the quarantine.
        """
        from dml.optimize.explain import fingerprint_text, name_differences

        name, of, story = self._find_name(ds, "why_miss")
        misses, wrong = name_differences, self._kept.quarantined(self._kept.view(name))
        if wrong is not None and (fingerprint is None or self._whole(fingerprint) == name):
            return misses.quarantined(wrong)
        if fingerprint is None:
            others = [each for each in self if each.about.get("operators")]
        else:
            others = [self.entry(fingerprint)]
        view = self._kept.view(name)
        if view.live and (fingerprint is None or others[0].fingerprint == name):
            parts, told = self._kept.counted(view)
            return misses.missing_parts(parts, of if told is None else told)
        told_there = [fingerprint_text.from_json(each.about) for each in others]
        from dml.cache.store import layout

        secret = self._kept.place.get(layout.SECRET)
        if secret is not None:
            from dml.cache.parts import records

            under = partial(records.keyed, secret=secret)
            story = fingerprint_text.keyed(story, under)
        found: Difference = misses.nearest(story, told_there) or misses.other_name()
        return dataclasses.replace(found, also=self._reuse(ds))

    @door
    def pin(self, fingerprint: str) -> None:
        """Protect an entry from eviction until it is unpinned, whatever the quota."""
        from dml.cache.eviction import pins

        pins.pin(self._kept.place, self._whole(fingerprint))

    @door
    def unpin(self, fingerprint: str) -> None:
        """Allow the eviction of an entry that was pinned."""
        from dml.cache.eviction import pins

        pins.unpin(self._kept.place, self._whole(fingerprint))

    @door
    def evict(self, fingerprint: str) -> bool:
        """Remove an entry; return False if it does not exist. Rows are recomputed when needed.

        This is safe while other processes read the entry. Raise CacheError if the entry is pinned.
        """
        from dml.cache.eviction import janitor, pins

        whole = self._whole(fingerprint)
        found = self._kept.entry(whole)
        if found is None:
            return False
        if found.pinned:
            how = f"dml cache pin {whole[:8]} --undo, or unpin({whole[:8]!r}),"
            raise pins.stays(whole, how, self._at)
        return janitor.remove(self._kept.place, whole, "evicted by hand")

    @door
    def gc(self, *, grace_s: float = 600.0) -> Swept:
        """Remove garbage: files of dead processes, and rows without a record.

        Rows that no entry refers to, and that were not written to for ``grace_s`` seconds, were
        left by a writer that died. This is safe while other processes read and write.
        """
        from dml.cache.eviction import janitor

        if "://" not in self.path:
            from dml.cache.store import store_speed

            store_speed.clear(self.path)
        return janitor.sweep(self._kept.place, ttl_s=grace_s, grace_s=grace_s)

    @door
    def verify(self, fingerprint: str | None = None) -> VerifiedEntry:
        """Read and check all stored bytes of one entry, or of all entries; remove damaged parts."""
        return self._kept.verify(None if fingerprint is None else self._whole(fingerprint))

    # ------------------------------------------------------------------------------------- inside

    def _find_name(self, ds: object, verb: str) -> tuple[str, int | None, FingerprintText]:
        """Return a pipeline's fingerprint for lookups, its number of parts, and its description.

        The number of parts is None for a stream, where it is not known in advance.
        """
        from dml.api.cache_contents import asked_of

        node, settings = _written(ds, "ds", verb)
        stations = wiring().optimized(node, settings)
        asked = asked_of(stations.plan, settings)
        below, name, of = asked or (stations.normalized, "", None)
        for each in below.walk():
            if each.calls is not None and each.calls.reason:
                raise each.calls.refusal().located(each.label())
        from dml.optimize import fingerprints
        from dml.optimize.explain import fingerprint_text

        names, telling = fingerprints, fingerprint_text
        name = name or names.stored_name(below, settings.seed)
        return name, of, telling.describe(below, stations.written, settings.seed, quick=True)

    def _reuse(self, ds: Dataset) -> str:
        """Describe the entries of other pipelines that a pipeline could reuse."""
        from dml.api.cache_contents import reused

        node, settings = _written(ds, "ds", "lookup")
        plan = wiring().optimized(node, settings).plan
        return reused(plan, settings, self.path, self.namespace)

    def _whole(self, prefix: str) -> str:
        """Return the fingerprint that begins with ``prefix``. Raise CacheError if not unique."""
        if len(prefix) < SHORTEST or not _is_hex(prefix):
            raise PlanError(
                f"{prefix!r} is not a fingerprint",
                at=self._at,
                why=f"it is hexadecimal, and {SHORTEST} letters of it are the least",
                try_="the first letters of a line of dml cache ls",
            )
        found = self._kept.begin_with(prefix)
        if prefix in found or len(prefix) >= 32:  # a whole one
            return prefix
        if len(found) != 1:
            raise self._absent(prefix, len(found))
        return found[0]

    @property
    def _at(self) -> str:
        return f"{self.path}, namespace {self.namespace}"

    def _absent(self, prefix: str, several: int = 0) -> CacheError:
        how = f"{several} entries begin so" if several else "no entry begins so"
        return CacheError(
            f"there is no one entry {prefix!r}",
            at=self._at,
            why=how,
            try_="dml cache ls shows what there is, with --root and --namespace of another place",
        )


def describe_pipeline(given: object, name: str, verb: str) -> FingerprintText:
    """Return the description of a pipeline. Raise PlanError if ``given`` is not a pipeline."""
    from dml.optimize.explain import fingerprint_text

    node, settings = _written(given, name, verb)
    stations = wiring().optimized(node, settings)
    found: FingerprintText = fingerprint_text.describe(
        stations.normalized, stations.written, settings.seed
    )
    return found


def _written(given: object, name: str, verb: str) -> tuple[Node, Settings]:
    """Return the node and the settings of ``given``. Raise PlanError if it is not a pipeline."""
    if not isinstance(given, Dataset):
        raise PlanError(
            f"{verb} needs a pipeline, got {name}={given!r}",
            why=f"it is of type {type(given).__name__}",
            try_=f"{verb}(dml.read_parquet(...).map(...))",
        )
    return given._node, given._settings  # noqa: SLF001 - a class of this package


def _store_path(path: object) -> str:
    """Return the path of a store: ``path``, or that of the user's store if ``path`` is None."""
    return _usual() if path is None else checks.place("path", path)


def _usual() -> str:
    """Return the path of the default store, in the user's cache folder."""
    from dml.api.run_storage import store_of

    return store_of(Settings()).root


def _is_hex(text: str) -> bool:
    return all(letter in "0123456789abcdef" for letter in text)
