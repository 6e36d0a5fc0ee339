"""Pipelines are rendered as trees of text here, for repr, explain and plan tests."""

from __future__ import annotations

from dml.expr.node import Node


def tree(root: Node) -> str:
    """Return the tree below ``root``, one operator per line, last first, side inputs indented."""
    lines: list[str] = []
    node: Node | None = root
    while node is not None:
        lines.append(f"{node.title()}  -> {node.schema}" if not lines else node.title())
        for other in node.inputs[1:]:
            lines += ["  " + line for line in tree(other).split("\n")]
        node = node.inputs[0] if node.inputs else None
    return "\n".join(lines)
