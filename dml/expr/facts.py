"""Operators declare facts about themselves, from which optimizer rules derive valid rewrites."""

from __future__ import annotations

import dataclasses
import enum
from typing import TypeAlias

# Number of elements; math.inf for an endless input.
Length: TypeAlias = "int | float"
# Epochs upstream of an endless repeat: far enough apart that no two iterations share one.
ENDLESS = 1 << 32


class Rows(enum.Enum):
    """How an operator changes the sequence of elements; the default is the most general change."""

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
        """True if each output depends on one input row alone or, for ATOMS, on one atom alone."""
        return self in (Rows.SAME, Rows.FEWER, Rows.MORE, Rows.ATOMS, Rows.STORED)

    @property
    def orderless(self) -> bool:
        """True if reordering the input rows can only reorder the output elements."""
        one_by_one = (Rows.SOURCE, Rows.SAME, Rows.FEWER, Rows.MORE)
        return self in (*one_by_one, Rows.PERMUTED, Rows.REPEATED, Rows.KEPT, Rows.STORED)


@dataclasses.dataclass(frozen=True, slots=True)
class ResumeCost:
    """The cost of resuming an operator: bytes of saved state, and rows to compute again.

    ``work`` describes in words what is computed again.
    """

    state_bytes: int = 0
    work_rows: int = 0
    work: str = "none"


@dataclasses.dataclass(frozen=True, slots=True)
class FilterOrder:
    """The order in which a predicate's parts are evaluated; no result depends on the order.

    Each of ``groups`` has the indices of parts that are evaluated together, on the rows that passed
    the groups before. Without groups, all parts are evaluated together.
    """

    groups: tuple[tuple[int, ...], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Needs:
    """The resources that one task of an operator occupies, and how many tasks may run at once.

    ``memory`` is in bytes, without the rows themselves; ``resources`` are amounts of custom
    resources by name, such as a label of some workers. Neighbouring operators run in one task
    exactly if their needs are equal.
    """

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory: int = 0
    resources: tuple[tuple[str, float], ...] = ()
    concurrency: int | None = None

    @property
    def undeclared(self) -> bool:
        """True if a task occupies one processor, the default if nothing is requested."""
        return self.num_cpus == 1 and not (self.num_gpus or self.resources)

    def parameters_text(self) -> str:
        """Return the fields that differ from the defaults as the user would write them, or ""."""
        usual = Needs()
        parts = [
            f", {field.name}={dict(value) if field.name == 'resources' else value!r}"
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != getattr(usual, field.name)
        ]
        return "".join(parts)
