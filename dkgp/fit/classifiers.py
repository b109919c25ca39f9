"""The choice of a classifier's method: each is trained on some training samples, and predicts others."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dkgp.data import Dataset
from dkgp.data.types import FloatArray
from dkgp.errors import InputError, NumericalError
from dkgp.models.classification.calibration import drawn_by_class
from dkgp.models.classification.labels import labels_of

# Largest numbers of samples to train on and to predict; with several classes fewer, as Laplace's approximation costs
# the cube of the samples for each class.
TRAINED, PREDICTED, LEAST_PREDICTED = 1000, 1000, 100
# Largest number of samples of a final model on all samples; above it, the model has a basis of this size.
ON_ALL, BASIS_SIZE = {"logistic": 5000, "gp": 2000}, 1000
# Samples on which `classify` tunes the methods that have a likelihood.
TUNED = 2000
FLOOR = 1e-12
# Reasons of methods that were left out for lack of time; the second goes on with the seconds.
LATE, STOPPED = "too little time", "the comparison was stopped after"


@dataclass(frozen=True)
class ComparedMethod:
    """A method's held-out figures: log loss in nats a sample, error and balanced error, and its seconds."""

    method: str
    log_loss: float
    error: float
    balanced_error: float
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """Compared methods, the best by log loss, and the methods that were left out with their reasons.

    `ranked` are the methods in the order in which `fit` tries them: those that predict better than fixed-size, then
    fixed-size.
    """

    samples: int = 0
    held_out: int = 0
    methods: tuple[ComparedMethod, ...] = ()
    ranked: tuple[str, ...] = ("fixed-size",)
    left_out: dict[str, str] = field(default_factory=dict)

    def train_seconds(self, method: str, n: int) -> float:
        """Forecast the training on n samples from the seconds of the comparison.

        Tuning grows with the cube of its subset. Training on all samples grows with n^2, on a basis of M with n M^2.
        """
        seconds = next(row.seconds for row in self.methods if row.method == method)
        size, growth = basis_size(method, n), max(1.0, n / self.samples)
        training = growth**2 if size is None else growth * (size / self.samples) ** 2
        return seconds * (max(1.0, min(n, TUNED) / self.samples) ** 3 + training)


def compare_methods(
    train: Dataset, *, seconds: float, seed: int = 0, note: Callable[[str], None] = lambda text: None
) -> Comparison:
    """Train each method on the same samples and compare log losses on the same other samples.

    A method is left out if it would exceed the time limit `seconds`, judged by the time of the one before it. A method
    is preferred to fixed-size only if its log loss is smaller by more than the standard error of the difference.
    """
    # scikit-learn takes as long to import as all other modules of a fit, and a regression does not need it.
    from dkgp.estimators import FixedSizeLSSVC, GPClassifier, KernelLogisticClassifier

    labels = labels_of(train)
    most = max(2 * labels.n_classes, int(TRAINED / labels.n_outputs ** (1.0 / 3.0)))
    drawn = drawn_by_class(labels, max(4, min(most, train.n_samples // 2)), seed)
    rest = np.random.default_rng([seed, 8]).permutation(np.setdiff1d(np.arange(train.n_samples), drawn))[:PREDICTED]
    if len(rest) < LEAST_PREDICTED:
        reason = "too few samples for a held-out set"
        note(f"the methods are not compared: {reason}")
        return Comparison(left_out=dict.fromkeys(("logistic", "gp"), reason))
    common: dict[str, Any] = {"random_state": seed}
    methods = {
        "fixed-size": FixedSizeLSSVC(**common),
        "logistic": KernelLogisticClassifier(subset_size=len(drawn), **common),
        "gp": GPClassifier(subset_size=len(drawn), **common),
    }
    inputs, new, codes = train.input_rows(drawn), train.input_rows(np.sort(rest)), labels.codes[np.sort(rest)]
    began, last = time.perf_counter(), 0.0
    rows, losses, left_out = list[ComparedMethod](), dict[str, FloatArray](), dict[str, str]()
    for name, estimator in methods.items():
        started = time.perf_counter()
        if started - began + last > seconds:
            left_out[name] = LATE
            note(f"method {name} is not compared: {LATE}")
            continue
        try:
            fitted = estimator.fit(inputs, labels.codes[drawn])
            shares = np.asarray(fitted.predict_proba(new))
        except (InputError, NumericalError) as error:
            left_out[name] = str(error)
            continue
        last = time.perf_counter() - started
        # A class that the training part lacks has no column: its samples have the least probability.
        places = np.searchsorted(fitted.classes_, codes).clip(max=len(fitted.classes_) - 1)
        known = fitted.classes_[places] == codes
        picked = np.where(known, shares[np.arange(len(codes)), places], 0.0)
        wrong = fitted.classes_[shares.argmax(axis=1)] != codes
        by_class = [wrong[codes == code].mean() for code in np.unique(codes)]
        losses[name] = -np.log(np.maximum(picked, FLOOR))
        rows.append(
            ComparedMethod(name, float(losses[name].mean()), float(wrong.mean()), float(np.mean(by_class)), last)
        )
        note(f"method {name}: log loss {rows[-1].log_loss:.4f} nats per sample, error {rows[-1].error:.2%}")
    return Comparison(len(drawn), len(codes), tuple(rows), _ranked(losses), left_out)


def _ranked(losses: dict[str, FloatArray]) -> tuple[str, ...]:
    """Return the methods that predict better than fixed-size, best first, and then fixed-size."""
    usual = losses.get("fixed-size")
    better = []
    for name, values in losses.items():
        if name == "fixed-size":
            continue
        gain = np.full(1, np.inf) if usual is None else usual - values
        error = float(gain.std() / np.sqrt(len(gain))) if len(gain) > 1 else 0.0
        if gain.mean() > error:
            better.append((float(values.mean()), name))
    return (*(name for _, name in sorted(better)), "fixed-size")


def basis_size(method: str, n: int) -> int | None:
    """Return the size of the final model's basis; None for a model on all samples."""
    return None if n <= ON_ALL[method] else BASIS_SIZE
