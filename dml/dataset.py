"""This file holds Dataset, the handle that users write pipelines with: one door per operator.

A Dataset is immutable but for its count of epochs: every verb returns a new one, nothing is
computed before it is iterated (or ``count``, ``take_rows``, ``to_arrow`` ... are called). The verbs
stand in ``dml/verbs/``, those that compute in ``dml/results.py`` and the files beside it.
"""

from __future__ import annotations

from typing import Any, Self

from dml.collecting import Collecting
from dml.errors import PlanError, SchemaError
from dml.expr.doors import door
from dml.expr.schema import Schema
from dml.expr.text import Page, as_html, tree
from dml.figures import Figures
from dml.results import wiring
from dml.settings import AUTOTUNE
from dml.sinks import Sinks
from dml.verbs.caching import CacheVerbs
from dml.verbs.columns import ColumnVerbs
from dml.verbs.combine import CombineVerbs
from dml.verbs.elements import ElementVerbs
from dml.verbs.order import OrderVerbs


class Dataset(
    CacheVerbs, ColumnVerbs, CombineVerbs, ElementVerbs, OrderVerbs, Collecting, Figures, Sinks
):
    """A pipeline. Iterate it for batches (dict of arrays) or, before ``batch``, rows (dicts)."""

    def prefetch(self, n: int | str = AUTOTUNE) -> Self:
        """Make ``n`` elements ahead of the consumer, in a thread; "auto" where they take long."""
        return self.with_options(prefetch=n)

    @door
    def with_options(self, **options: Any) -> Self:
        """Choose how it runs (see ``dml.Settings``); what comes out stays the same."""
        made = self._settings.merged(options)
        if options.get("disable_rules"):
            wiring().without(made)  # a name that no rule has is an error now
        return self._with(self._node, made)

    @door
    def epoch(self, k: object) -> Self:
        """The same pipeline with every iteration being epoch ``k``."""
        if isinstance(k, bool) or not isinstance(k, int) or k < 0:
            raise PlanError(
                f"epoch needs an integer of at least 0, got {k!r}",
                why="epochs are counted from 0, one per iteration",
                try_=".epoch(0)",
            )
        return type(self)(self._node, self._settings, k)

    @property
    def schema(self) -> Schema:
        """Column names and types; unknown after a function without ``schema=``."""
        return self._node.schema

    element_spec = features = schema

    @property
    def columns(self) -> list[str]:
        """Column names; SchemaError after a function that decides them when it runs."""
        schema = self._node.schema
        if not schema.known:
            raise SchemaError(
                "the columns are not known yet",
                at=self._node.label(),
                why="a function decides them when it runs",
                try_="schema={...} where the function is given, or ds.first()",
            )
        return list(schema)

    column_names = columns

    @door
    def fingerprint(self, domain: str = "result", *, explain: bool = False) -> str:
        """The name of what this computes: equal text, equal bytes; with ``explain``, its parts."""
        session = wiring()
        name = session.fingerprint_parts if explain else session.fingerprint
        found: str = name(self._node, self._settings, domain)
        return found

    @door
    def explain(self, stage: str | None = None, *, analyze: bool = False) -> str:
        """The pipeline at a station, as text that fits a screen and shows well in notebooks.

        Stations are "written", "normalized", "chosen", "physical", "graph", "rules", "arranged" and
        "costs"; without one, the main ones. "arranged" has who runs it in how many stages and what
        sizes, what that is expected to take, and what the next best would. "costs" has what is
        expected of each operator: rows (``~`` where
        they are guessed), seconds, and what says so: ``p`` a table, ``h`` earlier runs, with how
        far off it may be (``+-8%``; ``x/3`` is a factor of three either way).

        ``analyze=True`` runs the pipeline to its end, which does not count as an epoch, and sets
        what was measured beside what was expected; then each rewriting that was done, and those
        refused with reasons. It costs what iterating costs. PlanError if the pipeline has no end.
        """
        session = wiring()
        if not analyze:
            return Page(session.explain(self._node, self._settings, stage))
        self._must_end("explain(analyze=True)")
        above = [] if stage is None else [session.explain(self._node, self._settings, stage)]
        expected = session.estimated(self._node, self._settings)
        gains = session.gained(self._node, self._settings, expected)
        made = self._quietly()
        for _ in made:
            pass
        self._ran(self._node, made.report)
        told = session.analyzed(self._node, self._settings, expected, gains, made.events())
        return Page("\n".join([*above, told]))

    def __repr__(self) -> str:
        return f"Dataset({self._node.schema})\n{tree(self._node)}"

    def _repr_html_(self) -> str:
        return as_html(repr(self))
