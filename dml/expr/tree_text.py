"""A pipeline is rendered as a tree of text here, for repr, explain and plan tests."""

from __future__ import annotations

from dml.expr.node import Node


def as_html(text: str) -> str:
    """The text as HTML for notebooks, unchanged and with markup escaped."""
    return f"<pre>{text.replace('&', '&amp;').replace('<', '&lt;')}</pre>"


class Page(str):
    """A text whose repr, in Python and in notebooks, is the text itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return as_html(self)


def tree(root: Node) -> str:
    """The tree below ``root``, one step per line, output first; side inputs are indented."""
    lines: list[str] = []
    node: Node | None = root
    while node is not None:
        lines.append(f"{node.title()}  -> {node.schema}" if not lines else node.title())
        for other in node.inputs[1:]:
            lines += ["  " + line for line in tree(other).split("\n")]
        node = node.inputs[0] if node.inputs else None
    return "\n".join(lines)
