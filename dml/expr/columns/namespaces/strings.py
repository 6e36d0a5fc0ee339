"""``col("x").str`` has functions of text, with the names that Polars uses."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pyarrow as pa

from dml.base.user_line import door
from dml.errors import PlanError
from dml.expr.columns.literal import whole
from dml.expr.columns.namespaces.namespace import Sliced, a_format, some_text, text, widths
from dml.expr.columns.value import C
from dml.kernels.functions.strings import contains, replace
from dml.kernels.functions.tokens import SPACE

# Texts are not made longer than this by padding: a block of rows has to fit into memory.
LONGEST = 1 << 16


class Strings(Sliced[C]):
    r"""Functions of a text column; null gives null, and a character is one Unicode code point.

    Patterns are RE2's unless ``literal``: no look-around, no back-references, and ``\d`` and ``\w``
    are ASCII.
    """

    __slots__ = ()
    _title, _place = ".str", "str"

    def len_chars(self) -> C:
        """Return the number of characters: ``len(s)``, int64."""
        return self._apply("str.len_chars")

    def len_bytes(self) -> C:
        """Return the number of bytes in UTF-8 (int64); for a bytes column, the number of bytes."""
        return self._apply("str.len_bytes")

    def to_lowercase(self) -> C:
        """Convert each character to its simple lower case, which keeps the number of characters."""
        return self._apply("str.to_lowercase")

    def to_uppercase(self) -> C:
        """Convert each character to its simple upper case, always one character: "ß" gives "ẞ"."""
        return self._apply("str.to_uppercase")

    def reverse(self) -> C:
        """Return ``s[::-1]``: code points in reverse, so combining marks precede their letters."""
        return self._apply("str.reverse")

    @door
    def strip_chars(self, characters: str | None = None) -> C:
        """Return ``s.strip(characters)``: remove these characters, or white space, at both ends."""
        return self._apply("str.strip_chars", _characters(characters))

    @door
    def strip_chars_start(self, characters: str | None = None) -> C:
        """Return ``s.lstrip(characters)``: remove characters, or white space, at the start."""
        return self._apply("str.strip_chars_start", _characters(characters))

    @door
    def strip_chars_end(self, characters: str | None = None) -> C:
        """Return ``s.rstrip(characters)``: remove characters, or white space, at the end."""
        return self._apply("str.strip_chars_end", _characters(characters))

    @door
    def starts_with(self, prefix: str) -> C:
        """Return ``s.startswith(prefix)``."""
        return self._apply("str.starts_with", text("the prefix", prefix))

    @door
    def ends_with(self, suffix: str) -> C:
        """Return ``s.endswith(suffix)``."""
        return self._apply("str.ends_with", text("the suffix", suffix))

    @door
    def strip_prefix(self, prefix: str) -> C:
        """Return ``s.removeprefix(prefix)``: ``replace`` at the start of the text."""
        return self.replace(rf"\A(?:{re.escape(text('the prefix', prefix))})", "")

    @door
    def strip_suffix(self, suffix: str) -> C:
        """Return ``s.removesuffix(suffix)``: ``replace`` at the end of the text."""
        return self.replace(rf"(?:{re.escape(text('the suffix', suffix))})\z", "")

    @door
    def contains(self, pattern: str, *, literal: bool = False) -> C:
        """Return True if the pattern, or the ``literal`` text, occurs in the text."""
        pattern, literal = text("the pattern", pattern), bool(literal)
        if not literal:
            _compiled(pattern)
        return self._apply("str.contains", pattern, literal)

    @door
    def replace(self, pattern: str, value: str, *, literal: bool = False, n: int = 1) -> C:
        r"""Replace the first ``n`` matches of the pattern, from the left, by ``value``.

        Unless ``literal``, ``\1`` to ``\9`` in ``value`` are the texts of groups, and ``n`` is 0 or
        1.
        """
        most = None if literal else 1
        return self._replaced(pattern, value, literal, whole("n of replace", n, 0, most))

    @door
    def replace_all(self, pattern: str, value: str, *, literal: bool = False) -> C:
        """Replace all non-overlapping matches of the pattern, as ``replace`` does."""
        return self._replaced(pattern, value, literal, None)

    def _replaced(self, pattern: Any, value: Any, literal: object, n: int | None) -> C:
        pattern, value = some_text("the pattern", pattern), text("the replacement", value)
        if not literal:
            _compiled(pattern, value)
        return self._apply("str.replace", pattern, value, bool(literal), n)

    @door
    def extract(self, pattern: str, group: int = 1) -> C:
        """Return the text of ``group`` in the first match of the pattern; null without a match.

        Group 0 is the whole match. A group that is not part of the match gives "".
        """
        found, number = text("the pattern", pattern), whole("group of extract", group, 0, 8)
        _compiled(found, rf"\{number}")
        return self._apply("str.extract", found, number)

    @door
    def count_matches(self, pattern: str, *, literal: bool = False) -> C:
        """Return the number (int64) of matches of the pattern, or of the ``literal`` text.

        A pattern must match at least one character. Each search starts after the previous match,
        and ``^`` matches there.
        """
        found = some_text("the pattern", pattern)
        if not literal:
            _never_empty(found)
        return self._apply("str.count_matches", found, bool(literal))

    @door
    def to_integer(self, *, strict: bool = True) -> C:
        """Parse digits with an optional sign as int64; else CastError, null if not ``strict``."""
        return self._apply("str.to_integer", bool(strict))

    @door
    def to_float(self, *, strict: bool = True) -> C:
        """Parse a decimal number, inf or nan as float64; errors are those of ``to_integer``."""
        return self._apply("str.to_float", bool(strict))

    @door
    def to_datetime(self, format: str = "%Y-%m-%d %H:%M:%S", *, strict: bool = True) -> C:
        """Parse text as timestamp[us]; invalid text raises CastError, or is null if not ``strict``.

        Directives of ``format`` are %Y (4 digits), %m, %d, %H, %M, %S (2), %f (6) and %%. Missing
        fields are those of 1970-01-01, 0 o'clock.
        """
        return self._apply("str.to_datetime", a_format(format, once=True), bool(strict))

    @door
    def to_date(self, format: str = "%Y-%m-%d", *, strict: bool = True) -> C:
        """Parse text in ``format`` as date32, as ``to_datetime`` does."""
        return self._apply("str.to_date", a_format(format, once=True), bool(strict))

    @door
    def split(self, by: str) -> C:
        """Return ``s.split(by)`` as a list; ``by`` is literal, and "" gives the list [""]."""
        return self._apply("str.split", some_text("what text is split by", by))

    @door
    def zfill(self, length: int) -> C:
        """Return ``s.zfill(length)``: pad with zeros on the left, after a leading + or -."""
        return self._apply("str.zfill", whole("length of zfill", length, 0, LONGEST))

    @door
    def pad_start(self, length: int, fill_char: str = " ") -> C:
        """Return ``s.rjust(length, fill_char)``."""
        size = whole("length of pad_start", length, 0, LONGEST)
        return self._apply("str.pad_start", size, _character(fill_char))

    @door
    def pad_end(self, length: int, fill_char: str = " ") -> C:
        """Return ``s.ljust(length, fill_char)``."""
        size = whole("length of pad_end", length, 0, LONGEST)
        return self._apply("str.pad_end", size, _character(fill_char))

    @door
    def concat(self, *others: Any, separator: str = "") -> C:
        """Return ``separator.join`` of this text and ``others``; null if any of them is null."""
        return self._apply("str.concat", text("the separator", separator), others=others)

    def tokenize_bytes(self) -> C:
        """Return the bytes of the text in UTF-8, as a list of uint8."""
        return self._apply("str.tokenize_bytes")

    def tokenize_chars(self) -> C:
        """Return the code points of the text, as a list of int32."""
        return self._apply("str.tokenize_chars")

    @door
    def tokenize_words(self, pattern: str | None = None, *, lower: bool = False) -> C:
        """Return the parts between matches of ``pattern`` as a list of text, without empty parts.

        Without a pattern, ASCII white space separates. A pattern must match at least one character.
        Each search starts after the previous match, and ``^`` matches there. ``lower`` applies
        ``to_lowercase`` first.
        """
        if lower:
            lowered: Any = self.to_lowercase()
            made: C = lowered.str.tokenize_words(pattern)
            return made
        wanted = SPACE if pattern is None else text("the pattern", pattern)
        if pattern is not None:
            _never_empty(pattern)
        return self._apply("str.tokenize_words", wanted)

    @door
    def ngrams(self, n: int, max_n: int | None = None) -> C:
        """Return the list of all n-grams (``n`` consecutive characters), then up to ``max_n``."""
        return self._apply("str.ngrams", *widths(n, max_n))

    def encode(self) -> C:
        """Return the text as bytes in UTF-8."""
        return self._cast(pa.binary(), strict=False)

    def decode(self, *, strict: bool = True) -> C:
        """Convert UTF-8 bytes to text; invalid bytes raise CastError (null if not ``strict``)."""
        return self._cast(pa.string(), strict=strict)


def _never_empty(pattern: str) -> None:
    """Raise PlanError if the pattern can match the empty string at any position."""
    _compiled(pattern)
    sides = {"": "", "a": "a", " ": " ", "\n": r"\n"}
    for before, after in itertools.product(sides, sides):
        alone = rf"\A{sides[before]}(?:{pattern}){sides[after]}\z"
        if contains(pa.array([before + after]), alone, literal=False)[0].as_py():
            raise PlanError(
                f"{pattern!r} can match no character at all",
                why="text would be separated everywhere",
                try_='"+" rather than "*", such as "[^a-z]+"',
            )


def _characters(given: object) -> str | None:
    return None if given is None else text("the characters to strip", given)


def _character(given: object) -> str:
    if isinstance(given, str) and len(given) == 1:
        return given
    raise PlanError(
        f"text is padded with one character, got {given!r}",
        why="no length could be reached otherwise",
        try_='" " or "0"',
    )


def _compiled(pattern: str, value: str | None = None) -> None:
    """Raise PlanError unless RE2 accepts the pattern and its replacement ``value``."""
    empty = pa.array([""])
    try:
        if value is None:
            contains(empty, pattern, literal=False)
        else:
            replace(empty, pattern, value, literal=False, n=None)
    except pa.ArrowInvalid as error:
        raise PlanError(
            f"{pattern!r} is not a pattern" + (f" that {value!r} can replace" if value else ""),
            why=str(error).strip(),
            try_="literal=True to look for the text itself; RE2 has no look-around",
        ) from None
