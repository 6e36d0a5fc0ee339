"""Read thirty kinds of malicious archives with the reader of shards.

Each raises a typed error, or is harmless because names are never paths and nothing is ever unpacked
to disk; every case states which. No case writes a file, and none takes much memory.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

import dml
from dml.errors import SourceError
from dml.io.webdataset.webdataset import read_webdataset
from dml.testing.source_laws import everything

END = bytes(1024)
HARMLESS = ""  # read, and none of what it names is touched


def member(name: str, data: bytes = b"x", **fields: object) -> bytes:
    """A member with its header; what ``fields`` say is not what it should."""
    header = tarfile.TarInfo(name)
    header.size = len(data)
    for field, value in fields.items():
        setattr(header, field, value)
    block = header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    return block + data + bytes(-len(data) % 512)


def special(kind: bytes, target: str = "") -> bytes:
    return member("0.txt", b"", type=kind, linkname=target)


def changed(at: int, stored: bytes, name: str = "1.txt", data: bytes = b"x") -> bytes:
    """A member with some bytes of its header replaced, and the checksum made right again."""
    block = bytearray(member(name, data))
    block[at : at + len(stored)] = stored
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block[:512])
    return bytes(block)


def pax(*records: tuple[str, bytes], kind: bytes = tarfile.XHDTYPE) -> bytes:
    """An extended header of PAX."""
    data = b""
    for key, value in records:
        rest = b" " + key.encode() + b"=" + value + b"\n"
        size = len(rest) + 1
        while len(str(size)) + len(rest) != size:
            size += 1
        data += str(size).encode() + rest
    return member("pax", data, type=kind)


def inner() -> bytes:
    """An archive as a file of an archive."""
    return member("../../0.txt", b"inner") + END


def size_of(number: int) -> bytes:
    """A size in base 256, as numbers are written that octal digits cannot hold."""
    return (number % (1 << 96) | 1 << 95).to_bytes(12, "big")


CASES: dict[str, tuple[bytes, str]] = {
    "a name that climbs": (member("../../evil.txt"), HARMLESS),
    "a name that climbs inside": (member("a/../../../evil.txt"), HARMLESS),
    "an absolute name": (member("/tmp/evil.txt"), HARMLESS),
    "a name of another system": (member("C:\\evil\\evil.txt"), HARMLESS),
    "a name with a newline": (member("a\nb.txt"), HARMLESS),
    "a symbolic link": (special(tarfile.SYMTYPE, "/etc/passwd"), "is a symbolic link"),
    "a symbolic link, then below it": (
        special(tarfile.SYMTYPE, "/tmp") + member("0.txt/evil.txt"),
        "is a symbolic link",
    ),
    "a hard link": (special(tarfile.LNKTYPE, "/etc/passwd"), "is a hard link"),
    "a character device": (special(tarfile.CHRTYPE), "is a device"),
    "a block device": (special(tarfile.BLKTYPE), "is a device"),
    "a pipe": (special(tarfile.FIFOTYPE), "is a pipe"),
    "a sparse file of GNU": (special(tarfile.GNUTYPE_SPARSE), "is a sparse file"),
    "a sparse file of PAX": (
        pax(("GNU.sparse.major", b"1"), ("GNU.sparse.realsize", b"9" * 18)) + member("0.txt"),
        "is sparse",
    ),
    "an unknown type": (special(b"Z"), "of the unknown type"),
    "a size of a petabyte": (changed(124, size_of(1 << 50)), "are allowed"),
    "a size just too large": (changed(124, size_of(33 << 20)), "are allowed"),
    "a negative size": (changed(124, size_of(-512)), "a size of -512 bytes"),
    "a size that is no number": (changed(124, b"999999999999"), "header is damaged"),
    "a size of PAX that is larger": (
        pax(("size", b"1" * 18)) + member("0.txt"), "are allowed",
    ),
    "a size of PAX that is negative": (pax(("size", b"-1")) + member("0.txt"), "a size of"),
    "a size of PAX without end": (pax(("size", b"1" * 5000)) + member("0.txt"), "a size of"),
    "a name of PAX that climbs": (pax(("path", b"../../evil.txt")) + member("0.txt"), HARMLESS),
    "a name of PAX with NUL": (pax(("path", b"a\0b.txt")) + member("0.txt"), "is no name"),
    "a name of PAX in bytes": (
        pax(("hdrcharset", b"BINARY"), ("path", b"\xff")) + member("0.txt"), "sets hdrcharset",
    ),
    "a name of PAX for all files": (
        pax(("path", b"evil.txt"), kind=tarfile.XGLTYPE) + member("0.txt"), "sets path",
    ),
    "records of PAX that overrun": (
        member("pax", b"99 path=a\n", type=tarfile.XHDTYPE) + member("0.txt"), "PAX header",
    ),
    "records of PAX of no length": (
        member("pax", b"0 path=a\n" * 9, type=tarfile.XHDTYPE) + member("0.txt"), "PAX header",
    ),
    "a header of PAX of a petabyte": (
        changed(124, size_of(1 << 50), "pax")[:156] + b"x" + bytes(355), "header is damaged",
    ),
    "a long name of a megabyte": (
        member("long", b"a" * (1 << 20), type=tarfile.GNUTYPE_LONGNAME) + member("0.txt"),
        "a header has 1048576 bytes",
    ),
    "a long name that climbs": (
        member("long", b"../" * 200 + b"evil.txt\0", type=tarfile.GNUTYPE_LONGNAME) + member("0"),
        HARMLESS,
    ),
    "a long name for nothing": (
        member("long", b"a.txt\0", type=tarfile.GNUTYPE_LONGNAME), "followed by none",
    ),
    "long names without end": (
        member("long", b"a.txt\0", type=tarfile.GNUTYPE_LONGNAME) * 500, "followed by none",
    ),
    "two files of one name": (member("1.txt") + member("1.txt"), "has two files 'txt'"),
    "two files of names alike": (member("1.txt") + member("1.TXT"), "has two files 'txt'"),
    "a key that comes again": (member("1.txt") + member("2.txt") + member("1.txt"), HARMLESS),
    "a name with NUL": (changed(0, b"a.txt\0b"), HARMLESS),
    "a name that is no UTF-8": (changed(0, b"\xff\xfe.txt"), "is no UTF-8"),
    "an empty name": (changed(0, bytes(100)) + member("1.txt"), HARMLESS),
    "an archive in an archive": (member("1.tar", inner()), HARMLESS),
    "two archives, one after the other": (
        member("1.txt") + END + member("2.txt"), "something follows the mark of the end",
    ),
    "a header with a wrong checksum": (member("1.txt")[:-513] + b"y" + bytes(512), "is damaged"),
    "a pickle as an array": (member("1.npy", b"cos\nsystem\n(S'touch evil'\ntR."), "is no array"),
    "a pickle under its name": (member("1.pkl", b"cos\nsystem\n(S'touch evil'\ntR."), HARMLESS),
    "a million braces": (member("1.json", b"[" * 1_000_000), "is no JSON"),
    "a bomb of zeros for a header": (bytes(512) + b"x" * 512, "something follows"),
}  # fmt: skip


def test_there_are_thirty() -> None:
    assert len(CASES) >= 30


@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.law)])
@pytest.mark.parametrize("first", [False, pytest.param(True, marks=pytest.mark.law)])
@pytest.mark.parametrize("case", CASES)
def test_a_hostile_archive_is_refused_or_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, *, packed: bool, first: bool
) -> None:
    data, why = CASES[case]
    data = member("fine.bin") * first + data
    folder = tmp_path / "a/b/c"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    path = folder / ("x.tar.gz" if packed else "x.tar")
    path.write_bytes(gzip.compress(data + END) if packed else data + END)
    before = seen(tmp_path), os.path.lexists("/tmp/evil.txt")
    tracemalloc.start()
    try:
        outcome = refusal(lambda: everything(read_webdataset(path, atom_rows=1)))
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "names no file" not in outcome, outcome
    assert why in outcome or (first and "which none of the first had" in outcome), outcome
    assert bool(why) == bool(outcome), outcome
    assert held < 48 << 20, f"{held >> 20} MiB"
    assert (seen(tmp_path), os.path.lexists("/tmp/evil.txt")) == before


def refusal(read: Callable[[], object]) -> str:
    """The error of reading, which names the file; "" if there is none."""
    try:
        read()
    except SourceError as error:
        found = str(error)
        return found if "x.tar" in found else f"an error that names no file: {found}"
    return ""


def seen(folder: Path) -> set[str]:
    """All that is below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_names_are_keys_and_never_paths(tmp_path: Path) -> None:
    data = member("../../evil.txt") + member("/tmp/evil2.txt") + END
    (tmp_path / "x.tar").write_bytes(data)
    rows = dml.read_webdataset(tmp_path / "x.tar").with_options(telemetry_dir="off").take_rows(2)
    assert [row["__key__"] for row in rows] == ["../../evil", "/tmp/evil2"]


def test_an_archive_inside_is_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(member("1.tar", inner()) + END)
    rows = dml.read_webdataset(tmp_path / "x.tar").with_options(telemetry_dir="off").take_rows(2)
    assert rows == [{"__key__": "1", "tar": inner()}]
    with tarfile.open(fileobj=io.BytesIO(rows[0]["tar"])) as nested:
        assert nested.getnames() == ["../../0.txt"]


@pytest.mark.parametrize("size", [-1, -512, -1024])
def test_a_size_below_zero_leads_nowhere_back(tmp_path: Path, size: int) -> None:
    backwards = changed(124, size.to_bytes(12, "big", signed=True))
    (tmp_path / "0.tar").write_bytes(member("0.txt") + backwards + END)
    with pytest.raises(SourceError, match="cannot be read") as caught:
        dml.read_webdataset(tmp_path / "0.tar").to_list()
    assert f"a size of {size} bytes" in caught.value.why
