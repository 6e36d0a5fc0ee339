"""This file is the door to what is kept beyond a process: what is there, and why it is not."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from dml import checks
from dml.dataset import Dataset
from dml.errors import CacheError, PlanError
from dml.expr.doors import door
from dml.results import executing, wiring
from dml.settings import Settings, parse_bytes

if TYPE_CHECKING:
    from dml.exec.store.catalogue import Catalogue, Entry, Verified
    from dml.exec.store.janitor import Swept
    from dml.expr.node import Node
    from dml.optimize.misses import Difference
    from dml.optimize.told import Told
    from dml.placing import WorthKeeping

SHORTEST = 4  # letters of a fingerprint that may stand for it


@door
def why_miss(a: Dataset, b: Dataset) -> Difference:
    """What differs first between two pipelines, source first: why one does not find the other's.

    ``print`` it for people: what differs, in which operators and lines, both values, what to try.
    Its fields are for programs: ``kind`` ("constant", "code", "content", "order" ...), ``path`` (of
    what: a file, or a value by the way from your function to it), ``here``, ``there``. It is false
    if both have one fingerprint. Reads files as ``fingerprint()`` does, and computes nothing.
    ``Catalog.why_miss`` compares with what a store keeps.

    >>> import dml
    >>> data = dml.range(10)
    >>> print(dml.why_miss(data.take(3), data.take(4)).what)
    the option n= differs
    """
    here, there = told(a, "a", "why_miss"), told(b, "b", "why_miss")
    found: Difference = _comparing("misses").first_difference(here, there)
    return found


@door
def worth_keeping(*pipelines: Dataset, room: int | str | None = None) -> WorthKeeping:
    """What is worth keeping of several pipelines, in a store with ``room`` for so many bytes.

    Their ``autocache()`` places are merged where what is below is the same. Of all ways to keep
    them, each whole or in part, this is the one after which all the epochs to come of all the
    pipelines take least together; ``print`` it for people. It rests on what runs of them in this
    process, or telemetry, have shown; it computes and keeps nothing. None is room for all.

    PlanError for what is no pipeline, or no size.
    """
    jobs = [_written(each, f"number {n}", "worth_keeping") for n, each in enumerate(pipelines)]
    made: WorthKeeping = importlib.import_module("dml.placing").worth_keeping(
        [(node, settings, 0) for node, settings in jobs],
        None if room is None else parse_bytes(room, "room"),
    )
    return made


class Lookup(NamedTuple):
    """Whether a pipeline finds its rows: ``parts`` of its entry are there, ``of`` how many.

    ``reuse`` says what it would take of the entries of others for the parts that are not,
    ``quarantined`` why nobody reads the entry, if that is so.
    """

    fingerprint: str
    parts: int
    of: int | None
    reuse: str = ""
    quarantined: str = ""

    @property
    def state(self) -> str:
        """One of "hit": all parts are there, "partial": some are, "miss": none is."""
        if not self.parts:
            return "miss"
        return "hit" if self.of is not None and self.parts >= self.of else "partial"

    def __str__(self) -> str:
        count = f"{self.parts:,} of {'?' if self.of is None else format(self.of, ',')} parts"
        said = f"quarantined: {self.quarantined}" if self.quarantined else ""
        told = "; ".join(filter(None, (count, said, self.reuse)))
        return f"{self.state}  {self.fingerprint}  {told}"


class Catalog:
    """What one namespace of a store keeps: entries, by the fingerprint of what they hold.

    ``path`` is the folder or ``s3://`` URL of a snapshot, of a store, or a ``cache_dir``, in which
    the store is ``store``; without it, that of the user's cache folder. ``catalog.path`` is where
    it looks. Looking writes nothing there. CacheError if there is no store, or it cannot be read;
    PlanError for what is no path, no name of a namespace, and no fingerprint.

    A fingerprint may be given as its first letters, 4 or more, where one entry alone begins so.
    """

    @door
    def __init__(
        self, path: str | os.PathLike[str] | None = None, namespace: str = "default"
    ) -> None:
        self.path: str = _stored("catalogue").store_in(_given(path))
        self.namespace = namespace
        place = _stored("catalogue").place_at(self.path, namespace)
        self._kept: Catalogue = _stored("catalogue").Catalogue(place)

    @classmethod
    @door
    def private(
        cls, path: str | os.PathLike[str] | None = None, namespace: str = "default"
    ) -> Catalog:
        """Make a namespace, on a disk, that no other user of the machine can look into.

        Its folder is made for you alone, whatever the umask, and is from then on: call this before
        the first run that uses it, of a ``cache_dir`` with ``<cache_dir>/store``. CacheError if the
        folder is another's, or in a bucket.
        """
        given = _given(path)
        root = given if "://" in given else _stored("catalogue").store_in(given)
        _stored("private").make_private(root, namespace)
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
        """Make a namespace, on a disk, that the users of a group share, and nobody else can read.

        ``group`` is one of yours, None your usual one. What is kept there is for the group to read,
        and to end; what entries say of themselves has digests that only the group can compare with
        others. Call this before the first run that uses it, of a ``cache_dir`` with
        ``<cache_dir>/store``. CacheError if the folder is another's, or in a bucket, and if there
        is no such group.
        """
        given = _given(path)
        root = given if "://" in given else _stored("catalogue").store_in(given)
        _stored("private").make_shared(root, namespace, group)
        return cls(root, namespace)

    def __repr__(self) -> str:
        return f"Catalog({self.path!r}, namespace={self.namespace!r})"

    @door
    def __iter__(self) -> Iterator[Entry]:
        """Every entry of which a part is there, by fingerprint."""
        return self._kept.entries()

    @door
    def entry(self, fingerprint: str) -> Entry:
        """What is known of one entry: parts, rows, bytes, what made it, how it is used."""
        whole = self._whole(fingerprint)
        found = self._kept.entry(whole)
        if found is None:
            raise self._absent(fingerprint)
        return found

    @door
    def lookup(self, ds: Dataset) -> Lookup:
        """Whether a pipeline finds its rows here: those of the ``cache()`` nearest to its end.

        Of a pipeline without one, its own. One folder is listed, however much the store keeps, and
        a few for what others have of what is lacking; files that the pipeline reads are read if
        nobody has looked at their content yet.
        """
        fingerprint, _ = self._asked(ds, "lookup")
        view = self._kept.view(fingerprint)
        parts, of = self._kept.counted(view)
        whole = of is not None and parts >= of
        wrong = _stored("quarantine").words(self._kept.quarantined(view))
        return Lookup(fingerprint, parts, of, "" if whole else self._reuse(ds), wrong)

    @door
    def why_miss(self, ds: Dataset, fingerprint: str | None = None) -> Difference:
        """What differs first from what an entry keeps; false if that is what the pipeline asks for.

        Without ``fingerprint``, from the entry that has most operators in common with it, source
        first: what every entry says of itself is read for that. Where its own was quarantined, what
        was wrong with it.
        """
        name, story = self._asked(ds, "why_miss")
        misses, wrong = _comparing("misses"), self._kept.quarantined(self._kept.view(name))
        if wrong is not None and (fingerprint is None or self._whole(fingerprint) == name):
            return misses.quarantined(wrong)  # type: ignore[no-any-return]
        if fingerprint is None:
            others = [each for each in self if each.about.get("operators")]
        else:
            others = [self.entry(fingerprint)]
        view = self._kept.view(name)
        if view.live and (fingerprint is None or others[0].fingerprint == name):
            return misses.found(*self._kept.counted(view))  # type: ignore[no-any-return]
        told_there = [_comparing("told").read_told(each.about) for each in others]
        secret = self._kept.place.get(_stored("layout").SECRET)
        if secret is not None:
            under = partial(_stored("records").keyed, secret=secret)
            story = _comparing("told").keyed(story, under)
        found: Difference = misses.nearest(story, told_there) or misses.other_name()
        return dataclasses.replace(found, also=self._reuse(ds))

    @door
    def pin(self, fingerprint: str) -> None:
        """Nobody evicts an entry until it is unpinned, whatever the quota."""
        _stored("pins").pin(self._kept.place, self._whole(fingerprint))

    @door
    def unpin(self, fingerprint: str) -> None:
        """What ``pin`` did is undone."""
        _stored("pins").unpin(self._kept.place, self._whole(fingerprint))

    @door
    def evict(self, fingerprint: str) -> bool:
        """End an entry: its rows are gone, and will be made again by who asks; False if it was not.

        Safe beside who reads it. CacheError for an entry that is pinned.
        """
        whole = self._whole(fingerprint)
        found = self._kept.entry(whole)
        if found is None:
            return False
        if found.pinned:
            how = f"dml cache pin {whole[:8]} --undo, or unpin({whole[:8]!r}),"
            raise _stored("pins").stays(whole, how, self._at)
        done: bool = _stored("janitor").remove(self._kept.place, whole, "evicted by hand")
        return done

    @door
    def gc(self, *, grace_s: float = 600.0) -> Swept:
        """Clear away what nobody will look at again: files of the dead, and rows without a record.

        Rows that nobody wrote for ``grace_s``, which no entry names, are those of a writer that
        died. Safe beside readers and writers.
        """
        if "://" not in self.path:
            executing("probing").clear(self.path)
        done: Swept = _stored("janitor").sweep(self._kept.place, ttl_s=grace_s, grace_s=grace_s)
        return done

    @door
    def verify(self, fingerprint: str | None = None) -> Verified:
        """Read all bytes that are kept, of one entry or of all; what is damaged is cleared away."""
        return self._kept.verify(None if fingerprint is None else self._whole(fingerprint))

    # ------------------------------------------------------------------------------------- inside

    def _asked(self, ds: object, verb: str) -> tuple[str, Told]:
        """The fingerprint that a pipeline asks a store for, and what it is made of."""
        node, settings = _written(ds, "ds", verb)
        stations = wiring().optimized(node, settings)
        asked = _keeping().asked_of(stations.plan, settings)
        below, name = asked or (stations.normalized, "")
        for each in below.walk():
            if each.calls is not None and each.calls.reason:
                raise each.calls.refusal().located(each.label())
        names, telling = _comparing("names"), _comparing("told")
        name = name or names.stored_name(below, settings.seed)
        return name, telling.told(below, stations.written, settings.seed, quick=True)

    def _reuse(self, ds: Dataset) -> str:
        """What a pipeline would take of the entries of others."""
        node, settings = _written(ds, "ds", "lookup")
        plan = wiring().optimized(node, settings).plan
        told: str = _keeping().reused(plan, settings, self.path, self.namespace)
        return told

    def _whole(self, prefix: str) -> str:
        """The fingerprint that begins so."""
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


def told(given: object, name: str, verb: str) -> Told:
    """What a pipeline is made of; PlanError for anything else."""
    node, settings = _written(given, name, verb)
    stations = wiring().optimized(node, settings)
    found: Told = _comparing("told").told(stations.normalized, stations.written, settings.seed)
    return found


def _written(given: object, name: str, verb: str) -> tuple[Node, Settings]:
    """A pipeline as it was written, and its options."""
    if not isinstance(given, Dataset):
        raise PlanError(
            f"{verb} needs a pipeline, got {name}={given!r}",
            why=f"it is of type {type(given).__name__}",
            try_=f"{verb}(dml.read_parquet(...).map(...))",
        )
    return given._node, given._settings  # noqa: SLF001 - its own kind


def _given(path: object) -> str:
    """What was given as the place of a store, or that of the user."""
    return _usual() if path is None else checks.place("path", path)


def _usual() -> str:
    """The store in the user's cache folder."""
    root: str = _keeping().store_of(Settings()).root
    return root


def _keeping() -> ModuleType:
    return importlib.import_module("dml.keeping")


def _is_hex(text: str) -> bool:
    return all(letter in "0123456789abcdef" for letter in text)


def _comparing(name: str) -> Any:
    """A file of what compares pipelines, loaded by who asks for it."""
    return importlib.import_module(f"dml.optimize.{name}")


def _stored(name: str) -> Any:
    return executing(f"store.{name}")
