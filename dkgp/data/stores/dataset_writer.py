"""Writing a dataset store, sample by sample, in bounded memory.

Rows are buffered to whole chunks, checked, hashed and counted into the moments as they pass; nothing is read back.
"""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.codec import to_json
from dkgp.data.classes import codes_of_targets
from dkgp.data.numbers import array_of, real_numbers
from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.arrays import row_ranges, sample_chunk_rows, set_attributes, target_layout
from dkgp.data.stores.dataset import DATASET_KIND, ColumnNames, Dataset, open_dataset, text_bytes
from dkgp.data.stores.standardisation import (
    MOST_TARGETS,
    RunningMoments,
    Scale,
    Standardisation,
    TransformName,
    fit_transform,
    require_varying_targets,
)
from dkgp.data.stores.writable import NewStore, new_store
from dkgp.data.types import BoolArray, FloatArray, IntArray, Json, Location
from dkgp.errors import InputError

MINIMUM_TRAINING_SAMPLES = 2
# The formats of a data set without a column of known noise, and without covariates.
WITHOUT_NOISE, WITHOUT_COVARIATES = 3, 4


class DatasetWriter(AbstractContextManager["DatasetWriter"]):
    """Writes a dataset store; use `create`, `append` as often as needed, then `finish`.

    As a context manager it removes the unfinished store when the block is left by an exception or without `finish`.

    Attributes
    ----------
    warnings
        Warnings for the user, such as constant features that were dropped. Complete after `finish`.
    encoding
        The rules by which columns of the source were encoded, as JSON; None where they were numbers. May be set before
        `finish`.
    scale
        "each": every feature is divided by its standard deviation; "common": all by the largest of these, so that
        distances stay those of the units that the features share. May be set before `finish`.
    transform
        Of targets, before they are standardised; None for none. May be set before `finish`.
    """

    encoding: Json | None = None
    scale: Scale = "each"
    transform: TransformName | None = None

    def __init__(self, store: NewStore, names: ColumnNames, chunk_rows: int, expected_samples: int | None) -> None:
        self.url = store.url
        self.feature_names, self.target_names = names.features, names.targets
        self.classes = names.classes
        self.chunk_rows = chunk_rows
        self.n_samples = 0
        self.warnings: list[str] = []
        self._store, self._names = store, names
        self._expected_samples = expected_samples
        self._finished = False
        self._n_written = 0
        # Inputs, targets, weights or noise, and the texts of ids; no column where there are none.
        self._pending: list[tuple[NDArray[Any], ...]] = []
        self._hashes = (hashlib.sha256(), hashlib.sha256(), hashlib.sha256())
        self._class_counts: IntArray = np.zeros(len(names.classes or ()), dtype=np.int64)
        self._moments = (RunningMoments(len(names.features)), RunningMoments(len(names.targets)))
        self._create_arrays(expected_samples or 0)

    @classmethod
    def create(
        cls,
        url: Location,
        feature_names: Sequence[str],
        target_names: Sequence[str],
        chunk_rows: int | None = None,
        overwrite: bool = False,
        n_samples: int | None = None,
        classes: Sequence[str] | None = None,
        weight_name: str | None = None,
    ) -> DatasetWriter:
        """Start a store.

        Parameters
        ----------
        url
            Local path or fsspec URL. A dataset store that is there is replaced with `overwrite`, anything else left
            alone.
        feature_names, target_names
            Distinct names; there may be no targets.
        chunk_rows
            Rows of a chunk; default a block's rows in training, about 8192, or a part of them within 8 MiB.
        n_samples
            The number of samples to come, where it is known: chunks are then of even size.
        classes
            Names of the classes where the one target is a label, which is then handed in as codes into these names and
            not standardised.
        weight_name
            Name of the column of the samples' weights, where there are such.

        Raises
        ------
        InputError
            Names that are not distinct, or no feature; classes without a target, or fewer than two.
        OutputExistsError, StorageError
            The place is taken, or cannot be written to.
        """
        names = ColumnNames.checked(feature_names, target_names, classes, weight_name)
        return cls.of_names(url, names, chunk_rows, overwrite, n_samples)

    @classmethod
    def of_names(
        cls,
        url: Location,
        names: ColumnNames,
        chunk_rows: int | None = None,
        overwrite: bool = False,
        n_samples: int | None = None,
    ) -> DatasetWriter:
        """Start a store of columns whose names are checked; parameters and errors as of `create`."""
        if chunk_rows is not None and chunk_rows < 1:
            raise InputError(f"chunk_rows must be at least 1; got {chunk_rows}.")
        rows = chunk_rows or sample_chunk_rows(n_samples, len(names.features) + len(names.targets))
        # A dkgp without known noise, or covariates, must not train on such a store, and can read any other.
        version = None
        if not names.covariates:
            version = WITHOUT_NOISE if names.noise is None else WITHOUT_COVARIATES
        with new_store(normalise_url(url), DATASET_KIND, names.to_json(), overwrite, version) as store:
            return cls(store, names, rows, n_samples)

    def __exit__(self, *error: object) -> None:
        self.abort()

    def append(
        self,
        inputs: ArrayLike,
        targets: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        ids: NDArray[np.object_] | None = None,
    ) -> None:
        """Add samples.

        Parameters
        ----------
        inputs
            Raw, shape (rows, d_raw).
        targets
            Raw, shape (rows, p) or (rows,) for one target.
        weights
            Positive, shape (rows,), where the store has them; or known noise variances, not negative, where it has
            such a column.
        ids
            Text, shape (rows, columns), where the store has such columns.

        Raises
        ------
        InputError
            Another shape, a NaN or infinity, or a weight that is not positive; the message names column and row. The
            store is removed.
        StorageError
            The storage refused; the store is removed.
        """
        try:
            X = _matrix(inputs, len(self.feature_names), "inputs")
            y = _matrix(np.empty((len(X), 0)) if targets is None else targets, len(self.target_names), "targets")
            beside = tuple(name for _, name in self._names.beside)
            counted = "weights" if self._names.noise is None else "noise variances"
            w = _matrix(np.empty((len(X), 0)) if weights is None else weights, len(beside), counted)
            texts = text_bytes(np.empty((len(X), 0), dtype=object) if ids is None else ids, self._names.ids)
            if not len(X) == len(y) == len(w) == len(texts):
                raise InputError(
                    f"Got {len(X)} rows of inputs, {len(y)} of targets, {len(w)} of {counted} and {len(texts)} of ids; "
                    "expected as many."
                )
            _check_finite(X, self.feature_names, self.n_samples)
            _check_finite(y, self.target_names, self.n_samples)
            _check_finite(w, beside, self.n_samples)
            if self._names.noise is None:
                _check_sign(w <= 0.0, w, "weight", "positive ones", self.n_samples)
            else:
                _check_sign(w < 0.0, w, "noise variance", "none below zero", self.n_samples)
            if self.classes is not None:
                codes = codes_of_targets(y[:, 0], len(self.classes), f"the block from row {self.n_samples} on")
                self._class_counts += np.bincount(codes, minlength=len(self.classes))
            # The caller may reuse its buffer before the rows are written.
            self._pending.append((X.copy(), y.copy(), w.copy(), texts))
            self.n_samples += len(X)
            if self.n_samples - self._n_written >= self.chunk_rows:
                self._write_pending(whole_chunks_only=True)
        except BaseException:
            self.abort()
            raise

    def finish(self, standardisation: Standardisation | None = None) -> Dataset:
        """Write the remaining rows and the manifest; the store can be opened from here on.

        Parameters
        ----------
        standardisation
            The map to store, such as the training set's for test data; by default it is computed from these samples,
            and features that are constant are dropped.

        Raises
        ------
        InputError
            Fewer than two samples, a constant target, no feature that varies. The store is removed.
        StorageError
            The storage refused; the store is removed.
        """
        try:
            if self.n_samples == 0:
                raise InputError("There are no samples; expected at least one.")
            if self._expected_samples is not None and self.n_samples != self._expected_samples:
                raise InputError(f"Got {self.n_samples} samples; {self._expected_samples} were announced.")
            if standardisation is None:
                standardisation = self._computed_standardisation()
            elif standardisation.n_raw_features != len(self.feature_names):
                raise InputError(
                    f"The standardisation is for {standardisation.n_raw_features} features; "
                    f"there are {len(self.feature_names)}."
                )
            self._write_pending(whole_chunks_only=False)
            metadata: Json = {
                **self._names.to_json(),
                "n_samples": self.n_samples,
                "chunk_rows": self.chunk_rows,
                "standardisation": to_json(standardisation),
                "fingerprint": self._fingerprint(),
            }
            if self.classes is not None:
                metadata["class_counts"] = self._class_counts.tolist()
            if self.encoding is not None:
                metadata["encoding"] = self.encoding
            for array, name in self._names.beside:
                metadata["weight_name" if array == "w" else "noise_name"] = name
            if self._names.ids:
                metadata["ids"] = [{"name": name, "bytes": width} for name, width in self._names.ids]
            shown = {key: metadata[key] for key in ("standardisation", "fingerprint")}
            set_attributes(self._store.claim.url, shown, self._store.claim)
            self._store.commit(metadata)
            self._finished = True
        except BaseException:
            self.abort()
            raise
        return open_dataset(self.url)

    def abort(self) -> None:
        """Remove the store. Nothing happens after `finish`."""
        if not self._finished:
            self._pending = []
            self._store.remove()

    def _create_arrays(self, n_samples: int) -> None:
        d, p, rows = len(self.feature_names), len(self.target_names), self.chunk_rows
        names = {"names": list(self.feature_names)}
        self._store.create_array("X", (n_samples, d), ("sample", "feature"), rows, names)
        if p:
            self._store.create_array("y", *target_layout(n_samples, p), rows, {"names": list(self.target_names)})
        for array, name in self._names.beside:
            self._store.create_array(array, (n_samples,), ("sample",), rows, {"name": name})
        if self._names.ids:
            width = sum(width for _, width in self._names.ids)
            self._store.create_array("ids", (n_samples, width), ("sample", "id_byte"), rows, dtype="uint8")

    def _write_pending(self, whole_chunks_only: bool) -> None:
        if not self._pending:
            return
        parts = tuple(np.concatenate(blocks) for blocks in zip(*self._pending, strict=True))
        n_rows = len(parts[0]) // self.chunk_rows * self.chunk_rows if whole_chunks_only else len(parts[0])
        self._pending = [tuple(part[n_rows:].copy() for part in parts)] if n_rows < len(parts[0]) else []
        end = self._n_written + n_rows
        if end > self._store.arrays[0].shape[0]:
            for array in self._store.arrays:
                array.resize(end)
        for start in range(0, n_rows, self.chunk_rows):
            rows = slice(start, min(start + self.chunk_rows, n_rows))
            self._write_chunk([part[rows] for part in parts])

    def _write_chunk(self, parts: list[NDArray[Any]]) -> None:
        # In whole chunks, so that the moments do not depend on how the rows were handed in. Ids are not hashed: a store
        # with them is the same data.
        for digest, values in zip(self._hashes, parts[:3], strict=True):
            digest.update(np.ascontiguousarray(values, dtype="<f8").tobytes())
        for moments, values in zip(self._moments, parts[:2], strict=True):
            moments.update(values)
        for array, values in zip(self._store.arrays, [part for part in parts if part.shape[1]], strict=True):
            array.write(self._n_written, values.reshape(len(values), *array.shape[1:]))
        self._n_written += len(parts[0])

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(self._names.fingerprint_header(self.n_samples))
        # Without weights or noise the fingerprint is that of earlier versions.
        for part in self._hashes if self._names.beside else self._hashes[:2]:
            digest.update(part.digest())
        for _, name in self._names.beside:
            digest.update(name.encode())
        if self._names.noise is not None:
            digest.update(b"noise")
        if self.scale == "common":
            # Models under one scale are not those under the other, and checkpoints and models know data by this.
            digest.update(b"common scale")
        for name in self._names.covariates:
            digest.update(b"covariate" + name.encode())
        return digest.hexdigest()

    def _computed_standardisation(self) -> Standardisation:
        if not self.target_names:
            # Nothing is trained on inputs without targets; they get the map of the model that predicts at them.
            return Standardisation.identity(len(self.feature_names), 0)
        if self.n_samples < MINIMUM_TRAINING_SAMPLES:
            raise InputError(f"There is {self.n_samples} sample; at least {MINIMUM_TRAINING_SAMPLES} are needed.")
        self._write_pending(whole_chunks_only=False)
        inputs, targets = self._moments
        inputs.require_range(self.feature_names)
        targets.require_range(self.target_names)
        if self.classes is None:
            require_varying_targets(self.target_names, targets.std == 0, targets.minimum, self.n_samples)
        elif targets.std[0] == 0:
            raise InputError(
                f"The labels '{self.target_names[0]}' are one class only, '{self.classes[int(targets.minimum[0])]}', "
                f"in all {self.n_samples} training samples: there is nothing to tell apart. Add samples of other "
                "classes."
            )
        kept = inputs.std > 0
        if not kept.any():
            raise InputError(
                f"No feature ({kept.size} in all) varies over the {self.n_samples} training samples; "
                "at least one must vary."
            )
        for name in np.array(self.feature_names, dtype=object)[~kept]:
            self.warnings.append(f"The feature '{name}' is constant on the training set and was dropped.")
        mean, std = (targets.mean, targets.std) if self.classes is None else (np.zeros(1), np.ones(1))
        plain = Standardisation(inputs.mean[kept], inputs.std[kept], mean, std, tuple(kept.tolist()))
        plain = plain.with_covariates(self._names.covariates, self.feature_names)
        if self.scale == "common":
            plain = dataclasses.replace(plain, input_std=np.full_like(plain.input_std, plain.input_std.max()))
        return plain if self.transform is None or self.classes is not None else self._transformed(plain, self.transform)

    def _transformed(self, plain: Standardisation, name: TransformName) -> Standardisation:
        """The map with a transform of each target, from the targets as they were written."""
        stored = self._store.arrays[1]
        chunks = row_ranges(self.n_samples, self.chunk_rows)
        step = -(-self.n_samples // MOST_TARGETS)
        some = np.concatenate([stored.read(*chunk).reshape(chunk[1] - chunk[0], -1)[::step] for chunk in chunks])
        transforms = tuple(fit_transform(name, column) for column in some.T)
        result = dataclasses.replace(plain, transforms=transforms)
        moments = RunningMoments(len(transforms))
        for start, stop in chunks:
            moments.update(result.transformed(stored.read(start, stop).reshape(stop - start, -1)))
        moments.require_range(self.target_names)
        return dataclasses.replace(result, target_mean=moments.mean, target_std=moments.std)


def dataset_from_arrays(
    url: Location,
    X: ArrayLike,
    y: ArrayLike | None,
    *,
    feature_names: Sequence[str] | None = None,
    target_names: Sequence[str] | None = None,
    chunk_rows: int | None = None,
    overwrite: bool = False,
    standardisation: Standardisation | None = None,
    classes: Sequence[str] | None = None,
) -> Dataset:
    """Write arrays in memory to a dataset store.

    Parameters
    ----------
    url
        Where to write; `memory://name` keeps it in this process.
    X
        Raw inputs, shape (n, d).
    y
        Raw targets, shape (n,) or (n, p); None for none.
    feature_names, target_names
        Default x0, x1, ... and y (y0, y1, ... for several).
    chunk_rows, overwrite
        As in `DatasetWriter.create`.
    standardisation
        As in `DatasetWriter.finish`.
    classes
        As in `DatasetWriter.create`: y are then codes into these names.

    Raises
    ------
    InputError
        As `DatasetWriter` does: shapes, names, NaN or infinity, too few samples, a constant target.
    """
    inputs = array_of(X)
    if inputs.ndim != 2:
        raise InputError(f"X has shape {inputs.shape}; expected (n, d).")
    targets = np.empty((len(inputs), 0)) if y is None else array_of(y)
    if targets.ndim == 1:
        targets = targets[:, None]
    if targets.ndim != 2 or len(targets) != len(inputs):
        raise InputError(f"y has shape {np.shape(targets)}; expected ({len(inputs)},) or ({len(inputs)}, p).")
    names = ColumnNames.of_shape(inputs.shape[1], targets.shape[1], feature_names, target_names, classes)
    with DatasetWriter.create(
        url, names.features, names.targets, chunk_rows, overwrite, len(inputs), names.classes
    ) as writer:
        for start in range(0, len(inputs), writer.chunk_rows):
            rows = slice(start, start + writer.chunk_rows)
            writer.append(inputs[rows], targets[rows])
        dataset = writer.finish(standardisation)
    for message in writer.warnings:
        warnings.warn(message, stacklevel=2)
    return dataset


def _matrix(values: ArrayLike, n_columns: int, kind: str) -> FloatArray:
    try:
        array = np.asarray(real_numbers(values, f"The array of {kind}"), dtype=np.float64)
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"The {kind} are not numbers: {error}") from error
    if array.ndim == 1 and n_columns == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] != n_columns:
        raise InputError(f"The {kind} have shape {array.shape}; expected (rows, {n_columns}).")
    return array


def _check_sign(odd: BoolArray, values: FloatArray, what: str, expected: str, first_row: int) -> None:
    if odd.any():
        row = int(np.argmax(odd))
        raise InputError(f"The {what} in row {first_row + row + 1} is {values[row, 0]:g}; expected {expected}.")


def _check_finite(block: FloatArray, names: tuple[str, ...], first_row: int) -> None:
    bad = ~np.isfinite(block)
    if not bad.any():
        return
    column = int(np.argmax(bad.any(axis=0)))
    row = int(np.argmax(bad[:, column]))
    count = int(bad[:, column].sum())
    raise InputError(
        f"The column '{names[column]}' holds {block[row, column]} in row {first_row + row + 1} (the first row is 1)"
        f"{f', and {count - 1} more such values nearby' if count > 1 else ''}. "
        "Remove or fill in the rows with NaN or infinity."
    )


def write_rows(dataset: Dataset, rows: IntArray, url: Location) -> Dataset:
    """Write some rows of a store, in ascending order, to another store with the same standardisation; replace it."""
    names = ColumnNames.checked(
        dataset.raw_feature_names,
        dataset.target_names,
        dataset.classes,
        dataset.weight_name,
        noise=dataset.noise_name,
    )
    with DatasetWriter.of_names(url, names, overwrite=True, n_samples=len(rows)) as writer:
        writer.encoding = dataset.encoding
        for start, stop in dataset.row_chunks():
            some = rows[(rows >= start) & (rows < stop)] - start
            if not len(some):
                continue
            known = dataset.sample_noise(start, stop, standardised=False)
            known = dataset.weights(start, stop) if known is None else known
            writer.append(
                dataset.raw_inputs(start, stop)[some],
                dataset.targets(start, stop, standardised=False)[some],
                None if known is None else known[some],
            )
        return writer.finish(dataset.standardisation)
