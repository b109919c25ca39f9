"""Data sets in memory, and data sets with rows added: the same handle as a store's, without the store.

Rows are held standardised, as they are read. Rows in memory stay in their process (see `MemoryArray`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from dkgp.data.classes import codes_of_targets
from dkgp.data.numbers import real_numbers
from dkgp.data.stores.arrays import sample_chunk_rows
from dkgp.data.stores.dataset import ColumnNames, Dataset
from dkgp.data.stores.row_arrays import AppendedRows, InSourceUnits, MemoryArray, RowArray
from dkgp.data.stores.standardisation import RunningMoments, Standardisation
from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError


def _assembled(
    rows: tuple[RowArray | FloatArray, RowArray | FloatArray],
    standardisation: Standardisation,
    names: ColumnNames,
    fingerprint: str,
    *,
    origin: str = " in memory",
    chunk_rows: int | None = None,
    constants: FloatArray | None = None,
    noise: RowArray | None = None,
) -> Dataset:
    """Return a data set of standardised inputs and targets, (n, d) and (n, p), in memory or elsewhere.

    `constants` (d_raw,) are the values of features that the standardisation drops, where they are known; `noise` is the
    known noise, under its name among `names`.
    """
    standard_inputs, standard_targets = (MemoryArray(part) if isinstance(part, np.ndarray) else part for part in rows)
    n, d = standard_inputs.shape
    dropped = np.full(len(names.features), np.nan) if constants is None else constants
    raw_inputs = InSourceUnits(standard_inputs, partial(standardisation.inputs_back, dropped=dropped), len(dropped))
    # Codes are their own standardised form.
    raw_targets: RowArray = standard_targets
    if names.classes is None:
        raw_targets = InSourceUnits(standard_targets, standardisation.targets_back, len(names.targets))
    return Dataset(
        f"{n} samples{origin}",
        {"X": raw_inputs, "y": raw_targets, **({} if noise is None else {"noise": noise})},
        feature_names=names.features,
        target_names=names.targets,
        standardisation=standardisation,
        fingerprint=fingerprint,
        n_samples=n,
        chunk_rows=chunk_rows or sample_chunk_rows(n, d + len(names.targets)),
        classes=names.classes,
        noise_name=names.noise,
        standard=(standard_inputs, standard_targets),
    )


def memory_dataset(
    X: ArrayLike,
    y: ArrayLike,
    *,
    feature_names: Sequence[str] | None = None,
    target_names: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
) -> Dataset:
    """Make a training set of arrays in memory, which it copies as it standardises them.

    Parameters
    ----------
    X : (n, d_raw) array_like
        Raw inputs, finite.
    y : (n,) or (n, p) array_like
        Raw targets, finite.
    feature_names, target_names
        Default x0, x1, ... and y (y0, y1, ... for several).
    classes
        Names of the classes where y are labels, codes 0, 1, ... into these names; they are not standardised.

    Raises
    ------
    InputError
        Arrays of unfit shape, names that are not distinct, or values that are not finite, too large, or too near to
        each other.
    """
    inputs, targets = _finite_pair(X, y)
    d, p = inputs.shape[1], targets.shape[1]
    names = ColumnNames.of_shape(d, p, feature_names, target_names, classes)
    if (len(names.features), len(names.targets)) != (d, p):
        raise InputError(f"Got {len(names.features)} and {len(names.targets)} names for {d} features and {p} targets.")
    standardisation = standardisation_of(inputs, targets, names.features, names.targets)
    if names.classes is not None:
        codes_of_targets(targets[:, 0], len(names.classes), "y")
        standardisation = replace(standardisation, target_mean=np.zeros(1), target_std=np.ones(1))
    digest = hashlib.sha256(names.fingerprint_header(len(inputs)))
    for values in (inputs, targets):
        digest.update(hashlib.sha256(np.ascontiguousarray(values, dtype="<f8").tobytes()).digest())
    return _assembled(
        (standardisation.inputs(inputs), standardisation.targets(targets)),
        standardisation,
        names,
        digest.hexdigest(),
        chunk_rows=sample_chunk_rows(len(inputs), d + p),
        constants=inputs[0].copy(),
    )


def standardised_inputs(inputs: FloatArray, feature_names: Sequence[str]) -> Dataset:
    """A data set of inputs (n, d) to predict at, in memory and standardised already. It has no targets."""
    n, d = inputs.shape
    identity = Standardisation.identity(d, 0)
    return _assembled((inputs, np.empty((n, 0))), identity, ColumnNames(tuple(feature_names), ()), "")


def assembled_dataset(
    inputs: RowArray | FloatArray,
    targets: RowArray | FloatArray,
    standardisation: Standardisation,
    feature_names: Sequence[str],
    target_names: Sequence[str],
    fingerprint: str,
    raw_feature_names: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
) -> Dataset:
    """A training set of standardised rows, (n, d) and (n, p), in memory or elsewhere, such as in a model's store.

    `feature_names` are those kept by the standardisation. Where the names of all, `raw_feature_names`, are not known,
    the others, which were constant, get names of their own.
    """
    kept, covariates = iter(feature_names), {each.column: each.name for each in standardisation.covariates}
    raw_names = tuple(raw_feature_names or ()) or tuple(
        next(kept) if keep else covariates.get(index, f"(constant {index})")
        for index, keep in enumerate(standardisation.kept)
    )
    names = ColumnNames(raw_names, tuple(target_names), None if classes is None else tuple(classes))
    return _assembled((inputs, targets), standardisation, names, fingerprint, origin=" of a model")


def standardisation_of(
    inputs: FloatArray, targets: FloatArray, feature_names: Sequence[str], target_names: Sequence[str]
) -> Standardisation:
    """The map to zero mean and unit variance of samples in memory, (n, d_raw) and (n, p).

    Unlike ingestion it refuses neither constant targets, which keep their scale, nor inputs without a varying feature,
    which are all kept. A constant feature beside others is dropped. Moments are taken chunk by chunk, as there.

    Raises `InputError`: values whose variance overflows or underflows.
    """
    rows = sample_chunk_rows(len(inputs), inputs.shape[1] + targets.shape[1])
    moments = RunningMoments(inputs.shape[1]), RunningMoments(targets.shape[1])
    for start in range(0, len(inputs), rows):
        moments[0].update(inputs[start : start + rows])
        moments[1].update(targets[start : start + rows])
    for column_moments, names in zip(moments, (feature_names, target_names), strict=True):
        column_moments.require_range(names)
    # The mean of equal numbers is that number, unrounded, and does not overflow.
    input_mean, target_mean = (
        np.where(column_moments.constant, column_moments.minimum, column_moments.mean) for column_moments in moments
    )
    input_std, target_std = moments[0].std, moments[1].std
    kept = input_std > 0.0
    if not kept.any():
        kept = np.ones_like(kept)
    return Standardisation(
        input_mean[kept],
        np.where(input_std > 0.0, input_std, 1.0)[kept],
        target_mean,
        np.where(target_std > 0.0, target_std, 1.0),
        tuple(kept.tolist()),
    )


class InputsOf:
    """The standardised features and covariates of a data set as a row array."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        width = dataset.n_features + len(dataset.covariate_names)
        self.shape: tuple[int, ...] = (dataset.n_samples, width)

    def read(self, start: int, stop: int) -> FloatArray:
        """Rows [start, stop)."""
        return self._dataset.rows(start, stop)

    def rows(self, indices: IntArray) -> FloatArray:
        """The rows at `indices`, in that order."""
        return self._dataset.rows_at(indices)

    def reads(self, url: str) -> bool:
        """Return True if rows lie in the store at an address."""
        return self._dataset.reads(url)


def append_rows(dataset: Dataset, X: ArrayLike, y: ArrayLike) -> Dataset:
    """The training set with rows added in memory, under the same standardisation.

    Its fingerprint depends on the earlier data set's and on the added rows. Where noise is known, that of added rows is
    zero.

    Parameters
    ----------
    X : (m, d_raw) array_like
        Raw inputs, in the order of `dataset.raw_feature_names`.
    y : (m,) or (m, p) array_like
        Raw targets; codes of the training set's classes where it has labels.

    Raises
    ------
    InputError
        Arrays of unfit shape, or values that are not finite.
    """
    inputs, targets = _finite_pair(X, y)
    standardisation = dataset.standardisation
    if dataset.classes is not None:
        codes_of_targets(targets[:, 0], len(dataset.classes), "the rows added")
    added = standardisation.rows(inputs), standardisation.targets(targets)
    for role, raw, values in zip(("input", "target"), (standardisation.keep_rows(inputs), targets), added, strict=True):
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0]
            raise InputError(
                f"The {role}s hold {raw[row, column]} in row {row}, column {column}, which overflows "
                "under the training set's standardisation. Leave such rows out, or train again with them."
            )
    earlier = dataset.standard or (InputsOf(dataset), MemoryArray(dataset.all_targets()))
    known = dataset.all_sample_noise(standardised=False)
    noise = None if known is None else MemoryArray(np.append(known, np.zeros(len(inputs))))
    digest = hashlib.sha256(dataset.fingerprint.encode())
    for values in added:
        digest.update(np.ascontiguousarray(values, dtype="<f8").tobytes())
    return _assembled(
        (_joined(earlier[0], added[0]), _joined(earlier[1], added[1])),
        standardisation,
        ColumnNames(dataset.raw_feature_names, dataset.target_names, dataset.classes, noise=dataset.noise_name),
        digest.hexdigest(),
        origin=", the last of them in memory",
        chunk_rows=dataset.chunk_rows,
        noise=noise,
    )


def _joined(earlier: RowArray, added: FloatArray) -> RowArray:
    """Return earlier and new rows as one; rows in memory are concatenated, so that updates do not make many parts."""
    if isinstance(earlier, MemoryArray):
        return MemoryArray(np.concatenate([earlier.read(0, earlier.shape[0]), added]))
    if isinstance(earlier, AppendedRows):
        return AppendedRows(earlier.first, _joined(earlier.second, added))
    return AppendedRows(earlier, MemoryArray(added))


def _finite_pair(X: ArrayLike, y: ArrayLike) -> tuple[FloatArray, FloatArray]:
    inputs, targets = (
        np.asarray(real_numbers(values, name), dtype=np.float64) for values, name in ((X, "X"), (y, "y"))
    )
    targets = targets[:, None] if targets.ndim == 1 else targets
    if inputs.ndim != 2 or targets.ndim != 2 or len(targets) != len(inputs) or not len(inputs):
        raise InputError(
            f"X and y have shapes {np.shape(X)} and {np.shape(y)}; expected (n, d) and (n,) or (n, p), n at least 1."
        )
    for role, values in (("input", inputs), ("target", targets)):
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0]
            raise InputError(
                f"The {role}s hold {values[row, column]} in row {row}, column {column}; expected finite numbers. "
                "Remove or fill in such rows."
            )
    return inputs, targets
