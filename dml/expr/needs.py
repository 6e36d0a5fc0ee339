"""Resources that a user requests for an operator are validated here: CPUs, GPUs, memory, calls."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dml.errors import PlanError
from dml.expr.facts import Needs
from dml.settings import AUTOTUNE, parse_bytes

USUAL = Needs()


def needs_of(  # noqa: PLR0917 (in the order of ``Needs``)
    verb: str,
    num_cpus: float | None,
    num_gpus: float | None,
    memory: int | str | None,
    resources: Mapping[str, float] | None,
    concurrency: int | str | None,
    num_parallel_calls: int | str | None = None,
) -> Needs:
    """Return the needs of the step that the user wrote as ``verb``.

    ``num_parallel_calls`` is tf.data's name for ``concurrency``. Raise PlanError for invalid
    values.
    """
    custom = dict(_named(verb, resources))
    cpus = _of(verb, "num_cpus", num_cpus, custom)
    gpus = _of(verb, "num_gpus", num_gpus, custom)
    named = tuple(custom.items())
    if not cpus and not gpus and not named:
        raise PlanError(
            f"{verb} needs nothing: num_cpus={num_cpus!r}, num_gpus={num_gpus!r}",
            why="a step that occupies nothing could run any number of times at once",
            try_="num_cpus=0.1 for work that hardly needs a processor",
        )
    size = USUAL.memory if memory is None else parse_bytes(memory, "memory")
    return Needs(cpus, gpus, size, named, at_once(verb, concurrency, num_parallel_calls))


def _of(verb: str, name: str, given: float | None, custom: dict[str, float]) -> float:
    """Return the amount of ``name`` ("num_cpus" or "num_gpus") that a task occupies.

    An equivalent name in ``custom``, such as "GPU", may give it as well, and is removed there.
    """
    labels = [each for each in custom if f"num_{each}s".lower() == name]
    if given is not None and labels:
        raise PlanError(
            f"{verb} with {name}={given!r} and resources[{labels[0]!r}]={custom[labels[0]]!r}",
            why="both say how much of one thing a task occupies",
            try_=f"{name} alone",
        )
    if labels:
        return sum(custom.pop(each) for each in labels)
    usual: float = getattr(USUAL, name)
    return usual if given is None else _amount(verb, name, given)


def _amount(verb: str, name: str, value: object) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and math.isfinite(value) and value >= 0:  # type: ignore[arg-type, operator]
        return float(value)  # type: ignore[arg-type]
    raise PlanError(
        f"{verb} with {name}={value!r}",
        why="what a task occupies is a number, 0 or more; fractions share",
        try_=f"{name}=1",
    )


def _named(verb: str, resources: object) -> tuple[tuple[str, float], ...]:
    if resources is None:
        return ()
    if not isinstance(resources, Mapping) or not all(isinstance(name, str) for name in resources):
        raise PlanError(
            f"{verb} with resources={resources!r}",
            why="resources are a dict from the name of a resource to how much of it",
            try_='resources={"GPU": 1}',
        )
    amounts = {n: _amount(verb, f"resources[{n!r}]", value) for n, value in resources.items()}
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))


def at_once(
    verb: str, concurrency: int | str | None, num_parallel_calls: int | str | None
) -> int | None:
    """Return the maximum of concurrent calls of a step, under either name; None if dml decides."""
    both = {"concurrency": concurrency, "num_parallel_calls": num_parallel_calls}
    given = [(name, value) for name, value in both.items() if value is not None]
    if len(given) > 1:
        raise PlanError(
            f"{verb} with " + " and ".join(f"{name}={value!r}" for name, value in given),
            why="both say how many calls of this step run at once",
            try_="concurrency= alone",
        )
    return _most_calls(verb, *given[0]) if given else None


def _most_calls(verb: str, name: str, value: object) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    # tf.data.AUTOTUNE is -1
    if value == AUTOTUNE or (whole and value == -1 and name == "num_parallel_calls"):
        return None
    if whole and value >= 1:  # type: ignore[operator]
        return value  # type: ignore[return-value]
    raise PlanError(
        f"{verb} with {name}={value!r}",
        why='it is the most calls of this step that run at once, 1 or more, or "auto"',
        try_=f"{name}=2, or {name}=dml.AUTOTUNE to let dml decide",
    )
