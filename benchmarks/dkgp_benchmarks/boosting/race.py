"""Contenders on a table: error, density and intervals on the test samples, and the cores' seconds.

dkgp is `dkgp fit` as it is typed. Boosting is scikit-learn's `HistGradientBoostingRegressor`, six settings by three
folds; its density is a normal one of the folds' squared error, its intervals those of two quantile models. The linear
model is scikit-learn's `RidgeCV`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.commands.ingest import IngestJob
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.data import open_prediction
from dkgp.fit.job import FitJob
from dkgp.fit.run import run_fit
from dkgp.models.prediction.table import PredictionTable
from dkgp_benchmarks.boosting.problems import FloatArray, TableSamples

FOLDS = 3
RATES, LEAVES, MOST_ROUNDS = (0.05, 0.1), (7, 31, 127), 1000
LOWER, UPPER = 0.025, 0.975


@dataclass(frozen=True)
class Outcome:
    """Figures of a contender, in the table's own units."""

    rmse: float
    nlpd: float
    coverage: float
    width: float
    remark: str


def gaussian_process(samples: TableSamples, seconds: float, seed: int) -> Outcome:
    """`dkgp fit` with its defaults, but for the time that it may take."""
    with tempfile.TemporaryDirectory(prefix="dkgp-bench-") as name:
        folder = Path(name)
        np.savez(folder / "table.npz", **samples.arrays())  # type: ignore[arg-type]  # of a mapping of arrays
        ingestion = IngestJob((str(folder / "table.npz"),), "", ("y",), test_mask="test_mask", seed=seed)
        document = run_fit(FitJob(ingestion, str(folder / "fit"), seconds), SilentReporter())
        lower, upper = _intervals(folder / "fit" / "pred.zarr")
    scores = document["evaluation"]
    compared, model = document["tune"].get("comparison"), document["choice"]["way"]["name"]
    remark = model if compared is None else f"{compared['kernel']}, {model}"
    return Outcome(scores["rmse_raw"], scores["nlpd_raw"], scores["coverage_95"], float(np.mean(upper - lower)), remark)


def boosting(samples: TableSamples, seconds: float, seed: int) -> Outcome:
    """Search by folds, fit the best, and two quantile models of the same settings."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    X, y = samples.inputs, samples.targets
    parts = np.random.default_rng(seed).permutation(len(y)) % FOLDS
    errors: dict[tuple[float, int], float] = {}
    rounds: dict[tuple[float, int], int] = {}
    for rate in RATES:
        for leaves in LEAVES:
            squared, counts = 0.0, []
            for part in range(FOLDS):
                held_out = parts == part
                model = HistGradientBoostingRegressor(
                    learning_rate=rate,
                    max_leaf_nodes=leaves,
                    max_iter=MOST_ROUNDS,
                    early_stopping=True,
                    random_state=seed,
                ).fit(X[~held_out], y[~held_out])
                squared += float(np.sum((y[held_out] - model.predict(X[held_out])) ** 2))
                counts.append(model.n_iter_)
            errors[rate, leaves], rounds[rate, leaves] = squared / len(y), int(np.median(counts))
    best = min(errors, key=lambda setting: (errors[setting], setting))
    rate, leaves = best
    settings: dict[str, Any] = {
        "learning_rate": rate,
        "max_leaf_nodes": leaves,
        "max_iter": rounds[best],
        "early_stopping": False,
        "random_state": seed,
    }
    mean, lower, upper = (
        HistGradientBoostingRegressor(**loss, **settings).fit(X, y).predict(samples.test_inputs)
        for loss in ({}, *({"loss": "quantile", "quantile": level} for level in (LOWER, UPPER)))
    )
    return _scored(
        samples, mean, errors[best], (lower, upper), f"rate {rate:g}, {leaves} leaves, {rounds[best]} rounds"
    )


def linear(samples: TableSamples, seconds: float, seed: int) -> Outcome:
    """Ridge regression of standardised features."""
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3.0, 3.0, 13))).fit(samples.inputs, samples.targets)
    variance = float(np.mean((samples.targets - model.predict(samples.inputs)) ** 2))
    mean = np.asarray(model.predict(samples.test_inputs))
    return _scored(samples, mean, variance, None, "")


CONTENDERS: Mapping[str, Callable[[TableSamples, float, int], Outcome]] = {
    "dkgp fit": gaussian_process,
    "boosting": boosting,
    "linear": linear,
}


def measure(name: str, method: str, samples: TableSamples, seconds: float, seed: int) -> dict[str, Any]:
    """Row of a contender on a problem."""
    began, cores = time.perf_counter(), time.process_time()
    outcome = CONTENDERS[method](samples, seconds, seed)
    return {
        "problem": name,
        "kind": samples.kind,
        "method": method,
        "n": len(samples.inputs),
        "d": samples.inputs.shape[1],
        **vars(outcome),
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cores,
    }


def _scored(
    samples: TableSamples, mean: FloatArray, variance: float, ends: tuple[FloatArray, FloatArray] | None, remark: str
) -> Outcome:
    """Scores of means under noise of one variance, whose own 95 % interval stands in where no `ends` are known."""
    truth = samples.test_targets
    half = 1.959963984540054 * np.sqrt(variance)
    lower, upper = ends if ends is not None else (mean - half, mean + half)
    squared = float(np.mean((truth - mean) ** 2))
    nlpd = 0.5 * (np.log(2.0 * np.pi * variance) + squared / variance)
    covered = float(np.mean((lower <= truth) & (truth <= upper)))
    return Outcome(float(np.sqrt(squared)), float(nlpd), covered, float(np.mean(upper - lower)), remark)


def _intervals(prediction: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """95 % intervals of a stored prediction, in the targets' units: two of (t,)."""
    opened = open_prediction(str(prediction))
    columns = PredictionTable(opened).rows(0, opened.n_samples)
    return columns["lower_95"], columns["upper_95"]
