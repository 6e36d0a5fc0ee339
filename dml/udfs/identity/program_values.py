"""Program objects that are not data are encoded here: partials, methods, patterns, descriptors.

Unlike in ``dml.base.encoder``, the order of a dictionary counts, since a program can observe it.
"""

from __future__ import annotations

import collections
import functools
import operator
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dml.base.encoder import Encoder, put_items, put_pair, tagged


class _Pair(NamedTuple):
    """A named tuple that exists only to provide the type of its field descriptor."""

    first: int


def _putting(
    tag: bytes, steps: Mapping[str, str], *, named: bool = False
) -> Callable[[Encoder, Any], None]:
    """Return a function that encodes ``tag`` and a value's attributes; ``steps`` has them by path.

    With ``named``, the value's ``__name__`` is encoded as well.
    """

    def put(out: Encoder, value: Any) -> None:
        out.tag(tag)
        if named:
            out.add(value.__name__)
        for path, attribute in steps.items():
            out.step(path, getattr(value, attribute))

    return put


def _put_ordered(out: Encoder, value: Mapping[object, object]) -> None:
    out.tag(type(value).__name__.encode(), len(value))
    for key, item in value.items():
        put_pair(out, key, item)


def _put_getter(out: Encoder, value: Any) -> None:
    out.tag(b"getter")
    put_items(out, value.__reduce__())
    out.end()


def _put_deque(out: Encoder, value: collections.deque[object]) -> None:
    out.tag(b"deque", len(value))
    out.add(value.maxlen)
    put_items(out, value)


def _put_accessor(out: Encoder, value: Any) -> None:
    out.tag(type(value).__name__.encode())
    for name in ("func", "fget", "fset", "fdel", "__func__"):
        if (part := getattr(value, name, None)) is not None:
            out.add(name)
            out.step("", part)
    out.end()


def put_generic(out: Encoder, value: Any) -> None:
    """Encode a type annotation: ``list[int]``, ``int | None``, ``typing.Any``."""
    out.tag(b"generic")
    origin = typing.get_origin(value)
    out.add(origin or getattr(value, "_name", None) or getattr(value, "__name__", ""))
    put_items(out, typing.get_args(value))
    out.end()


def _put_default_dict(out: Encoder, value: collections.defaultdict[Any, Any]) -> None:
    out.step(".default_factory", value.default_factory)
    _put_ordered(out, value)


Table = dict[type, Callable[[Any, Any], None]]

_ACCESSORS: Table = dict.fromkeys(
    (property, staticmethod, classmethod, functools.cached_property), _put_accessor
)
_DESCRIPTORS: Table = dict.fromkeys(
    (
        types.GetSetDescriptorType,
        types.MemberDescriptorType,
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
        types.ClassMethodDescriptorType,
    ),
    _putting(b"descriptor", {"": "__objclass__"}, named=True),
)
_GETTERS: Table = dict.fromkeys(
    (operator.itemgetter, operator.attrgetter, operator.methodcaller), _put_getter
)
TABLE: Table = {
    **_ACCESSORS,
    **_DESCRIPTORS,
    **_GETTERS,
    dict: _put_ordered,
    types.MappingProxyType: _put_ordered,
    types.MethodType: _putting(b"method", {".__self__": "__self__", "": "__func__"}),
    types.MethodWrapperType: _putting(b"bound", {".__self__": "__self__"}, named=True),
    types.GenericAlias: put_generic,
    types.UnionType: put_generic,
    type(_Pair.first): tagged(b"field", lambda value: value.__reduce__()[1][0]),
    functools.partial: _putting(b"partial", {f".{n}": n for n in ("func", "args", "keywords")}),
    re.Pattern: tagged(b"pattern", operator.attrgetter("pattern", "flags")),
    collections.deque: _put_deque,
    collections.OrderedDict: _put_ordered,
    collections.defaultdict: _put_default_dict,
}
