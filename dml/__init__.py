"""This file lists the public names of dml: sources, expressions, Dataset, errors."""

from dml import errors
from dml.dataset import Dataset
from dml.errors import DmlError
from dml.expr.column import Column, col, lit, maximum, minimum, random, stack, when
from dml.expr.standing import all_columns, columns_of, element, row_id
from dml.settings import AUTOTUNE, Settings
from dml.sources import (
    from_arrow,
    from_dict,
    from_items,
    from_numpy,
    range,
    read_arrow,
    read_binary_files,
    read_csv,
    read_ipc,
    read_json,
    read_parquet,
    read_text,
    scan_csv,
    scan_ipc,
    scan_ndjson,
    scan_parquet,
)
from dml.verbs.functions import apply, udf

__version__ = "0.1.0"

__all__ = [
    "AUTOTUNE",
    "Column",
    "Dataset",
    "DmlError",
    "Settings",
    "all_columns",
    "apply",
    "col",
    "columns_of",
    "element",
    "errors",
    "from_arrow",
    "from_dict",
    "from_items",
    "from_numpy",
    "lit",
    "maximum",
    "minimum",
    "random",
    "range",
    "read_arrow",
    "read_binary_files",
    "read_csv",
    "read_ipc",
    "read_json",
    "read_parquet",
    "read_text",
    "row_id",
    "scan_csv",
    "scan_ipc",
    "scan_ndjson",
    "scan_parquet",
    "stack",
    "udf",
    "when",
]
