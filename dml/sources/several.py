"""This file holds the doors that make one Dataset of several others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from dml.dataset import Dataset
from dml.expr.doors import door
from dml.verbs.combine import steps_of


@door
def concat(*datasets: Any) -> Dataset:
    """All elements of the first of ``datasets``, then those of the next: ``first.concat(rest)``."""
    first, rest = _first_of("concat", datasets)
    return first.concat(*rest)


@door
def zip(*datasets: Any) -> Dataset:
    """Row i has the columns of row i of every one of ``datasets``: ``first.zip(rest)``."""
    first, rest = _first_of("zip", datasets)
    return first.zip(*rest)


@door
def interleave(*datasets: Any, block_length: int = 1) -> Dataset:
    """``block_length`` elements of each of ``datasets`` in turn: ``first.interleave(rest)``."""
    first, rest = _first_of("interleave", datasets)
    return first.interleave(*rest, block_length=block_length)


@door
def mix(*datasets: Any, weights: Sequence[float] | None = None, stop: str = "all") -> Dataset:
    """Elements of ``datasets`` in the shares ``weights`` (None: equal): ``first.mix(rest)``."""
    first, rest = _first_of("mix", datasets)
    return first.mix(*rest, weights=weights, stop=stop)


sample_from_datasets = interleave_datasets = mix


@door
def choose_from_datasets(
    datasets: Sequence[Dataset],
    selector: Dataset,
    stop_on_empty_dataset: bool = True,  # noqa: FBT001, FBT002 - as in tf.data
) -> Dataset:
    """``Dataset.choose_from_datasets``: rows of ``selector`` say whose element comes next."""
    chosen = Dataset.choose_from_datasets(datasets, selector, stop_on_empty_dataset)
    return cast("Dataset", chosen)


def _first_of(verb: str, datasets: tuple[Any, ...]) -> tuple[Dataset, list[Any]]:
    """The pipelines that were given one by one or as one list, the first apart."""
    if len(datasets) == 1 and isinstance(datasets[0], list | tuple):
        datasets = tuple(datasets[0])
    first, *rest = steps_of(verb, datasets)
    return cast("Dataset", first), rest
