"""Columns that contain calls of users' functions are computed in separate steps.

An expression is computed on whole blocks, and may be moved, evaluated twice or omitted; a call of a
user's function must not. So ``with_columns`` becomes a sequence of steps: expressions, calls,
expressions.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dml.api.verbs.step import function
from dml.base.user_line import door, users_line
from dml.data.schema import Schema, data_type
from dml.errors import PlanError
from dml.expr.columns.column import Column, wrap
from dml.expr.columns.value import Value, col, rebuilt
from dml.expr.node import Node
from dml.expr.user_call import UserFunction
from dml.ops.row.apply import Apply
from dml.ops.row.drop import Drop
from dml.ops.row.with_columns import WithColumns

Made = tuple[tuple[str, Value], ...]


class Call(NamedTuple):
    """A call of a function: the argument columns, and the name and type of the result column."""

    fn: UserFunction
    args: tuple[str, ...]
    name: str
    kind: Any


class Udf:
    """A user's function of values that is called with columns; see ``dml.udf``."""

    def __init__(
        self, fn: Callable[..., Any], kind: Any, fingerprint: str | None, timeout: float | None
    ) -> None:
        functools.update_wrapper(self, fn)
        self.fn = function(fn, "udf", fingerprint, timeout=timeout)
        self.kind = data_type(kind)

    @door
    def __call__(self, *columns: Any) -> Column:
        """Return the column of the function's results for each row of ``columns``."""
        args = tuple(col(c) if isinstance(c, str) else wrap(c) for c in columns)
        if not any(arg.refs or arg.draws for arg in args):
            raise PlanError(
                f"{self.fn.name} is called without a column",
                why="it is called once for each row, with the values of columns",
                try_=f'{self.fn.name}(dml.col("x"))',
            )
        return Column(Value("udf", args, (self.fn, self.kind)))

    def __repr__(self) -> str:
        return f"udf {self.fn.name}"


class SplitSteps:
    """The steps that compute columns with calls: first ``before``, then the expressions ``last``.

    ``drop`` are temporary columns, which are dropped after the last step.
    """

    def __init__(self, values: Sequence[tuple[str, Value]], given: Schema) -> None:
        self.before: list[Made | Call] = []
        self.spare = (name for i in itertools.count() if (name := f"udf:{i}") not in given)
        self.drop: list[str] = []
        self.done: dict[Value, Value] = {}
        # if all values are calls that make new columns, the calls use the final names at once
        alone = given.known and all(v.op == "udf" and name not in given for name, v in values)
        self.names = {value: name for name, value in reversed(values)} if alone else {}
        made = [(name, self.without(value)) for name, value in values]
        self.last = tuple((name, v) for name, v in made if not alone or v != col(name))

    def over(self, given: Node) -> Node:
        """Append all steps to ``given``, and return the node of the last one."""
        node, where = given, users_line()
        for step in self.before:
            made = Apply(node, *step) if isinstance(step, Call) else WithColumns(node, step)
            node = made.placed(where)
        node = WithColumns(node, self.last).placed(where) if self.last else node
        return Drop(node, tuple(self.drop)) if self.drop else node

    def without(self, value: Value) -> Value:
        """Return ``value`` with its calls replaced by their columns; equal calls share a column."""
        if value not in self.done:
            made = rebuilt(value, self.without)
            if value.op == "udf":
                made = self.called(made, self.names.get(value))
            self.done[value] = made
        return self.done[value]

    def called(self, value: Value, name: str | None) -> Value:
        """Append the steps of a call and of its arguments; return the result's column."""
        fn, kind = value.params
        named = [(self.name(), arg) for arg in value.args if arg.op != "col"]
        if named:
            self.before.append(tuple(named))
        made = iter(name for name, _ in named)
        args = tuple(a.params[0] if a.op == "col" else next(made) for a in value.args)
        name = name or self.name()
        self.before.append(Call(fn, args, name, kind))
        return col(name)

    def name(self) -> str:
        """Return an unused name for a temporary column, which is dropped in the end."""
        self.drop.append(next(self.spare))
        return self.drop[-1]
