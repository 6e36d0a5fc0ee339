"""This file stands in for methods of text while a row function is traced, and for what they give.

Each is Python's own method, called value by value; what it gives may not be known to fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from dml.expr.trace import UnliftableError

if TYPE_CHECKING:
    from dml.expr.traced import Traced

# Methods of text, and what they give; those behind "!" raise for some texts.
METHODS = {
    **dict.fromkeys(("lower", "upper", "casefold", "capitalize", "title", "swapcase"), "s"),
    **dict.fromkeys(("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "replace"), "s"),
    **dict.fromkeys(("zfill", "ljust", "rjust", "center"), "s!"),
    **dict.fromkeys(("find", "rfind", "count"), "i"),
    **dict.fromkeys(("index", "rindex"), "i!"),
    **dict.fromkeys(("startswith", "endswith", "isdigit", "isalpha", "isalnum", "isdecimal"), "b"),
    **dict.fromkeys(("isnumeric", "isspace", "islower", "isupper", "istitle", "isascii"), "b"),
    "isidentifier": "b",
    **dict.fromkeys(("split", "rsplit", "partition", "rpartition", "splitlines"), "pieces"),
    "encode": "bytes",
}


class Method:
    """A method of a text of the row, about to be called."""

    def __init__(self, text: Traced, name: str) -> None:
        self.text, self.name = text, name

    def __call__(self, *args: Any, **named: Any) -> Any:
        if named or not all(_constant(arg) for arg in args):
            raise UnliftableError(f"it calls .{self.name} with arguments that are not constants")
        gives = METHODS[self.name]
        if gives == "bytes":
            if args not in ((), ("utf-8",), ("utf8",)):
                raise UnliftableError("it encodes text in another way than UTF-8")
            return Encoded(self.text)
        check_arguments(self.name, args)
        if gives == "pieces":
            return Pieces(self.text, self.name, args)
        total = not gives.endswith("!")
        return self.text.called(f"str.{self.name}", gives[0], params=args, total=total)

    def _no(self, *_: object) -> NoReturn:
        raise UnliftableError(f"it uses the method .{self.name} without calling it")

    __eq__ = __ne__ = __bool__ = __str__ = __repr__ = __format__ = __iter__ = _no
    __hash__ = None  # type: ignore[assignment]


def _constant(value: Any) -> bool:
    if type(value) is tuple:
        return all(type(item) is str for item in value)
    return value is None or type(value) in (str, int)


def check_arguments(name: str, args: tuple[Any, ...]) -> None:
    """Refuse arguments that the method refuses: then it raises for every row."""
    try:
        getattr("", name)(*args)
    except ValueError as error:
        if "not found" not in str(error):
            raise


class Encoded:
    """Text as bytes, for what takes bytes and is examined."""

    def __init__(self, text: Traced) -> None:
        self.text = text

    def _no(self, *_: object) -> NoReturn:
        raise UnliftableError("it uses text as bytes, which is not examined")

    __getattr__ = __add__ = __radd__ = __getitem__ = __len__ = __iter__ = __contains__ = _no
    __eq__ = __ne__ = __lt__ = __gt__ = __bool__ = __str__ = __repr__ = __format__ = _no
    __hash__ = None  # type: ignore[assignment]


class Pieces:
    """A text in pieces: how many is not known, but for those of ``partition``."""

    def __init__(self, text: Traced, name: str, args: tuple[Any, ...]) -> None:
        self.text, self.name, self.args = text, name, args

    def __getitem__(self, place: Any) -> Traced:
        if type(place) is not int:
            raise UnliftableError("it takes several pieces of a text, or one that the row says")
        total = self.name.endswith("partition") and -3 <= place < 3
        return self.text.called(f"piece.{self.name}", "s", params=(place, *self.args), total=total)

    def __iter__(self) -> Any:
        if not self.name.endswith("partition"):
            raise UnliftableError("it goes through as many pieces of a text as the row has")
        return iter([self[place] for place in range(3)])

    def size(self) -> Traced:
        """How many."""
        return self.text.called(f"pieces.{self.name}", "i", params=self.args, total=True)

    def __bool__(self) -> bool:
        return bool(self.size())

    def _no(self, *_: object) -> NoReturn:
        raise UnliftableError("it uses the pieces of a text as a list")

    __getattr__ = __add__ = __radd__ = __mul__ = __len__ = __contains__ = _no
    __eq__ = __ne__ = __lt__ = __gt__ = __str__ = __repr__ = __format__ = _no
    __hash__ = None  # type: ignore[assignment]
