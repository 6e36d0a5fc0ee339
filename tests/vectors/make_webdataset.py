"""Write tests/vectors/webdataset with the webdataset package, and the values that it reads.

python tests/vectors/make_webdataset.py, where that is installed; the tests do not need it.
"""

from __future__ import annotations

import base64
import importlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "webdataset"
ROWS = 7


def sample(i: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "__key__": f"part/{i:04}",
        "txt": f"höher {i}",
        "cls": i % 3,
        "json": {"box": [i, 0.5], "who": {"name": "a" * i}, "none": None},
        "seg.npy": np.arange(6, dtype=np.int16).reshape(2, 3) * i,
        "image.jpg": bytes(range(i * 9)),
        "pickle": {"code": i},
    }
    if i == 4:
        del found["txt"]
    return found


def encoded(value: Any) -> Any:
    """A decoded value as JSON: arrays as dtype and lists, bytes in base 64."""
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "values": value.tolist()}
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def by_hand(path: Path) -> None:
    """Names that the package must sort out by itself: folders, no dots, marks, capital letters."""
    names = ["./a.b/x.JPG", "./a.b/x.cls", "a.b/no", "__meta__", "__m__/x.txt", "y.tar.gz", "z.t"]
    with tarfile.open(path, "w:gz", format=tarfile.GNU_FORMAT) as archive:
        folder = tarfile.TarInfo("./a.b")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name in [*names, "long/" * 30 + "name.txt"]:
            member = tarfile.TarInfo(name)
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))


def main() -> None:
    wds = importlib.import_module("webdataset")
    FOLDER.mkdir(exist_ok=True)
    with wds.TarWriter(str(FOLDER / "samples.tar.gz"), mtime=0, compress=True) as writer:
        for i in range(ROWS):
            writer.write(sample(i))
    by_hand(FOLDER / "by_hand.tar.gz")
    read: dict[str, Any] = {}
    for name in ("samples.tar.gz", "by_hand.tar.gz"):
        dataset = wds.WebDataset(str(FOLDER / name), shardshuffle=False)
        if name == "samples.tar.gz":
            dataset = dataset.decode(only=["txt", "cls", "json", "seg.npy"])
        rows = (
            {k: v for k, v in row.items() if k not in ("__url__", "__local_path__")}
            for row in dataset
        )
        read[name] = [{k: encoded(v) for k, v in row.items()} for row in rows]
    (FOLDER / "read.json").write_text(json.dumps(read, indent=1, sort_keys=True), encoding="utf-8")


if __name__ == "__main__":
    main()
