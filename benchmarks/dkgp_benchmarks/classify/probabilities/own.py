"""dkgp's own classifiers whose probabilities are a likelihood's: kernel logistic regression and Gaussian processes.

Of all samples, or of a basis ("logistic,basis=2000"), of `gp` also with neighbours ("gp,basis=200,neighbours=128").
The kernel is found by Laplace's evidence of a subset, and is the same for all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import dkgp
from dkgp.data import memory_dataset
from dkgp.errors import InputError
from dkgp.models import Hyperparameters
from dkgp.models.classification.hyperparameters import LabelTuning, tune_labels
from dkgp.models.classification.labels import LabelledData
from dkgp.models.prediction.classes import ClassPosterior
from dkgp.models.prediction.posterior import Want
from dkgp.models.variance.settings import VarianceSettings
from dkgp_benchmarks.classify.trial import Classifier, Trial

FloatArray = NDArray[np.float64]

SUBSET = 2000


def yes(text: str) -> bool:
    """Read yes or no; `ValueError` for anything else."""
    if text not in ("yes", "no"):
        raise ValueError
    return text == "yes"


def count(text: str) -> int:
    """Read a positive number; `ValueError` for anything else."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


# As they are written; `basis` points in place of all samples, chosen by the method `chosen`. Of `gp` on all samples
# `gap` has every latent variance known that precisely, where averages have use for less.
SETTINGS: Mapping[str, Callable[[str], Any]] = {
    "basis": count,
    "chosen": str,
    "subset": count,
    "isotropic": yes,
    "solver": str,
    "tol": float,
    "max_passes": float,
    "gap": float,
}
# And of `gp`: samples that predictions on a basis stand on beside it.
PROCESS_SETTINGS: Mapping[str, Callable[[str], Any]] = {**SETTINGS, "neighbours": count}


@dataclass(frozen=True)
class _Trained:
    model: Any
    size: int | None

    def decide(self, inputs: FloatArray) -> FloatArray:
        return np.asarray(self.model.decision_function(inputs), dtype=np.float64)

    def probable(self, inputs: FloatArray) -> FloatArray:
        return np.asarray(self.model.predict_proba(inputs)[:, 1], dtype=np.float64)


@dataclass(frozen=True)
class _TrainedProcess(_Trained):
    """A Gaussian process of all samples, whose probabilities have proven intervals."""

    gap: float | None = None

    def within(self, inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Probabilities of class 1, and how wide their intervals are: (r,) both."""
        variance = None if self.gap is None else VarianceSettings(gap=self.gap)
        record = self.model._fitted.record
        predictor = ClassPosterior(record, Want.in_memory(f"bench-{self.gap}", variance, n_test=len(inputs)))
        found = predictor(inputs)
        return found["probability"][:, 1], (found["probability_upper"] - found["probability_lower"])[:, 1]


@dataclass(frozen=True)
class Probable:
    """`KernelLogisticClassifier` or `GPClassifier` with some settings."""

    form: Literal["logistic", "gp"]
    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        if "neighbours" in self.settings and "basis" not in self.settings:
            raise InputError("neighbours are of a basis: name its size too, as in gp,basis=200,neighbours=128")

    def tune(self, trial: Trial) -> dict[str, Any]:
        """Find the kernel by Laplace's evidence of a subset, a length scale for each feature unless told otherwise."""
        dataset = memory_dataset(trial.inputs, trial.codes, classes=trial.labels.classes)
        hyper = tune_labels(
            LabelledData(dataset, trial.labels),
            LabelTuning(
                self.settings.get("subset", SUBSET),
                trial.seed,
                isotropic=self.settings.get("isotropic", False),
                likelihood="logit",
            ),
        )
        return {"hyperparameters": hyper.to_json()}

    def fit(self, trial: Trial, tuning: dict[str, Any]) -> Classifier:
        """Train with that kernel."""
        options = {name: self.settings[name] for name in ("solver", "tol", "max_passes") if name in self.settings}
        size = self.settings.get("basis")
        if size is not None:
            options |= {"n_basis": min(size, trial.n)}
            options |= {"basis": self.settings["chosen"]} if "chosen" in self.settings else {}
            options |= {"neighbours": self.settings["neighbours"]} if "neighbours" in self.settings else {}
        estimator: Any = dkgp.KernelLogisticClassifier if self.form == "logistic" else dkgp.GPClassifier
        kernel = Hyperparameters.from_json(tuning["hyperparameters"])
        model = estimator(kernel=kernel, random_state=trial.seed, **options).fit(trial.inputs, trial.codes)
        if self.form == "gp" and size is None:
            return _TrainedProcess(model, model.n_basis_, self.settings.get("gap"))
        return _Trained(model, model.n_basis_)
