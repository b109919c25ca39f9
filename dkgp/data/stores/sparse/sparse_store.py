"""Sparse models in a Zarr store: basis, weights and triangles, which predict without any training set.

The arrays are those of the model alone, 8 (2 m^2 + m (d + p)) bytes for m basis samples; a fit to n of them leaves
nothing of size n. What is proven of the model, and how it came about, is JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.arrays import StoredArray, StoredType, create_array, default_chunk_rows
from dkgp.data.stores.dataset import Dataset
from dkgp.data.stores.manifest import check_complete, commit, read_manifest
from dkgp.data.stores.model_store import software_versions
from dkgp.data.stores.standardisation import Standardisation
from dkgp.data.stores.writable import new_store
from dkgp.data.types import FloatArray, IntArray, Json, Location
from dkgp.errors import InputError, NumericalError, StoreError

__all__ = ["SPARSE_MODEL_KIND", "SparseRecord", "open_sparse_model", "save_sparse_model"]

SPARSE_MODEL_KIND = "sparse model"
_AS_WRITTEN = ("kernel", "method", "fingerprint", "history", "certificate", "summary", "versions")


@dataclass(frozen=True, eq=False)
class SparseRecord:
    """A sparse model as it is stored; picklable.

    Attributes
    ----------
    url
        Where the store is.
    kernel
        The kernel's JSON.
    method
        The method's name.
    noise_variance
        s2, on the standardised scale.
    prototypes
        Basis samples, standardised, shape (m, d).
    weights
        Shape (m, p), on the standardised scale.
    lower, normal
        Triangles, shape (m, m); a subset of data has no second one.
    indices
        Which training samples the basis samples are; None where they are none.
    standardisation, feature_names, target_names, fingerprint
        Of the training set.
    history, certificate, summary
        As given to `save_sparse_model`.
    versions
        Versions of the software that wrote the model.
    """

    url: str
    kernel: Json
    method: str
    noise_variance: float
    prototypes: FloatArray
    weights: FloatArray
    lower: FloatArray
    normal: FloatArray | None
    indices: IntArray | None
    standardisation: Standardisation
    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]
    fingerprint: str
    history: list[Json]
    certificate: Json
    summary: Json
    versions: dict[str, str]

    @property
    def n_features(self) -> int:
        """Number of features, d."""
        return len(self.feature_names)

    @property
    def n_targets(self) -> int:
        """Number of targets, p."""
        return len(self.target_names)

    @property
    def basis_size(self) -> int:
        """Number of basis samples, m."""
        return len(self.prototypes)


def save_sparse_model(
    url: Location,
    *,
    dataset: Dataset,
    kernel: Json,
    method: str,
    noise_variance: float,
    prototypes: FloatArray,
    weights: FloatArray,
    lower: FloatArray,
    normal: FloatArray | None = None,
    indices: IntArray | None = None,
    history: list[Json] | None = None,
    certificate: Json | None = None,
    summary: Json | None = None,
    overwrite: bool = False,
) -> None:
    """Write a sparse model's store; parameters as the attributes of `SparseRecord`.

    Parameters
    ----------
    url
        Local path or fsspec URL.
    dataset
        The training set, for its standardisation and names; nothing of its rows is written.
    overwrite
        Replace a sparse model's store that is there. Anything else that is there is left alone.

    Raises
    ------
    InputError
        Arrays that do not fit each other or the training set; a noise variance that is not positive.
    NumericalError
        An array holds a NaN or infinity.
    OutputExistsError, StorageError
        The place is taken, or cannot be written to; what was written is removed.
    """
    m, d, p = len(prototypes), dataset.n_features, dataset.n_targets
    arrays: dict[str, NDArray[Any]] = {"prototypes": prototypes, "weights": weights, "lower": lower}
    expected: dict[str, tuple[int, ...]] = {"prototypes": (m, d), "weights": (m, p), "lower": (m, m)}
    if normal is not None:
        arrays["normal"], expected["normal"] = normal, (m, m)
    if indices is not None:
        arrays["indices"], expected["indices"] = np.asarray(indices, dtype=np.int64), (m,)
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise InputError(f"'{name}' of the sparse model has shape {arrays[name].shape}; expected {shape}.")
        if not np.isfinite(arrays[name]).all():
            raise NumericalError(f"'{name}' of the sparse model is not finite; the model is not saved.")
    if not (np.isfinite(noise_variance) and noise_variance > 0):
        raise InputError(f"The noise variance must be positive; got {noise_variance}.")
    address = normalise_url(url)
    content: Json = {
        "kernel": kernel,
        "method": method,
        "noise_variance": float(noise_variance),
        "standardisation": dataset.standardisation.to_json(),
        "feature_names": list(dataset.feature_names),
        "target_names": list(dataset.target_names),
        "fingerprint": dataset.fingerprint,
        "history": history or [],
        "certificate": certificate or {},
        "summary": summary or {},
        "versions": software_versions(),
        "training_url": dataset.url,
    }
    shown = ("kernel", "method", "noise_variance", "feature_names", "target_names", "fingerprint", "versions")
    with new_store(address, SPARSE_MODEL_KIND, {name: content[name] for name in shown}, overwrite) as claim:
        written = []
        for name, values in arrays.items():
            shape = expected[name]
            columns = "feature" if name == "prototypes" else "target" if name == "weights" else "other"
            dimensions = ("basis", columns)[: len(shape)]
            dtype: StoredType = "int64" if name == "indices" else "float64"
            rows = default_chunk_rows(m, shape[1] if len(shape) > 1 else 1)
            written.append(create_array(address, name, shape, rows, dimensions, dtype=dtype, claim=claim))
            written[-1].write(0, np.ascontiguousarray(values))
        commit(address, SPARSE_MODEL_KIND, content, written, claim)


def open_sparse_model(url: Location) -> SparseRecord:
    """Open a sparse model's store; all of it is read.

    Raises
    ------
    StoreError
        Nothing there, another kind of store, unfinished, or with a missing or damaged chunk.
    """
    address = normalise_url(url)
    manifest = read_manifest(address, SPARSE_MODEL_KIND)
    check_complete(address, manifest)
    content = manifest["metadata"]
    try:
        arrays = {}
        for name in manifest["arrays"]:
            stored = StoredArray.from_manifest(address, name, manifest)
            arrays[name] = stored.read_as_stored(0, stored.shape[0])
        return SparseRecord(
            url=address,
            noise_variance=float(content["noise_variance"]),
            prototypes=arrays["prototypes"],
            weights=arrays["weights"],
            lower=arrays["lower"],
            normal=arrays.get("normal"),
            indices=arrays.get("indices"),
            standardisation=Standardisation.from_json(content["standardisation"]),
            feature_names=tuple(content["feature_names"]),
            target_names=tuple(content["target_names"]),
            **{name: content[name] for name in _AS_WRITTEN},
        )
    except KeyError as error:
        raise StoreError(f"The manifest of '{address}' lacks {error}; save the model again.") from error
