"""Sparse models in a Zarr store: basis, weights and triangles, which predict without any training set.

The arrays are those of the model alone, 8 (2 m^2 + m (d + p)) bytes for m basis samples; a fit to n of them leaves
nothing of size n. What is proven of the model, and how it came about, is JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.arrays import StoredArray, StoredType, create_array, default_chunk_rows
from dkgp.data.stores.manifest import check_complete, commit, read_manifest
from dkgp.data.stores.model_store import software_versions
from dkgp.data.stores.standardisation import Standardisation
from dkgp.data.stores.writable import new_store
from dkgp.data.types import FloatArray, IntArray, Json, Location
from dkgp.errors import InputError, NumericalError, StoreError

__all__ = ["SPARSE_MODEL_KIND", "SparseRecord", "open_sparse_model", "save_sparse_model"]

SPARSE_MODEL_KIND = "sparse model"
_AS_WRITTEN = ("kernel", "method", "fingerprint", "history", "certificate", "summary", "versions", "training_url")


@dataclass(frozen=True, eq=False)
class SparseRecord:
    """A sparse model as it is stored; picklable.

    Attributes
    ----------
    url
        Where the store is; of a model that is not stored, its address in this process.
    kernel
        The kernel's JSON.
    method
        The method's name.
    noise_variance
        s2, on the standardised scale; with noise by sample, what that is relative to.
    prototypes
        Basis samples, standardised, shape (m, d).
    weights
        Shape (m, p), on the standardised scale.
    lower, normal
        Triangles, shape (m, m); a subset of data has no second one.
    indices
        Which training samples the basis samples are; None where they are none.
    basis_noise
        The basis samples' own noise, shape (m,); None where all samples have s2, or they are none.
    standardisation, feature_names, target_names, fingerprint, training_url
        Of the training set.
    history, certificate, summary
        JSON: a record per round of a greedy choice, what is proven, how the model came about.
    versions
        Versions of the software that made the model.
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
    basis_noise: FloatArray | None
    standardisation: Standardisation
    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]
    fingerprint: str
    training_url: str
    history: list[Json] = field(default_factory=list)
    certificate: Json = field(default_factory=dict)
    summary: Json = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=software_versions)

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


def save_sparse_model(url: Location, record: SparseRecord, *, overwrite: bool = False) -> None:
    """Write a sparse model's store.

    Parameters
    ----------
    url
        Local path or fsspec URL.
    record
        Written but for its own address.
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
    m, d, p = len(record.prototypes), record.n_features, record.n_targets
    arrays: dict[str, NDArray[Any]] = {}
    expected: dict[str, tuple[int, ...]] = {
        "prototypes": (m, d),
        "weights": (m, p),
        "lower": (m, m),
        "normal": (m, m),
        "indices": (m,),
        "basis_noise": (m,),
    }
    for name, shape in expected.items():
        values = getattr(record, name)
        if values is None:
            continue
        arrays[name] = np.asarray(values, dtype=np.int64 if name == "indices" else np.float64)
        if values.shape != shape:
            raise InputError(f"'{name}' of the sparse model has shape {values.shape}; expected {shape}.")
        if not np.isfinite(values).all():
            raise NumericalError(f"'{name}' of the sparse model is not finite; the model is not saved.")
    if not (np.isfinite(record.noise_variance) and record.noise_variance > 0):
        raise InputError(f"The noise variance must be positive; got {record.noise_variance}.")
    address = normalise_url(url)
    content: Json = {
        **{name: getattr(record, name) for name in _AS_WRITTEN},
        "noise_variance": float(record.noise_variance),
        "standardisation": record.standardisation.to_json(),
        "feature_names": list(record.feature_names),
        "target_names": list(record.target_names),
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
            basis_noise=arrays.get("basis_noise"),
            standardisation=Standardisation.from_json(content["standardisation"]),
            feature_names=tuple(content["feature_names"]),
            target_names=tuple(content["target_names"]),
            **{name: content[name] for name in _AS_WRITTEN},
        )
    except KeyError as error:
        raise StoreError(f"The manifest of '{address}' lacks {error}; save the model again.") from error
