"""Test that objects without a meaning in another process raise an error with their path."""

# ruff: noqa: ARG005, PLW0108 - what a lambda refers to is the point, not what it is given

from __future__ import annotations

import datetime as dt
import functools
import io
import itertools
import logging
import operator
import os
import random
import secrets
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dml.errors import FingerprintError
from dml.udfs.identity.function_fingerprint import identity

LOCK = threading.Lock()
LOG = logging.getLogger("rows")
RANDOM = random.Random(1)
GENERATOR = np.random.default_rng(1)
STREAM = (i for i in range(3))
COUNT = itertools.count()
SOCKET = socket.socket
FILE = io.StringIO("x")
WEAK = weakref.ref(SOCKET)
LOCAL = threading.local()
UFUNC = np.frompyfunc(len, 1, 1)
MASKED = np.ma.masked_array([1.0], [True])


class Holder:
    def __init__(self, held: object) -> None:
        self.held = held

    def __call__(self, row: Any) -> Any:
        return row


def counting() -> Callable[[Any], int]:
    n = 0

    def count(row: Any) -> int:
        nonlocal n
        n += 1
        return n

    return count


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "lock": (lambda row: LOCK, ".LOCK: it is a lock"),
    "logger": (lambda row: LOG.info(row), ".LOG: it is a logger"),
    "random generator": (lambda row: RANDOM.random(), ".RANDOM: it is a generator of random"),
    "numpy generator": (lambda row: GENERATOR.normal(), ".GENERATOR: it is a generator of random"),
    "random module": (lambda row: random.random(), ".random.random.__self__: it is a generator"),
    "numpy's own state": (lambda row: np.random.rand(), ".np.random.rand.__self__"),  # noqa: NPY002
    "uuid": (lambda row: uuid.uuid4(), "uuid.uuid4 reads a random identifier"),
    "uuid held": (Holder(uuid.uuid4()), ".held: it is a random identifier"),
    "secrets": (lambda row: secrets.token_hex(), "secrets.token_hex reads random bytes"),
    "urandom": (lambda row: os.urandom(3), "reads random bytes"),
    "clock": (lambda row: time.time(), "time.time reads the clock"),
    "date of today": (lambda row: dt.date.today(), "today() reads the clock"),
    "now": (lambda row: dt.datetime.now(), "now() reads the clock"),
    "environment": (lambda row: os.environ["HOME"], ".os.environ: it is the environment"),
    "process": (lambda row: os.getpid(), "reads this process"),
    "file": (lambda row: FILE.read(), ".FILE: it is an open file"),
    "weak reference": (lambda row: WEAK(), ".WEAK: it is a weak reference"),
    "thread local": (lambda row: LOCAL, ".LOCAL: it is a lock"),
    "generator": (lambda row: next(STREAM), ".STREAM: it is an iterator"),
    "iterator": (lambda row: next(COUNT), ".COUNT: it is an iterator"),
    "made ufunc": (lambda row: UFUNC(row), ".UFUNC: a numpy.ufunc keeps its content"),
    "array with more": (lambda row: MASKED, ".MASKED: a numpy.ma.MaskedArray keeps its content"),
    "eval": (lambda row: eval(row["code"]), "it calls eval()"),
    "globals": (lambda row: globals()["x"], "it calls globals()"),
    "hash": (lambda row: hash(row["name"]), "it calls hash()"),
    "counter": (counting(), ".n: it changes 'n', which outlives the call"),
    "default": (functools.partial(Holder(1), LOCK), ".args[0]: it is a lock"),
    "bound method": (Holder([LOCK]).__call__, ".__self__.held[0]: it is a lock"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_means_nothing_elsewhere_is_refused(name: str) -> None:
    fn, words = REFUSED[name]
    with pytest.raises(FingerprintError) as caught:
        identity(fn)
    assert words in caught.value.what
    assert caught.value.why
    assert caught.value.try_


class Text(str):
    __slots__ = ("language",)
    language: str


class Items(list[int]):
    pass


class Table(dict[str, int]):
    def items(self) -> Any:
        raise AssertionError("an override must not be asked")


def code(value: object) -> bytes:
    return identity(lambda row: value).code


def test_extended_built_in_values_are_seen_whole() -> None:
    english, german = Text("a"), Text("a")
    english.language, german.language = "en", "de"
    assert code(english) != code(german) != code("a")
    one, two = Items([1]), Items([1])
    assert code(one) == code(two)
    two.note = 1  # type: ignore[attr-defined]
    assert code(one) != code(two)
    assert code(Table(a=1)) != code(Table(a=2))


def test_slots_are_seen() -> None:
    class Slotted:
        __slots__ = ("a", "b")

        def __init__(self, a: int) -> None:
            self.a = a

    assert code(Slotted(1)) == code(Slotted(1))
    assert code(Slotted(1)) != code(Slotted(2))


def test_what_one_object_holds_is_not_taken_for_anothers() -> None:
    class Bag:
        pass

    def bag(**held: object) -> Bag:
        made = Bag()
        vars(made).update(held)
        return made

    assert code(bag(p=bag(), q=1)) != code(bag(p=bag(q=1)))
    assert code((bag(), "q", 1)) != code((bag(q=1),))


def test_keyword_defaults_are_not_taken_for_attributes() -> None:
    def one(row: Any, *, k: int) -> Any:
        return row

    def other(row: Any, *, k: int = 1) -> Any:
        return row

    one.k = 1  # type: ignore[attr-defined]
    assert identity(one).code != identity(other).code


def test_an_object_can_name_itself() -> None:
    class Named(Holder):
        def __dml_fingerprint__(self) -> object:
            return self.held

    first, second = Named("v1"), Named("v1")
    first.lock = LOCK  # type: ignore[attr-defined]
    assert identity(first).code == identity(second).code
    assert identity(first).code != identity(Named("v2")).code
    with pytest.raises(FingerprintError, match="__dml_fingerprint__"):
        identity(Named(LOCK))


def test_a_function_can_name_itself() -> None:
    def f(row: Any) -> Any:
        return LOCK

    f.__dml_fingerprint__ = "v1"  # type: ignore[attr-defined]
    assert identity(f).code


def test_objects_of_c_are_known_by_their_arguments() -> None:
    assert code(operator.itemgetter("a")) != code(operator.itemgetter("b"))
    assert code(operator.methodcaller("a", 1)) != code(operator.methodcaller("a", 2))
    assert code(functools.partial(len)) != code(functools.partial(abs))
    assert code(range(3)) != code(range(4))
