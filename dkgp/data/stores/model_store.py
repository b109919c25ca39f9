"""Trained models in a Zarr store: what is needed to predict, and how it came about.

A model carries its support inputs, so that it predicts without its training set, unless it is saved by reference. Those
that also carry targets and gradient can be trained further.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata as package_metadata
from typing import Any

import numpy as np

from dkgp.data.remote.claims import Claim
from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.arrays import (
    StoredArray,
    create_array,
    default_chunk_rows,
    open_arrays,
    row_ranges,
    target_layout,
)
from dkgp.data.stores.dataset import Dataset, open_dataset
from dkgp.data.stores.manifest import commit
from dkgp.data.stores.memory_dataset import RowArray, assembled_dataset
from dkgp.data.stores.references import check_reference, require_reference
from dkgp.data.stores.standardisation import Standardisation
from dkgp.data.stores.writable import new_store
from dkgp.data.types import FloatArray, IntArray, Json, Location
from dkgp.errors import InputError, NumericalError, StoreError

__all__ = [
    "MODEL_KIND",
    "ModelDescription",
    "ModelRecord",
    "about_model",
    "described",
    "open_model",
    "referenced_training_set",
    "save_model",
    "software_versions",
]

MODEL_KIND = "model"
_AS_WRITTEN = ("kernel", "fingerprint", "history", "certificate", "summary", "versions", "training_url")
# What a store that is being written says of itself, to who resumes or looks.
SHOWN = ("kernel", "noise_variance", "feature_names", "target_names", "fingerprint", "versions")


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelDescription:
    """Description that models of every kind have of themselves.

    Attributes
    ----------
    url
        Where the store is.
    kernel
        The kernel's JSON.
    noise_variance
        s2, on the standardised scale.
    standardisation, feature_names, target_names, fingerprint
        Of the training set.
    history, certificate, summary
        As given to who saved it.
    versions
        Versions of the software that wrote the model.
    training_url
        Where the training set was.
    """

    url: str
    kernel: Json
    noise_variance: float
    standardisation: Standardisation
    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]
    fingerprint: str
    history: list[Json]
    certificate: Json
    summary: Json
    versions: dict[str, str]
    training_url: str

    @property
    def n_features(self) -> int:
        """Number of features, d."""
        return len(self.feature_names)

    @property
    def n_targets(self) -> int:
        """Number of targets, p."""
        return len(self.target_names)

    def described(self) -> Json:
        """The description as JSON, but for its address."""
        return {
            "noise_variance": self.noise_variance,
            "standardisation": self.standardisation.to_json(),
            "feature_names": list(self.feature_names),
            "target_names": list(self.target_names),
            **{name: getattr(self, name) for name in _AS_WRITTEN},
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelRecord(ModelDescription):
    """A model as it is stored; picklable.

    Attributes
    ----------
    alpha
        Coefficients, shape (n, p), on the standardised scale.
    by_reference
        Whether the support inputs lie in the training set's store.
    """

    alpha: FloatArray
    chunk_rows: int
    by_reference: bool
    _support: StoredArray | Dataset = field(repr=False)
    # Standardised targets y and gradient Kbar alpha - y, where the model has them.
    _targets: StoredArray | None = field(default=None, repr=False)
    _gradient: StoredArray | None = field(default=None, repr=False)

    @property
    def reference(self) -> str:
        """Place of the support inputs, for a model by reference; "" for one that carries them."""
        return self._support.url if isinstance(self._support, Dataset) else ""

    @property
    def n_samples(self) -> int:
        """Number of support inputs, n."""
        return int(self.alpha.shape[0])

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Standardised support inputs [start, stop), shape (stop - start, d), bit-identical to the training set's.

        Raises `StoreError` where a chunk is missing or damaged.
        """
        if isinstance(self._support, Dataset):
            return self._support.inputs(start, stop)
        return self._support.read(start, stop)

    def input_rows(self, indices: IntArray) -> FloatArray:
        """Standardised support inputs at `indices`, shape (len(indices), d). Errors as for `inputs`."""
        if isinstance(self._support, Dataset):
            return self._support.input_rows(indices)
        return self._support.rows(indices)

    def training_state(self) -> tuple[Dataset, FloatArray] | None:
        """The training set and the float64 gradient Kbar alpha - y (n, p): what training goes on from; None without.

        Raises `StoreError` where a chunk is missing or damaged.
        """
        if self._targets is None or self._gradient is None:
            return None
        gradient = self._gradient.read(0, self.n_samples).reshape(self.n_samples, -1)
        if isinstance(self._support, Dataset):
            return self._support, gradient
        inputs: RowArray = self._support
        dataset = assembled_dataset(
            inputs, self._targets, self.standardisation, self.feature_names, self.target_names, self.fingerprint
        )
        return dataset, gradient

    def row_chunks(self) -> list[tuple[int, int]]:
        """Row ranges [start, stop) of the chunks of the support inputs, in order."""
        return row_ranges(self.n_samples, self.chunk_rows)


def about_model(
    dataset: Dataset,
    *,
    kernel: Json,
    noise_variance: float,
    history: Sequence[Mapping[str, Any]] = (),
    certificate: Json | None = None,
    summary: Json | None = None,
    url: str = "",
) -> dict[str, Any]:
    """The arguments of `ModelDescription` for a model of a training set, made by this software."""
    return {
        "url": url,
        "kernel": kernel,
        "noise_variance": float(noise_variance),
        "standardisation": dataset.standardisation,
        "feature_names": dataset.feature_names,
        "target_names": dataset.target_names,
        "fingerprint": dataset.fingerprint,
        "history": [dict(record) for record in history],
        "certificate": certificate or {},
        "summary": summary or {},
        "versions": software_versions(),
        "training_url": dataset.url,
    }


def described(url: str, content: Json) -> dict[str, Any]:
    """The arguments of `ModelDescription` from its JSON; `KeyError` where one is missing."""
    return {
        "url": url,
        "noise_variance": float(content["noise_variance"]),
        "standardisation": Standardisation.from_json(content["standardisation"]),
        "feature_names": tuple(content["feature_names"]),
        "target_names": tuple(content["target_names"]),
        **{name: content[name] for name in _AS_WRITTEN},
    }


def require_noise(noise_variance: float) -> None:
    """Refuse a noise variance that no model can have; `InputError`."""
    if not (np.isfinite(noise_variance) and noise_variance > 0):
        raise InputError(f"The noise variance must be positive; got {noise_variance}.")


def save_model(
    url: Location,
    *,
    kernel: Json,
    noise_variance: float,
    alpha: FloatArray,
    dataset: Dataset,
    history: Sequence[Mapping[str, Any]] = (),
    certificate: Json | None = None,
    summary: Json | None = None,
    gradient: FloatArray | None = None,
    by_reference: bool = False,
    overwrite: bool = False,
    chunk_rows: int | None = None,
) -> None:
    """Write a model store.

    Parameters
    ----------
    url
        Local path or fsspec URL.
    kernel, noise_variance
        The kernel's JSON, and s2 on the standardised scale, positive.
    alpha
        Coefficients on the standardised scale, shape (n, p) or (n,) for one target.
    dataset
        The training set.
    history, certificate, summary
        JSON: a record per round, what is proven about the solution, what `train --json` prints.
    gradient
        Kbar alpha - y, shape as `alpha`. With it the targets are kept, too, and the model can be trained further.
    by_reference
        Refer to the training set's store instead of copying its inputs. The model is then of use only as long as
        that store is where it is now, unchanged.
    overwrite
        Replace a model store that is there. Anything else that is there is left alone.
    chunk_rows
        Rows of a chunk; default the training set's.

    Raises
    ------
    InputError
        `alpha` does not fit the training set; the noise variance is not positive.
    NumericalError
        `alpha` holds a NaN or infinity.
    OutputExistsError, StorageError
        The place is taken, or cannot be written to; what was written is removed.
    """
    coefficients = np.asarray(alpha, dtype=np.float64)
    if coefficients.ndim == 1:
        coefficients = coefficients[:, None]
    if coefficients.shape != (dataset.n_samples, dataset.n_targets):
        raise InputError(
            f"alpha has shape {np.shape(alpha)}; '{dataset.url}' needs ({dataset.n_samples}, {dataset.n_targets})."
        )
    require_noise(noise_variance)
    if not np.isfinite(coefficients).all():
        row = int(np.argmax(~np.isfinite(coefficients).all(axis=1)))
        raise NumericalError(f"alpha is not finite (row {row}); the model is not saved. Raise the noise variance.")
    if gradient is not None and np.size(gradient) != coefficients.size:
        raise InputError(f"The gradient has shape {np.shape(gradient)}; expected that of alpha, {coefficients.shape}.")
    if by_reference:
        check_reference(dataset.url)
    address = normalise_url(url)
    about = about_model(
        dataset,
        kernel=kernel,
        noise_variance=noise_variance,
        history=history,
        certificate=certificate,
        summary=summary,
    )
    content: Json = {
        **ModelDescription(**about).described(),
        "by_reference": by_reference,
        "chunk_rows": chunk_rows or dataset.chunk_rows,
    }
    with new_store(address, MODEL_KIND, {name: content[name] for name in SHOWN}, overwrite) as claim:
        _write(address, content, coefficients, gradient, dataset, claim)


def _write(
    url: str, content: Json, alpha: FloatArray, gradient: FloatArray | None, dataset: Dataset, claim: Claim
) -> None:
    rows = int(content["chunk_rows"])
    n, p = alpha.shape
    shape, dimensions = target_layout(n, p)
    vectors = {"alpha": alpha}
    if gradient is not None:
        vectors |= {"targets": dataset.all_targets(), "gradient": np.asarray(gradient, dtype=np.float64)}
    arrays = []
    for name, values in vectors.items():
        arrays.append(create_array(url, name, shape, default_chunk_rows(n, p), dimensions, claim=claim))
        arrays[-1].write(0, values.reshape(shape))
    if not content["by_reference"]:
        about = {"names": content["feature_names"], "scale": "standardised"}
        support = create_array(url, "inputs", (n, dataset.n_features), rows, ("sample", "feature"), about, claim=claim)
        for start, stop in row_ranges(n, rows):
            support.write(start, dataset.inputs(start, stop))
        arrays.append(support)
    commit(url, MODEL_KIND, content, arrays, claim)


def open_model(url: Location, *, reference: str | None = None) -> ModelRecord:
    """Open a model store; `alpha` is read, the support inputs are read when they are asked for.

    Parameters
    ----------
    url
        Local path or fsspec URL.
    reference
        Where the training set lies that a model by reference has to name, "" where it may name none: what another
        process has found and checked. By default whatever `require_reference` lets pass.

    Raises
    ------
    StoreError
        Nothing there, another kind of store, unfinished, or with a missing or damaged chunk; for a model by reference
        also a training set that is gone, has changed or may not be named.
    """
    address, content, arrays = open_arrays(url, MODEL_KIND)
    try:
        n = arrays["alpha"].shape[0]
        by_reference = bool(content["by_reference"])
        return ModelRecord(
            **described(address, content),
            alpha=arrays["alpha"].read(0, n).reshape(n, -1),
            chunk_rows=int(content["chunk_rows"]),
            by_reference=by_reference,
            _support=referenced_training_set(address, content, reference) if by_reference else arrays["inputs"],
            _targets=arrays.get("targets"),
            _gradient=arrays.get("gradient"),
        )
    except KeyError as error:
        raise StoreError(f"The manifest of '{address}' lacks {error}; save the model again.") from error


def referenced_training_set(url: str, content: Json, expected: str | None) -> Dataset:
    """The training set that a model by reference names; parameters and errors as of `open_model`."""
    training_url = require_reference(content["training_url"], url)
    if expected is not None and training_url != expected:
        raise StoreError(f"The model '{url}' names another training set than before; it was changed while it was used.")
    try:
        dataset = open_dataset(training_url)
    except StoreError as error:
        raise StoreError(f"The model '{url}' refers to its training set at '{training_url}': {error}") from error
    if dataset.fingerprint != content["fingerprint"]:
        raise StoreError(
            f"The model '{url}' refers to its training set at '{training_url}', whose content has changed since. "
            "Put the training set back, or train again."
        )
    return dataset.with_standardisation(Standardisation.from_json(content["standardisation"]))


def software_versions() -> dict[str, str]:
    """Versions of what a model is made with."""
    versions = {"python": platform.python_version()}
    for package in ("dkgp", "numpy", "scipy", "numba", "zarr", "dask"):
        try:
            versions[package] = package_metadata.version(package)
        except package_metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions
