"""Functions that combine several Datasets into one are defined here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

from dml.api.dataset import Dataset
from dml.api.verbs.combination import steps_of
from dml.base.user_line import door
from dml.errors import PlanError

# Most letters of an argument that an error message repeats.
MOST = 60


@door
def concat(*datasets: Any) -> Dataset:
    """Chain the elements of ``datasets``, one dataset after the other: ``first.concat(rest)``."""
    first, rest = _first_of("concat", datasets)
    return first.concat(*rest)


@door
def zip(*datasets: Any) -> Dataset:
    """Join row i of all ``datasets`` into one row with all columns, as ``first.zip(rest)`` does."""
    first, rest = _first_of("zip", datasets)
    return first.zip(*rest)


@door
def interleave(*datasets: Any, block_length: int = 1) -> Dataset:
    """Take ``block_length`` elements of each dataset in turn: ``first.interleave(rest)``."""
    first, rest = _first_of("interleave", datasets)
    return first.interleave(*rest, block_length=block_length)


@door
def mix(*datasets: Any, weights: Sequence[float] | None = None, stop: str = "all") -> Dataset:
    """Mix elements of ``datasets`` in the shares ``weights`` (None: equal): ``first.mix(rest)``."""
    first, rest = _first_of("mix", datasets)
    return first.mix(*rest, weights=weights, stop=stop)


sample_from_datasets = interleave_datasets = mix


@door
def collect_all(datasets: Any) -> list[Any]:
    """Run several pipelines as one; return ``to_arrow()``, or the completed write, of each.

    A write is given as ``write_...(lazy=True)``. Operators from the source on that several
    pipelines have in common run once: always if one of them calls a function that is not proven
    pure, which then sees each row once, and otherwise if this is expected to cost less. Pipelines
    share only if their options and epoch are equal. The shared part ends at a dataset that all of
    them contain, or that is written in the same way in all; no operator after it may depend on the
    source's atoms, as ``map_batches`` does. Operators that are not shared run in this thread, for
    one pipeline at a time. The rows are those of separate runs. Rows that one pipeline has read and
    another has not are queued in memory, within the limit that all pipelines divide, and beyond it
    on disk.

    A pipeline that fails is run again separately, unless a function must not be called again. If it
    fails again, the error of the first such pipeline in ``datasets`` is raised, and no folder
    appears. ``dml.explain_all`` shows the shared operators. This does not count as an epoch.
    """
    made: list[Any] = _running_together().collected(_wanted("collect_all", datasets))
    return made


@door
def explain_all(datasets: Any) -> str:
    """Explain which operators ``dml.collect_all`` would share, and why, and how pipelines run."""
    from dml.base.display import Page

    return Page(_running_together().explained_together(_wanted("explain_all", datasets)))


def _running_together() -> Any:
    """Return the module that runs several pipelines as one, loaded at the first use."""
    from dml.api import multi_run

    return multi_run


def _wanted(verb: str, datasets: Any) -> list[Any]:
    """Return a ``WantedRun`` for each pipeline and lazy write in a list."""
    together = _running_together()
    if not isinstance(datasets, list | tuple):
        raise _no_list(verb, datasets, "")
    made: list[Any] = []
    for each in datasets:
        dataset, write = (each, None) if isinstance(each, Dataset) else _written(verb, each)
        made.append(together.WantedRun(*dataset._asked_whole(verb), write))  # noqa: SLF001
    return made


def _written(verb: str, given: Any) -> tuple[Dataset, Any]:
    dataset = getattr(given, "dataset", None)
    if not isinstance(dataset, Dataset):
        raise _no_list(verb, given, " in it")
    return dataset, given


def _no_list(verb: str, given: Any, where: str) -> PlanError:
    kind = type(given).__name__
    parts = isinstance(given, Dataset | Collection | Iterator) and not isinstance(given, str)
    shown = f"a {kind}" if parts else repr(given).split("\n")[0][:MOST]
    return PlanError(
        f"{verb} needs a list of pipelines, got {shown}{where}",
        why=f"it is of type {kind}",
        try_=f"dml.{verb}([ds, other, third.write_parquet(folder, lazy=True)])",
    )


@door
def choose_from_datasets(
    datasets: Sequence[Dataset],
    selector: Dataset,
    stop_on_empty_dataset: bool = True,  # noqa: FBT001, FBT002 - as in tf.data
) -> Dataset:
    """For each row of ``selector``, take the next element of the dataset with that index."""
    chosen = Dataset.choose_from_datasets(datasets, selector, stop_on_empty_dataset)
    return cast("Dataset", chosen)


def _first_of(verb: str, datasets: tuple[Any, ...]) -> tuple[Dataset, list[Any]]:
    """Return the first pipeline and the others; they may be separate arguments or one list."""
    if len(datasets) == 1 and isinstance(datasets[0], list | tuple):
        datasets = tuple(datasets[0])
    first, *rest = steps_of(verb, datasets)
    return cast("Dataset", first), rest
