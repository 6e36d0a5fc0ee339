"""Test how ranks determine their number and the address of rank 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from dml.errors import PlanError
from dml.ranks.connection import announced, met, place_of, withdrawn


def test_where_ranks_find_themselves(tmp_path: Path) -> None:
    env = {"RANK": "1", "WORLD_SIZE": "4", "XDG_RUNTIME_DIR": str(tmp_path)}
    place = place_of("train", None, None, None, env)
    assert (place.rank, place.n, place.host) == (1, 4, "127.0.0.1")
    assert place_of("train", 2, 0, None, env).rank == 0
    assert met(place) is None
    told = announced(place, 4000)
    assert met(place) == told
    assert place.file is not None
    assert place.file.stat().st_mode & 0o077 == 0
    assert len(told.secret) == 64
    withdrawn(told)
    assert met(place) is None
    other = place_of("train", None, None, None, {**env, "MASTER_PORT": "29501"})
    assert other.file != place.file, "two launches do not meet"


@pytest.mark.parametrize(
    ("env", "more"),
    [
        ({}, {}),
        ({"RANK": "1"}, {}),
        ({"RANK": "x", "WORLD_SIZE": "2"}, {}),
        ({"RANK": "\u00b2", "WORLD_SIZE": "2"}, {}),
        ({"RANK": "0", "WORLD_SIZE": "2", "XDG_RUNTIME_DIR": "/proc/none"}, {}),
        ({"RANK": "0", "WORLD_SIZE": "2", "DML_TOKEN": "x"}, {"address": "host:\u00b2"}),
        ({"RANK": "2", "WORLD_SIZE": "2"}, {}),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.7"}, {}),
        ({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "h"}, {}),
        ({"RANK": "0", "WORLD_SIZE": "2"}, {"address": "10.0.0.7:29600"}),
        ({"RANK": "0", "WORLD_SIZE": "2", "DML_TOKEN": "x"}, {"address": "10.0.0.7"}),
    ],
)
def test_what_the_environment_does_not_tell_is_asked_for(
    tmp_path: Path, env: dict[str, str], more: dict[str, str]
) -> None:
    given = {"XDG_RUNTIME_DIR": str(tmp_path), **env}
    with pytest.raises(PlanError) as caught:
        place_of("train", None, None, more.get("address"), given)
    assert caught.value.try_


@pytest.mark.parametrize("content", ["", "[]", "{}", "7"])
def test_what_is_left_of_another_announcement_is_nobody(tmp_path: Path, content: str) -> None:
    env = {"RANK": "1", "WORLD_SIZE": "2", "XDG_RUNTIME_DIR": str(tmp_path)}
    place = place_of("train", None, None, None, env)
    assert place.file is not None
    place.file.write_text(content)
    assert met(place) is None


def test_a_folder_that_others_may_look_into_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dml").mkdir(mode=0o755)
    env = {"RANK": "0", "WORLD_SIZE": "2", "XDG_RUNTIME_DIR": str(tmp_path)}
    with pytest.raises(PlanError, match="cannot hold the secret"):
        place_of("train", None, None, None, env)


def test_a_folder_that_others_could_swap_holds_no_secret(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(PlanError, match="cannot hold the secret of a job"):
        place_of("job", 1, 0, None, {"XDG_RUNTIME_DIR": str(tmp_path)})
