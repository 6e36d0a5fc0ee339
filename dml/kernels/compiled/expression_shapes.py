"""A program is split into expression shapes: expressions of one shape share a kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dml.kernels.lookup_ops import boundaries_as, members_as
from dml.kernels.program import Program, Step
from dml.kernels.rows.ids import GOLDEN
from dml.kernels.vec import NUMERIC_CODES

DIVISIONS = ("floordiv", "mod", "py_floordiv", "py_mod")
WORD = 2**64


class Divisible(NamedTuple):
    """A test whether ``register`` (i8) is a multiple of ``by`` or, if ``negated``, is not.

    If ``certain``, the result is never null, even where the register is null.
    """

    register: int
    by: int
    negated: bool
    certain: bool


def divisors(program: Program) -> set[Any]:
    """Return the different constants by which steps of ``program`` divide."""
    given = [_literal(program, step.args[1]) for step in program.steps if step.op in DIVISIONS]
    return {number for number in given if number is not None}


def divisible(program: Program, step: Step) -> Divisible | None:
    """Return ``step`` as a divisibility test; None if it is another operation.

    Such a step compares ``x % c`` with 0, for an i8 register x and a constant c, no power of two.
    """
    first = len(program.inputs)
    if step.op not in ("eq", "ne"):
        return None
    for rest, zero in (step.args, step.args[::-1]):
        made = program.steps[rest - first] if rest >= first else None
        if made is None or made.op not in ("mod", "py_mod") or made.code != "i8":
            continue
        by = _literal(program, made.args[1])
        if by and _literal(program, zero) == 0 and abs(by) & (abs(by) - 1):
            return Divisible(made.args[0], abs(by), step.op == "ne", made.op == "py_mod")
    return None


def multiples(by: int) -> tuple[int, int, int, int]:
    """Return inverse, addend, turn and most for ``is_multiple`` of ``by``, no power of two."""
    turn = (by & -by).bit_length() - 1
    odd = by >> turn
    addend = (2**63 - 1) // odd & -(2**turn)
    return pow(odd, -1, WORD), addend, turn, 2 * addend >> turn


def _literal(program: Program, register: int) -> Any:
    """Return the value of a register that is a literal; None for other registers."""
    first = len(program.inputs)
    step = program.steps[register - first] if register >= first else None
    return step.params[0] if step is not None and step.op == "lit" else None


# Most steps of a kernel for outputs that share steps (0.2 s each to compile, and more in larger
# kernels); an output that would exceed the limit gets a kernel that repeats the shared steps.
MOST_SHARED = 12
# An expression of more steps runs in NumPy: its kernel would take many seconds to compile.
LONGEST = 64
# Most list members or boundaries that kernels compare one by one; NumPy searches longer lists.
MOST_MEMBERS = 16
# Up to so many constant divisors of a program are literals in its kernels, so that LLVM replaces
# the divisions by multiplications.
MOST_DIVISORS = 4

COLUMN, MATRIX, CHECK, KEEP = "column", "matrix", "check", "keep"


@dataclasses.dataclass(frozen=True, slots=True)
class Root:
    """A register that a kernel outputs as ``kind``: column, matrix column, check or keep.

    If a shape has a root of kind ``keep``, its columns contain only the rows in which it is true.
    """

    register: int
    kind: str


@dataclasses.dataclass(frozen=True, slots=True)
class ExpressionShape:
    """An expression without its columns and constants; all expressions of a shape share a kernel.

    Registers count the inputs, then the constants, then the steps. Values among a step's parameters
    become ``constants``; the parameters left in ``params`` determine the generated code.
    """

    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    steps: tuple[Step, ...]
    roots: tuple[Root, ...]

    @property
    def codes(self) -> tuple[str, ...]:
        """Type code of every register."""
        return self.inputs + self.constants + tuple(step.code for step in self.steps)


@dataclasses.dataclass(frozen=True, slots=True)
class ShapeInstance:
    """One use of a shape: the program's inputs and constants, and the target of each root.

    A target is (output, column) for a matrix, (output, 0) for a column, (check, 0) for a check,
    (number of outputs, 0) for ``keep``.
    """

    inputs: tuple[int, ...]
    constants: tuple[Any, ...]
    targets: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ShapeGroup:
    """Instances of one shape that one kernel call computes; all write to the same matrices."""

    shape: ExpressionShape
    instances: tuple[ShapeInstance, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class SplitProgram:
    """A program as kernel calls (``groups``), and indices of what they do not compute.

    ``passed`` are outputs that are inputs of the program; ``rest`` and ``rest_checks`` are outputs
    and checks that NumPy computes.
    """

    groups: tuple[ShapeGroup, ...]
    passed: tuple[int, ...]
    rest: tuple[int, ...]
    rest_checks: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Target:
    """A register that a kernel outputs, and its ``place``, a target as in ``ShapeInstance``."""

    register: int
    kind: str
    place: tuple[int, int]


def split(program: Program, supported: frozenset[str]) -> SplitProgram:
    """Split ``program`` into kernels of ``supported`` operations and a rest for NumPy."""
    reader = _Reader(program, supported)
    passed = [i for i, r in enumerate(program.outputs) if r < len(program.inputs)]
    targets = {i: reader.targets(i) for i in range(len(program.outputs)) if i not in passed}
    checks = [_Target(r, CHECK, (i, 0)) for i, r in enumerate(program.checks)]
    members = [t for group in targets.values() if group for t in group]
    members += [check for check in checks if reader.fusible(check.register)]
    components = reader.components(members)
    small = [c for c in components if len(reader.steps_of(c)) <= LONGEST]
    kept = {t for component in small for t in component}
    rest = [i for i, group in targets.items() if not group or not kept.issuperset(group)]
    wanted = [[t for t in c if t.kind == CHECK or t.place[0] not in rest] for c in small]
    return SplitProgram(
        groups=_grouped([reader.instance(c) for c in wanted if c]),
        passed=tuple(passed),
        rest=tuple(rest),
        rest_checks=tuple(c.place[0] for c in checks if c not in kept),
    )


def split_kept(program: Program, supported: frozenset[str]) -> SplitProgram | None:
    """Return a program with ``keep`` as one kernel call; None if that is impossible."""
    if program.keep is None:
        return None
    reader = _Reader(program, supported)
    passed = [i for i, r in enumerate(program.outputs) if r < len(program.inputs)]
    targets = [reader.targets(i) for i in range(len(program.outputs)) if i not in passed]
    checks = [_Target(r, CHECK, (i, 0)) for i, r in enumerate(program.checks)]
    keep = _Target(program.keep, KEEP, (len(program.outputs), 0))
    members = [*(t for group in targets for t in group), *checks, keep]
    if not all(targets) or any(t.kind == MATRIX for t in members):
        return None
    fusible = all(reader.fusible(t.register) for t in members)
    if not fusible or len(reader.steps_of(members)) > MOST_SHARED:
        return None
    return SplitProgram(_grouped([reader.instance(members)]), tuple(passed), (), ())


def _grouped(instances: Sequence[tuple[ExpressionShape, ShapeInstance]]) -> tuple[ShapeGroup, ...]:
    groups: dict[tuple[Any, ...], list[ShapeInstance]] = {}
    for shape, instance in instances:
        matrices = tuple(
            target[0]
            for root, target in zip(shape.roots, instance.targets, strict=True)
            if root.kind == MATRIX
        )
        groups.setdefault((shape, matrices), []).append(instance)
    return tuple(ShapeGroup(key[0], tuple(found)) for key, found in groups.items())


class _Reader:
    """Finds the steps and inputs that registers of one program are computed from."""

    def __init__(self, program: Program, supported: frozenset[str]) -> None:
        self.program, self.supported = program, supported
        self.first = len(program.inputs)
        self.known: dict[int, bool] = {}

    def step(self, register: int) -> Step | None:
        """Return the step that wrote ``register``; None for inputs."""
        return self.program.steps[register - self.first] if register >= self.first else None

    def fusible(self, register: int) -> bool:
        """Return True if supported steps compute ``register`` from columns of numbers."""
        if register not in self.known:
            step = self.step(register)
            numeric = self.program.codes[register] in NUMERIC_CODES
            here = step is None or step.op == "lit" or self.supports(step)
            args = step.args if step is not None else ()
            self.known[register] = numeric and here and all(map(self.fusible, args))
        return self.known[register]

    def supports(self, step: Step) -> bool:
        """Return True if a kernel can compute ``step`` from arguments of their types."""
        codes = {self.program.codes[arg] for arg in step.args}
        if step.op in ("bucketize", "is_in") and len(step.params[0]) > MOST_MEMBERS:
            return False
        name = f"{step.op}_{step.code}"
        return step.op in self.supported or (name in self.supported and codes <= {"f4", "f8"})

    def targets(self, output: int) -> list[_Target]:
        """Return the targets of ``output``, one per matrix column; [] if no kernel computes all."""
        register = self.program.outputs[output]
        step = self.step(register)
        if step is None or step.op == "lit":
            return []
        if step.op != "stack":
            found = [_Target(register, COLUMN, (output, 0))]
        else:
            found = [_Target(arg, MATRIX, (output, i)) for i, arg in enumerate(step.args)]
        return found if all(self.fusible(t.register) for t in found) else []

    def below(self, register: int) -> set[int]:
        """Return the registers of all steps that ``register`` depends on, except literals."""
        found: set[int] = set()
        waiting = [register]
        while waiting:
            at = waiting.pop()
            step = self.step(at)
            if step is None or step.op == "lit" or at in found:
                continue
            found.add(at)
            waiting.extend(step.args)
        return found

    def steps_of(self, targets: Sequence[_Target]) -> set[int]:
        """Return the registers of all steps that compute ``targets``."""
        return set().union(*(self.below(t.register) for t in targets))

    def components(self, targets: Sequence[_Target]) -> list[list[_Target]]:
        """Group targets that share steps, unless a group would exceed ``MOST_SHARED`` steps."""
        owner: dict[int, list[_Target]] = {}
        found: list[list[_Target]] = []
        for target in targets:
            steps = self.below(target.register)
            shared = {id(owner[s]): owner[s] for s in steps if s in owner}
            merged = [t for component in shared.values() for t in component] + [target]
            if len(self.steps_of(merged)) > MOST_SHARED:
                shared, merged = {}, [target]
            found = [c for c in found if id(c) not in shared] + [merged]
            for member in merged:
                owner.update((s, merged) for s in self.below(member.register))
        return found

    def instance(self, targets: Sequence[_Target]) -> tuple[ExpressionShape, ShapeInstance]:
        """Return the shape of the component ``targets``, and the instance of that shape."""
        steps = sorted(self.steps_of(targets))
        leaves = dict.fromkeys(
            arg for s in steps for arg in self.program.steps[s - self.first].args
        )
        leaves.update(dict.fromkeys(t.register for t in targets))
        inputs = [leaf for leaf in leaves if leaf < self.first]
        literals = [leaf for leaf in leaves if leaf >= self.first and leaf not in steps]
        parts = _Parts(self.program, inputs)
        for literal in literals:
            parts.add_literal(literal)
        lowered = [parts.lower(s, self.program.steps[s - self.first]) for s in steps]
        return parts.assemble(lowered, targets)


class _Parts:
    """Collects the constants of one component and renumbers its registers."""

    def __init__(self, program: Program, inputs: Sequence[int]) -> None:
        self.program, self.inputs = program, tuple(inputs)
        self.names: dict[int, tuple[str, int]] = {r: ("input", i) for i, r in enumerate(inputs)}
        self.constants: list[tuple[str, Any]] = []
        self.nulls: list[str] = []
        self.steps = 0

    def constant(self, code: str, value: Any) -> tuple[str, int]:
        """Add a constant of type ``code``; return its place ("constant", its index)."""
        self.constants.append((code, value))
        return ("constant", len(self.constants) - 1)

    def add_literal(self, register: int) -> None:
        """Add the literal in ``register`` as a constant or, if null, as a step."""
        step = self.program.steps[register - len(self.program.inputs)]
        if step.params[0] is None:
            self.nulls.append(step.code)
            self.names[register] = ("null", len(self.nulls) - 1)
        else:
            value = np.asarray(step.params[0], step.code)
            self.names[register] = self.constant(step.code, value[()])

    def lower(self, register: int, step: Step) -> tuple[Step, tuple[tuple[str, int], ...]]:
        """Return ``step`` without its constants, and the places of its arguments and constants.

        A place is a kind ("input", "constant", "null" or "step") and an index within this kind.
        """
        places = [self.names[arg] for arg in step.args]
        params: tuple[Any, ...] = step.params
        asked = divisible(self.program, step)
        if asked is not None:
            step = dataclasses.replace(step, op="divisible")
            places = [self.names[asked.register]]
            places += [self.constant("u8", number) for number in multiples(asked.by)]
            params = (asked.negated, asked.certain)
        extra = self.taken_out(step)
        if extra is not None:
            places += [self.constant(code, value) for code, value in extra]
            params = ()
        elif step.op in ("minimum", "maximum"):
            params = tuple(self.kind_of(place) for place in places)
        elif step.op in DIVISIONS and step.code[0] in "iu":
            params = self.divisor(places[1])
        self.names[register] = ("step", self.steps)
        self.steps += 1
        return Step(step.op, (), step.code, params), tuple(places)

    def taken_out(self, step: Step) -> list[tuple[str, Any]] | None:
        """Return parameters of ``step`` as (type code, value); None if they stay in the code."""
        code = self.program.codes[step.args[0]] if step.args else ""
        match step.op:
            case "hash":
                return [("u8", (int(step.params[0]) + 1) * GOLDEN % 2**64)]
            case "uniform":
                draw = int(step.params[1]) if len(step.params) > 1 else 0
                return [("u8", int(step.params[0])), ("u8", (draw + 1) * GOLDEN % 2**64)]
            case "bucketize":
                return [(code, v) for v in boundaries_as(step.params[0], np.dtype(code))]
            case "is_in":
                return [(code, v) for v in members_as(step.params[0], np.dtype(code))]
        return None

    def divisor(self, place: tuple[str, int]) -> tuple[int, ...]:
        """Return (divisor,) if the divisor at ``place`` is to be a literal in the kernel, else ().

        It is, if it is constant and the program has at most ``MOST_DIVISORS`` constant divisors.
        """
        if place[0] != "constant" or len(divisors(self.program)) > MOST_DIVISORS:
            return ()
        return (int(self.constants[place[1]][1]),)

    def kind_of(self, place: tuple[str, int]) -> str:
        """Return "nonzero", "positive zero" or "negative zero" for a float constant, else "any".

        Minimum and maximum need to know it, since they order zeros by sign. NaN is "any", too.
        """
        if place[0] != "constant" or self.constants[place[1]][0][0] != "f":
            return "any"
        value = self.constants[place[1]][1]
        if np.isnan(value):
            return "any"
        if value != 0:
            return "nonzero"
        return "negative zero" if np.signbit(value) else "positive zero"

    def assemble(
        self,
        lowered: Sequence[tuple[Step, tuple[tuple[str, int], ...]]],
        targets: Sequence[_Target],
    ) -> tuple[ExpressionShape, ShapeInstance]:
        """Return shape and instance; registers number inputs, constants, nulls, then steps."""
        start = {"input": 0, "constant": len(self.inputs)}
        start["null"] = start["constant"] + len(self.constants)
        start["step"] = start["null"] + len(self.nulls)

        def number(place: tuple[str, int]) -> int:
            return start[place[0]] + place[1]

        steps = [Step("null", (), code) for code in self.nulls]
        steps += [
            dataclasses.replace(step, args=tuple(map(number, places))) for step, places in lowered
        ]
        shape = ExpressionShape(
            inputs=tuple(self.program.codes[i] for i in self.inputs),
            constants=tuple(code for code, _ in self.constants),
            steps=tuple(steps),
            roots=tuple(Root(number(self.names[t.register]), t.kind) for t in targets),
        )
        values = tuple(value for _, value in self.constants)
        return shape, ShapeInstance(self.inputs, values, tuple(t.place for t in targets))
