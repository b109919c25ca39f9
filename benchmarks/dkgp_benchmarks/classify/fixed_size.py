"""The paper's own method: a fixed-size LS-SVM whose prototypes are chosen by sparse conjugate directions pursuit.

"scdp" chooses from all training samples, "scdp-pool" from 0.3 n of them (2,000 at most) by k-centre clustering, and
"scdpp" from 59 at a time that are drawn at random. One length scale serves all features, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster import LocalExecutor
from dkgp.cluster.threads import available_cores
from dkgp.data import Dataset, memory_dataset
from dkgp.kernels import kernel_from_json
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.fixed_size.train import FixedSizeModel, TrainedFixedSize, train_fixed_size
from dkgp.models.classification.labels import LabelledData
from dkgp_benchmarks.classify.redraw import Redrawn, redrawn
from dkgp_benchmarks.classify.trial import Classifier, Trial

FloatArray = NDArray[np.float64]

# Of the paper: the share of the samples in a pool, the prototypes of Table 5, and rho.
POOL_SHARE, MOST_POOL, CANDIDATES = 0.3, 2000, 59
PAPER: Mapping[str, Any] = {"search": "profile", "folds": 10}
# Samples up to which one thread does, as other splits are at work beside it.
ONE_THREAD = 5000


def _pool(text: str) -> float:
    value = 1.0 if text == "all" else float(text)
    if value <= 0.0 or (value > 1.0 and not value.is_integer()):
        raise ValueError
    return value


def _whole(text: str) -> int | None:
    return None if text == "all" else int(text)


def _stop(text: str) -> tuple[int, float] | None:
    if text == "none":
        return None
    window, _, share = text.partition(":")
    return int(window), float(share)


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError
    return text == "yes"


# Settings of a method as they are written: a pool is a share of the samples up to 1, a number above it; `redraw`: the
# fit draws candidates that cross-validation did not see.
SETTINGS: Mapping[str, Callable[[str], Any]] = {
    "pool": _pool,
    "prototypes": str,
    "candidates": _whole,
    "max_basis": _whole,
    "intercept": str,
    "stop": _stop,
    "cardinality": str,
    "folds": int,
    "search": str,
    "isotropic": _yes,
    "redraw": _yes,
}


@dataclass(frozen=True)
class _Trained:
    model: FixedSizeModel | Redrawn
    standardise: Callable[[FloatArray], FloatArray]

    @property
    def size(self) -> int:
        return len(self.model.prototypes)

    def decide(self, inputs: FloatArray) -> FloatArray:
        return self.model.decisions(self.standardise(inputs))[:, 0]


@dataclass(frozen=True)
class FixedSize:
    """A fixed-size LS-SVM with some settings; `pool` is a share of the samples up to 1, a number above it."""

    settings: Mapping[str, Any]

    def tune(self, trial: Trial) -> dict[str, Any]:
        """Search the scale of the kernel, and by cross-validation noise variance and cardinality."""
        trained = self._train(trial)[0]
        return {
            "kernel": trained.model.kernel.to_json(),
            "noise_variance": trained.model.noise_variance,
            "score": trained.summary["score"],
            "passes": trained.summary["passes"],
            "pool": trained.summary["pool"],
            "cardinality": trained.summary["cardinality"],
            "best_cardinality": trained.summary["best_cardinality"],
        }

    def fit(self, trial: Trial, tuning: dict[str, Any]) -> Classifier:
        """Train with that kernel and noise variance: the pool, one pass, the path of every fold, and the fit."""
        if self.settings.get("redraw"):
            return self._grown(trial, tuning, anew=True)
        trained, standardise = self._train(trial, tuning)
        return _Trained(trained.model, standardise)

    def grow(self, trial: Trial, tuning: dict[str, Any]) -> Classifier:
        """Train with kernel, noise variance and cardinality known: one path on all samples, as Table 4 times it."""
        return self._grown(trial, tuning, anew=False)

    def __post_init__(self) -> None:
        # Settings that a fixed-size LS-SVM does not take are refused before any work.
        self.settings_of(2)

    def settings_of(self, n: int, **changed: Any) -> FixedSizeSettings:
        """The settings for so many samples."""
        settings = {**PAPER, "isotropic": True, "probability": False, **self.settings, **changed}
        pool, _ = settings.pop("pool", None), settings.pop("redraw", None)
        if pool is None:
            size = min(MOST_POOL, math.ceil(POOL_SHARE * n))
        else:
            size = math.ceil(pool * n) if pool <= 1.0 else min(n, int(pool))
        return FixedSizeSettings(pool=size, **settings)

    def _grown(self, trial: Trial, tuning: dict[str, Any], *, anew: bool) -> Classifier:
        dataset, kernel = self._dataset(trial), kernel_from_json(tuning["kernel"])
        settings, noise_variance = self.settings_of(trial.n, seed=trial.seed), tuning["noise_variance"]
        steps = tuning["cardinality"] + (settings.intercept == "selected")
        executor = _executor(trial)
        model = redrawn(dataset, trial.labels, settings, kernel, noise_variance, steps, executor, anew=anew)
        return _Trained(model, dataset.standardisation.inputs)

    def _dataset(self, trial: Trial) -> Dataset:
        return memory_dataset(trial.inputs, trial.codes, classes=trial.labels.classes)

    def _train(
        self, trial: Trial, tuning: dict[str, Any] | None = None
    ) -> tuple[TrainedFixedSize, Callable[[FloatArray], FloatArray]]:
        dataset, executor = self._dataset(trial), _executor(trial)
        data = LabelledData(dataset, trial.labels)
        if tuning is None:
            trained = train_fixed_size(data, self.settings_of(trial.n, seed=trial.seed), executor)
        else:
            # Paths of one noise variance alone may end before those of the search did, which go as far as its best.
            longest = max(1, tuning["best_cardinality"] + (self.settings.get("intercept") == "selected"))
            settings = self.settings_of(trial.n, seed=trial.seed, search="none", max_basis=longest, stop=None)
            kernel = kernel_from_json(tuning["kernel"])
            trained = train_fixed_size(data, settings, executor, kernel=kernel, noise_variance=tuning["noise_variance"])
        return trained, dataset.standardisation.inputs


def _executor(trial: Trial) -> LocalExecutor:
    return LocalExecutor(1 if trial.n <= ONE_THREAD else available_cores())
