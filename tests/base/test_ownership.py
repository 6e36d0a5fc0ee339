"""Test which folders and files count as private to the user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dml.base.ownership import is_own, make_folders, own_folder

OTHER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def unmasked() -> Iterator[None]:
    """A umask that leaves everything open to all."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o7777


@pytest.mark.usefixtures("unmasked")
def test_new_folders_are_their_users_alone(tmp_path: Path) -> None:
    make_folders(tmp_path / "a" / "b")
    assert [mode(tmp_path / "a"), mode(tmp_path / "a" / "b")] == [0o700, 0o700]


@pytest.mark.usefixtures("unmasked")
def test_folders_that_are_there_keep_their_mode(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(0o755)
    make_folders(tmp_path / "a" / "b")
    assert mode(tmp_path / "a") == 0o755


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_folders(tmp_path / "file" / "below")
    assert own_folder(tmp_path / "file") is None


@pytest.mark.parametrize(("bits", "own"), [(0o600, True), (0o644, True), (0o620, False)])
def test_what_others_may_write_is_not_ones_own(tmp_path: Path, bits: int, *, own: bool) -> None:
    file = tmp_path / "file"
    file.touch()
    file.chmod(bits)
    assert is_own(file) is own
    assert not is_own(tmp_path / "absent")


def test_a_link_is_not_ones_own(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    assert not is_own(tmp_path / "link")


@as_root
def test_what_others_own_is_not_ones_own(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(0o700)
    os.chown(tmp_path / "folder", OTHER, OTHER)
    assert not is_own(tmp_path / "folder")
    assert own_folder(tmp_path / "folder") is None


def test_an_own_folder_is_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o777)
    assert own_folder(folder) == folder.resolve()
    assert mode(folder) == 0o700


@pytest.mark.parametrize(("bits", "fit"), [(0o1777, True), (0o777, False), (0o770, False)])
def test_nobody_else_may_put_a_folder_in_its_place(tmp_path: Path, bits: int, *, fit: bool) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(bits)
    assert (own_folder(shared / "folder") is not None) is fit
    assert (shared / "folder").exists() is fit


@as_root
def test_a_folder_below_another_users_is_not_ones_own(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(0o755)
    os.chown(tmp_path / "theirs", OTHER, OTHER)
    assert own_folder(tmp_path / "theirs" / "folder") is None


def test_a_link_of_ones_own_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to("real")
    assert own_folder(tmp_path / "link") == (tmp_path / "real").resolve()


@as_root
def test_a_link_of_another_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to("real")
    os.lchown(tmp_path / "link", OTHER, OTHER)
    assert own_folder(tmp_path / "link") is None
