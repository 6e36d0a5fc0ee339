"""This file runs a pipeline on a Dask cluster: the one that settings name, as it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from dml.errors import DmlError, InternalError
from dml.exec.backends.crew import CrewFeed
from dml.exec.backends.dask_crew import DaskCrew
from dml.exec.cluster import CPU, connected, met_before
from dml.exec.hub import Hub, lost
from dml.exec.job import Job
from dml.exec.losing import Losing
from dml.exec.meter import Tallies
from dml.exec.places import Places, refuse
from dml.exec.policy import Demand
from dml.exec.slices import LIMIT_BYTES, WATCHDOG_S, Loop, Options, Tasks
from dml.exec.staffing import Staff
from dml.exec.store.opened import Where, clear_here
from dml.exec.straggling import repeatable
from dml.settings import AUTOTUNE, Autoscale, Settings


class DaskFeed(CrewFeed):
    """Notices also that the cluster is gone, and says so in its own words."""

    _crew: DaskCrew

    def _check(self) -> None:
        broken = self._crew.broken
        if isinstance(broken, DmlError) and not isinstance(broken, InternalError):
            self._dismiss()
            raise broken
        super()._check()

    def _over(self) -> bool:
        if self._crew.hub.closed:
            self._crew.fail(lost(self._crew.hub.client))
        return self._crew.hub.closed


def met(settings: Settings) -> Hub:
    """The cluster that ``settings`` name, connected, with some workers that may take part."""
    hub = Hub.of(connected(settings.scheduler, settings.connect_timeout_s))
    if isinstance(settings.autoscale, Autoscale):
        Staff.of(hub).least(settings.autoscale.min)
    hub.begin(settings.worker_wait_s)
    return hub


def cleared(settings: Settings, entries: Iterable[tuple[Where, str, str]]) -> dict[str, str]:
    """Have every worker end ``entries``; why that was not done, by worker or for all of them."""
    try:
        hub = Hub.of(connected(settings.scheduler, settings.connect_timeout_s))
        answers = hub.ask_all(clear_here, [*entries])
    except (DmlError, OSError, TimeoutError) as error:
        return {"the cluster": str(error).partition("\n")[0]}
    wrong = {w: a if isinstance(a, list) else [repr(a)] for w, a in answers.items()}
    return {f"worker {w}": "; ".join(reasons) for w, reasons in wrong.items() if reasons}


def offered(settings: Settings) -> tuple[int, int]:
    """Threads of the workers that were met last, and bytes that they may use; 0 if not known."""
    client = met_before(settings.scheduler)
    hub = None if client is None else client.extensions.get("dml")
    members = hub.members.values() if isinstance(hub, Hub) else ()
    every = [each.memory for each in members]
    return sum(each.threads for each in members), sum(every) if all(every) else 0


class Distributed:
    """Driver of ``executor="distributed"``: the cluster that ``settings`` name.

    Every crew that it makes is added to ``crews``.
    """

    def __init__(self, settings: Settings, crews: list[DaskCrew] | None = None) -> None:
        self.settings, self.crews = settings, crews

    def open(
        self, tasks: Tasks, job: Job, tallies: Tallies, **options: Unpack[Options]
    ) -> CrewFeed:
        """Begin the tasks of ``job``; for the rest see ``Options``, whose slots are not used."""
        settings, hub = self.settings, met(self.settings)
        members = hub.members
        demands = options.get("stages", (Demand(),))
        refuse(demands, members, ["", *(link.steps[0].label() for link in job.links)])
        usual = all(dict(demand.resources).get(CPU, 0.0) <= 1.0 for demand in demands)
        most = None if settings.num_workers == AUTOTUNE else float(settings.num_workers)
        places = Places(members, most, 1 if usual else 0, demands, hub.leaving)
        options["slots"] = places.slots()
        options.setdefault("limit_bytes", LIMIT_BYTES)
        options["policy"] = Losing(options.get("policy"))
        loop = Loop.over(tasks, (), options, slots=1)
        crew = DaskCrew(loop, job, tallies, hub, places)
        crew.lends = settings.shared_memory
        crew.race.repeatable = repeatable(job, options.get("speculative", False))
        crew.wait_s, crew.silent_s = settings.worker_wait_s, settings.worker_silent_s
        if self.crews is not None:
            self.crews.append(crew)
        hub.wait(crew.cargo.ship)
        hub.call(hub.add, crew)
        return DaskFeed(crew, options.get("watchdog_s", WATCHDOG_S), options.get("on_event"))
