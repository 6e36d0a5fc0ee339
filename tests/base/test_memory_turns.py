"""Test that rows that need much memory take turns, and that none waits for ever."""

from __future__ import annotations

import os
import random
import threading

import pytest

from dml.base.memory_turns import MemoryTurns

WAIT = 60


def test_threads_together_stay_within_the_bytes_or_one_is_alone() -> None:
    turns, lock = MemoryTurns(100, 10), threading.Lock()
    used: list[int] = []
    wrong: list[list[int]] = []

    def work(number: int) -> None:
        draw = random.Random(number)
        for _ in range(200):
            size = draw.choice([3, 10, 40, 60, 250])
            turns.take(size)
            if size >= turns.small:
                with lock:
                    used.append(size)
                    if sum(used) > turns.most and len(used) > 1:
                        wrong.append(used.copy())
                with lock:
                    used.remove(size)
            turns.give_back()

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()
    assert not wrong


def test_a_thread_that_has_a_turn_does_not_wait_for_another() -> None:
    turns, done = MemoryTurns(100, 10), threading.Event()
    turns.take(90)
    turns.take(90)

    def other() -> None:
        turns.take(50)
        done.set()
        turns.give_back()

    threading.Thread(target=other, daemon=True).start()
    assert not done.is_set()
    turns.give_back()
    assert done.wait(WAIT)
    turns.give_back()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_the_child_of_a_fork_has_no_turns() -> None:
    turns = MemoryTurns(100, 10)
    turns.take(100)
    turns.reset()
    taken = threading.Thread(target=turns.take, args=(100,), daemon=True)
    taken.start()
    taken.join(WAIT)
    assert not taken.is_alive()
