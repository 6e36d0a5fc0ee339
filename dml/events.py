"""A run is recorded as events: frozen values, each written as one line of JSON.

Events contain names, counts and seconds, never a value of a row. Texts of operators may contain
literals and paths, which ``unsaid`` removes before events are stored. Figures of
:class:`OperatorTotals` and :class:`Waits` are cumulative within a run, so the latest event of a run
is complete and earlier ones may be lost. A line of a newer version of dml is read without error:
unknown fields stay in ``extra``, unknown kinds become :class:`Unknown`, and both are written back
as read.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

VERSION: Final = 1

Names = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events: the run that an event belongs to, and its time (s since 1970, UTC)."""

    kind: ClassVar[str] = "Event"

    run: str = ""
    at: float = 0.0
    version: int = VERSION
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """An iterator was created: its pipeline (one fingerprint per domain), its data and machine.

    Runs of one process have the same ``job``; ``capability`` is the relative speed of a core, if
    known. ``prefixes`` names the parts of the pipeline that others may share, source first, and for
    each the ordinal and kind of its last operator.
    """

    kind: ClassVar[str] = "RunStarted"

    job: str = ""
    fingerprints: Names = field(default_factory=dict)
    pipeline: str = ""
    epoch: int = 0
    resumed: bool = False
    options: Names = field(default_factory=dict)
    datasets: int | None = None
    host: str = ""
    host_class: str = ""
    cores: int | None = None
    capability: float | None = None
    versions: Names = field(default_factory=dict)
    prefixes: Names = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OperatorTotals(Event):
    """Totals of one operator in the run so far: sums over blocks, and over threads of ``worker``.

    ``seconds`` is time inside the operator, summed over threads; ``cpu_s`` is None where it was not
    measured. ``kept_elements`` and ``kept_bytes`` are the latest size of a cache; ``cache_hits``,
    ``cache_misses`` count blocks; cached rows were recomputed ``cache_checks`` times, and differed
    ``cache_wrong`` times; ``near_bytes`` were read from local copies, ``far_bytes`` from the store.
    ``skipped`` is the number of rows dropped because of errors; ``spared_bytes`` were not read,
    since a filter drops all their rows. ``lifted`` is "yes", "no: <why>", or "" without a function;
    ``medium`` is the storage of a source: "memory", "local" or "remote" (object stores).
    """

    kind: ClassVar[str] = "OperatorTotals"

    ordinal: int = 0
    operator: str = ""
    name: str = ""
    worker: str = ""
    fingerprints: Names = field(default_factory=dict)
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float = 0.0
    cpu_s: float | None = None
    blocks: int = 0
    python_calls: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_checks: int = 0
    cache_wrong: int = 0
    kept_elements: int = 0
    kept_bytes: int = 0
    near_bytes: int = 0
    far_bytes: int = 0
    skipped: int = 0
    spared_bytes: int = 0
    peak_bytes: int | None = None
    lifted: str = ""
    tier: str = ""
    medium: str = ""


@dataclass(frozen=True, kw_only=True)
class Waits(Event):
    """Seconds that the training loop and the workers waited because nothing was ready.

    ``variation`` is the squared coefficient of variation of the seconds that chunks took to make.
    """

    kind: ClassVar[str] = "Waits"

    consumer_s: float = 0.0
    worker_idle_s: float = 0.0
    memory_blocked_s: float = 0.0
    variation: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Warned(Event):
    """A warning that the user received; ``name`` identifies its kind."""

    kind: ClassVar[str] = "Warned"

    name: str = ""
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Verified(Event):
    """Number of samples recomputed by the written plan, and how many were ``differing``.

    ``scope`` says which operators were compared, and why not more; ``unverified`` says which
    samples were skipped, and why.
    """

    kind: ClassVar[str] = "Verified"

    verified: int = 0
    differing: int = 0
    scope: str = ""
    unverified: str = ""


@dataclass(frozen=True, kw_only=True)
class Scaled(Event):
    """Number of workers after ``batches`` batches, the number ``asked`` for, and the reason.

    Two figures are recent means: ``batch_time_s``, the seconds to get and process a batch, and
    ``result_queue_size``, the number of batches that were ready.
    """

    kind: ClassVar[str] = "Scaled"

    batches: int = 0
    workers: int = 0
    asked: int = 0
    reason: str = ""
    batch_time_s: float | None = None
    result_queue_size: float | None = None


# The numbers that a run tunes, as ``Tuned.number``.
SLICES: Final = "slices at once"
CHUNKS: Final = "chunks ahead"


@dataclass(frozen=True, kw_only=True)
class Tuned(Event):
    """After ``rows`` rows, a number that the run tunes changed from ``before`` to ``after``.

    ``number`` says which: the slices of ``stage`` that run at once, or the chunks that are made
    ahead. ``rows`` (of batched pipelines, for chunks: ``batches``) is 0 if the run started with
    ``after``. ``name`` identifies the number in all processes.
    """

    kind: ClassVar[str] = "Tuned"

    name: str = ""
    stage: str = ""
    before: int = 0
    after: int = 0
    rows: int = 0
    reason: str = ""
    number: str = SLICES
    batches: int = 0

    @property
    def text(self) -> str:
        """The change in words."""
        after = f" after {self.rows:,} row{'s' * (self.rows != 1)}" if self.rows else ""
        if self.batches:
            after = f" after {self.batches:,} batch{'es' * (self.batches != 1)}"
        change = f"{self.before} to {self.after} {self.number}{after}"
        return f"{self.stage or 'a stage'}: {change}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Progress(Event):
    """Progress of a run; the first kind of event to be dropped when events come too fast."""

    kind: ClassVar[str] = "Progress"

    rows: int = 0
    batches: int = 0
    bytes: int = 0
    seconds: float = 0.0
    of_rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """The iterator ended: "finished", "stopped" by its user, "failed" or "interrupted".

    ``rows`` and ``bytes`` were delivered; ``bytes_read`` came from the sources. ``cpu_s`` is the
    processor time of the pipeline, ``process_cpu_s`` that of the whole process in the same time;
    None means not measured. ``error_kind`` is the class of the error; its text is not stored, since
    it may quote values.
    """

    kind: ClassVar[str] = "RunFinished"

    status: str = "finished"
    rows: int = 0
    batches: int = 0
    bytes: int = 0
    bytes_read: int | None = None
    seconds: float = 0.0
    first_batch_s: float | None = None
    cpu_s: float | None = None
    process_cpu_s: float | None = None
    peak_bytes: int | None = None
    error_kind: str = ""


@dataclass(frozen=True, kw_only=True)
class Unknown(Event):
    """An event of a kind that is unknown to this version; ``fields`` are as they were read."""

    name: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)


def unsaid(event: Event) -> Event:
    """Return the event without texts that may contain literals or paths; operator names stay."""
    match event:
        case RunStarted():
            kinds = re.findall(r"^\s*(\w*)", event.pipeline, re.MULTILINE)
            return dataclasses.replace(event, pipeline="\n".join(kinds))
        case OperatorTotals():
            lifted = event.lifted.partition(":")[0]
            return dataclasses.replace(event, name=event.operator, lifted=lifted)
        case Warned():
            return dataclasses.replace(event, text="")
        case Tuned():
            return dataclasses.replace(event, stage="")
        case Verified():
            return dataclasses.replace(event, scope="", unverified="")
    return event


KINDS: Final[Mapping[str, type[Event]]] = {
    each.kind: each
    for each in (
        *(RunStarted, OperatorTotals, Waits, Warned, Verified),
        *(Scaled, Tuned, Progress, RunFinished),
    )
}


def to_json(event: Event) -> str:
    """Return one line of ASCII JSON, without a newline; NaN and infinity are written as null."""
    if isinstance(event, Unknown):
        own: dict[str, Any] = {"kind": event.name, **event.fields}
    else:
        own = {"kind": event.kind} | {name: getattr(event, name) for name in _FIELDS[event.kind]}
    line = {**event.extra, **own, "v": event.version, "run": event.run, "at": event.at}
    try:
        return json.dumps(line, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(line), allow_nan=False, separators=(",", ":"))


def from_json(line: str) -> Event:
    """Parse the event of one line; fields that are missing or of another type keep their defaults.

    Raises ValueError if the line is not a JSON object, which means that the file is damaged.
    """
    try:
        raw = json.loads(line)
    except RecursionError:
        raw = None
    if not isinstance(raw, dict):
        raise ValueError(f"an event is a JSON object, got {line[:60]!r}")
    name = raw.pop("kind", "")
    envelope = _take_fields(raw, {"v": "int", "run": "str", "at": "float"})
    common = {("version" if key == "v" else key): value for key, value in envelope.items()}
    known = KINDS.get(name) if isinstance(name, str) else None
    if known is None:
        return Unknown(name=str(name), fields=raw, **common)
    return known(**_take_fields(raw, _FIELDS[known.kind]), **common, extra=raw)


def _take_fields(raw: dict[str, Any], types: Mapping[str, str]) -> dict[str, Any]:
    """Remove the fields whose values fit ``types`` from ``raw``, and return them."""
    return {
        name: raw.pop(name)
        for name, annotation in types.items()
        if name in raw and _fits(raw[name], annotation)
    }


def _fits(value: object, annotation: str) -> bool:
    if value is None:
        return annotation.endswith("| None")
    return _TESTS[annotation.removesuffix(" | None")](value)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_TESTS: Final[Mapping[str, Callable[[object], bool]]] = {
    "bool": lambda value: isinstance(value, bool),
    "int": _is_int,
    "float": lambda value: _is_int(value) or (type(value) is float and math.isfinite(value)),
    "str": lambda value: isinstance(value, str),
    "Names": lambda value: isinstance(value, dict) and all(type(v) is str for v in value.values()),
}

_COMMON: Final = frozenset(each.name for each in dataclasses.fields(Event))
_FIELDS: Final[Mapping[str, Mapping[str, str]]] = {
    kind: {each.name: str(each.type) for each in dataclasses.fields(known)
           if each.name not in _COMMON}
    for kind, known in KINDS.items()
}  # fmt: skip


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


@dataclass(frozen=True, kw_only=True)
class Operator:
    """Facts about an operator that are known before it runs; ``ordinal`` is its key in a tally."""

    ordinal: int
    operator: str
    name: str = ""
    fingerprints: Names = field(default_factory=dict)
    lifted: str = ""
    tier: str = ""
    medium: str = ""


class _Cell:
    """The sums of one operator in one tally."""

    __slots__ = (
        "blocks", "bytes_in", "bytes_out", "cache_checks", "cache_hits", "cache_misses",
        "cache_wrong", "cpu_s", "far_bytes", "near_bytes", "python_calls", "rows_in", "rows_out",
        "seconds", "spared_bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.blocks = self.rows_in = self.rows_out = self.bytes_in = self.bytes_out = 0
        self.python_calls = self.cache_hits = self.cache_misses = self.cache_checks = 0
        self.cache_wrong = self.near_bytes = self.far_bytes = self.spared_bytes = 0
        self.seconds = self.cpu_s = 0.0


class Tally:
    """Sums per operator ordinal; each thread has its own tally, and :meth:`merge` adds them up.

    Counting a block takes 0.25 microseconds (tests/test_events.py). Only the owning thread may
    count. Any thread may read while the owner counts; it may see a part of a count.
    """

    __slots__ = ("_cells", "_unkept")

    def __init__(self) -> None:
        self._cells: dict[int, _Cell] = {}
        self._unkept: dict[int, str] = {}  # reasons by ordinal; "" where a part is cached

    def block(  # noqa: PLR0917 (keywords would cost half as much again, on every block)
        self,
        ordinal: int,
        rows_in: int,
        rows_out: int,
        bytes_in: int,
        bytes_out: int,
        seconds: float,
        cpu_s: float = 0.0,
    ) -> None:
        """Count one block that operator ``ordinal`` processed, and its rows, bytes and seconds."""
        try:
            cell = self._cells[ordinal]
        except KeyError:
            cell = self._cell(ordinal)
        cell.blocks += 1
        cell.rows_in += rows_in
        cell.rows_out += rows_out
        cell.bytes_in += bytes_in
        cell.bytes_out += bytes_out
        cell.seconds += seconds
        cell.cpu_s += cpu_s

    def calls(self, ordinal: int, count: int) -> None:
        """Count ``count`` calls of the Python function of operator ``ordinal``."""
        self._cell(ordinal).python_calls += count

    def tried(self, ordinal: int, bytes_in: int, spared: int, seconds: float, cpu_s: float) -> None:
        """Count one test of whether any row of a unit passes a filter: its cost and its saving.

        ``bytes_in`` bytes were read for the test; if no row passes, ``spared`` bytes are not read.
        """
        cell = self._cell(ordinal)
        cell.bytes_in, cell.spared_bytes = cell.bytes_in + bytes_in, cell.spared_bytes + spared
        cell.seconds, cell.cpu_s = cell.seconds + seconds, cell.cpu_s + cpu_s

    def lookups(self, ordinal: int, hits: int, misses: int, near: int = 0, far: int = 0) -> None:
        """Count cache hits and misses in blocks, and bytes read from local copies and the store."""
        cell = self._cell(ordinal)
        cell.cache_hits, cell.cache_misses = cell.cache_hits + hits, cell.cache_misses + misses
        cell.near_bytes, cell.far_bytes = cell.near_bytes + near, cell.far_bytes + far

    def checked(self, ordinal: int, wrong: int) -> None:
        """Count one recomputation of cached rows, with ``wrong`` 1 if they differed, else 0."""
        cell = self._cell(ordinal)
        cell.cache_checks, cell.cache_wrong = cell.cache_checks + 1, cell.cache_wrong + wrong

    def stored(self, ordinal: int, wrong: str = "") -> None:
        """Record that a cache has stored a part, or with ``wrong`` the reason why it could not.

        Only the first reason counts, and none after the cache has stored a part.
        """
        if not wrong or ordinal not in self._unkept:
            self._unkept[ordinal] = wrong

    def unkept(self, ordinal: int) -> str:
        """Return why a cache could store no part; "" if it stored one, or did not try."""
        return self._unkept.get(ordinal, "")

    def merge(self, *others: Tally) -> Tally:
        """Return a new tally with the sums of this tally and ``others``, which stay unchanged."""
        total = Tally()
        for tally in (self, *others):
            total.add(tally)
        return total

    def add(self, other: Tally) -> None:
        """Add the sums of ``other`` to this tally."""
        for ordinal, cell in other.cells():
            mine = self._cell(ordinal)
            for name in _Cell.__slots__:
                setattr(mine, name, getattr(mine, name) + getattr(cell, name))
        for ordinal, wrong in list(other._unkept.items()):
            self.stored(ordinal, wrong)

    def totals(
        self, operators: Iterable[Operator], *, run: str, at: float, cpu_measured: bool = True
    ) -> tuple[OperatorTotals, ...]:
        """Return one event per operator, in order; an operator without blocks has zeros."""
        events, none = [], _Cell()
        for each in operators:
            cell = self._cells.get(each.ordinal, none)
            sums = {name: getattr(cell, name) for name in _Cell.__slots__}
            sums["cpu_s"] = sums["cpu_s"] if cpu_measured else None
            events.append(OperatorTotals(run=run, at=at, **dataclasses.asdict(each), **sums))
        return tuple(events)

    def cells(self) -> list[tuple[int, _Cell]]:
        """Return a list of (ordinal, sums); it is a copy, as the owner may be adding operators."""
        return list(self._cells.items())

    def _cell(self, ordinal: int) -> _Cell:
        return self._cells.setdefault(ordinal, _Cell())
