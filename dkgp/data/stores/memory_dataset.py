"""Data sets in memory, and data sets with rows added: the same handle as a store's, without the store.

Rows are held standardised, as they are read. Rows in memory stay in their process (see `MemoryArray`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from dkgp.data.classes import codes_of_targets
from dkgp.data.numbers import real_numbers
from dkgp.data.stores.arrays import sample_chunk_rows
from dkgp.data.stores.dataset import ColumnNames, Dataset
from dkgp.data.stores.row_arrays import AppendedRows, InputsOf, InSourceUnits, MemoryArray, RowArray
from dkgp.data.stores.standardisation import RunningMoments, Standardisation
from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError


class AssembledDataset(Dataset):
    """A data set of standardised rows from wherever they are; made by the functions of this module."""

    def __init__(
        self,
        inputs: RowArray | FloatArray,
        targets: RowArray | FloatArray,
        standardisation: Standardisation,
        raw_feature_names: tuple[str, ...],
        target_names: tuple[str, ...],
        *,
        origin: str = " in memory",
        fingerprint: str,
        chunk_rows: int | None = None,
        classes: tuple[str, ...] | None = None,
        constants: FloatArray | None = None,
    ) -> None:
        n, d = inputs.shape
        self.url = f"{n} samples{origin}"
        self.raw_feature_names, self.target_names = raw_feature_names, target_names
        self.standardisation = standardisation
        self.fingerprint = fingerprint
        self.n_samples = int(n)
        self.chunk_rows = chunk_rows or sample_chunk_rows(n, d + len(target_names))
        self.standard_inputs, self.standard_targets = (
            MemoryArray(rows) if isinstance(rows, np.ndarray) else rows for rows in (inputs, targets)
        )
        self.classes, self.class_counts = classes, None
        self.weight_name, self._weight_array, self.encoding = None, None, None
        self.id_names, self._id_widths, self._id_array = (), (), None
        self._input_columns = self._target_columns = self._recoding = self._signs = None
        # What the features hold that the map drops, (d_raw,), where it is known.
        self._constants = np.full(len(raw_feature_names), np.nan) if constants is None else constants

    def inputs(self, start: int, stop: int, standardised: bool = True) -> FloatArray:
        """As `Dataset.inputs`."""
        return self._input_units(self.standard_inputs.read(start, stop), standardised)

    def input_rows(self, indices: IntArray, standardised: bool = True) -> FloatArray:
        """As `Dataset.input_rows`."""
        return self._input_units(self.standard_inputs.rows(indices), standardised)

    def targets(self, start: int, stop: int, standardised: bool = True) -> FloatArray:
        """As `Dataset.targets`."""
        values = self.standard_targets.read(start, stop)
        values = values[:, None] if values.ndim == 1 else values
        if self._signs is not None:
            # Codes are their own standardised form, so these are in the units of the source.
            values = self._recoded(values)
            return self.standardisation.targets(values) if standardised else values
        return values if standardised else self.standardisation.targets_back(values)

    def with_standardisation(self, standardisation: Standardisation) -> Dataset:
        """As `Dataset.with_standardisation`."""
        return self._as_read().with_standardisation(standardisation)

    def as_seen_by(
        self,
        feature_names: Sequence[str],
        target_names: Sequence[str],
        standardisation: Standardisation,
        classes: Sequence[str] | None = None,
    ) -> Dataset:
        """As `Dataset.as_seen_by`."""
        return self._as_read().as_seen_by(feature_names, target_names, standardisation, classes)

    def _as_read(self) -> Dataset:
        """The same data in the units of their source, to be mapped as those of a store are, when they are read."""
        raw, standardisation = object.__new__(Dataset), self.standardisation
        vars(raw).update(vars(self))
        inputs = InSourceUnits(
            self.standard_inputs,
            standardisation.input_mean,
            standardisation.input_std,
            standardisation.kept,
            self._constants,
        )
        p = self.standard_targets.shape[1] if len(self.standard_targets.shape) > 1 else 1
        # Codes are their own standardised form.
        codes = self.classes is not None or self._signs is not None
        mean, std = (np.zeros(p), np.ones(p)) if codes else (standardisation.target_mean, standardisation.target_std)
        targets: RowArray = InSourceUnits(self.standard_targets, mean, std, (True,) * p, np.zeros(p))
        if standardisation.transforms:
            targets = MemoryArray(self.all_targets(standardised=False))
        vars(raw).update(_input_array=inputs, _target_array=targets if self.target_names else None)
        return raw

    def _input_units(self, rows: FloatArray, standardised: bool) -> FloatArray:
        return rows if standardised else rows * self.standardisation.input_std + self.standardisation.input_mean


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
    return AssembledDataset(
        standardisation.inputs(inputs),
        standardisation.targets(targets),
        standardisation,
        names.features,
        names.targets,
        fingerprint=digest.hexdigest(),
        chunk_rows=sample_chunk_rows(len(inputs), d + p),
        classes=names.classes,
        constants=inputs[0].copy(),
    )


def standardised_inputs(inputs: FloatArray, feature_names: Sequence[str]) -> Dataset:
    """A data set of inputs (n, d) to predict at, in memory and standardised already. It has no targets."""
    n, d = inputs.shape
    identity = Standardisation.identity(d, 0)
    return AssembledDataset(inputs, np.empty((n, 0)), identity, tuple(feature_names), (), fingerprint="")


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
    kept = iter(feature_names)
    raw_names = tuple(raw_feature_names or ()) or tuple(
        next(kept) if keep else f"(constant {index})" for index, keep in enumerate(standardisation.kept)
    )
    return AssembledDataset(
        inputs,
        targets,
        standardisation,
        raw_names,
        tuple(target_names),
        origin=" of a model",
        fingerprint=fingerprint,
        classes=None if classes is None else tuple(classes),
    )


def standardisation_of(
    inputs: FloatArray, targets: FloatArray, feature_names: Sequence[str], target_names: Sequence[str]
) -> Standardisation:
    """The map to zero mean and unit variance of samples in memory, (n, d_raw) and (n, p).

    As ingestion's, but for what that refuses: a target that is constant keeps its scale, and where no feature varies at
    all they are all kept. A constant feature beside others is dropped. Moments are taken chunk by chunk, as there.

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


def append_rows(dataset: Dataset, X: ArrayLike, y: ArrayLike) -> Dataset:
    """The training set with rows added in memory, under the same standardisation.

    Its fingerprint is that of the data set it was and of what was added. Where noise is known, that of added rows is
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
    added = standardisation.inputs(inputs), standardisation.targets(targets)
    for role, raw, values in zip(("input", "target"), (standardisation.keep(inputs), targets), added, strict=True):
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0]
            raise InputError(
                f"The {role}s hold {raw[row, column]} in row {row}, column {column}, which overflows under the "
                "training set's standardisation. Leave such rows out, or train anew with them."
            )
    if isinstance(dataset, AssembledDataset):
        held = dataset.standard_inputs, dataset.standard_targets
    else:
        held = InputsOf(dataset), MemoryArray(dataset.all_targets())
    digest = hashlib.sha256(dataset.fingerprint.encode())
    for values in added:
        digest.update(np.ascontiguousarray(values, dtype="<f8").tobytes())
    joined = AssembledDataset(
        _joined(held[0], added[0]),
        _joined(held[1], added[1]),
        standardisation,
        dataset.raw_feature_names,
        dataset.target_names,
        origin=", the last of them in memory",
        fingerprint=digest.hexdigest(),
        chunk_rows=dataset.chunk_rows,
        classes=dataset.classes,
    )
    known = dataset.all_sample_noise(standardised=False)
    if known is not None:
        joined.noise_name, joined._noise_array = (
            dataset.noise_name,
            MemoryArray(np.append(known, np.zeros(len(inputs)))),
        )
    return joined


def _joined(held: RowArray, added: FloatArray) -> RowArray:
    """Old and new rows as one; those in memory are put together, so that many updates do not make many parts."""
    if isinstance(held, MemoryArray):
        return MemoryArray(np.concatenate([held.read(0, held.shape[0]), added]))
    if isinstance(held, AppendedRows):
        return AppendedRows(held.first, _joined(held.second, added))
    return AppendedRows(held, MemoryArray(added))


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
