"""Sparse models in a Zarr store: basis, weights and triangles, which predict without any training set.

The arrays are those of the model alone, 8 (2 m^2 + m (d + p)) bytes for m basis samples; a fit to n of them leaves
nothing of size n, but for a model with neighbours, whose samples are in its store. What is proven of the model, and how
it came about, is JSON.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.arrays import open_arrays
from dkgp.data.stores.manifest import described_whole, typed
from dkgp.data.stores.models.description import (
    SHOWN,
    ModelDescription,
    checked_arrays,
    read_arrays,
    require_noise,
    require_shapes,
    require_targets,
)
from dkgp.data.stores.models.near import NEAR_COUNTS, NEAR_DIMENSIONS, NearArrays
from dkgp.data.stores.writable import new_store
from dkgp.data.types import FloatArray, IntArray, Json, Location

SPARSE_MODEL_KIND = "sparse model"


@dataclass(frozen=True, eq=False, kw_only=True)
class SparseRecord(NearArrays, ModelDescription):
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
    """Write a sparse model's store; places and errors as of `save_model`."""
    n, e = (0 if values is None else len(values) for values in (record.near_inputs, record.near_embedding))
    shapes = _shapes(record.basis_size, record.n_features, record.n_targets, n, e)
    present = {name: shape for name, shape in shapes.items() if getattr(record, name) is not None}
    arrays = checked_arrays(record, present, "the sparse model")
    require_noise(record.noise_variance)
    counts = {name: value for name in NEAR_COUNTS if (value := getattr(record, name)) is not None}
    content: Json = {**record.described(), "method": record.method, **counts}
    shown = {name: content[name] for name in (*SHOWN, "method")}
    with new_store(normalise_url(url), SPARSE_MODEL_KIND, shown, overwrite) as store:
        for name, values in arrays.items():
            store.write_array(name, values, _DIMENSIONS[name][: values.ndim])
        store.commit(content)


def open_sparse_model(url: Location) -> SparseRecord:
    """Open a sparse model's store; all of it is read. Errors as of `open_model`."""
    address, content, arrays = open_arrays(url, SPARSE_MODEL_KIND)
    with described_whole(address, "save the model again"):
        described = SparseRecord.description_in(address, content)
        m, d, p = arrays["prototypes"].shape[0], len(described["feature_names"]), len(described["target_names"])
        require_targets(described)
        n, e = (arrays[name].shape[0] if name in arrays else 0 for name in ("near_inputs", "near_embedding"))
        require_shapes(address, arrays, _shapes(m, d, p, n, e), ("weights", "lower"))
        typed(content, method=str)
        counts = {name: content[name] for name in NEAR_COUNTS if name in content}
        typed(content, **dict.fromkeys(counts, int))
    values = read_arrays(arrays)
    for name in {"lower", "normal", "near_normal"} & values.keys():
        # As triangular solves take them, so that nobody copies them again.
        values[name] = np.asfortranarray(values[name])
    return SparseRecord(**described, method=content["method"], **counts, **values)


# Of all arrays that there may be.
_DIMENSIONS = {
    "prototypes": ("basis", "feature"),
    "weights": ("basis", "target"),
    **dict.fromkeys(("lower", "normal", "near_normal"), ("basis", "other")),
    **dict.fromkeys(("indices", "basis_noise"), ("basis",)),
    "near_noise": ("sample",),
    **NEAR_DIMENSIONS,
}


def _shapes(m: int, d: int, p: int, n: int, e: int) -> dict[str, tuple[int, ...]]:
    """Shapes of all arrays that there may be: m basis samples, d features, p targets, n samples and e landmarks."""
    sizes = {"basis": m, "other": m, "feature": d, "target": p, "sample": n, "landmark": e}
    return {name: tuple(sizes[of] for of in dimensions) for name, dimensions in _DIMENSIONS.items()}
