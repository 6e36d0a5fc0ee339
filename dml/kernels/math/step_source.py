"""A step table is printed as scalar Python source that numba compiles to the same bits.

Every operation is written with its NumPy type, conditions are expressions rather than branches, and
no operation is one that a compiler without ``fastmath`` may contract or reorder; so LLVM may
vectorise a loop around the functions.
"""

from __future__ import annotations

from dml.kernels.math.step_language import MathStep, StepTable

_TYPES = {
    "f4": "np.float32",
    "f8": "np.float64",
    "u4": "np.uint32",
    "u8": "np.uint64",
    "b1": "bool",
}
_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shl": "<<",
    "shr": ">>",
}
_COMPARE = {"lt": "<", "le": "<=", "eq": "=="}
_PREFIX = {"neg": "-", "abs": "abs"}


def numba_source(table: StepTable, name: str) -> str:
    """Return the text of ``def name(x)``, which needs ``np`` (NumPy) and nothing else.

    Compile it with ``error_model="numpy"`` and without ``fastmath``. Lookup tables are module-level
    arrays called ``<name>_table<i>``, defined ahead of the function. Both arms of every condition
    are computed.
    """
    body = [
        f"    r{index} = {_expression(table, step, name)}"
        for index, step in enumerate(table.steps)
        if step.op != "input" and not isinstance(step.literal, tuple)
    ]
    result = f"    return r{len(table.steps) - 1}"
    return "\n".join([*_tables(table, name), f"def {name}(r0):", *body, result, ""])


def _tables(table: StepTable, name: str) -> list[str]:
    """Return the definitions of the lookup tables."""
    return [
        f"{name}_table{index} = np.array(({', '.join(map(str, step.literal))}), dtype=np.uint64)"
        for index, step in enumerate(table.steps)
        if isinstance(step.literal, tuple)
    ]


def _expression(table: StepTable, step: MathStep, prefix: str) -> str:
    """Return the right-hand side of one step."""
    kind = _TYPES[step.code]
    names = [f"r{arg}" for arg in step.args]
    if step.op == "const":
        return f"{kind}({repr(step.literal).replace('inf', 'np.inf').replace('nan', 'np.nan')})"
    if step.op in _INFIX:
        # The cast undoes numba's promotion of small integers.
        return f"{kind}({names[0]} {_INFIX[step.op]} {names[1]})"
    if step.op in _COMPARE:
        return f"{names[0]} {_COMPARE[step.op]} {names[1]}"
    if step.op in ("select", "patch"):
        return f"{names[1]} if {names[0]} else {names[2]}"
    if step.op == "lookup":
        return f"{prefix}_table{step.args[1]}[{names[0]}]"
    if step.op in ("bits", "float"):
        # numba allows a view only of a value that a NumPy type was called to make.
        return f"{_TYPES[table.steps[step.args[0]].code]}({names[0]}).view({kind})"
    return f"{_PREFIX.get(step.op, kind)}({names[0]})"
