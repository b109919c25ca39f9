"""Residuals of a prediction store, read chunk by chunk, thinned where there are many."""

from __future__ import annotations

import numpy as np

from dkgp.data import Dataset, Prediction
from dkgp.models.metrics import check_belonging
from dkgp.models.target_units import TargetUnits
from dkgp.models.variance_scores import ScoredVariances
from dkgp.models.verdict.regression import Residuals
from dkgp.operators.base import FloatArray

# Test samples that are looked at, and numbers among their features: of more, every second, third ...
MOST_SAMPLES, MOST_NUMBERS = 100_000, 2**25


def read_residuals(prediction: Prediction, dataset: Dataset, *, noise_free: bool = False) -> dict[str, Residuals]:
    """Residuals of each target, by its name, of at most 100,000 samples, evenly spaced.

    Parameters and errors are those of `dkgp.models.metrics.evaluate`, and so are the variances.
    """
    check_belonging(prediction, dataset)
    variances = ScoredVariances.of(prediction, noise_free)
    most = min(MOST_SAMPLES, max(1000, MOST_NUMBERS // max(1, dataset.n_features)))
    step = -(-prediction.n_samples // most)
    units = TargetUnits(prediction, noise_free=noise_free)
    truth, means, inputs, inside = (list[FloatArray]() for _ in range(4))
    deviations: tuple[list[FloatArray], ...] = ([], [], [])
    known = list[FloatArray]()
    for start, stop in prediction.row_chunks():
        rows = slice(-start % step, None, step)
        targets = dataset.targets(start, stop, standardised=False)
        truth.append(targets[rows])
        means.append(units.mean(start, stop)[rows])
        if units.transformed:
            inside.append((units.forward(targets, start) - prediction.read("mean", start, stop))[rows])
        inputs.append(dataset.inputs(start, stop, standardised=False)[rows])
        if "noise" in prediction.variables:
            known.append(prediction.read("noise", start, stop)[rows])
        if variances is not None:
            for parts, variance in zip(deviations, variances.read(start, stop), strict=True):
                parts.append(np.sqrt(variance[rows]))
    errors = np.concatenate(inside) if inside else None
    y, m, X = (np.concatenate(parts) for parts in (truth, means, inputs))
    s = None if variances is None else [np.concatenate(parts) for parts in deviations]
    proven = variances is not None and variances.proven
    noise = np.zeros(prediction.n_targets) + np.asarray(prediction.attributes.get("noise_variance", np.inf))
    beside = np.concatenate(known) if known else np.zeros((1, prediction.n_targets))
    return {
        name: Residuals(
            y[:, t],
            m[:, t],
            None if s is None else s[0][:, t],
            X,
            dataset.feature_names,
            (s[1][:, t], s[2][:, t]) if s is not None and proven else None,
            noise_free,
            0.0 if s is None else _latent_share(s[0][:, t], noise[t] + beside[:, t]),
            _normal(
                None if errors is None else errors[:, t], (y - m)[:, t], None if s is None else s[0][:, t], variances
            ),
            errors is not None,
        )
        for t, name in enumerate(prediction.target_names)
    }


def _normal(
    inside: FloatArray | None, errors: FloatArray, deviations: FloatArray | None, variances: ScoredVariances | None
) -> FloatArray | None:
    """Residuals (n,) where they should be normal: `inside` a transform, or by Student's t; None without either."""
    if variances is not None and variances.student is not None and deviations is not None:
        errors = errors if inside is None else inside
        return variances.normal_scores(errors[:, None], deviations[:, None] ** 2)[:, 0]
    return None if inside is None else inside / (_deviation(inside) if deviations is None else deviations)


def _deviation(errors: FloatArray) -> float:
    """Root mean square of errors, one where all are zero."""
    return float(np.sqrt(np.mean(errors**2))) or 1.0


def _latent_share(deviations: FloatArray, noise: FloatArray) -> float:
    """Share of variances that is more than noise, on average; 0 where the noise is not known."""
    return float(np.mean(np.maximum(1.0 - noise / deviations**2, 0.0)))
