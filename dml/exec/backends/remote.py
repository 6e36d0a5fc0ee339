"""This file holds what drivers with workers in other processes share: homes, parcels, answers."""

from __future__ import annotations

import uuid

from dml.exec.backends.crew import Crew
from dml.exec.desk import Answer, Order
from dml.exec.job import Job
from dml.exec.messages import Run
from dml.exec.meter import Tallies
from dml.exec.parcel import Parcel, received, unpack
from dml.exec.policy import Seq
from dml.exec.slices import Failure, Loop, Outcome


class RemoteCrew(Crew):
    """A crew whose slices run elsewhere and come back as parcels.

    A partition stays a parcel until the consumer takes it: what one worker made another may work
    on, and this process only hands the parcel over. A parked generator lives in one worker, its
    home; the next slice of its task goes there.
    """

    def __init__(self, loop: Loop, job: Job, tallies: Tallies) -> None:
        super().__init__(loop)
        self.job, self.tallies = job, tallies
        self.name = uuid.uuid4().hex
        self.homes: dict[Seq, str] = {}

    def order(self, run: Run) -> Order:
        """What a worker is told; the caller holds the lock."""
        schemas = dict(self.job.at.schemas)
        return Order(self.name, run, self.loop.argument(run), schemas)

    def answered(self, run: Run, worker: str, answer: Answer) -> None:
        """Take the answer of a worker."""
        for key, schema in answer.schemas.items():
            self.job.at.schemas.setdefault(key, schema)
        self.tallies.mine().merge(answer.tally)
        result: Outcome | Failure | None = None
        if answer.error:
            result = Failure(received(answer.error))
        elif answer.parcel is not None:
            result = answer.parcel.outcome
            result.value = answer.parcel
        with self.lock:
            self.loop.runtime.replayed += answer.replayed
            self.homes.pop(run.seq, None)
            if isinstance(result, Outcome) and not result.done:
                self.homes[run.seq] = worker
        self.ended(run, result, answer.seconds)

    def moved_out(self, worker: str) -> None:
        """A worker is gone: generators that were parked there are begun again elsewhere."""
        with self.lock:
            self.homes = {seq: home for seq, home in self.homes.items() if home != worker}

    def opened(self, outcome: Outcome) -> Outcome:
        """The partition whose parcel is stored."""
        return unpack(outcome.value) if isinstance(outcome.value, Parcel) else outcome
