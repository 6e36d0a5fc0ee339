"""Test exceptions sent between processes: each arrives as itself or as its text."""

from __future__ import annotations

import os
import pickle
import threading
from typing import Any

import distributed  # noqa: F401 - it changes how exceptions that exist by then are pickled
import pytest

from dml.errors import DmlError, SourceError, UDFError
from dml.exec.process import exception_codec
from dml.exec.process.exception_codec import MOST_BYTES, received, shipped
from dml.kernels.rows.ids import RowIds


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        _raise(error, cause)
    except BaseException as caught:  # noqa: BLE001
        return caught
    return error


def _raise(error: BaseException, cause: BaseException | None) -> None:
    raise error from cause


def travelled(error: BaseException, cause: BaseException | None = None) -> BaseException:
    return received(shipped(raised(error, cause)))


class NeedsTwoError(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")
        self.a = a


class HoldsLockError(Exception):
    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class NoTextNorLockError(HoldsLockError):
    def __str__(self) -> str:
        raise ZeroDivisionError


class RaisesWhenReadError(Exception):
    def __reduce__(self) -> Any:
        return divmod, (1, 0)


class BecomesAnotherError(Exception):
    def __reduce__(self) -> Any:
        return int, (3,)


class LeavesWhenWrittenError(Exception):
    def __reduce__(self) -> Any:
        raise RecursionError


class ExitsWhenWrittenError(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit


class ExitsWhenReadError(Exception):
    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit",)


class NoTextError(HoldsLockError):
    def __init__(self, _: str) -> None:
        super().__init__()

    def __str__(self) -> Any:
        return 3  # noqa: PLE0307


class OwnKindError(DmlError):
    def __init__(self, what: str) -> None:
        super().__init__(what, why="because")
        self.lock = threading.Lock()


def test_an_exception_arrives_with_its_cause() -> None:
    error = UDFError("f raised", at="here", why="so", try_="that", file="a", row_group=2, row=7)
    found = travelled(error, KeyError("x"))
    assert str(found) == str(error)
    assert isinstance(found, UDFError)
    assert (found.file, found.row_group, found.row) == ("a", 2, 7)
    assert isinstance(found.__cause__, KeyError)


def test_the_traceback_of_the_cause_is_noted() -> None:
    found = travelled(UDFError("f raised"), raised(ValueError("bad"), raised(KeyError("deep"))))
    assert found.__cause__ is not None
    (note,) = found.__cause__.__notes__
    assert f"process {os.getpid()}" in note
    assert "ValueError: bad" in note
    assert "KeyError: 'deep'" in note
    assert "test_exception_codec.py" in note


def test_what_dml_raises_on_purpose_has_no_traceback() -> None:
    assert not hasattr(travelled(SourceError("no such file")), "__notes__")


@pytest.mark.law
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NeedsTwoError(1, 2), "NeedsTwoError: 1 and 2"),
        (HoldsLockError(), "HoldsLockError: locked"),
        (NoTextNorLockError(), "NoTextNorLockError: (it cannot be shown)"),
        (RaisesWhenReadError("r"), "RaisesWhenReadError: r"),
        (BecomesAnotherError("b"), "BecomesAnotherError: b"),
        (LeavesWhenWrittenError("w"), "LeavesWhenWrittenError: w"),
        (ExitsWhenWrittenError("w"), "ExitsWhenWrittenError: w"),
        (ExitsWhenReadError("w"), "ExitsWhenReadError: w"),
        (NoTextError("n"), "NoTextError: (it cannot be shown)"),
        (ValueError("x" * 2 * MOST_BYTES), "ValueError: xxx"),
        (ValueError(b"\0" * 2 * MOST_BYTES), "ValueError: b'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_travel_is_described(error: Exception, text: str) -> None:
    found = travelled(error)
    assert isinstance(found, RuntimeError)
    assert str(found).startswith(text)
    assert len(shipped(error)) < 100_000
    wrapped = travelled(UDFError("f raised", row=3), error)
    assert isinstance(wrapped, UDFError)
    assert wrapped.row == 3
    assert str(wrapped.__cause__).startswith(text)


class HangsWhenWrittenError(Exception):
    def __reduce__(self) -> Any:
        threading.Event().wait()


def test_nobody_waits_for_an_exception_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exception_codec, "MOST_S", 0.01)
    found = travelled(UDFError("f raised", row=3), HangsWhenWrittenError("h"))
    assert isinstance(found, UDFError)
    assert str(found.__cause__) == "HangsWhenWrittenError: h"


def test_the_row_to_blame_travels_with_an_exception_that_does_not() -> None:
    error = UDFError("f raised")
    error.row_id = RowIds.run(4, 10, 1)  # type: ignore[attr-defined]
    found: Any = travelled(error, LeavesWhenWrittenError())
    assert found.row_id.low().tolist() == [10]


def test_dmls_own_errors_keep_what_they_say() -> None:
    error = SourceError("cannot read", at="a", why="b", try_="c")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    assert type(travelled(error)) is SourceError
    assert str(travelled(error)) == str(error)
    assert str(travelled(OwnKindError("mine"))) == str(OwnKindError("mine"))
    assert isinstance(travelled(OwnKindError("mine")), DmlError)


@pytest.mark.parametrize("leaving", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_an_exit_stays_an_exit(leaving: BaseException) -> None:
    found = travelled(leaving)
    assert type(found) is type(leaving)
    assert found.args == leaving.args


def test_an_exit_that_cannot_travel_is_an_exit() -> None:
    assert isinstance(travelled(SystemExit(threading.Lock())), SystemExit)


def test_a_class_that_is_absent_here_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = shipped(raised(NeedsNothingError("told")))
    monkeypatch.delitem(globals(), "NeedsNothingError")
    found = received(sent)
    assert isinstance(found, RuntimeError)
    assert "NeedsNothingError: told" in str(found)
    assert pickle.loads(pickle.dumps(found)).args == found.args


class NeedsNothingError(Exception):
    pass
