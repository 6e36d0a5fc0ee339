"""Test where the files of a user are stored by default, also without a home folder."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import dml
from dml import settings
from dml.api.run_storage import cache_folder
from dml.settings import Settings, user_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    settings._temporary.cache_clear()
    yield tmp_path / f"dml-{os.geteuid()}"
    settings._temporary.cache_clear()


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process is whose user has no entry, and which has no HOME."""
    monkeypatch.setattr(os.path, "expanduser", str)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def test_it_is_below_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_folder({}) == f"{tmp_path}/.cache/dml"
    assert user_folder({"XDG_CACHE_HOME": f"{tmp_path}/x"}) == f"{tmp_path}/x/dml"
    assert user_folder({"XDG_CACHE_HOME": "relative"}) == f"{tmp_path}/.cache/dml"


@pytest.mark.usefixtures("homeless")
def test_without_a_home_it_is_private_among_temporary_files(
    temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "dml"):
        assert [user_folder({}) for _ in range(3)] == [str(temporary)] * 3
    assert temporary.stat().st_mode & 0o777 == 0o700
    assert len(caplog.records) == 1
    assert str(temporary) in caplog.text


def test_a_home_that_cannot_be_written_to_is_none(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)
    assert user_folder({}) == str(temporary)


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_folder_that_others_may_look_into_is_not_used(temporary: Path, mode: int) -> None:
    temporary.mkdir()
    temporary.chmod(mode)
    assert user_folder({}) is None


@pytest.mark.usefixtures("homeless")
def test_a_group_that_a_folder_hands_down_does_not_matter(temporary: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o2777)
    assert user_folder({}) == str(temporary)


@pytest.mark.usefixtures("homeless")
def test_nothing_of_others_is_taken_for_one_s_own(temporary: Path, tmp_path: Path) -> None:
    temporary.touch()
    (tmp_path / "dml").mkdir(mode=0o777)
    assert not cache_folder(Settings()).is_relative_to(tmp_path)


def test_a_link_to_nowhere_cannot_be_written_to(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone" / "away")
    assert user_folder({"XDG_CACHE_HOME": f"{tmp_path}/link"}) == str(temporary)


@pytest.mark.usefixtures("homeless")
def test_a_link_is_not_followed(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    temporary.symlink_to(tmp_path / "theirs")
    assert user_folder({}) is None


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize("blocked", [False, True])
def test_pipelines_run_without_a_home(temporary: Path, *, blocked: bool) -> None:
    if blocked:
        temporary.touch()  # a file, so that nothing can be kept
    ds = dml.range(40).map(lambda row: {"x": row["id"] + 1}).batch(8)
    assert [len(batch["x"]) for batch in ds] == [8] * 5
    assert temporary.is_dir() is not blocked
