"""This file names what a driver tells the scheduling core, and what the core answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dml.exec.policy import Fault, Seq


class Arrive(NamedTuple):
    """That many more units of stage 0 exist; with ``last`` there will be no others."""

    units: int
    last: bool = True


class SliceDone(NamedTuple):
    """A slice ended; ``nbytes`` None means that the task had no partition left to give.

    ``working_bytes`` is what it took at most while it ran, beside what it gave and holds.
    """

    seq: Seq
    nbytes: int | None
    seconds: float
    more: bool
    parked_bytes: int = 0
    working_bytes: int = 0


class TaskFailed(NamedTuple):
    """A slice raised, or (``lost``) its worker went away."""

    seq: Seq
    lost: bool = False


class Consumed(NamedTuple):
    """The consumer no longer holds the partition that was offered as ``seq``."""

    seq: Seq


class Resources(NamedTuple):
    """Slots or memory changed; running slices keep what they have."""

    slots: Mapping[str, float]
    limit_bytes: int


class Settled(NamedTuple):
    """What the first rows decide is decided: other units than the head may run."""


class Unordered(NamedTuple):
    """From now on partitions are offered as they are made."""


class Close(NamedTuple):
    """The consumer is gone: nothing more is started, all that is stored is freed."""


class Tick(NamedTuple):
    """Time has passed."""


Event = Arrive | SliceDone | TaskFailed | Consumed | Resources | Settled | Unordered | Close | Tick


class Run(NamedTuple):
    """Run slice ``k`` of task ``seq``; at stage 0 ``seq`` is the unit, below the partition."""

    seq: Seq
    stage: int
    k: int
    fault: Fault


class Offer(NamedTuple):
    """Hand partition ``seq`` (or the error that stands in its place) to the consumer, next."""

    seq: Seq
    failed: bool


class Free(NamedTuple):
    """Forget the stored partition ``seq``."""

    seq: Seq


Action = Run | Offer | Free
