"""Test ``dml cache``: listing, miss reasons, pins, checks and removal, as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dml.api import cache_contents, session
from dml.cache.parts.parts import PartStore
from dml.cache.store import layout
from dml.cache.store.disk import Disk
from dml.settings import Settings
from tests.api.test_catalog import NAMES, base, described, kept

NAME = (
    cache_contents.asked_of(session.optimized(base()._node, Settings()).plan, Settings())
    or ("", "", None)
)[1]
PIPELINE = """
import dml
from dml import col
ds = dml.range(100).filter(col("id") > 3).with_columns(y=col("id") * {factor}).cache(tier="disk")
number = 3
print("noise")
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    root.mkdir()
    assert described(root, base()) == NAME
    kept(root, NAMES[7], parts=3)
    return root


@pytest.fixture
def target(tmp_path: Path) -> Callable[[int], str]:
    def write(factor: int) -> str:
        path = tmp_path / f"train{factor}.py"
        path.write_text(PIPELINE.format(factor=factor))
        return f"{path}:ds"

    return write


Dml = Callable[..., Any]


def test_ls_has_a_line_for_each_entry_and_the_sum(dml: Dml, store: Path) -> None:
    told = dml("cache", "ls", "--root", store)
    assert told.code == 0
    lines = told.out.splitlines()
    assert len(lines) == 3
    assert any(NAME[:12] in line and "2 of 2" in line for line in lines)
    assert any(NAMES[7][:12] in line and "3 of ?" in line for line in lines)
    assert lines[-1].startswith("2 entries, ")
    assert lines[-1].endswith(f" in {store}")
    found = dml("cache", "ls", "--root", store, "--json").json
    assert [each["parts"] for each in found["entries"]] in ([2, 3], [3, 2])


def test_ls_of_a_namespace_has_what_is_in_it_alone(dml: Dml, store: Path) -> None:
    told = dml("cache", "ls", "--root", store, "--namespace", "mine")
    assert (told.code, told.out) == (0, f"0 entries, 0 B in {store}, namespace mine\n")


def test_show_has_the_operators(dml: Dml, store: Path) -> None:
    name = NAME
    told = dml("cache", "show", name[:8], "--root", store)
    assert f"fingerprint  {name}" in told.out
    assert told.out.splitlines()[-3:] == ["  Range", "  Segment", "  Cache"]
    found = dml("cache", "show", name, "--root", store, "--json").json
    assert (found["fingerprint"], found["tier"], found["of"]) == (name, "atoms", 2)
    assert "made_of" not in found


def test_show_of_what_is_not_there_is_a_fault(dml: Dml, store: Path) -> None:
    told = dml("cache", "show", "12345678", "--root", store)
    assert told.code == 1
    assert "no one entry" in told.err


def test_why_names_what_differs_from_what_is_kept(
    dml: Dml, store: Path, target: Callable[[int], str]
) -> None:
    same = dml("cache", "why", target(2), "--root", store)
    assert (same.code, same.out) == (0, "no difference: both have one fingerprint\n")
    assert "noise" in same.err
    told = dml("cache", "why", target(5), "--root", store)
    assert told.out.splitlines()[0] == "a constant differs: column 'y'"
    assert "5 here, something with digest " in told.out
    named = dml("cache", "why", target(5), NAME[:6], "--root", store, "--json").json
    assert (named["kind"], named["here"]) == ("constant", "5")
    assert named["there"].startswith("something with digest ")


def test_why_compares_two_pipelines(dml: Dml, target: Callable[[int], str]) -> None:
    told = dml("cache", "why", target(2), target(3))
    assert "2 here, 3 there" in told.out


def test_why_of_something_else_is_wrong_usage(
    dml: Dml, store: Path, target: Callable[[int], str]
) -> None:
    assert dml("cache", "why", target(2).replace(":ds", ":number"), "--root", store).code == 2


def test_a_pin_holds_until_it_is_undone(dml: Dml, store: Path) -> None:
    assert dml("cache", "pin", NAMES[7], "--root", store).code == 0
    assert "pinned" in dml("cache", "ls", "--root", store).out
    told = dml("cache", "rm", NAMES[7], "--root", store)
    assert told.code == 1
    assert "is pinned" in told.err
    assert dml("cache", "pin", NAMES[7], "--undo", "--root", store).code == 0
    assert dml("cache", "rm", NAMES[7], "--root", store).code == 0
    again = dml("cache", "rm", NAMES[7], "--root", store)
    assert (again.code, again.out) == (1, f"{NAMES[7]}  was not there\n")


def test_verify_ends_with_a_fault_if_something_was_damaged(dml: Dml, store: Path) -> None:
    assert "5 parts read" in dml("cache", "verify", "--root", store).out
    blob = next(store.rglob("*.arrow"))
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    told = dml("cache", "verify", "--root", store)
    assert told.code == 1
    assert "was damaged and is gone" in told.out
    assert "5 parts read, 4 of " in told.out
    assert dml("cache", "verify", "--root", store, "--json").json["damaged"] == []


def test_gc_clears_away_what_the_dead_left(dml: Dml, store: Path) -> None:
    lost = store / "v1" / "default" / "blobs" / f"{'0' * 32}.arrow"
    lost.write_bytes(b"nobody's")
    assert dml("cache", "gc", "--root", store, "--json").json["blobs"] == 0
    assert dml("cache", "gc", "--root", store, "--grace", "0", "--json").json["blobs"] == 1
    assert not lost.exists()


def test_without_a_root_it_is_the_users(
    dml: Dml, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    told = dml("cache", "ls")
    assert told.code == 1
    assert "there is no store" in told.err
    (tmp_path / "home" / "dml").mkdir(parents=True)
    store.rename(tmp_path / "home" / "dml" / "store")
    assert dml("cache", "ls").code == 0


def test_a_quarantined_entry_is_told_with_its_reason_and_ends_by_rm(dml: Dml, store: Path) -> None:
    said = {"what": "column 'y' is another value", "at": "MapRows(f)", "time": "then"}
    PartStore(Disk(store, layout.namespace("default"))).quarantine(NAME, said)
    told = dml("cache", "ls", "--root", store)
    (line,) = (each for each in told.out.splitlines() if NAME[:12] in each)
    assert "QUARANTINED" in line
    told = dml("cache", "show", NAME[:8], "--root", store)
    assert "quarantined  column 'y' is another value, MapRows(f), then" in told.out
    found = dml("cache", "show", NAME[:8], "--root", store, "--json").json
    assert found["quarantined"].startswith("column 'y'")
    assert dml("cache", "rm", NAME[:8], "--root", store).code == 0
    assert NAME[:12] not in dml("cache", "ls", "--root", store).out


def test_a_cache_dir_stands_for_the_store_in_it(dml: Dml, store: Path) -> None:
    told = dml("cache", "ls", "--root", store.parent)
    assert told.out.endswith(f" in {store}\n")
    assert dml("cache", "ls", "--root", store.parent, "--json").json["root"] == str(store)


def test_one_is_counted_as_one(dml: Dml, store: Path) -> None:
    assert dml("cache", "rm", NAMES[7], "--root", store).code == 0
    assert "\n1 entry, " in dml("cache", "ls", "--root", store).out


def test_errors_say_what_a_shell_can_do(dml: Dml, store: Path) -> None:
    """Nobody who calls from a shell has a line of Python, or a catalog to call."""
    assert dml("cache", "pin", NAMES[7], "--root", store).code == 0
    told = dml("cache", "rm", NAMES[7], "--root", store)
    assert f"try   dml cache pin {NAMES[7][:8]} --undo" in told.err
    lines = [told.err]
    for given in ("12345678", "xyz"):
        lines.append(dml("cache", "show", given, "--root", store).err)
        assert "dml cache ls" in lines[-1]
    lines.append(dml("cache", "ls", "--root", store / "none").err)
    for each in lines:
        assert "written in" not in each
        assert "Catalog(" not in each
        assert "for each" not in each
