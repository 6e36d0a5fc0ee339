"""All verbs append steps to a pipeline, and check users' arguments, with these functions."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from dml.api.runs import Results
from dml.base.user_line import users_line
from dml.checks import whole
from dml.data.schema import Schema, schema_of
from dml.errors import DmlError, PlanError, SchemaError
from dml.expr.facts import Needs
from dml.expr.node import Node
from dml.settings import Settings

if TYPE_CHECKING:
    from dml.expr.user_call import UserFunction


class StepVerbs(Results):
    """A pipeline to which verbs append steps."""

    def _then(
        self, kind: Callable[..., Node], *fields: Any, settings: Settings | None = None
    ) -> Self:
        """Return a new pipeline with one more step, which remembers the line of the user's code."""
        where = users_line()
        try:
            node = kind(self._node, *map(whole, fields))
        except DmlError as error:
            error.at = f"{error.at}, written in {where}" if where else error.at
            raise
        return self._with(node.placed(where), settings or self._settings)

    def _with(self, node: Node, settings: Settings) -> Self:
        return type(self)(node, settings, self._pinned)

    def _ordered(self, deterministic: object, verb: str) -> Settings:
        """Return the settings, without a fixed order of elements if ``deterministic`` is False."""
        if deterministic is None or deterministic is True:
            return self._settings
        if deterministic is False:
            return self._settings.merged({"deterministic": False})
        raise PlanError(
            f"{verb} with deterministic={deterministic!r}",
            why="it says whether the order of elements is kept",
            try_=f"{verb} with deterministic=False, True or None, which is what the options say",
        )

    def _rows_only(self, verb: str) -> None:
        if self._node.batched:
            raise PlanError(
                f"{verb} after batch",
                why="it works on rows, and its input is batches",
                try_=f"{verb} before .batch(), or .map(f) of a whole batch",
            )


def function(
    fn: Any,
    verb: str,
    fingerprint: str | None,
    constructed: tuple[Any, Any] = ((), None),
    asked: Needs = Needs(),  # noqa: B008 (a frozen value)
    *,
    pure: Any = None,
    timeout: Any = None,
) -> UserFunction:
    """Wrap a callable (or class) with its fingerprint, purity verdict and time limit."""
    from dml.udfs.named_function import declared, limited, user_function

    nonce = uuid.uuid4().bytes
    made = user_function(fn, verb, nonce, fingerprint, constructed, asked.concurrency)
    return limited(declared(made, verb, nonce, pure=pure), verb, timeout)


def a_test(verb: str, predicate: Any) -> None:
    """Raise SchemaError unless ``predicate`` (not an expression) is a function."""
    if isinstance(predicate, bool) or not callable(predicate):
        raise SchemaError(
            f"{verb} needs an expression or a function, got {predicate!r}",
            why=f"a {type(predicate).__name__} says nothing about a row",
            try_=f'.{verb}(dml.col("x") > 0) or .{verb}(lambda row: ...)',
        )


def needs(verb: str, *asked: Any) -> Needs:
    """Return the resources that the user requests for one step; defaults if nothing was given."""
    if all(value is None for value in asked):
        return Needs()
    from dml.expr.needs import needs_of

    return needs_of(verb, *asked)


def bounded(verb: str, concurrency: Any, num_parallel_calls: Any) -> bool:
    """Return True if the user limits the concurrent calls of a step, by either option name."""
    if concurrency is None and num_parallel_calls is None:
        return False
    from dml.expr.needs import at_once

    return at_once(verb, concurrency, num_parallel_calls) is not None


def names_of(names: tuple[Any, ...]) -> tuple[str, ...]:
    """Return column names, which are given as separate arguments or as one list."""
    if len(names) == 1 and isinstance(names[0], list | tuple):
        names = tuple(names[0])
    for name in names:
        if not isinstance(name, str):
            raise PlanError(
                f"{name!r} is not a column name",
                why=f"it is of type {type(name).__name__}; names are text",
                try_='with_columns(x=...) first, then "x": what it computes becomes a column'
                if callable(name)
                else '"x" rather than col("x")',
            )
    return names


def name_of(name: Any) -> str:
    """Return the name of one column."""
    names: tuple[str, ...] = names_of(((name,),))
    return names[0]


def declared(schema: Any, *, batched: bool = False) -> Schema | None:
    """Return the schema that a user declares for a function's results; None if not declared."""
    return None if schema is None else schema_of(schema, batched=batched)
