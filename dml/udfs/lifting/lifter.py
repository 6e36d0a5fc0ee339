"""Row functions are lifted to expressions: they are proven pure and traced once per path.

The result consists of expressions with Python's semantics, and of checks. In a row where a check is
true, Python would return another result or raise, so the whole block must be computed by calling
the function. Functions for which this cannot be proven are refused with a reason.

Source: path enumeration as in symbolic execution; the idea of lifting row functions into vectorised
expressions is tf.data's map vectorisation.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa

from dml.data.schema import Schema, code_of, shape_of
from dml.errors import DmlError
from dml.expr.columns.typing import lower
from dml.expr.columns.value import Value, col, joined, lit
from dml.udfs.identity.bytecode import Instruction, program
from dml.udfs.identity.environment import surroundings, within
from dml.udfs.identity.references import references
from dml.udfs.lifting.purity import objection
from dml.udfs.lifting.symbolic_row import (
    RUNNING,
    SymbolicRow,
    Tracer,
    Trap,
    UnliftableError,
    Unreadable,
    bounded,
)
from dml.udfs.lifting.traced_builtins import replacement
from dml.udfs.lifting.traced_value import KINDS, Traced, truth

PATHS = 64
TESTS_NONE = {"IS_OP", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE"}
WORDS = {"i": "an int", "f": "a float", "b": "a bool", "s": "text"}
YES = lit(value=True)
ALWAYS = "it raises on every path"
PLAIN = "it gives a value of the row to what takes plain values alone, or always raises"


@dataclasses.dataclass(frozen=True, slots=True)
class Lifted:
    """The expressions that a function computes, over the columns of its schema.

    ``columns`` are the names and values that a ``map`` function returns, in order; None for a
    filter, which has a ``predicate`` instead. The expressions are not proven in a row in which one
    of ``checks`` is true, nor in any row once the outside values that the function reads differ
    from ``given``. If ``sure``, a column that the expressions return unchanged is unchanged in
    unproven rows as well, unless the function raises.
    """

    columns: tuple[tuple[str, Value], ...] | None
    predicate: Value | None
    checks: tuple[Value, ...]
    given: tuple[object, ...] = ()
    sure: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a function is not lifted, in one sentence for the function's author."""

    reason: str


def lift(fn: Callable[..., Any], schema: Schema) -> Lifted | Refusal:
    """Return ``fn`` as expressions over ``schema``, or a ``Refusal``; never raise an error.

    ``fn`` must be a function of one row that returns a dict of scalars (``map``) or a truth value
    (``filter``), is proven pure, and computes with int, float, bool and text alone. The expressions
    keep Python's meaning, bit for bit, in every row where no check is true. This takes about 200
    microseconds per path.
    """
    if why := objection(fn, edits=True):
        return Refusal(why)
    if not schema.known:
        return Refusal("the columns of its rows are not known yet")
    try:
        runs = _runs(fn, schema)
        outcome = _merged(runs, 0)
        if outcome.raised:
            return Refusal(next(filter(None, [run.why for run in runs]), ALWAYS))
        lifted = _delivered(outcome)
        values = [value for _, value in lifted.columns or ()]
        lower([*values, *filter(None, [lifted.predicate])], schema, lifted.checks)
    except UnliftableError as error:
        return Refusal(str(error))
    except DmlError as error:
        return Refusal(f"its expression has no type: {error.what}")
    except RecursionError:
        return Refusal("its expressions are nested too deeply")
    sure = not any(run.leaves for run in runs)
    return dataclasses.replace(lifted, given=surroundings(fn), sure=sure)


@dataclasses.dataclass(frozen=True, slots=True)
class _Run:
    """One traced path: questions and checks in order, and the result (None if the path raised).

    ``leaves`` is True if Python may take a path that was not traced in rows where a check is true.
    ``why`` is a reason for the function's author, if tracing itself may have caused the exception.
    """

    events: Sequence[tuple[Value, bool | None]]
    result: Any
    leaves: bool
    raised: bool = False
    why: str = ""


def _runs(fn: Callable[..., Any], schema: Schema) -> list[_Run]:
    """Run ``fn`` once per path: in each run, its questions get another combination of answers."""
    memo: dict[int, types.FunctionType] = {}
    patched = _patched(fn, memo)
    codes = [code for part in memo.values() for code in within(part.__code__)]
    programs = [program(code).steps for code in codes]
    for steps in programs:
        _refuse_identity(steps)
    names = {step.name for steps in programs for step in steps}
    loops = any(0 <= step.target <= at for steps in programs for at, step in enumerate(steps))
    call = bounded(patched, set(codes)) if loops else patched
    runs: list[_Run] = []
    todo: list[tuple[bool, ...]] = [()]
    while todo:
        if len(runs) >= PATHS:
            raise UnliftableError(f"it has more than {PATHS} paths")
        answers = todo.pop()
        tests_none, catches = bool(names & TESTS_NONE), "PUSH_EXC_INFO" in names
        tracer = Tracer(answers, tests_none=tests_none, catches=catches)
        runs.append(_run(call, tracer, schema))
        given = tracer.given
        todo += [(*given[:place], False) for place in range(len(answers), len(given))]
    return runs


def _refuse_identity(steps: Sequence[Instruction]) -> None:
    """Refuse ``is`` and ``is not``, unless the right side is always the constant None.

    A traced value is never the same object as the Python value it stands for (True, a small
    integer), and ``is`` cannot be overloaded. Only None is the same object while tracing.
    """
    reached = {step.target for step in steps}
    for place, step in enumerate(steps):
        if step.name == "IS_OP":
            before = steps[place - 1]
            none = before.name == "LOAD_CONST" and before.constant is None
            if place in reached or not none:
                raise UnliftableError("it compares by identity with something other than None")


def _run(fn: Callable[..., Any], tracer: Tracer, schema: Schema) -> _Run:
    columns = {name: _column(tracer, name, kind) for name, kind in schema.items()}
    RUNNING.set(tracer)
    try:
        result = fn(SymbolicRow(tracer, columns))
        plain = _plain(tracer, result)
        return _Run(tracer.events, plain, tracer.leaves)
    except UnliftableError:
        raise
    except Trap:
        return _Run(tracer.events, None, tracer.leaves, raised=True)
    except BaseException as error:  # noqa: BLE001 - rows on this path are run in Python
        why = PLAIN if isinstance(error, TypeError | AttributeError) else ""
        return _Run(tracer.events, None, leaves=True, raised=True, why=why)


def _column(tracer: Tracer, name: str, kind: pa.DataType) -> Traced | Unreadable:
    """Return the traced value that stands for column ``name`` in a row, or an ``Unreadable``."""
    code = code_of(kind)
    letter = {"b": "b", "i": "i", "u": "i", "f": "f"}.get(code[0], "")
    if code == "arrow":
        letter = "s" if pa.types.is_string(kind) else ""
    if not letter or shape_of(kind) or code in ("u8", "f2"):
        return Unreadable(name, kind)
    source = col(name)
    whole = source if kind == KINDS[letter] else Value("cast", (source,), (KINDS[letter], False))
    return Traced(tracer, whole, letter, source)


def _plain(tracer: Tracer, result: Any) -> Any:
    """Return the result of a path: a dict of traced values and None, or one truth value."""
    if isinstance(result, SymbolicRow):
        return {name: _scalar(tracer, name, value) for name, value in dict.items(result)}
    if isinstance(result, dict):
        return {name: _scalar(tracer, name, result[name]) for name in result.keys()}  # noqa: SIM118
    if isinstance(result, Traced):
        if result.kind != "b":
            raise UnliftableError("a filter must return a bool: compare with something")
        return result.used()
    if isinstance(result, bool):
        return Traced(tracer, lit(result, KINDS["b"]), "b")
    raise UnliftableError(f"it returns a {type(result).__name__}, neither a dict nor a bool")


def _scalar(tracer: Tracer, name: Any, value: Any) -> Traced | None:
    if type(name) is not str:
        raise UnliftableError("it returns a column whose name is not text")
    if value is None or isinstance(value, Traced):
        return value
    if isinstance(value, Unreadable):
        raise UnliftableError(f"it returns column {name!r} of a type that is not lifted")
    made = Traced(tracer, YES, "b").operand(value)
    if made is None:
        raise UnliftableError(f"it returns a {type(value).__name__} as {name!r}")
    return made


@dataclasses.dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of paths with equal answers up to a question, merged into conditional values.

    ``outside`` is true in rows that Python must compute (None: in none).
    """

    outside: Value | None
    result: Any
    raised: bool = False


def _merged(runs: Sequence[_Run], place: int) -> _Outcome:
    """Merge runs whose events are equal before index ``place`` into one conditional outcome."""
    events = runs[0].events
    checks: list[Value] = []
    while place < len(events) and events[place][1] is None:
        checks.append(events[place][0])
        place += 1
    if place == len(events):
        last = runs[0]
        return _Outcome(
            _either([*checks, *([YES] if last.raised else [])]), last.result, last.raised
        )
    question = events[place][0]
    yes = _merged([run for run in runs if run.events[place][1]], place + 1)
    no = _merged([run for run in runs if not run.events[place][1]], place + 1)
    outside = [*checks]
    if yes.outside is not None:
        outside.append(Value("and", (question, yes.outside)))
    if no.outside is not None:
        outside.append(Value("and", (Value("not", (question,)), no.outside)))
    if yes.raised or no.raised:
        other = no if yes.raised else yes
        return _Outcome(_either(outside), other.result, other.raised)
    return _Outcome(_either(outside), _chosen(question, yes.result, no.result))


def _either(parts: Sequence[Value]) -> Value | None:
    return joined("or", parts) if parts else None


def _chosen(question: Value, yes: Any, no: Any) -> Any:
    """Return the conditional of ``yes`` and ``no`` (of equal form and kinds) on ``question``."""
    if isinstance(yes, dict) and isinstance(no, dict):
        if list(yes) != list(no):
            raise UnliftableError("it returns other columns on other paths")
        return {name: _choice(question, yes[name], no[name], name) for name in yes}
    if isinstance(yes, dict) or isinstance(no, dict):
        raise UnliftableError("it returns a dict on some paths only")
    return _choice(question, yes, no, "result")


def _choice(question: Value, yes: Traced | None, no: Traced | None, name: str) -> Traced | None:
    if yes is None or no is None:
        some = no if yes is None else yes
        if some is None:
            return None
        null = Traced(some.tracer, lit(None, KINDS[some.kind]), some.kind)
        yes, no = (null if yes is None else yes), (null if no is None else no)
    if yes.kind != no.kind:
        kinds = f"{WORDS[yes.kind]} on one path and {WORDS[no.kind]} on another"
        raise UnliftableError(f"{name!r} is {kinds}")
    if yes.value.digest == no.value.digest:
        return yes
    return Traced(yes.tracer, Value("if_else", (question, yes.value, no.value)), yes.kind)


def _delivered(outcome: _Outcome) -> Lifted:
    checks = () if outcome.outside is None else (outcome.outside,)
    if not isinstance(outcome.result, dict):
        return Lifted(None, truth(outcome.result), checks)
    columns = []
    for name, value in outcome.result.items():
        if value is None:
            raise UnliftableError(f"{name!r} is None on every path")
        columns.append((name, value.value))
    if not columns:
        raise UnliftableError("it returns no columns")
    return Lifted(tuple(columns), None, checks)


def _patched(fn: Any, memo: dict[int, types.FunctionType]) -> Any:
    """Return a copy of ``fn``, and of functions it calls, whose globals accept traced values."""
    if isinstance(fn, functools.partial):
        return functools.partial(_patched(fn.func, memo), *fn.args, **fn.keywords)
    found = memo.get(id(fn))
    if found is not None:
        return found

    def replaced(value: Any) -> Any:
        if isinstance(value, types.FunctionType | functools.partial):
            return _patched(value, memo)
        return replacement(value)

    names = {ref.names[0] for ref in references(fn.__code__) if ref.kind == "global"}
    given: Mapping[str, Any] = cast("Any", fn).__builtins__
    space = {
        name: replaced(fn.__globals__[name] if name in fn.__globals__ else given[name])
        for name in names
    }
    space["__builtins__"] = given
    cells = tuple(types.CellType(replaced(cell.cell_contents)) for cell in fn.__closure__ or ())
    code = _without_sets(fn.__code__)
    made = types.FunctionType(code, space, fn.__name__, fn.__defaults__, cells)
    made.__kwdefaults__ = fn.__kwdefaults__
    memo[id(fn)] = made
    return made


def _without_sets(code: types.CodeType) -> types.CodeType:
    """Return the code with tuples in place of constant sets, which are used only with ``in``."""
    constants = tuple(
        _without_sets(each) if isinstance(each, types.CodeType) else replacement(each)
        for each in code.co_consts
    )
    return code.replace(co_consts=constants)
