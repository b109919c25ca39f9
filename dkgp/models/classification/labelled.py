"""A training set of labels, checked once for all classifiers, and what their training runs have in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np

from dkgp.data import Dataset
from dkgp.data.types import Progress
from dkgp.errors import InputError
from dkgp.kernels import Kernel, check_positive_definite, has_user_function
from dkgp.models.classification.labels import Labels
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.tuning.subsets import draw_subset
from dkgp.operators.base import FloatArray
from dkgp.solvers.checkpointing import Checkpoints, interrupted
from dkgp.solvers.stopping import ToTolerance


@dataclass(frozen=True, eq=False)
class LabelledData:
    """Samples, their labels, and what each sample counts.

    Parameters
    ----------
    dataset : Dataset
        Its standardised inputs are read by whoever needs them; its targets are not.
    labels : Labels
        Of its samples.
    weights : (n,) float64, optional
        Of each sample's loss, not negative; by default all count the same.

    Raises
    ------
    InputError
        Labels or weights of another number of samples, weights below zero or not finite, or a class whose samples
        have weight 0 in all.
    """

    dataset: Dataset
    labels: Labels
    weights: FloatArray | None = None

    def __post_init__(self) -> None:
        n, labels = self.dataset.n_samples, self.labels
        if labels.n_samples != n:
            raise InputError(f"there are labels of {labels.n_samples:,} samples; '{self.dataset.url}' has {n:,}")
        if self.weights is None:
            return
        weights = np.asarray(self.weights, dtype=np.float64)
        if weights.shape != (n,):
            raise InputError(f"`weights` have shape {weights.shape}; expected ({n},), one for each sample")
        usable = np.isfinite(weights) & (weights >= 0.0)
        if not usable.all():
            row = int(np.argmin(usable))
            raise InputError(f"`weights` must be finite and not negative; got {weights[row]} for sample {row}")
        weightless = np.bincount(labels.codes, weights, labels.n_classes) <= 0.0
        weightless &= labels.counts() > 0
        if weightless.any():
            name = labels.classes[int(np.argmax(weightless))]
            raise InputError(f"the samples of the class '{name}' have weight 0 in all; give some a positive one")
        object.__setattr__(self, "weights", weights)

    @property
    def n(self) -> int:
        """Number of samples."""
        return self.dataset.n_samples

    def kernel(self, hyperparameters: Hyperparameters) -> tuple[Kernel, float]:
        """The kernel and s2; a user's function is checked on some of the samples."""
        kernel = hyperparameters.kernel
        if has_user_function(kernel):
            check_positive_definite(kernel, self.dataset.input_rows(draw_subset(self.n, 256, 0)))
        return kernel, hyperparameters.noise_variance

    @property
    def identity(self) -> dict[str, Any]:
        """Classes, and digests of labels and weights: what checkpoints belong to, beside the data."""
        return {
            "classes": list(self.labels.classes),
            "labels": digest(self.labels.codes, "<i8"),
            "weights": digest(self.weights, "<f8"),
        }

    def identified(self, context: RunContext, **settings: Any) -> RunContext:
        """The context, its checkpoints those of these labels, weights and settings too."""
        if context.checkpointing is None:
            return context
        identity = {**context.checkpointing.identity, **self.identity, **settings}
        return replace(context, checkpointing=replace(context.checkpointing, identity=identity))

    def summary(self) -> dict[str, Any]:
        """Sizes and classes, as summaries of training tell them."""
        return {
            "n": self.n,
            "d": self.dataset.n_features,
            "classes": list(self.labels.classes),
            "counts": self.labels.counts().tolist(),
            "columns": self.labels.n_outputs,
        }

    def class_weights(self) -> dict[str, float] | None:
        """Mean weight of a class's samples; None where all count the same. A class without samples has none."""
        if self.weights is None:
            return None
        by_class = {name: self.weights[self.labels.codes == code] for code, name in enumerate(self.labels.classes)}
        return {name: float(weights.mean()) for name, weights in by_class.items() if weights.size}


def digest(array: Any, dtype: str) -> str | None:
    """SHA-256 of an array's bytes as `dtype`, in hexadecimal; None of none."""
    return None if array is None else sha256(np.ascontiguousarray(array, dtype=dtype).tobytes()).hexdigest()


class DecisionTolerance(ToTolerance):
    """Converged when decisions, and so labels and probabilities, are near the exact model's."""

    rule = "decision_error"
    message = "decisions within {measure:.3g} <= {tolerance:.3g}"
    subject = "the tolerance of decisions"


# Largest share of a tolerance on decisions that roundings may take while rounds go on to leave them room.
REACH = 0.9


def beyond_tolerance(proven: float, tolerance: float, remedy: str) -> dict[str, str]:
    """Return the entry `beyond_tolerance` of the summary of a solve that converged: words on roundings that exceed it.

    `proven` is the bound that is stored; the entry is missing where it is within the tolerance.
    """
    if proven <= tolerance:
        return {}
    return {
        "beyond_tolerance": f"decisions are proven within {proven:.2g}, not within `tolerance` {tolerance:g}: the rest "
        f"is roundings of float64, which further rounds do not change. Take a tolerance of {1.1 * proven:.2g} or more, "
        f"or {remedy}"
    }


class Laps:
    """Seconds of the parts of a run, one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    def end(self, part: str) -> None:
        """The part that ends now."""
        self.seconds[part] = round(time.perf_counter() - self._began, 3)
        self._began = time.perf_counter()

    def summary(self) -> dict[str, Any]:
        """In all, and by part."""
        return {"seconds": round(sum(self.seconds.values()), 3), "seconds_by_part": self.seconds}


def interruption(
    context: RunContext, checkpoints: Checkpoints, unit: str, phase: str | None = None
) -> Callable[[Progress | None], None]:
    """A check for the moments in between: raises `InterruptedRunError`, with what is saved, once an end is asked for.

    `unit` is what checkpoints count, such as "steps"; `phase` is named where the progress does not say it.
    """

    def check(progress: Progress | None) -> None:
        if context.interrupted is None or not context.interrupted():
            return
        url = None if checkpoints.saved_iteration is None else checkpoints.url
        place = phase if phase is not None or progress is None else progress.phase
        raise interrupted(f"in the {place}", url, f"{checkpoints.saved_iteration} {unit} are")

    return check
