"""Samples that `fit` and `update` are given: a training set in memory or in a store, and the samples' noise."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkgp.cluster import ClusterOptions
from dkgp.cluster.client_executor import is_in_process, require_this_process
from dkgp.data import Dataset, ModelRecord, dataset_from_arrays, memory_dataset
from dkgp.data.sources.ingest import ingest_blocks
from dkgp.data.sources.labelled import is_labelled, labelled_targets
from dkgp.data.stores.standardisation import require_varying_targets, standardised_noise
from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.estimators.fitted import Workspace
from dkgp.estimators.inputs import (
    Table,
    computed,
    is_dask,
    is_dask_frame,
    is_plain,
    numbers_of,
    numeric,
    read_inputs,
    read_samples,
    require_same_order,
    take_rows,
)
from dkgp.estimators.parameters import check_parameters
from dkgp.estimators.scikit_learn import validate_data
from dkgp.estimators.settings import ambient_client
from dkgp.models.noise import Noise, NoiseModel, check_relative


def training_set(estimator: Any, X: Any, y: Any, workspace: Workspace) -> tuple[Dataset, bool]:
    """Make a training set, and set scikit-learn's attributes of the estimator.

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
        covariates = table.dataset.covariate_names
        if covariates and not hasattr(estimator, "covariates"):
            raise InputError(
                f"'{table.dataset.url}' has the covariates {', '.join(covariates)}, which enter the mean of a "
                f"GPRegressor alone; {type(estimator).__name__} has no such mean. Ingest without `covariates`"
            )
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
    """True if the workers can read this process's memory."""
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


BOTH = "got both the noise of the samples and a noise model or Student's t; leave one of them out"

# A sample's noise s2 / w is kept as a difference from s2, so that rounding changes it by up to w 2^-52 of itself.
LARGEST_WEIGHT = 1e12


@dataclass(frozen=True)
class SampleNoise:
    """Known noise variances (n,), in the target's units squared, or multiples of s2 (n,): one over weights.

    None if not given. A weight of zero is an infinite multiple.
    """

    variances: FloatArray | None = None
    relative: FloatArray | None = None

    @classmethod
    def of(cls, sample_noise: Any = None, sample_weight: Any = None, relative_noise: Any = None) -> SampleNoise:
        """Check variances, weights, or one over weights; `InputError` for wrong values, or several of these."""
        if relative_noise is not None:
            if sample_noise is not None or sample_weight is not None:
                raise InputError(
                    "relative_noise is one over sample_weight, and sample_noise the variances themselves; give one of "
                    "them"
                )
            relative = numbers_of(relative_noise, "relative_noise")
            check_relative(relative, relative.size)
            return cls(None, relative)
        if sample_noise is not None and sample_weight is not None:
            raise InputError(
                "sample_noise and sample_weight both set the samples' noise: the first as variances, the second as "
                "divisors of the common noise variance. Leave one of them out"
            )
        variances = _checked(sample_noise, "sample_noise", "variances in the target's units squared")
        weights = _checked(sample_weight, "sample_weight", "weights")
        if weights is not None and weights.size and not weights.any():
            raise InputError("sample_weight is zero for every sample; expected a positive weight for some")
        if weights is None:
            return cls(variances)
        with np.errstate(divide="ignore", over="ignore"):
            return cls(None, 1.0 / weights)

    def without_weightless(self, X: Any, y: Any) -> tuple[Any, Any, SampleNoise]:
        """Inputs and targets without the samples of weight zero, and the noise of the others.

        Raises `InputError` for labelled inputs and stores, whose samples cannot be left out here.
        """
        if self.relative is None or np.isfinite(self.relative).all():
            return X, y, self
        if is_dask_frame(X) or not (is_plain(X) or is_dask(X)):
            raise InputError(
                f"sample_weight is zero for sample {int(np.argmax(self.relative))}; leave such samples out of X, which "
                f"is of type {type(X).__name__}, or give them as arrays"
            )
        self.require(np.shape(X)[0])
        kept = np.flatnonzero(np.isfinite(self.relative))
        return take_rows(X, kept), take_rows(y, kept), SampleNoise(None, self.relative[kept])

    def require(self, n: int) -> None:
        """Refuse noise of another number of samples; `InputError`."""
        for name, values in (("sample_noise", self.variances), ("sample_weight", self.relative)):
            if values is not None and values.shape != (n,):
                raise InputError(f"{name} has shape {values.shape}; expected ({n},), a value for each sample")

    def require_one_target(self, n_targets: int) -> None:
        """Refuse variances of several targets, `InputError`."""
        if self.variances is not None and n_targets != 1:
            raise InputError(
                f"sample_noise is in the units of one target, and there are {n_targets}, each with its own scale. Give "
                "(n, p), a column for each, or sample_weight, which has no units"
            )

    def of_dataset(self, dataset: Dataset) -> None:
        """Check against a training set; `InputError`."""
        self.require(dataset.n_samples)
        self.require_one_target(dataset.n_targets)
        if self.relative is not None and dataset.noise_name is not None:
            raise InputError(
                f"'{dataset.url}' has a column of known noise, '{dataset.noise_name}'; leave sample_weight out"
            )

    def known(self, target_std: FloatArray) -> FloatArray | None:
        """The variances, standardised: (n,)."""
        return None if self.variances is None else standardised_noise(self.variances, target_std)

    @property
    def multiples(self) -> FloatArray | None:
        """The multiple of s2 that each sample has; None where that is one for all."""
        return None if self.relative is None or (self.relative == 1.0).all() else self.relative

    def beside(self, noise_variance: float, target_std: FloatArray) -> FloatArray | None:
        """Return each sample's noise less s2, standardised, below zero for a weight above one: (n,).

        Raises `InputError` for weights whose noise float64 does not keep as a difference from s2.
        """
        if self.relative is None:
            return self.known(target_std)
        if self.multiples is None:
            return None
        with np.errstate(over="ignore"):
            noise = noise_variance * self.multiples
            weights = 1.0 / self.multiples
        if (beyond := (weights > LARGEST_WEIGHT) | np.isinf(noise)).any():
            row = int(np.argmax(beyond))
            raise InputError(
                f"sample_weight is {weights[row]:.3g} for sample {row}; expected weights of at most "
                f"{LARGEST_WEIGHT:g}, and noise_variance / sample_weight within float64 (noise_variance is "
                f"{noise_variance:.3g}). A larger weight leaves no digits of the sample's noise beside noise_variance. "
                "Divide all weights by a common number, and give noise_variance divided by the same number"
            )
        return np.asarray(noise_variance * (self.multiples - 1.0))

    def appended(self, record: ModelRecord, dataset: Dataset) -> Noise:
        """Return the noise of a model's samples and, after them, of the new samples that this noise is for.

        Raises `InputError` where the user gives it and the model has a noise model.
        """
        known, noise = self.beside(record.noise_variance, record.standardisation.target_std), Noise.of_model(record)
        n, law = record.n_samples, noise.law
        if isinstance(law, NoiseModel):
            if known is not None:
                raise InputError(BOTH)
            known = law.beyond_least(dataset.inputs(n, dataset.n_samples))
        return noise.append(n, known, dataset.n_samples - n)


def _checked(values: Any, name: str, what: str) -> FloatArray | None:
    if values is None:
        return None
    array = numbers_of(values, name)
    if array.ndim != 1:
        raise InputError(f"{name} has shape {array.shape}; expected (n,), a value for each sample")
    odd = ~(np.isfinite(array) & (array >= 0.0))
    if odd.any():
        row = int(np.argmax(odd))
        raise InputError(
            f"{name} is {array[row]} for sample {row}; expected {what}, finite and not negative. Leave samples out "
            "that nothing is known of"
        )
    return array
