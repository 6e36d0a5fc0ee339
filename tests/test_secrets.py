"""Test that files that dml writes for itself contain no values of users, and are private."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import Dataset, col
from dml.api.run_telemetry import collector_of
from dml.errors import CacheError

HERE = Path(__file__).resolve().parents[1]
SECRETS = {
    name: f"sesame-{name}"
    for name in (
        "global",
        "closure",
        "item",
        "key",
        "default",
        "argument",
        "code",
        "literal",
        "path",
    )
}
GLOBAL = "sesame-global"


def function(here: str, table: dict[str, str], default: str) -> Callable[..., dict[str, Any]]:
    """A function of rows with a secret in each place that a function can have one in."""

    def decode(row: dict[str, Any], given: str, default: str = default) -> dict[str, Any]:
        return {"n": len([GLOBAL, here, table, given, default, "sesame-code"]) + row["x"]}

    return decode


@pytest.fixture
def unmasked() -> Iterator[None]:
    """A umask that leaves everything open to all."""
    before = os.umask(0)
    yield
    os.umask(before)


def pipeline(root: Path, changed: str = "", **options: Any) -> Dataset:
    said = {name: "another" if name == changed else secret for name, secret in SECRETS.items()}
    folder = root / "sesame-path"
    folder.mkdir(exist_ok=True)
    table = pa.table({"x": range(10), "name": ["a"] * 10})
    pq.write_table(table, folder / f"{said['path']}.parquet")
    decode = function(said["closure"], {"sesame-key": said["item"]}, said["default"])
    ds = dml.read_parquet(str(folder / f"{said['path']}.parquet"))
    ds = ds.filter(col("name") != said["literal"])
    ds = ds.map(partial(decode, given=said["argument"])).cache(tier="disk")
    ds = ds.filter(col("n") >= 0).map(partial(decode_again, given=said["argument"]))
    where = {"cache_dir": str(root / "cache"), "telemetry_dir": str(root / "telemetry")}
    return ds.with_options(executor="sync", **{**where, **options})


def decode_again(row: dict[str, Any], given: str) -> dict[str, Any]:
    return {"n": row["n"] + len(given)}


def run(ds: Dataset) -> None:
    assert len(list(ds)) == 10
    collector = collector_of(ds._settings)
    assert collector is not None
    assert collector.flush(30)


def written(root: Path) -> list[Path]:
    return [path for name in ("cache", "telemetry") for path in (root / name).rglob("*")]


def leaks(root: Path) -> dict[str, set[str]]:
    """Secrets by the files that say them, in their names or in what is in them."""
    found: dict[str, set[str]] = {}
    for path in written(root):
        data = path.name.encode() + (path.read_bytes() if path.is_file() else b"")
        told = {name for name, secret in SECRETS.items() if secret.encode() in data}
        if told:
            found[str(path.relative_to(root))] = told
    return found


def test_no_value_of_a_user_is_written(tmp_path: Path) -> None:
    run(pipeline(tmp_path))
    names = {path.name for path in written(tmp_path)}
    assert "ABOUT.json" in names
    assert any(name.endswith(".jsonl") for name in names)
    assert leaks(tmp_path) == {}


def test_nor_by_a_cache_over_a_stream(tmp_path: Path) -> None:
    ds = pipeline(tmp_path).filter(col("n") != 12345).batch(5).cache(tier="disk")
    assert len(list(ds)) == 2
    assert sum(path.name == "ABOUT.json" for path in written(tmp_path)) == 2
    assert leaks(tmp_path) == {}
    assert not any(b"12345" in p.read_bytes() for p in written(tmp_path) if p.suffix == ".json")


def test_of_numbers_only_bounds_of_ranges_are_written_into_the_index(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"x": range(10), "name": ["a"] * 10}), path)
    ds = dml.read_parquet(str(path)).with_columns(y=col("x") * 1000)
    filters = (col("y") > -123457, col("y") == 4000, col("y") != 765431, col("name") < "sesame-t")
    for each in filters:
        ds = ds.filter(each)
    ds = ds.cache(tier="disk").with_options(cache_dir=str(tmp_path / "cache"), executor="sync")
    assert len(list(ds)) == 1
    index = [json.loads(p.read_text()) for p in (tmp_path / "cache").rglob("c/*/*/sets/*")]
    told = [p.read_bytes() for p in (tmp_path / "cache").rglob("*.json")]
    bounds = {row[-1] for said in index for row in said["about"]["conjuncts"]}
    assert bounds == {-123457, 0.0}, "of the other three there is a name"
    assert not any(b"123457" in text for text in told)
    again = dml.read_parquet(str(path)).with_columns(y=col("x") * 1000)
    for each in filters:
        again = again.filter(each)
    again = again.filter(col("y") > 5).cache(tier="disk")
    assert "takes" in str(again.with_options(cache_dir=str(tmp_path / "cache")).cache_status())


def test_plain_text_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    run(pipeline(tmp_path, plain_text=True))
    assert set.union(*leaks(tmp_path).values()) == set(SECRETS)


CHANGES = {
    "global": ("a global differs: decode.func.GLOBAL", "'another'"),
    "closure": ("a variable around a function differs: decode.func.here", "'another'"),
    "item": ("an item differs: decode.func.table['sesame-key']", "'another'"),
    "argument": ("an item differs: decode.keywords['given']", "'another'"),
    "default": ("defaults of a function differ: decode.func.__defaults__", "('another',)"),
    "literal": ("a constant differs: a filter", "'another'"),
    "path": ("file 'another.parquet' is only one's", "another.parquet"),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_what_differs_from_what_is_kept_is_named_without_its_value(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(pipeline(tmp_path))
    if changed == "global":
        monkeypatch.setitem(globals(), "GLOBAL", "another")
    other = pipeline(tmp_path, changed=changed)
    found = dml.Catalog(tmp_path / "cache").why_miss(other)
    assert (found.what, found.here) == CHANGES[changed]
    assert found.there.startswith("something with digest ") or found.there == "nothing of the kind"
    assert "sesame" not in found.there + found.other


@pytest.mark.usefixtures("unmasked")
def test_what_is_written_is_its_users_alone(tmp_path: Path) -> None:
    run(pipeline(tmp_path))
    open_to_others = [path for path in written(tmp_path) if path.stat().st_mode & 0o077]
    assert open_to_others == []


@pytest.mark.usefixtures("unmasked")
def test_what_a_group_shares_is_the_groups_to_read(tmp_path: Path) -> None:
    shared = dml.Catalog.shared(tmp_path / "cache" / "store", "ours")
    ds = pipeline(tmp_path, cache_namespace="ours", telemetry_dir="off")
    assert len(list(ds)) == 10
    modes = {(each.is_dir(), each.stat().st_mode & 0o7777) for each in found_in(shared)}
    assert modes == {(True, 0o2770), (False, 0o640)}


def test_digests_of_a_shared_namespace_are_keyed(tmp_path: Path) -> None:
    first, second = (dml.Catalog.shared(tmp_path / "cache" / "store", name) for name in "ab")
    for name in ("a", "b", "plain"):
        list(pipeline(tmp_path, cache_namespace=name, telemetry_dir="off"))
    plain = dml.Catalog(tmp_path / "cache", "plain")
    digests = [set(DIGEST.findall(about(each))) for each in (first, second, plain)]
    assert len(digests[0]) == len(digests[1]) == len(digests[2])
    assert not digests[0] & digests[1]
    assert not digests[0] & digests[2]
    assert not first.why_miss(pipeline(tmp_path))
    for changed in ("closure", "item", "literal", "path"):
        found = first.why_miss(pipeline(tmp_path, changed=changed))
        assert found.kind == plain.why_miss(pipeline(tmp_path, changed=changed)).kind
        assert found.here == CHANGES[changed][1]
        assert "sesame" not in found.there


def test_what_cannot_be_shared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="cannot be made shared"):
        dml.Catalog.shared("s3://bucket/store")
    with pytest.raises(CacheError, match="cannot be made shared"):
        dml.Catalog.shared(tmp_path, "ours", group="a group that nobody has")


DIGEST = re.compile("[0-9a-f]{32}")


def found_in(catalog: dml.Catalog) -> list[Path]:
    folder = Path(catalog.path) / "v1" / catalog.namespace
    return [folder, *folder.rglob("*")]


def about(catalog: dml.Catalog) -> str:
    (file,) = (path for path in found_in(catalog) if path.name == "ABOUT.json")
    return file.read_text(encoding="utf-8")


MEMBER = """
import os, sys, warnings
import dml
root, data, scratch, make, user, *groups = sys.argv[1:]
warnings.simplefilter("error")
where = {"cache_namespace": "ours", "telemetry_dir": "off", "executor": "sync"}

def run(folder, make):
    if make:
        dml.Catalog.shared(f"{folder}/store", "ours", group=int(groups[0]))
    ds = dml.read_parquet(data).map(lambda row: {"n": row["x"] + 1}).cache(tier="disk")
    ds = ds.with_options(cache_dir=folder, **where)
    whole = ds.cache_status()[0].whole
    return sum(row["n"] for row in ds), whole

groups = groups or ["0"]
for _ in range(2):
    run(scratch, "yes")  # all that is needed is loaded while it can be read
os.setgroups([int(each) for each in groups if each != "0"])
os.setgid(int(user))
os.setuid(int(user))
print(*run(root, make))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_one_of_a_group_finds_what_another_keeps_and_nobody_else_does(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="dml-group-") as name:
        root = Path(name)
        root.chmod(0o755)
        pq.write_table(pa.table({"x": range(10)}), root / "data.parquet")
        (root / "cache").mkdir()
        (root / "cache").chmod(0o1777)
        where = [root / "cache", root / "data.parquet", tmp_path]
        told = [
            subprocess.run(
                [sys.executable, "-B", "-c", MEMBER, *where, *who],
                env={**os.environ, "HOME": "/nonexistent", "PYTHONPATH": str(HERE)},
                capture_output=True,
                text=True,
                check=False,
            )
            for who in (["yes", "12001", "12345"], ["", "12002", "12345"], ["", "12003"])
        ]
    assert [each.stdout for each in told] == ["55 False\n", "55 True\n", ""]
    assert "Permission denied" in told[2].stderr
