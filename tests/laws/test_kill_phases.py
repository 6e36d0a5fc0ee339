"""Law: killing workers in any phase of their work changes no byte, and repeats little work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
import pytest

from dml.data.stream_hash import stream_hash
from tests.laws.kills import HANG_S
from tests.laws.phases import PHASES, Funeral, Graves, pipeline, write
from tests.laws.test_kills import START_S, WORKERS, with_nannies, without_nannies

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:unclosed:Warning"),
]

_log = logging.getLogger(__name__)

WAYS = ("processes", "with nannies", "without nannies")
SAMPLE = {"processes": PHASES, "with nannies": ("transfer",), "without nannies": ("transform",)}
MOST = 2  # deaths in a run: more losses of one slice than are forgiven would be an error
EACH = 17  # deaths of each way and phase: more than 200 in all


SCHEDULER = "distributed.scheduler"
Options = Callable[[], dict[str, Any]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder that is read, and the hash of what comes of it."""
    folder = write(tmp_path_factory.mktemp("phases"))
    return folder, stream_hash(pipeline(folder, Graves(folder), 0.0, executor="sync"))


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[tuple[str, Options]]:
    """A way to run, and its options once there are as many workers as there should be."""
    name = request.param
    if name == "processes":
        yield name, lambda: {"executor": name, "num_workers": WORKERS}
        return
    with ExitStack() as stack:
        # of what two workers have it would leave one copy, maybe that of the one who dies without
        # having begun anything with it
        stack.enter_context(dask.config.set({f"{SCHEDULER}.active-memory-manager.start": False}))
        cluster = with_nannies if name == "with nannies" else without_nannies
        client, _ = stack.enter_context(cluster())

        def options() -> dict[str, Any]:
            client.wait_for_workers(WORKERS, timeout=START_S)
            return {"scheduler": client}

        yield name, options


@pytest.mark.parametrize("phase", PHASES)
def test_workers_killed_in_a_phase_of_their_work(
    way: Any, phase: str, data: tuple[Path, str], tmp_path: Path, whole: bool
) -> None:
    (name, options), (folder, wanted) = way, data
    if not whole and phase not in SAMPLE[name]:
        pytest.skip("a sample: the others run with --whole")
    if name == "processes" and phase == "read":
        pytest.skip("units are read ahead, by a job without the function that plants deaths")
    kills, most = 0, EACH if whole else 1
    for run in range(2 * most):
        (tmp_path / str(run)).mkdir()
        graves = Graves(tmp_path / str(run))
        funeral = Funeral(graves, phase, run, min(MOST, most - kills))
        batches = iter(pipeline(folder, graves, **options()))
        assert stream_hash(funeral.follow(batches, HANG_S)) == wanted, run
        again, excused = funeral.rework()
        _log.info("%s: %d deaths, %d of %d", phase, len(funeral.deaths), again, excused)
        kills += len(funeral.deaths)
        if kills >= most:
            return
    raise AssertionError(f"only {kills} workers came to {phase!r}")
