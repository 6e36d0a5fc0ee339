"""Test splits over real processes that are started, killed, replaced, or lose rank 0."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore
from typing import Any

import pytest

from dml.errors import PlanError, ResumeMismatchError, WorkerLostError
from dml.ranks.connection import Wire
from dml.ranks.rank_server import Server
from dml.ranks.streaming_split import RankShare
from tests.ranks.split_rank import pipeline

pytestmark = pytest.mark.cluster

PROGRAM = Path(__file__).with_name("split_rank.py")
ROOT = PROGRAM.parents[2]


class Job:
    """Ranks of one job, in a folder of their own."""

    def __init__(self, folder: Path, n: int) -> None:
        self.folder, self.n = folder, n
        self.runtime = folder / "runtime"
        self.runtime.mkdir(mode=0o700, exist_ok=True)
        self.ranks: list[subprocess.Popen[str]] = []

    def start(self, rank: int, **asked: Any) -> subprocess.Popen[str]:
        env = {**os.environ, "XDG_RUNTIME_DIR": str(self.runtime), "PYTHONPATH": str(ROOT)}
        env |= {"RANK": str(rank), "WORLD_SIZE": str(self.n), "DML_TOKEN": "secret"}
        command = [sys.executable, str(PROGRAM), str(self.folder), json.dumps(asked)]
        made = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        self.ranks.append(made)
        return made

    def noted(self, rank: int, kind: str = "") -> list[Any]:
        path = (self.folder / f"rank{rank}").with_suffix(kind)
        return [json.loads(line) for line in path.read_text().splitlines()]

    def end(self) -> list[int]:
        return [rank.wait(60) for rank in self.ranks]


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[list[Job]]:
    made: list[Job] = []
    yield made
    for job in made:
        for rank in job.ranks:
            kill(rank)


def job(jobs: list[Job], tmp_path: Path, n: int) -> Job:
    jobs.append(Job(tmp_path, n))
    return jobs[-1]


def ready(rank: subprocess.Popen[str]) -> None:
    assert rank.stdout is not None
    assert rank.stdout.readline() == "ready\n"


def kill(rank: subprocess.Popen[str]) -> None:
    rank.kill()
    with rank:
        pass


def ids(rows: int = 1001, epoch: int = 0) -> list[list[int]]:
    return [batch["id"].tolist() for batch in pipeline(rows).epoch(epoch)]


def test_three_processes_get_every_batch_of_every_epoch(jobs: list[Job], tmp_path: Path) -> None:
    ours = job(jobs, tmp_path, 3)
    for rank in (2, 1, 0):
        ours.start(rank, epochs=2)
    assert ours.end() == [0, 0, 0]
    for rank in range(3):
        assert ours.noted(rank) == ids()[rank::3] + ids(epoch=1)[rank::3]
    assert not list((ours.runtime / "dml").iterdir())


def test_an_address_and_a_secret_do_without_a_folder(jobs: list[Job], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ours = job(jobs, tmp_path, 2)
    for rank in range(2):
        ours.start(rank, address=f"127.0.0.1:{port}")
    assert ours.end() == [0, 0]
    assert [ours.noted(rank) for rank in range(2)] == [ids()[0::2], ids()[1::2]]
    assert not list(ours.runtime.iterdir())


@pytest.mark.parametrize("stop", [1, 17])
@pytest.mark.parametrize("load", [True, False])
def test_a_successor_gets_what_was_not_acknowledged(
    jobs: list[Job], tmp_path: Path, stop: int, *, load: bool
) -> None:
    ours = job(jobs, tmp_path, 2)
    ours.start(0)
    lost = ours.start(1, stop=stop)
    ready(lost)
    kill(lost)
    before = ours.noted(1)
    ours.ranks.remove(lost)
    state = str(tmp_path / "rank1.state") if load else ""
    (tmp_path / "rank1").unlink()
    ours.start(1, load=state)
    assert ours.end() == [0, 0]
    # Without a state the element that was in use is not acknowledged, and comes again.
    assert before[: stop if load else stop - 1] + ours.noted(1) == ids()[1::2]
    assert ours.noted(0) == ids()[0::2]


def test_a_reader_that_raised_is_replaced_too(jobs: list[Job], tmp_path: Path) -> None:
    ours = job(jobs, tmp_path, 2)
    ours.start(0)
    failed = ours.start(1, stop=5, **{"raise": True})
    failed.communicate()
    assert failed.returncode == 1
    ours.ranks.remove(failed)
    ours.start(1)
    assert ours.end() == [0, 0]
    assert ours.noted(1) == ids()[1::2][:5] + ids()[1::2][4:]


def test_rank_0_dying_is_an_error_within_seconds(jobs: list[Job], tmp_path: Path) -> None:
    ours = job(jobs, tmp_path, 3)
    first = ours.start(0, stop=10)
    others = [ours.start(rank, sleep_s=0.02, rows=100_000) for rank in (1, 2)]
    ready(first)
    while not all((tmp_path / f"rank{rank}").exists() for rank in (1, 2)):
        assert [rank.poll() for rank in others] == [None, None]
        time.sleep(0.01)
    kill(first)
    begun = time.monotonic()
    assert [rank.wait(60) for rank in others] == [0, 0]
    assert time.monotonic() - begun < 5
    for rank in (1, 2):
        assert ours.noted(rank, ".error")[0][0] == WorkerLostError.__name__


def test_a_rank_that_nobody_takes_over_is_named(jobs: list[Job], tmp_path: Path) -> None:
    ours = job(jobs, tmp_path, 2)
    ours.start(0, rows=20_000, watchdog_s=1)
    lost = ours.start(1, stop=2, rows=20_000)
    ready(lost)
    kill(lost)
    assert ours.ranks[0].wait(60) == 0
    ((kind, text),) = ours.noted(0, ".error")
    assert kind == WorkerLostError.__name__
    assert "rank 0 cannot go on, as rank 1 takes nothing" in text


def test_without_rank_0_nobody_waits_for_ever(jobs: list[Job], tmp_path: Path) -> None:
    ours = job(jobs, tmp_path, 2)
    ours.start(1, watchdog_s=0.5)
    assert ours.ranks[0].wait(60) == 1


def test_three_then_five_then_two(jobs: list[Job], tmp_path: Path) -> None:
    """Killed whole, and resumed on other ranks from the state of any one of them."""
    state, start, whole = "", 0, ids()
    for n, stop in ((3, 10), (5, 7), (2, 0)):
        folder = tmp_path / str(n)
        folder.mkdir()
        ours = job(jobs, folder, n)
        ranks = [ours.start(rank, stop=stop, load=state) for rank in range(n)]
        for rank in ranks if stop else ():
            ready(rank)
        for rank in ranks if stop else ():
            kill(rank)
        for number, rank in enumerate(ranks):
            rank.wait(60)
            assert ours.noted(number) == whole[start + number :: n][: stop or None]
        state, start = str(folder / f"rank{n - 1}.state"), start + n * stop


# ---------------------------------------------------------------------- two ranks in one process


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A door to ranks of this process; they are closed at the end, the others before rank 0."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    made: list[RankShare] = []

    def part(
        rank: int, n: int = 2, *, rows: int = 41, epoch: int | None = None, **how: Any
    ) -> RankShare:
        ds = pipeline(rows, how.pop("watchdog_s", 5.0))
        ds = ds if epoch is None else ds.epoch(epoch)
        found: RankShare = ds.streaming_split(n, rank=rank, job_name="pair", **how)
        made.append(found)
        return found

    yield part
    for each in reversed(made):
        each.close()


def received(share: Any) -> list[Any]:
    return [batch["id"].tolist() for batch in share]


def test_ranks_go_on_from_a_state_and_leave_an_epoch(pair: Any) -> None:
    first, second = pair(0), pair(1)
    whole = ids(41)
    its = [iter(first), iter(second)]
    taken = [received([next(it), next(it)]) for it in its]
    assert taken == [[whole[0], whole[2]], [whole[1], whole[3]]]
    state = its[1].state_dict()
    assert state["at"] == its[0].state_dict()["at"] == 4
    fresh = [iter(second), iter(first)]  # the next epoch, which goes back to the one before
    for each in fresh:
        each.load_state_dict(state)
    assert [received(each) for each in fresh] == [whole[5::2], whole[4::2]]
    assert received(its[1]) == []
    assert second.state_dict()["epoch"] == 0
    with pytest.raises(PlanError, match="has started"):
        fresh[0].load_state_dict(state)


def test_a_closed_rank_leaves_the_rest_to_nobody(pair: Any) -> None:
    first, second = pair(0), pair(1)
    share = iter(second)
    next(share)
    share.close()
    assert next(share, None) is None
    assert received(first) == ids(41)[::2]
    again = iter(second)
    assert received(first) == ids(41, epoch=1)[::2]
    assert received(again) == ids(41, epoch=1)[1::2]


def test_an_error_of_the_pipeline_comes_to_the_other_ranks(pair: Any) -> None:
    first, second = pair(0), pair(1)
    share = iter(second)
    with pytest.raises(ResumeMismatchError, match="not the state of a rank"):
        share.load_state_dict({"x": 1})
    with pytest.raises(ResumeMismatchError):
        share.load_state_dict(None)
    assert len(received(share)) == len(received(first)) - 1


def test_ranks_that_do_not_agree_are_refused(pair: Any) -> None:
    first = pair(0)
    with pytest.raises(PlanError, match="rank 1 of 3 cannot join a split into 2"):
        iter(pair(1, 3))
    with pytest.raises(PlanError, match="pinned to epoch 4"):
        iter(pair(1, epoch=4))
    with pytest.raises(PlanError, match="has a rank 0 already"):
        pair(0)
    second = pair(1)
    got = iter(second)
    next(got)
    second.close()
    with pytest.raises(WorkerLostError, match="has left"):
        next(iter(second))
    assert len(received(first)) == 6


def test_a_second_reader_takes_the_place_of_the_first(pair: Any) -> None:
    first, old, new = pair(0), pair(1), pair(1)
    whole = ids(41)[1::2]
    share = iter(old)
    assert received([next(share), next(share)]) == whole[:2]
    assert received(iter(new)) == whole[1:], "what was in use is not acknowledged"
    with pytest.raises(WorkerLostError, match="is gone"):
        received(share)
    assert share.state_dict()["at"] in {4, 6}, "one more may have been on its way"
    assert received(first) == ids(41)[::2]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 takes its time with what it is asked for."""
    answered = Server._answered

    def later(self: Server, desk: Any, wire: Any, message: Any) -> Any:
        time.sleep(0.3 if message[0] == "get" else 0)
        return answered(self, desk, wire, message)

    monkeypatch.setattr(Server, "_answered", later)


@pytest.mark.usefixtures("slow")
def test_what_a_reader_has_said_counts_when_another_takes_its_place(pair: Any) -> None:
    first, old, new = pair(0), pair(1), pair(1)
    whole = ids(41)[1::2]
    share = iter(old)
    assert received([next(share), next(share)]) == whole[:2]
    assert received([next(iter(new))]) == whole[1:2]
    new.close()
    assert received(first) == ids(41)[::2]


def test_a_state_never_counts_what_was_not_given(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, send = Semaphore(0), Wire.send

    def counted(self: Wire, message: Any) -> None:
        send(self, message)
        if message[0] == "batch":
            sent.release()

    monkeypatch.setattr(Wire, "send", counted)
    first, second = pair(0, watchdog_s=0.5), pair(1)
    share = iter(second)
    assert received([next(share)]) == ids(41)[1:2]
    assert all(sent.acquire(timeout=60) for _ in range(2)), "the second is here, whole"
    first._finish.__self__.desks[1].wire.hang_up()
    assert received([next(share)]) == ids(41)[3:4]
    with pytest.raises(WorkerLostError, match="is gone"):
        next(share)
    assert (share.step, share.state_dict()["at"]) == (2, 4)


def test_a_port_is_free_again_once_the_split_is_closed(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DML_TOKEN", "secret")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for _ in range(3):
        pair(0, address=f"127.0.0.1:{port}", watchdog_s=0.1).close()
    with pytest.raises(PlanError, match=r"cannot listen at no-host\.invalid:80"):
        pair(0, address="no-host.invalid:80")


def test_a_server_outlives_a_shortage_of_files(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pair(0)
    real, failing = socket.socket.accept, [True] * 2

    def accept(self: socket.socket) -> Any:
        end = real(self)
        if failing:
            failing.pop()
            end[0].close()
            raise OSError(errno.EMFILE, "Too many open files")
        return end

    monkeypatch.setattr(socket.socket, "accept", accept)
    place = first._finish.__self__.place
    socket.create_connection((place.host, place.port)).close()  # from here on it is ours
    second = pair(1)
    assert received(second) == ids(41)[1::2]
    assert received(first) == ids(41)[::2]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers have been silent for longer than the watchdog whenever rank 0 looks."""
    monkeypatch.setattr(Server, "_spoken_lately", lambda _: False)


@pytest.mark.usefixtures("impatient")
def test_a_silent_reader_gets_its_rows_though_rank_0_ends(pair: Any) -> None:
    first, second = pair(0), pair(1)
    share = iter(second)
    assert received([next(share)]) == ids(41)[1:2]
    assert received(first) == ids(41)[::2]
    with ThreadPoolExecutor(1) as beside:
        ending = beside.submit(first.close)
        assert received(share) == ids(41)[3::2]
        ending.result(timeout=30)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("came", [True, False])
def test_rank_0_ends_with_an_error_where_rows_are_left(pair: Any, *, came: bool) -> None:
    first, second = pair(0), pair(1)
    if came:
        next(iter(second))
        first._finish.__self__.desks[1].wire.hang_up()
    assert received(first) == ids(41)[::2]
    with pytest.raises(WorkerLostError, match="rank 1 did not read the whole share"):
        first.close()
    with pytest.raises(WorkerLostError):
        next(iter(second))


@pytest.mark.usefixtures("impatient")
def test_rank_0_that_stops_early_itself_only_warns(
    pair: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first = pair(0)
    share = iter(first)
    assert received([next(share), next(share)]) == ids(41)[:3:2]
    first.close()
    assert "rank 1 did not read the whole share" in caplog.text


@pytest.mark.usefixtures("impatient")
def test_a_share_read_to_its_end_but_for_the_word_is_no_loss(pair: Any) -> None:
    first, second = pair(0, rows=8), pair(1, rows=8)
    share = iter(second)
    assert received(first) == ids(8)[::2]
    assert received([next(share)]) == ids(8)[1::2]
    second.close()
    first.close()
