"""This file prints a step table as the source of a scalar Python function that numba compiles to the same bits.

Every operation is written with its NumPy type, conditions are expressions rather than branches, and no operation is one
that a compiler without ``fastmath`` may contract or reorder; so LLVM may vectorise a loop around the function.
"""

from __future__ import annotations

from dml.kernels.steps_language import Literal, MathStep, StepTable

_TYPES = {"f4": "np.float32", "f8": "np.float64", "u4": "np.uint32", "u8": "np.uint64", "b1": "bool"}
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>"}
_PREFIX = {"neg": "-", "abs": "abs"}
_COMPARE = {"lt": "<", "le": "<=", "eq": "=="}


def numba_source(table: StepTable, name: str) -> str:
    """Return the text of ``def name(x)``, which needs ``np`` (NumPy) and nothing else in its namespace.

    Compile it with ``error_model="numpy"`` and without ``fastmath``. Lookup tables are module-level arrays called
    ``<name>_table<i>``, defined ahead of the function. Both arms of every condition are computed.
    """
    head, body = [], []
    for index, step in enumerate(table.steps):
        if isinstance(step.literal, tuple):
            words = ", ".join(map(str, step.literal))
            head.append(f"{name}_table{index} = np.array(({words}), dtype=np.uint64)")
        elif step.op != "input":
            body.append(f"    r{index} = {_expression(table, step, name)}")
    lines = [*head, f"def {name}(r0):", *body, f"    return r{len(table.steps) - 1}", ""]
    return "\n".join(lines)


def usual_source(table: StepTable, name: str) -> str:
    """Return the text of ``def name_is_usual(x)`` and ``def name_usual(x)``.

    Where the first is true, the second has the bits of the full function and leaves the rare arms out (for sin and cos
    the reduction of huge arguments). A loop may test a whole tile with the first and pick one of two loops.
    """
    raise NotImplementedError


def _expression(table: StepTable, step: MathStep, name: str) -> str:
    """Return the right-hand side of one step."""
    names = [f"r{arg}" for arg in step.args]
    kind = _TYPES[step.code]
    if step.op in _INFIX:
        return f"{kind}({names[0]} {_INFIX[step.op]} {names[1]})"
    if step.op in _COMPARE:
        return f"{names[0]} {_COMPARE[step.op]} {names[1]}"
    if step.op in ("select", "patch"):
        return f"{names[1]} if {names[0]} else {names[2]}"
    if step.op == "lookup":
        return f"{name}_table{step.args[1]}[{names[0]}]"
    if step.op == "const":
        return _literal(step.literal, kind)
    if step.op in ("bits", "float"):
        # numba allows a view only of what it sees made by a NumPy type.
        return f"{_TYPES[table.steps[step.args[0]].code]}({names[0]}).view({kind})"
    return f"{_PREFIX.get(step.op, kind)}({names[0]})"


def _literal(literal: Literal, kind: str) -> str:
    """Return a literal of the given NumPy type, exactly."""
    text = repr(literal)
    return f"{kind}({text.replace('inf', 'np.inf').replace('nan', 'np.nan')})"
