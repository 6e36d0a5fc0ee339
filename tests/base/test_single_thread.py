"""Test that libraries use one thread in a worker thread, and their usual number elsewhere."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dml.base import single_thread
from dml.base.single_thread import limit_of, single_threaded


@pytest.fixture
def openmp(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A library of OpenMP, loaded since modules were last counted."""
    try:
        library = ctypes.CDLL("libgomp.so.1")
    except OSError:
        pytest.skip("no OpenMP on this machine")
    monkeypatch.setattr(single_thread, "_found", (-1, ()))
    before = library.omp_get_max_threads()
    library.omp_set_num_threads(4)
    yield library
    library.omp_set_num_threads(before)


def in_a_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_only_the_thread_that_enters_is_limited(openmp: Any) -> None:
    def worker() -> list[int]:
        openmp.omp_set_num_threads(3)
        seen = [openmp.omp_get_max_threads()]
        with single_threaded():
            seen += [openmp.omp_get_max_threads(), in_a_thread(openmp.omp_get_max_threads)]
        return [*seen, openmp.omp_get_max_threads()]

    usual = in_a_thread(openmp.omp_get_max_threads)
    assert in_a_thread(worker) == [3, 1, usual, 3]
    assert openmp.omp_get_max_threads() == 4


def test_the_number_comes_back_whatever_is_raised(openmp: Any) -> None:
    def fails() -> None:
        with single_threaded():
            assert openmp.omp_get_max_threads() == 1
            with single_threaded():
                assert openmp.omp_get_max_threads() == 1
            assert openmp.omp_get_max_threads() == 1
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert openmp.omp_get_max_threads() == 4


class Mkl:
    """A number of its own for a thread: 0 where the process's holds."""

    def __init__(self) -> None:
        self.number = 0

    def MKL_Set_Num_Threads_Local(self, number: int) -> int:  # noqa: N802 - its name
        before, self.number = self.number, number
        return before


def test_mkl_is_told_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    mkl = Mkl()
    limit = limit_of(mkl, mkl=True)
    assert limit is not None
    monkeypatch.setattr(single_thread, "_limits", lambda: (limit,))
    with single_threaded():
        assert mkl.number == 1
    assert mkl.number == 0


@pytest.mark.parametrize("mkl", [True, False])
def test_a_library_without_such_functions_is_left_alone(*, mkl: bool) -> None:
    assert limit_of(object(), mkl=mkl) is None


@pytest.mark.parametrize(
    "line",
    [
        None,
        "",
        "00:00 0\n",
        "fe:00 9 {folder}/other.so\n",
        "fe:00 9 {folder}/a folder/libgomp.so.1 (deleted)\n",
    ],
)
def test_where_nothing_can_be_found_nothing_is_set(
    line: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    maps = tmp_path / "maps"
    if line is not None:
        maps.write_text("7f00-7f01 r-xp 00000000 " + line.format(folder=tmp_path))
    monkeypatch.setattr(single_thread, "MAPS", maps)
    monkeypatch.setattr(single_thread, "_found", (-1, ()))
    with single_threaded():
        assert single_thread._found[1] == ()


def test_libraries_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def looked() -> list[str]:
        looks.append(1)
        return []

    monkeypatch.setattr(single_thread, "_found", (-1, ()))
    monkeypatch.setattr(single_thread, "_mapped", looked)
    for _ in range(3):
        with single_threaded():
            pass
    assert len(looks) == 1
