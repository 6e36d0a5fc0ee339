"""Run a pipeline on the Dask cluster that the settings name, without configuring the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from dml.cache.store.open_stores import Where, clear_here
from dml.cluster.autoscale.cluster_scaler import Staff
from dml.cluster.cluster import CPU, connected, met_before, workers_of
from dml.cluster.dask_crew import DaskCrew
from dml.cluster.placement import Places, refuse
from dml.cluster.worker_monitor import Hub, lost
from dml.errors import DmlError, InternalError
from dml.exec.delivery.meter import Tallies
from dml.exec.drivers.crew import CrewFeed
from dml.exec.scheduler.policy import Demand
from dml.exec.scheduler.speculation import repeatable
from dml.exec.tasks.job import Job
from dml.exec.tasks.slices import LIMIT_BYTES, WATCHDOG_S, DriverLoop, Options, Tasks
from dml.settings import AUTOTUNE, Autoscale, Settings


class DaskFeed(CrewFeed):
    """A feed that also detects a lost cluster, and raises an error that says so."""

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
    """Return the hub of the cluster that ``settings`` name, connected and with usable workers."""
    hub = Hub.of(connected(settings.scheduler, settings.connect_timeout_s))
    if isinstance(settings.autoscale, Autoscale):
        Staff.of(hub).least(settings.autoscale.min)
    hub.begin(settings.worker_wait_s)
    return hub


def cleared(settings: Settings, entries: Iterable[tuple[Where, str, str]]) -> dict[str, str]:
    """Let every worker remove the cache ``entries``; return why that failed, by worker.

    An entry is given as its store, its fingerprint and the command that unpins it. If no worker can
    be reached, the only key of the result is "the cluster".
    """
    try:
        hub = Hub.of(connected(settings.scheduler, settings.connect_timeout_s))
        answers = hub.ask(workers_of(hub.client), clear_here, [*entries])
    except (DmlError, OSError, TimeoutError) as error:
        return {"the cluster": str(error).partition("\n")[0]}
    wrong = {w: a if isinstance(a, list) else [repr(a)] for w, a in answers.items()}
    return {f"worker {w}": "; ".join(reasons) for w, reasons in wrong.items() if reasons}


def offered(settings: Settings) -> tuple[int, int]:
    """Return the threads and the bytes of memory of all workers as last seen; 0 if unknown."""
    client = met_before(settings.scheduler)
    hub = None if client is None else client.extensions.get("dml")
    members = hub.members.values() if isinstance(hub, Hub) else ()
    every = [each.memory for each in members]
    return sum(each.threads for each in members), sum(every) if all(every) else 0


def open_crew(
    settings: Settings,
    crews: list[DaskCrew],
    tasks: Tasks,
    job: Job,
    tallies: Tallies,
    **options: Unpack[Options],
) -> CrewFeed:
    """Begin the tasks of ``job`` on the cluster of ``settings``; append their crew to ``crews``.

    ``options`` are those of all drivers; their slots are replaced.
    """
    hub = met(settings)
    members = hub.members
    demands = options.get("stages", (Demand(),))
    refuse(demands, members, ["", *(link.steps[0].label() for link in job.links)])
    usual = all(dict(demand.resources).get(CPU, 0.0) <= 1.0 for demand in demands)
    most = None if settings.num_workers == AUTOTUNE else float(settings.num_workers)
    places = Places(members, most, 1 if usual else 0, demands, hub.leaving)
    options["slots"] = places.slots()
    options.setdefault("limit_bytes", LIMIT_BYTES)
    loop = DriverLoop.over(tasks, (), options, slots=1)
    crew = DaskCrew(loop, job, tallies, hub, places)
    crew.lends = settings.shared_memory
    crew.race.repeatable = repeatable(job, options.get("speculative", False))
    crew.wait_s, crew.silent_s = settings.worker_wait_s, settings.worker_silent_s
    crews.append(crew)
    hub.wait(crew.cargo.ship)
    hub.call(hub.add, crew)
    return DaskFeed(crew, options.get("watchdog_s", WATCHDOG_S), options.get("on_event"))
