"""A pipeline that fails: what the error says, and how to look at it with a debugger.

With ``executor="sync"`` everything runs in your own thread, so ``pdb.set_trace()`` or a breakpoint
in ``parse`` stops there, with the stack of your own program above it.
"""

from __future__ import annotations

import threading
from typing import Any

import dml
from dml.errors import UDFError

ORDERS = [{"id": i, "price": f"{i * 3}.50"} for i in range(100)]
ORDERS[42]["price"] = "12,50"
THREADS: set[str] = set()


def parse(row: dict[str, Any]) -> dict[str, Any]:
    THREADS.add(threading.current_thread().name)
    return {"id": row["id"], "price": float(row["price"])}


def careful(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "price": float(row["price"].replace(",", "."))}


def main() -> None:
    ds = dml.from_items(ORDERS).map(parse).with_options(executor="sync")
    rows = []
    try:
        rows += ds
    except UDFError as error:
        print(f"{error}\n")
        print("the row:", dml.from_items(ORDERS).skip(error.row or 0).take_rows(1)[0])
        print("raised: ", repr(error.__cause__))
    assert {threading.current_thread().name} == THREADS
    print("the 42 rows before it can be had:", len(ds.take_rows(42)))

    good = dml.from_items(ORDERS).map(careful)
    print("the good ones now:", good.take_rows(43)[-1])
    print(f"\nwhat runs:\n{good.explain('physical')}")


if __name__ == "__main__":
    main()
