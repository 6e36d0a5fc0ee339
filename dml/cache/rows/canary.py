"""Recompute a sample of stored rows before an entry is used: a fingerprint cannot see everything.

At the first use of an entry in a process, and at about one use in 64 afterwards, some rows of one
part are recomputed and compared with the stored rows, bit by bit. If they differ, the entry is
quarantined: it is no longer read, and its rows are computed.
"""

from __future__ import annotations

import dataclasses
import platform
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from dml.base.fingerprint import digest
from dml.base.user_line import warn
from dml.cache.rows.row_parts import StoredUnit
from dml.data.block import Block, concat
from dml.data.comparison import first_odd, part
from dml.data.id_columns import FREE
from dml.errors import (
    DmlError,
    FunctionTimeoutError,
    InternalError,
    MemoryContractError,
    QuarantineWarning,
    SourceError,
)
from dml.events import Tally
from dml.exec.tasks.skipped_rows import Noted
from dml.exec.tasks.steps import Steps
from dml.expr.facts import Rows
from dml.expr.flow import WHOLE
from dml.expr.node import Node
from dml.expr.user_call import NotConstructedError

if TYPE_CHECKING:
    from dml.cache.parts.entry import StoredEntry
    from dml.cache.parts.parts import PartStore
    from dml.exec.tasks.unit_input import Running
    from dml.io.source import Source, Unit

ONE_OF = 64  # one of so many uses of an entry is checked, and the first use
MOST_ROWS = 256  # most rows of the source in one check
BUDGET_S = 0.015  # seconds for recomputing rows; the first row is always recomputed
PIECE_BYTES = 1 << 20  # bytes of rows that are recomputed at a time, if more than one row
ATOM_S = 1.0  # an atom that must be recomputed whole and took longer is not checked
WAIT_S = 10.0  # seconds for which other threads wait for a running check of the entry
MOST_ENTRIES = 1 << 12  # most entries whose uses a process remembers
PROCESS = uuid.uuid4().hex
# Errors that come from the machine, not from a row.
OUTER = (OSError, MemoryError, ImportError, NotConstructedError)
OURS = (SourceError, MemoryContractError, InternalError, FunctionTimeoutError)


# ------------------------------------------------------------------------------- choice of samples


def due(use: int, draw: int, *, known: bool = False) -> bool:
    """Return True if use number ``use`` of an entry is checked; ``draw`` is a random integer.

    ``known`` is True if another process has made the first check.
    """
    return (use == 0 and not known) or draw % ONE_OF == 0


def part_of(draw: int, parts: int) -> int:
    """Return the number of the part to check, of ``parts``, by the random integer ``draw``."""
    return (draw >> 8) % max(1, parts)


def grain_of(nodes: Sequence[Node]) -> int:
    """Return the least number of rows that the steps process together; WHOLE for a whole atom."""
    gathering = [number for number, node in enumerate(nodes) if node.by_atom]
    if not gathering:
        return 1
    size: int | None = nodes[gathering[0]].batch_size
    whole = any(n.rows not in (Rows.SAME, Rows.STORED) for n in nodes[: gathering[0]])
    return WHOLE if whole or size is None or len(gathering) > 1 else size


def rows_of(draw: int, rows: int, grain: int, each_s: float) -> range:
    """Return which rows of an atom of ``rows`` rows to recompute, at ``each_s`` seconds per row.

    The random ``draw`` chooses the range, which has at least one row, and begins and ends at
    multiples of ``grain``. An indivisible atom is recomputed whole, or not at all (an empty range).
    """
    if grain >= rows:
        return range(rows if rows == 1 or each_s * rows <= ATOM_S else 0)
    fits = MOST_ROWS if each_s <= 0 else int(min(MOST_ROWS, BUDGET_S / each_s))
    count = max(1, min(fits, rows) // grain) * grain
    start = (draw >> 72) % ((rows - count) // grain + 1) * grain
    return range(start, start + count)


def more(count: int, grain: int, nbytes: int) -> int:
    """Return how many rows to recompute next, after ``count`` rows that had ``nbytes``.

    The number is at most twice ``count``, limited by bytes, and a multiple of ``grain``.
    """
    fits = PIECE_BYTES * count // max(1, nbytes)
    return max(grain, min(2 * count, fits) // grain * grain)


# ------------------------------------------------------------------------------------- use counts


class EntryUses:
    """The number of uses of an entry in this process, and the number of checks."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.count = self.checks = 0
        self.busy = False

    def next(self, fingerprint: str) -> tuple[int, int]:
        """Count a use; return its number and a random integer that affects no row."""
        number, self.count = self.count, self.count + 1
        return number, int.from_bytes(digest("canary", PROCESS, fingerprint, number), "little")


_USES: weakref.WeakKeyDictionary[PartStore, dict[str, EntryUses]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def uses_of(store: PartStore, fingerprint: str) -> EntryUses:
    """Return the uses of an entry in this process, as far as the process remembers them."""
    with _LOCK:
        known = _USES.setdefault(store, {})
        if fingerprint not in known and len(known) >= MOST_ENTRIES:
            del known[next(iter(known))]
        return known.setdefault(fingerprint, EntryUses())


class CanarySample(NamedTuple):
    """The input of a check: stored rows ``found`` of ``unit``, and the ``steps`` that make them."""

    entry: StoredEntry
    unit: Unit
    found: StoredUnit
    steps: Sequence[Steps]
    ordinal: int
    """The number of the operator that gives the rows."""
    shown: Callable[[Block], Iterator[Block]] | None = None
    """Turns a stored block into the blocks that are used, unless it is used unchanged."""

    @property
    def nodes(self) -> list[Node]:
        """The operators that made the rows, source first."""
        return [node for steps in self.steps for node in steps.nodes]


def trusted(sample: CanarySample, run: Running, seen: set[str]) -> bool:
    """Return True if the entry of ``sample`` may be used, after a check if one is due.

    ``seen`` are the entries that this pass already uses; the entry is added to it. The check
    precedes the delivery of the first row of the entry, and may check any part.
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


def _begin(uses: EntryUses, sample: CanarySample, run: Running) -> None:
    """Count a use of the entry, and check the entry if that is due; the caller holds the lock."""
    store, name = sample.entry.store, sample.entry.fingerprint
    number, draw = uses.next(name)
    known = number == 0 and _spared(sample, run.reading.stage.source)
    if not due(number, draw, known=known) or not store.trusts(name):
        return
    uses.busy, uses.checks = True, uses.checks + 1
    try:
        if sample.shown is None and store.place.maps:  # unchanged rows, and mapping loads nothing
            sample = _elsewhere(sample, run, draw)
        odd = _difference(sample, run, draw)
        run.mine().checked(sample.ordinal, odd is not None)
        if odd is not None:
            _quarantine(sample, odd)
    finally:
        uses.busy = False


def _spared(sample: CanarySample, source: Source) -> bool:
    """Return True if the first use in this process is not checked, since checks fetch source bytes.

    That is the case for a remote source of fewer than 64 units; for a larger one, in all but one of
    the processes with the same platform and library versions.
    """
    if not source.far:
        return False
    entry = sample.entry
    return source.unit_count < ONE_OF or not entry.store.first(entry.fingerprint, _here())


def _here() -> str:
    """Return a digest of the platform and library versions, which fingerprints do not cover."""
    versions = platform.python_version(), np.__version__, pa.__version__
    return digest("here", platform.system(), platform.machine(), *versions).hex()


def _elsewhere(sample: CanarySample, run: Running, draw: int) -> CanarySample:
    """Return the sample moved to a random part of the entry, if that part is stored."""
    source = run.reading.stage.source
    index = part_of(draw, source.unit_count)
    if index == sample.unit.index:
        return sample
    unit = source.unit(index)
    found = StoredUnit.find(sample.entry, unit, run.most_bytes)
    return sample if found is None else sample._replace(unit=unit, found=found)


# ----------------------------------------------------------------------------------- recomputation


class Odd(NamedTuple):
    """A difference between stored and recomputed rows; ``row`` is a row id, -1 for an error."""

    row: int
    what: str


class _Failing(Noted):
    """Raises the error of any row: rows are stored only if errors have cost none of them."""

    def note(self, ordinal: int, error: DmlError, rows: int) -> None:
        del ordinal, rows
        raise error


def _difference(sample: CanarySample, run: Running, draw: int) -> Odd | None:
    """Return where recomputed rows first differ from stored ones; None if equal or unknown."""
    source = run.reading.stage.source
    try:
        odd = _first_odd(sample, run, draw)
    except DmlError as error:
        if isinstance(error, OURS) or any(isinstance(each, OUTER) for each in _causes(error)):
            return None
        if sample.shown is not None:  # the error may come from a column that is not stored
            return None
        odd = Odd(-1, f"making it again ends in {type(error.__cause__ or error).__name__}")
    except OUTER:
        return None
    if odd is not None and source.changed_ns(sample.unit) >= sample.entry.at_ns:
        return None  # the source has changed since the run began
    return odd


def _first_odd(sample: CanarySample, run: Running, draw: int) -> Odd | None:
    given = next(run.reading.again(sample.unit), None)  # the reader ends here
    if given is None:
        return None
    stage = run.reading.stage
    unread = stage.source.schema.keys() - set(stage.columns)
    kept = StoredSample(sample, whole=given.n, unread=unread)
    steps = _anew(sample)
    rows = sample.unit.rows or sum(count for count, *_ in sample.found.about["blocks"])
    each_s, grain = sample.found.cost_s / max(1, rows), grain_of(sample.nodes)
    chosen, until = rows_of(draw, given.n, grain, each_s), time.perf_counter() + BUDGET_S
    count = grain  # the first rows show the cost of the next
    while chosen:
        block = given.slice(chosen.start, min(chosen.start + count, chosen.stop))
        made = list(_run(steps, block))
        odd = kept.odd(block, made)
        if odd is not None or time.perf_counter() >= until:
            return odd
        chosen = chosen[block.n :]
        count = more(block.n, grain, sum(each.nbytes for each in made))
    return None


def _anew(sample: CanarySample) -> list[Steps]:
    """Return new steps, with the schemas that had settled when the rows were stored."""
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


class StoredSample:
    """The stored rows of a unit's first atom, for which the source has ``whole`` rows.

    The run does not read the columns ``unread`` of the source, and does not compare them.
    """

    def __init__(self, sample: CanarySample, whole: int, unread: Set[str]) -> None:
        blocks = next(sample.found.atoms(0), [])
        if sample.shown is not None:
            blocks = [made for block in blocks for made in sample.shown(block)]
        self.blocks = [block for block in blocks if block.n]
        self.high, self.low = _ids(self.blocks)
        self.free, self.whole, self.unread = sample.found.form == FREE, whole, unread

    def odd(self, given: Block, made: Sequence[Block]) -> Odd | None:
        """Return how rows ``made`` from ``given`` first differ from stored rows, or None."""
        made = [block for block in made if block.n]
        ids = _ids(made)
        place = self._place(given, ids)
        high, low = self.high[place], self.low[place]
        both = min(len(low), len(ids[1]))
        other = (high[:both] != ids[0][:both]) | (low[:both] != ids[1][:both])
        if other.any():
            return self._locate(given, low[int(np.argmax(other))], "another row is made")
        if len(low) > both:
            return self._locate(given, low[both], "the row is not made any more")
        if len(ids[1]) > both:
            return self._locate(given, ids[1][both], "the row is not stored")
        stored = part(self.blocks, place.start, place.stop)
        return self._column(given, made, stored, low) if both else None

    def _place(self, given: Block, ids: tuple[np.ndarray, np.ndarray]) -> slice:
        """Return the slice of stored rows that were made from source rows ``given``.

        ``ids`` are the row ids of the recomputed rows.
        """
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
        """Return a difference in the first column that differs, at its first such row, or None."""
        one, two = concat(made), concat(stored)
        for name, kind in two.schema.items():
            if name in self.unread and name not in one.schema:
                continue
            if one.schema.get(name) != kind:
                return self._locate(given, low[0], f"column {name!r} is of another type, or gone")
            row = first_odd(one[name], two[name])
            if row is not None:
                return self._locate(given, low[row], f"column {name!r} is another value")
        return None

    def _locate(self, given: Block, low: Any, what: str) -> Odd:
        """Return difference ``what`` at row id ``low``, or at the first source row if ``free``."""
        return Odd(int(given.ids.low()[0]) if self.free else int(low), what)


def _ids(blocks: Sequence[Block]) -> tuple[np.ndarray, np.ndarray]:
    halves = [block.ids.arrays() for block in blocks] or [(np.zeros(0, np.uint64),) * 2]
    high, low = zip(*halves, strict=True)
    return np.concatenate(high), np.concatenate(low)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause's cause and so on."""
    found: BaseException | None = error
    for _ in range(64):
        if found is None:
            return
        yield found
        found = found.__cause__ or found.__context__


# --------------------------------------------------------------------------------------- reporting


def _quarantine(sample: CanarySample, odd: Odd) -> None:
    """Quarantine an entry, and warn if no process has done so before."""
    nodes = sample.nodes
    called = [node for node in nodes if node.calls is not None and not node.proven]
    named = called or nodes[-1:]
    labels = "; ".join(node.label() for node in named)
    row = f"row {odd.row}" if odd.row >= 0 else ""
    at = ", ".join(filter(None, (labels, sample.unit.place, row)))
    name = sample.entry.fingerprint
    stored = ", ".join(filter(None, ("; ".join(map(_outline, named)), row)))
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    told = {"what": odd.what, "at": stored, "row": odd.row, "time": now}
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
    """Describe an operator without literals and paths, so that the text may be stored."""
    called = f"({node.calls.name})" if node.calls is not None else ""
    return f"{type(node).__name__}{called}" + (f", written in {node.where}" if node.where else "")
