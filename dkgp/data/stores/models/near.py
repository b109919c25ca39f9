"""The samples that a model with neighbours predicts from, as stores have them."""

from __future__ import annotations

from dataclasses import dataclass

from dkgp.data.types import FloatArray

NEAR_COUNTS = ("neighbours", "search_samples")
NEAR_DIMENSIONS = {
    "near_inputs": ("sample", "feature"),
    "near_targets": ("sample", "target"),
    "near_weights": ("basis", "target"),
    "near_embedding": ("landmark", "feature"),
}
# Where each target has its own noise.
NEAR_BY_TARGET = {
    **NEAR_DIMENSIONS,
    "near_noise": ("sample", "target"),
    "near_normal": ("target", "basis", "column"),
}


@dataclass(frozen=True, eq=False, kw_only=True)
class NearArrays:
    """Fields of a model with neighbours; None of others.

    Attributes
    ----------
    neighbours
        Samples that a prediction is conditioned on.
    search_samples
        Samples that a search for these looks at, at most; None: as many as it takes, in stores of before there was a
        limit.
    near_inputs, near_targets
        The training set, standardised, shapes (n, d) and (n, p).
    near_noise
        Its noise variances, shape (n,), or (n, p) where each target has its own; None where all samples have s2.
    near_weights, near_normal
        What the samples say of the basis' part: its mean (m, p) in whitened form, and a triangle of its precision,
        (m, m), or one for each target.
    near_embedding
        Inputs (e, d) that tell which samples are near, of a kernel that is no function of one distance.
    """

    neighbours: int | None = None
    search_samples: int | None = None
    near_inputs: FloatArray | None = None
    near_targets: FloatArray | None = None
    near_noise: FloatArray | None = None
    near_weights: FloatArray | None = None
    near_normal: FloatArray | None = None
    near_embedding: FloatArray | None = None


def shapes_by_target(m: int, d: int, p: int, n: int, e: int) -> dict[str, tuple[int, ...]]:
    """Shapes of all arrays that there may be: m basis samples, d features, p targets, n samples and e landmarks."""
    sizes = {"basis": m, "column": m, "feature": d, "target": p, "sample": n, "landmark": e}
    return {name: tuple(sizes[of] for of in dimensions) for name, dimensions in NEAR_BY_TARGET.items()}
