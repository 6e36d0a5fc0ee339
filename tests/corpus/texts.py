"""Row functions that clean text, and convert categories and dates to numbers."""

from __future__ import annotations

import re
import zlib

from tests.corpus.case import Case, D, F, I, Row, S, T

STOP = ("the", "a", "an")
COLOURS = {"red": 0, "green": 1, "blue": 2}
SPACES = re.compile(r"\s+")


def cleaned(row: Row) -> Row:
    return {"text": row["text"].strip().lower()}


def without_commas(row: Row) -> Row:
    return {"amount": float(row["amount"].replace(",", "").lstrip("$"))}


def sizes(row: Row) -> Row:
    return {"length": len(row["text"]), "words": len(row["text"].split())}


def is_bot(row: Row) -> bool:
    return row["agent"].lower().startswith("bot") or "crawler" in row["agent"]


def long_enough(row: Row) -> bool:
    return len(row["text"]) >= 3


def yes_no(row: Row) -> Row:
    return {"y": 1 if row["answer"] in ("yes", "y", "true", "1") else 0}


def weekday_name(row: Row) -> Row:
    return {"weekend": row["day"] in {"Sat", "Sun"}, "day": row["day"]}


def colour_code(row: Row) -> Row:
    return {"colour": COLOURS.get(row["colour"], -1)}


def colour_local(row: Row) -> Row:
    return {"colour": {"red": 0, "green": 1, "blue": 2}.get(row["colour"], -1)}


def one_hot(row: Row) -> Row:
    c = row["colour"]
    return {
        "red": int(c == "red"),
        "green": int(c == "green"),
        "other": int(c not in ("red", "green")),
    }


def extension(row: Row) -> Row:
    return {"kind": row["path"].rsplit(".", 1)[-1], "jpeg": row["path"].endswith((".jpg", ".jpeg"))}


def hashed(row: Row) -> Row:
    return {"bucket": zlib.crc32(row["user"].encode()) % 1000}


def squeezed(row: Row) -> Row:
    return {"text": SPACES.sub(" ", row["text"])}


def labelled(row: Row) -> Row:
    return {"label": f"{row['a']}-{row['n']}", "money": f"{row['x']:.2f} EUR"}


def joined(row: Row) -> Row:
    return {"name": row["first"] + " " + row["last"]}


def prefix(row: Row) -> Row:
    return {"prefix": row["text"][:3], "first": row["text"][0] if row["text"] else "?"}


def defaulted(row: Row) -> Row:
    return {"city": row["city"] or "unknown", "zip": row.get("zip", "00000")}


def domain(row: Row) -> Row:
    _, _, host = row["email"].partition("@")
    return {"domain": host, "ok": bool(host)}


def upper_share(row: Row) -> Row:
    text = row["text"]
    if not text:
        return {"share": 0.0}
    return {"share": sum(1 for c in text if c.isupper()) / len(text)}


def tokens(row: Row) -> Row:
    return {"tokens": row["text"].lower().split()}


def without_stop_words(row: Row) -> Row:
    return {"text": " ".join(w for w in row["text"].split() if w not in STOP)}


def date_parts(row: Row) -> Row:
    at = row["at"]
    return {"year": at.year, "month": at.month, "weekday": at.weekday(), "hour": at.hour}


def is_weekend(row: Row) -> bool:
    return bool(row["at"].weekday() >= 5)


def day_numbers(row: Row) -> Row:
    return {"month": row["day"].month, "quarter": (row["day"].month - 1) // 3 + 1}


def waiting(row: Row) -> Row:
    return {"seconds": (row["end"] - row["start"]).total_seconds()}


def padded(row: Row) -> Row:
    return {"code": str(row["n"]).zfill(6)}


def digits(row: Row) -> Row:
    return {"n": int(row["text"]) if row["text"].isdigit() else -1}


CASES = [
    Case(cleaned, {"text": S}),
    Case(without_commas, {"amount": S}),
    Case(sizes, {"text": S}),
    Case(is_bot, {"agent": S}, keeps=True),
    Case(long_enough, {"text": S}, keeps=True),
    Case(yes_no, {"answer": S}),
    Case(weekday_name, {"day": S}),
    Case(colour_code, {"colour": S}, why="COLOURS"),
    Case(colour_local, {"colour": S}, why="looks up"),
    Case(one_hot, {"colour": S}),
    Case(extension, {"path": S}),
    Case(hashed, {"user": S}),
    Case(squeezed, {"text": S}),
    Case(labelled, {"a": S, "n": I, "x": F}, why="formats"),
    Case(joined, {"first": S, "last": S}),
    Case(prefix, {"text": S}),
    Case(defaulted, {"city": S}),
    Case(domain, {"email": S}),
    Case(upper_share, {"text": S}, why="item by item"),
    Case(tokens, {"text": S}, why="Pieces"),
    Case(without_stop_words, {"text": S}, why="as many pieces"),
    Case(date_parts, {"at": T}, why="timestamp"),
    Case(is_weekend, {"at": T}, why="timestamp", keeps=True),
    Case(day_numbers, {"day": D}, why="date32"),
    Case(waiting, {"start": T, "end": T}, why="total_seconds"),
    Case(padded, {"n": I}),
    Case(digits, {"text": S}),
]
