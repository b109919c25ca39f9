"""Rivals that a user would take instead: scikit-learn's support vector machine, and gradient boosting of trees.

Both are tuned as the paper tunes its own rivals, by cross-validated misclassification. scikit-learn is an extra, and so
is LightGBM: where it is not installed, scikit-learn's histogram gradient boosting takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.models.classification.labels import stratified_folds
from dkgp.registry import Extra
from dkgp_benchmarks.classify.trial import Classifier, Trial, median_gamma

FloatArray = NDArray[np.float64]

LIGHTGBM = Extra("peers", "lightgbm", "lightgbm", "dkgp-benchmarks")

SVM_FOLDS, BOOSTING_FOLDS, SUBSET_FOLDS = 10, 5, 5
# Samples beyond which hyperparameters are those of a random subset.
SUBSET = 2000
# Grid of C, and of log gamma about the median distance's; then half steps about its best.
COSTS, GAMMA_STEPS = (0.1, 1.0, 10.0, 100.0, 1000.0), (-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0)
# Of LIBSVM, where a cost that no sample supports would not end.
MOST_ITERATIONS = 1_000_000
CACHE_MIB = 500
LEAVES, RATES, ROUNDS = (3, 7, 31), (0.03, 0.1), (25, 50, 100, 200, 400)
# Small data sets have leaves of few samples.
LEAST_IN_LEAF = 10


@dataclass(frozen=True)
class _Machine:
    model: Any
    size: int | None

    def decide(self, inputs: FloatArray) -> FloatArray:
        decisions: FloatArray = self.model.decision_function(inputs)
        return decisions


class SupportVectors:
    """scikit-learn's `SVC` (LIBSVM), kernel exp(-gamma r^2), C and gamma by cross-validated misclassification."""

    def tune(self, trial: Trial) -> dict[str, Any]:
        """Search a grid, then half steps about its best; of a subset where there are many samples."""
        few = trial.subset(SUBSET)
        count = SVM_FOLDS if few is trial else SUBSET_FOLDS
        parts = stratified_folds(few.labels, count, few.seed)
        start = float(np.log(median_gamma(few.inputs, few.seed)))
        errors: dict[tuple[float, float], float] = {}

        def look(cost: float, log_gamma: float) -> None:
            if (cost, log_gamma) not in errors:
                wrong = 0
                for part in range(count):
                    test = parts == part
                    model = _svc(cost, np.exp(log_gamma)).fit(few.inputs[~test], few.codes[~test])
                    wrong += int(np.sum(model.predict(few.inputs[test]) != few.codes[test]))
                errors[cost, log_gamma] = wrong / few.n

        for cost in COSTS:
            for step in GAMMA_STEPS:
                look(cost, start + step)
        cost, log_gamma = _least(errors)
        for factor in (1.0 / np.sqrt(10.0), 1.0, np.sqrt(10.0)):
            for step in (-0.5, 0.0, 0.5):
                look(float(cost * factor), log_gamma + step)
        cost, log_gamma = _least(errors)
        return {"cost": cost, "gamma": float(np.exp(log_gamma)), "score": errors[cost, log_gamma], "samples": few.n}

    def fit(self, trial: Trial, tuning: dict[str, Any]) -> Classifier:
        """Train on all samples."""
        model = _svc(tuning["cost"], tuning["gamma"]).fit(trial.inputs, trial.codes)
        return _Machine(model, int(model.n_support_.sum()))


class Boosting:
    """Gradient boosting of trees: leaves, learning rate and rounds by cross-validated misclassification."""

    def tune(self, trial: Trial) -> dict[str, Any]:
        """Search a grid; all numbers of rounds of a setting come from one fit in each fold."""
        parts = stratified_folds(trial.labels, BOOSTING_FOLDS, trial.seed)
        errors: dict[tuple[float, float, float], float] = {}
        for leaves in LEAVES:
            for rate in RATES:
                wrong = np.zeros(len(ROUNDS))
                for part in range(BOOSTING_FOLDS):
                    test = parts == part
                    model = _boosting(leaves, rate, ROUNDS[-1], trial.seed)
                    model.fit(trial.inputs[~test], trial.codes[~test])
                    staged = _staged(model, trial.inputs[test])
                    wrong += [int(np.sum((each >= 0.0) != trial.codes[test])) for each in staged]
                errors |= {(leaves, rate, rounds): count for rounds, count in zip(ROUNDS, wrong, strict=True)}
        leaves, rate, rounds = _least(errors)
        score = float(errors[leaves, rate, rounds]) / trial.n
        return {"leaves": leaves, "rate": rate, "rounds": rounds, "score": score, "library": boosting_library()}

    def fit(self, trial: Trial, tuning: dict[str, Any]) -> Classifier:
        """Train on all samples."""
        model = _boosting(tuning["leaves"], tuning["rate"], tuning["rounds"], trial.seed)
        model.fit(trial.inputs, trial.codes)
        return _Trees(model)


@dataclass(frozen=True)
class _Trees:
    model: Any
    size: int | None = None

    def decide(self, inputs: FloatArray) -> FloatArray:
        if boosting_library() == "lightgbm":
            decisions: FloatArray = self.model.predict(inputs, raw_score=True)
        else:
            decisions = self.model.decision_function(inputs)
        return decisions


def boosting_library() -> str:
    """The package that trees are boosted with here: LightGBM where it is installed, scikit-learn where it is not."""
    return "lightgbm" if LIGHTGBM.is_there() else "scikit-learn"


def _least(errors: dict[Any, float]) -> Any:
    """The place of the least error; of equals the least cost, or the fewest leaves, slowest and shortest."""
    return min(errors, key=lambda place: (errors[place], *place))


def _svc(cost: float, gamma: float) -> Any:
    from sklearn.svm import SVC

    return SVC(C=cost, gamma=gamma, cache_size=CACHE_MIB, max_iter=MOST_ITERATIONS)


def _boosting(leaves: int, rate: float, rounds: int, seed: int) -> Any:
    if boosting_library() == "lightgbm":
        return LIGHTGBM.require("The method boosting of `dkgp bench classify`").LGBMClassifier(
            num_leaves=leaves,
            learning_rate=rate,
            n_estimators=rounds,
            min_child_samples=LEAST_IN_LEAF,
            random_state=seed,
            n_jobs=1,
            verbose=-1,
        )
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(
        max_leaf_nodes=leaves,
        learning_rate=rate,
        max_iter=rounds,
        min_samples_leaf=LEAST_IN_LEAF,
        early_stopping=False,
        random_state=seed,
    )


def _staged(model: Any, inputs: FloatArray) -> list[FloatArray]:
    """Decisions after each number of rounds."""
    if boosting_library() == "lightgbm":
        return [model.predict(inputs, raw_score=True, num_iteration=rounds) for rounds in ROUNDS]
    counts, stages = set(ROUNDS), []
    for number, decisions in enumerate(model.staged_decision_function(inputs), 1):
        if number in counts:
            stages.append(np.asarray(decisions).reshape(-1))
    return stages
