"""Test that eviction by worth causes less recomputation than eviction by age."""

from __future__ import annotations

import bisect
import itertools
import random
from collections import OrderedDict
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.cache.eviction.eviction_order import EvictionCandidate, PartUse, least
from tests.sampling import amount

ENTRIES, ASKED, DRIFT, STEP_S = 400, 4000, 1000, 30.0
PARTS = 4  # of an entry, which go one by one
UNIT = 10_000_000  # bytes of a size of one: READ_BYTES_PER_S makes that a hundredth of a second


class Trace(NamedTuple):
    """Sizes and seconds to make of all entries, and who asks for which, how often still."""

    sizes: list[int]
    costs: list[float]
    asked: list[tuple[int, int]]


def trace(seed: int, jobs: int) -> Trace:
    """Entries of any size and cost, asked for by Zipf's law; which are popular changes with time.

    So many jobs run at once, each of which reads its entry in up to ten epochs.
    """
    draw = random.Random(seed)
    sizes = [10 ** draw.uniform(0, 2.5) for _ in range(ENTRIES)]
    costs = [size * 10 ** draw.uniform(-1.2, 1.2) for size in sizes]
    weights = [*itertools.accumulate(1 / (n + 1) ** 0.9 for n in range(ENTRIES))]
    order, live, asked = [*range(ENTRIES)], list[list[int]](), list[tuple[int, int]]()
    draw.shuffle(order)
    for number in range(ASKED):
        if number % DRIFT == DRIFT - 1:
            for _ in range(ENTRIES // 5):
                one, two = draw.randrange(ENTRIES), draw.randrange(ENTRIES)
                order[one], order[two] = order[two], order[one]
        while len(live) < jobs:
            entry = order[bisect.bisect(weights, draw.random() * weights[-1])]
            live.append([entry, 1 + (draw.random() < 0.5) * draw.randint(1, 9)])
        job = draw.choice(live)
        job[1] -= 1
        asked.append((job[0], job[1]))
        if not job[1]:
            live.remove(job)
    return Trace([int(size * UNIT) for size in sizes], costs, asked)


def by_age(given: Trace, room: int) -> float:
    """Seconds of computing what was not there, if what was not used for longest goes."""
    there, used, took = OrderedDict[tuple[int, int], None](), 0, 0.0
    for entry, _ in given.asked:
        size = given.sizes[entry] // PARTS
        for part in range(PARTS):
            if (entry, part) in there:
                there.move_to_end((entry, part))
                continue
            took += given.costs[entry] / PARTS
            if size > room:
                continue
            there[entry, part] = None
            used += size
            while used > room:
                used -= given.sizes[there.popitem(last=False)[0][0]] // PARTS
    return took


def by_worth(given: Trace, room: int, *, announced: bool) -> float:
    """The same if what is worth least goes, but for parts of what is being filled."""
    uses: dict[tuple[int, int], tuple[PartUse, float]] = {}
    epochs: dict[int, float] = {}
    there, used, took, floor = set[tuple[int, int]](), 0, 0.0, 0.0
    for number, (entry, left) in enumerate(given.asked):
        now, size = number * STEP_S, given.sizes[entry] // PARTS
        epochs[entry] = left if announced else 0.0
        for part in range(PARTS):
            use, then = uses.get((entry, part), (PartUse(floor=floor), now))
            uses[entry, part] = use.after(now - then).used(floor), now
            if (entry, part) in there:
                continue
            took += given.costs[entry] / PARTS
            over = used + size - room
            candidates = [
                EvictionCandidate(
                    *(f"{one:08x}", other, given.sizes[one] // PARTS, given.costs[one] / PARTS),
                    uses[one, other][0].after(now - uses[one, other][1]),
                    epochs[one],
                )
                for one, other in (there if over > 0 else ())
                if one != entry
            ]
            if sum(each.size for each in candidates) < over:
                continue
            for gone in least(candidates, over):
                floor = max(floor, gone.worth)
                there.remove((int(gone.fingerprint, 16), gone.part))
                used -= gone.size
            there.add((entry, part))
            used += size
    return took


# Where a job at a time reads one entry again and again, and little of it fits, age does well, too.
CASES = [
    *((share, 8, announced, 0.9) for share in (0.02, 0.1, 0.3) for announced in (False, True)),
    *((share, 1, False, least) for share, least in ((0.02, 0.93), (0.1, 0.9), (0.3, 0.9))),
]


@pytest.mark.sample(3)
@pytest.mark.law
@pytest.mark.parametrize(("share", "jobs", "announced", "most"), CASES)
def test_a_tenth_less_is_computed_again_than_by_age(
    share: float, jobs: int, most: float, *, announced: bool
) -> None:
    ours = theirs = 0.0
    for seed in range(amount(1, 2)):
        given = trace(seed, jobs)
        room = int(share * sum(given.sizes))
        ours += by_worth(given, room, announced=announced)
        theirs += by_age(given, room)
    assert ours <= most * theirs, f"{ours:.0f} s instead of {theirs:.0f} s"


@given(
    st.lists(
        st.tuples(st.integers(1, 1 << 30), st.floats(0, 1e4), st.floats(0, 50), st.floats(0, 9)),
        max_size=20,
    ),
    st.integers(0, 1 << 32),
)
def test_least_takes_as_little_as_makes_room(
    parts: list[tuple[int, float, float, float]], nbytes: int
) -> None:
    candidates = [
        EvictionCandidate(f"{number:08x}", number, size, cost_s, PartUse(count), epochs)
        for number, (size, cost_s, count, epochs) in enumerate(parts)
    ]
    gone = [*least(candidates, nbytes)]
    kept = [each for each in candidates if each not in gone]
    assert sum(each.size for each in gone) >= min(nbytes, sum(each.size for each in candidates))
    if gone:
        assert sum(each.size for each in gone[:-1]) < nbytes
        assert max(each.worth for each in gone) <= min((k.worth for k in kept), default=1e18)
