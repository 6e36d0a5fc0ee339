"""Test local copies under any order of events, and processes that are killed while copying."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dml.cache.eviction import janitor
from dml.cache.parts.parts import PartFilling, PartRows, PartStore
from dml.cache.store import local_copies
from dml.cache.store.local_copies import BELOW, TTL_S, Copying
from tests.cache.store.far import announced, copies_in, far, files, left, opened
from tests.cache.store.fills import FP, OTHER, batch, same
from tests.sampling import amount

FPS, PARTS, EACH = [FP, OTHER, "12" * 16], 3, 2500
STEPS = ("read", "read", "read", "make", "evict", "remove", "damage", "die", "age", "open", "open")


class World:
    """A store far away, with copies of some processes beside each other."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.drawn = root, random.Random(seed)
        self.quotas = [1 << 20] * 2
        self.stores = [opened(root), opened(root)]
        self.versions: dict[tuple[str, int], int] = {}

    def step(self, name: str) -> None:
        """One thing happens; copies stay within the room of whoever wrote, and are right."""
        before, number = self.size, self.drawn.randrange(2)
        getattr(self, f"{name}s")(number)
        assert self.size <= max(before, self.quotas[number])

    @property
    def size(self) -> int:
        return sum(each.stat().st_size for each in files(self.root))

    @property
    def key(self) -> tuple[str, int]:
        return self.drawn.choice(FPS), self.drawn.randrange(PARTS)

    def right(self, got: PartRows | None, key: tuple[str, int]) -> bool:
        return same(got, [batch(self.versions[key], EACH // 10)])

    def reads(self, number: int) -> None:
        key = self.key
        got = self.stores[number].part(*key)
        assert self.right(got, key) if key in self.versions else got is None

    def makes(self, number: int) -> None:
        key = self.key
        got = self.stores[number].fill(*key)
        if isinstance(got, PartRows):
            assert self.right(got, key)
        else:
            assert isinstance(got, PartFilling)
            assert key not in self.versions
            self.versions[key] = self.drawn.randrange(1 << 20)
            got.add(batch(self.versions[key], EACH // 10))
            got.commit()

    def evicts(self, _: int) -> None:
        key = self.key
        janitor.evict(far(self.root), *key)
        self.versions.pop(key, None)

    def removes(self, number: int) -> None:
        name, _ = self.key
        if self.drawn.random() < 0.5:
            self.stores[number].remove(name)
        else:
            janitor.remove(far(self.root), name)
        self.versions = {key: made for key, made in self.versions.items() if key[0] != name}

    def damages(self, _: int) -> None:
        for path in self.drawn.sample(files(self.root), min(1, len(files(self.root)))):
            data = bytearray(path.read_bytes())
            data[self.drawn.randrange(len(data))] ^= 1 << self.drawn.randrange(8)
            made = path.with_name("aside")
            made.write_bytes(data[: self.drawn.choice([len(data), len(data) // 2])])
            made.rename(path)  # in place, only whoever has not checked it yet would see it

    def dies(self, number: int) -> None:
        """Somebody is killed while they copy."""
        held = Copying(copies_in(self.root, self.quotas[number]), FP, "blobs/dead.arrow", 900)
        held.write(memoryview(bytes(500)))
        held._sink, held._rooms = None, []  # nothing is given back

    def ages(self, _: int) -> None:
        """Time passes: what the dead left, and entries that nobody reads, are old."""
        for path in (self.root / "near" / BELOW).rglob("*"):
            if path.is_file() and self.drawn.random() < 0.7:
                then = time.time() - self.drawn.choice([5.0, TTL_S + 1, 9e5])
                os.utime(path, (then, then))

    def opens(self, number: int) -> None:
        """Another process comes, whose copies may take more or less."""
        self.quotas[number] = self.drawn.choice([1, 4000, 9000, 20_000, 1 << 20])
        self.stores[number] = opened(self.root, self.quotas[number])


@pytest.mark.law
@settings(max_examples=amount(30, 60))
@given(steps=st.lists(st.sampled_from(STEPS), max_size=40), seed=st.integers(0, 1 << 20))
def test_any_order_of_events(
    steps: list[str], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(tmp_path_factory.mktemp("any"), seed)
    for name in steps:
        world.step(name)
    for path in (*left(world.root), *announced(world.root)):
        os.utime(path, (1, time.time() - TTL_S - 1))
    copies_in(world.root).clear()
    assert not [*left(world.root), *announced(world.root)]
    shutil.rmtree(world.root)


READER = """
import random, sys
from pathlib import Path
from dml.cache.store import local_copies
from tests.cache.store.far import opened
from tests.cache.store.fills import batch, same
local_copies.TTL_S, local_copies.BUSY_S = 1.0, 0.05
root, most, drawn = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
while True:
    store = opened(root, most)
    for _ in range(30):
        entry, part = drawn.choice(sys.argv[4:]), drawn.randrange(6)
        assert same(store.part(entry, part), [batch(part, 20_000)])
"""


@pytest.mark.slow
def test_processes_that_are_killed_while_they_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = stored(tmp_path) // 2

    def begun(seed: int) -> subprocess.Popen[bytes]:
        given = [str(tmp_path), str(most), str(seed), *FPS]
        return subprocess.Popen([sys.executable, "-c", READER, *given], stderr=subprocess.PIPE)

    drawn, running = random.Random(7), [begun(seed) for seed in range(3)]
    until, seed, seen = time.monotonic() + 12, 3, 0
    while time.monotonic() < until:
        time.sleep(drawn.random() * 0.2)
        total = sum(map(_size, files(tmp_path)))
        assert total <= most
        seen = max(seen, total)
        if drawn.random() < 0.2:
            victim = running.pop(drawn.randrange(3))
            assert victim.poll() is None, victim.communicate()[1].decode()
            victim.send_signal(signal.SIGKILL)
            victim.communicate()
            running.append(begun(seed))
            seed += 1
    for each in running:
        assert each.poll() is None, each.communicate()[1].decode()
        each.kill()
        each.communicate()
    assert seen
    monkeypatch.setattr(local_copies, "TTL_S", 1.0)
    time.sleep(1.1)
    copies_in(tmp_path).clear()
    assert not [*left(tmp_path), *announced(tmp_path)]
    assert copies_in(tmp_path).used_bytes() <= most


def stored(root: Path) -> int:
    """Parts that are there; their bytes."""
    store = PartStore(far(root))
    for entry in FPS:
        for part in range(6):
            found = store.fill(entry, part)
            assert isinstance(found, PartFilling)
            found.add(batch(part, 20_000))
            found.commit()
    return sum(each.size for each in far(root).list_files("blobs"))


def _size(path: Path) -> int:
    """Of a file that may go at any time."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
