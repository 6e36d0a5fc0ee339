"""Open every kind of source over the same rows, and resume them in another process."""

from __future__ import annotations

import pickle
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import dml

ROWS = 36
EACH: dict[str, Any] = {"atom_rows": 7}
FILES = ("parquet", "arrow", "csv", "json", "tfrecords", "numpy", "orc")


def rows() -> Iterator[dict[str, Any]]:
    """What most doors give."""
    for number in range(ROWS):
        yield {"k": number, "s": f"t{number}"}


def table() -> dml.Dataset:
    """The same, in memory."""
    return dml.from_items(list(rows()), **EACH)


def written(folder: Path) -> Path:
    """Files, tables and a database, a folder or file for each."""
    for name in FILES:
        kept = table().select("k") if name == "numpy" else table()
        getattr(kept, f"write_{name}")(folder / name, rows_per_file=12)
    table().rename({"k": "k.cls", "s": "s.txt"}).write_webdataset(folder / "webdataset")
    for name in ("text", "binary"):
        (folder / name).mkdir()
    (folder / "text" / "a.txt").write_text("".join(f"t{i}\n" for i in range(ROWS)))
    for number in range(ROWS):
        (folder / "binary" / f"{number:03}.bin").write_bytes(b"x" * number)
    connection = sqlite3.connect(folder / "t.db")
    connection.execute("CREATE TABLE t (k INTEGER, s TEXT)")
    connection.executemany("INSERT INTO t VALUES (:k, :s)", rows())
    connection.commit()
    connection.close()
    return folder


def lake(name: str, module: str) -> Callable[[Path], dml.Dataset]:
    """A table of two versions."""

    def opened(folder: Path) -> dml.Dataset:
        import_module(module)
        path = folder / name
        if not path.exists():
            getattr(table().take(14), f"write_{name}")(path)
            getattr(table().skip(14), f"write_{name}")(path, mode="append")
        found: dml.Dataset = getattr(dml, f"read_{name}")(path, **EACH)
        return found

    return opened


def iceberg(folder: Path) -> dml.Dataset:
    """A table of two appends, of a catalog in a file."""
    import_module("sqlalchemy")
    place = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    catalog = import_module("pyiceberg.catalog.sql").SqlCatalog("doors", **place)
    if not catalog.list_namespaces():
        catalog.create_namespace("n")
        data = table().to_arrow()
        made = catalog.create_table("n.t", schema=data.schema)
        made.append(data.slice(0, 14))
        made.append(data.slice(14))
    return dml.read_iceberg(catalog.load_table("n.t"), **EACH)


def zarr(folder: Path) -> dml.Dataset:
    """One array in chunks of seven."""
    library = import_module("zarr")
    if not (folder / "zarr").exists():
        group = library.open_group(str(folder / "zarr"), mode="w")
        group.create_array("k", shape=(ROWS,), chunks=(7,), dtype="i8")[:] = np.arange(ROWS)
    return dml.read_zarr(folder / "zarr")


class Connect:
    """Opens the database."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __call__(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, check_same_thread=False)


class Samples:
    """A dataset by index, as PyTorch has them."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"k": number, "s": f"t{number}"}


class Given(dml.DataSource):
    """Four parts, half of which say how many rows they have."""

    def schema(self) -> Any:
        return {"k": "int64", "s": "string"}

    def parts(self) -> list[dml.SourcePart]:
        return [dml.SourcePart(str(i), 9 if i % 2 else None, payload=i) for i in range(4)]

    def read(self, part: dml.SourcePart, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        whole = pa.Table.from_pylist(list(rows())).slice(9 * part.payload, 9)
        yield from (whole.slice(at, 4).select(list(columns)) for at in range(0, 9, 4))

    def identity(self) -> object:
        return "the rows of doors.py"


def frame(module: str, door: str) -> Callable[[Path], dml.Dataset]:
    """A data frame of a library."""
    return lambda _: getattr(dml, door)(import_module(module).DataFrame(list(rows())), **EACH)


def bag(_: Path) -> dml.Dataset:
    """Four partitions of unknown length."""
    made = import_module("dask.bag").from_sequence(list(rows()), npartitions=4)
    return dml.from_dask(made, **EACH)


def read(name: str) -> Callable[[Path], dml.Dataset]:
    """Files of a format."""
    return lambda folder: getattr(dml, f"read_{name}")(folder / name, **EACH)


DOORS: dict[str, Callable[[Path], dml.Dataset]] = {
    **{f"read_{name}": read(name) for name in (*FILES, "text", "webdataset")},
    "read_binary_files": lambda folder: dml.read_binary_files(folder / "binary", **EACH),
    "read_images": lambda folder: dml.read_images(f"{folder}/binary/*", label="parent", **EACH),
    "read_audio": lambda folder: dml.read_audio(f"{folder}/binary/*", label="parent", **EACH),
    "read_videos": lambda folder: dml.read_videos(f"{folder}/binary/*", label="parent", **EACH),
    "read_delta": lake("delta", "deltalake"),
    "read_lance": lake("lance", "lance"),
    "read_iceberg": iceberg,
    "read_zarr": zarr,
    "read_sql": lambda folder: dml.read_sql(
        "SELECT k, s FROM t ORDER BY k", Connect(folder / "t.db"), fingerprint="rows", **EACH
    ),
    "read_datasource": lambda _: dml.read_datasource(Given(), **EACH),
    "from_items": lambda _: table(),
    "from_dict": lambda _: dml.from_dict({"k": list(range(ROWS))}, **EACH),
    "from_numpy": lambda _: dml.from_numpy(np.arange(ROWS), **EACH),
    "from_arrow": lambda _: dml.from_arrow(pa.Table.from_pylist(list(rows())), **EACH),
    "from_pandas": frame("pandas", "from_pandas"),
    "from_polars": frame("polars", "from_polars"),
    "from_generator": lambda _: dml.from_generator(rows, **EACH),
    "from_iterable": lambda _: dml.from_iterable(rows(), **EACH),
    "from_torch": lambda _: dml.from_torch(Samples(), **EACH),
    "from_huggingface": lambda _: dml.from_huggingface(
        import_module("datasets").Dataset.from_list(list(rows())), **EACH
    ),
    "from_dask": bag,
    "from_tensor_slices": lambda _: dml.from_tensor_slices({"k": np.arange(ROWS)}, **EACH),
    "range": lambda _: dml.range(ROWS, **EACH),
}
QUIET: dict[str, Any] = {"telemetry_dir": "off", "executor": "sync"}


def pipelines(name: str, folder: Path) -> list[dml.Dataset]:
    """What is read through a door, in order and in two others."""
    ds = DOORS[name](folder).with_options(**QUIET)
    return [each.epoch(0) for each in (ds, ds.shuffle(7, seed=1).batch(3), ds.shuffle(seed=2))]


def go_on() -> None:
    """Resume the states of each request on standard input, and say what was left of them."""
    with suppress(EOFError):
        while True:
            where, states = pickle.load(sys.stdin.buffer)
            pickle.dump(_left(where, states), sys.stdout.buffer)
            sys.stdout.buffer.flush()


def _left(where: Path, states: list[Any]) -> list[list[str]] | str:
    """The rows of each state, or the error."""
    left = []
    try:
        for door, number, state in states:
            made = iter(pipelines(door, where)[number])
            made.load_state_dict(state)
            left.append([str(row) for row in made])
    except Exception:  # noqa: BLE001 - whoever asked shows it
        return traceback.format_exc()
    return left
