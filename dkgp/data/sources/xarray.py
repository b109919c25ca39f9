"""NetCDF files and Zarr groups: variables over a common dimension as columns, a matrix of features, or grids.

HDF5 files (NetCDF-4) are checked object by object before a value is read. Such a file may name other files: raw data of
a dataset, sources of a virtual dataset, targets of external links. The HDF5 library opens those by itself, so that no
limit on folders holds there. A file with such a name is refused.
"""

from __future__ import annotations

import base64
import math
import struct
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dkgp.data.remote.storage import is_local, open_object, shown
from dkgp.data.sources.base import (
    Block,
    Column,
    Source,
    block_rows,
    matrix_of,
    numbers,
    refused_as,
    require_bounded,
    row_places,
)
from dkgp.data.sources.formats import FORMATS, Format
from dkgp.data.stores.dataset import DATASET_KIND, open_dataset
from dkgp.data.stores.manifest import recognise
from dkgp.data.types import MOST_CHUNK_BYTES, MOST_DOCUMENT_BYTES, FloatArray, quoted
from dkgp.errors import InputError, StoreError
from dkgp.registry import Extra, LaterModule, Option

if TYPE_CHECKING:
    import xarray as xr
    import zarr

    from dkgp.data.remote import zarr_store
else:
    xr, zarr, zarr_store = map(LaterModule, ("xarray", "zarr", "dkgp.data.remote.zarr_store"))

_INPUTS = "X"
# All chunks of an array are counted when it is opened, which takes a second for a million.
_MOST_CHUNKS = 10_000_000
# Values of NetCDF for entries that nothing was written to, by kind and bytes. Those of one or two bytes may be data.
_NETCDF_FILLS = {
    "i4": -2147483647,
    "u4": 4294967295,
    "i8": -9223372036854775806,
    "u8": 18446744073709551614,
    "f4": 9.9692099683868690e36,
    "f8": 9.9692099683868690e36,
}
# Attributes beside `_FillValue` and units of time that change stored numbers.
_CHANGES = frozenset(
    ("missing_value", "scale_factor", "add_offset", "_Unsigned", "dtype", "valid_min", "valid_max", "valid_range")
)
# Chunks that are read by one call: a library takes up to 7 KB for each.
_MOST_CHUNKS_AT_ONCE = 4096
# Blocks of a grid are whole chunks up to so many times the usual length.
_MOST_CHUNK_BLOCKS = 16
# Names, axes and units by which a dimension is known as one of space (CF conventions).
_SPACE = frozenset(
    ("lat", "latitude", "degrees_north", "degree_north", "lon", "longitude", "degrees_east", "degree_east", "x", "y")
)


class _VariablesSource(Source):
    """Named variables that are sliced by rows, as NetCDF and Zarr have them."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._chunk_rows = 1
        self._widths: dict[str, int] = {}
        self._row_bytes: dict[str, int] = {}

    def _measure(self, arrays: Mapping[str, Any]) -> None:
        """Take the sizes of the arrays that become columns; raise `InputError` where they are too large."""
        widths = {name: array.shape[1] if array.ndim == 2 else 1 for name, array in arrays.items()}
        self._row_bytes = {name: width * arrays[name].dtype.itemsize for name, width in widths.items()}
        require_bounded(sum(widths.values()), sum(self._row_bytes.values()), f"'{self.url}'")

    def _describe(
        self,
        shapes: dict[str, tuple[int, ...]],
        total: int,
        feature_names: list[str] | None = None,
        left_out: frozenset[str] = frozenset(),
    ) -> None:
        """Name the columns of the variables of length `total`, given the shapes of all that have it."""
        self.total = total
        matrices = [name for name, shape in shapes.items() if len(shape) == 2]
        inputs = _INPUTS if _INPUTS in matrices else matrices[0] if len(matrices) == 1 else None
        for name, shape in shapes.items():
            if len(shape) == 1:
                labels = [name]
            elif name == inputs:
                labels = feature_names or [f"x{index}" for index in range(shape[1])]
            else:
                labels = [f"{name}_{index}" for index in range(shape[1])]
            self.groups[name] = tuple(Column(label, name, index) for index, label in enumerate(labels))
            self._widths[name] = len(labels)
        self.columns = tuple(column for group in self.groups.values() for column in group)
        if inputs is not None:
            self.positional = self.groups[inputs]
        else:
            self.positional = tuple(column for column in self.columns if column.array not in left_out)

    def _slices(self, read: Callable[[str, int, int], NDArray[Any]], columns: Sequence[Column]) -> Iterator[Block]:
        """Blocks of the chosen columns; `read` returns rows of an array, from start to stop."""
        needed = list(dict.fromkeys(column.array for column in columns))
        row_bytes = sum(self._row_bytes.get(name, 0) for name in needed)
        rows = block_rows(sum(self._widths[name] for name in needed), self._chunk_rows, row_bytes)
        for start in range(0, self.total, rows):
            stop = min(start + rows, self.total)
            place = row_places(self.url, start)
            # A vector has one column.
            parts = {name: self._read(read, name, start, stop).reshape(stop - start, -1) for name in needed}
            yield Block(matrix_of(columns, parts, place), place, stop)

    def _read(self, read: Callable[[str, int, int], NDArray[Any]], name: str, start: int, stop: int) -> NDArray[Any]:
        of_array = f" of the array '{name}'" if name else ""
        with refused_as(f"Rows {start} to {stop - 1}{of_array} of '{self.url}' cannot be read"):
            return read(name, start, stop)


class XarraySource(_VariablesSource):
    """A NetCDF file, or a Zarr group with dimension names.

    The samples run along one dimension: that of a matrix `X` (or of the only matrix), or else the one that most vectors
    share. Coordinates along it count as columns, except the dimension's own. Where `stack` is set, each point of a grid
    is a sample, and the grid's coordinates are columns. Scale factors, fill values and dates are decoded.

    Raises `InputError` where the file is damaged, has no such dimension, or holds a grid that is not to be stacked.
    """

    def __init__(self, url: str, engine: str, stack: bool = False) -> None:
        super().__init__(url)
        self._engine = engine
        self._grid: tuple[str, ...] = ()
        with self._opened() as raw:
            with refused_as(f"The attributes of the arrays of '{self.url}' cannot be used"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # The structure only: dates are decoded block by block.
                dataset = _structure(raw)
            if stack:
                self._describe_grid(dataset)
                return
            dimension = _sample_dimension(dataset, url)
            variables = {
                str(name): variable
                for name, variable in dataset.variables.items()
                if variable.dims[:1] == (dimension,) and variable.ndim in (1, 2)
            }
            self._measure(variables)
            self.left_out = {
                str(name): f"has the dimensions {variable.dims}; the samples run along '{dimension}'"
                for name, variable in dataset.variables.items()
                if str(name) not in variables
            }
            self.warnings += [
                f"'{name}' of '{self.url}' {reason}; it is no column."
                for name, reason in self.left_out.items()
                if name in dataset.data_vars and dataset[name].ndim > 1
            ]
            if engine == "zarr":
                self._chunk_rows = max(
                    (int(v.encoding.get("chunks", (1,))[0]) for v in variables.values() if v.encoding.get("chunks")),
                    default=1,
                )
            self._describe(
                {name: tuple(variable.shape) for name, variable in variables.items()},
                int(dataset.sizes[dimension]),
                _feature_labels(dataset, variables),
                frozenset([str(dimension)]),
            )

    def blocks(self, columns: Sequence[Column]) -> Iterator[Block]:
        """All the samples, of the chosen columns."""
        with self._opened() as raw:
            variables = {str(name): variable for name, variable in raw.variables.items()}
            if self._grid:
                yield from self._stacked(variables, raw.sizes, columns)
            else:
                yield from self._slices(
                    lambda name, start, stop: _decoded(_rows(variables[name], start, stop)), columns
                )

    def _opened(self) -> _OpenedDataset:
        return _OpenedDataset(self._address, self._engine)

    def _describe_grid(self, dataset: xr.Dataset) -> None:
        """Name the columns of a grid: its dimensions' coordinates, then all variables that lie on it."""
        most = max(dataset.variables.values(), key=lambda variable: (variable.ndim, variable.size), default=None)
        if most is None or most.ndim < 2:
            raise InputError(f"'{self.url}' has no variable of two or more dimensions; leave out `stack`.")
        self._grid = tuple(map(str, most.dims))
        self.total = int(most.size)
        names = [*self._grid, *(str(name) for name in dataset.variables if str(name) not in self._grid)]
        for name in names:
            dimensions = dataset.variables[name].dims if name in dataset.variables else (name,)
            if dimensions and set(dimensions) <= set(self._grid):
                self.groups[name] = (Column(name, name, 0),)
            else:
                self.left_out = {**self.left_out, name: f"has the dimensions {dimensions}, the grid {self._grid}"}
        self.columns = self.positional = tuple(column for group in self.groups.values() for column in group)
        value_bytes = [dataset.variables[name].dtype.itemsize for name in self.groups if name in dataset.variables]
        require_bounded(len(self.columns), sum(value_bytes), f"'{self.url}'")

    def _stacked(
        self, variables: Mapping[str, xr.Variable], sizes: Mapping[Hashable, int], columns: Sequence[Column]
    ) -> Iterator[Block]:
        """Blocks of consecutive grid points, the last dimension fastest."""
        shape = [sizes[dimension] for dimension in self._grid]
        most, start = block_rows(len(columns)), 0
        needed = list(dict.fromkeys(column.array for column in columns))
        # The dimensions after `split` lie in a block as a whole, those before it by one index each.
        split = next(axis for axis in range(len(shape)) if math.prod(shape[axis + 1 :]) <= most)
        inner = max(math.prod(shape[split + 1 :]), 1)
        step = max(most // inner, 1)
        chunk = max(
            (_chunk_length(variables[name], self._grid[split]) for name in needed if name in variables), default=1
        )
        if chunk * inner <= _MOST_CHUNK_BLOCKS * most:  # a chunk that several blocks share is read by each of them
            step = max(step // chunk, 1) * chunk
        for outer in np.ndindex(*shape[:split]):
            for first in range(0, shape[split], step):
                spans = [slice(index, index + 1) for index in outer] + [slice(first, min(first + step, shape[split]))]
                spans += [slice(0, size) for size in shape[split + 1 :]]
                place = row_places(self.url, start)
                parts = {name: self._grid_values(variables, name, spans) for name in needed}
                start += len(parts[needed[0]])
                yield Block(matrix_of(columns, parts, place), place, start)

    def _grid_values(self, variables: Mapping[str, xr.Variable], name: str, spans: Sequence[slice]) -> NDArray[Any]:
        """Values (points, 1) of a variable at the points of a part of the grid."""
        lengths = [span.stop - span.start for span in spans]
        with refused_as(f"The array '{name}' of '{self.url}' cannot be read"):
            if name not in variables:  # a dimension without coordinates: the index along it
                axis = self._grid.index(name)
                variable = xr.Variable((name,), np.arange(spans[axis].start, spans[axis].stop))
            else:
                on_grid = [dimension for dimension in variables[name].dims if dimension in self._grid]
                part: dict[Hashable, slice] = {name: spans[self._grid.index(str(name))] for name in on_grid}
                # One of characters has a dimension more.
                variable = xr.Variable(on_grid, _decoded(_part(variables[name], part)))
            axes = [variable.dims.index(dimension) for dimension in self._grid if dimension in variable.dims]
            shape = [
                size if dimension in variable.dims else 1 for dimension, size in zip(self._grid, lengths, strict=True)
            ]
            return np.broadcast_to(variable.values.transpose(axes).reshape(shape), lengths).reshape(-1, 1)


class _OpenedDataset:
    """An xarray dataset, not decoded, and the file beneath it, closed together."""

    def __init__(self, url: str, engine: str) -> None:
        self._dataset: xr.Dataset
        unreadable = f"'{shown(url)}' cannot be opened"
        with refused_as(unreadable), warnings.catch_warnings(), ExitStack() as stack:
            warnings.simplefilter("ignore")
            if engine == "zarr":
                group = _open_zarr(url)
                arrays = _arrays_of(group, url)
                # Where xarray does not take fill values for missing ones, it refuses other writers' `_FillValue`.
                store = xr.backends.ZarrStore(group, mode="r", use_zarr_fill_value_as_mask=True)
                dataset = _undecoded(store, "store")
                # A folder lists its arrays in the order of the disk that it lies on.
                self._dataset = dataset[sorted(dataset.variables, key=str)]
                for name, variable in self._dataset.variables.items():
                    variable.attrs = _attributes(arrays[str(name)], named=True)
            else:
                if engine == "h5netcdf":
                    self._dataset = _undecoded(_netcdf_4_store(stack.enter_context(CheckedFile(url))), "store")
                else:
                    self._dataset = _undecoded(reopened(stack.enter_context(open_object(url)), url), engine)
                for variable in self._dataset.variables.values():
                    default = _NETCDF_FILLS.get(variable.dtype.kind + str(variable.dtype.itemsize))
                    if default is not None and "_FillValue" not in variable.attrs:
                        variable.attrs["_FillValue"] = variable.dtype.type(default)
            self._files = stack.pop_all()

    def __enter__(self) -> xr.Dataset:
        return self._dataset

    def __exit__(self, *_: object) -> None:
        self._dataset.close()
        self._files.close()


def _undecoded(target: Any, engine: str) -> xr.Dataset:
    """Open a dataset without decoding, and without indexes: an index holds all values of a coordinate in memory."""
    return xr.open_dataset(target, engine=engine, decode_cf=False, create_default_indexes=False)


def _netcdf_4_store(file: CheckedFile) -> xr.backends.H5NetCDFStore:
    import h5netcdf

    return xr.backends.H5NetCDFStore(h5netcdf.File(file.h5, "r", decode_vlen_strings=True, phony_dims="access"))


def _structure(raw: xr.Dataset) -> xr.Dataset:
    """Return a dataset with its coordinates known and all but dates decoded, without indexes."""
    variables, attributes, names = xr.conventions.decode_cf_variables(
        raw.variables, raw.attrs, decode_times=False, decode_timedelta=False
    )
    coordinates = {name for name, variable in variables.items() if name in names or variable.dims == (name,)}
    return xr.Dataset(
        {name: variable for name, variable in variables.items() if name not in coordinates},
        xr.Coordinates({name: variables[name] for name in variables if name in coordinates}, indexes={}),
        attributes,
    )


class ZarrSource(_VariablesSource):
    """A Zarr group (v2 or v3) without dimension names, or a single Zarr array.

    Raises `InputError` where there is no vector or matrix, or where the lengths leave no choice.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        arrays = self._arrays()
        shapes = {name: tuple(array.shape) for name, array in arrays.items() if array.ndim in (1, 2)}
        if not shapes:
            raise InputError(f"'{url}' holds no vector or matrix; expected arrays X and y, or one vector a column.")
        lengths = [shape[0] for shape in shapes.values()]
        total = shapes[_INPUTS][0] if _INPUTS in shapes else max(lengths, key=lengths.count)
        shapes = {name: shape for name, shape in shapes.items() if shape[0] == total}
        self.left_out = {
            name: f"has the shape {array.shape}; there are {total} samples"
            for name, array in arrays.items()
            if name not in shapes
        }
        self._chunk_rows = max(arrays[name].chunks[0] for name in shapes)
        self._measure({name: arrays[name] for name in shapes})
        self._describe(shapes, total)
        self.groups.pop("", None)  # a single array has columns but no name
        self.warnings += _absent_chunks({name: arrays[name] for name in shapes}, url)

    def blocks(self, columns: Sequence[Column]) -> Iterator[Block]:
        """All the samples, of the chosen columns."""
        arrays = self._arrays()

        def read(name: str, start: int, stop: int) -> NDArray[Any]:
            array = arrays[name]
            spans = (slice(start, stop), *(slice(0, size) for size in array.shape[1:]))
            values = _by_chunks(lambda part: np.asarray(array[part]), spans, array.chunks, array.dtype)
            attributes = _attributes(array, named=False)
            return _decoded(xr.Variable(("row", "column")[: values.ndim], values, attributes))

        yield from self._slices(read, columns)

    def _arrays(self) -> dict[str, Any]:
        opened = _open_zarr(self.url)
        return {"": opened} if isinstance(opened, zarr.Array) else _arrays_of(opened, self.url)


class DatasetSource(_VariablesSource):
    """A dkgp dataset: its raw features, those it has dropped included, targets, weights, ids. Raises `StoreError`."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._dataset = open_dataset(url)
        n, d = self._dataset.n_samples, len(self._dataset.raw_feature_names)
        self._chunk_rows = self._dataset.chunk_rows
        self._describe({_INPUTS: (n, d)}, n, list(self._dataset.raw_feature_names))
        targets = tuple(Column(name, "y", index) for index, name in enumerate(self._dataset.target_names))
        if targets:
            self.groups["y"] = targets
        beside = {"w": self._dataset.weight_name, "noise": self._dataset.noise_name}
        weights = tuple(Column(name, array, 0) for array, name in beside.items() if name is not None)
        for column in weights:
            self.groups[column.array] = (column,)
        ids = tuple(Column(name, "ids", index) for index, name in enumerate(self._dataset.id_names))
        if ids:
            self.groups["ids"] = ids
        self.positional = (*self.columns, *targets)
        # Not counted by an index, so that they are no feature unless they are asked for.
        self.columns = (*self.positional, *weights, *ids)

    def blocks(self, columns: Sequence[Column]) -> Iterator[Block]:
        """All the samples, of the chosen columns."""
        dataset = self._dataset
        rows = block_rows(len(self.columns), self._chunk_rows)
        for start in range(0, self.total, rows):
            stop = min(start + rows, self.total)
            parts: dict[str, NDArray[Any]] = {
                _INPUTS: dataset.raw_inputs(start, stop),
                "y": dataset.targets(start, stop, standardised=False),
            }
            if (weights := dataset.weights(start, stop)) is not None:
                parts["w"] = weights[:, None]
            if (noise := dataset.sample_noise(start, stop, standardised=False)) is not None:
                parts["noise"] = noise[:, None]
            if any(column.array == "ids" for column in columns):
                parts["ids"] = dataset.ids(start, stop)
            place = row_places(self.url, start)
            values = np.stack([self._values(parts[column.array], column, place) for column in columns], axis=1)
            yield Block(values, place, stop)

    def _values(self, part: NDArray[Any], column: Column, place: Callable[[int], str]) -> FloatArray:
        """Numbers as they are stored, also of labels, unless the column is asked for as labels: then by their names."""
        values = part[:, column.index]
        if column.encode is None:
            return numbers(values, column.name, place)
        names = self._dataset.classes if column.array == "y" else None
        return column.encode(values if names is None else np.array(names, dtype=object)[values.astype(np.int64)], place)


def open_zarr_source(url: str, stack: bool = False) -> Source:
    """Return the source for a Zarr store: a dkgp dataset, a group that xarray can read, or plain arrays."""
    kind = recognise(url)
    if kind is not None:
        if kind != DATASET_KIND:
            raise StoreError(f"'{url}' holds a dkgp {kind} store; expected data.")
        if stack:
            raise InputError(f"'{url}' is a dkgp dataset, which has no grids; leave out `stack`.")
        return DatasetSource(url)
    opened = _open_zarr(url)
    if isinstance(opened, zarr.Group):
        arrays = _arrays_of(opened, url)
        if arrays and all(_dimension_names(array) for array in arrays.values()):
            source = XarraySource(url, "zarr", stack)
            chosen = {name: array for name, array in arrays.items() if name in source.groups}
            source.warnings += _absent_chunks(chosen, url) + _fill_warnings(chosen, url)
            return source
    if stack:
        raise InputError(f"The arrays of '{url}' have no dimension names, so that there is no grid; leave out `stack`.")
    return ZarrSource(url)


def _open_zarr(url: str) -> Any:
    with refused_as(f"'{url}' is not a Zarr group or array"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return zarr.open(zarr_store.readable_store(url), mode="r")


def _arrays_of(group: Any, url: str) -> dict[str, Any]:
    """A group's arrays by name, as a listing's own order differs between disks."""
    with refused_as(f"An array of '{url}' cannot be opened"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dict(sorted(group.arrays()))


def _dimension_names(array: Any) -> bool:
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    return array.ndim == 0 or (bool(names) and all(names))


def _sample_dimension(dataset: xr.Dataset, url: str) -> Hashable:
    matrices = [name for name, variable in dataset.data_vars.items() if variable.ndim == 2]
    if _INPUTS in matrices:
        return dataset[_INPUTS].dims[0]
    for name, variable in dataset.data_vars.items():
        if _is_grid(dataset, variable):
            raise InputError(
                f"'{name}' of '{shown(url)}' is a grid of the dimensions {variable.dims}. Give `stack` to read each of "
                "its points as a sample, with the coordinates as columns; or call a matrix of features 'X'."
            )
    vectors = [variable.dims[0] for variable in dataset.variables.values() if variable.ndim == 1]
    if len(matrices) == 1 and dataset[matrices[0]].dims[0] in vectors:
        return dataset[matrices[0]].dims[0]
    # A dimension's own coordinate is no sign that samples run along it.
    counted = [variable.dims[0] for name, variable in dataset.variables.items() if variable.dims not in ((), (name,))]
    counted = [dimension for dimension in counted if dimension in vectors]
    if not counted:
        shapes = {str(name): dict(variable.sizes) for name, variable in dataset.data_vars.items()}
        raise InputError(
            f"'{url}' has no variables along a common dimension of samples; expected one vector a column, or a matrix "
            f"'X' (sample, feature). It has {shapes}."
        )
    return max(dict.fromkeys(counted), key=lambda dimension: (counted.count(dimension), dataset.sizes[dimension]))


def _is_grid(dataset: xr.Dataset, variable: xr.DataArray) -> bool:
    """Return True if every dimension has coordinates of its own that are no names, and the last one is no feature.

    The second dimension of a matrix is one of features where vectors lie along the first, unless it is space or time.
    """
    axes = [dataset.variables.get(dimension) for dimension in variable.dims]
    if len(axes) < 2 or any(axis is None or axis.dtype.kind in "USOT" for axis in axes):
        return False
    first, last = variable.dims[0], variable.dims[-1]
    attributes = dataset.variables[last].attrs
    words = {str(last).lower(), *(str(attributes.get(key, "")).lower() for key in ("standard_name", "axis", "units"))}
    of_space = not words.isdisjoint(_SPACE) or any(" since " in word for word in words)
    has_vectors = any(other.dims == (first,) and name != first for name, other in dataset.variables.items())
    return not has_vectors or (len(axes) == 2 and of_space)


def _chunk_length(variable: xr.Variable, dimension: str) -> int:
    """Length of a variable's chunks along a dimension; 1 where it has none."""
    chunks = variable.encoding.get("chunks") or variable.encoding.get("chunksizes")
    return int(chunks[variable.dims.index(dimension)]) if chunks and dimension in variable.dims else 1


def _rows(variable: xr.Variable, start: int, stop: int) -> xr.Variable:
    return _part(variable, {variable.dims[0]: slice(start, stop)})


def _part(variable: xr.Variable, part: Mapping[Hashable, slice]) -> xr.Variable:
    """Return a part of a variable that is not decoded, by slices of some of its dimensions, in memory."""
    spans = tuple(part.get(name, slice(0, size)) for name, size in variable.sizes.items())
    chunks = variable.encoding.get("chunks") or variable.encoding.get("chunksizes") or variable.shape
    values = _by_chunks(lambda places: np.asarray(variable[places].values), spans, chunks, variable.dtype)
    return xr.Variable(variable.dims, values, variable.attrs, variable.encoding)


def _by_chunks(
    read: Callable[[tuple[slice, ...]], NDArray[Any]],
    spans: tuple[slice, ...],
    chunks: Sequence[int],
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    """Return the part `spans` of an array; `read` is called with parts of at most `_MOST_CHUNKS_AT_ONCE` chunks."""
    counts = [-(-span.stop // size) - span.start // size for span, size in zip(spans, chunks, strict=True)]
    if math.prod(counts) <= _MOST_CHUNKS_AT_ONCE:
        return read(spans)
    axis = int(np.argmax(counts))
    span, middle = spans[axis], (spans[axis].start // chunks[axis] + counts[axis] // 2) * chunks[axis]
    values = np.empty([span.stop - span.start for span in spans], dtype)
    for side in (slice(span.start, middle), slice(middle, span.stop)):
        place = (*[slice(None)] * axis, slice(side.start - span.start, side.stop - span.start))
        values[place] = _by_chunks(read, (*spans[:axis], side, *spans[axis + 1 :]), chunks, dtype)
    return values


def _attributes(array: Any, named: bool) -> dict[str, Any]:
    """Attributes of a Zarr array as xarray decodes them, with the value that stands for a missing one.

    It is `_FillValue`. Version 2 with dimension names (`named`) is as xarray writes it, which keeps `_FillValue` as the
    array's fill value. A fill value of 0 is no missing value: other writers set it on every array.
    """
    attributes = dict(array.attrs)
    stated = attributes.get("_FillValue")
    if isinstance(stated, str) and array.dtype.kind == "f":
        try:
            attributes["_FillValue"] = struct.unpack("<d", base64.standard_b64decode(stated))[0]
        except (ValueError, struct.error):
            attributes["_FillValue"] = float(stated)  # "NaN"
    written_by_xarray = named and array.metadata.zarr_format == 2 and array.dtype.kind in "iuf"
    if stated is None and written_by_xarray and array.fill_value:  # neither 0 nor None
        attributes["_FillValue"] = array.fill_value
    return attributes


def _decoded(variable: xr.Variable) -> NDArray[Any]:
    """Values of a part of a variable after its attributes: missing values, scale, offset, dates, text.

    Dates are datetime64[us]; durations that are marked as such are timedelta64. Whole numbers that float64 cannot hold
    stay whole, as objects, where some are missing.
    """
    stored = raw = np.asarray(variable.values)
    attributes = dict(variable.attrs)
    is_plain = _CHANGES.isdisjoint(attributes) and " since " not in str(attributes.get("units", ""))
    if raw.dtype.kind in "biuf" and is_plain and not np.any(raw == attributes.get("_FillValue", np.nan)):
        return raw
    if str(attributes.get("_Unsigned", "")).lower() == "true" and raw.dtype.kind == "i":
        raw = raw.view(raw.dtype.str.replace("i", "u"))
    is_duration = str(attributes.get("dtype", "")).startswith("timedelta64")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Names of its own: a variable that is called like its dimension would get an index.
        dimensions = tuple(f"axis {axis}" for axis in range(raw.ndim))
        values = xr.decode_cf(
            xr.Dataset({"values": xr.Variable(dimensions, stored, attributes, variable.encoding)}),
            decode_coords=False,
            decode_times=xr.coders.CFDatetimeCoder(time_unit="us"),
            decode_timedelta=is_duration,
        )["values"].values
    if is_duration and values.dtype.kind != "m":
        raise ValueError(f"durations of the units {attributes.get('units')!r} are not known")
    if raw.dtype.kind in "iuf" and values.dtype.kind in "iuf":
        outside = _outside(raw, values, attributes)
        if outside.any():
            values = np.where(outside, np.nan, values)
    if raw.dtype.kind in "iu" and raw.dtype.itemsize == 8 and values.dtype.kind == "f":
        is_scaled = "scale_factor" in attributes or "add_offset" in attributes
        if not is_scaled and (np.abs(values) >= 2.0**53).any():
            whole = raw.astype(object)
            whole[np.isnan(values)] = None
            return whole
    return np.asarray(values)


def _outside(raw: NDArray[Any], values: NDArray[Any], attributes: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Return True where values lie outside of the valid range that the attributes state, of packed values or others."""
    outside = np.zeros(raw.shape, dtype=bool)
    low, high = np.ravel(attributes.get("valid_range", (None, None)))
    for limit, beyond in (
        (attributes.get("valid_min", low), np.less),
        (attributes.get("valid_max", high), np.greater),
    ):
        if limit is not None:
            of_packed = np.asarray(limit).dtype.kind != "f" or raw.dtype.kind == "f"
            outside |= beyond(raw if of_packed else values, float(np.asarray(limit).item()))
    return outside


def _fill_warnings(arrays: Mapping[str, Any], url: str) -> list[str]:
    """Warn of arrays of version 2 with the fill value 0, which xarray takes for a missing value."""
    zeros = [
        name
        for name, array in arrays.items()
        if array.metadata.zarr_format == 2 and array.dtype.kind in "iuf" and "_FillValue" not in array.attrs
        if array.fill_value is not None and array.fill_value == 0
    ]
    if not zeros:
        return []
    return [
        f"The zeros of {quoted(zeros)} of '{url}' are read as numbers: the fill value 0 of Zarr's version 2 marks no "
        "missing values by itself."
    ]


def _absent_chunks(arrays: Mapping[str, Any], url: str) -> list[str]:
    warned = []
    for name, array in arrays.items():
        if array.nchunks > _MOST_CHUNKS:
            raise InputError(
                f"The array '{name}' of '{url}' has {array.nchunks:,} chunks; at most {_MOST_CHUNKS:,} are read. Write "
                "it again with larger chunks."
            )
        absent = array.nchunks - array.nchunks_initialized
        if absent:
            warned.append(
                f"{absent} of {array.nchunks} chunks of the array '{name}' of '{url}' are absent; they read "
                f"as its fill value {array.fill_value}. Zarr leaves out chunks that hold nothing else, but "
                "a lost chunk looks the same."
            )
    return warned


def _feature_labels(dataset: xr.Dataset, variables: dict[str, Any]) -> list[str] | None:
    matrices = [name for name, variable in variables.items() if variable.ndim == 2]
    inputs = _INPUTS if _INPUTS in matrices else matrices[0] if len(matrices) == 1 else None
    if inputs is None:
        return None
    dimension = variables[inputs].dims[1]
    if dimension in dataset.coords and dataset[dimension].dtype.kind in "USOT":
        return [str(name) for name in dataset[dimension].values.tolist()]
    return None


_STACK = Option(
    "stack",
    "Read gridded arrays, such as temp(lat, lon). Each grid point becomes a sample, and its coordinates become "
    "columns.",
    type=bool,
)
FORMATS.add(
    Format(
        "NetCDF",
        partial(XarraySource, engine="h5netcdf"),
        suffixes=(".nc", ".nc4", ".h5"),
        magics=(b"\x89HDF\r\n\x1a\n",),
        options=(_STACK,),
        extra=Extra("netcdf", package="h5netcdf", module="h5netcdf"),
    )
)
FORMATS.add(
    Format("NetCDF 3", partial(XarraySource, engine="scipy"), suffixes=(".nc",), magics=(b"CDF",), options=(_STACK,))
)
FORMATS.add(
    Format(
        "Zarr",
        open_zarr_source,
        markers=("zarr.json", ".zgroup", ".zarray", ".zmetadata", "dkgp-manifest.json"),
        options=(_STACK,),
    )
)


_OPEN_FILES = Path("/dev/fd")
# Groups, variables and named types of one file. Each stays open, which takes about 10 KB.
MOST_OBJECTS = 20_000
_DIMENSIONS = b"DIMENSION_LIST"
# By their registered numbers: deflate, shuffle, Fletcher-32, szip, n-bit, scale-offset; bzip2, LZF, Blosc, LZ4,
# bitshuffle, ZFP, Zstandard, Blosc 2. The library searches a folder of plug-ins for any other number.
_FILTERS = frozenset({1, 2, 3, 4, 5, 6, 307, 32000, 32001, 32004, 32008, 32013, 32015, 32026})


def reopened(file: BinaryIO, url: str) -> Any:
    """Return a name or object by which a C library reads the open `file`, even if its address leads elsewhere now."""
    place = _OPEN_FILES / str(file.fileno()) if is_local(url) else None
    return str(place) if place is not None and place.exists() else file


class CheckedFile:
    """An HDF5 file without references to other files; `h5` is the `h5py.File` to read from.

    The checked objects stay open until the file is closed. HDF5 shares the description of an open object with everyone
    who opens it again, so that a change of the file after the check has no effect on where its values come from.

    Raises `InputError` for a file that refers to other files, uses an unknown filter, or promises more objects,
    attributes or bytes in a chunk than are read.
    """

    def __init__(self, url: str) -> None:
        import h5py

        with ExitStack() as stack:
            file = stack.enter_context(open_object(url))
            self.h5 = stack.enter_context(h5py.File(reopened(file, url), "r"))
            self._objects = _Walk(self.h5, shown(url)).objects
            self._closing = stack.pop_all()

    def __enter__(self) -> CheckedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._objects = []
        self._closing.close()


class _Walk:
    """A walk over all objects that the links of a file reach; `objects` are those, open."""

    def __init__(self, root: Any, url: str) -> None:
        from h5py import h5d, h5g, h5o

        self._url = url
        self._attribute_bytes = 0
        self.objects: list[Any] = []
        seen: set[int] = set()
        waiting: list[tuple[Any, bytes, str]] = [(root.id, b"/", "")]
        while waiting:
            group, link, path = waiting.pop()
            name = f"{path}/{link.decode(errors='replace')}" if path or link != b"/" else ""
            node = h5o.open(group, link)
            address = h5o.get_info(node).addr
            if address in seen:
                continue
            seen.add(address)
            self.objects.append(node)
            self._check_attributes(node, name)
            if isinstance(node, h5d.DatasetID):
                self._check_dataset(node, name)
            elif isinstance(node, h5g.GroupID):
                waiting += [(node, member, name) for member in self._members(node, name)]
            if len(self.objects) + len(waiting) > MOST_OBJECTS:
                raise InputError(
                    f"'{url}' holds more than {MOST_OBJECTS:,} groups and variables; no more are read. Save the "
                    "columns as one matrix 'X' (sample, feature)."
                )
        self._check_dimensions(root, seen)

    def _members(self, group: Any, name: str) -> list[bytes]:
        """Return the names of a group's objects, without soft links: those lead to a name within this file."""
        from h5py import h5l

        links: list[tuple[bytes, int]] = []

        def add(link: bytes, info: Any) -> bool:
            links.append((link, info.type))
            return len(links) > MOST_OBJECTS

        # An error that is raised in `add` does not arrive here.
        group.links.iterate(add, info=True)
        for link, kind in links:
            if kind not in (h5l.TYPE_HARD, h5l.TYPE_SOFT):
                self._refuse(f"the link '{name}/{link.decode(errors='replace')}' leads to another file")
        return [link for link, kind in links if kind == h5l.TYPE_HARD]

    def _check_dataset(self, dataset: Any, name: str) -> None:
        from h5py import h5d

        layout = dataset.get_create_plist()
        if layout.get_external_count():
            self._refuse(f"the values of the variable '{name}' lie in external files")
        if layout.get_layout() == h5d.VIRTUAL:
            self._refuse(f"the variable '{name}' is a virtual dataset, made of parts of other files")
        if layout.get_layout() != h5d.CHUNKED:
            return
        chunk_bytes = math.prod(layout.get_chunk()) * dataset.get_type().get_size()
        if chunk_bytes > MOST_CHUNK_BYTES:
            raise InputError(
                f"A chunk of the variable '{name}' of '{self._url}' takes {chunk_bytes:,} bytes; at most "
                f"{MOST_CHUNK_BYTES:,} are read at once. Write the variable again with smaller chunks."
            )
        codes = [layout.get_filter(index)[0] for index in range(layout.get_nfilters())]
        if unknown := sorted(set(codes) - _FILTERS):
            raise InputError(
                f"The variable '{name}' of '{self._url}' is stored with the HDF5 filter {unknown[0]}, which dkgp "
                "does not read. Write it again with deflate (gzip) or without a filter, for example by h5repack."
            )

    def _check_attributes(self, node: Any, name: str) -> None:
        from h5py import h5a

        for index in range(h5a.get_num_attrs(node)):
            attribute = h5a.open(node, index=index)
            # The name and its entry take memory as well.
            self._attribute_bytes += (
                attribute.get_space().get_simple_extent_npoints() * attribute.get_type().get_size() + 256
            )
            if self._attribute_bytes > MOST_DOCUMENT_BYTES:
                raise InputError(
                    f"The attributes of '{self._url}' up to '{name}' take {self._attribute_bytes:,} bytes; at most "
                    f"{MOST_DOCUMENT_BYTES:,} are read. Leave them out, or save them as variables."
                )

    def _check_dimensions(self, root: Any, seen: set[int]) -> None:
        """Refuse a dimension that is an object without a link, which the walk did not meet."""
        import h5py
        from h5py import h5a, h5d, h5o, h5r

        for node in self.objects:
            if not isinstance(node, h5d.DatasetID) or not h5a.exists(node, _DIMENSIONS):
                continue
            scales = h5py.Dataset(node).attrs[_DIMENSIONS.decode()]
            for scale in (scale for axis in scales for scale in axis):
                target = h5r.dereference(scale, root.id) if scale else None
                if target is not None and h5o.get_info(target).addr not in seen:
                    raise InputError(
                        f"A dimension of '{self._url}' is described by an object that no name leads to; the file is "
                        "damaged. Write it again."
                    )

    def _refuse(self, reason: str) -> None:
        raise InputError(
            f"'{self._url}' refers to other files: {reason}. HDF5 would open them wherever they lie, so that "
            "nothing of this file is read. Copy the values into one file first, for example in Python with h5py: "
            "`new[name] = old[name][:]`."
        )
