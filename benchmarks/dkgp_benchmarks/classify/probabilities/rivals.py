"""Rivals whose probabilities count: as a user would take them, with the settings that their packages come with.

A calibrated support vector machine, gradient boosting of trees by scikit-learn and by LightGBM, and scikit-learn's
Gaussian process classifier, which holds n x n matrices and so gets as many samples as it can be given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp_benchmarks.classify.rivals import CACHE_MIB, LIGHTGBM, SupportVectors
from dkgp_benchmarks.classify.trial import Classifier, Trial, median_gamma

FloatArray = NDArray[np.float64]

# scikit-learn's Gaussian process classifier: n^2 memory, and a few dozen times n^3 for its hyperparameters.
MOST_OF_A_PROCESS = 1000


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError
    return text == "yes"


SVM_SETTINGS: Mapping[str, Callable[[str], Any]] = {"tuned": _yes}
PROCESS_SETTINGS: Mapping[str, Callable[[str], Any]] = {"most": int}


@dataclass(frozen=True)
class _Fitted:
    """A model of scikit-learn's conventions; decisions are probabilities less a half."""

    model: Any
    size: int | None = None

    def probable(self, inputs: FloatArray) -> FloatArray:
        return np.asarray(self.model.predict_proba(inputs)[:, 1], dtype=np.float64)

    def decide(self, inputs: FloatArray) -> FloatArray:
        return self.probable(inputs) - 0.5


@dataclass(frozen=True)
class CalibratedVectors:
    """`CalibratedClassifierCV(SVC(), ensemble=False)`: C = 1 and gamma = 1 / (d var), or `tuned` as the SVM is."""

    settings: Mapping[str, Any]

    def tune(self, trial: Trial) -> dict[str, Any]:
        """Nothing, or the SVM's own search."""
        return SupportVectors().tune(trial) if self.settings.get("tuned") else {}

    def fit(self, trial: Trial, tuning: dict[str, Any]) -> Classifier:
        """Train five machines on parts, whose decisions calibrate a sixth on all samples."""
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.svm import SVC

        options = {"C": tuning["cost"], "gamma": tuning["gamma"]} if tuning else {}
        model = CalibratedClassifierCV(SVC(cache_size=CACHE_MIB, **options), ensemble=False)
        model.fit(trial.inputs, trial.codes)
        machine = model.calibrated_classifiers_[0].estimator
        return _Fitted(model, int(machine.n_support_.sum()))


class HistogramTrees:
    """scikit-learn's `HistGradientBoostingClassifier`, on the inputs as they come."""

    def tune(self, trial: Trial) -> dict[str, Any]:
        """Nothing."""
        return {}

    def fit(self, trial: Trial, tuning: dict[str, Any]) -> Classifier:
        """Train on all samples; it keeps some to stop by where there are many."""
        from sklearn.ensemble import HistGradientBoostingClassifier

        return _Fitted(HistGradientBoostingClassifier(random_state=trial.seed).fit(trial.inputs, trial.codes))


class LightTrees:
    """LightGBM's classifier."""

    def tune(self, trial: Trial) -> dict[str, Any]:
        """Nothing."""
        return {}

    def fit(self, trial: Trial, tuning: dict[str, Any]) -> Classifier:
        """Train on all samples."""
        library = require_light()
        return _Fitted(library.LGBMClassifier(random_state=trial.seed, verbose=-1).fit(trial.inputs, trial.codes))


@dataclass(frozen=True)
class DenseProcess:
    """scikit-learn's `GaussianProcessClassifier`, amplitude and one length scale by its own search, of `most` samples.

    `size` of what it trains is the number of samples that it was given.
    """

    settings: Mapping[str, Any]

    def tune(self, trial: Trial) -> dict[str, Any]:
        """Nothing: its fit searches."""
        return {}

    def fit(self, trial: Trial, tuning: dict[str, Any]) -> Classifier:
        """Train on a random subset where there are more samples than it may have."""
        from sklearn.gaussian_process import GaussianProcessClassifier
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel

        few = trial.subset(self.settings.get("most", MOST_OF_A_PROCESS))
        length = float(np.sqrt(0.5 / median_gamma(few.inputs, few.seed)))
        kernel = ConstantKernel(1.0) * RBF(length, (1e-3 * length, 1e3 * length))
        model = GaussianProcessClassifier(kernel, random_state=trial.seed)
        return _Fitted(model.fit(few.inputs, few.codes), few.n)


def require_light() -> Any:
    """Return LightGBM; raise `MissingExtraError` where it is not installed."""
    return LIGHTGBM.require("The method lightgbm of `dkgp bench classify`")
