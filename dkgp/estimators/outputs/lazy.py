"""Predictions of dask arrays and DataFrames, lazily: one task for each row chunk, which computes all that is asked for.

The graph holds no model (dask-ml's issue 842 shows why). A task holds a few hundred bytes, from which its process makes
a predictor once, and keeps it. In this process the model is in memory; before a graph is pickled for other processes,
the model is stored where they can read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.errors import ClusterError, InputError, StoreError
from dkgp.estimators.fitted import Fitted
from dkgp.estimators.inputs import is_dask_frame
from dkgp.estimators.outputs.frames import map_rows
from dkgp.models.prediction.class_predictor import ClassPredicted, ClassPredictorSource
from dkgp.models.prediction.predictor import Predicted, PredictorSource
from dkgp.models.prediction.sparse import SparsePredicted, SparsePredictorSource

Source = PredictorSource | SparsePredictorSource | ClassPredictorSource
# Name -> what it is of a prediction, (r, columns).
Quantities = Mapping[str, Callable[[Predicted | SparsePredicted | ClassPredicted], NDArray[np.float64]]]


class _PredictBlock:
    """Rows of inputs (r, d) -> all quantities side by side, (r, columns)."""

    def __init__(self, source: Source, quantities: tuple[str, ...], fitted: Fitted | None) -> None:
        self._source, self._quantities = source, quantities
        # Keeps the model in memory for as long as the graph may ask for it.
        self._fitted = fitted

    def __call__(self, block: Any) -> NDArray[np.float64]:
        try:
            predictor = self._source.predictor()
        except StoreError as error:
            raise ClusterError(
                f"the model that a prediction belongs to cannot be read: {error} Keep the estimator until its "
                "predictions are computed, and give it `store=`, a folder or URL that all workers can read"
            ) from error
        predicted = predictor(np.asarray(block, dtype=np.float64))
        return np.concatenate([QUANTITIES[name](predicted) for name in self._quantities], axis=1)

    def __reduce__(self) -> tuple[Any, ...]:
        source = self._source
        if self._fitted is not None:
            source = replace(source, url=self._fitted.readable_url())
        return _PredictBlock, (source, self._quantities, None)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("dkgp-predict", _token(self._source), self._quantities)


QUANTITIES: Quantities = {
    **{name: attrgetter(name) for name in ("mean", "mean_error", "variance", "variance_lower", "variance_upper")},
    "std": lambda predicted: np.sqrt(_of(predicted, "variance")),
    **{
        name: attrgetter(name)
        for name in ("decision", "bounds", "probability", "probability_lower", "probability_upper")
    },
    "label": lambda predicted: _of(predicted, "code")[:, None],
    "certified": lambda predicted: _of(predicted, "certified")[:, None],
}


def _of(predicted: Predicted | SparsePredicted | ClassPredicted, name: str) -> NDArray[np.float64]:
    return np.asarray(getattr(predicted, name), dtype=np.float64)


def _token(source: Source) -> str:
    """A token of the predictions: the model's version counts, not its address."""
    return str(replace(source, url=""))


def lazy_predictions(
    fitted: Fitted,
    source: Source,
    inputs: Any,
    quantities: tuple[str, ...],
    columns: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Predict at a dask array or DataFrame without computing anything.

    `inputs` are a dask array (n, d), whose row chunks are kept and whose columns are put into one chunk, or a dask
    DataFrame of the features; `quantities` are keys of `QUANTITIES`, `columns` the number of columns of each (p by
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
