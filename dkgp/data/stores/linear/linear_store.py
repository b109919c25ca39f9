"""Linear regressions in a Zarr store: weights by feature, and the path that they were chosen of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.arrays import create_array, default_chunk_rows, open_arrays
from dkgp.data.stores.dataset import Dataset
from dkgp.data.stores.manifest import commit
from dkgp.data.stores.model_store import software_versions
from dkgp.data.stores.standardisation import Standardisation
from dkgp.data.stores.writable import new_store
from dkgp.data.types import FloatArray, Json, Location
from dkgp.errors import NumericalError, StoreError

__all__ = ["LINEAR_MODEL_KIND", "LinearRecord", "open_linear_model", "save_linear_model"]

LINEAR_MODEL_KIND = "linear model"


@dataclass(frozen=True, eq=False, kw_only=True)
class LinearRecord:
    """A linear regression as it is stored; picklable.

    Attributes
    ----------
    url
        Where the store is.
    coefficients, intercept
        On the standardised scale, shape (d, p) and (p,).
    standardisation, feature_names, target_names, fingerprint
        Of the training set.
    summary
        What `pursue --json` prints: method, how the cardinality was chosen, the path of each target.
    versions
        Versions of the software that wrote the model.
    training_url
        Where the training set was.
    """

    url: str
    coefficients: FloatArray
    intercept: FloatArray
    standardisation: Standardisation
    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]
    fingerprint: str
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


def save_linear_model(
    url: Location,
    dataset: Dataset,
    coefficients: FloatArray,
    intercept: FloatArray,
    summary: Json,
    *,
    overwrite: bool = False,
) -> None:
    """Write a linear regression's store.

    Parameters
    ----------
    url
        Local path or fsspec URL.
    dataset
        The training set.
    coefficients, intercept
        On the standardised scale, shape (d, p) and (p,).
    summary
        JSON.
    overwrite
        Replace such a store that is there. Anything else that is there is left alone.

    Raises
    ------
    NumericalError
        A weight is a NaN or infinity.
    OutputExistsError, StorageError
        The place is taken, or cannot be written to; what was written is removed.
    """
    if not (np.isfinite(coefficients).all() and np.isfinite(intercept).all()):
        raise NumericalError("the weights are not finite; the model is not saved")
    address, (d, p) = normalise_url(url), coefficients.shape
    content: Json = {
        "standardisation": dataset.standardisation.to_json(),
        "feature_names": list(dataset.feature_names),
        "target_names": list(dataset.target_names),
        "fingerprint": dataset.fingerprint,
        "summary": summary,
        "versions": software_versions(),
        "training_url": dataset.url,
    }
    shown = {name: content[name] for name in ("feature_names", "target_names", "fingerprint", "versions")}
    with new_store(address, LINEAR_MODEL_KIND, shown, overwrite) as claim:
        rows = default_chunk_rows(d, p)
        written = [
            create_array(address, "coefficients", (d, p), rows, ("feature", "target"), claim=claim),
            create_array(address, "intercept", (p,), p, ("target",), claim=claim),
        ]
        written[0].write(0, coefficients)
        written[1].write(0, intercept)
        commit(address, LINEAR_MODEL_KIND, content, written, claim)


def open_linear_model(url: Location) -> LinearRecord:
    """Open a linear regression's store; all of it is read.

    Raises
    ------
    StoreError
        Nothing there, another kind of store, unfinished, or with a missing or damaged chunk.
    """
    address, content, arrays = open_arrays(url, LINEAR_MODEL_KIND)
    try:
        coefficients, intercept = arrays["coefficients"], arrays["intercept"]
        return LinearRecord(
            url=address,
            coefficients=coefficients.read(0, coefficients.shape[0]),
            intercept=intercept.read(0, intercept.shape[0]),
            standardisation=Standardisation.from_json(content["standardisation"]),
            feature_names=tuple(content["feature_names"]),
            target_names=tuple(content["target_names"]),
            **{name: content[name] for name in ("fingerprint", "summary", "versions", "training_url")},
        )
    except KeyError as error:
        raise StoreError(f"The manifest of '{address}' lacks {error}; save the model again.") from error
