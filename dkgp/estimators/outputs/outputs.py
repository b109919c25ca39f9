"""From predictions to what `predict` returns: arrays, pandas objects, dask arrays, DataArrays, alone or in a tuple."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dkgp.data.sources.labelled import label
from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.estimators.fitted import Fitted, FittedModel
from dkgp.estimators.inputs import Table, is_dask, is_dask_frame
from dkgp.estimators.outputs.frames import framed, renamed
from dkgp.estimators.outputs.lazy import QUANTITIES, lazy_predictions
from dkgp.estimators.scikit_learn import ConvergenceWarning
from dkgp.kernels import Kernel, has_user_function
from dkgp.models.variance.batch import relative_gap
from dkgp.models.variance.settings import VarianceSettings

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
    bounds = "The error bounds of predictions are those of the solution as it stands, wider than asked for, and hold"
    if has_user_function(kernel):
        return (
            f"{bounds} if the user's function in the kernel is positive definite, which was looked at on samples alone"
        )
    return f"{bounds} all the same"


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

    What is `asked` for is "mean", then any of "std", "variance" and "bounds": the mean alone is returned, or a tuple.
    With `several` there is a dimension for targets; a `client` computes what is not lazy.
    """
    names = tuple(name for what in asked for name in (PredictionBounds._fields if what == "bounds" else (what,)))
    with_variance = any(name not in ("mean", "mean_error") for name in names)
    variance = settings if with_variance else None
    known = quantities(fitted, table.rows, names, variance, client)
    if table.frame is None and not several:
        known = {name: values[:, 0] for name, values in known.items()}
    if table.labels is not None:
        targets = fitted.record.target_names
        known = {
            name: label(values, table.labels, targets, "" if name == "mean" else name, several=several)
            for name, values in known.items()
        }
    targets = fitted.record.target_names
    titles = {name: targets[0] if name == "mean" else f"{targets[0]}_{name}" for name in known}
    if table.frame is not None:
        known = {
            name: renamed(values, targets) if several else values[f"{name}.0"].rename(titles[name])
            for name, values in known.items()
        }
    elif table.index is not None:
        known = {name: framed(values, table.index, titles[name], targets) for name, values in known.items()}
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
        predicted = fitted.predictor(variance, len(rows))(rows)
        known = {name: QUANTITIES[name](predicted) for name in wanted}
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
    raw, kept = fitted.record.standardisation.n_raw_features, fitted.record.n_features
    if inputs.ndim != 2 or inputs.shape[1] not in (raw, kept):
        raise InputError(f"X has shape {inputs.shape}; expected (n, {raw}), the features of the training set")
