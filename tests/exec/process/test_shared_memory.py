"""Test partitions in shared memory: they are opened bit for bit, or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import os
import pickle
import resource
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.exec.memory.memory_meter import counted_bytes, give_back
from dml.exec.process import neighbours, shared_memory
from dml.exec.process.partition_codec import Parcel, pack, unpack
from dml.exec.process.shared_memory import (
    Lender,
    borrow,
    held_bytes,
    is_lent,
    is_strange,
    is_unopened,
    noted,
    opened,
)
from dml.exec.tasks.partition import Piece
from dml.exec.tasks.slices import Outcome
from dml.kernels.rows.ids import RowIds
from tests.alone import alone
from tests.exec.process.test_partition_codec import block_of, equal, outcomes

pytestmark = pytest.mark.skipif(not neighbours.here(), reason="no files in memory here")
MIB = 1 << 20


def lent(outcome: Outcome, least: int = 0) -> Parcel:
    """The partition in a file, also if it is small."""
    lender = Lender()
    with patch.object(shared_memory, "LEAST", least):
        found = lender.lent(pack(outcome, lender.keep))
    assert found is not None
    return found


def sent(parcel: Parcel) -> Parcel:
    """The slip of a parcel as another process gets it."""
    found: Parcel = pickle.loads(pickle.dumps(noted(parcel), protocol=5))
    return found


def large(rows: int = MIB // 8, first: int = 0) -> Outcome:
    ids = RowIds.of_arrays(np.arange(rows, dtype="u8"), np.arange(rows, dtype="u8"))
    block = block_of(pa.table({"x": np.arange(first, first + rows)}), ids)
    return Outcome([Piece(0, 0, block)], 8 * rows, rows)


def values(parcel: Parcel) -> Any:
    return unpack(parcel).value[0].block.columns[0].values


def same(parcel: Parcel, outcome: Outcome) -> bool:
    found = unpack(parcel).value
    return len(found) == len(outcome.value) and all(map(equal, found, outcome.value))


def own_files() -> set[int]:
    """Nameless files that this process has open: those of other tests may go at any time."""
    return set(filter(None, map(_memfd, Path("/proc/self/fd").iterdir())))


def _memfd(file: Path) -> int | None:
    try:
        return os.stat(file).st_ino if os.readlink(file).startswith("/memfd:dml") else None
    except OSError:  # that was the one for the folder
        return None


# ------------------------------------------------------------------------------------- what is lent


@pytest.mark.law
@given(outcomes())
def test_what_is_borrowed_is_what_was_lent(outcome: Outcome) -> None:
    owned = lent(outcome)
    held = (each.block is not None or each.returned is not None for each in outcome.value)
    assert is_lent(owned) == any(held)
    found = borrow(sent(owned)) if is_lent(owned) else owned
    assert not is_unopened(found)
    del owned  # what is mapped outlives what was lent
    gc.collect()
    assert same(found, outcome)


@pytest.mark.law
@given(outcomes())
def test_on_disk_it_is_bytes(outcome: Outcome) -> None:
    owned = lent(outcome)
    kept = [pickle.dumps(owned, protocol=protocol) for protocol in (2, 5)]
    if is_lent(owned):
        kept.append(pickle.dumps(borrow(sent(owned))))
    del owned
    gc.collect()
    for each in map(pickle.loads, kept):
        assert each.lent is None
        assert same(each, outcome)


@pytest.mark.law
@given(outcomes(), st.integers(0, 3000))
def test_small_partitions_have_no_file(outcome: Outcome, least: int) -> None:
    found = lent(outcome, least)
    largest = max((len(memoryview(each)) for each in pack(outcome).columns), default=-1)
    assert is_lent(found) == (largest >= least)
    assert same(found, outcome)


@pytest.mark.law
def test_the_file_goes_with_the_partition() -> None:
    before = own_files()
    owned = lent(large())
    (file,) = own_files() - before
    slip = sent(owned)
    found = borrow(slip)
    assert own_files() - before == {file}  # a mapping needs none
    del owned
    gc.collect()
    assert not own_files() - before
    assert is_unopened(borrow(slip))
    assert not is_strange(borrow(slip))
    assert (values(found) == values(pack(large()))).all()


def test_nobody_can_change_what_was_lent() -> None:
    owned = lent(large())
    slip = owned.lent.slip
    with pytest.raises(PermissionError):
        os.ftruncate(slip.file, 10)
    with pytest.raises(PermissionError):
        os.pwrite(slip.file, b"other", 0)
    with pytest.raises(ValueError, match="read-only"):
        values(borrow(sent(owned)))[0] = 7


@pytest.mark.law
def test_few_descriptors_are_left_for_others() -> None:
    before = own_files()
    own = patch.object(shared_memory, "SHEETS", weakref.WeakSet[Any]())
    with own, patch.object(shared_memory, "MOST_FILES", 3):
        held = [lent(large()) for _ in range(10)]
        assert len(own_files() - before) == 3
        assert sum(map(is_lent, held)) == 3
    assert all(same(each, large()) for each in held)


def test_a_process_without_files_left_lends_nothing() -> None:
    full = patch.object(os, "memfd_create", side_effect=OSError(errno.EMFILE, "too many"))
    with full:
        found = lent(large())
    assert not is_lent(found)
    assert same(found, large())


@pytest.mark.parametrize("free", range(5))
def test_a_process_with_few_files_left_lends_or_sends(free: int) -> None:
    before, first = own_files(), large()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 40, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        for _ in range(free):
            os.close(held.pop())
        with patch.object(shared_memory, "_many", lambda: False):
            found = lent(first)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in held:
            os.close(each)
    assert same(found, large())
    assert is_lent(found) == bool(own_files() - before) == (free > 1)


@pytest.mark.parametrize("most", [0, 1 << 12, 1 << 16])
def test_a_process_whose_files_may_not_grow_sends(most: int) -> None:
    before, limits = own_files(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        found = lent(large())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert same(found, large())
    assert not is_lent(found)
    gc.collect()
    assert not own_files() - before


@pytest.mark.law
def test_what_fails_half_way_leaves_no_file() -> None:
    before, lender = own_files(), Lender()

    def failing(sink: Any) -> None:
        sink.write(b"half")
        raise MemoryError

    with (
        patch.object(shared_memory, "size_of", lambda _fill: shared_memory.LEAST),
        pytest.raises(MemoryError),
    ):
        lender.keep(failing)
    del lender
    gc.collect()
    assert not own_files() - before


# ---------------------------------------------------------------------------------- what is counted


def test_lent_memory_counts_once_where_it_is_lent() -> None:
    owned = lent(large())
    found = borrow(sent(owned))
    assert held_bytes(owned) == owned.nbytes == found.nbytes > MIB
    assert held_bytes(found) == held_bytes(sent(owned)) == held_bytes(None) == 0


@pytest.mark.law
@alone
def test_the_process_tree_has_it_once() -> None:
    rows = 16 * MIB // 8
    lent(large(rows))  # what making it leaves behind in allocators is there before
    gc.collect()
    give_back()
    before = counted_bytes()
    owned = lent(large(rows))
    gc.collect()
    give_back()
    child = subprocess.Popen(
        [sys.executable, "-c", BORROWER, pickle.dumps(noted(owned)).hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert int(child.stdout.readline()) == sum(range(rows))
        both, alone = counted_bytes(), counted_bytes(child.pid)
        child.stdin.close()
    assert before is not None
    assert both is not None
    assert alone is not None
    # the child with what it has loaded, and the file once though both have it mapped and read
    assert owned.nbytes * 0.5 < both - before - (alone - owned.nbytes) < owned.nbytes * 1.6


BORROWER = """
import pickle, sys
from dml.exec.process.shared_memory import borrow
from dml.exec.process.partition_codec import unpack
found = borrow(pickle.loads(bytes.fromhex(sys.argv[1])))
print(unpack(found).value[0].block.columns[0].values.sum(), flush=True)
sys.stdin.read()
"""

# ------------------------------------------------------------------------------- what is not opened


def test_another_file_is_not_opened() -> None:
    owned, other = lent(large()), lent(large(first=5))
    slip, wrong = owned.lent.slip, other.lent.slip
    assert opened(slip) is not None
    changed: list[dict[str, Any]] = [
        {"token": wrong.token},
        {"file": wrong.file},
        {"inode": wrong.inode},
        {"size": slip.size + 1},
        {"pid": 1 << 22},
        {"host": "elsewhere"},
        {"host": ""},
        {"file": 1 << 20},
    ]
    for each in changed:
        assert opened(dataclasses.replace(slip, **each)) is None, each


def test_a_file_that_could_change_is_not_opened() -> None:
    with patch.object(shared_memory, "SEALS", 0):
        owned = lent(large())
    assert opened(owned.lent.slip) is None


def test_what_is_no_file_is_not_touched(tmp_path: Path) -> None:
    slip = lent(large()).lent.slip
    os.mkfifo(tmp_path / "pipe")
    file = os.open(tmp_path / "pipe", os.O_RDWR)  # to open it again would wait, or take a word
    try:
        found = os.fstat(file)
        inode = found.st_dev, found.st_ino
        assert opened(dataclasses.replace(slip, file=file, inode=inode, size=0)) is None
    finally:
        os.close(file)


def test_nobody_elsewhere_opens_it() -> None:
    slip = sent(lent(large()))
    with patch.object(shared_memory, "here", lambda: "another host"):
        found = borrow(slip)
        assert is_unopened(found)
        assert is_strange(found)
    gone = dataclasses.replace(slip.lent, pid=1 << 22)
    assert not is_strange(dataclasses.replace(slip, lent=gone))


@contextmanager
def owner(*ahead: str) -> Iterator[tuple[subprocess.Popen[str], Parcel]]:
    """Another process that lends a partition, and the slip."""
    command = [*ahead, sys.executable, "-c", OWNER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as child:  # type: ignore[call-overload]
        try:
            yield child, pickle.loads(bytes.fromhex(child.stdout.readline()))
        finally:
            child.kill()


OWNER = """
import pickle, sys
from tests.exec.process.test_shared_memory import large, lent, noted
owned = lent(large())
print(pickle.dumps(noted(owned)).hex(), flush=True)
sys.stdin.read()
"""


@pytest.mark.law
def test_a_mapping_outlives_a_killed_owner() -> None:
    with owner() as (child, slip):
        found, early = borrow(slip), opened(slip.lent)
        assert early is not None
        child.kill()
        child.wait()
        assert is_unopened(borrow(slip))
        assert not is_strange(slip)
    assert same(found, large())


@pytest.mark.law
def test_a_process_of_another_namespace_is_strange() -> None:
    apart = ("unshare", "--pid", "--fork", "--mount-proc")
    tried = subprocess.run([*apart, "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("namespaces need root")
    with owner(*apart) as (_, slip):
        assert is_strange(slip)
        assert is_unopened(borrow(slip))


# -------------------------------------------------------------------------------------- who is near


@pytest.mark.parametrize(
    ("sender", "recipient", "wanted"),
    [
        ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", True),
        ("tls://10.0.0.1:1", "tls://10.0.0.1:2", True),
        ("tcp://[::1]:1", "tcp://[::1]:2", True),
        ("tcp://10.0.0.1:1", "tcp://10.0.0.2:1", False),
        ("inproc://10.0.0.1/1/2", "inproc://10.0.0.1/1/3", False),
        ("tcp://", "tcp://", False),
        ("", "", False),
    ],
)
def test_who_has_the_same_address_is_near(sender: str, recipient: str, wanted: bool) -> None:
    ends = {"sender": {"address": sender}, "recipient": {"address": recipient}}
    assert neighbours.near(ends) == wanted


def test_what_has_no_receiver_goes_nowhere_near() -> None:
    assert not neighbours.near(None)
    assert not neighbours.near({})
    assert not neighbours.near({"sender": None, "recipient": {}})
    ends = {"address": "tcp://127.0.0.1:1"}
    with patch.object(neighbours, "here", lambda: ""):
        assert not neighbours.near({"sender": ends, "recipient": ends})
