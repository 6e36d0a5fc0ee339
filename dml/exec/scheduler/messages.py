"""Events from a driver to the scheduling core, and the actions that the core returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dml.exec.scheduler.policy import Fault, Seq


class Arrive(NamedTuple):
    """``units`` more units of stage 0 exist; with ``last``, no more units will arrive."""

    units: int
    last: bool = True


class SliceDone(NamedTuple):
    """A slice of task ``seq`` ended; ``nbytes`` is the size of its partition, None if it made none.

    ``more`` says that the task may have another slice; then its suspended generator takes
    ``parked_bytes``. ``working_bytes`` is the slice's peak memory beyond output and generator.
    ``rows`` is the number of rows that it processed, ``row_bytes`` the mean size of those that it
    made; ``cpu_s`` is its processor time, with the time in which it waited for a processor,
    ``others_s`` the processor time of other threads of its process.
    """

    seq: Seq
    nbytes: int | None
    seconds: float
    more: bool
    parked_bytes: int = 0
    working_bytes: int = 0
    rows: int = 0
    cpu_s: float = 0.0
    row_bytes: float = 0.0
    others_s: float = 0.0


class TaskFailed(NamedTuple):
    """A slice of task ``seq`` raised an error or (``lost``) lost its worker; the core may retry."""

    seq: Seq
    lost: bool = False


class Consumed(NamedTuple):
    """The consumer released the partition that was offered as ``seq``."""

    seq: Seq


class Resources(NamedTuple):
    """The run now has these slots and this memory limit; running slices keep what they reserved."""

    slots: Mapping[str, float]
    limit_bytes: int


class Settled(NamedTuple):
    """The first rows have settled the types of functions: tasks may run in parallel from now on."""


class Unordered(NamedTuple):
    """From now on partitions are offered in the order in which they are completed."""


class Close(NamedTuple):
    """The consumer has stopped: nothing more starts, and all stored partitions are freed."""


class Tick(NamedTuple):
    """Time has passed; nothing else changed."""


Event = Arrive | SliceDone | TaskFailed | Consumed | Resources | Settled | Unordered | Close | Tick


class Run(NamedTuple):
    """Run slice ``k`` of task ``seq``, whose input is a unit (stage 0) or a partition (later)."""

    seq: Seq
    stage: int
    k: int
    fault: Fault


class Offer(NamedTuple):
    """Pass partition ``seq`` (if ``failed``, the error in its place) to the consumer as next."""

    seq: Seq
    failed: bool


class Free(NamedTuple):
    """Release the stored partition ``seq``."""

    seq: Seq


Action = Run | Offer | Free
