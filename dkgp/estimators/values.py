"""Arguments of estimators before anything is computed: numbers in every container, and samples in one order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.data.numbers import array_of, lazy_numbers, real_numbers, require_numbers, require_room, words_on_object
from dkgp.data.sources.labelled import is_labelled, labelled_inputs
from dkgp.errors import InputError
from dkgp.estimators.tables import computed, is_dask, is_dask_frame, is_plain


def numeric(values: Any, name: str) -> Any:
    """Return inputs or targets in their own container, with masked and missing entries as NaN.

    Containers of numbers alone are returned as they are, and so are sparse matrices. dask arrays stay lazy; dask frames
    and objects of xarray are brought into memory.

    Raises `InputError`, which names the argument, `name`, and the column: dates, durations, text, complex numbers.
    """
    if values is None or hasattr(values, "tocsr"):
        return values
    if is_labelled(values):
        values = labelled_inputs(values, argument=name).values if hasattr(values, "data_vars") else values.data
    if is_dask(values) and not is_dask_frame(values):
        return lazy_numbers(values, name)
    values = computed(values)
    if hasattr(values, "columns"):
        return _numeric_frame(values, name)
    if hasattr(values, "iloc"):
        numbers = _column_numbers(values, name)
        return values if numbers is None else type(values)(numbers, index=values.index, name=values.name)
    try:
        array = array_of(values)
    except (TypeError, ValueError):
        return values  # rows of different lengths and the like, for which scikit-learn has words
    return real_numbers(array, name)


def numbers_of(values: Any, name: str) -> NDArray[np.float64]:
    """Return values in memory as an array of float64, dask's computed; errors as of `numeric`."""
    return np.asarray(computed(numeric(values, name)), dtype=np.float64)


def weights_of_score(X: Any, sample_weight: Any) -> NDArray[np.float64] | None:
    """Return the weights that a score is to have; errors as of `numeric` and `require_same_order`."""
    require_same_order(X, sample_weight=sample_weight)
    weights = None if sample_weight is None else numbers_of(sample_weight, "sample_weight")
    if weights is not None and weights.ndim != 1:
        raise InputError(f"sample_weight has shape {weights.shape}; expected (n,), a value for each sample")
    return weights


def numeric_samples(X: Any, y: Any, **by_sample: Any) -> tuple[Any, Any]:
    """Return inputs in memory and their targets as by `numeric`; `by_sample` are further values of the samples.

    Other inputs, and their targets, which may be names of variables, are returned as they are: they are read later.
    Raises `InputError`: as `numeric` and `require_same_order` do.
    """
    require_same_order(X, y=y, **by_sample)
    if not is_plain(X):
        return X, y
    return numeric(X, "X"), y if is_labelled(y) else numeric(y, "y")  # its name is looked at later


def require_same_order(X: Any, **by_sample: Any) -> None:
    """Refuse values of samples (`y`, `sample_weight`) that are labelled as of other samples than the inputs' rows.

    Samples are matched by position, as in scikit-learn. Objects of xarray are aligned by their coordinates everywhere
    else, so coordinates along the samples that differ are an error. An index of pandas may differ, since a frame that
    was rebuilt from an array has a new one; but the inputs' index in another order is an error.
    """
    labels = _sample_labels(X)
    for name, values in by_sample.items():
        others = None if labels is None else _sample_labels(values)
        if labels is None or others is None or len(labels) != len(others):
            continue
        if labels.equals(others) or bool(np.all(labels == others)):
            continue
        same = labels.is_unique and others.is_unique and bool(others.isin(labels).all())
        by_coordinates = is_labelled(X) and is_labelled(values)
        if not (same or by_coordinates):
            continue
        pairs = enumerate(zip(labels.tolist(), others.tolist(), strict=True))
        row, (of_inputs, of_values) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
        order = "has the samples of X in another order" if same else "is of other samples than X"
        index = f"X.indexes[{labels.name!r}]" if is_labelled(X) else "X.index"
        remedy = f"{name}.sel({{{others.name!r}: X[{labels.name!r}]}})" if by_coordinates else f"{name}.loc[{index}]"
        raise InputError(
            f"{name} {order}: sample {row} is {of_values!r} in {name}, and {of_inputs!r} in X. Align them first, "
            f"as in {name} = {remedy}, or give {name}.to_numpy() where the positions are right and the labels are not"
        )


def _sample_labels(values: Any) -> Any:
    """The index of the samples, of pandas or of xarray's coordinate along them; None where they have none."""
    if is_labelled(values):
        variable = next(iter(values.data_vars.values()), None) if hasattr(values, "data_vars") else values
        return None if variable is None or not variable.dims else values.indexes.get(variable.dims[0])
    return values.index if hasattr(values, "iloc") and not is_dask(values) else None


def _numeric_frame(frame: Any, name: str) -> Any:
    """A frame of pandas, polars or Arrow whose columns are numbers; itself where all are."""
    names = list(getattr(frame, "column_names", frame.columns))
    columns = [frame.iloc[:, place] if hasattr(frame, "iloc") else frame[label] for place, label in enumerate(names)]
    if any(map(_is_sparse, columns)):
        require_room(frame.shape, name)
    numbers = [
        _column_numbers(column, f"the column {str(label)!r} of {name}")
        for label, column in zip(names, columns, strict=True)
    ]
    changed = {place: values for place, values in enumerate(numbers) if values is not None}
    if not changed:
        return frame
    if hasattr(frame, "iloc"):
        series = [column if values is None else values for column, values in zip(columns, numbers, strict=True)]
        result = type(frame)(dict(enumerate(series)), index=frame.index)
        result.columns = frame.columns
        return result
    if hasattr(frame, "with_columns"):
        kind = type(columns[0])
        return frame.with_columns(kind(names[place], values) for place, values in changed.items())
    return np.column_stack([np.asarray(values) for values in (changed.get(k, columns[k]) for k in range(len(names)))])


def _column_numbers(column: Any, place: str) -> NDArray[Any] | None:
    """Numbers of a column that has others, masked entries, or is sparse; None where it has numbers alone."""
    dtype = getattr(column, "dtype", None)
    require_numbers(dtype, place)
    sparse = _is_sparse(column)
    if getattr(dtype, "kind", "O") in "biuf" and not sparse:
        return None
    array = np.asarray(column)
    numbers = real_numbers(array, place)
    return None if numbers is array and not sparse else numbers


def _is_sparse(column: Any) -> bool:
    """True of pandas' sparse columns, as `get_dummies(sparse=True)` returns them."""
    return getattr(column, "sparse", None) is not None


def label_values(y: Any) -> Any:
    """Return labels in memory, in their own container.

    Raises `InputError`: a label that is missing or masked, dates, labels of several types.
    """
    values = computed(y)
    if len(getattr(values, "columns", [""])) != 1:  # not promoted to one type, which text and dates do not have
        raise InputError(f"y should be a 1d array, got an array of shape {values.shape} instead")
    dtype = getattr(values, "dtype", None)
    array = array_of(values)
    if getattr(dtype, "kind", array.dtype.kind) in "mM" or array.dtype.kind in "mM":
        raise InputError(
            f"the labels are dates or durations ({array.dtype}), whose names depend on their unit; give them as text, "
            "as in y.astype(str), or as whole numbers"
        )
    require_numbers(array.dtype, "y")
    if isinstance(array, np.ma.MaskedArray):
        if np.ma.is_masked(array):
            row = int(np.argmax(np.ma.getmaskarray(array)))
            raise InputError(f"the label of sample {row} is missing (masked); leave such samples out")
        values = array = array.data
    if array.dtype.kind == "O" and array.ndim == 1:
        kinds: set[type] = set()
        for row, value in enumerate(array):
            if _is_missing_label(value):
                raise InputError(f"the label of sample {row} is missing ({value}); leave such samples out")
            if type(value) in kinds:
                continue
            kinds.add(type(value))
            if words_on_object(value) is not None:
                raise InputError(
                    f"the label of sample {row} is of type {type(value).__name__}; give labels as text, as in "
                    "y.astype(str), or as whole numbers"
                )
        if len(kinds) > 1 and str in kinds:
            names = sorted(kind.__name__ for kind in kinds)
            raise InputError(f"labels are of the types {', '.join(names)}; expected one type for all")
    return values


def _is_missing_label(value: Any) -> bool:
    """True of None, NaN and NaT, which do not equal themselves, and pandas' NA, whose comparisons are no bool."""
    same = value == value
    return value is None or not (isinstance(same, bool | np.bool_) and bool(same))
