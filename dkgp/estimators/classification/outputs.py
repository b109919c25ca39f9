"""From a classifier's predictions to what its methods return: arrays, pandas objects, dask arrays or DataArrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.data import ClassifierRecord
from dkgp.data.sources.labelled import LabelledTable, label
from dkgp.estimators.fitted import FittedClassifier
from dkgp.estimators.outputs.frames import framed, renamed
from dkgp.estimators.outputs.outputs import quantities
from dkgp.estimators.tables import Table, as_array, is_dask
from dkgp.models.variance.settings import VarianceSettings

PROBABILITIES = ("probability", "probability_lower", "probability_upper")


def class_predictions(
    fitted: FittedClassifier, table: Table, names: tuple[str, ...], classes: NDArray[Any], client: Any = None
) -> dict[str, Any]:
    """Predict, lazily where the inputs are.

    Parameters
    ----------
    table : Table
        Inputs.
    names : tuple of str
        Any of "label", "decision", "bounds", "probability", "probability_lower", "probability_upper", "certified".
    classes : (C,) ndarray
        In the order of their codes.
    client : distributed.Client, optional
        To compute with what is not lazy.

    Returns
    -------
    dict
        By name: "label" (r,), "decision" and "bounds" (r,) of two classes, else (r, C), probabilities (r, C),
        "certified" (r,) of bool.
    """
    record = fitted.record
    t = record.n_outputs
    width = {"label": 1, "decision": t, "bounds": t, "certified": 1, **dict.fromkeys(PROBABILITIES, len(classes))}
    variance = VarianceSettings() if _averaged(record, names) else None
    predictions = quantities(fitted, table.rows, names, variance, client, {name: width[name] for name in names})
    target = record.target_names[0]
    if table.frame is not None:
        return {name: _of_frame(name, values, target, classes) for name, values in predictions.items()}
    shaped = {name: _shaped(name, values, classes) for name, values in predictions.items()}
    if table.index is not None:
        return {name: _framed(name, values, table.index, target, classes) for name, values in shaped.items()}
    if table.labels is None:
        return shaped
    return {name: _labelled(name, values, table.labels, target, classes) for name, values in shaped.items()}


def _averaged(record: ClassifierRecord, names: tuple[str, ...]) -> bool:
    """True where a Gaussian process' probabilities are averaged for these, which takes variances.

    Decisions take none, nor do classes, but those of several functions of all samples: the most likely on average.
    """
    without = {"decision", "bounds"} | ({"label"} if record.n_outputs == 1 or record.is_sparse else set())
    return record.form == "gp" and not without.issuperset(names)


def _framed(name: str, values: Any, index: Any, target: str, classes: NDArray[Any]) -> Any:
    """Values with a DataFrame's index; decisions stay an array, whose columns scikit-learn's calibration goes over."""
    if name in ("decision", "bounds"):
        return values
    return framed(values, index, _title(target, name), list(classes))


def _of_frame(name: str, frame: Any, target: str, classes: NDArray[Any]) -> Any:
    """Columns of a dask DataFrame in the form of `_framed`."""
    if name in ("decision", "bounds"):
        values = as_array(frame)
        return values if values.shape[1] > 1 else values[:, 0]
    if name in PROBABILITIES:
        return renamed(frame, classes.tolist())
    column = frame[f"{name}.0"].rename(_title(target, name))
    if name == "certified":
        return column > 0.5
    meta = type(column._meta)(classes[:0], index=column._meta.index, name=column.name)
    return column.map_partitions(_taken_rows, classes, meta=meta)


def _taken_rows(column: Any, classes: NDArray[Any]) -> Any:
    return type(column)(_taken(column.to_numpy(), classes), index=column.index, name=column.name)


def _title(target: str, name: str) -> str:
    return "_".join(filter(None, (target, _stem(name))))


def _stem(name: str) -> str:
    """The quantity's part of a name; nothing for the label itself."""
    return "" if name == "label" else {"bounds": "decision_error_bound"}.get(name, name)


def _shaped(name: str, values: Any, classes: NDArray[Any]) -> Any:
    """Columns as scikit-learn has them, of NumPy or dask arrays."""
    if name in PROBABILITIES or (name in ("decision", "bounds") and values.shape[1] > 1):
        return values
    column = values[:, 0]
    if name == "certified":
        return column > 0.5
    if name != "label":
        return column
    if not is_dask(column):
        return classes[column.astype(np.int64)]
    return column.map_blocks(_taken, classes, dtype=classes.dtype, meta=classes[:0])


def _taken(codes: NDArray[np.float64], classes: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(classes[codes.astype(np.int64)])


def _labelled(name: str, values: Any, like: LabelledTable, target: str, classes: NDArray[Any]) -> Any:
    """Values as a DataArray, with the samples' coordinates and, across, the classes."""
    across = "class_name" if values.ndim > 1 else None
    array = label(values, like, (target,), _stem(name), several=False, last_dimension=across)
    return array if across is None else array.assign_coords({across: classes})
