"""This file computes some stored rows again, before an entry is used: a name cannot see everything.

Of the first use of an entry in a process, and of about one in 64 from then on, some rows of one
part are made anew and compared with those that are stored, bit by bit. Where they differ the entry
is quarantined: nobody reads it any more, and its rows are computed.
"""

from __future__ import annotations

import dataclasses
import platform
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from dml.errors import DmlError, InternalError, MemoryContractError, QuarantineWarning, SourceError
from dml.events import Tally
from dml.exec.ids_beside import FREE
from dml.exec.losses import Noted
from dml.exec.steps import Steps
from dml.exec.verify.compare import first_odd, part
from dml.expr.block import Block, concat
from dml.expr.calls import NotConstructedError
from dml.expr.doors import warn
from dml.expr.facts import Rows
from dml.expr.fingerprint import digest
from dml.expr.flow import WHOLE
from dml.expr.node import Node

if TYPE_CHECKING:
    from dml.exec.store.parts import PartStore
    from dml.exec.stored import Entry, Running
    from dml.exec.stored_parts import Found
    from dml.expr.sources.source import Source, Unit

ONE_OF = 64  # uses of an entry after the first
MOST_ROWS = 256  # of the source, in one check
BUDGET_S = 0.015  # for rows; the first of them is made whatever it takes
PIECE_BYTES = 1 << 20  # of rows that are made at a time, but for one
ATOM_S = 1.0  # an atom that must be seen whole, and took longer, is not made again
WAIT_S = 10.0  # for so long other threads wait for a check before they use the entry
MOST_ENTRIES = 1 << 12  # that a process remembers to have used
PROCESS = uuid.uuid4().hex
# What says something of the machine, and nothing of a row.
OUTER = (OSError, MemoryError, ImportError, NotConstructedError)
OURS = (SourceError, MemoryContractError, InternalError)


# ------------------------------------------------------------------------------- what is looked at


def due(use: int, draw: int, *, known: bool = False) -> bool:
    """Whether use number ``use`` is checked; ``known`` says that somebody else did the first."""
    return (use == 0 and not known) or draw % ONE_OF == 0


def part_of(draw: int, parts: int) -> int:
    """The part that is looked at, of so many."""
    return (draw >> 8) % max(1, parts)


def grain_of(nodes: Sequence[Node]) -> int:
    """Rows of an atom that steps must see together, or a multiple of them; WHOLE for all."""
    gathering = [number for number, node in enumerate(nodes) if node.by_atom]
    if not gathering:
        return 1
    size: int | None = getattr(nodes[gathering[0]], "batch_size", None)
    whole = any(n.rows not in (Rows.SAME, Rows.STORED) for n in nodes[: gathering[0]])
    return WHOLE if whole or size is None or len(gathering) > 1 else size


def rows_of(draw: int, rows: int, grain: int, each_s: float) -> range:
    """Which of an atom's ``rows`` are made again, where one took ``each_s``; at least one.

    An atom that must be seen whole is made so, or not at all.
    """
    if grain >= rows:
        return range(rows if rows == 1 or each_s * rows <= ATOM_S else 0)
    fits = MOST_ROWS if each_s <= 0 else int(min(MOST_ROWS, BUDGET_S / each_s))
    count = max(1, min(fits, rows) // grain) * grain
    start = (draw >> 72) % ((rows - count) // grain + 1) * grain
    return range(start, start + count)


def more(count: int, grain: int, nbytes: int) -> int:
    """How many rows are made after ``count`` that took ``nbytes``: twice as many, if they fit."""
    fits = PIECE_BYTES * count // max(1, nbytes)
    return max(grain, min(2 * count, fits) // grain * grain)


# ---------------------------------------------------------------------------- which uses there were


class Uses:
    """How an entry was used in this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.count = self.checks = 0
        self.busy = False

    def next(self, fingerprint: str) -> tuple[int, int]:
        """The number of a use that begins, and what is drawn for it: no row depends on that."""
        number, self.count = self.count, self.count + 1
        return number, int.from_bytes(digest("canary", PROCESS, fingerprint, number), "little")


_USES: weakref.WeakKeyDictionary[PartStore, dict[str, Uses]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def uses_of(store: PartStore, fingerprint: str) -> Uses:
    """What this process knows of the uses of an entry."""
    with _LOCK:
        known = _USES.setdefault(store, {})
        if fingerprint not in known and len(known) >= MOST_ENTRIES:
            del known[next(iter(known))]
        return known.setdefault(fingerprint, Uses())


class Sample(NamedTuple):
    """What is compared: rows of ``unit`` as ``found``, and the ``steps`` that make them."""

    entry: Entry
    unit: Unit
    found: Found
    steps: Sequence[Steps]
    ordinal: int
    """Of the operator that gives them."""
    shown: Callable[[Block], Iterator[Block]] | None = None
    """What is handed out of a stored block, if that is not all of it as it is."""

    @property
    def nodes(self) -> list[Node]:
        """The operators that made them, source first."""
        return [node for steps in self.steps for node in steps.nodes]


def trusted(sample: Sample, run: Running, seen: set[str]) -> bool:
    """Whether an entry may be used; ``seen`` are those that the pass at hand has begun to use.

    It is looked at before the first of its rows goes on, in any of its parts.
    """
    entry = sample.entry
    name = entry.fingerprint
    if name not in seen and entry.checks and run.reading is not None:
        uses = uses_of(entry.store, name)
        if uses.lock.acquire(timeout=WAIT_S):
            try:
                if name not in seen and not uses.busy:
                    _begin(uses, sample, run)
                    seen.add(name)
            finally:
                uses.lock.release()
    return entry.store.trusts(name)


def _begin(uses: Uses, sample: Sample, run: Running) -> None:
    """A use begins, and is checked if its time has come; the lock is held."""
    store, name = sample.entry.store, sample.entry.fingerprint
    number, draw = uses.next(name)
    known = number == 0 and _spared(sample, run.reading.stage.source)
    if not due(number, draw, known=known) or not store.trusts(name):
        return
    uses.busy, uses.checks = True, uses.checks + 1
    try:
        if sample.shown is None and store.place.maps:  # as a whole, and where looking loads nothing
            sample = _elsewhere(sample, run, draw)
        odd = _difference(sample, run, draw)
        run.mine().checked(sample.ordinal, odd is not None)
        if odd is not None:
            _quarantine(sample, odd)
    finally:
        uses.busy = False


def _spared(sample: Sample, source: Source) -> bool:
    """Whether the first use in this process is not checked, as that asks others for bytes.

    Where they are few beside all of the source, one process of its kind checks.
    """
    if not source.far:
        return False
    entry = sample.entry
    return source.unit_count < ONE_OF or not entry.store.first(entry.fingerprint, _here())


def _here() -> str:
    """What code runs here, beside that of functions, which is in the name of an entry."""
    versions = platform.python_version(), np.__version__, pa.__version__
    return digest("here", platform.system(), platform.machine(), *versions).hex()


def _elsewhere(sample: Sample, run: Running, draw: int) -> Sample:
    """The same of any part of the entry, if that is there."""
    source = run.reading.stage.source
    index = part_of(draw, source.unit_count)
    if index == sample.unit.index:
        return sample
    unit = source.unit(index)
    found = sample.entry.found(unit, run.most_bytes)
    return sample if found is None else sample._replace(unit=unit, found=found)


# ------------------------------------------------------------------------------ what is made again


class Odd(NamedTuple):
    """What was found to be another: a column of a row, or the row; or what making it raised."""

    row: int
    what: str


class _Failing(Noted):
    """Rows are stored only where no error has cost any."""

    def note(self, ordinal: int, error: DmlError, rows: int) -> None:
        del ordinal, rows
        raise error


def _difference(sample: Sample, run: Running, draw: int) -> Odd | None:
    """Where rows that are made again differ; None where they do not, or cannot be made."""
    source = run.reading.stage.source
    try:
        odd = _first_odd(sample, run, draw)
    except DmlError as error:
        if isinstance(error, OURS) or any(isinstance(each, OUTER) for each in _causes(error)):
            return None
        if sample.shown is not None:  # it may be of a column that is not stored
            return None
        odd = Odd(-1, f"making it again ends in {_named(error)}")
    except OUTER:
        return None
    if odd is not None and source.changed_ns(sample.unit) >= sample.entry.named_ns:
        return None  # the source is not what it was when the run began
    return odd


def _first_odd(sample: Sample, run: Running, draw: int) -> Odd | None:
    given = next(run.reading.again(sample.unit), None)  # what reads it ends with that
    if given is None:
        return None
    kept = Kept(sample, whole=given.n)
    steps = _anew(sample)
    rows = sample.unit.rows or sum(count for count, *_ in sample.found.about["blocks"])
    each_s, grain = sample.found.cost_s / max(1, rows), grain_of(sample.nodes)
    chosen, until = rows_of(draw, given.n, grain, each_s), time.perf_counter() + BUDGET_S
    count = grain  # what the first take shows before the others are made
    while chosen:
        block = given.slice(chosen.start, min(chosen.start + count, chosen.stop))
        made = list(_run(steps, block))
        odd = kept.odd(block, made)
        if odd is not None or time.perf_counter() >= until:
            return odd
        chosen = chosen[block.n :]
        count = more(block.n, grain, sum(each.nbytes for each in made))
    return None


def _anew(sample: Sample) -> list[Steps]:
    """The steps, with the types that had settled when these rows were made."""
    nodes, types = sample.nodes, sample.found.schemas
    schemas = {nodes[place].digest.hex(): each for place, each in types.items()}
    return [
        Steps(each.nodes, dataclasses.replace(each.at, schemas=schemas), 1) for each in sample.steps
    ]


def _run(steps: Sequence[Steps], block: Block) -> Iterator[Block]:
    blocks, tally, noted = iter((block,)), Tally(), _Failing()
    for each in steps:
        blocks = each.run(blocks, lambda: tally, noted)
    return blocks


class Kept:
    """The stored rows of the first atom of a unit, which has ``whole`` rows in the source."""

    def __init__(self, sample: Sample, whole: int) -> None:
        blocks = next(sample.found.atoms(0), [])
        if sample.shown is not None:
            blocks = [made for block in blocks for made in sample.shown(block)]
        self.blocks = [block for block in blocks if block.n]
        self.high, self.low = _ids(self.blocks)
        self.free, self.whole = sample.found.form == FREE, whole

    def odd(self, given: Block, made: Sequence[Block]) -> Odd | None:
        """Where what was ``made`` of rows of the source is not what is stored of them."""
        made = [block for block in made if block.n]
        ids = _ids(made)
        place = self._place(given, ids)
        high, low = self.high[place], self.low[place]
        both = min(len(low), len(ids[1]))
        other = (high[:both] != ids[0][:both]) | (low[:both] != ids[1][:both])
        if other.any():
            return self._told(given, low[int(np.argmax(other))], "another row is made")
        if len(low) > both:
            return self._told(given, low[both], "the row is not made any more")
        if len(ids[1]) > both:
            return self._told(given, ids[1][both], "the row is not stored")
        stored = part(self.blocks, place.start, place.stop)
        return self._column(given, made, stored, low) if both else None

    def _place(self, given: Block, ids: tuple[np.ndarray, np.ndarray]) -> slice:
        """Where rows that were made of some of the source are stored, or should be."""
        if given.n == self.whole:
            return slice(0, len(self.low))
        high, low = given.ids.hi, given.ids.lo
        if not self.free and isinstance(high, int) and isinstance(low, int):
            inside = (self.high == high) & (self.low - np.uint64(low) < given.n)
            first = int(np.argmax(inside)) if inside.any() else 0
            return slice(first, first + int(inside.sum()))
        if not len(ids[0]):
            return slice(0, 0)
        there = (self.high == ids[0][0]) & (self.low == ids[1][0])
        first = int(np.argmax(there)) if there.any() else 0
        return slice(first, first + len(ids[0]))

    def _column(
        self, given: Block, made: Sequence[Block], stored: Sequence[Block], low: np.ndarray
    ) -> Odd | None:
        """The first column that differs, and the first row of it."""
        one, two = concat(made), concat(stored)
        for name, kind in two.schema.items():
            if one.schema.get(name) != kind:
                return self._told(given, low[0], f"column {name!r} is of another type, or gone")
            row = first_odd(one[name], two[name])
            if row is not None:
                return self._told(given, low[row], f"column {name!r} is another value")
        return None

    def _told(self, given: Block, low: Any, what: str) -> Odd:
        """By the number in the source of the row, or of the first that was made again."""
        return Odd(int(given.ids.low()[0]) if self.free else int(low), what)


def _ids(blocks: Sequence[Block]) -> tuple[np.ndarray, np.ndarray]:
    halves = [block.ids.arrays() for block in blocks] or [(np.zeros(0, np.uint64),) * 2]
    high, low = zip(*halves, strict=True)
    return np.concatenate(high), np.concatenate(low)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What led to an error, itself first."""
    found: BaseException | None = error
    for _ in range(64):
        if found is None:
            return
        yield found
        found = found.__cause__ or found.__context__


def _named(error: DmlError) -> str:
    cause = error.__cause__ or error
    return type(cause).__name__


# ------------------------------------------------------------------------------------ what is told


def _quarantine(sample: Sample, odd: Odd) -> None:
    """Say for good that an entry is wrong, and warn if this is the first to say so."""
    nodes = sample.nodes
    called = [node for node in nodes if node.calls is not None and not node.proven]
    named = called or nodes[-1:]
    labels = "; ".join(node.label() for node in named)
    row = f"row {odd.row}" if odd.row >= 0 else ""
    at = ", ".join(filter(None, (labels, sample.unit.place, row)))
    name = sample.entry.fingerprint
    stored = ", ".join(filter(None, ("; ".join(map(_outline, named)), row)))
    told = {"what": odd.what, "at": stored, "row": odd.row, "time": _now()}
    if not sample.entry.store.quarantine(name, told):
        return
    text = DmlError(
        f"stored rows are not those that are computed now: the entry {name[:8]} is quarantined",
        at=at,
        why=f"{odd.what}: a function below depends on more than its row and what its name tells."
        " The run goes on and computes; what was handed out of the entry before stays so",
        try_=f"a function of its row alone, or another fingerprint=; then dml cache rm {name[:8]},"
        " or .clear_cache(): it is not kept again before",
    )
    warn(str(text), QuarantineWarning)


def _outline(node: Node) -> str:
    """An operator as it may be written down: without literals and paths."""
    called = f"({node.calls.name})" if node.calls is not None else ""
    return f"{type(node).__name__}{called}" + (f", written in {node.where}" if node.where else "")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
