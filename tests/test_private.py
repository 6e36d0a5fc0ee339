"""Test that a tenant of a store learns nothing of another's rows, and loads no foreign code.

Within one process, namespaces separate tenants; on a disk, where both could open files, the
permissions of the system do. Whatever a tenant writes into a shared namespace is read as data, or
not at all.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dml
from dml.api.catalog import Catalog
from dml.cache.eviction import janitor, pins
from dml.cache.parts.parts import PartFilling, PartStore
from dml.cache.parts.records import checked, read
from dml.cache.store import layout
from dml.cache.store.disk import Disk
from dml.errors import CacheError
from tests.cache.store.fills import find

ROOT = Path(__file__).resolve().parents[1]
HERS, HIS = 12001, 12002  # user ids that nobody has
FP, OTHER = "ab" * 16, "cd" * 16
DS = dml.range(50).take(20)


def kept(root: Path | str, namespace: str, fingerprint: str, rows: Any = None) -> PartStore:
    store = PartStore(Disk(root, layout.namespace(namespace)))
    filling = store.fill(fingerprint, 0)
    assert isinstance(filling, PartFilling)
    filling.add(pa.record_batch({"secret": [1, 2, 3]}) if rows is None else rows)
    filling.commit({"of": namespace})
    store.describe(fingerprint, {"operators": [["Range(50)", "x"]], "parts": 1})
    store.close()
    return store


def below(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -------------------------------------------------------------------------------- in one process


Try = Callable[[Catalog, PartStore], Any]
TRIES: dict[str, tuple[Try, Any]] = {
    "a part": (lambda _, store: store.part(FP, 0), None),
    "a table": (lambda _, store: find(store, FP, 0), None),
    "what was said": (lambda _, store: store.described(FP), None),
    "records": (lambda _, store: store.records(FP), {}),
    "a size": (lambda catalog, _: sum(each.nbytes for each in catalog), 0),
    "a list": (lambda catalog, _: list(catalog), []),
    "a look-up": (lambda catalog, _: catalog.lookup(DS).state, "miss"),
    "a reason": (lambda catalog, _: catalog.why_miss(DS).kind, "nothing"),
    "an end": (lambda catalog, _: catalog.evict(FP), False),
    "a check": (lambda catalog, _: catalog.verify().parts, 0),
    "a check of one": (lambda catalog, _: catalog.verify(FP).parts, 0),
    "a sweep": (lambda catalog, _: catalog.gc(grace_s=0).blobs, 0),
    "a pin": (lambda catalog, _: catalog.pin(FP), None),
    "uses": (lambda _, store: store.uses.gathered(), ({}, {})),
    "pins": (lambda _, store: pins.list_pinned(store.place) - {FP}, set()),
    "an eviction": (lambda _, store: janitor.evict(store.place, FP, 0), False),
}


@pytest.mark.parametrize("case", TRIES)
def test_what_another_namespace_keeps_is_not_there(tmp_path: Path, case: str) -> None:
    kept(tmp_path, "hers", FP)
    kept(tmp_path, "hers", DS.fingerprint())
    before = below(tmp_path / "v1" / "hers")
    catalog = Catalog(tmp_path, "his")
    store = PartStore(Disk(tmp_path, layout.namespace("his")))
    attempt, nothing = TRIES[case]
    assert attempt(catalog, store) == nothing
    assert below(tmp_path / "v1" / "hers") == before


def test_a_quota_of_one_evicts_nothing_of_another(tmp_path: Path) -> None:
    kept(tmp_path, "hers", FP)
    before = below(tmp_path / "v1" / "hers")
    store = PartStore(Disk(tmp_path, layout.namespace("his")), quota_bytes=3000)
    for number in range(8):
        filling = store.fill(f"{number:02x}" * 16, 0)
        assert isinstance(filling, PartFilling)
        filling.add(pa.record_batch({"x": list(range(100))}))
        filling.commit()
    assert store.quota is not None
    assert store.quota.evicted
    assert below(tmp_path / "v1" / "hers") == before


# --------------------------------------------------------------------------- as two users of a disk


#: Becomes the user that is named first, once all is imported that only root may be able to read.
AS_USER = """
import dml.cache.eviction.catalogue, dml.cache.store.private_folder
import dml.optimize.explain.name_differences, dml.optimize.explain.fingerprint_text
from tests.test_private import FP, kept, os, sys
user = int(sys.argv.pop(1))
os.setgroups([])
os.setgid(user)
os.setuid(user)
"""

#: What the other user runs: every try tells what it got hold of, or nothing.
THIEF = (
    AS_USER
    + """
import json, shutil, warnings
from dml.api.catalog import Catalog
from dml.errors import DmlError
from dml.cache.eviction import janitor, pins
from dml.cache.store import layout
from dml.cache.store.disk import Disk
from dml.cache.parts.parts import PartStore

warnings.simplefilter("ignore")
root, fingerprint, absent, *paths = sys.argv[1:]
hers = f"{root}/v1/hers"
below = layout.namespace("hers")
tries = {}
for path in paths:
    tries |= {
        f"stat {path}": lambda path=path: os.stat(path).st_size,
        f"list {path}": lambda path=path: os.listdir(path),
        f"open {path}": lambda path=path: open(path, "rb").read(),
        f"handle {path}": lambda path=path: os.open(path, os.O_PATH),
        f"link {path}": lambda path=path: os.link(path, f"{root}/v1/his/stolen"),
        f"rename {path}": lambda path=path: os.rename(path, f"{root}/v1/his/stolen"),
        f"remove {path}": lambda path=path: os.unlink(path),
        f"cut {path}": lambda path=path: os.truncate(path, 0),
        f"age {path}": lambda path=path: os.utime(path),
        f"access {path}": lambda path=path: os.access(path, os.F_OK) or os.chmod(path, 0o777),
    }
tries |= {
    "the namespace": lambda: os.listdir(hers),
    "the namespace opened": lambda: os.chmod(hers, 0o777),
    "the namespace moved": lambda: os.rename(hers, f"{root}/v1/his/hers"),
    "the namespace removed": lambda: shutil.rmtree(hers),
    "a link to it": lambda: os.symlink(hers, f"{root}/link") or os.listdir(f"{root}/link"),
    "a tomb": lambda: open(f"{hers}/e/TOMB.0", "w"),
    "a catalog": lambda: list(Catalog(root, "hers")),
    "an entry": lambda: Catalog(root, "hers").entry(fingerprint),
    "a pin": lambda: Catalog(root, "hers").pin(fingerprint) or True,
    "an end": lambda: Catalog(root, "hers").evict(fingerprint),
    "a check": lambda: Catalog(root, "hers").verify().parts,
    "a sweep": lambda: Catalog(root, "hers").gc(grace_s=0),
    "a part": lambda: PartStore(Disk(root, below)).part(fingerprint, 0),
    "a filling": lambda: PartStore(Disk(root, below)).fill(fingerprint, 0),
    "an account": lambda: PartStore(Disk(root, below)).described(fingerprint),
    "an eviction": lambda: janitor.evict(Disk(root, below), fingerprint, 0),
    "private": lambda: Catalog.private(root, "hers"),
}


wrong = []


def outcome(attempt):
    try:
        return attempt() or None
    except (OSError, DmlError):
        return None
    except Exception as error:
        wrong.append(repr(error))


def told(name):
    try:
        return repr(Catalog(root, "hers").entry(name))
    except Exception as error:
        return type(error).__name__ + str(error).replace(name, "")


got = {name: repr(found) for name, attempt in tries.items() if (found := outcome(attempt))}
own = Catalog(root, "his")
able = [each.rows for each in own], own.verify().parts, [own.evict(e.fingerprint) for e in own]
differs = told(fingerprint) != told(absent)
found = {"tries": len(tries), "got": got, "differs": differs, "able": able, "wrong": wrong}
print(json.dumps(found))
"""
)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="dml-tenants-"))
    folder.chmod(0o755)
    (folder / "store").mkdir()
    (folder / "store").chmod(0o1777)
    yield folder / "store"
    shutil.rmtree(folder)


def as_user(user: int, code: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, str(user), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


OWNER = (
    AS_USER
    + """
from dml.api.catalog import Catalog
Catalog.private(sys.argv[1], sys.argv[2])
kept(sys.argv[1], sys.argv[2], FP if sys.argv[2] == "hers" else "ef" * 16)
"""
)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can be two users")
def test_another_user_can_neither_read_nor_end_nor_detect_what_is_private(shared: Path) -> None:
    for user, name in ((HERS, "hers"), (HIS, "his")):
        as_user(user, OWNER, shared, name)
    hers = shared / "v1" / "hers"
    assert hers.stat().st_mode & 0o777 == 0o700
    before = below(hers)
    files = [str(path) for path in hers.rglob("*") if path.suffix in {".json", ".arrow"}]
    told = json.loads(as_user(HIS, THIEF, shared, FP, OTHER, *files, hers / layout.entry(FP)))
    assert told["tries"] >= 50
    assert told["got"] == {}
    assert told["wrong"] == []
    assert told["able"] == [[3], 1, [True]], "the same tries succeed in a namespace of one's own"
    assert not told["differs"], "what is there looks like what is not"
    assert below(hers) == before
    assert Catalog(shared, "hers").verify().damaged == ()


def test_a_private_namespace_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        catalog = Catalog.private(tmp_path / "store", "mine")
    finally:
        os.umask(before)
    folder = tmp_path / "store" / "v1" / "mine"
    assert folder.stat().st_mode & 0o7777 == 0o700
    assert folder.parent.stat().st_mode & 0o7777 == 0o1777
    kept(catalog.path, "mine", FP)
    assert folder.stat().st_mode & 0o7777 == 0o700
    folder.chmod(0o755)
    assert Catalog.private(tmp_path / "store", "mine").entry(FP).parts == 1
    assert folder.stat().st_mode & 0o7777 == 0o700


def test_what_cannot_be_private_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="cannot be made private"):
        Catalog.private("s3://bucket/store")
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "mine").symlink_to(tmp_path)
    with pytest.raises(CacheError, match="cannot be made private"):
        Catalog.private(tmp_path, "mine")


# ------------------------------------------------------------------------------------- planted code


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, tuple[str, ...]]:
        return open, (self.path, "w")


def everything(root: Path) -> None:
    """All that a reader may do with what lies there."""
    catalog = Catalog(root)
    list(catalog)
    catalog.why_miss(DS)
    catalog.lookup(DS)
    store = PartStore(Disk(root, layout.namespace("default")))
    store.part(FP, 0)
    store.part(DS.fingerprint(), 0)
    store.described(FP)
    store.records(FP)
    store.uses.gathered()
    catalog.verify()
    catalog.gc(grace_s=0)


PLANTED = ["record", "ABOUT", "blob", "uses", "pin"]


@pytest.mark.law
@pytest.mark.parametrize("where", PLANTED)
def test_pickles_in_a_namespace_are_never_loaded(tmp_path: Path, where: str) -> None:
    kept(tmp_path, "default", FP)
    marker = tmp_path / "loaded"
    bomb = pickle.dumps(Bomb(marker))
    top = tmp_path / "v1" / "default"
    view = Catalog(tmp_path)._kept.view(FP)
    blob = getattr(read((top / view.record(0)).read_bytes()), "blob", "")
    planted = {
        "record": top / view.record(0),
        "ABOUT": top / view.folder / "ABOUT.json",
        "blob": top / blob,
        "uses": top / layout.USES / "0123.json",
        "pin": top / layout.PINS / FP / pins.FOREVER,
    }[where]
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_bytes(bomb)
    everything(tmp_path)
    assert not marker.exists()
    pickle.loads(bomb).close()
    assert marker.exists(), "else this test could not fail"


def test_pickles_in_types_and_in_checked_text_are_never_loaded(tmp_path: Path) -> None:
    """Whoever may write to a namespace can write what passes every check of what is whole."""
    marker = tmp_path / "loaded"
    bomb = pickle.dumps(Bomb(marker))
    metadata = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": bomb,
    }
    schema = pa.schema([pa.field("x", pa.int64(), metadata=metadata)])
    rows = pa.record_batch([pa.array([1])], schema=schema)
    kept(tmp_path, "default", FP, rows)
    text = checked({"about": {"operators": [[bomb.hex(), bomb.decode("latin1")]]}})
    about = tmp_path / "v1" / "default" / layout.entry(FP) / "ABOUT.json"
    about.write_bytes(text)
    everything(tmp_path)
    found = PartStore(Disk(tmp_path, layout.namespace("default"))).part(FP, 0)
    assert found is not None
    assert found.batches[0].num_rows == 1
    assert not marker.exists()
