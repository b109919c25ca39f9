"""How good predictions are: the errors that the papers report, and what the store proves about them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dkgp.data import Dataset, Prediction
from dkgp.errors import InputError

__all__ = ["evaluate"]

NORMAL_95 = 1.959963984540054


def evaluate(prediction: Prediction, dataset: Dataset) -> dict[str, Any]:
    """Compare a prediction store with the targets of a dataset, chunk by chunk.

    Parameters
    ----------
    prediction : Prediction
    dataset : Dataset
        The test set that was predicted, with targets.

    Returns
    -------
    dict
        `rmse` (equation 16 of the GBCD paper: normalised by the training targets' standard deviation), `rmse_raw` in
        the targets' own units, `mae_raw`, `mean_error_bound` (largest, normalised as rmse); `nlpd` (normalised
        targets) and `coverage_95` where variances were predicted, else None; `per_target` for several targets.

    Raises
    ------
    InputError
        Other samples or targets than were predicted.
    """
    if dataset.n_targets == 0:
        raise InputError(f"'{dataset.url}' has no targets to compare with; evaluate needs the true values")
    if dataset.n_samples != prediction.n_samples:
        raise InputError(
            f"the prediction has {prediction.n_samples} samples, '{dataset.url}' has {dataset.n_samples}; "
            "evaluate a prediction against the test set that it was made for"
        )
    made_for = prediction.attributes.get("data_fingerprint")
    if made_for is not None and made_for != dataset.fingerprint:
        raise InputError(f"the prediction was made for other data than '{dataset.url}'; predict it first")
    names = tuple(prediction.target_names)
    if names != tuple(dataset.target_names):
        raise InputError(f"the prediction has the targets {list(names)}, the data {list(dataset.target_names)}")
    # Equation 16 normalises by the training targets' deviation; a test set ingested by itself carries its own.
    scale = np.asarray(prediction.attributes.get("target_std", dataset.standardisation.target_std))
    has_variance = "variance" in prediction.variables
    p, n = len(names), prediction.n_samples
    squared, absolute, likelihood, covered = np.zeros(p), np.zeros(p), np.zeros(p), np.zeros(p)
    bound = 0.0
    for start, stop in prediction.row_chunks():
        shape = (stop - start, p)
        error = dataset.targets(start, stop, standardised=False) - prediction.read("mean", start, stop).reshape(shape)
        squared += np.sum(error**2, axis=0)
        absolute += np.sum(np.abs(error), axis=0)
        if "mean_error_bound" in prediction.variables:
            bound = max(bound, float(np.max(prediction.read("mean_error_bound", start, stop).reshape(shape) / scale)))
        if has_variance:
            variance = prediction.read("variance", start, stop).reshape(shape)
            z = error**2 / variance
            likelihood += np.sum(0.5 * (np.log(2.0 * math.pi * variance / scale**2) + z), axis=0)
            covered += np.sum(z <= NORMAL_95**2, axis=0)
    rmse_raw = np.sqrt(squared / n)
    rmse = rmse_raw / scale
    result: dict[str, Any] = {
        "n": n,
        "rmse": float(np.sqrt(np.mean(rmse**2))),
        "rmse_raw": float(np.sqrt(np.mean(rmse_raw**2))),
        "mae_raw": float(np.mean(absolute / n)),
        "nlpd": float(np.mean(likelihood / n)) if has_variance else None,
        "coverage_95": float(np.mean(covered / n)) if has_variance else None,
        "mean_error_bound": bound,
    }
    if p > 1:
        result["per_target"] = {
            name: {"rmse": float(rmse[t]), "rmse_raw": float(rmse_raw[t])} for t, name in enumerate(names)
        }
    return result
