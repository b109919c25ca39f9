"""From what `fit` is given to a training set with labels: any sort of class values, in any sort of container."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.data import Dataset
from dkgp.data.classes import check_classes, class_name
from dkgp.data.sources.labelled import is_labelled, labelled_targets
from dkgp.errors import InputError
from dkgp.estimators.fitted import Workspace
from dkgp.estimators.scikit_learn import validate_data
from dkgp.estimators.tables import is_dask, is_plain, read_samples
from dkgp.estimators.training_set import feature_names_of, kept_samples, note_features, target_names_of
from dkgp.estimators.values import label_values, numbers_of, require_same_order
from dkgp.models.classification.labels import Labels, labels_of

# Kinds of NumPy arrays whose values JSON has words for.
_JSON_KINDS = "biufU"


@dataclass(frozen=True)
class LabelledSet:
    """A training set.

    Attributes
    ----------
    dataset : Dataset
    labels : Labels
        Of its samples, under the classes' names.
    classes : (C,) ndarray
        The classes as they were given, in the order of their codes.
    sample_weight : (n,) ndarray or None
    """

    dataset: Dataset
    labels: Labels
    classes: NDArray[Any]
    sample_weight: NDArray[np.float64] | None


def labelled_set(estimator: Any, X: Any, y: Any, sample_weight: Any, workspace: Workspace) -> LabelledSet:
    """Make a training set, and tell the estimator what scikit-learn wants known of it.

    The estimator gets `n_features_in_` and, where there are names, `feature_names_in_`; a store goes to the workspace.
    Of inputs in memory, samples of weight zero are left out.

    Raises `InputError`: a `ValueError`: one class only, a label that is missing, weights that do not fit.
    """
    require_same_order(X, y=y, sample_weight=sample_weight)
    if is_plain(X):
        inputs, targets = _validated(estimator, X, y)
        names = feature_names_of(estimator)
        label_name = target_names_of(y, names or ())
    else:
        table = read_samples(X, y)
        note_features(estimator, len(table.names) if table.names else table.inputs.shape[1], table.names)
        if table.dataset is not None:
            labels = labels_of(table.dataset)
            # A store may bring weights of its own; those that are given take their place.
            weights = table.dataset.all_weights() if sample_weight is None else sample_weight
            weight = _weights(weights, labels.n_samples)
            return LabelledSet(table.dataset, labels, np.asarray(labels.classes), weight)
        inputs, names, label_name = table.inputs, table.names, table.target_names
        targets = _column(table.targets)
    weight = _weights(sample_weight, len(targets))
    if weight is not None and not weight.any():
        raise InputError("the weight of every sample is zero; expected a positive one for some samples of each class")
    if weight is not None and not is_dask(inputs) and not weight.all():
        kept = weight > 0.0
        inputs, targets, weight = np.asarray(inputs)[kept], targets[kept], weight[kept]
    classes, codes = encoded(targets)
    labels = Labels(check_classes([class_name(value) for value in classes.tolist()]), codes)
    about: dict[str, Any] = {
        "feature_names": names or tuple(f"x{column}" for column in range(inputs.shape[1])),
        "target_names": label_name or ("y",),
        "classes": labels.classes,
    }
    dataset = kept_samples(estimator, inputs, codes.astype(np.float64), workspace, about)
    return LabelledSet(dataset, labels, classes, weight)


def true_labels(X: Any, y: Any, classes: NDArray[Any], names: tuple[str, ...]) -> NDArray[Any]:
    """Labels to compare predictions with, (r,), in the form of `classes`; those of a store are matched by name.

    Raises `InputError`: there are no labels, or a label of the store is not among `names`.
    """
    require_same_order(X, y=y)
    if y is None or not is_plain(X):
        table = read_samples(X, y)
        if table.dataset is not None:
            store = table.dataset
            seen = store.as_seen_by(store.feature_names, store.target_names, store.standardisation, names)
            return np.asarray(classes[seen.all_labels()])
        return _column(table.targets)
    return _column(labelled_targets(y, None)[0] if is_labelled(y) else y)


def encoded(targets: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Distinct labels in order, (C,), and the code of each sample, (n,).

    Raises `InputError`: a label that is missing, labels that are continuous numbers or cannot be put in an order, one
    class only.
    """
    from sklearn.utils.multiclass import check_classification_targets

    if targets.dtype.kind == "f" and not np.isfinite(targets).all():
        row = int(np.argmin(np.isfinite(targets)))
        raise InputError(f"the label of sample {row} is {targets[row]}; leave such samples out")
    check_classification_targets(targets)
    classes, codes = np.unique(targets, return_inverse=True)
    if len(classes) < 2:
        raise InputError(
            f"there is one class only, {classes.tolist()[0]!r}; expected two classes at least to tell apart"
        )
    return classes, np.asarray(codes, dtype=np.int64)


def classes_to_json(classes: NDArray[Any]) -> dict[str, Any] | None:
    """Return classes in JSON; None for what it has no words for, whose names have to do."""
    if classes.dtype.kind == "O" and all(isinstance(value, str) for value in classes):
        return {"dtype": "O", "values": classes.tolist()}
    return {"dtype": classes.dtype.str, "values": classes.tolist()} if classes.dtype.kind in _JSON_KINDS else None


def classes_from_json(document: dict[str, Any] | None, names: tuple[str, ...]) -> NDArray[Any]:
    """Return what `classes_to_json` was made of, or the classes' names."""
    return np.asarray(names) if document is None else np.array(document["values"], dtype=document["dtype"])


def _validated(estimator: Any, X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
    values = label_values(labelled_targets(y, None)[0] if is_labelled(y) else y)
    inputs, targets = validate_data(estimator, X, values, dtype=np.float64, ensure_min_samples=2)
    return inputs, np.asarray(targets)


def _column(values: Any) -> NDArray[Any]:
    from sklearn.utils.validation import column_or_1d

    return np.asarray(column_or_1d(np.asarray(label_values(values)), warn=True))


def _weights(sample_weight: Any, n: int) -> NDArray[np.float64] | None:
    if sample_weight is None:
        return None
    values = numbers_of(sample_weight, "sample_weight")
    if values.ndim == 0:
        values = np.full(n, float(values))
    if values.shape != (n,):
        raise InputError(f"sample_weight has shape {values.shape}; expected ({n},)")
    if not np.isfinite(values).all() or (values < 0.0).any():
        row = int(np.argmin(np.isfinite(values) & (values >= 0.0)))
        raise InputError(f"the weight of sample {row} is {values[row]}; expected a finite one that is not negative")
    return values
