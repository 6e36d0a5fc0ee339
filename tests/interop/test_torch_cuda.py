"""Test tensors on a CUDA device; the tests are skipped where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml

torch = pytest.importorskip("torch")
interop = pytest.importorskip("dml.interop.torch")

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

OFF: dict[str, Any] = {"telemetry_dir": "off"}
ROWS, BATCH, WIDE = 600, 32, 4096
# Long enough for the copies of the next elements to arrive while it runs: about 50 ms.
BUSY_CYCLES = 100_000_000


def wide(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Half a megabyte of floats for each batch."""
    x = batch["id"][:, None] * np.arange(1, WIDE + 1, dtype="f4")[None, :]
    return {"id": batch["id"], "x": np.sin(x).astype("f4")}


def pipeline() -> dml.Dataset:
    made = dml.range(ROWS, atom_rows=50).shuffle(64, seed=2).batch(BATCH)
    return made.map(wide, fingerprint="wide").with_options(**OFF).epoch(0)


def test_every_tensor_is_on_the_device_with_the_bytes_of_the_host() -> None:
    seen = 0
    for there, here in zip(pipeline().to_torch(device="cuda"), pipeline().to_torch(), strict=True):
        assert {each.device.type for each in there.values()} == {"cuda"}
        assert all(torch.equal(there[name].cpu(), here[name]) for name in here)
        seen += len(here["id"])
    assert seen == ROWS


def test_copies_wait_for_nobody_and_are_waited_for() -> None:
    """A loop that is far behind reads each element after many more have been sent."""
    kept, wanted = [], []
    for there, here in zip(pipeline().to_torch(device="cuda"), pipeline().to_torch(), strict=True):
        torch.cuda._sleep(BUSY_CYCLES)
        kept.append((there["x"] * 2 + there["id"][:, None]).sum(dtype=torch.float64))
        del there
        wanted.append((here["x"].cuda() * 2 + here["id"].cuda()[:, None]).sum(dtype=torch.float64))
    assert [each.item() for each in kept] == [each.item() for each in wanted]


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")
def test_copies_are_on_a_stream_of_their_own_and_from_pinned_memory() -> None:
    mover = interop.Pinned(torch.device("cuda"))
    assert mover.stream != torch.cuda.current_stream()
    with torch.profiler.profile() as seen:
        sent = mover.sent({"x": torch.arange(1 << 20)})
        assert mover.arrived(sent)["x"].sum().item() == (1 << 20) * ((1 << 20) - 1) // 2
        torch.cuda.synchronize()
    copies = [event.name for event in seen.events() if "Memcpy HtoD" in event.name]
    assert copies
    assert all("Pinned" in name for name in copies), copies


def test_the_training_does_not_wait_while_an_element_is_sent() -> None:
    torch.cuda._sleep(BUSY_CYCLES)
    mover = interop.Pinned(torch.device("cuda"))
    sent = mover.sent({"x": torch.ones(1 << 20)})
    sent[1].synchronize()  # the copy is there ...
    busy = torch.cuda.current_stream().query()
    assert not busy, "... while the training's stream is at work"
    assert mover.arrived(sent)["x"].sum().item() == 1 << 20


@pytest.mark.parametrize("taken", [0, 1, 7, 18])
def test_a_state_gives_what_the_loop_has_not_received(taken: int) -> None:
    whole = [batch["id"].tolist() for batch in pipeline()]
    dataset = pipeline().to_torch(device="cuda")
    loop = iter(dataset)
    first = [next(loop)["id"].tolist() for _ in range(taken)]
    state = dataset.state_dict()
    again = pipeline().to_torch(device="cuda")
    again.load_state_dict(state)
    assert first + [batch["id"].tolist() for batch in again] == whole


def test_text_stays_and_lists_are_moved() -> None:
    table = {"s": ["a", "b"], "v": pa.array([[1.5], [2.0, 3.0]], pa.list_(pa.float32()))}
    ds = dml.from_arrow(pa.table(table)).batch(2).with_options(**OFF)
    only = next(iter(ds.to_torch(device="cuda")))
    assert only["s"] == ["a", "b"]
    assert [each.device.type for each in only["v"]] == ["cuda", "cuda"]
    nested = next(iter(ds.drop("s").to_torch(device="cuda", ragged="nested")))["v"]
    assert nested.device.type == "cuda"
    assert [each.tolist() for each in nested.unbind()] == [[1.5], [2.0, 3.0]]


class Squared:
    """A stage that lives on the device."""

    def __init__(self) -> None:
        self.device = torch.device("cuda")

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        x = torch.tensor(batch["id"]).to(self.device)  # a copy: the batch is read-only
        return {"id": batch["id"], "square": (x * x).cpu().numpy()}


@pytest.mark.cluster
@pytest.mark.parametrize("executor", ["sync", "threads", "processes", "dask"])
def test_a_stage_with_a_gpu(executor: str) -> None:
    ds = dml.range(1000, atom_rows=100).map_batches(
        Squared, num_gpus=1, concurrency=1, fingerprint="squared"
    )
    ds = ds.batch(100).with_options(**OFF)
    if executor != "dask":
        check(ds.with_options(executor=executor))
        return
    distributed = pytest.importorskip("distributed")
    usual = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": ":0", "silence_logs": 50}
    with (
        distributed.LocalCluster(resources={"GPU": 1}, **usual) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        check(ds.with_options(scheduler=client))


def check(ds: dml.Dataset) -> None:
    """Every square, once, in order."""
    found = np.concatenate([batch["square"] for batch in ds.epoch(0)])
    assert np.array_equal(found, np.arange(1000) ** 2)
