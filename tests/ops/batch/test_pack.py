"""Test ``pack``: lists of several rows joined to lists of a bounded number of tokens."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col
from dml.data.block import Block
from dml.errors import (
    CastError,
    MemoryContractError,
    NullValueError,
    PlanError,
    ResumeMismatchError,
    SchemaError,
)
from dml.expr.flow import At
from dml.kernels.rows.ids import RowIds, source_key
from dml.ops.batch import pack
from tests.expr.checks import QUIET, agrees, holds, node_of, table

LENGTHS = [3, 9, 4, 4, 0, 10, 1, 7, 2, 2, 6, 5, 5, 8, 1, 3]


def documents(lengths: list[int] | None = None, atom_rows: int = 3) -> dml.Dataset:
    """Row i has ``lengths[i]`` tokens ``100 i + j``, and as many labels."""
    sizes = LENGTHS if lengths is None else lengths
    tokens = [[100 * i + j for j in range(n)] for i, n in enumerate(sizes)]
    labels = [[j / 2 for j in range(n)] for n in sizes]
    return table(
        {
            "tokens": pa.array(tokens, pa.list_(pa.int64())),
            "labels": pa.array(labels, pa.list_(pa.float32())),
        },
        atom_rows,
    )


def packed(ds: dml.Dataset) -> list[list[int]]:
    """The documents in each row, by number."""
    return [list(dict.fromkeys(t // 100 for t in row["tokens"])) for row in ds]


def test_which_rows_share_a_bin() -> None:
    ds = documents([6, 5, 3, 4, 2, 10, 1])
    assert packed(ds.pack(10, "tokens", bins=2)) == [[0, 2], [1, 3], [5], [4, 6]]
    assert packed(ds.pack(10, "tokens", bins=3)) == [[0, 2], [5], [1, 3, 6], [4]]
    assert packed(ds.pack(10, "tokens", bins=1)) == [[0], [1, 2], [3, 4], [5], [6]]
    assert packed(ds.pack(10, "tokens", "concat_split")) == [[0, 1], [1, 2, 3, 4], [5], [6]]
    close = documents([5, 6, 4, 3])
    assert packed(close.pack(10, "tokens")) == [[0, 2], [1, 3]]
    assert packed(close.pack(10, "tokens", "best_fit")) == [[1, 2], [0, 3]]


def test_segments_and_positions() -> None:
    rows = list(documents([2, 3, 1, 4]).pack(6, "tokens"))
    assert [row["tokens"] for row in rows] == [[0, 1, 100, 101, 102, 200], [300, 301, 302, 303]]
    assert [row["segment_ids"] for row in rows] == [[1, 1, 2, 2, 2, 3], [1] * 4]
    assert [row["positions"] for row in rows] == [[0, 1, 0, 1, 2, 0], [0, 1, 2, 3]]
    assert rows[0]["labels"] == [0.0, 0.5, 0.0, 0.5, 1.0, 0.0]


@pytest.mark.law
@given(
    st.lists(st.integers(0, 12), max_size=60),
    st.sampled_from(["first_fit", "best_fit", "concat_split"]),
    st.integers(1, 5),
)
def test_every_token_once_within_the_bound(lengths: list[int], how: str, bins: int) -> None:
    ds = documents(lengths, atom_rows=7)
    rows = list(ds.pack(12, "tokens", how, bins=bins))
    tokens = [token for row in rows for token in row["tokens"]]
    assert sorted(tokens) == [100 * i + j for i, n in enumerate(lengths) for j in range(n)]
    assert all(0 < len(row["tokens"]) <= 12 for row in rows)
    for row in rows:
        documents_ = [(t // 100, t % 100) for t in row["tokens"]]
        order = list(dict.fromkeys(number for number, _ in documents_))
        assert order == sorted(order)
        assert [order[s - 1] for s in row["segment_ids"]] == [number for number, _ in documents_]
        if how != "concat_split":
            assert row["positions"] == [place for _, place in documents_]
    if how == "concat_split":
        assert tokens == sorted(tokens)
        assert all(len(row["tokens"]) == 12 for row in rows[:-1])


@pytest.mark.sample(3)
@pytest.mark.law
@pytest.mark.parametrize("bins", [1, 2, 4])
@pytest.mark.parametrize("strategy", ["first_fit", "best_fit", "concat_split"])
def test_every_way_of_running_and_resuming(strategy: str, bins: int) -> None:
    ds = documents()
    holds(ds.pack(10, "tokens", strategy, bins=bins))
    holds(ds.shuffle(4, seed=1).repeat(2).pack(11, "tokens", strategy, bins=bins).batch(2))
    padded = ds.pack(12, "tokens", strategy, bins=bins, pad_value={"labels": -100})
    holds(padded.shuffle(3, seed=2).repeat(2))
    holds(padded.map_batches(dict, fingerprint="same"))
    holds(ds.repeat().pack(10, "tokens", strategy, bins=bins).take(7))


@pytest.mark.law
def test_tokens_that_nobody_waits_for_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "SPARE_TOKENS", 0)
    lengths = [n * n % 9 for n in range(60)]
    for bins in (1, 5):
        holds(documents(lengths, atom_rows=4).pack(8, "tokens", "best_fit", bins=bins))


def test_a_bin_waits_for_no_more_than_the_others_opened_since() -> None:
    lengths = [7] + [6, 4] * 20
    first = packed(documents(lengths).pack(10, "tokens", bins=3))
    assert first.index([0]) == 2
    assert first[:2] == [[1, 2], [3, 4]]


@pytest.mark.law
def test_what_is_too_long() -> None:
    ds = documents([3, 12, 2, 5])
    it = iter(ds.pack(5, "tokens", bins=1))
    with pytest.raises(CastError, match="a list of 12 in 'tokens' does not fit into max_tokens=5"):
        next(it)
    agrees(ds.pack(5, "tokens", bins=1))
    cut = [row["tokens"] for row in ds.pack(5, "tokens", long="truncate")]
    assert cut == [[100, 101, 102, 103, 104], [0, 1, 2, 200, 201], [300, 301, 302, 303, 304]]
    dropped = [row["tokens"] for row in ds.pack(5, "tokens", long="drop")]
    assert dropped == [[0, 1, 2, 200, 201], [300, 301, 302, 303, 304]]
    split = [row["tokens"][0] for row in ds.pack(5, "tokens", "concat_split")]
    assert split == [0, 102, 107, 200, 303]
    for long in ("truncate", "drop"):
        holds(ds.pack(5, "tokens", long=long, bins=2))


def test_padding_makes_tensors() -> None:
    ds = documents([2, 3, 4]).pack(6, "tokens", pad_value={"tokens": -1})
    (batch,) = ds.batch(9)
    assert batch["tokens"].tolist() == [[0, 1, 100, 101, 102, -1], [200, 201, 202, 203, -1, -1]]
    assert batch["labels"].dtype == np.float32
    assert batch["labels"].tolist() == [[0, 0.5, 0, 0.5, 1, 0], [0, 0.5, 1, 1.5, 0, 0]]
    assert batch["segment_ids"].tolist() == [[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 0, 0]]
    assert batch["positions"].dtype == np.int32
    ragged = documents([2, 3, 4]).pack(6, "tokens").padded_batch(9, padding_values=0, pad_to=6)
    assert next(iter(ragged))["positions"].tolist() == batch["positions"].tolist()


@pytest.mark.law
def test_lists_of_every_kind() -> None:
    texts = pa.array([["a", "b"], [], [None, "d"]])
    sized = pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int8(), 2))
    holds(table({"t": texts}).pack(3, "t"))
    holds(table({"t": pa.array([[1, None], [2]], pa.large_list(pa.int16()))}).pack(3, "t"))
    holds(table({"t": sized}).pack(5, "t", "concat_split", pad_value=0))
    holds(dml.from_numpy({"t": np.ones((5, 3), "f4")}, atom_rows=2).pack(7, "t", pad_value=0.5))
    holes = table({"t": pa.array([[1.5, None], [2.5]])})
    assert np.isnan(next(iter(holes.pack(3, "t", pad_value=0).batch(1)))["t"][0, 1])
    holds(holes.pack(3, "t", pad_value=0))


def test_rows_that_cannot_be_packed() -> None:
    ints = pa.list_(pa.int64())
    null = table({"t": pa.array([[1], [2], None, [3]], ints)})
    with pytest.raises(NullValueError, match="a null in 't'") as found:
        list(null.pack(1, "t"))
    assert "test_pack.py" in str(found.value)
    assert packed(null.pack(1, "t").rename(t="tokens").take(2)) == [[0], [0]]
    agrees(null.pack(1, "t"))
    holes = table({"t": pa.array([[1], [2, None]], ints)}).pack(4, "t", pad_value=0)
    with pytest.raises(NullValueError, match="a null in 't'"):
        list(holes)
    agrees(holes)
    uneven = {"t": pa.array([[1], [2, 3]], ints), "u": pa.array([[1], [2]], ints)}
    with pytest.raises(CastError, match="1 values in 'u' beside 2 in 't'"):
        list(table(uneven).pack(4, "t"))
    agrees(table(uneven).pack(4, "t"))


@pytest.mark.law
def test_state_is_small_and_belongs_to_its_rows() -> None:
    ds = documents([n % 5 for n in range(3000)], atom_rows=100).pack(9, "tokens", bins=256)
    it = iter(ds)
    assert max(len(json.dumps(it.state_dict())) for _ in it) < 4096


class Given:
    """A flow of one block."""

    def __init__(self, block: Block) -> None:
        self.blocks = [block]

    def pull(self, most: int) -> Block | None:
        del most
        return self.blocks.pop() if self.blocks else None

    def position(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.blocks = []


def test_a_position_that_holds_rows_it_does_not_lead_to() -> None:
    nothing: Any = None
    at = At(0, 0, nothing, {}, nothing, 0)
    ids = RowIds.run(source_key("t"), 0, 3)
    block = Block.from_arrow(pa.record_batch({"tokens": pa.array([[1, 2], [3], [4, 5]])}), ids)
    node = pack.Pack(
        node_of(table({"tokens": block.to_arrow()["tokens"]})),
        "tokens",
        4,
        "first_fit",
        2,
        "error",
        None,
    )
    sound: Any = node.flow(
        lambda *_: Given(block), 0, {"in": None, "open": [[1, 2]], "drop": 1}, at
    )
    assert sound.pull(9).n == 1
    broken = node.flow(lambda *_: Given(block), 0, {"in": None, "open": [[1, 2]], "drop": 0}, at)
    with pytest.raises(ResumeMismatchError, match="rows that it does not lead to"):
        broken.pull(9)


@pytest.mark.law
def test_what_is_held_is_within_the_memory_number() -> None:
    big = documents([600] * 300, atom_rows=5).with_options(memory_limit="1MiB")
    with pytest.raises(MemoryContractError, match="rows of Pack"):
        list(big.pack(1000, "tokens", bins=256))
    assert len(list(big.pack(1000, "tokens", bins=4))) == 300


def test_what_is_refused() -> None:
    ds = documents()
    with pytest.raises(PlanError, match="no strategy 'worst_fit'"):
        ds.pack(10, "tokens", "worst_fit")
    with pytest.raises(PlanError, match="no long 'split'"):
        ds.pack(10, "tokens", long="split")
    with pytest.raises(PlanError, match=r"concat_split.* with long='drop'"):
        ds.pack(10, "tokens", "concat_split", long="drop")
    with pytest.raises(PlanError, match="max_tokens needs an integer of at least 1"):
        ds.pack(0, "tokens")
    with pytest.raises(PlanError, match="pack with 257 bins"):
        ds.pack(10, "tokens", bins=257)
    with pytest.raises(PlanError, match="pack over batches"):
        ds.batch(2).pack(10, "tokens")
    with pytest.raises(SchemaError, match="needs column 't'"):
        ds.pack(10, "t")
    with pytest.raises(SchemaError, match="cannot join 'n', which is int64"):
        ds.with_row_index("n").pack(10, "tokens")
    with pytest.raises(SchemaError, match="makes 'positions', which is there already"):
        ds.with_columns(positions=col("tokens")).pack(10, "tokens")
    with pytest.raises(SchemaError, match=r"cannot fill 'tokens' with 0\.5"):
        ds.pack(10, "tokens", pad_value=0.5)
    with pytest.raises(SchemaError, match="pad_value needs column 'x'"):
        ds.pack(10, "tokens", pad_value={"x": 1})
    texts = table({"t": pa.array([["a"]])})
    with pytest.raises(SchemaError, match="its lists are of string"):
        texts.pack(10, "t", pad_value=0)
    late = dml.range(3).map(lambda row: {"t": row["id"]}, fingerprint="t").with_options(**QUIET)
    with pytest.raises(SchemaError, match="cannot join 't'") as found:
        list(late.pack(4, "t"))
    assert "test_pack.py" in str(found.value)


def test_equal_packs_have_one_name() -> None:
    ds = documents()
    assert node_of(ds.pack(9, "tokens", "concat_split", bins=3)) == node_of(
        ds.pack(9, "tokens", "concat_split")
    )
    other: Any = ds.pack(9, "tokens", bins=3)
    assert other.fingerprint() != ds.pack(9, "tokens", bins=4).fingerprint()
    assert "Pack(9, 'tokens', 'first_fit', bins=3, long='error')" in other.explain("written")
    assert ds.pack(9, "tokens").cardinality() is None
