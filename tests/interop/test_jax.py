"""Test arrays for JAX: the same bytes, resumable, no integer that wraps."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml.errors import CastError, PlanError

jax = pytest.importorskip("jax")


@pytest.fixture(params=[False, True])
def wide(request: pytest.FixtureRequest) -> Iterator[bool]:
    """With and without arrays of 64 bits."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", request.param)
    yield request.param
    jax.config.update("jax_enable_x64", before)


def mixed() -> dml.Dataset:
    table = {
        "i": pa.array(range(6)),
        "u": pa.array(range(6), pa.uint64()),
        "f": np.arange(6.0) / 3,
        "h": np.arange(6.0, dtype="f4"),
        "b": [True, False] * 3,
        "text": ["a", "b", None, "c", "d", "e"],
    }
    return dml.from_arrow(pa.table(table)).with_options(telemetry_dir="off")


def test_batches_have_the_bytes_of_numpy(wide: bool) -> None:
    arrays = list(mixed().iter_batches(4))
    found = list(mixed().to_jax(batch_size=4))
    assert len(found) == 2
    for made, given in zip(found, arrays, strict=True):
        for name in "iufhb":
            assert isinstance(made[name], jax.Array)
            kind = jax.dtypes.canonicalize_dtype(given[name].dtype)
            assert made[name].dtype == kind
            assert np.asarray(made[name]).tobytes() == given[name].astype(kind).tobytes()
        assert made["text"] == given["text"].tolist()


def test_integers_that_do_not_fit_are_errors_and_never_wrap(wide: bool) -> None:
    for value, kind in ((2**31, pa.int64()), (-(2**31) - 1, pa.int64()), (2**32, pa.uint64())):
        ds = dml.from_arrow(pa.table({"x": pa.array([1, value], kind)})).batch(2)
        if wide:
            assert next(iter(ds.to_jax()))["x"].tolist() == [1, value]
            continue
        with pytest.raises(CastError, match=f"column 'x' has {value}"):
            next(iter(ds.to_jax()))
    when = dml.from_dict({"t": [dt.datetime(2020, 1, 1)]}).batch(1)
    if wide:
        assert next(iter(when.to_jax()))["t"].tolist() == [1_577_836_800_000_000]
    else:
        with pytest.raises(CastError, match="jax_enable_x64"):
            next(iter(when.to_jax()))


def test_a_state_goes_on_where_the_loop_was() -> None:
    ds = dml.range(100).shuffle(16).batch(8).with_options(telemetry_dir="off")
    wanted = [batch["id"].tolist() for batch in ds.epoch(0)]
    dataset = ds.to_jax()
    run = iter(dataset)
    first = [next(run)["id"].tolist() for _ in range(3)]
    other = ds.to_jax()
    other.load_state_dict(dataset.state_dict())
    assert first + [batch["id"].tolist() for batch in other] == wanted


def test_arrays_go_where_they_are_sent() -> None:
    device = jax.devices()[0]
    mesh = jax.sharding.Mesh(np.array([device]), ("rows",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    for wanted in (device, sharding):
        made = next(iter(mixed().select("h").to_jax(batch_size=3, sharding=wanted)))["h"]
        assert made.devices() == {device}
        assert made.tolist() == [0.0, 1.0, 2.0]


def test_one_compiled_step_sees_one_shape() -> None:
    traced: list[Any] = []

    @jax.jit  # type: ignore[untyped-decorator, unused-ignore]
    def step(batch: dict[str, Any]) -> Any:
        traced.append(batch["id"].shape)
        return batch["id"].sum()

    sums = [int(step(batch)) for batch in dml.range(100).to_jax(batch_size=8, drop_last=True)]
    assert sum(sums) == sum(range(96))
    assert traced == [(8,)]


def test_what_has_no_array_is_said() -> None:
    with pytest.raises(PlanError, match="column 'text' has no array"):
        next(iter(mixed().to_jax(batch_size=2, objects="error")))
    with pytest.raises(PlanError, match="has no meaning"):
        mixed().to_jax(objects="pad")
