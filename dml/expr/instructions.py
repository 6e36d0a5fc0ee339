"""This file lists the instructions that a pure function may consist of, and names the others.

An instruction that is not in a list is refused, so a newer Python can only make fewer functions
provable.
"""

from __future__ import annotations

ALLOWED = {
    *("RESUME", "CACHE", "PUSH_NULL", "POP_TOP", "COPY", "SWAP", "PRECALL", "COPY_FREE_VARS"),
    *("LOAD_FAST", "LOAD_FAST_CHECK", "STORE_FAST", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"),
    *("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_ATTR", "LOAD_METHOD"),
    *("BINARY_OP", "BINARY_SUBSCR", "BINARY_SLICE", "COMPARE_OP", "CONTAINS_OP", "IS_OP"),
    *("UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_NOT", "UNARY_INVERT", "TO_BOOL"),
    *("BUILD_MAP", "BUILD_CONST_KEY_MAP", "BUILD_TUPLE", "BUILD_LIST", "BUILD_SLICE"),
    *("DICT_UPDATE", "DICT_MERGE", "LIST_EXTEND", "LIST_APPEND"),
    *("BUILD_STRING", "FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE"),
    *("UNPACK_SEQUENCE", "UNPACK_EX", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "KW_NAMES"),
    *("LIST_TO_TUPLE", "MAP_ADD"),
    *("JUMP", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE"),
    *("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP", "LOAD_ASSERTION_ERROR", "RAISE_VARARGS"),
}
# Also allowed where containers that the function is given, or made, may be changed: loops, ``try``,
# comprehensions, stores into containers. All that it can reach is its own, or plain.
EDITING = {
    *(
        "GET_ITER",
        "FOR_ITER",
        "END_FOR",
        "POP_ITER",
        "STORE_SUBSCR",
        "DELETE_SUBSCR",
        "DELETE_FAST",
    ),
    *("MAKE_FUNCTION", "MAKE_CELL", "LOAD_CLOSURE", "STORE_DEREF", "LOAD_FAST_AND_CLEAR"),
    *("RETURN_GENERATOR", "YIELD_VALUE", "PUSH_EXC_INFO", "CHECK_EXC_MATCH", "POP_EXCEPT"),
    *("RERAISE", "SET_FUNCTION_ATTRIBUTE"),
}
COMPREHENSIONS = {"<listcomp>", "<dictcomp>", "<genexpr>"}
INTRINSICS = {
    3: "the end of a generator",
    5: "unary +",
    6: "a list as a tuple",
}  # CALL_INTRINSIC_1: the harmless ones
SETS = {"BUILD_SET", "SET_ADD", "SET_UPDATE"}  # allowed directly before CONTAINS_OP
ORDERLESS = "it uses a set for more than `in`: the order of its items differs between processes"
# What a refused instruction looks like to the person who wrote it.
SEEN_AS = {
    "FOR_ITER": "it has a loop",
    "GET_ITER": "it has a loop",
    "END_FOR": "it has a loop",
    "STORE_SUBSCR": "it changes a container in place",
    "DELETE_SUBSCR": "it changes a container in place",
    "STORE_SLICE": "it changes a container in place",
    "STORE_ATTR": "it sets an attribute",
    "DELETE_ATTR": "it deletes an attribute",
    "STORE_GLOBAL": "it changes a global variable",
    "DELETE_GLOBAL": "it changes a global variable",
    "STORE_DEREF": "it changes a variable of an enclosing function",
    "IMPORT_NAME": "it imports a module",
    "MAKE_FUNCTION": "it defines a function inside (a lambda or a comprehension)",
    "MAKE_CELL": "it shares a variable with a function inside",
    "YIELD_VALUE": "it is a generator",
    "RETURN_GENERATOR": "it is a generator",
    "GET_AWAITABLE": "it awaits something",
    "LOAD_BUILD_CLASS": "it defines a class inside",
    "PUSH_EXC_INFO": "it has try or with",
    "CHECK_EXC_MATCH": "it has try or with",
    "BEFORE_WITH": "it has try or with",
    "PRINT_EXPR": "it prints",
}
