"""This file names the facts that operators state and rules reason from."""

from __future__ import annotations

import dataclasses
import enum
from typing import TypeAlias

# How many elements there are; math.inf where there is no last one.
Length: TypeAlias = "int | float"


class Rows(enum.Enum):
    """What an operator does to the sequence of elements; the default is the worst."""

    SOURCE = "makes rows"
    SAME = "one out per one in, same order"
    FEWER = "keeps some by value, same order"
    MORE = "any number out per one in, same order"
    ATOMS = "any number out per atom in, same order"
    RUNS = "any number out per run of elements, same order"
    SLICE = "keeps a range of positions"
    PERMUTED = "same elements in another order"
    GROUPED = "rows become batches"
    WINDOWS = "rows become batches, each row part of any number of them"
    REGROUPED = "rows become batches by value, in another order"
    PACKED = "rows joined into fewer, in another order"
    REPEATED = "passes over its input"
    KEPT = "the elements of the first epoch, same order"
    STORED = "the rows of the first epoch, same order, atom by atom"
    MERGED = "elements of several inputs, each in its order"
    WOVEN = "elements of several inputs, taken in turns"
    ALL = "unknown: needs everything, keeps nothing"

    @property
    def local(self) -> bool:
        """True if each input row's outputs depend on its atom alone (but for ATOMS, on the row)."""
        return self in (Rows.SAME, Rows.FEWER, Rows.MORE, Rows.ATOMS, Rows.STORED)

    @property
    def orderless(self) -> bool:
        """True if the same rows in another order give the same elements, in whatever order."""
        one_by_one = (Rows.SOURCE, Rows.SAME, Rows.FEWER, Rows.MORE)
        return self in (*one_by_one, Rows.PERMUTED, Rows.REPEATED, Rows.KEPT, Rows.STORED)


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """What an operator needs to be resumed: bytes of state, and elements of work done again."""

    state_bytes: int = 0
    work_rows: int = 0
    work: str = "none"


@dataclasses.dataclass(frozen=True, slots=True)
class Tried:
    """In which order the parts of a predicate are tried: groups of their places, or all together.

    A group is computed on the rows that passed the ones before. No result depends on it.
    """

    groups: tuple[tuple[int, ...], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Needs:
    """What one task of an operator occupies while it runs, and how many may run at once.

    ``memory`` is bytes beside the rows themselves; ``resources`` names custom ones, such as a label
    of some workers. Operators of equal needs run in one task, others never do.
    """

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory: int = 0
    resources: tuple[tuple[str, float], ...] = ()
    concurrency: int | None = None

    def shown(self) -> str:
        """What differs from the usual, as the user would write it; "" if nothing does."""
        usual = Needs()
        parts = [
            f", {field.name}={dict(value) if field.name == 'resources' else value!r}"
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != getattr(usual, field.name)
        ]
        return "".join(parts)
