"""Test local copies on failing disks: the store is read instead, with one warning."""

from __future__ import annotations

import errno
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from dml.cache.parts.parts import StoreWarning
from dml.cache.store.local_copies import folder_of
from dml.cache.store.primitives import UnusableError
from tests.cache.store.far import opened
from tests.cache.store.fills import FP
from tests.cache.store.test_local_copies import PARTS, read, read_all, stored

CODES = [errno.ENOSPC, errno.EIO, errno.EROFS]


@pytest.mark.law
@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["write", "replace", "open", "utime", "unlink"])
def test_a_disk_that_fails_costs_one_warning_and_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    for nth in range(0, 40, 7):
        root = tmp_path / str(nth)
        stored(root)
        store = opened(root)
        with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            failing_below(patch, call, str(root / "near"), nth, code)
            for _ in range(2):
                read_all(store, FP)
        assert len(caught) <= 1
        assert caught or nth or call in {"utime", "unlink"}
        assert store.standing.whole, "the store itself did not fail"
        read_all(opened(root), FP)


def failing_below(patch: pytest.MonkeyPatch, call: str, folder: str, nth: int, code: int) -> None:
    """Let a call of the system fail from its nth on, for files in a folder."""
    real, handles, seen = getattr(os, call), set[int](), [0]
    opens = os.open

    def opening(path: Any, *given: Any, **options: Any) -> int:
        handle = opens(path, *given, **options)
        (handles.add if str(path).startswith(folder) else handles.discard)(handle)
        return handle

    def failing(what: Any, *given: Any, **options: Any) -> Any:
        mine = what in handles if isinstance(what, int) else str(what).startswith(folder)
        seen[0] += mine
        if mine and seen[0] > nth:
            raise OSError(code, os.strerror(code))
        return (opening if call == "open" else real)(what, *given, **options)

    patch.setattr(os, "open", opening)
    patch.setattr(os, call, failing)


def test_a_folder_that_vanishes_costs_one_warning(tmp_path: Path) -> None:
    stored(tmp_path)
    store = opened(tmp_path)
    read(store)
    shutil.rmtree(tmp_path / "near")
    with pytest.warns(StoreWarning, match="without copies on this machine"):
        read_all(store, FP)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_all(store, FP)
    assert not (tmp_path / "near").exists()


def test_copies_are_their_users_alone(tmp_path: Path) -> None:
    folder = folder_of(str(tmp_path / "nvme"))
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    assert folder_of(str(tmp_path / "nvme")) == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(UnusableError, match="copies cannot be kept"):
        folder_of(str(tmp_path / "nvme"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableError, match="copies cannot be kept"):
        folder_of(str(tmp_path / "file"))


def test_copies_that_can_only_be_read_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path)
    read(opened(tmp_path))
    store = opened(tmp_path)
    for call in ("utime", "replace"):
        failing_below(monkeypatch, call, str(tmp_path / "near"), 0, errno.EROFS)
    with pytest.warns(StoreWarning, match="without copies on this machine"):
        assert read(store) == PARTS
