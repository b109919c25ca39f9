"""Results of `predict`: arrays, pandas objects, dask arrays and DataFrames, DataArrays, alone or in a tuple.

Predictions of a pandas or dask DataFrame are Series and DataFrames with its index. scikit-learn asks two things of
predictions that pandas does not answer: stacking and transformed targets call `reshape`, and scores of probabilities
take `[:, k]`. These Series and DataFrames do, and are otherwise as pandas has them.

Predictions of dask collections are lazy: one task for each row chunk computes all quantities that are asked for. The
graph holds no model (dask-ml's issue 842 shows why). A task holds a few hundred bytes, from which its process makes a
posterior once, and keeps it. In this process the model is in memory; before a graph is pickled for other processes, the
model is stored where they can read it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dkgp.data.sources.labelled import label
from dkgp.data.stores.models.model import ModelAddress
from dkgp.data.types import FloatArray
from dkgp.errors import ClusterError, InputError, StoreError
from dkgp.estimators.fitted import Fitted, FittedModel
from dkgp.estimators.inputs import Table, as_array, is_dask, is_dask_frame
from dkgp.estimators.scikit_learn import ConvergenceWarning
from dkgp.kernels import Kernel, has_user_function
from dkgp.models.prediction.posterior import Columns
from dkgp.models.prediction.predict import PosteriorSource
from dkgp.models.variance.batch import relative_gap
from dkgp.models.variance.settings import VarianceSettings


def frame_index(table: object) -> Any:
    """The index of a pandas DataFrame; None of anything else. pandas is not imported for the answer."""
    pandas = sys.modules.get("pandas")
    return table.index if pandas is not None and isinstance(table, pandas.DataFrame) else None


def framed(values: Any, index: Any, name: str, columns: Sequence[Any] | None = None) -> Any:
    """Values (n,) as a Series of that name, or (n, columns) as a DataFrame, with a pandas index."""
    from dkgp.estimators.pandas_kinds import PredictedColumn, PredictedColumns

    if values.ndim == 1:
        return PredictedColumn(values, index=index, name=name)
    return PredictedColumns(values, index=index, columns=columns)


def map_rows(frame: Any, compute: Callable[[FloatArray], FloatArray], columns: Sequence[Any]) -> Any:
    """Apply a function of rows (r, d) -> (r, columns) to each partition of a dask DataFrame, as a dask DataFrame.

    Rows and index of a result come from one and the same partition. A dask array of the frame joined to the frame's
    index would not do: dask optimises each of them by itself, so that the graph lacks keys, or a shuffle runs twice and
    orders its rows differently.

    `compute` needs a token of its own (`__dask_tokenize__`), or to be of plain values.
    """
    import pandas

    meta = pandas.DataFrame(np.empty((0, len(columns))), index=frame._meta.index, columns=list(columns))
    return frame.map_partitions(_computed_rows, compute, list(columns), meta=meta)


def _computed_rows(part: Any, compute: Callable[[FloatArray], FloatArray], columns: list[Any]) -> Any:
    return type(part)(compute(part.to_numpy(np.float64, na_value=np.nan)), index=part.index, columns=columns)


@dataclass(frozen=True)
class Form:
    """The form in which a quantity is returned.

    Attributes
    ----------
    title
        Name of a Series or a DataArray.
    columns : (columns,) ndarray, optional
        Names of its columns; None for a single one, which is returned as a vector.
    across
        Dimension of the columns of a DataArray.
    decode
        Function of a column (n,), such as codes of classes, that returns its values.
    framed
        Whether it is a Series or DataFrame if the inputs are a DataFrame, and not an array.
    """

    title: str
    columns: NDArray[Any] | None = None
    across: str = "target"
    decode: Callable[[FloatArray], NDArray[Any]] | None = None
    framed: bool = True

    @classmethod
    def of_targets(cls, targets: Sequence[str], stem: str, *, several: bool) -> Form:
        """Return the form of a quantity of each target; `stem` is the end of its name, as in "price_std"."""
        title = "_".join(filter(None, ("target" if several else targets[0], stem)))
        return cls(title, np.asarray(targets) if several else None)


def present(values: Any, table: Table, form: Form) -> Any:
    """Return a quantity (n, columns) in the container of its inputs, which `table` describes; lazily where it is lazy.

    `values` are an array, or a dask DataFrame for inputs in one.
    """
    names = None if form.columns is None else form.columns.tolist()
    if table.frame is not None and form.framed:
        if names is not None:
            return values.rename(columns=dict(zip(values.columns, names, strict=True)))
        column = values[values.columns[0]].rename(form.title)
        if form.decode is None:
            return column
        meta = type(column._meta)(form.decode(np.empty(0)), index=column._meta.index, name=form.title)
        return column.map_partitions(_decoded_rows, form.decode, meta=meta)
    values = as_array(values) if table.frame is not None else values
    if names is None:
        values = values[:, 0]
    if form.decode is not None:
        none = form.decode(np.empty(0))
        values = values.map_blocks(form.decode, dtype=none.dtype, meta=none) if is_dask(values) else form.decode(values)
    if table.index is not None and form.framed:
        return framed(values, table.index, form.title, names)
    if table.labels is None:
        return values
    return label(values, table.labels, form.title, None if names is None else {form.across: form.columns})


def _decoded_rows(column: Any, decode: Callable[[FloatArray], NDArray[Any]]) -> Any:
    return type(column)(decode(column.to_numpy()), index=column.index, name=column.name)


# Names of quantities whose column has another name.
_COLUMNS = {"mean_error": "mean_error_bound", "bounds": "decision_error_bound", "label": "class", "std": "variance"}


def quantity(predicted: Columns, name: str) -> NDArray[np.float64]:
    """Return a quantity of predictions by its name for users, (r, columns); `InputError` where there is none."""
    values = np.asarray(predicted[_COLUMNS.get(name, name)], dtype=np.float64)
    values = np.sqrt(values) if name == "std" else values
    return values[:, None] if values.ndim == 1 else values


class _PredictBlock:
    """Rows of inputs (r, d) -> all quantities side by side, (r, columns)."""

    def __init__(self, source: PosteriorSource, quantities: tuple[str, ...], fitted: Fitted | None) -> None:
        self._source, self._quantities = source, quantities
        # Keeps the model in memory for as long as the graph may ask for it.
        self._fitted = fitted

    def __call__(self, block: Any) -> NDArray[np.float64]:
        try:
            posterior = self._source.posterior()
        except StoreError as error:
            raise ClusterError(
                f"the model that a prediction belongs to cannot be read: {error} Keep the estimator until its "
                "predictions are computed, and give it `store=`, a folder or URL that all workers can read"
            ) from error
        predicted = posterior(np.asarray(block, dtype=np.float64))
        return np.concatenate([quantity(predicted, name) for name in self._quantities], axis=1)

    def __reduce__(self) -> tuple[Any, ...]:
        source = self._source
        if self._fitted is not None:
            source = replace(source, address=replace(source.address, url=self._fitted.readable_url()))
        return _PredictBlock, (source, self._quantities, None)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("dkgp-predict", _token(self._source), self._quantities)


def _token(source: PosteriorSource) -> str:
    """A token of the predictions: the model's version counts, not its address."""
    return str(replace(source, address=ModelAddress("")))


def lazy_predictions(
    fitted: Fitted,
    source: PosteriorSource,
    inputs: Any,
    quantities: tuple[str, ...],
    columns: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Predict at a dask array or DataFrame without computing anything.

    `inputs` are a dask array (n, d), whose row chunks are kept and whose columns are put into one chunk, or a dask
    DataFrame of the features; `quantities` are names of `quantity`, `columns` the number of columns of each (p by
    default). Returns (n, columns) dask arrays by name, or DataFrames, all of the same tasks: quantities that are
    computed together are computed once.

    Raises `InputError`: not two-dimensional.
    """
    import dask.array
    from dask.base import tokenize

    if inputs.ndim != 2:
        raise InputError(f"inputs have shape {inputs.shape}; expected (n, d)")
    p = fitted.record.n_targets
    widths = [p if columns is None else columns[name] for name in quantities]
    block = _PredictBlock(source, quantities, fitted)
    if is_dask_frame(inputs):
        labels = {name: [f"{name}.{k}" for k in range(width)] for name, width in zip(quantities, widths, strict=True)}
        frame = map_rows(inputs, block, [label for each in labels.values() for label in each])
        return {name: frame[each] for name, each in labels.items()}
    if inputs.numblocks[1] > 1:
        inputs = inputs.rechunk({1: -1})
    stops = np.cumsum(widths).tolist()
    joint = dask.array.map_blocks(
        block,
        inputs,
        chunks=(inputs.chunks[0], (stops[-1],)),
        dtype=np.float64,
        meta=np.empty((0, 0)),
        name=f"dkgp-predict-{tokenize(_token(source), inputs.name, quantities)}",
    )
    parts = zip(quantities, widths, stops, strict=True)
    return {name: joint[:, stop - width : stop] for name, width, stop in parts}


UNKNOWN_SIZE_SAMPLES = 100_000
_ENDS = ("variance_lower", "variance_upper")


class PredictionBounds(NamedTuple):
    """Proven bounds of predictions, in the targets' units; each shaped as the mean.

    Of the exact Gaussian process with the model's hyperparameters, for which a user's function in its kernel must be
    positive definite.

    Attributes
    ----------
    mean_error
        By how much the mean can miss the exact Gaussian process's.
    variance_lower, variance_upper
        Ends of an interval that holds the exact variance.
    """

    mean_error: Any
    variance_lower: Any
    variance_upper: Any


def what_holds(kernel: Kernel) -> str:
    """A sentence on the error bounds of a solution that did not converge: they hold."""
    bounds = "The error bounds of predictions are valid for this solution, but wider than requested"
    if has_user_function(kernel):
        return (
            f"{bounds}. They assume that the user's function in the kernel is positive definite, which was checked on "
            f"samples alone"
        )
    return bounds


def predictions(
    fitted: Fitted,
    table: Table,
    asked: tuple[str, ...],
    settings: VarianceSettings,
    *,
    several: bool,
    client: Any = None,
) -> Any:
    """Predict, lazily where the inputs are.

    `asked` has "mean", then any of "std", "variance" and "bounds": the mean alone is returned, or a tuple.
    With `several` there is a dimension for targets; a `client` computes predictions that are not lazy.
    """
    names = tuple(name for what in asked for name in (PredictionBounds._fields if what == "bounds" else (what,)))
    with_variance = any(name not in ("mean", "mean_error") for name in names)
    variance, targets = settings if with_variance else None, fitted.record.target_names
    known = {
        name: present(values, table, Form.of_targets(targets, "" if name == "mean" else name, several=several))
        for name, values in quantities(fitted, table.rows, names, variance, client).items()
    }
    results = [
        PredictionBounds(*(known[name] for name in PredictionBounds._fields)) if what == "bounds" else known[what]
        for what in asked
    ]
    return results[0] if len(results) == 1 else tuple(results)


def quantities(
    fitted: Fitted,
    inputs: Any,
    names: tuple[str, ...],
    variance: VarianceSettings | None = None,
    client: Any = None,
    columns: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Predict quantities, by name, (n, columns): lazily where the inputs are, else as arrays, by the client if any.

    `columns` are as of `lazy_predictions`.
    """
    from dask.base import compute

    # The ends of intervals tell if they are as narrow as was asked for; those of sparse models do not depend on that.
    judged = variance is not None and isinstance(fitted, FittedModel) and not is_dask(inputs)
    wanted = tuple(dict.fromkeys((*names, *_ENDS))) if judged else names
    if not is_dask(inputs) and client is None:
        rows = np.asarray(inputs, dtype=np.float64)
        _require_features(fitted, rows)
        predicted = fitted.posterior(variance, len(rows))(rows)
        known = {name: quantity(predicted, name) for name in wanted}
    else:
        rows = inputs if is_dask(inputs) else _rows_for_client(inputs)
        _require_features(fitted, rows)
        n = UNKNOWN_SIZE_SAMPLES if is_dask_frame(rows) or np.isnan(rows.shape[0]) else int(rows.shape[0])
        known = lazy_predictions(fitted, fitted.source(variance, n), rows, wanted, columns)
        if is_dask(inputs):
            return known
        known = dict(zip(known, compute(*known.values(), scheduler=client), strict=True))
    if judged:
        assert variance is not None
        _warn_of_wide_intervals(known["variance_lower"], known["variance_upper"], variance.gap)
    return {name: known[name] for name in names}


def _warn_of_wide_intervals(lower: FloatArray, upper: FloatArray, wanted: float) -> None:
    """Warn if intervals of variances (r, p) are wider than was asked for, and of how many."""
    gaps = relative_gap(lower, upper)
    # Moving the ends to the targets' units widens an interval that just met the gap by roundings.
    missed = float(np.mean(gaps > wanted * (1.0 + 1e-6))) if gaps.size else 0.0
    if missed:
        warnings.warn(
            f"{100.0 * missed:.3g}% of the variances are known less closely than variance_gap={wanted:g} asks: the "
            f"widest interval is {100.0 * float(gaps.max()):.3g}% of its upper end. A deviation is the middle of its "
            "interval; return_bounds=True gives the ends. A larger noise_variance makes intervals narrower",
            ConvergenceWarning,
            stacklevel=2,
        )


def _rows_for_client(inputs: Any) -> Any:
    """Inputs in memory (n, d) as a dask array for a client's workers."""
    import dask.array

    rows = np.asarray(inputs, dtype=np.float64)
    # Tasks enough to keep workers busy, of rows enough to be worth a message.
    return dask.array.from_array(rows, chunks=(int(np.clip(len(rows) // 64, 512, 8192)), -1))


def _require_features(fitted: Fitted, inputs: Any) -> None:
    """Make sure that inputs have the model's features; `InputError` where they have not."""
    to = fitted.record.standardisation
    raw, kept = to.n_raw_features, fitted.record.n_features + len(to.covariates)
    if inputs.ndim != 2 or inputs.shape[1] not in (raw, kept):
        raise InputError(f"X has shape {inputs.shape}; expected (n, {raw}), the features of the training set")
