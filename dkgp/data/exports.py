"""Tables written for other programs: CSV, Parquet, NetCDF. The suffix of the name decides.

A table is written beside its place and moved there when it is whole, so that a crash leaves the earlier file.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dkgp.data.remote.storage import is_local, normalise_url, replaced_file, translate_write_errors
from dkgp.data.types import Location
from dkgp.errors import InputError
from dkgp.registry import Extra

# Of files that a name may be meant for, though no table is written so: a store with such a name would be a slip.
_OTHER_SUFFIXES = (
    ".tsv",
    ".txt",
    ".json",
    ".xlsx",
    ".xls",
    ".ods",
    ".npy",
    ".npz",
    ".feather",
    ".arrow",
    ".pkl",
    ".h5",
)

# Consecutive rows: columns by name, numbers, truth values or text, all of one length.
TableBlock: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class TableFormat:
    """A file format of tables, and its suffix; `write` puts blocks into a new file."""

    suffix: str
    write: Callable[[Path, Iterable[TableBlock]], None]
    extra: Extra | None = None


def table_suffix(location: Location) -> str | None:
    """The suffix by which a name is a file's, of a table that can be written or of another; None of a store's name."""
    name = str(location).rstrip("/").lower()
    suffixes = (*(form.suffix for form in TABLE_FORMATS), *_OTHER_SUFFIXES)
    return next((suffix for suffix in suffixes if name.endswith(suffix)), None)


def require_table_format(location: Location) -> TableFormat:
    """The form of a table that can be written: `InputError` for another suffix, or a place that is not local.

    `MissingExtraError` where the form's package is not installed.
    """
    suffix = table_suffix(location)
    form = next((form for form in TABLE_FORMATS if form.suffix == suffix), None)
    if form is None:
        known = ", ".join(known.suffix for known in TABLE_FORMATS)
        raise InputError(f"'{location}' has no suffix of a table; expected a name that ends in one of: {known}.")
    if not is_local(location):
        raise InputError(f"'{location}' is no local file; write the table to a disk, and copy it from there.")
    if form.extra is not None:
        form.extra.require(f"Writing {form.suffix} files")
    return form


def write_table(location: Location, blocks: Iterable[TableBlock]) -> None:
    """Write a table, and replace a file that is there.

    CSV and Parquet take the memory of a block, NetCDF that of the table. All bits depend on the values alone.

    Raises `InputError`, `MissingExtraError`: as `require_table_format`; `StorageError`: the storage refused, and an
    earlier file is unchanged.
    """
    form = require_table_format(location)
    with (
        translate_write_errors(location),
        replaced_file(Path(normalise_url(location))) as temporary,
    ):
        form.write(temporary, blocks)


def _write_csv(path: Path, blocks: Iterable[TableBlock]) -> None:
    with path.open("wb") as file:
        _write_text(file, blocks)


def _write_gzipped_csv(path: Path, blocks: Iterable[TableBlock]) -> None:
    # Neither name nor time in the file: the same values make the same bytes.
    with path.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
        _write_text(file, blocks)


def _write_text(file: IO[bytes] | gzip.GzipFile, blocks: Iterable[TableBlock]) -> None:
    import pandas as pd

    with io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True) as text:
        for number, block in enumerate(blocks):
            # pandas writes the shortest digits that stand for a number's very bits.
            pd.DataFrame(dict(block)).to_csv(text, index=False, header=number == 0, lineterminator="\n")


def _write_parquet(path: Path, blocks: Iterable[TableBlock]) -> None:
    import pyarrow
    from pyarrow import parquet

    tables = (pyarrow.table({name: pyarrow.array(values) for name, values in block.items()}) for block in blocks)
    first = next(tables)
    with path.open("wb") as file, parquet.ParquetWriter(file, first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)


def _write_netcdf(path: Path, blocks: Iterable[TableBlock]) -> None:
    import xarray

    parts = list(blocks)
    variables: dict[str, Any] = {}
    for name in parts[0]:
        values = np.concatenate([part[name] for part in parts])
        # A slash would be a group within the file.
        variable = name.replace("/", "_")
        while variable in variables:
            variable += "_"
        attributes = {} if variable == name else {"long_name": name}
        variables[variable] = ("sample", values.astype(np.int8) if values.dtype == bool else values, attributes)
    xarray.Dataset(variables).to_netcdf(path, engine="h5netcdf")


TABLE_FORMATS = (
    TableFormat(".csv", _write_csv),
    TableFormat(".csv.gz", _write_gzipped_csv),
    TableFormat(".parquet", _write_parquet, Extra("parquet", "pyarrow", "pyarrow")),
    TableFormat(".nc", _write_netcdf, Extra("netcdf", "h5netcdf", "h5netcdf")),
)
