"""NetCDF files and Zarr groups: variables over a common dimension as columns, or a matrix of features."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray

from dkgp.data.remote.limits import active
from dkgp.data.remote.storage import is_local, open_object, shown
from dkgp.data.remote.zarr_store import zarr_place
from dkgp.data.sources.base import Block, Column, Source, block_rows, matrix_of, numbers, refused_as, row_places
from dkgp.data.sources.formats import FORMATS, Format
from dkgp.data.stores.dataset import DATASET_KIND, open_dataset
from dkgp.data.stores.manifest import recognise
from dkgp.data.types import FloatArray
from dkgp.errors import InputError, StoreError
from dkgp.registry import Extra

_INPUTS = "X"


class _VariablesSource(Source):
    """Named variables that are sliced by rows; what NetCDF and Zarr share."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._chunk_rows = 1
        self._widths: dict[str, int] = {}

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

    def _slices(self, variables: dict[str, Any], columns: Sequence[Column]) -> Iterator[Block]:
        needed = list(dict.fromkeys(column.array for column in columns))
        rows = block_rows(sum(self._widths[name] for name in needed), self._chunk_rows)
        for start in range(0, self.total, rows):
            stop = min(start + rows, self.total)
            place = row_places(self.url, start)
            unreadable = f"Rows {start} to {stop - 1} of '{self.url}' cannot be read"
            with refused_as(unreadable):
                # A vector has one column.
                parts = {name: np.asarray(variables[name][start:stop]).reshape(stop - start, -1) for name in needed}
            yield Block(matrix_of(columns, parts, place), place, stop)


class XarraySource(_VariablesSource):
    """A NetCDF file, or a Zarr group with dimension names.

    The samples run along one dimension: that of a matrix `X` (or of the only matrix), or else the one that most vectors
    share. Coordinates along it count as columns, except the dimension's own. Scale factors and fill values are decoded.

    Raises `InputError` where the file is damaged, or has no such dimension.
    """

    def __init__(self, url: str, engine: str) -> None:
        super().__init__(url)
        self._engine = engine
        with self._opened() as (dataset, _):
            dimension = _sample_dimension(dataset, url)
            variables = {
                str(name): variable
                for name, variable in dataset.variables.items()
                if variable.dims[:1] == (dimension,) and variable.ndim in (1, 2)
            }
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
        with self._opened() as (dataset, _):
            yield from self._slices({str(name): dataset.variables[name] for name in dataset.variables}, columns)

    def _opened(self) -> _OpenedDataset:
        return _OpenedDataset(self._address, self._engine)


class _OpenedDataset:
    """An xarray dataset and the file beneath it, closed together."""

    def __init__(self, url: str, engine: str) -> None:
        self._file: Any = None
        unreadable = f"'{shown(url)}' cannot be opened"
        with refused_as(unreadable), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if engine == "zarr":
                self._dataset = xr.open_zarr(zarr_place(url), chunks=None)
            else:
                target: Any = url
                # By its name the libraries beneath open whatever lies there by then.
                if not is_local(url) or active():
                    self._file = target = open_object(url)
                if engine == "h5netcdf":
                    import h5netcdf

                    # A file that could not be opened asks, when it goes, if it was writable, and complains at that.
                    h5netcdf.File._writable = False
                self._dataset = xr.open_dataset(target, engine=engine, decode_timedelta=False)

    def __enter__(self) -> tuple[xr.Dataset, Any]:
        return self._dataset, self._file

    def __exit__(self, *_: object) -> None:
        self._dataset.close()
        if self._file is not None:
            self._file.close()


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
        self._chunk_rows = max(arrays[name].chunks[0] for name in shapes)
        self._describe(shapes, total)
        self.groups.pop("", None)  # a single array has columns but no name
        for name in shapes:
            absent = arrays[name].nchunks - arrays[name].nchunks_initialized
            if absent:
                self.warnings.append(
                    f"{absent} of {arrays[name].nchunks} chunks of the array '{name}' of '{url}' are absent; they read "
                    f"as its fill value {arrays[name].fill_value}. Zarr leaves out chunks that hold nothing else, but "
                    "a lost chunk looks the same."
                )

    def blocks(self, columns: Sequence[Column]) -> Iterator[Block]:
        """All the samples, of the chosen columns."""
        yield from self._slices(self._arrays(), columns)

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


def open_zarr_source(url: str) -> Source:
    """The right source for a Zarr store: a dkgp dataset, a group that xarray can read, or plain arrays."""
    kind = recognise(url)
    if kind is not None:
        if kind != DATASET_KIND:
            raise StoreError(f"'{url}' holds a dkgp {kind} store; expected data.")
        return DatasetSource(url)
    opened = _open_zarr(url)
    if isinstance(opened, zarr.Group):
        arrays = list(_arrays_of(opened, url).values())
        if arrays and all(_dimension_names(array) for array in arrays):
            source = XarraySource(url, "zarr")
            source.warnings += ZarrSource(url).warnings
            return source
    return ZarrSource(url)


def _open_zarr(url: str) -> Any:
    with refused_as(f"'{url}' is not a Zarr group or array"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return zarr.open(zarr_place(url), mode="r")


def _arrays_of(group: Any, url: str) -> dict[str, Any]:
    """A group's arrays by name, as a listing's own order differs between disks."""
    with refused_as(f"An array of '{url}' cannot be opened"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dict(sorted(group.arrays()))


def _dimension_names(array: Any) -> bool:
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    return bool(names) and all(names)


def _sample_dimension(dataset: xr.Dataset, url: str) -> Hashable:
    matrices = [name for name, variable in dataset.data_vars.items() if variable.ndim == 2]
    if _INPUTS in matrices:
        return dataset[_INPUTS].dims[0]
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


def _feature_labels(dataset: xr.Dataset, variables: dict[str, Any]) -> list[str] | None:
    matrices = [name for name, variable in variables.items() if variable.ndim == 2]
    inputs = _INPUTS if _INPUTS in matrices else matrices[0] if len(matrices) == 1 else None
    if inputs is None:
        return None
    dimension = variables[inputs].dims[1]
    if dimension in dataset.coords and dataset[dimension].dtype.kind in "USOT":
        return [str(name) for name in dataset[dimension].values.tolist()]
    return None


FORMATS.add(
    Format(
        "NetCDF",
        partial(XarraySource, engine="h5netcdf"),
        suffixes=(".nc", ".nc4", ".h5"),
        magics=(b"\x89HDF\r\n\x1a\n",),
        extra=Extra("netcdf", package="h5netcdf", module="h5netcdf"),
    )
)
FORMATS.add(Format("NetCDF 3", partial(XarraySource, engine="scipy"), suffixes=(".nc",), magics=(b"CDF",)))
FORMATS.add(
    Format("Zarr", open_zarr_source, markers=("zarr.json", ".zgroup", ".zarray", ".zmetadata", "dkgp-manifest.json"))
)
