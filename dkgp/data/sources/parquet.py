"""Parquet files, read by batches of rows; memory follows the size of a row group, not of the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.data.remote.storage import open_object
from dkgp.data.sources.base import (
    Block,
    Column,
    Source,
    block_rows,
    numbers,
    refused_as,
    require_bounded,
    require_whole,
    row_places,
    text_error,
)
from dkgp.data.sources.formats import FORMATS, Format
from dkgp.data.types import FloatArray
from dkgp.registry import Extra

# pandas stores an index without a name as a column of its own; it counts rows and is no feature.
_PANDAS_INDEX = "__index_level_"


class ParquetSource(Source):
    """One Parquet file; its columns by name.

    Raises `InputError` where the file is damaged.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        import pyarrow
        from pyarrow import parquet

        whole = f"'{self.url}' is not a whole Parquet file"
        with refused_as(whole), open_object(url) as file:
            opened = parquet.ParquetFile(file)
            require_bounded(len(opened.schema_arrow.names), 0, f"'{self.url}'")
            names = [str(name) for name in opened.schema_arrow.names]
            # A text that many rows share is then held once.
            self._texts = [field.name for field in opened.schema_arrow if _is_text(pyarrow, field.type)]
            self.total = int(opened.metadata.num_rows)
        self.columns = tuple(
            Column(name, "", index) for index, name in enumerate(names) if not name.startswith(_PANDAS_INDEX)
        )
        self.positional = self.columns

    def blocks(self, columns: Sequence[Column]) -> Iterator[Block]:
        """All the samples, of the chosen columns."""
        import pyarrow
        from pyarrow import parquet

        names = list(dict.fromkeys(column.name for column in columns))
        start = 0
        damaged = f"'{self.url}' is damaged"
        with refused_as(damaged), open_object(self._address) as file:
            # Without this it reads ahead through the whole file.
            opened = parquet.ParquetFile(file, pre_buffer=False, read_dictionary=self._texts)
            for batch in opened.iter_batches(batch_size=block_rows(len(names)), columns=names):
                place = row_places(self.url, start)
                values: FloatArray = np.empty((batch.num_rows, len(columns)))
                for position, column in enumerate(columns):
                    cells = batch.column(batch.schema.get_field_index(column.name))
                    if column.encode is not None:
                        values[:, position] = column.encode(_objects(pyarrow, cells), place)
                    else:
                        values[:, position] = _numeric(pyarrow, cells, column.name, place)
                start += batch.num_rows
                yield Block(values, place, start)


def _is_text(pyarrow: Any, kind: Any) -> bool:
    return kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.binary(), pyarrow.large_binary())


def _numeric(pyarrow: Any, values: Any, name: str, place: Callable[[int], str]) -> FloatArray:
    types = pyarrow.types
    if types.is_dictionary(values.type) and not _is_text(pyarrow, values.type.value_type):
        values = values.dictionary_decode()
    kind = values.type
    missing = np.asarray(values.is_null().to_numpy(zero_copy_only=False))
    if types.is_decimal(kind):
        # Arrow's cast of a decimal to a float is off by an ulp; that of its text rounds correctly.
        floats = np.array(values.cast(pyarrow.string()).cast(pyarrow.float64()).to_numpy(zero_copy_only=False))
        if kind.scale <= 0:
            require_whole(_objects(pyarrow, values), floats, name, place)
        return floats
    if missing.all():
        return np.full(len(values), np.nan)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        present = values.drop_null().to_numpy(zero_copy_only=False)
        if not missing.any():
            return numbers(present, name, place)
        rows = np.flatnonzero(~missing)
        floats = np.full(len(values), np.nan)
        floats[rows] = numbers(present, name, lambda row: place(int(rows[row])))
        return floats
    if types.is_temporal(kind):
        return numbers(_objects(pyarrow, values), name, place)
    row = int(np.argmin(missing))
    value = values[row].as_py()
    raise text_error(name, value.decode(errors="replace") if isinstance(value, bytes) else str(value), place(row))


def _objects(pyarrow: Any, values: Any) -> NDArray[Any]:
    """Values as Python objects; dates (UTC), durations and times of day as NumPy's."""
    kind = values.type
    if pyarrow.types.is_dictionary(kind):
        if not _is_text(pyarrow, kind.value_type):
            return _objects(pyarrow, values.dictionary_decode())
        rows = values.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        used, positions = np.unique(rows, return_inverse=True)
        entries = _objects(pyarrow, values.dictionary.take(pyarrow.array(used, mask=used < 0)))
        return entries[positions]
    if pyarrow.types.is_time(kind):
        values = values.cast(pyarrow.int64() if kind.bit_width == 64 else pyarrow.int32()).cast(pyarrow.int64())
        values = values.cast(pyarrow.duration(kind.unit))
    if pyarrow.types.is_temporal(kind):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    # Filled one by one: NumPy would make a matrix of rows that are lists.
    entries = values.to_pylist()
    objects = np.empty(len(entries), dtype=object)
    objects[:] = entries
    return objects


FORMATS.add(
    Format(
        "Parquet",
        ParquetSource,
        suffixes=(".parquet",),
        magics=(b"PAR1",),
        extra=Extra("parquet", package="pyarrow", module="pyarrow"),
    )
)
