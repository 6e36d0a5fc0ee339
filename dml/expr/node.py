"""This file defines the node: one immutable step of a pipeline, valid because it exists.

A node is a frozen dataclass. Fields annotated ``Node`` or ``tuple[Node, ...]`` are its inputs.
Making it derives schema and digest, so that errors point at the user's own line. Nodes are never
changed: ``replace`` makes another. What a node states about itself (``rows``, ``reads``, ``total``
...) is pessimistic unless the operator says otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast, dataclass_transform

from dml.errors import DmlError, InternalError
from dml.expr.computed import cached_property
from dml.expr.facts import Held, Length, Needs, Rows
from dml.expr.fingerprint import digest

if TYPE_CHECKING:
    from dml.expr.calls import UserFunction
    from dml.expr.schema import Schema

T = TypeVar("T", bound=type)
DERIVING = (
    *(Rows.MORE, Rows.ATOMS, Rows.RUNS, Rows.WINDOWS, Rows.PACKED),
    *(Rows.REPEATED, Rows.MERGED, Rows.WOVEN),
)
# What gives as many elements as it is given.
LASTING = (Rows.SAME, Rows.PERMUTED, Rows.KEPT, Rows.STORED)
INPUTS = ("Node", "tuple[Node, ...]")
# Fields that cannot change the result: where it is computed, and what is kept of it.
SILENT = ("Needs", "Anchor", "Tried", "Root")


@dataclass_transform(frozen_default=True, eq_default=False)
def op(cls: T) -> T:
    """Make ``cls`` a node class: frozen, compared by digest, inputs known from annotations."""
    made: Any = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
    made.field_names = tuple(f.name for f in dataclasses.fields(made))
    made.input_names = tuple(f.name for f in dataclasses.fields(made) if f.type in INPUTS)
    made.meaning_names = tuple(f.name for f in dataclasses.fields(made) if f.type not in SILENT)
    return cast("T", made)


class Node:
    """One step of a pipeline; making it checks it."""

    field_names: ClassVar[tuple[str, ...]] = ()
    input_names: ClassVar[tuple[str, ...]] = ()
    # The fields that can change the result.
    meaning_names: ClassVar[tuple[str, ...]] = ()
    # The version of what the operator means; results of another version are other values.
    version: ClassVar[int] = 1

    rows: ClassVar[Rows] = Rows.ALL
    # Where blocks run: must see all blocks of an atom together, so it has ``run_atom(blocks, at)``.
    by_atom: bool = False
    # Rows that it sees as one group; 0 where it looks at rows one by one.
    group_rows: int = 0
    # Its groups end with the atom that their rows are of.
    within_atoms: bool = False
    # Takes the rows of a source's unit together: its input has ``pull_piece``.
    takes_units: ClassVar[bool] = False
    # Gives nothing before it has seen all of its input.
    waits: ClassVar[bool] = False
    # Draws keyed randomness: takes the next ordinal among the random operators as written.
    random: ClassVar[bool] = False
    # Depends on nothing but the row (and seed, epoch, row id), and cannot fail: may move freely.
    total: bool = False
    # Makes columns beside those that it hands on, though its rows pass as they are.
    adds: ClassVar[bool] = False
    # The columns that it looks at, where it looks at those alone.
    looks_at: frozenset[str] | None = None
    # Hands all columns on under their names, though not every row passes once and as it is.
    hands_on: ClassVar[bool] = False
    # Its function is known as expressions, and is called where those do not hold.
    proven: ClassVar[bool] = False
    # Takes rows one by one, as far as anybody can tell: how they came in blocks is nothing to it.
    regroups: ClassVar[bool] = False
    # True where large values are put into trays as they are made.
    places: ClassVar[bool] = False
    # How heavy the rows are that it holds of a stream: 0 none, 1 as they come, 2 joined or sorted.
    gathers: ClassVar[int] = 0
    # Keeps in memory, for others or for later, what has passed.
    keeps_in_memory: bool = False
    # Puts all rows in an order that can be made in parts: it has ``spread(at, epoch)``.
    spreads: bool = False
    # The columns by which rows are in order above it.
    ordered_by: tuple[str, ...] = ()
    # Makes a row of each run of rows with equal values of these: it has ``groups(at, rows)``.
    grouped_by: tuple[str, ...] = ()
    # The user's line, for errors; says nothing about the value, so it is not a field.
    where: str = ""

    def __post_init__(self) -> None:
        try:
            self.check()
            # settled from the source upwards, so that the longest chain never recurses
            _ = self.schema, self.batched, self.ordinal, self.level
        except DmlError as error:
            raise error.located(self.label()) from None

    def check(self) -> None:
        """Refuse parameters that cannot mean anything (PlanError); the default accepts all."""

    def stands(self) -> bool:
        """Whether what was derived of users' functions still is what they do."""
        return True

    def infer(self) -> Schema:
        """Derive the output schema from the inputs', or raise SchemaError."""
        raise InternalError(f"{type(self).__name__} states no schema")

    @cached_property
    def schema(self) -> Schema:
        """What flows out of this step."""
        return self.infer()

    @property
    def endless(self) -> bool:
        """True if there is no last element, unless an operator above takes some."""
        return any(node.endless for node in self.inputs)

    def length(self, *given: Length) -> Length | None:
        """How many elements come out where inputs have ``given``; None if only a run could tell."""
        # a function of batches may return one without rows, which vanishes
        vanishing = self.batched and self.calls is not None
        kept = self.rows in LASTING and len(given) == 1
        return given[0] if kept and not vanishing else None

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: parameters and places; what was derived is not sent."""
        kept = (*self.field_names, "ordinal", "level", "batched", "where")
        return {name: self.__dict__[name] for name in kept if name in self.__dict__}

    @cached_property
    def digest(self) -> bytes:
        """Name of this step as written, 16 bytes; equality of nodes is equality of digests."""
        parts = [getattr(self, name) for name in self.meaning_names]
        # the places as written are part of the meaning where keys are made of them
        places = (self.ordinal if self.random else -1, self.level if self.rows in DERIVING else -1)
        kind = (type(self).__name__, self.version)
        return digest(*kind, *places, *(_digestible(p) for p in parts))

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """The steps whose elements this one takes, in field order."""
        found: list[Node] = []
        for name in self.input_names:
            given = getattr(self, name)
            found += given if isinstance(given, tuple) else (given,)
        return tuple(found)

    @cached_property
    def batched(self) -> bool:
        """True if elements are batches rather than rows."""
        return any(node.batched for node in self.inputs)

    @cached_property
    def ordinal(self) -> int:
        """How many random operators were written before this one."""
        return sum(node.ordinal + node.random for node in self.inputs)

    @cached_property
    def level(self) -> int:
        """How many operators before this one made new row ids: keys the ids of this one."""
        return sum(node.level + (node.rows in DERIVING) for node in self.inputs)

    @property
    def calls(self) -> UserFunction | None:
        """The user's function that this step calls, if it calls one."""
        return getattr(self, "fn", None)

    @property
    def needs(self) -> Needs:
        """What one task of this step occupies."""
        return Needs()

    @property
    def decides(self) -> bool:
        """True if every run decides whether this step keeps anything at all."""
        return False

    @property
    def held(self) -> Held:
        """State and repeated work of a resumption at the worst moment."""
        return Held()

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed: same line of the user, same place as written."""
        made = object.__new__(type(self))
        for name in self.field_names:
            made.__dict__[name] = changes.pop(name) if name in changes else getattr(self, name)
        if changes:
            raise InternalError(f"{type(self).__name__} has no field {sorted(changes)}")
        # places as written, before anything is derived from them: rewriting moves operators, and
        # their keys must not notice
        made.__dict__["ordinal"], made.__dict__["level"] = self.ordinal, self.level
        made.__post_init__()
        return made.placed(self.where)

    def placed(self, where: str) -> Self:
        """Remember the user's line; returns the same node."""
        if where:
            object.__setattr__(self, "where", where)
        return self

    def map_inputs(self, fn: Callable[[Node], Node]) -> Node:
        """This step over ``fn(input)``; the same object when nothing changed."""
        new = self.mapped(fn)
        return self.replace(**new) if new else self

    def turn(self, epoch: int) -> int:
        """The epoch that rows below a row-local step are of, while it is ``epoch`` here."""
        return epoch

    def mapped(self, fn: Callable[[Node], Node]) -> dict[str, Any]:
        """The fields of inputs that ``fn`` changes, with what they become."""
        new: dict[str, Any] = {}
        for name in self.input_names:
            old: Any = getattr(self, name)
            made: Any = tuple(map(fn, old)) if isinstance(old, tuple) else fn(old)
            same = made is old or (isinstance(old, tuple) and all(map(is_, made, old)))
            if not same:
                new[name] = made
        return new

    def chain(self) -> list[Node]:
        """This step and everything below along first inputs, source first."""
        steps: list[Node] = [self]
        while steps[-1].inputs:
            steps.append(steps[-1].inputs[0])
        return steps[::-1]

    def walk(self) -> Iterator[Node]:
        """Every distinct step, inputs first, each once."""
        seen: set[int] = set()
        stack: list[tuple[Node, bool]] = [(self, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                yield node
            elif id(node) not in seen:
                seen.add(id(node))
                stack.append((node, True))
                stack += [(child, False) for child in reversed(node.inputs)]

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and (self is other or self.digest == other.digest)

    def shown(self) -> str:
        """The parameters as the user would write them."""
        names = [n for n in self.field_names if n not in self.input_names]
        return ", ".join(f"{n}={getattr(self, n)!r}" for n in names)

    def title(self) -> str:
        """Operator and parameters, one line."""
        return f"{type(self).__name__}({self.shown()})"

    def label(self) -> str:
        """Operator, parameters, and the user's line when it is known."""
        return f"{self.title()}, written in {self.where}" if self.where else self.title()

    def __repr__(self) -> str:
        return self.title()


def epochs_at(steps: Sequence[Node], epoch: int) -> list[int]:
    """The epoch that each of ``steps`` runs for, where the last of them is asked for ``epoch``."""
    found = [epoch] * len(steps)
    for number in range(len(steps) - 1, -1, -1):
        found[number], epoch = epoch, steps[number].turn(epoch)
    return found


def _digestible(part: Any) -> Any:
    """Nodes enter a digest by their own digests."""
    if isinstance(part, tuple) and part and isinstance(part[0], Node):
        return tuple(each.digest for each in part)
    return part.digest if isinstance(part, Node) else part
