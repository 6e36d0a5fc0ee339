"""A node is one immutable operator of a pipeline; its constructor validates it.

A node is a frozen dataclass. Fields annotated ``Node`` or ``tuple[Node, ...]`` are its inputs. The
constructor derives schema and digest, so that errors name the user's own line. Nodes are never
modified: ``replace`` returns a changed copy. The facts that a node declares (``rows``, ``reads``,
``total`` ...) are pessimistic unless the operator overrides them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast, dataclass_transform

from dml.base.cached_property import cached_property
from dml.base.fingerprint import digest
from dml.data.schema import UNKNOWN, Schema
from dml.errors import DmlError, InternalError
from dml.expr.facts import Length, Needs, ResumeCost, Rows

if TYPE_CHECKING:
    from dml.expr.user_call import UserFunction

T = TypeVar("T", bound=type)
DERIVING = (
    *(Rows.MORE, Rows.ATOMS, Rows.RUNS, Rows.WINDOWS, Rows.PACKED),
    *(Rows.REPEATED, Rows.MERGED, Rows.WOVEN),
)
# Operators with as many output elements as input elements.
LASTING = (Rows.SAME, Rows.PERMUTED, Rows.KEPT, Rows.STORED)
INPUTS = ("Node", "tuple[Node, ...]")
# Types of fields that cannot change the result: placement, resources, names and what is cached.
SILENT = ("Needs", "Anchor", "FilterOrder", "NamedColumns", "Root", "ExpectedReads")


# Defaults of facts that may be fields of a class: set after its creation, since fields have none.
UNSTATED: dict[str, Any] = {
    "skips": False,
    "passes": 1,
    "fresh": True,
    "reuse": None,
    "reads_to_come": 0.0,
    "draws": False,
    "drop_last": False,
    "batch_size": None,
    "root": "",
}


@dataclass_transform(frozen_default=True, eq_default=False)
def op(cls: T) -> T:
    """Make ``cls`` a node class: frozen, compared by digest, inputs derived from annotations."""
    made: Any = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
    made.field_names = tuple(f.name for f in dataclasses.fields(made))
    made.input_names = tuple(f.name for f in dataclasses.fields(made) if f.type in INPUTS)
    made.meaning_names = tuple(f.name for f in dataclasses.fields(made) if f.type not in SILENT)
    made.opens_flow, made.runs_blocks = hasattr(made, "flow"), hasattr(made, "run")
    made.takes_seed = "seed" in made.field_names
    made.returns_rows, made.declares = hasattr(made, "returned"), "declared" in made.field_names
    for name, unstated in UNSTATED.items():
        if not hasattr(made, name):
            setattr(made, name, unstated)
    return cast("T", made)


class Node:
    """One operator of a pipeline; the constructor validates it."""

    field_names: ClassVar[tuple[str, ...]] = ()
    input_names: ClassVar[tuple[str, ...]] = ()
    # The fields that can change the result.
    meaning_names: ClassVar[tuple[str, ...]] = ()
    # Version of the operator's semantics; it is part of the digest.
    version: ClassVar[int] = 1

    rows: ClassVar[Rows] = Rows.ALL
    # Runs on all blocks of an atom together, by ``run_atom(blocks, at)``.
    by_atom: bool = False
    # Rows that the operator reads as one group; 0 if it reads rows one by one.
    group_rows: int = 0
    # Rows of each full batch that it makes; 0 if it makes none, or if they differ.
    batch_rows: int = 0
    # Groups do not extend beyond the atom of their rows.
    within_atoms: bool = False
    # Reads all rows of a source's unit together: its input has ``pull_piece``.
    takes_units: ClassVar[bool] = False
    # Returns no rows before it has read all of its input.
    waits: ClassVar[bool] = False
    # Has as many output elements as input elements, whatever ``rows`` tells.
    keeps_length: ClassVar[bool] = False
    # Keeps one part of a split.
    splits: ClassVar[bool] = False
    # Draws keyed random numbers, so that it counts in the ordinals of random operators as written.
    random: ClassVar[bool] = False
    # Its result depends on the row (and seed, epoch, row id) and cannot fail, so it may be moved.
    total: bool = False
    # The order in which its predicates are evaluated may change its cost, and nothing else.
    has_orders: bool = False
    # Adds columns to those of its input; rows and existing columns stay unchanged.
    adds: ClassVar[bool] = False
    # The columns that it reads, if it reads those alone.
    looks_at: frozenset[str] | None = None
    # The columns that its function reads, if it notices no others and their rows are its output.
    function_reads: frozenset[str] | None = None
    # Passes all columns on under their names, though rows may be changed, dropped or repeated.
    hands_on: ClassVar[bool] = False
    # Its function was lifted to expressions, and is called only for rows outside of the proof.
    proven: ClassVar[bool] = False
    # How rows are cut into blocks has no visible effect: they are processed one by one.
    regroups: ClassVar[bool] = False
    # Takes so long for a row, without calling a function, that workers compute rows side by side.
    slow: bool = False
    # Large values are written into trays (``dml.data.batch_trays``) when they are computed.
    places: ClassVar[bool] = False
    # Memory factor of the rows that it gathers: 0 for none, 1 as they are, 2 joined or sorted.
    gathers: ClassVar[int] = 0
    # Holds rows in memory after it returned them, for other consumers or for later.
    keeps_in_memory: bool = False
    # Orders all rows by an algorithm that can run in parts: it has ``spread(at, epoch)``.
    spreads: bool = False
    # The columns by which the operators above see the rows sorted.
    ordered_by: tuple[str, ...] = ()
    # Makes one row of each run of rows with equal values in these columns, by ``groups(at, rows)``.
    grouped_by: tuple[str, ...] = ()
    # The parameters as the user would write them: a format string of ``self``. None: all fields.
    parameters_format: ClassVar[str | None] = None
    # The user's line, for errors; it does not affect the value, so it is not a field.
    where: str = ""
    if TYPE_CHECKING:  # as in ``UNSTATED``, where a class has neither a field nor a property
        skips: bool  # rows whose function raises are left out: see ``udfs/calling/error_policy.py``
        passes: int  # passes over the input for one pass over the output
        fresh: bool  # True if it draws again in every epoch
        reuse: int | None  # number of epochs that share a draw; None: each epoch draws
        reads_to_come: float  # reads of its rows that a policy expects, by whatever run
        draws: bool  # True if its expressions draw, keyed by row ids
        drop_last: bool  # True if a last batch of fewer rows is dropped
        batch_size: int | None  # rows per call of its function; None: all there are
        root: str  # the folder or URL where its rows are stored; "" if it has none of its own
        seed: int | None  # seed of its draws, if ``takes_seed``; None: the seed of the run
        # True if the class has, in this order: ``flow``; ``run``; ``returned`` and ``typed``;
        # ``declared``; ``seed``
        opens_flow: bool
        runs_blocks: bool
        returns_rows: bool
        declares: bool
        takes_seed: bool

    def __post_init__(self) -> None:
        try:
            self.check()
            # derived from the source upwards, so that the longest chain never recurses
            _ = self.schema, self.batched, self.ordinal, self.level
        except DmlError as error:
            raise error.located(self.label()) from None

    def check(self) -> None:
        """Raise PlanError for invalid parameters; the default accepts all parameters."""

    def stands(self) -> bool:
        """Return True if facts about users' functions still hold: no global they read changed."""
        return True

    def infer(self) -> Schema:
        """Return the schema that the user declared, else derive it from those of the inputs.

        Raises SchemaError if it cannot be derived.
        """
        if self.declares:
            return cast("Any", self).declared or UNKNOWN
        given = self.inputs[0].schema
        return self.schema_over(given) if given.known else UNKNOWN

    def schema_over(self, given: Schema) -> Schema:
        """Return the output schema over an input of schema ``given``, or raise SchemaError."""
        return given

    @cached_property
    def schema(self) -> Schema:
        """The schema of the output."""
        return self.infer()

    @property
    def endless(self) -> bool:
        """True if the output has no last element; an operator above may still limit it."""
        return any(node.endless for node in self.inputs)

    def length(self, *given: Length) -> Length | None:
        """Return the number of output elements for inputs of lengths ``given``; None if unknown.

        ``given`` has one length per input, in the order of ``inputs``.
        """
        # a function of batches may return a batch without rows, which is dropped
        vanishing = self.batched and self.calls is not None
        kept = self.keeps_length or (self.rows in LASTING and len(given) == 1)
        return given[0] if kept and not vanishing else None

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields and written position that another process needs; derive the rest."""
        kept = (*self.field_names, "ordinal", "level", "batched", "where")
        return {name: self.__dict__[name] for name in kept if name in self.__dict__}

    @cached_property
    def digest(self) -> bytes:
        """Fingerprint of this step as written, 16 bytes; nodes are equal if their digests are."""
        parts = [getattr(self, name) for name in self.meaning_names]
        # the places as written are part of the digest where random keys or ids depend on them
        places = (self.ordinal if self.random else -1, self.level if self.rows in DERIVING else -1)
        kind = (type(self).__name__, self.version)
        return digest(*kind, *places, *(_digestible(p) for p in parts))

    @cached_property
    def memo(self) -> dict[str, Any]:
        """A dict for values that this process derives from the node; never pickled."""
        return {}

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes that this step reads, in field order."""
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
        """The number of random operators written before this one."""
        return sum(node.ordinal + node.random for node in self.inputs)

    @cached_property
    def level(self) -> int:
        """The number of operators below that derive row ids; it is part of this operator's key."""
        return sum(node.level + (node.rows in DERIVING) for node in self.inputs)

    @property
    def calls(self) -> UserFunction | None:
        """The user's function that this step calls, or None."""
        return getattr(self, "fn", None)

    @property
    def needs(self) -> Needs:
        """The resources that one task of this step occupies."""
        return Needs()

    @property
    def decides(self) -> bool:
        """True if each run decides anew whether this step caches its input (as ``autocache``)."""
        return False

    @property
    def resume_cost(self) -> ResumeCost:
        """The worst-case cost of a resumption: bytes of saved state, and rows to compute again."""
        return ResumeCost()

    def replace(self, **changes: Any) -> Self:
        """Return a copy with the fields ``changes``; ``where``, ``ordinal`` and ``level`` stay."""
        made = object.__new__(type(self))
        for name in self.field_names:
            made.__dict__[name] = changes.pop(name) if name in changes else getattr(self, name)
        if changes:
            raise InternalError(f"{type(self).__name__} has no field {sorted(changes)}")
        # places as written, copied before anything is derived: rewriting moves operators, and their
        # random keys must not change
        made.__dict__["ordinal"], made.__dict__["level"] = self.ordinal, self.level
        made.__post_init__()
        return made.placed(self.where)

    def placed(self, where: str) -> Self:
        """Set the user's source line to ``where``, unless that is ""; return this node."""
        if where:
            object.__setattr__(self, "where", where)
        return self

    def map_inputs(self, fn: Callable[[Node], Node]) -> Node:
        """Return this step over ``fn(input)`` for each input; this node if no input changed."""
        new = self.mapped(fn)
        return self.replace(**new) if new else self

    def turn(self, epoch: int) -> int:
        """Return the epoch of the input from which this step computes its output of ``epoch``.

        This is ``epoch`` itself, except for row-local steps that reuse rows across epochs.
        """
        return epoch

    def mapped(self, fn: Callable[[Node], Node]) -> dict[str, Any]:
        """Return the input fields that ``fn`` changes, with their new values; empty if none."""
        new: dict[str, Any] = {}
        for name in self.input_names:
            old: Any = getattr(self, name)
            made: Any = tuple(map(fn, old)) if isinstance(old, tuple) else fn(old)
            same = made is old or (isinstance(old, tuple) and all(map(is_, made, old)))
            if not same:
                new[name] = made
        return new

    def chain(self) -> list[Node]:
        """Return this step, its first input, the first input of that, and so on, source first."""
        steps: list[Node] = [self]
        while steps[-1].inputs:
            steps.append(steps[-1].inputs[0])
        return steps[::-1]

    def walk(self) -> Iterator[Node]:
        """Yield every distinct node of the tree once, inputs before the nodes that read them."""
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

    def parameters_text(self) -> str:
        """Return the parameters as the user would write them."""
        if self.parameters_format is not None:
            return self.parameters_format.format(self=self)
        names = [n for n in self.field_names if n not in self.input_names]
        return ", ".join(f"{n}={getattr(self, n)!r}" for n in names)

    def title(self) -> str:
        """Return the operator's name and parameters on one line."""
        return f"{type(self).__name__}({self.parameters_text()})"

    def label(self) -> str:
        """Return the title, followed by the user's source line if it is known."""
        return f"{self.title()}, written in {self.where}" if self.where else self.title()

    def __repr__(self) -> str:
        return self.title()


def tree(root: Node) -> str:
    """Return the tree below ``root``, one operator per line, last first, side inputs indented."""
    lines: list[str] = []
    node: Node | None = root
    while node is not None:
        lines.append(f"{node.title()}  -> {node.schema}" if not lines else node.title())
        for other in node.inputs[1:]:
            lines += ["  " + line for line in tree(other).split("\n")]
        node = node.inputs[0] if node.inputs else None
    return "\n".join(lines)


def epochs_at(steps: Sequence[Node], epoch: int) -> list[int]:
    """Return the epoch that each of ``steps`` computes if the last one computes ``epoch``."""
    found = [epoch] * len(steps)
    for number in range(len(steps) - 1, -1, -1):
        found[number], epoch = epoch, steps[number].turn(epoch)
    return found


def _digestible(part: Any) -> Any:
    """Return ``part`` with digests in place of nodes."""
    if isinstance(part, tuple) and part and isinstance(part[0], Node):
        return tuple(each.digest for each in part)
    return part.digest if isinstance(part, Node) else part
