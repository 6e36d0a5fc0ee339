"""Test the placement of slices on workers: resources, stored data, capacity, early errors."""

from __future__ import annotations

import pytest

from dml.cluster.cluster import ClusterWorker, dask_resources, member, totals
from dml.cluster.placement import Places, refuse
from dml.errors import PlanError
from dml.exec.scheduler.policy import Demand

CPU = Demand()
GPU = Demand("model", resources=(("gpu", 1.0),))


def members() -> dict[str, ClusterWorker]:
    infos = {
        "tcp://10.0.0.1:1": {"nthreads": 2, "name": "a", "resources": {}},
        "tcp://10.0.0.1:2": {"nthreads": 2, "name": "b", "resources": {"GPU": 1}},
        "tcp://10.0.0.2:1": {"nthreads": 4, "name": 3, "resources": {"GPU": 2, "disk": 5}},
    }
    return {address: member(address, info) for address, info in infos.items()}


def test_what_a_cluster_has() -> None:
    assert totals(members()) == {"cpu": 8.0, "gpu": 3.0, "disk": 5.0}
    assert members()["tcp://10.0.0.1:2"].host == "10.0.0.1"
    assert dask_resources({"cpu": 2.0, "gpu": 1.0, "disk": 3.0}) == {"GPU": 1.0, "disk": 3.0}


def test_a_missing_resource_is_told_with_what_there_is() -> None:
    wanted = Demand("model", resources=(("cpu", 1.0), ("gpu", 4.0)))
    with pytest.raises(PlanError, match="'model' needs cpu=1, gpu=4") as caught:
        refuse([CPU, wanted], members(), ["", "map_batches(f), written in x.py:3"])
    assert "b: cpu=2 gpu=1" in caught.value.why
    assert "x.py:3" in caught.value.at
    assert "--resources" in caught.value.try_
    refuse([CPU, GPU, Demand(resources=(("cpu", 4.0),))], members())  # two threads of each of two
    with pytest.raises(PlanError, match="cpu=5"):
        refuse([Demand(resources=(("cpu", 5.0),))], members())


def test_slots_are_threads_and_a_few_that_wait() -> None:
    places = Places(members(), None, spare=1)
    assert places.slots()["cpu"] == 12.0, "half as many as there are threads: 2, 2 and 4"
    places.depth = 4
    assert places.slots() == {"cpu": 48.0, "gpu": 3.0, "disk": 5.0}
    assert Places(members(), 3.0, spare=1).slots()["cpu"] == 4.0  # two plain threads, and who waits


def test_a_slice_goes_where_there_is_room_or_where_it_is_known() -> None:
    plain = {f"tcp://10.0.0.{i}:1": member("", {"nthreads": 2, "name": "a"}) for i in range(3)}
    places, known = Places(plain, None, spare=0), "tcp://10.0.0.1:1"
    assert places.choose(CPU, ()) is not None
    assert places.choose(CPU, (known,)) == known
    for _ in range(2):
        places.take(known, CPU)
    assert places.choose(CPU, (known,)) != known
    places.leave(known, CPU)
    assert places.choose(CPU, (known,)) == known


def test_what_needs_no_resource_leaves_those_who_have_some() -> None:
    places, found = Places(members(), None, spare=1), []
    for _ in range(8):
        place = places.choose(CPU, ("tcp://10.0.0.2:1",))
        assert place is not None
        places.take(place, CPU)
        found.append(place)
    assert found[:2] == ["tcp://10.0.0.1:1"] * 2
    assert set(found[2:]) == {"tcp://10.0.0.1:2", "tcp://10.0.0.2:1"}, "idle before waiting"
    assert places.choose(CPU, ()) == "tcp://10.0.0.1:1"
    assert places.allowed(CPU, "tcp://10.0.0.1:1") == []


def test_a_slice_may_be_moved_to_no_worker_that_lacks_what_it_needs() -> None:
    places = Places(members(), 3.0, spare=1)
    plain, gpu, tape = members()
    assert places.allowed(GPU, gpu) == [gpu, tape]
    assert places.allowed(Demand(resources=(("disk", 1.0),)), tape) == [tape]
    assert places.allowed(CPU, plain) == [plain]
    assert places.allowed(CPU, gpu) == [gpu], "one of its threads is not for this run"
    assert places.choose(CPU, ()) == plain
    places.welcome({tape: members()[tape]})
    assert places.allowed(GPU, tape) == []
    assert places.slots() == {"cpu": 3.0, "gpu": 2.0, "disk": 5.0}


def test_one_more_waits_for_each_resource() -> None:
    half = Demand(resources=(("gpu", 0.5),))
    places = Places(members(), None, 1, [CPU, half, GPU])
    assert places.slots() == {"cpu": 12.0, "gpu": 5.0, "disk": 5.0}
    taken = []
    for _ in range(5):
        place = places.choose(GPU, ())
        assert place is not None
        places.take(place, GPU)
        taken.append(place)
    assert sorted(taken[:3]) == ["tcp://10.0.0.1:2", "tcp://10.0.0.2:1", "tcp://10.0.0.2:1"]
    assert set(taken[3:]) == {"tcp://10.0.0.1:2", "tcp://10.0.0.2:1"}


def test_resources_are_exclusive() -> None:
    places = Places(members(), None, spare=0)
    taken = []
    for _ in range(3):
        place = places.choose(GPU, ())
        assert place is not None
        places.take(place, GPU)
        taken.append(place)
    assert sorted(taken) == ["tcp://10.0.0.1:2", "tcp://10.0.0.2:1", "tcp://10.0.0.2:1"]
    assert Places({}, None, spare=0).choose(CPU, ()) is None


def test_who_is_to_be_alone_waits_for_a_worker_that_gets_nothing_else() -> None:
    one, other = addresses = [f"tcp://10.0.0.{i}:1" for i in range(2)]
    places = Places({a: member("", {"nthreads": 2, "name": "a"}) for a in addresses}, None, 1)
    for address in (one, one, other):
        places.take(address, CPU)
    assert places.alone(CPU) is None, "all have something to do"
    assert places.choose(CPU, (other,)) == one, "who has least is left to it"
    places.look_again()
    assert places.choose(CPU, (other,)) == other, "unless it is asked for no more"
    places.leave(other, CPU)
    assert places.alone(CPU) == other
    places.take(other, CPU)
    places.look_again()
    assert places.choose(CPU, (other,)) == one, "as long as it is there"
    places.leave(other, CPU)
    assert places.choose(CPU, (other,)) == other


def test_who_is_to_be_alone_stays_on_workers_of_the_run() -> None:
    one, other = addresses = [f"tcp://10.0.0.{i}:1" for i in range(2)]
    both = {a: member("", {"nthreads": 2, "name": "a"}) for a in addresses}
    places = Places(both, 2, 1)
    assert places.threads == {one: 2, other: 0}
    places.take(one, CPU)
    assert places.alone(CPU) is None, "the other one has no threads for this run"
    assert places.alone(CPU) is None, "nor for a second slice"
    places.leave(one, CPU)
    places.look_again()
    assert places.alone(CPU) == one
    assert Places({other: both[other]}, 0, 1).alone(CPU) == other
