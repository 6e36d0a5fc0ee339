"""Learned costs are stored beside the events that they were derived from.

``v1/learned/<class of machine>.json`` is one bounded file, so that planning reads no events however
many there are. The file is replaced whole. Of two concurrent writers, one may lose its update: the
next run adds it again, and only estimates depend on it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dml.events import Event, OperatorTotals, RunFinished, RunStarted, Tuned
from dml.fleet.collector import LAYOUT, replacing
from dml.profile import CostKey, Learned, Profile, counted, work_s

FOLDER: Final = "learned"
BY_NAME: Final = ("ratios", "sizes", "counts", "blocks", "parallels")
MOST_FIGURES: Final = 2_000
"""Maximum number of entries of each kind: less than a megabyte."""
QUIET_S: Final = 5.0
MOST_RUNS: Final = 256
"""Maximum number of unfinished runs whose events are held."""
MOST_LOG: Final = 100.0
"""No figure differs from 1 by more than a factor of e to this: 10 ** 43."""
LEAST_WEIGHT: Final = 1e-12
MOST_WEIGHT: Final = 1e9
MOST_SHAPE: Final = 64
"""Blocks have fewer than 2 ** 64 rows, and rows fewer bytes."""
NEVER_S: Final = 1e12
AHEAD_S: Final = 86_400.0
"""Clocks differ by less; an entry with a later time is invalid, and would never age."""
RATES: Final = ("finished", "stopped")


def learned(events: Iterable[Event], host_class: str) -> Profile:
    """Return the profile learned from one run's ``events``; empty if it failed or has not ended.

    Each operator is one observation, however many workers and blocks it had. Row counts are learned
    only from runs that finished.
    """
    kept = list(events)
    ended = [each for each in kept if isinstance(each, RunFinished)]
    if not ended or ended[-1].status not in RATES:
        return Profile()
    started = [each for each in kept if isinstance(each, RunStarted)]
    pipeline = started[-1].fingerprints.get("fleet", "") if started else ""
    operators = [each for each in kept if isinstance(each, OperatorTotals)]
    # row counts are not valid if a run was resumed, or had cache hits
    part = any(each.resumed for each in started) or any(each.cache_hits for each in operators)
    whole = ended[-1].status == "finished" and not part
    found = Profile()
    for totals in _together(operators):
        found = found.merge(_of_operator(totals, host_class, pipeline if whole else ""))
    last = {each.name: each for each in kept if isinstance(each, Tuned) and each.after > 0}
    parallels = {name: Learned.once(each.after, each.at) for name, each in last.items()}
    return found.merge(Profile(parallels=parallels))


def _together(events: Iterable[OperatorTotals]) -> list[dict[str, Any]]:
    """Return the figures of each operator, summed over workers."""
    sums: dict[int, dict[str, Any]] = {}
    for event in events:
        mine = sums.setdefault(
            event.ordinal, {"ordinal": event.ordinal, "names": event.fingerprints, "at": event.at}
        )
        mine["work_s"] = mine.get("work_s", 0.0) + work_s(event)
        for name in ("rows_in", "rows_out", "bytes_in", "bytes_out", "blocks"):
            mine[name] = mine.get(name, 0) + getattr(event, name)
    return list(sums.values())


def _of_operator(totals: Mapping[str, Any], host_class: str, pipeline: str) -> Profile:
    rows_in, rows_out, at = totals["rows_in"], totals["rows_out"], totals["at"]
    reads = totals["ordinal"] == 0 or not rows_in
    rows = rows_out if reads else rows_in
    nbytes = totals["bytes_out"] if reads else totals["bytes_in"]
    work, flow = totals["names"].get("cost", ""), totals["names"].get("fleet", "")
    costs, ratios, sizes, counts, blocks = {}, {}, {}, {}, {}
    per_block = rows / max(1, totals["blocks"])
    if flow and rows > 0:
        blocks[flow] = Learned.once(per_block, at)
    if work and rows > 0 and 0 < totals["work_s"] < math.inf:
        key = CostKey.of(work, host_class, per_block, nbytes / rows)
        costs[key] = Learned.once(totals["work_s"] / rows, at)
    if flow and rows_in > 0:
        ratios[flow] = Learned.once(max(rows_out, 0.5) / rows_in, at)
        if kept := totals["names"].get("kept", ""):
            ratios[kept] = ratios[flow]
    if flow and rows_out > 0 and totals["bytes_out"] > 0:
        sizes[flow] = Learned.once(totals["bytes_out"] / rows_out, at)
        if rows_name := totals["names"].get("rows", ""):
            sizes[rows_name] = sizes[flow]
    if pipeline:
        counts[counted(pipeline, totals["ordinal"])] = Learned.once(max(rows_out, 0.5), at)
    return Profile(costs, ratios, sizes, counts, blocks)


class Learner:
    """Learns from the events that a collector publishes, and returns the current profile.

    Only the collector's thread calls ``take``; any thread may call ``profile``. The only exception
    raised is an OSError of ``keep``, for which the collector warns once.
    """

    def __init__(self, root: Path, host_class: str, clock: Callable[[], float] = time.time) -> None:
        self.path = root / LAYOUT / FOLDER / f"{host_class}.json"
        self.host_class, self._clock = host_class, clock
        self._unfinished: dict[str, list[Event]] = {}
        self._fresh = Profile()
        self._read: tuple[object, Profile] = (None, Profile())
        self._both: tuple[Profile, Profile, Profile] | None = None
        self._kept_at = -math.inf

    def take(self, events: Sequence[Event], closing: bool) -> None:  # noqa: FBT001 (a hook)
        """Learn from runs that ended; save at most every ``QUIET_S`` s, and when ``closing``."""
        for event in events:
            self._sort(event)
        if self._fresh != Profile() and (closing or self._clock() - self._kept_at >= QUIET_S):
            self.keep()

    def _sort(self, event: Event) -> None:
        if not isinstance(event, RunStarted | OperatorTotals | Tuned | RunFinished):
            return
        self._unfinished.setdefault(event.run, []).append(event)
        if isinstance(event, RunFinished):
            found = learned(self._unfinished.pop(event.run), self.host_class)
            self._fresh = self._fresh.merge(found).bounded(MOST_FIGURES, self._clock())
        elif len(self._unfinished) > MOST_RUNS:
            del self._unfinished[next(iter(self._unfinished))]

    def keep(self) -> None:
        """Merge the results learned since the last save into the file, atomically."""
        now = self._kept_at = self._clock()
        whole = self._load().merge(self._fresh).bounded(MOST_FIGURES, now)
        with replacing(self.path.parents[2], self.path) as file:
            file.write(to_text(whole))
        self._read, self._fresh = (_signature(self.path), whole), Profile()

    def profile(self) -> Profile:
        """Return the profile in the file, merged with what this process has not saved yet."""
        known, fresh, both = self._load(), self._fresh, self._both
        if both is None or both[0] is not known or both[1] is not fresh:
            both = self._both = (known, fresh, known.merge(fresh))
        return both[2]

    def _load(self) -> Profile:
        """Return the profile in the file; empty if the file is missing or damaged."""
        now = _signature(self.path)
        before, known = self._read
        if now != before:
            try:
                text = self.path.read_text(encoding="ascii")
            except (OSError, UnicodeError):
                text = ""
            known = of_text(text, self._clock() + AHEAD_S)
            self._read = (now, known)
        return known


def _signature(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def to_text(profile: Profile) -> str:
    """Return the profile as JSON text, which ``of_text`` reads."""
    parts = {
        "costs": [[*key, *each] for key, each in profile.costs.items()],
        **{
            kind: [[name, *each] for name, each in getattr(profile, kind).items()]
            for kind in BY_NAME
        },
    }
    return json.dumps(parts, separators=(",", ":"))


def of_text(text: str, until: float = NEVER_S) -> Profile:
    """Return the profile in a JSON text, without entries damaged or later than ``until``."""
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        return Profile()
    if not isinstance(parts, dict):
        return Profile()
    shaped = _entries(parts.get("costs"), (str, str, int, int), until)
    sized = (pair for pair in shaped if all(0 <= log2 <= MOST_SHAPE for log2 in pair[0][2:]))
    costs = {CostKey(*key): each for key, each in sized}
    named: dict[str, Any] = {
        kind: {key[0]: each for key, each in _entries(parts.get(kind), (str,), until)}
        for kind in BY_NAME
    }
    return Profile(costs, **named)


def _entries(
    rows: object, types: tuple[type, ...], until: float
) -> Iterator[tuple[tuple[Any, ...], Learned]]:
    """Yield keys of ``types`` with their ``Learned`` figures; ignore malformed entries.

    Figures are numbers within the limits of real runs; NaN is not.
    """
    for row in rows if isinstance(rows, list) else ():
        try:
            *key, weight, mean, spread, at = row
            if (
                LEAST_WEIGHT <= weight <= MOST_WEIGHT
                and -MOST_LOG <= mean <= MOST_LOG
                and 0 <= spread <= MOST_LOG**2 * MOST_WEIGHT
                and 0 <= at <= until
                and tuple(map(type, key)) == types
            ):
                yield tuple(key), Learned(weight, mean, spread, at)
        except (TypeError, ValueError):  # too few parts, or figures that are no numbers
            continue
