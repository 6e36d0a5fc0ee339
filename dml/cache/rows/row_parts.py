"""Read and write the rows of a unit of a stored step, as a part of the step's entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING

from dml.cache.parts.stored_blocks import StoredBlocks
from dml.data import buffer_ownership
from dml.data.block import Block
from dml.data.id_columns import WORDS, beside, written
from dml.data.schema import Schema
from dml.data.schema_text import marked, marks_text, schema_of, schema_text
from dml.expr.flow import At
from dml.expr.node import Node
from dml.io.source import Unit
from dml.kernels.vec import Vec
from dml.udfs.calling.batch_arrays import plain

if TYPE_CHECKING:
    from dml.cache.parts.blobs import PartRows as Part
    from dml.cache.parts.entry import StoredEntry
    from dml.cache.parts.part_fill import PartFilling as Draft


class StoredUnit:
    """The stored rows of a unit, and the schemas that had settled when the rows were made.

    ``own`` are the numbers of the operators whose schemas these rows settled themselves. Blocks
    that were ``recut`` are only used by runs that recut blocks: a retried task, for which the part
    may or may not be stored by then, must cut blocks as its first attempt did.
    """

    def __init__(self, part: Part) -> None:
        about = self.about = part.about
        self.form = WORDS.index(about["ids"])
        self.loaded_bytes, self.recut = part.loaded_bytes, bool(about.get("recut"))
        self.cost_s, self.nbytes = part.cost_s, part.nbytes
        self.came = part.came
        firsts = [first for _, *first in about["blocks"]]
        finish = _finish if self.plain else _leave
        self.blocks = StoredBlocks(part.runs, self.form, firsts, marked(about), finish)
        self.schemas = {int(place): schema_of(text) for place, text in about["schemas"].items()}
        self.own = frozenset(about["own"])

    @staticmethod
    def find(
        entry: StoredEntry, unit: Unit, most_bytes: int, *, had: bool = False
    ) -> StoredUnit | None:
        """Return the rows of ``unit`` in an entry, as ``StoredEntry.part`` does; None if none."""
        rows = entry.part(unit.index, most_bytes, had=had)
        return None if rows is None else StoredUnit.of(rows, unit)

    @staticmethod
    def of(rows: Part, unit: Unit) -> StoredUnit | None:
        """Return a part's rows; None if ``unit`` is cut into other atoms, or the format differs."""
        known = rows.about.get("unit") == _cut(unit) and rows.about.get("ids") in WORDS
        return StoredUnit(rows) if known else None

    @property
    def plain(self) -> bool:
        """True if floats are stored in the form that is delivered: none has to be copied."""
        return bool(self.about.get("plain"))

    def atoms(self, skip_atoms: int, *, joined: bool = False) -> Iterator[list[Block]]:
        """Yield the blocks of each atom from ``skip_atoms`` on, over the memory of the part.

        If ``joined``, adjacent blocks of an atom become one block.
        """
        ends = [0, *accumulate(self.about["atoms"])]
        for start, stop in pairwise(ends[skip_atoms:]):
            numbers = range(start, stop)
            by_run = groupby(numbers, lambda number: self.blocks.places[number][0])
            some = (list(each) for _, each in by_run) if joined else ([n] for n in numbers)
            yield [self.blocks.joined(each) for each in some]

    def settled(self, nodes: Sequence[Node], at: At) -> bool:
        """Adopt the schemas for this run; return False if its own differ, or may prove to differ.

        The rows that a run reads first settle its schemas. A part that was made after other parts
        settles only those of the operators in ``own``.
        """
        keys = {place: nodes[place].digest.hex() for place in self.schemas}
        for place, schema in self.schemas.items():
            known = at.schemas.get(keys[place])
            if known != schema and (known is not None or place not in self.own):
                return False
        for place, schema in self.schemas.items():
            at.schemas.setdefault(keys[place], schema)
        return True


class RowFilling:
    """An unfinished part, whose ids are written in one ``form``.

    ``named_ns`` is the time at which files were inspected to name the entry.
    """

    def __init__(
        self, part: Draft, unit: Unit, form: int, named_ns: int, *, recut: bool = False
    ) -> None:
        self.part, self.unit, self.form, self.named_ns = part, unit, form, named_ns
        self.recut = recut
        self.atoms: list[int] = []
        self.blocks: list[tuple[int, int, int]] = []
        self.plain, self.marks = True, ""

    @staticmethod
    def begin(
        entry: StoredEntry, unit: Unit, form: int, most_bytes: int
    ) -> StoredUnit | RowFilling | None:
        """Return a unit's rows, or a filling to store them; None if they will not be stored."""
        got = entry.fill(unit.index, most_bytes)
        if got is None or isinstance(got, tuple):
            return None if got is None else StoredUnit.of(got, unit)
        return RowFilling(got, unit, form, entry.at_ns, recut=entry.looks)

    def passing(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the blocks of an atom, each of them after it was added to the part."""
        self.part.resting = False
        self.atoms.append(0)
        for block in blocks:
            self._add(block)
            self.part.resting = True
            yield block
            self.part.resting = False
        self.part.resting = True  # the steps above may still yield rows of the atom

    def _add(self, block: Block) -> None:
        packed = written(block.ids, self.form)
        if packed is None:
            self.part.drop()
            return
        columns, high, low = packed
        self.part.add(beside(block.to_arrow(), self.form, columns))
        self.plain, self.marks = self.plain and plain(block), self.marks or marks_text(block.schema)
        self.atoms[-1] += 1
        self.blocks.append((block.n, high, low))

    def commit(self, schemas: Mapping[int, Schema], before: Set[int]) -> bool:
        """Commit the part as the whole unit; return False if the part is not stored.

        The schemas of operators in ``before`` were settled by earlier parts.
        """
        texts = {str(place): schema_text(schema) for place, schema in schemas.items()}
        own = sorted(schemas.keys() - before)
        about = {"atoms": self.atoms, "blocks": self.blocks, "ids": WORDS[self.form]}
        about |= {"schemas": texts, "own": own, "plain": self.plain, "recut": self.recut}
        made = self.part.commit({**about, "unit": _cut(self.unit), "marks": self.marks})
        return made.is_stored


def _leave(block: Block) -> None:
    """Leave the floats of the block's part to be inspected where they are delivered."""


def _finish(block: Block) -> None:
    """Mark the floats of the block's part as free of NaN, so that they are not inspected again."""
    floats = [c.values for c in block.columns if isinstance(c, Vec) and c.values.dtype.kind == "f"]
    if floats:
        buffer_ownership.finish(floats[0])


def _cut(unit: Unit) -> list[int | None]:
    """Return the numbers that determine where the atoms of a unit begin."""
    return [unit.atoms, unit.rows, unit.atom_rows]
