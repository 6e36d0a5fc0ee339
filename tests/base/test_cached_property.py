"""Test attributes that are computed on first access."""

from __future__ import annotations

import threading

from dml.base.cached_property import cached_property


class Pair:
    """Two values, each of which needs the other one of another instance, if there is one."""

    def __init__(self, meeting: threading.Barrier, other: Pair | None = None) -> None:
        self.meeting, self.other, self.counted = meeting, other, 0

    @cached_property
    def left(self) -> int:
        if self.other is not None:
            self.meeting.wait()
            return self.other.right + 1
        self.counted += 1
        return 0

    @cached_property
    def right(self) -> int:
        if self.other is not None:
            self.meeting.wait()
            return self.other.left + 1
        return 0


def test_a_value_is_computed_once() -> None:
    pair = Pair(threading.Barrier(1))
    assert [pair.left, pair.left] == [0, 0]
    assert pair.counted == 1
    assert Pair.left is Pair.__dict__["left"]


def test_threads_that_need_each_others_values_do_not_wait_for_one_another() -> None:
    meeting, found = threading.Barrier(2, timeout=60.0), list[int]()
    one, two = (Pair(meeting, Pair(meeting)) for _ in range(2))
    threads = [
        threading.Thread(target=lambda: found.append(one.left), daemon=True),
        threading.Thread(target=lambda: found.append(two.right), daemon=True),
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60.0)
    assert found == [1, 1]
