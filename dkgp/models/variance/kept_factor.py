"""A variance factor that stays with its model: kept on request, used again by later predictions."""

from __future__ import annotations

import math

import numpy as np

from dkgp.data import FactorRecord, FactorWriter, ModelRecord, is_resident, open_factor
from dkgp.errors import StoreError
from dkgp.kernels import Kernel
from dkgp.models.variance.landmarks import Landmarks
from dkgp.models.variance.nystrom import FactorSource, landmark_jitter


def kept_factor(
    model: ModelRecord, kernel: Kernel, rank: int | None, *, proving: bool
) -> tuple[FactorRecord | None, str]:
    """Return the factor that is kept with a model, if it will do, and what is wrong with it, if anything is.

    Parameters
    ----------
    rank : int or None
        The rank asked for; any with None.
    proving : bool
        Whether the factor has to certify variances by itself, which takes float64.
    """
    if is_resident(model.url):
        return None, ""
    try:
        kept = open_factor(model.url, fingerprint=model.fingerprint)
    except StoreError as error:
        return None, f"; the factor kept with the model is of no use: {error}"
    if kept is None or rank not in (None, kept.rank):
        return None, ""
    needed = landmark_jitter(kernel, model.input_rows(np.asarray(kept.indices, dtype=np.intp)))
    if kept.metadata.get("jitter", 0.0) < 0.99 * needed:  # half of it is to spare
        return None, "; the factor kept with the model is an older version's, which does not count every rounding"
    if kept.metadata["precision"] != "double" and "kernel_trace" not in kept.metadata:
        return None, "; the factor kept with the model is an older version's, which is of use only where F is held"
    return (kept, "") if not proving or kept.metadata["precision"] == "double" else (None, "")


def landmarks_of(kept: FactorRecord) -> Landmarks:
    """Return the landmarks that a kept factor was built on."""
    return Landmarks(
        np.asarray(kept.indices, dtype=np.intp),
        float(kept.metadata["residual_trace"]),
        float(kept.metadata["effective_dimension"]),
        float(kept.metadata.get("kernel_trace", math.nan)),
        float(kept.metadata.get("gain", math.nan)),
    )


def keep_factor(model: ModelRecord, source: FactorSource, landmarks: Landmarks, *, gap: float, seed: int) -> None:
    """Store this process's factor with its model; `gap` and `seed` are what it was chosen for.

    Raises
    ------
    StorageError, StoreError
        The model's place cannot be written to, or another run keeps a factor there just now.
    """
    factor = source.factor()
    metadata = {
        "kernel": model.kernel,
        "noise_variance": model.noise_variance,
        "fingerprint": model.fingerprint,
        "precision": source.precision,
        "jitter": landmark_jitter(source.context.kernel, source.landmark_inputs),
        "residual_trace": landmarks.residual_trace,
        "effective_dimension": landmarks.effective_dimension,
        **({} if math.isnan(landmarks.kernel_trace) else {"kernel_trace": landmarks.kernel_trace}),
        **({} if math.isnan(landmarks.gain) else {"gain": landmarks.gain}),
        "gap": gap,
        "seed": seed,
    }
    with FactorWriter.create(model.url, metadata, factor.n, factor.rank) as writer:
        for start, stop in writer.row_chunks():
            features = factor.evaluator.prepare(source.context.source.inputs(start, stop))
            writer.write_columns(start, factor.rows(features, slice(start, stop)))
        writer.commit(
            landmarks.indices,
            factor.lower.astype(np.float64),
            factor.gram_lower.astype(np.float64),
            factor.residual_diagonal,
        )
