"""This file renders pipelines: one tree of text for repr, explain and plan tests."""

from __future__ import annotations

from dml.expr.node import Node


def as_html(text: str) -> str:
    """Text as a notebook shows it: as it is, with nothing in it taken for markup."""
    return f"<pre>{text.replace('&', '&amp;').replace('<', '&lt;')}</pre>"


class Page(str):
    """A text for people: where Python or a notebook shows it, it stands as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return as_html(self)


def tree(root: Node) -> str:
    """One step per line, what comes out first, inputs below; the main input is not indented."""
    lines: list[str] = []
    node: Node | None = root
    while node is not None:
        lines.append(f"{node.title()}  -> {node.schema}" if not lines else node.title())
        for other in node.inputs[1:]:
            lines += ["  " + line for line in tree(other).split("\n")]
        node = node.inputs[0] if node.inputs else None
    return "\n".join(lines)
