"""Dataset is the class with which users write pipelines: one method per operator.

A Dataset is immutable, except for its epoch counter: every verb returns a new one, and nothing is
computed until it is iterated (or ``count``, ``take_rows``, ``to_arrow`` ... is called). The verbs
are in ``dml/api/verbs/``; those that run a pipeline are in ``dml/api/runs.py``, ``row_access.py``,
``summaries.py`` and ``sinks.py``.
"""

from __future__ import annotations

from abc import ABCMeta
from typing import TYPE_CHECKING, Any, Self

from dml.api.row_access import Collecting
from dml.api.runs import wiring
from dml.api.sinks import Sinks
from dml.api.summaries import SummaryVerbs
from dml.api.verbs.cache import CacheVerbs
from dml.api.verbs.columns import ColumnVerbs
from dml.api.verbs.combination import CombineVerbs
from dml.api.verbs.elements import ElementVerbs
from dml.api.verbs.order import OrderVerbs
from dml.base.user_line import Answering, door, doors, missing
from dml.data.schema import Schema
from dml.errors import DmlError, PlanError, SchemaError
from dml.expr.node import tree
from dml.settings import AUTOTUNE


class DatasetType(ABCMeta):
    """The class of ``Dataset``: names that it lacks end in an error, as those of its objects do."""

    if not TYPE_CHECKING:  # a checker would take any name for a known one

        def __getattr__(cls, name: str) -> Any:
            return missing(cls, name, "dml.Dataset")


@doors
class Dataset(
    CacheVerbs,
    ColumnVerbs,
    CombineVerbs,
    ElementVerbs,
    OrderVerbs,
    Collecting,
    SummaryVerbs,
    Sinks,
    Answering,
    metaclass=DatasetType,
):
    """A pipeline; iterating it gives batches (dicts of arrays), or, before ``batch``, rows."""

    _title = "a Dataset"

    def prefetch(self, n: int | str = AUTOTUNE) -> Self:
        """Compute up to ``n`` elements ahead in a thread; if "auto", once the consumer waits."""
        return self.with_options(prefetch=n)

    @door
    def with_options(self, **options: Any) -> Self:
        """Return this pipeline with other options of the run; see ``dml.Settings``."""
        made = self._settings.merged(options)
        if options.get("disable_rules"):
            wiring().without(made)  # a name that no rule has is an error now
        return self._with(self._node, made)

    @door
    def epoch(self, k: object) -> Self:
        """Return the same pipeline with every iteration delivering epoch ``k``; 0 is the first."""
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
        """Column names. Raise SchemaError if a function decides them only at run time."""
        schema = self._node.schema
        if not schema.known:
            raise SchemaError(
                "the columns are not known yet",
                at=self._node.label(),
                why="a function decides them when it runs",
                try_="schema={...} where the function is given, or list(ds.first())",
            )
        return list(schema)

    column_names = columns

    @door
    def fingerprint(self, domain: str = "result", *, explain: bool = False) -> str:
        """Return the fingerprint of ``domain``; equal fingerprints of "result" mean equal bytes.

        With ``explain``, return a line for each operator instead: its fingerprint and title.
        """
        session = wiring()
        name = session.fingerprint_parts if explain else session.fingerprint
        found: str = name(self._node, self._settings, domain)
        return found

    @door
    def explain(self, stage: str | None = None, *, analyze: bool = False) -> str:
        """Return a text that shows the pipeline after a step of compilation.

        A ``stage`` is "written", "normalized", "chosen", "physical", "graph", "rules", "arranged"
        or "costs"; None shows the main ones. "arranged" shows the executor, the number of stages,
        the partition sizes, the expected time, and that of the next best arrangement. "costs" shows
        the estimate for each operator: rows (``~`` if guessed), seconds, their origin (``p``: a
        table, ``h``: earlier runs), and their uncertainty (``+-8%``; ``x/3`` is a factor of three
        either way).

        ``analyze=True`` runs the pipeline to its end, which does not count as an epoch, and shows
        measurements beside estimates, then each rewrite that was applied or refused, with reasons.
        It takes as long as an iteration. Raise PlanError if the pipeline is endless.
        """
        from dml.api import explanation
        from dml.base.display import Page

        given = self._node, self._settings
        if not analyze:
            return Page(explanation.explain(*given, stage, self._coming))
        self._must_end("explain(analyze=True)")
        shown = [] if stage is None else [explanation.explain(*given, stage, self._pinned or 0)]
        expected = explanation.estimated(*given)
        gains = explanation.gained(*given, expected)
        made = self._quietly()
        for _ in made:
            pass
        self._ran(self._node, made.report)
        told = explanation.analyzed(*given, expected, gains, made.events())
        return Page("\n".join([*shown, told]))

    def _hint(self, name: str) -> str:
        if name in self._node.schema:
            return f'dml.col("{name}") in expressions, .select("{name}") for the column alone'
        return ""

    def __repr__(self) -> str:
        return f"Dataset({self._node.schema})\n{tree(self._node)}"

    def _repr_html_(self) -> str:
        from dml.api import explanation
        from dml.base.display import preformatted

        try:
            picture = explanation.picture(self._node, self._settings, self._coming)
        except DmlError as error:  # a pipeline that cannot run is displayed as it was written
            return preformatted(f"{self!r}\n{error}")
        return self._node.schema._repr_html_() + picture
