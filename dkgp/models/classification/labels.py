"""Labels, and a training set of them: signs, decisions, weights and folds.

Two classes have one decision function, whose sign is the label (+1 is the second class). More have one each, a class
against the rest; the largest decides (Karsmakers, Pelckmans and Suykens, *Sparse conjugate directions pursuit with
application to fixed-size kernel models*, 2011, eq. 28 with the tie at +1).

`LabelledData` is a training set of labels, checked once for all classifiers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from dkgp.data import Dataset
from dkgp.data.classes import check_classes, class_name, signs_of
from dkgp.data.types import FloatArray, IntArray, quoted
from dkgp.errors import InputError
from dkgp.kernels import Kernel, check_positive_definite, has_user_function
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.tuning.subsets import draw_subset
from dkgp.solvers.stopping import ToTolerance

# Distinct whole values up to which a target of numbers is taken as labels.
MOST_NUMERIC_CLASSES = 100
# A class of less than this share of n / C samples is rare: an error rate alone says little of it.
RARE = 0.4


@dataclass(frozen=True, eq=False)
class Labels:
    """The label of every sample: names of the C classes in the order of their codes, and the codes (n,), 0 to C - 1."""

    classes: tuple[str, ...]
    codes: IntArray

    def __post_init__(self) -> None:
        check_classes(self.classes)
        codes = np.asarray(self.codes)
        if codes.ndim != 1 or codes.dtype.kind not in "iu" or not codes.size:
            raise InputError(f"Codes have shape {codes.shape} and type {codes.dtype}; expected integers, (n,).")
        if int(codes.min()) < 0 or int(codes.max()) >= len(self.classes):
            raise InputError(
                f"Codes lie from {codes.min()} to {codes.max()}; expected 0 to {len(self.classes) - 1}, one for each "
                f"class."
            )
        object.__setattr__(self, "codes", codes.astype(np.int64, copy=False))

    @property
    def n_samples(self) -> int:
        """Number of samples, n."""
        return len(self.codes)

    @property
    def n_classes(self) -> int:
        """Number of classes, C."""
        return len(self.classes)

    @property
    def n_outputs(self) -> int:
        """Number of decision functions, t: one for two classes, else one for each."""
        return 1 if self.n_classes == 2 else self.n_classes

    def signs(self) -> FloatArray:
        """The values that decision functions are fitted to, (n, t): +1 for the class, -1 for the others."""
        return signs_of(self.codes, self.n_classes)

    def counts(self) -> IntArray:
        """Samples of each class, (C,)."""
        return np.bincount(self.codes, minlength=self.n_classes).astype(np.int64)

    def subset(self, indices: IntArray) -> Labels:
        """The labels at `indices`, of the same classes."""
        return Labels(self.classes, self.codes[indices])


def decided(decisions: FloatArray) -> IntArray:
    """The class that decisions (r, t) speak for, as codes (r,).

    With one column the second class from zero on (a tie is +1), else the largest, of equal ones the first.
    """
    if decisions.ndim != 2 or not decisions.shape[1]:
        raise InputError(f"Decisions have shape {decisions.shape}; expected (r, t).")
    if decisions.shape[1] == 1:
        return np.asarray(decisions[:, 0] >= 0.0, dtype=np.int64)
    return np.asarray(decisions.argmax(axis=1), dtype=np.int64)


def rare_class(labels: Labels) -> int | None:
    """The class that has the fewest samples, where these are less than `RARE` of an equal share; None otherwise."""
    counts = labels.counts()
    rarest = int(np.argmin(counts))
    return rarest if counts[rarest] < RARE * labels.n_samples / labels.n_classes else None


def labels_of(dataset: Dataset) -> Labels:
    """The labels of a training set: its own, or its one target where that is a few whole numbers.

    A target of at most `MOST_NUMERIC_CLASSES` distinct whole values is taken, whose classes are then these numbers, in
    order. `InputError`: no target or several, numbers that are no labels, one class only, or a class without a sample.
    """
    if dataset.classes is not None:
        labels = Labels(dataset.classes, dataset.all_labels())
        _require_samples(labels, dataset.url)
        return labels
    if dataset.n_targets != 1:
        raise InputError(
            f"'{dataset.url}' has {dataset.n_targets or 'no'} target{'s' if dataset.n_targets else ''}"
            f"{f', {quoted(dataset.target_names)}' if dataset.n_targets else ''}; classification needs one column of "
            "labels. Ingest the data with `labels`."
        )
    values = dataset.all_targets(standardised=False)[:, 0]
    distinct, codes = np.unique(values, return_inverse=True)
    name = dataset.target_names[0]
    # A data set in memory gives its targets back by rounded arithmetic.
    nearest = np.rint(distinct)
    if (np.abs(distinct - nearest) > 1e-9 * np.maximum(1.0, np.abs(nearest))).any() or not np.isfinite(nearest).all():
        odd = distinct[np.argmax(np.abs(distinct - nearest))]
        raise InputError(
            f"The target '{name}' of '{dataset.url}' is a number such as {odd:g}, no label. Ingest the data with "
            "`labels`, or train a regression."
        )
    distinct, merged = np.unique(nearest, return_inverse=True)
    if len(distinct) > MOST_NUMERIC_CLASSES:
        raise InputError(
            f"The target '{name}' of '{dataset.url}' has {len(distinct)} different values; up to "
            f"{MOST_NUMERIC_CLASSES} are taken as labels. If they are, ingest the data with `labels`."
        )
    if len(distinct) < 2:
        raise InputError(
            f"The target '{name}' of '{dataset.url}' is one class only, '{class_name(distinct[0])}'; expected at least "
            "two classes to tell apart."
        )
    classes = tuple(class_name(value) for value in distinct.tolist())
    return Labels(classes, merged.reshape(-1)[codes.reshape(-1)].astype(np.int64))


def _require_samples(labels: Labels, url: str) -> None:
    counts = labels.counts()
    present = [name for name, count in zip(labels.classes, counts, strict=True) if count]
    if len(present) < 2:
        raise InputError(
            f"'{url}' has samples of one class only, {quoted(present)}; expected at least two classes to tell apart."
        )
    if len(present) < labels.n_classes:
        empty = [name for name, count in zip(labels.classes, counts, strict=True) if not count]
        raise InputError(
            f"'{url}' has no sample of the class{'es' if len(empty) > 1 else ''} {quoted(empty)}, so that nothing can "
            "be learned of it. Ingest it as a training set of its own, or add such samples."
        )


def label_weights(
    labels: Labels,
    class_weight: Literal["balanced"] | Mapping[str, float] | None,
    sample_weight: ArrayLike | None = None,
) -> FloatArray | None:
    """Weights of the samples in the fit, (n,), of mean one; None where all are alike.

    Of a class, "balanced" gives each the same total, n / C; a mapping gives weights by class name, 1 for those not in
    it. They are multiplied by `sample_weight` (n,); 0 leaves a sample out. `InputError`: a weight that is
    negative or not finite, a class that is not there, another shape, or a class of weight zero.
    """
    if class_weight is None and sample_weight is None:
        return None
    weights = _by_class(labels, class_weight)[labels.codes]
    if sample_weight is not None:
        weights = weights * _given(sample_weight, labels.n_samples)
    totals = np.bincount(labels.codes, weights=weights, minlength=labels.n_classes)
    if (totals <= 0.0).any():
        name = labels.classes[int(np.argmax(totals <= 0.0))]
        raise InputError(
            f"The samples of the class '{name}' have weight 0 in all; give some of them a positive weight."
        )
    mean = float(weights.mean())
    if not np.isfinite(mean):
        raise InputError("The weights are too large to be added up; scale them down.")
    return np.asarray(weights / mean)


def _by_class(labels: Labels, class_weight: Literal["balanced"] | Mapping[str, float] | None) -> FloatArray:
    if class_weight is None:
        return np.ones(labels.n_classes)
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise InputError(f"Got the class weight '{class_weight}'; expected 'balanced' or a weight for each class.")
        return np.asarray(labels.n_samples / (labels.n_classes * np.maximum(labels.counts(), 1)), dtype=np.float64)
    by_name = {str(name): float(weight) for name, weight in class_weight.items()}
    unknown = [name for name in by_name if name not in labels.classes]
    if unknown:
        raise InputError(
            f"There is a weight for the class{'es' if len(unknown) > 1 else ''} {quoted(unknown)}; the classes are "
            f"{quoted(labels.classes)}."
        )
    for name, weight in by_name.items():
        if not (np.isfinite(weight) and weight > 0.0):
            raise InputError(f"The weight of the class '{name}' is {weight:g}; expected a positive, finite number.")
    return np.array([by_name.get(name, 1.0) for name in labels.classes])


def _given(sample_weight: ArrayLike, n_samples: int) -> FloatArray:
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (n_samples,):
        raise InputError(f"The sample weights have shape {weights.shape}; expected ({n_samples},).")
    odd = ~np.isfinite(weights) | (weights < 0.0)
    if odd.any():
        row = int(np.argmax(odd))
        raise InputError(f"The weight of sample {row} is {weights[row]:g}; expected a finite number, not negative.")
    return weights


def stratified_folds(labels: Labels, folds: int, seed: int) -> IntArray:
    """The fold of each sample, (n,) from 0 to folds - 1, drawn at random within the classes.

    Each class is spread over the folds evenly, to within one sample, and so are all samples together. The draw depends
    on the labels, the number of folds and the seed alone. `InputError`: fewer than two folds, a negative seed, or a
    class of fewer samples than folds.
    """
    if folds < 2:
        raise InputError(f"Got {folds} folds; expected at least 2.")
    if seed < 0:
        raise InputError(f"The seed must not be negative; got {seed}.")
    counts = labels.counts()
    rarest = int(np.argmin(counts))
    least = int(counts[rarest])
    if least < folds:
        mend = (
            f"Take at most {least} folds, or leave the class out" if least > 1 else "Leave the class out, or add to it"
        )
        raise InputError(
            f"The class '{labels.classes[rarest]}' has {least} sample{'' if least == 1 else 's'}, fewer than the "
            f"{folds} folds: some fold would be without it. {mend}."
        )
    generator = np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(14, 0)))
    result = np.empty(labels.n_samples, dtype=np.int64)
    # One class goes on with the fold after that in which the one before it ended.
    first = 0
    for code in range(labels.n_classes):
        members = generator.permutation(np.flatnonzero(labels.codes == code))
        result[members] = (first + np.arange(len(members))) % folds
        first += len(members)
    return result


@dataclass(frozen=True, eq=False)
class LabelledData:
    """Samples with their labels and weights.

    Parameters
    ----------
    dataset : Dataset
        Its standardised inputs are read when they are needed; its targets are not.
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
        """Classes, and digests of labels and weights: the identity of checkpoints, beside the data."""
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
