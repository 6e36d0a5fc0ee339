"""The public names of dml are listed here: sources, expressions, Dataset, errors."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from dml import errors, fleet
from dml.api.catalog import Catalog, why_miss, worth_keeping
from dml.api.dataset import Dataset
from dml.api.sources.combination import (
    choose_from_datasets,
    collect_all,
    concat,
    explain_all,
    interleave,
    interleave_datasets,
    mix,
    sample_from_datasets,
    zip,
)
from dml.api.sources.files import (
    read_arrow,
    read_audio,
    read_binary_files,
    read_csv,
    read_images,
    read_ipc,
    read_json,
    read_numpy,
    read_orc,
    read_parquet,
    read_text,
    read_tfrecords,
    read_videos,
    read_webdataset,
    scan_csv,
    scan_ipc,
    scan_ndjson,
    scan_parquet,
)
from dml.api.sources.objects import (
    from_arrow,
    from_dask,
    from_dict,
    from_generator,
    from_huggingface,
    from_items,
    from_iterable,
    from_list,
    from_numpy,
    from_pandas,
    from_polars,
    from_tensor_slices,
    from_torch,
    range,
    read_datasource,
    read_delta,
    read_iceberg,
    read_lance,
    read_sql,
    read_zarr,
)
from dml.api.verbs.functions import apply, udf
from dml.base.user_line import missing
from dml.errors import DmlError
from dml.expr.columns.column import Column, col, lit, maximum, minimum, random, stack, when
from dml.expr.columns.column import rows as len  # noqa: A004 - as Polars has it, and only in this module
from dml.expr.columns.placeholder_columns import all_columns, columns_of, element, row_id
from dml.plugins import DataSink, DataSource, SourcePart
from dml.settings import AUTOTUNE, Autoscale, Settings

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dml import vision as vision  # loaded when it is first asked for
else:  # a checker would take any name for a known one

    def __getattr__(name: str) -> object:
        if name == "vision":
            return import_module("dml.vision")
        return missing(sys.modules[__name__], name, "dml")


__all__ = [
    "AUTOTUNE",
    "Autoscale",
    "Catalog",
    "Column",
    "DataSink",
    "DataSource",
    "Dataset",
    "DmlError",
    "Settings",
    "SourcePart",
    "all_columns",
    "apply",
    "choose_from_datasets",
    "col",
    "collect_all",
    "columns_of",
    "concat",
    "element",
    "errors",
    "explain_all",
    "fleet",
    "from_arrow",
    "from_dask",
    "from_dict",
    "from_generator",
    "from_huggingface",
    "from_items",
    "from_iterable",
    "from_list",
    "from_numpy",
    "from_pandas",
    "from_polars",
    "from_tensor_slices",
    "from_torch",
    "interleave",
    "interleave_datasets",
    "len",
    "lit",
    "maximum",
    "minimum",
    "mix",
    "random",
    "range",
    "read_arrow",
    "read_audio",
    "read_binary_files",
    "read_csv",
    "read_datasource",
    "read_delta",
    "read_iceberg",
    "read_images",
    "read_ipc",
    "read_json",
    "read_lance",
    "read_numpy",
    "read_orc",
    "read_parquet",
    "read_sql",
    "read_text",
    "read_tfrecords",
    "read_videos",
    "read_webdataset",
    "read_zarr",
    "row_id",
    "sample_from_datasets",
    "scan_csv",
    "scan_ipc",
    "scan_ndjson",
    "scan_parquet",
    "stack",
    "udf",
    "when",
    "why_miss",
    "worth_keeping",
    "zip",
]
