"""This file reads and writes the rows of a unit of a stored step as a part of its entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np

from dml.exec.ids_beside import WORDS, apart, beside, ids_of, written
from dml.exec.schema_text import marked, marks_text, schema_of, schema_text
from dml.expr import own_memory
from dml.expr.block import Block
from dml.expr.delivery import plain
from dml.expr.flow import At
from dml.expr.node import Node
from dml.expr.schema import Schema
from dml.expr.sources.source import Unit
from dml.kernels.ids import RowIds
from dml.kernels.vec import Vec

if TYPE_CHECKING:
    from dml.exec.store.blobs import Rows as Part
    from dml.exec.store.filling import Filling as Draft


class Found:
    """The rows of a unit, and the types that had settled when they were made.

    ``own`` are the operators whose types these rows settled themselves. Where blocks were ``recut``
    below, runs that cut theirs as they are made do not use them: a task that is begun again, where
    they are or are not there by then, must cut as it did before.
    """

    def __init__(self, part: Part) -> None:
        self.runs, self.about = part.runs, part.about
        about, self.form = part.about, WORDS.index(part.about["ids"])
        self.loaded_bytes, self.recut = part.loaded_bytes, bool(about.get("recut"))
        self.cost_s, self.nbytes = part.cost_s, part.nbytes
        self.came = part.came
        self.places = [
            (run, row)
            for run, (_, rows) in enumerate(self.runs)
            for row in accumulate(rows[:-1], initial=0)
        ]
        self.last: tuple[int, Block, list[np.ndarray]] | None = None
        self.schemas = {int(place): schema_of(text) for place, text in about["schemas"].items()}
        self.own = frozenset(about["own"])

    @staticmethod
    def of(rows: Part, unit: Unit) -> Found | None:
        """What a part says; None if it is of another cut of the source, or written otherwise."""
        known = rows.about.get("unit") == _cut(unit) and rows.about.get("ids") in WORDS
        return Found(rows) if known else None

    @property
    def plain(self) -> bool:
        """Whether its floats are as they are delivered: none has to be copied for that."""
        return bool(self.about.get("plain"))

    def atoms(self, skip_atoms: int, *, joined: bool = False) -> Iterator[list[Block]]:
        """The blocks of each atom from ``skip_atoms`` on, over the memory of the part.

        If ``joined``, those of an atom that lie side by side are one.
        """
        ends = [0, *accumulate(self.about["atoms"])]
        for start, stop in pairwise(ends[skip_atoms:]):
            numbers = range(start, stop)
            runs = groupby(numbers, self._run) if joined else ((n, (n,)) for n in numbers)
            yield [self._together(list(some)) for _, some in runs]

    def _run(self, number: int) -> int:
        return self.places[number][0]

    def _together(self, numbers: Sequence[int]) -> Block:
        """Blocks that follow each other in one run as one."""
        run, start = self.places[numbers[0]]
        whole, columns = self._whole(run)
        stop, ids = start, list[RowIds]()
        for number in numbers:
            count, high, low = self.about["blocks"][number]
            row, stop = stop, stop + count
            ids.append(ids_of(self.form, [each[row:stop] for each in columns], count, (high, low)))
        part = whole.slice(start, stop)
        together = ids[0] if len(ids) == 1 else RowIds.concat(ids)
        return Block(part.schema, part.columns, together)

    def _whole(self, run: int) -> tuple[Block, list[np.ndarray]]:
        """Blocks that lie side by side as one, and columns of their ids; of the run asked last."""
        if self.last is None or self.last[0] != run:
            batch, rows = self.runs[run]
            own, columns = apart(batch, self.form)
            ids = RowIds.run(0, 0, sum(rows))
            self.last = run, Block.from_arrow(own, ids, marked(self.about)), columns
            if self.plain:
                _finish(self.last[1])
        return self.last[1:]

    def settled(self, nodes: Sequence[Node], at: At) -> bool:
        """Take over the types; False if those of this run are others, or may turn out so.

        A run has the types of the rows that it reads first. A part that was made after others says
        nothing of those.
        """
        keys = {place: nodes[place].digest.hex() for place in self.schemas}
        for place, schema in self.schemas.items():
            known = at.schemas.get(keys[place])
            if known != schema and (known is not None or place not in self.own):
                return False
        for place, schema in self.schemas.items():
            at.schemas.setdefault(keys[place], schema)
        return True


class Filling:
    """A part in the making, whose ids are written in one ``form``.

    ``named_ns`` is when files were looked at to make the name of its entry.
    """

    def __init__(
        self, part: Draft, unit: Unit, form: int, named_ns: int, *, recut: bool = False
    ) -> None:
        self.part, self.unit, self.form, self.named_ns = part, unit, form, named_ns
        self.recut = recut
        self.atoms: list[int] = []
        self.blocks: list[tuple[int, int, int]] = []
        self.plain, self.marks = True, ""

    def passing(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """The blocks of an atom, each put into the part before it goes on."""
        self.part.resting = False
        self.atoms.append(0)
        for block in blocks:
            self._add(block)
            self.part.resting = True
            yield block
            self.part.resting = False
        self.part.resting = True  # what stands above may have more of the atom to give

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
        """Say that this is all of the unit; the types ``before`` it were settled by others.

        False if it is in no store then.
        """
        texts = {str(place): schema_text(schema) for place, schema in schemas.items()}
        own = sorted(schemas.keys() - before)
        about = {"atoms": self.atoms, "blocks": self.blocks, "ids": WORDS[self.form]}
        about |= {"schemas": texts, "own": own, "plain": self.plain, "recut": self.recut}
        made = self.part.commit({**about, "unit": _cut(self.unit), "marks": self.marks})
        return made.kept


def _finish(block: Block) -> None:
    """Say that floats of the part that ``block`` lies in need not be looked at any more."""
    floats = [c.values for c in block.columns if isinstance(c, Vec) and c.values.dtype.kind == "f"]
    if floats:
        own_memory.finish(floats[0])


def _cut(unit: Unit) -> list[int | None]:
    """What says where the atoms of a unit begin."""
    return [unit.atoms, unit.rows, unit.atom_rows]
