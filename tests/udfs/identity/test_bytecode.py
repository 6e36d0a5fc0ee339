"""Test that formatting does not change the fingerprint of code, and that meaning does."""

from __future__ import annotations

import dis
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from dml.udfs.identity.bytecode import (
    CONSTANTS,
    JUMPS,
    NAMES,
    SILENT,
    _numbered,
    code_name,
    program,
)
from dml.udfs.identity.references import Reference, references

# Pairs of spellings of one program: lines joined or split, docstrings, comments, parentheses.
SPELLINGS: dict[str, tuple[str, str]] = {
    "if on one line": (
        "if r: return 1\nreturn 2",
        "if r:\n    return 1\n\nreturn 2",
    ),
    "parentheses": (
        "return r + 1",
        "return (\n    r\n    + 1\n)",
    ),
    "docstring": (
        "return r or None",
        "'What it does.'\nreturn r or None",
    ),
    "docstring and None": (
        "if r: return None\nreturn 2",
        "'Doc.'\nif r: return None\nreturn 2",
    ),
    "comment": (
        "return r",
        "# why\nreturn r  # because",
    ),
    "pass": (
        "while True:\n    pass\n    if r: break",
        "while True:\n    if r:\n        break",
    ),
    "try on one line": (
        "try: a = 1\nexcept E: pass\nfor i in r: print(i)",
        "try:\n    a = 1\n\nexcept E:\n    pass\nfor i in r:\n    print(\n        i)",
    ),
    "conditions": (
        "if r and (r['a'] or r['b']): return 1\nelse: return 2",
        "if (\n    r\n    and (r['a']\n    or r['b'])\n):\n    return 1\nelse:\n    return 2",
    ),
    "comprehension": (
        "return [x for x in r if x]",
        "return [\n    x\n    for x in r\n    if x\n]",
    ),
    "nested comprehension": (
        "return [a for a in r if a and a > 2 for b in a if not b]",
        (
            "return [\n"
            "    a\n"
            "    for a in r\n"
            "    if a\n"
            "    and a > 2\n"
            "    for b in a\n"
            "    if not b\n"
            "]"
        ),
    ),
    "dict comprehension": (
        "return {k: v for k, v in r.items() if v}",
        "return {\n    k: v\n    for k, v in r.items()\n    if v\n}",
    ),
    "with": (
        "with r as q: return 1",
        "with r as q:\n    return 1",
    ),
    "conditional expression": (
        "return None if r else 2",
        "return (\n    None\n    if r\n    else 2\n)",
    ),
    "call chain": (
        "return r.a.b(1, k=2).c(3)",
        "return (\n    r\n    .a\n    .b(1,\n       k=2)\n    .c(3)\n)",
    ),
    "match": (
        "match r:\n    case 1: return 2\n    case [a, b]: return a\n    case _: return 3",
        (
            "match r:\n"
            "    case 1:\n"
            "        return 2\n"
            "    case [a, b]:\n"
            "        return a\n"
            "    case _:\n"
            "        return 3"
        ),
    ),
    "continue": (
        "for i in r:\n    if i and i > 2 or not r: continue\n    print(i)",
        (
            "for i in r:\n"
            "    if (\n"
            "        i and i > 2\n"
            "        or not r\n"
            "    ):\n"
            "        continue\n"
            "    print(i)"
        ),
    ),
    "while": (
        "while r and print(r): r += 1",
        "while (\n    r\n    and print(r)\n):\n    r += 1",
    ),
    "assert": (
        "assert r, 'no'",
        "assert (\n    r\n), 'no'",
    ),
    "f-string": (
        "return f'{r} {r:>3}'",
        "return (\n    f'{r} '\n    f'{r:>3}'\n)",
    ),
    "lambda inside": (
        "return lambda x: x + r",
        "return (\n    lambda x:\n    x + r\n)",
    ),
    "inner function": (
        "def g(x): return x + r\nreturn g",
        "def g(x):\n    '''Doc.'''\n    return x + r\n\nreturn g",
    ),
    "star arguments": (
        "return r(*r, **r)",
        "return r(\n    *r,\n    **r,\n)",
    ),
    "subscript": (
        "return r['a'][1:2]",
        "return r[\n    'a'\n][\n    1:2\n]",
    ),
    "dict display": (
        "return {'a': 1, **r}",
        "return {\n    'a': 1,\n    **r,\n}",
    ),
    "finally": (
        "try: return r\nfinally: print(1)",
        "try:\n    return r\nfinally:\n    print(1)",
    ),
    "else of for": (
        "for i in r:\n    if i: break\nelse: return 1",
        "for i in r:\n    if i:\n        break\nelse:\n    return 1",
    ),
    "local names": (
        "x = r\ny = x\nreturn y",
        "a = r\nb = a\nreturn b",
    ),
}


def code_of(body: str) -> types.CodeType:
    text = "def f(r):\n" + "".join(f"    {line}\n" for line in body.split("\n"))
    space: dict[str, Any] = {}
    exec(text, space)
    found = space["f"].__code__
    assert isinstance(found, types.CodeType)
    return found


@pytest.mark.parametrize("name", SPELLINGS)
def test_formatting_does_not_show(name: str) -> None:
    one, other = SPELLINGS[name]
    assert code_name(code_of(one)) == code_name(code_of(other))


def test_different_programs_differ() -> None:
    names = {code_name(code_of(one)) for one, _ in SPELLINGS.values()}
    assert len(names) == len(SPELLINGS)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("return 1", "return 1.0"),
        ("return 1", "return True"),
        ("return 0.0", "return -0.0"),
        ("return (1, 2)", "return (1, 2.0)"),
        ("return r if r else 1", "return 1 if r else r"),
        ("while r: r -= 1", "if r: r -= 1"),
        ("return locals()", "x = 1\nreturn locals()"),
    ],
)
def test_meaning_shows(one: str, other: str) -> None:
    assert code_name(code_of(one)) != code_name(code_of(other))


def test_names_of_locals_show_where_they_can_be_read() -> None:
    one, other = code_of("x = r\nreturn locals()"), code_of("y = r\nreturn locals()")
    assert code_name(one) != code_name(other)


def test_running_and_tracing_leave_the_name() -> None:
    space: dict[str, Any] = {}
    exec("def f(r):\n    t = 0\n    for i in range(r): t += i * 2\n    return t", space)
    before = code_name.__wrapped__(space["f"].__code__)
    for _ in range(200):
        space["f"](10)
    previous = sys.gettrace()
    sys.settrace(lambda *_: None)
    space["f"](3)
    sys.settrace(previous)
    assert code_name.__wrapped__(space["f"].__code__) == before


def test_jumps_lead_to_steps() -> None:
    steps, handlers = program(
        code_of("for i in r:\n    try: print(i)\n    except OSError: continue")
    )
    for step in steps:
        assert -1 <= step.target < len(steps)
    for begin, end, handler, _ in handlers:
        assert 0 <= begin < end <= len(steps)
        assert handler < len(steps)


def test_references_are_chains_through_inner_functions() -> None:
    code = code_of("import a.b as c\nreturn [np.random.rand() + K.x for _ in r], (lambda: q)")
    found = references(code)
    assert Reference("global", ("np", "random", "rand")) in found
    assert Reference("global", ("K", "x")) in found
    assert Reference("global", ("q",)) in found
    assert Reference("import", ("a.b",)) in found
    assert Reference("write", ("K",)) in references(code_of("global K\nK = 1"))


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from codes_of(inner)


@pytest.mark.parametrize("module", ["argparse", "asyncio.tasks", "dataclasses", "enum", "typing"])
def test_code_is_read_as_dis_reads_it(module: str) -> None:
    source = importlib.util.find_spec(module)
    assert source is not None
    assert source.loader is not None
    whole = source.loader.get_code(module)  # type: ignore[attr-defined]
    for code in codes_of(whole):
        steps, places = _numbered(code)
        for raw in dis.get_instructions(code):
            if raw.opname in SILENT or "_FAST_" in raw.opname:
                continue
            step = steps[places[raw.offset]]
            if raw.opcode in JUMPS:
                assert step.target == places[raw.argval]
            elif raw.opcode in NAMES or raw.opname.endswith("DEREF"):
                assert step.text == raw.argval
            else:
                assert step.name == raw.opname
                assert step.arg == (0 if raw.opcode in CONSTANTS else raw.arg or 0)
