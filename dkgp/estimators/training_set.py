"""From what `fit` and `update` are given to a training set: in memory, or in a store."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from dkgp.cluster import ClusterOptions
from dkgp.cluster.client_executor import is_in_process, require_this_process
from dkgp.data import Dataset, dataset_from_arrays, memory_dataset
from dkgp.data.sources.ingest import ingest_blocks
from dkgp.data.sources.labelled import is_labelled, labelled_targets
from dkgp.data.stores.standardisation import require_varying_targets
from dkgp.errors import InputError
from dkgp.estimators.ambient import ambient_client
from dkgp.estimators.fitted import Workspace
from dkgp.estimators.inputs import (
    Table,
    computed,
    is_dask,
    is_plain,
    numbers_of,
    numeric,
    read_inputs,
    read_samples,
    require_same_order,
)
from dkgp.estimators.parameters import check_parameters
from dkgp.estimators.scikit_learn import validate_data


def training_set(estimator: Any, X: Any, y: Any, workspace: Workspace) -> tuple[Dataset, bool]:
    """Make a training set, and tell the estimator what scikit-learn wants known of it.

    The estimator gets `n_features_in_` and, where there are names, `feature_names_in_`; a store goes to the workspace,
    where there has to be one. Returned is also whether predictions have a dimension for targets.
    """
    if is_plain(X):
        table = _plain_samples(estimator, X, y)
    else:
        table = read_samples(X, y)
        table = replace(table, targets=numeric(table.targets, "y"))
        width = len(table.names) if table.names is not None else table.inputs.shape[1]
        note_features(estimator, width, table.names)
    if table.dataset is not None:
        return table.dataset, table.several_targets
    feature_names = table.names or tuple(f"x{column}" for column in range(table.inputs.shape[1]))
    target_names = table.target_names or default_targets(table.targets)
    names: dict[str, Any] = {"feature_names": feature_names, "target_names": target_names}
    if not is_dask(table.targets):  # those are looked at as they are ingested
        columns = np.asarray(table.targets, dtype=np.float64).reshape(len(table.targets), -1)
        require_varying_targets(target_names, (columns == columns[0]).all(axis=0), columns[0], len(columns))
    return kept_samples(estimator, table.inputs, table.targets, workspace, names), table.several_targets


def kept_samples(estimator: Any, inputs: Any, targets: Any, workspace: Workspace, names: dict[str, Any]) -> Dataset:
    """Samples as a data set: in a store where they are lazy, or where workers cannot read this process's memory."""
    if is_dask(inputs):
        require_this_process(estimator.client)
        return ingest_blocks(workspace.url("training-set"), inputs, targets, scheduler=estimator.client, **names)
    if reads_memory(client_for(estimator, inputs)):
        return memory_dataset(inputs, computed(targets), **names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of constant features, which are nothing to warn of here
        return dataset_from_arrays(workspace.url("training-set"), inputs, computed(targets), **names)


def new_samples(estimator: Any, X: Any, y: Any, p: int) -> tuple[Any, Any]:
    """Raw inputs (m, d_raw) and p targets to be appended to a training set, in memory.

    Raises `InputError`: other features, or another number of targets.
    """
    if is_plain(X):
        inputs, targets = _validated(estimator, X, y, reset=False)
    else:
        table = read_inputs(X, feature_names_of(estimator))
        if table.dataset is not None:
            targets = table.dataset.all_targets(standardised=False)
        else:
            targets = numbers_of(labelled_targets(y, X)[0], "y")
        inputs = np.asarray(computed(table.inputs))
        if inputs.shape[1] != estimator.n_features_in_:
            raise InputError(f"X has {inputs.shape[1]} features; expected {estimator.n_features_in_}")
    result = 1 if np.ndim(targets) == 1 else np.shape(targets)[1]
    if result != p:
        raise InputError(f"y has {result} targets; expected {p}, as the training set has")
    return inputs, targets


def plain_inputs(estimator: Any, X: Any) -> Any:
    """Raw inputs to predict at, (r, d_raw), checked as scikit-learn has it."""
    return validate_data(estimator, X, reset=False, dtype=np.float64)


def true_targets(X: Any, y: Any) -> Any:
    """Return the targets to compare predictions with, computed; errors as of `numbers_of` and `require_same_order`."""
    require_same_order(X, y=y)
    if y is None or not is_plain(X):
        table = read_samples(X, y)
        if table.dataset is None:
            return numbers_of(table.targets, "y")
        values = table.dataset.all_targets(standardised=False)
        return values if table.several_targets else values[:, 0]
    return numbers_of(_target_values(y), "y")


def client_for(estimator: Any, inputs: Any) -> Any:
    """The estimator's client, or the one that is around, if it is of use for inputs (n, d) in memory."""
    return estimator.client if estimator.client is not None else ambient_client(len(inputs))


def outer_client(estimator: Any) -> Any:
    """Return the estimator's client if its workers are in other processes; None otherwise, and without one."""
    check_parameters(estimator, "client")
    return None if estimator.client is None or is_in_process(estimator.client) else estimator.client


def reads_memory(client: Any) -> bool:
    """True if whoever is going to compute can read this process's memory."""
    return is_in_process(client) if client is not None else ClusterOptions().address() is None


def _plain_samples(estimator: Any, X: Any, y: Any) -> Table:
    inputs, targets = _validated(estimator, X, y, ensure_min_samples=2)  # a variance needs two
    names = feature_names_of(estimator)
    return Table(inputs, names, targets, target_names_of(y, names or ()), targets.ndim > 1)


def feature_names_of(estimator: Any) -> tuple[str, ...] | None:
    """Names of the features that an estimator was fitted with, where they had any."""
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else tuple(str(name) for name in names)


def _validated(estimator: Any, X: Any, y: Any, **how: Any) -> Any:
    """Check inputs and targets as scikit-learn does."""
    return validate_data(estimator, X, _target_values(y), multi_output=True, y_numeric=True, dtype=np.float64, **how)


def _target_values(y: Any) -> Any:
    """Targets in a form that scikit-learn can check."""
    if is_labelled(y):
        y = labelled_targets(y, None)[0]
    return computed(y)


def target_names_of(y: Any, features: Any) -> tuple[str, ...] | None:
    """Names that a Series, a DataFrame or a DataArray brings, where they are texts and none is a feature's."""
    columns = getattr(y, "columns", None)
    result = list(columns) if columns is not None else [getattr(y, "name", None)]
    usable = [name for name in result if isinstance(name, str) and name not in set(features)]
    return tuple(usable) if len(usable) == len(result) and not is_dask(y) else None


def default_targets(targets: Any) -> tuple[str, ...]:
    """Names of targets (n,) or (n, p) that have none."""
    return ("y",) if targets.ndim == 1 else tuple(f"y{column}" for column in range(targets.shape[1]))


def note_features(estimator: Any, width: int, names: tuple[str, ...] | None) -> None:
    """Tell the estimator how many features there are, and their names where they have any."""
    estimator.n_features_in_ = width
    if names is not None:
        estimator.feature_names_in_ = np.asarray(names, dtype=object)
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
