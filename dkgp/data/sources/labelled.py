"""xarray's labelled arrays in and out of plain (n, d) arrays: columns by name, samples with their coordinates.

Nothing is computed here: dask arrays stay dask arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.data.numbers import array_of, lazy_numbers, real_numbers
from dkgp.errors import InputError


@dataclass(frozen=True)
class LabelledTable:
    """Named columns of samples, a numpy or dask array (n, columns).

    `coordinates` are those along the samples' dimension, for results by sample.
    """

    values: Any
    names: tuple[str, ...]
    dimension: str
    coordinates: dict[str, Any]


def is_labelled(table: object) -> bool:
    """True if this is an xarray DataArray or Dataset; xarray is not imported for the answer."""
    xarray = sys.modules.get("xarray")
    return xarray is not None and isinstance(table, xarray.DataArray | xarray.Dataset)


def labelled_inputs(
    table: Any, names: Sequence[str] | None = None, *, without: Sequence[str] = (), argument: str | None = "X"
) -> LabelledTable:
    """Read the features of a Dataset of one-dimensional variables, or of a two-dimensional DataArray (sample, feature).

    They are the `names`, in that order, by default all but `without`; a DataArray that names no features is taken as it
    is. Masked and missing entries are NaN. `argument` is the table's name in errors; with None values
    are left as they are.

    Raises `InputError`: variables of other shapes, or that are no numbers; a feature that is not there, with a list of
    those that are.
    """
    if hasattr(table, "data_vars"):
        present = [str(name) for name in table.data_vars if str(name) not in without]
        features = list(names) if names is not None else present
        _require(features, present)
        dimensions = {table[name].dims for name in features}
        if len(dimensions) != 1 or len(next(iter(dimensions))) != 1:
            shown = "; ".join(f"'{name}' {table[name].dims}" for name in features[:8])
            raise InputError(
                f"the features have the dimensions {shown}; expected the same one dimension, that of the samples. "
                "Stack a "
                "grid first, as in table.stack(sample=('lat', 'lon')), or leave out variables that are not features"
            )
        (dimension,) = next(iter(dimensions))
        columns = [_numbers(table[name].data, argument and f"the variable '{name}' of {argument}") for name in features]
        return LabelledTable(_side_by_side(columns), tuple(features), str(dimension), _coordinates(table, dimension))
    if table.ndim != 2:
        raise InputError(
            f"got a DataArray with the dimensions {table.dims}; expected two, samples and features, or a Dataset "
            "with a variable for each feature"
        )
    dimension, across = table.dims
    labels = [str(name) for name in table[across].values] if across in table.coords else None
    if labels is not None and names is not None:
        if not set(names) & set(labels) and all(name.isdigit() for name in labels):
            labels = None  # numbers of columns, which say nothing
        else:
            _require(list(names), labels)
            table = table.isel({across: [labels.index(name) for name in names]})
            labels = list(names)
    if labels is None:
        labels = list(names) if names is not None else [f"x{column}" for column in range(table.shape[1])]
    if table.shape[1] != len(labels):
        raise InputError(f"got {table.shape[1]} features along '{across}'; expected {len(labels)}")
    values = _numbers(table.data, argument)
    return LabelledTable(values, tuple(labels), str(dimension), _coordinates(table, dimension))


def labelled_targets(targets: Any, table: Any) -> tuple[Any, tuple[str, ...] | None, bool]:
    """Targets given as names of variables of the inputs' Dataset, as a DataArray or Dataset, or as plain values.

    Returns the values, a numpy or dask array (n,) or (n, p); their p names, None where they bring none; and True where
    predictions have a dimension for targets. `InputError` for a name that is not there.
    """
    if isinstance(targets, str):
        targets = table[_require([targets], _variables(table))[0]]
    elif isinstance(targets, list | tuple) and targets and all(isinstance(name, str) for name in targets):
        targets = table[_require(list(targets), _variables(table))]
    if not is_labelled(targets):
        values = array_of(targets) if isinstance(targets, list | tuple) else targets  # a list may have masked items
        return values, None, np.ndim(values) > 1
    if not hasattr(targets, "data_vars") and targets.ndim == 1:
        return targets.data, (str(targets.name),) if targets.name is not None else None, False
    # One variable may be labels; several have to be numbers to lie side by side.
    table = labelled_inputs(targets, argument="y" if len(getattr(targets, "data_vars", ())) > 1 else None)
    return table.values, table.names, True


def label(values: Any, like: LabelledTable, name: str, across: Mapping[str, Any] | None = None) -> Any:
    """Return values (n, ...) as a DataArray of a name, with the samples' coordinates.

    `across` has the dimensions beyond the samples', with their coordinates or None.
    """
    import xarray

    further = dict(across or {})
    known = {dimension: along for dimension, along in further.items() if along is not None}
    dimensions = [like.dimension, *further]
    return xarray.DataArray(values, dims=dimensions, coords={**like.coordinates, **known}, name=name)


def _numbers(values: Any, place: str | None) -> Any:
    """A variable's values as numbers, lazily where they are lazy; as they are where no place is named."""
    if place is None:
        return values
    return lazy_numbers(values, place) if hasattr(values, "dask") else real_numbers(values, place)


def _coordinates(table: Any, dimension: Any) -> dict[str, Any]:
    return {name: value for name, value in table.coords.items() if set(value.dims) <= {dimension}}


def _variables(table: Any) -> list[str]:
    if not hasattr(table, "data_vars"):
        raise InputError("targets can be given by name only where the inputs are an xarray Dataset that holds them")
    return [str(name) for name in table.data_vars]


def _require(names: list[str], present: Sequence[str]) -> list[str]:
    missing = [name for name in names if name not in present]
    if missing:
        shown = ", ".join(f"'{name}'" for name in present[:20])
        raise InputError(f"there is no variable '{missing[0]}'; there are {shown}")
    if not names:
        raise InputError("there is no variable to be a feature")
    return names


def _side_by_side(columns: list[Any]) -> Any:
    """Columns (n,) as one array (n, d); a dask array, in one piece across, where any of them is one."""
    if any(hasattr(column, "dask") for column in columns):
        import dask.array

        return dask.array.stack(columns, axis=1).rechunk({1: -1})
    return np.stack([np.asarray(column) for column in columns], axis=1)
