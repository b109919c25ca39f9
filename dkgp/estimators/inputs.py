"""An estimator's arguments in one form: numbers in every container, in memory or lazily; samples in one order.

Only values that have to be looked at are computed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from dkgp.data import Dataset, open_dataset
from dkgp.data.numbers import (
    array_of,
    dense,
    lazy_numbers,
    real_numbers,
    require_numbers,
    require_room,
    words_on_object,
)
from dkgp.data.sources.ingest import stored_inputs
from dkgp.data.sources.labelled import LabelledTable, is_labelled, labelled_inputs, labelled_targets
from dkgp.errors import InputError


@dataclass(frozen=True)
class Table:
    """Samples, in the form in which predictions are to come back.

    Inputs (n, d) and targets (n,) or (n, p) are NumPy or dask arrays.
    """

    inputs: Any
    names: tuple[str, ...] | None  # of the features
    targets: Any = None
    target_names: tuple[str, ...] | None = None
    several_targets: bool = False  # whether predictions have a dimension for targets
    labels: LabelledTable | None = None  # dimension and coordinates, where predictions are to be labelled
    dataset: Dataset | None = None  # the store that they are in
    index: Any = None  # of a pandas DataFrame, where predictions are to have it
    frame: Any = None  # a dask DataFrame of the inputs, where predictions are to be of its partitions

    @property
    def rows(self) -> Any:
        """Inputs to predict at: the dask DataFrame where there is one, else the array."""
        return self.inputs if self.frame is None else self.frame


def is_dask(values: object) -> bool:
    """True if this is a dask collection."""
    return hasattr(values, "__dask_graph__") and hasattr(values, "dask")


def is_plain(X: object) -> bool:
    """True if scikit-learn can check this: an array, a data frame, a list; not a dask or xarray object, nor a store."""
    return not (is_labelled(X) or is_dask(X) or isinstance(X, str | os.PathLike))


def read_samples(X: Any, y: Any) -> Table:
    """Inputs and targets that are not plain, to be trained on.

    Raises `InputError`: shapes that do not fit, or names that are not there.
    """
    if isinstance(X, str | os.PathLike):
        if y is not None:
            raise InputError("a dataset store brings its own targets; leave y out")
        dataset = open_dataset(X)
        if dataset.n_targets == 0:
            raise InputError(f"'{dataset.url}' has no targets to train on; ingest the data again and name them")
        several = dataset.n_targets > 1
        return Table(None, dataset.raw_feature_names, None, dataset.target_names, several, dataset=dataset)
    if y is None and is_plain(X):
        raise InputError("there is no y; a score needs the true values")
    values, target_names, several = labelled_targets(y, X)
    if is_dask_frame(values):
        target_names = tuple(str(name) for name in (values.columns if values.ndim == 2 else [values.name or "y"]))
    if is_dask_frame(X):
        frame, names = _frame_columns(X, None)
        inputs = as_array(frame)
    elif is_labelled(X):
        table = labelled_inputs(X, without=target_names or ())
        inputs, names = table.values, table.names
    else:
        inputs, names = _input_array(X), None
    if values is None:
        raise InputError("there is no y; training needs targets")
    values = as_array(values) if is_dask(values) else array_of(values)  # with its mask
    if values.ndim not in (1, 2):
        raise InputError(f"y has shape {values.shape}; expected (n,) or (n, p)")
    return Table(inputs, names, values, target_names, several)


def read_inputs(X: Any, names: Sequence[str] | None) -> Table:
    """Inputs that are not plain, to predict at.

    `names` are the features to take of inputs with names, in order; None for all.

    Raises `InputError`: a feature that is not there, or another number of them.
    """
    if isinstance(X, str | os.PathLike):
        dataset = open_dataset(X)
        selected = tuple(names) if names is not None else dataset.raw_feature_names
        values = stored_inputs(dataset, selected)
        return Table(values, selected, labels=LabelledTable(values, selected, "sample", {}), dataset=dataset)
    if is_labelled(X):
        table = labelled_inputs(X, names)
        return Table(table.values, table.names, labels=table)
    if is_dask_frame(X):
        frame, selected = _frame_columns(X, names)
        return Table(as_array(frame), selected, frame=frame)
    return Table(_input_array(X), None)


def is_dask_frame(values: object) -> bool:
    """True of a dask DataFrame or Series."""
    return is_dask(values) and hasattr(values, "to_dask_array")


def _frame_columns(frame: Any, names: Sequence[str] | None) -> tuple[Any, tuple[str, ...]]:
    """Select columns of a dask DataFrame by name, as float64; all of them by default."""
    from pandas.api.types import is_numeric_dtype

    if frame.ndim != 2:
        raise InputError(f"X is a dask Series, '{frame.name}'; expected a DataFrame, as by frame[['{frame.name}']]")
    present = [str(name) for name in frame.columns]
    missing = [name for name in names or () if name not in present]
    if missing:
        raise InputError(f"there is no column '{missing[0]}' in X; it has {', '.join(map(repr, present[:20]))}")
    columns = tuple(present if names is None else names)
    frame = frame[[frame.columns[present.index(name)] for name in columns]]
    for name, dtype in zip(columns, frame.dtypes, strict=True):
        require_numbers(dtype, f"the column {name!r} of X")
    odd = [name for name, kind in zip(columns, frame.dtypes, strict=True) if not is_numeric_dtype(kind)]
    if odd:
        raise InputError(
            f"the column '{odd[0]}' of X is of type {frame.dtypes.iloc[columns.index(odd[0])]}; expected numbers. "
            "Leave it out, or turn it into numbers first"
        )
    return frame.astype(np.float64), columns


@contextmanager
def _repeatable_shuffles() -> Iterator[None]:
    """Shuffle dask DataFrames by tasks, so that rows have the same order however often they are computed.

    X, y and weights are computed one by one. After `shuffle`, `merge` or `set_index`, dask's other shuffles put the
    rows of a partition into the order in which their parts arrive, which pairs inputs with other samples' targets.
    """
    import dask

    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        yield


def computed(values: Any) -> Any:
    """Values in memory of a dask collection; other values as they are."""
    if not is_dask(values):
        return values
    with _repeatable_shuffles():
        return values.compute()


def take_rows(values: Any, rows: NDArray[np.intp]) -> Any:
    """Rows of an array, a sparse matrix, a dask array or a pandas object, by position."""
    if hasattr(values, "iloc"):
        return values.iloc[rows]
    if issparse(values):
        return values.tocsr()[rows]
    return values[rows] if is_dask(values) else np.asarray(values)[rows]


def _input_array(X: Any) -> Any:
    """A dask array of inputs as numbers, (n, d)."""
    values = as_array(X)
    if values.ndim != 2:
        raise InputError(
            f"X is a dask array of shape {values.shape}; expected (n, d), a row for each sample. Reshape it: "
            "X[:, None] has one feature, X[None] one sample"
        )
    return lazy_numbers(values, "X")


def as_array(values: Any) -> Any:
    """Return a dask array, of a dask DataFrame or Series too; `InputError` for other collections."""
    if is_dask_frame(values):
        with _repeatable_shuffles():
            return values.to_dask_array()
    if not hasattr(values, "blocks"):
        raise InputError(f"got {type(values).__name__}; of dask's collections an array is expected")
    if issparse(values._meta):
        return values.map_blocks(dense, "X", dtype=np.float64, meta=np.empty((0, 0)))
    return values


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
    """The samples' index, of pandas or of xarray's coordinate along them; None without one."""
    if is_labelled(values):
        variable = next(iter(values.data_vars.values()), None) if hasattr(values, "data_vars") else values
        return None if variable is None or not variable.dims else values.indexes.get(variable.dims[0])
    return values.index if hasattr(values, "iloc") and not is_dask(values) else None


def _numeric_frame(frame: Any, name: str) -> Any:
    """Turn the columns of a pandas, polars or Arrow frame into numbers; return the frame itself if they are."""
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
    """A column as numbers if it has other types, masked entries or is sparse; None if it has plain numbers."""
    dtype = getattr(column, "dtype", None)
    require_numbers(dtype, place)
    sparse = _is_sparse(column)
    if getattr(dtype, "kind", "O") in "biuf" and not sparse:
        return None
    array = np.asarray(column)
    numbers = real_numbers(array, place)
    return None if numbers is array and not sparse else numbers


def _is_sparse(column: Any) -> bool:
    """True for pandas' sparse columns, as `get_dummies(sparse=True)` returns them."""
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
    """True for None, for NaN and NaT, which do not equal themselves, and for pandas' NA, which compares to no bool."""
    same = value == value
    return value is None or not (isinstance(same, bool | np.bool_) and bool(same))
