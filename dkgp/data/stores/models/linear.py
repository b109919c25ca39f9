"""Linear regressions in a Zarr store: weights by feature, and the path that they were chosen of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.arrays import open_arrays
from dkgp.data.stores.dataset import Dataset
from dkgp.data.stores.manifest import described_whole
from dkgp.data.stores.models.description import TrainedRecord, about_training, read_arrays, require_shapes
from dkgp.data.stores.writable import new_store
from dkgp.data.types import FloatArray, Json, Location
from dkgp.errors import NumericalError

LINEAR_MODEL_KIND = "linear model"


@dataclass(frozen=True, eq=False, kw_only=True)
class LinearRecord(TrainedRecord):
    """A linear regression as it is stored; picklable.

    Attributes
    ----------
    coefficients, intercept
        On the standardised scale, shape (d, p) and (p,).
    summary
        What `pursue --json` prints: method, how the cardinality was chosen, the path of each target.
    """

    coefficients: FloatArray
    intercept: FloatArray


def save_linear_model(
    url: Location,
    dataset: Dataset,
    coefficients: FloatArray,
    intercept: FloatArray,
    summary: Json,
    *,
    overwrite: bool = False,
) -> None:
    """Write a linear regression's store; places and errors as of `save_model`."""
    if not (np.isfinite(coefficients).all() and np.isfinite(intercept).all()):
        raise NumericalError("the weights are not finite; the model is not saved")
    content = TrainedRecord(**about_training(dataset, summary)).described()
    shown = {name: content[name] for name in ("feature_names", "target_names", "fingerprint", "versions")}
    with new_store(normalise_url(url), LINEAR_MODEL_KIND, shown, overwrite) as store:
        store.write_array("coefficients", coefficients, ("feature", "target"))
        store.write_array("intercept", intercept, ("target",))
        store.commit(content)


def open_linear_model(url: Location) -> LinearRecord:
    """Open a linear regression's store; all of it is read. Errors as of `open_model`."""
    address, content, arrays = open_arrays(url, LINEAR_MODEL_KIND)
    with described_whole(address, "save the model again"):
        described = LinearRecord.description_in(address, content)
    d, p = len(described["feature_names"]), len(described["target_names"])
    shapes = {"coefficients": (d, p), "intercept": (p,)}
    require_shapes(address, arrays, shapes, shapes)
    return LinearRecord(**described, **read_arrays(arrays))
