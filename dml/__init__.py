"""This file lists the public names of dml: sources, expressions, Dataset, errors."""

from dml import errors
from dml.dataset import Dataset
from dml.errors import DmlError
from dml.expr.column import Column, col, lit, maximum, minimum, random, stack, when
from dml.plugins import DataSink, DataSource, SourcePart
from dml.settings import AUTOTUNE, Settings
from dml.sources import (
    from_arrow,
    from_dask,
    from_dict,
    from_generator,
    from_huggingface,
    from_items,
    from_iterable,
    from_numpy,
    from_pandas,
    from_polars,
    from_torch,
    range,
    read_arrow,
    read_binary_files,
    read_csv,
    read_datasource,
    read_ipc,
    read_json,
    read_parquet,
    read_text,
    scan_csv,
    scan_ipc,
    scan_ndjson,
    scan_parquet,
)

__version__ = "0.1.0"

__all__ = [
    "AUTOTUNE",
    "Column",
    "DataSink",
    "DataSource",
    "Dataset",
    "DmlError",
    "Settings",
    "SourcePart",
    "col",
    "errors",
    "from_arrow",
    "from_dask",
    "from_dict",
    "from_generator",
    "from_huggingface",
    "from_items",
    "from_iterable",
    "from_numpy",
    "from_pandas",
    "from_polars",
    "from_torch",
    "lit",
    "maximum",
    "minimum",
    "random",
    "range",
    "read_arrow",
    "read_binary_files",
    "read_csv",
    "read_datasource",
    "read_ipc",
    "read_json",
    "read_parquet",
    "read_text",
    "scan_csv",
    "scan_ipc",
    "scan_ndjson",
    "scan_parquet",
    "stack",
    "when",
]
