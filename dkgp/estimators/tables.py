"""An estimator's arguments in one form: arrays in memory, dask arrays with names, or a dataset store."""

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
from dkgp.data.numbers import array_of, dense, lazy_numbers, require_numbers
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

    `names` are the features wanted of what has names, in order; None for all.

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
