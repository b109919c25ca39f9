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
from dkgp.data.stores.arrays import StoredType, create_array, default_chunk_rows, open_arrays
from dkgp.data.stores.manifest import commit
from dkgp.data.stores.model_store import SHOWN, ModelDescription, described, require_noise
from dkgp.data.stores.writable import new_store
from dkgp.data.types import FloatArray, IntArray, Json, Location
from dkgp.errors import InputError, NumericalError, StoreError

__all__ = ["SPARSE_MODEL_KIND", "SparseRecord", "open_sparse_model", "save_sparse_model"]

SPARSE_MODEL_KIND = "sparse model"


@dataclass(frozen=True, eq=False, kw_only=True)
class SparseRecord(ModelDescription):
    """A sparse model as it is stored; picklable.

    Attributes
    ----------
    method
        The method's name.
    prototypes
        Basis samples, standardised, shape (m, d).
    weights
        Shape (m, p), on the standardised scale.
    lower, normal
        Triangles, shape (m, m), in Fortran order; a subset of data has no second one.
    indices
        Which training samples the basis samples are; None where they are none.
    basis_noise
        Their own noise, shape (m,); None where all samples have s2, or the basis samples are none of them.
    """

    method: str
    prototypes: FloatArray
    weights: FloatArray
    lower: FloatArray
    normal: FloatArray | None = None
    indices: IntArray | None = None
    basis_noise: FloatArray | None = None

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
    m, d, p = record.basis_size, record.n_features, record.n_targets
    expected: dict[str, tuple[int, ...]] = {
        "prototypes": (m, d),
        "weights": (m, p),
        "lower": (m, m),
        "normal": (m, m),
        "indices": (m,),
        "basis_noise": (m,),
    }
    arrays: dict[str, NDArray[Any]] = {}
    for name, shape in expected.items():
        values = getattr(record, name)
        if values is None:
            continue
        arrays[name] = np.ascontiguousarray(values, dtype=np.int64 if name == "indices" else np.float64)
        if values.shape != shape:
            raise InputError(f"'{name}' of the sparse model has shape {values.shape}; expected {shape}.")
        if not np.isfinite(values).all():
            raise NumericalError(f"'{name}' of the sparse model is not finite; the model is not saved.")
    require_noise(record.noise_variance)
    address = normalise_url(url)
    content: Json = {**record.described(), "method": record.method}
    with new_store(
        address, SPARSE_MODEL_KIND, {name: content[name] for name in (*SHOWN, "method")}, overwrite
    ) as claim:
        written = []
        for name, values in arrays.items():
            columns = "feature" if name == "prototypes" else "target" if name == "weights" else "other"
            dtype: StoredType = "int64" if name == "indices" else "float64"
            rows = default_chunk_rows(m, values.size // m)
            dimensions = ("basis", columns)[: values.ndim]
            written.append(create_array(address, name, values.shape, rows, dimensions, dtype=dtype, claim=claim))
            written[-1].write(0, values)
        commit(address, SPARSE_MODEL_KIND, content, written, claim)


def open_sparse_model(url: Location) -> SparseRecord:
    """Open a sparse model's store; all of it is read.

    Raises
    ------
    StoreError
        Nothing there, another kind of store, unfinished, or with a missing or damaged chunk.
    """
    address, content, arrays = open_arrays(url, SPARSE_MODEL_KIND)
    values: dict[str, Any] = {name: stored.read_as_stored(0, stored.shape[0]) for name, stored in arrays.items()}
    for name in {"lower", "normal"} & values.keys():
        # As triangular solves take them, so that nobody copies them again.
        values[name] = np.asfortranarray(values[name])
    try:
        return SparseRecord(
            **described(address, content),
            method=content["method"],
            **values,
        )
    except (KeyError, TypeError) as error:
        raise StoreError(f"The manifest of '{address}' lacks {error}; save the model again.") from error
