"""Values are encoded in one canonical way, so that equal values have equal hashes.

Every value is encoded with its type and its length: ``1``, ``1.0`` and ``True`` differ. Floats are
encoded by their bits, arrays by dtype, shape and content, dictionaries without regard to order,
sets by the sorted digests of their members. A value without such an encoding raises an error: there
is no fallback to pickle or repr. ``dml.base.fingerprint`` is the public interface.

Source: OPTIMIZER 4.1.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import hashlib
import struct
import types
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np

from dml.base import content_digest
from dml.errors import FingerprintError, text_of

SCHEME = b"dml-fp-1"
SIZE = 16

_FRESH = hashlib.blake2b(digest_size=SIZE, key=SCHEME)
_HEAD = struct.Struct("<cQ").pack
_INT = struct.Struct("<cq").pack
_FLOAT = struct.Struct("<cd").pack
_COMPLEX = struct.Struct("<cdd").pack


class UnnamedError(Exception):
    """A nested value has no canonical encoding; callers prepend steps to ``path``, its location."""

    def __init__(self, reason: str, why: str, try_: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.reason, self.why, self.try_, self.path = reason, why, try_, path

    def under(self, step: str) -> Self:
        """Prepend ``step`` to ``path``, and return the error itself."""
        self.path = (step, *self.path)
        return self

    def public(self, root: str) -> FingerprintError:
        """Return the FingerprintError for users: the path from ``root``, the reason, a remedy."""
        what = f"cannot fingerprint {root}{''.join(self.path)}: {self.reason}"
        return FingerprintError(what, why=self.why, try_=self.try_)


class Encoder:
    """Collects values in the canonical encoding and hashes them.

    Each value is encoded with its type and its length, so a sequence of ``add`` calls can be read
    back in one way only. Subclasses extend ``table`` (by exact type) and ``other`` (the rest).
    Raises UnnamedError for a value without an encoding; ``fingerprint.digest`` turns that into a
    FingerprintError.
    """

    __slots__ = ("_chunks", "put")

    table: ClassVar[dict[type, Callable[[Any, Any], None]]] = {}

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self.put = self._chunks.append

    def add(self, value: object) -> None:
        """Append the encoding of a value."""
        handler = self.table.get(type(value))
        if handler is None:
            self.other(value)
        else:
            handler(self, value)

    def end(self) -> None:
        """Append the end mark of a value whose number of parts is not encoded before them."""
        self.tag(b"end")

    def step(self, path: str, value: object) -> None:
        """Encode ``value``, which is reached by ``path`` from the value being encoded."""
        try:
            self.add(value)
        except UnnamedError as refusal:
            raise refusal.under(path) from None

    def tag(self, word: bytes, count: int = 0) -> None:
        """Append a mark that the encoding of no user value contains, with a number ``count``."""
        self.put(_HEAD(b"#", len(word)) + word + count.to_bytes(8, "little"))

    def digest(self) -> bytes:
        """Return the 16 byte digest of all values added so far."""
        state = _FRESH.copy()
        state.update(b"".join(self._chunks))
        return state.digest()

    def branch(self) -> Self:
        """Return an empty encoder for a part that is digested on its own (members of a set)."""
        return type(self)()

    def name_of(self, value: object) -> bytes:
        """Return the digest of ``value`` on its own; this encoder is unchanged."""
        part = self.branch()
        part.add(value)
        return part.digest()

    def other(self, value: object) -> None:
        """Encode a value whose exact type is not in the table."""
        if isinstance(value, enum.Enum):
            self.tag(b"enum")
            self.add((type(value).__qualname__, value.name))
            self.add(value.value)
        elif isinstance(value, np.generic):
            self.tag(b"scalar")
            _put_array(self, np.asarray(value))
        elif isinstance(value, np.dtype):
            self.tag(b"dtype")
            self.add(content_digest.dtype_text(value))
        elif content_digest.is_arrow(value):
            _put_arrow(self, value)
        elif isinstance(name := getattr(value, "digest", None), bytes) and len(name) == SIZE:
            self.put(b"D" + name)
        else:
            raise unnamed(value)


def unnamed(value: object) -> UnnamedError:
    """Build the error for a value of a type without encoding."""
    kind = type(value)
    return UnnamedError(
        f"a {kind.__module__}.{kind.__qualname__} has no name that is equal in another process",
        "only values whose content says all about them can be named",
        "plain numbers, text, tuples, dictionaries and arrays, or an object with a `digest`",
    )


def endless() -> UnnamedError:
    """Build the error for a value that contains itself, or is nested too deeply."""
    return UnnamedError(
        "it contains itself, or is nested too deeply",
        "a name is made by walking through the whole value",
        "break the cycle, or name the value yourself",
    )


def _put_none(out: Encoder, _: None) -> None:
    out.put(b"N")


def _put_bool(out: Encoder, value: bool) -> None:  # noqa: FBT001 - the value itself
    out.put(b"T" if value else b"F")


def _put_int(out: Encoder, value: int) -> None:
    if -(2**63) <= value < 2**63:
        out.put(_INT(b"i", value))
    else:
        size = value.bit_length() // 8 + 1
        out.put(_HEAD(b"I", size) + value.to_bytes(size, "little", signed=True))


def _put_float(out: Encoder, value: float) -> None:
    out.put(_FLOAT(b"f", value))


def _put_complex(out: Encoder, value: complex) -> None:
    out.put(_COMPLEX(b"c", value.real, value.imag))


def _put_str(out: Encoder, value: str) -> None:
    data = value.encode("utf-8", "surrogatepass")
    out.put(_HEAD(b"s", len(data)) + data)


def _put_bytes(out: Encoder, value: bytes) -> None:
    out.put(_HEAD(b"b", len(value)) + value)


def _put_bytearray(out: Encoder, value: bytearray) -> None:
    out.put(_HEAD(b"y", len(value)) + bytes(value))


def _put_tuple(out: Encoder, value: tuple[object, ...]) -> None:
    out.put(_HEAD(b"(", len(value)))
    put_items(out, value)


def _put_list(out: Encoder, value: list[object]) -> None:
    out.put(_HEAD(b"[", len(value)))
    put_items(out, value)


def put_items(out: Encoder, items: Iterable[object]) -> None:
    """Encode items in order; an UnnamedError gains the index of the item."""
    index = 0
    try:
        for index, item in enumerate(items):  # noqa: B007 - the failing place is read below
            out.add(item)
    except UnnamedError as refusal:
        raise refusal.under(f"[{index}]") from None


def put_pair(out: Encoder, key: object, value: object) -> None:
    """Encode a key and its value; an UnnamedError of the value gains the key."""
    out.add(key)
    out.step(f"[{text_of(key, repr)}]", value)


def _put_dict(out: Encoder, value: dict[object, object]) -> None:
    out.put(_HEAD(b"{", len(value)))
    for key in sorted(value, key=out.name_of) if _mixed(value) else sorted(value):  # type: ignore[type-var]
        put_pair(out, key, value[key])


def _mixed(value: Mapping[object, object]) -> bool:
    """Return True if keys must be sorted by digest, because some of them are not text."""
    return not all(type(key) is str for key in value)


def _put_set(out: Encoder, value: set[object] | frozenset[object]) -> None:
    try:
        names = sorted(out.name_of(member) for member in value)
    except UnnamedError as refusal:
        raise refusal.under("{member}") from None
    tag = b">" if isinstance(value, frozenset) else b"<"
    out.put(_HEAD(tag, len(names)) + b"".join(names))


def tagged(word: bytes, meaning: Callable[[Any], object]) -> Callable[[Encoder, Any], None]:
    """Return a function that encodes a value as the mark ``word`` and ``meaning(value)``."""

    def put(out: Encoder, value: Any) -> None:
        out.tag(word)
        out.add(meaning(value))

    return put


def _put_singleton(out: Encoder, value: object) -> None:
    out.tag(b"..." if value is Ellipsis else b"NotImplemented")


def _put_datetime(out: Encoder, value: dt.datetime) -> None:
    out.tag(b"datetime")
    out.add(value.toordinal())
    out.add(value.timetz())


def _put_time(out: Encoder, value: dt.time) -> None:
    out.tag(b"time")
    out.add((value.hour, value.minute, value.second, value.microsecond, value.fold))
    zone = value.tzinfo
    if zone is None or type(zone) is dt.timezone:
        out.add(zone)
    elif isinstance(name := getattr(zone, "key", None), str):
        out.tag(b"zone")
        out.add(name)
    else:
        raise unnamed(zone).under(".tzinfo")


def _put_array(out: Encoder, value: np.ndarray[Any, Any]) -> None:
    out.tag(b"array")
    out.add((content_digest.dtype_text(value.dtype), value.shape))
    _put_columns(out, content_digest.array_pieces(value))


def _put_arrow(out: Encoder, value: object) -> None:
    out.tag(b"arrow")
    _put_columns(out, content_digest.arrow_pieces(value))


def _put_columns(out: Encoder, pieces: Iterable[object]) -> None:
    """Encode ``pieces`` of content: ``Bulk`` data by its hash, without a copy, others as values."""
    for piece in pieces:
        if isinstance(piece, content_digest.Bulk):
            out.put(_HEAD(b"B", piece.data.nbytes))
            out.put(hashlib.blake2b(piece.data, digest_size=32).digest())
        else:
            out.add(piece)


Encoder.table = {
    type(None): _put_none,
    bool: _put_bool,
    int: _put_int,
    float: _put_float,
    complex: _put_complex,
    str: _put_str,
    bytes: _put_bytes,
    bytearray: _put_bytearray,
    tuple: _put_tuple,
    list: _put_list,
    dict: _put_dict,
    types.MappingProxyType: _put_dict,
    set: _put_set,
    frozenset: _put_set,
    range: tagged(b"range", attrgetter("start", "stop", "step")),
    slice: tagged(b"slice", attrgetter("start", "stop", "step")),
    types.EllipsisType: _put_singleton,
    types.NotImplementedType: _put_singleton,
    decimal.Decimal: tagged(b"decimal", lambda value: tuple(value.as_tuple())),
    dt.date: tagged(b"date", dt.date.toordinal),
    dt.datetime: _put_datetime,
    dt.time: _put_time,
    dt.timezone: tagged(b"timezone", lambda value: (value.utcoffset(None), value.tzname(None))),
    dt.timedelta: tagged(b"timedelta", attrgetter("days", "seconds", "microseconds")),
    np.ndarray: _put_array,
    np.memmap: _put_array,
}
