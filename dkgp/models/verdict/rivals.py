"""Simpler models of the same training set, to hold a model's errors against: mean, linear model, boosting."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.data import Dataset, Prediction
from dkgp.data.stores.models.references import training_set_named
from dkgp.operators.base import FloatArray

MEAN, LINEAR, BOOSTING = "the mean of all targets", "a linear model", "gradient boosting (scikit-learn)"
# Training rows that boosting sees, and features of which a linear model still holds all products.
MOST_ROWS, MOST_FEATURES = 20_000, 4000
# Of boosting, by row and feature, with a start: from 20,000 rows of 10 features (.17 s) and of 100 (1.2 s), one thread.
_SECONDS, _START_SECONDS = 6e-7, 0.1
# Directions of the linear model that carry less than this share of the largest are left out: one-hot columns repeat.
_RANK = 1e-10


@dataclass(frozen=True)
class Rivals:
    """Root mean square errors of simpler models on the test samples, by target and by name, in the target's units."""

    errors: dict[str, dict[str, float]]
    training_rows: int
    boosting_rows: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "rmse_raw": self.errors,
            "training_rows": self.training_rows,
            "boosting_rows": self.boosting_rows,
            "seconds": self.seconds,
        }


def fit_rivals(prediction: Prediction, test: Dataset, note: Callable[[str], None]) -> Rivals:
    """Fit simpler models to the training set that the prediction's model names, and take their errors.

    The linear model is one of least squares, from sums over chunks; boosting sees at most 20,000 rows, evenly spaced,
    and is left out where there is no scikit-learn.

    Parameters
    ----------
    prediction, test
        Predictions of numbers, and the test set that they are of.
    note
        Told what is done, and about how long it takes.

    Raises
    ------
    StoreError
        The model, or the training set that it names, is gone, has changed or may not be named.
    """
    began = time.perf_counter()
    attributes = prediction.attributes
    training = training_set_named(str(attributes["model"]), str(attributes["model_fingerprint"]))
    train = training.as_seen_by(training.feature_names, prediction.target_names, training.standardisation)
    seen = test.as_seen_by(train.feature_names, prediction.target_names, train.standardisation)
    boosts = importlib.util.find_spec("sklearn") is not None
    step = -(-train.n_samples // MOST_ROWS)
    rows = -(-train.n_samples // step) if boosts else 0
    if boosts:
        seconds = len(prediction.target_names) * (_START_SECONDS + _SECONDS * rows * train.n_features)
        note(f"comparing with a linear model and boosting on {rows:,} training rows: about {max(1.0, seconds):.0f} s")
    fits: dict[str, Callable[[FloatArray], FloatArray]] = _sums_of_squares(train)
    if boosts:
        fits[BOOSTING] = _boosting(train, step)
    squared = {name: np.zeros(train.n_targets) for name in fits}
    for start, stop in seen.row_chunks():
        X, y = seen.inputs(start, stop), seen.targets(start, stop, standardised=False)
        for name, predict in fits.items():
            squared[name] += np.sum((y - predict(X)) ** 2, axis=0)
    errors = {
        target: {name: float(np.sqrt(sums[t] / test.n_samples)) for name, sums in squared.items()}
        for t, target in enumerate(prediction.target_names)
    }
    return Rivals(errors, train.n_samples, rows, time.perf_counter() - began)


def _sums_of_squares(train: Dataset) -> dict[str, Callable[[FloatArray], FloatArray]]:
    """The mean, and least squares on standardised inputs where these are not too many."""
    d, p = train.n_features, train.n_targets
    with_products = d <= MOST_FEATURES
    total, inputs, products, mixed = (
        np.zeros(p),
        np.zeros(d),
        np.zeros((d, d) if with_products else 0),
        np.zeros((d, p)),
    )
    for start, stop in train.row_chunks():
        X, y = train.inputs(start, stop), train.targets(start, stop, standardised=False)
        total += y.sum(axis=0)
        if with_products:
            inputs += X.sum(axis=0)
            products += X.T @ X
            mixed += X.T @ y
    n = train.n_samples
    mean, centre = total / n, inputs / n
    fits: dict[str, Callable[[FloatArray], FloatArray]] = {MEAN: lambda X: np.broadcast_to(mean, (len(X), p))}
    if with_products:
        covariance, mixed = products / n - np.outer(centre, centre), mixed / n - np.outer(centre, mean)
        weights = np.linalg.lstsq(covariance, mixed, rcond=_RANK)[0]
        fits[LINEAR] = lambda X: np.asarray((X - centre) @ weights + mean)
    return fits


def _boosting(train: Dataset, step: int) -> Callable[[FloatArray], FloatArray]:
    from sklearn.ensemble import HistGradientBoostingRegressor

    parts = [
        (train.inputs(start, stop)[-start % step :: step], train.targets(start, stop, False)[-start % step :: step])
        for start, stop in train.row_chunks()
    ]
    X, y = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    models = [HistGradientBoostingRegressor(random_state=0).fit(X, column) for column in y.T]
    return lambda rows: np.stack([model.predict(rows) for model in models], axis=1)
