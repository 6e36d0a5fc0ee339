"""Define the names of files in the store, and the state of an entry that names alone tell.

An entry lies in ``e/<fp2>/<fp>/``, where ``TOMB.<n>`` ends its incarnation ``n``. A part of an
entry is ``<n>/part.<i>.<version>.json``, where ``tomb.<i>.<version>`` ends that version. Both
numbers only increase: a writer that slept through an eviction commits a record that is never read.
Leases, which are only advice, are ``lease.<i>.<version>.<generation>``. ``blobs/`` holds rows under
names that are never used twice. ``SECRET`` of a namespace that a group shares keys the digests in
entry descriptions. An entry in which ``QUARANTINE.json`` lies is neither read nor filled, until it
is removed by hand.
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Iterable, Mapping

from dml import checks
from dml.errors import PlanError

FORMAT = "v1"  # version of all names below it; other folders are ignored
BLOBS, ENTRIES, PINS, USES = "blobs", "e", "pins", "uses"
QUARANTINE, SECRET = "QUARANTINE.json", "SECRET"
_NUMBER = r"(0|[1-9][0-9]{0,17})"
_TOMB = re.compile(rf"TOMB\.{_NUMBER}")
_PART = re.compile(rf"{_NUMBER}/(part|tomb)\.{_NUMBER}\.{_NUMBER}(\.json)?")
_LEASE = re.compile(rf"{_NUMBER}/lease\.{_NUMBER}\.{_NUMBER}\.{_NUMBER}")


def namespace(name: str) -> str:
    """Return the folder of a namespace; raise PlanError if the name is invalid."""
    checks.namespace(name)
    return f"{FORMAT}/{name}"


def entry(fingerprint: str) -> str:
    """Return the folder of the entry of ``fingerprint``; raise PlanError for other names."""
    if not re.fullmatch(r"[0-9a-f]{8,128}", fingerprint):
        raise PlanError(
            f"{fingerprint!r} is not a fingerprint",
            why="it is the name of folders: 8 to 128 hexadecimal digits",
            try_="what Dataset.fingerprint() gives",
        )
    return f"{ENTRIES}/{fingerprint[:2]}/{fingerprint}"


def fresh_blob() -> str:
    """Return a new unique name for a blob."""
    return f"{BLOBS}/{uuid.uuid4().hex}.arrow"


def is_blob(name: str) -> bool:
    """Return True if a name is the name of a blob, and not of another file."""
    return re.fullmatch(rf"{BLOBS}/[0-9a-f]{{32}}\.arrow", name) is not None


@dataclasses.dataclass(frozen=True)
class EntryView:
    """The state of an entry by the names below it: its incarnation and its parts' versions."""

    folder: str
    incarnation: int
    live: Mapping[int, int]
    """The version of each stored part."""
    ended: Mapping[int, int]
    """The highest version of each part that has ended."""
    leased: Mapping[tuple[int, int], int]
    """The highest generation of a lease, by part and version."""
    quarantined: bool = False
    """Whether its rows were found to differ from the computed rows."""

    def version(self, part: int) -> int:
        """Return the current version of a part, or the version that a new part would have."""
        return self.ended.get(part, -1) + 1

    def record(self, part: int) -> str:
        """Return the name of a part's record."""
        return f"{self.folder}/{self.incarnation}/part.{part}.{self.version(part)}.json"

    def tomb(self, part: int) -> str:
        """Return the name of the file that ends the current version of a part."""
        return f"{self.folder}/{self.incarnation}/tomb.{part}.{self.version(part)}"

    def lease(self, part: int, generation: int) -> str:
        """Return the name of a lease on the current version of a part."""
        version = self.version(part)
        return f"{self.folder}/{self.incarnation}/lease.{part}.{version}.{generation}"

    @property
    def end(self) -> str:
        """The name of the file that ends this incarnation of the entry, with all its parts."""
        return f"{self.folder}/TOMB.{self.incarnation}"


def viewed(folder: str, names: Iterable[str]) -> EntryView:
    """Return the view of an entry by the ``names`` below it; unknown names are ignored."""
    names = list(names)
    tombs = [int(m[1]) for m in map(_TOMB.fullmatch, names) if m]
    now = max(tombs, default=-1) + 1
    parts: set[tuple[int, int]] = set()
    ended: dict[int, int] = {}
    for match in filter(None, map(_PART.fullmatch, names)):
        part, version = int(match[3]), int(match[4])
        if int(match[1]) != now:
            continue
        if match[2] == "tomb":
            ended[part] = max(ended.get(part, -1), version)
        elif match[5]:
            parts.add((part, version))
    live = {part: version for part, version in parts if version == ended.get(part, -1) + 1}
    leased: dict[tuple[int, int], int] = {}
    for match in filter(None, map(_LEASE.fullmatch, names)):
        if int(match[1]) == now:
            key = int(match[2]), int(match[3])
            leased[key] = max(leased.get(key, -1), int(match[4]))
    return EntryView(folder, now, live, ended, leased, QUARANTINE in names)


def dead(view: EntryView, names: Iterable[str]) -> list[str]:
    """Return those ``names`` below an entry whose files are obsolete; tombs are not."""
    gone = []
    for name in names:
        number, _, rest = name.partition("/")
        if not rest or not number.isdigit() or int(number) > view.incarnation:
            continue
        if int(number) < view.incarnation or _passed(view, name):
            gone.append(name)
    return gone


def _passed(view: EntryView, name: str) -> bool:
    """Return True for a record of an ended version, or a lease on an ended or committed one."""
    part, lease = _PART.fullmatch(name), _LEASE.fullmatch(name)
    if part:
        return part[2] == "part" and int(part[4]) <= view.ended.get(int(part[3]), -1)
    if lease:
        number, version = int(lease[2]), int(lease[3])
        return version < view.version(number) or view.live.get(number) == version
    return False
