"""Test shared memory on clusters: equal bytes, few of them sent, and no leftovers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import patch

import dask
import pytest
from distributed import Client
from distributed.comm.tcp import TCP
from distributed.protocol import deserialize, deserialize_bytes, serialize, serialize_bytes

from dml.cluster import dask_task, worker_state
from dml.cluster.dask_crew import DaskCrew
from dml.cluster.worker_monitor import Hub
from dml.cluster.worker_state import Shipment, TaskNote
from dml.data.stream_hash import stream_hash
from dml.exec.process import neighbours, shared_memory
from dml.exec.process.partition_codec import Parcel, pack
from dml.exec.process.task_runner import Answer
from tests.cluster.dask_cases import UNCLOSED, cluster, eventually
from tests.exec.process.lending_cases import WIDTH, pipeline
from tests.exec.process.test_shared_memory import large, lent, own_files, same

pytestmark = [
    pytest.mark.cluster,
    UNCLOSED,
    pytest.mark.skipif(not neighbours.here(), reason="no files in memory here"),
]

UNITS, WORKERS = 12, 2
MADE = UNITS * WIDTH * 8 * 2  # bytes that both stages make
ADDRESSES = {
    "sender": {"address": "tcp://10.0.0.1:1"},
    "recipient": {"address": "tcp://10.0.0.1:2"},
}
APART = {"sender": {"address": "tcp://10.0.0.1:1"}, "recipient": {"address": "tcp://10.0.0.2:2"}}


@pytest.fixture(scope="module")
def wanted() -> str:
    return stream_hash(pipeline(UNITS, executor="sync"))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Of workers that are processes."""
    with cluster(WORKERS, processes=True) as made, Client(made, set_as_default=False) as found:
        found.wait_for_workers(WORKERS)
        yield found


# -------------------------------------------------------------------------------- inside of workers


def counted() -> None:
    """Count what this process sends from now on."""
    write, sent = TCP.write, [0]

    async def counting(self: TCP, *args: Any, **options: Any) -> Any:
        found = await write(self, *args, **options)
        sent[0] += found if isinstance(found, int) else 0
        return found

    TCP.write = counting
    TCP.dml_counted = write, sent


def told() -> int:
    """What this process has sent; it is counted no longer."""
    TCP.write, sent = TCP.dml_counted
    del TCP.dml_counted
    return int(sent[0])


def moved(name: str | None) -> None:
    """Be on a host of another name, or where one was before."""
    vars(shared_memory)["here"] = neighbours.here if name is None else lambda: name


def bereft(*, gone: bool) -> None:
    """Find that owners have no more what they lent; or ask them again."""

    async def none(*_: Any) -> None:
        await asyncio.sleep(0)

    own = vars(worker_state).setdefault("own_brought", worker_state.brought)
    vars(worker_state)["brought"] = none if gone else own


def spilled(dask_worker: Any) -> int:
    return int(dask_worker.data.spilled_total.disk)


@contextmanager
def strange(client: Client, workers: list[str] | None) -> Iterator[None]:
    """Some workers cannot open what others lend; each seems to be on a host of its own."""
    for number, each in enumerate(workers or []):
        client.run(moved, f"host {number}", workers=[each])
    try:
        yield
    finally:
        client.run(moved, None, workers=workers or [])


# --------------------------------------------------------------------------------------- whole runs


def crossed(client: Client, wanted: str, **options: Any) -> int:
    """Bytes that workers send in a run."""
    client.run(counted)
    assert stream_hash(pipeline(UNITS, scheduler=client, **options)) == wanted
    return sum(client.run(told).values())


def test_hardly_a_byte_crosses_on_one_host(client: Client, wanted: str) -> None:
    before = own_files()
    sent = crossed(client, wanted, shared_memory=False)
    spared = crossed(client, wanted)
    assert sent > MADE / 2  # all that the client gets
    assert spared < sent / 20
    assert eventually(lambda: not any(client.run(own_files).values()))
    assert eventually(lambda: own_files() <= before)


def test_what_is_held_has_files_and_then_none(client: Client) -> None:
    run = iter(pipeline(UNITS, scheduler=client, memory_limit="64MiB"))
    next(run)
    assert eventually(lambda: any(client.run(own_files).values()))
    run.close()
    assert eventually(lambda: not any(client.run(own_files).values()))


def test_workers_that_are_strangers_get_bytes(client: Client, wanted: str) -> None:
    crews: list[DaskCrew] = []
    made = DaskCrew.__init__

    def noticed(self: DaskCrew, *args: Any, **options: Any) -> None:
        crews.append(self)
        made(self, *args, **options)

    with strange(client, list(client.run(os.getpid))), patch.object(DaskCrew, "__init__", noticed):
        try:
            assert stream_hash(pipeline(UNITS, scheduler=client)) == wanted
            assert Hub.of(client).strangers
        finally:
            Hub.of(client).strangers.clear()
    assert eventually(lambda: not any(client.run(own_files).values()))
    assert [crew.lends for crew in crews] in ([False], [True])  # none may have gone to another


def test_what_its_owner_has_no_more_is_made_again(client: Client, wanted: str) -> None:
    """Dask drops what there is twice, and counts copies that could not be opened."""
    with strange(client, list(client.run(os.getpid))):
        client.run(bereft, gone=True)
        try:
            assert stream_hash(pipeline(UNITS, scheduler=client)) == wanted
        finally:
            client.run(bereft, gone=False)
            Hub.of(client).strangers.clear()


def test_a_client_that_is_a_stranger_gets_bytes(client: Client, wanted: str) -> None:
    with patch.object(shared_memory, "here", lambda: "another"):
        assert stream_hash(pipeline(UNITS, scheduler=client)) == wanted
    assert Hub.of(client).strangers <= set(client.run(os.getpid))
    assert Hub.of(client).strangers
    Hub.of(client).strangers.clear()


def test_a_client_that_reaches_no_worker_gets_bytes(client: Client, wanted: str) -> None:
    hub = Hub.of(client)
    list(pipeline(UNITS, scheduler=client))
    direct, hub.direct = hub.direct, False
    try:
        with patch.object(shared_memory, "here", lambda: "another"):
            assert stream_hash(pipeline(UNITS, scheduler=client)) == wanted
        assert stream_hash(pipeline(UNITS, scheduler=client)) == wanted
    finally:
        hub.direct = direct
        hub.strangers.clear()


def test_what_nobody_has_any_more_is_made_again(client: Client, wanted: str) -> None:
    """The client can open nothing, and is told for a while that nobody has the bytes."""
    asked: list[Any] = []
    whole: Callable[..., Any] = dask_task._whole

    async def gone(hub: Any, ticket: Any, future: Any, found: Shipment) -> Any:
        asked.append(future.key)
        await asyncio.sleep(0)
        return None if future.key == asked[0] else await whole(hub, ticket, future, found)

    with (
        patch.object(dask_task, "_whole", gone),
        patch.object(dask_task, "ASKS", 1),
        patch.object(dask_task, "LOST_S", 0.01),
    ):
        assert stream_hash(pipeline(UNITS, scheduler=client)) == wanted
    again = [key for key in asked if key[2] == asked[0][2]]  # the same work, whichever attempt
    assert 2 <= len(again) < len(asked)
    assert eventually(lambda: not any(client.run(own_files).values()))  # no log holds any


def test_spilled_to_disk_it_is_bytes(wanted: str) -> None:
    little = {"target": 0.005, "spill": False, "pause": False, "terminate": False}
    with (
        dask.config.set({f"distributed.worker.memory.{key}": n for key, n in little.items()}),
        cluster(1, processes=True, memory_limit="400MB") as made,
        Client(made, set_as_default=False) as client,
    ):
        run, got = iter(pipeline(UNITS, scheduler=client)), []
        got.append(next(run))
        assert eventually(lambda: sum(client.run(spilled).values()) > 0)
        got += run
        assert stream_hash(got) == wanted
        assert eventually(lambda: not any(client.run(own_files).values()))


def test_threads_of_one_process_lend_nothing(wanted: str) -> None:
    before = own_files()
    with cluster(1) as made, Client(made, set_as_default=False) as client:
        run = iter(pipeline(UNITS, scheduler=client, memory_limit="64MiB"))
        got = [next(run)]
        assert own_files() == before
        assert stream_hash([*got, *run]) == wanted


# ------------------------------------------------------------------------------- what Dask is given


def shipment() -> Shipment:
    """Something lent beside something small."""
    parcels = (lent(large()), pack(large(3)))
    return Shipment(tuple(Answer(each, b"") for each in parcels), whence=("a", "key"))


def sizes(frames: Any) -> int:
    return sum(memoryview(each).nbytes for each in frames)


def whole(found: Any) -> bool:
    one, other = (answer.parcel for answer in cast("Shipment", found).answers)
    return same(cast("Parcel", one), large()) and same(cast("Parcel", other), large(3))


def test_neighbours_get_slips_and_others_bytes() -> None:
    made = shipment()
    header, frames = serialize(made, context=ADDRESSES)
    assert sizes(frames) < 5000
    assert whole(deserialize(header, frames))
    for context in (None, APART, {}):
        header, frames = serialize(made, context=context)
        assert sizes(frames) > large().held_bytes
        assert whole(deserialize(header, frames))


def test_on_disk_are_bytes() -> None:
    kept = serialize_bytes(shipment())
    assert len(kept) > large().held_bytes
    assert whole(deserialize_bytes(kept))


def test_what_was_borrowed_is_sent_on_as_bytes() -> None:
    made = shipment()
    found = deserialize(*serialize(made, context=ADDRESSES))
    assert found.__sizeof__() < 1000 < large().held_bytes < made.__sizeof__()
    header, frames = serialize(found, context=ADDRESSES)
    assert sizes(frames) > large().held_bytes
    assert whole(deserialize(header, frames))


def test_what_cannot_be_opened_says_so_wherever_it_goes() -> None:
    made = shipment()
    header, frames = serialize(made, context=ADDRESSES)
    del made  # nobody has it any more
    found = deserialize(header, frames)
    assert found.unopened
    assert not found.strange
    assert found.whence == ("a", "key")
    assert deserialize(*serialize(found, context=ADDRESSES)).unopened


def test_a_worker_that_could_not_open_ends_the_lending() -> None:
    class Told:
        lends, tickets = True, {3: None}

        def fail(self, error: BaseException) -> None:
            raise error

    told: Any = Told()
    DaskCrew.noted(told, TaskNote(4, "a", None, strange=True))  # of another run
    DaskCrew.noted(told, TaskNote(3, "a", None))
    assert told.lends
    DaskCrew.noted(told, TaskNote(3, "a", None, strange=True))
    assert not told.lends
