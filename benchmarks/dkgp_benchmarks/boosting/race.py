"""Contenders on a table: error, density and intervals on the test samples, and the cores' seconds.

Each contender has a process with one OpenMP thread, because the waiting of threads counts as processor time, and a
limit of processor seconds, which does not depend on the load. dkgp is `dkgp fit` with its defaults. GPBoost maximises
the likelihood of Vecchia's approximation or (from three features on) of Vecchia and inducing points (VIF), Matern 3/2
with a length scale for each feature, or with one for all features, which is its default. SVGP is GPyTorch's stochastic
variational model, Matern 3/2 too. Boosting is scikit-learn's `HistGradientBoostingRegressor`, six settings by three
folds; its density is a normal one of the folds' squared error, its intervals those of two quantile models. The linear
model is scikit-learn's `RidgeCV`.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.commands.ingest import IngestJob
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.data import open_dataset, open_prediction
from dkgp.fit.job import FitJob
from dkgp.fit.run import run_fit
from dkgp.models.prediction.table import PredictionTable
from dkgp.models.target_units import ScoredVariances, TargetUnits, VarianceTally
from dkgp_benchmarks.boosting.problems import FloatArray, TableSamples

# Parts of the search for hyperparameters that a row of `dkgp fit` lists.
TUNED = ("comparison", "candidates", "warnings")
FOLDS = 3
RATES, LEAVES, MOST_ROUNDS = (0.05, 0.1), (7, 31, 127), 1000
LOWER, UPPER = 0.025, 0.975
# Of GPBoost: features up to which Vecchia's approximation has no inducing points; neighbours, inducing points.
FEW_FEATURES, NEIGHBOURS, INDUCING = 2, 30, 200
# Of SVGP: inducing points, samples of a step, step length, steps.
SVGP_INDUCING, MINIBATCH, RATE, STEPS = 500, 512, 0.05, 800
# Modules that a contender needs beside scikit-learn.
MODULES = {"gpboost": "gpboost", "gpboost vecchia": "gpboost", "gpboost default": "gpboost", "svgp": "gpytorch"}


@dataclass(frozen=True)
class Outcome:
    """Figures of a contender, in the table's own units; `squares` and `losses` (t,) are those of each test sample.

    `choices` lists the models that `dkgp fit` tried.
    """

    rmse: float
    nlpd: float
    coverage: float
    width: float
    remark: str
    squares: tuple[float, ...]
    losses: tuple[float, ...]
    choices: Mapping[str, Any] = field(default_factory=dict)


def gaussian_process(samples: TableSamples, seconds: float, seed: int) -> Outcome:
    """`dkgp fit` with its defaults, but for the time that it may take."""
    with tempfile.TemporaryDirectory(prefix="dkgp-bench-") as name:
        folder = Path(name)
        np.savez(folder / "table.npz", **samples.arrays())  # type: ignore[arg-type]  # of a mapping of arrays
        ingestion = IngestJob((str(folder / "table.npz"),), "", ("y",), test_mask="test_mask", seed=seed)
        document = run_fit(FitJob(ingestion, str(folder / "fit"), seconds), SilentReporter())
        lower, upper = _intervals(folder / "fit" / "pred.zarr")
        squares, losses = _by_sample(folder / "fit")
    scores = document["evaluation"]
    compared = document["tune"].get("comparison")
    taken = [
        *([] if compared is None else [compared["kernel"]]),
        document["choice"]["way"]["words"],
        (document["tune"].get("candidates") or {}).get("taken"),
        *([] if document["transform"] is None else [document["transform"]["transform"]]),
    ]
    remark, width = ", ".join(word for word in taken if word), float(np.mean(upper - lower))
    figures = scores["rmse_raw"], scores["nlpd_raw"], scores["coverage_95"]
    choices = {"attempts": document["attempts"], **{name: document["tune"].get(name) for name in TUNED}}
    return Outcome(*figures, width, remark, tuple(squares.tolist()), tuple(losses.tolist()), choices)


def _by_sample(folder: Path) -> tuple[FloatArray, FloatArray]:
    """Squared errors and negative log densities of the test samples of a fit, (t,) each."""
    prediction, dataset = open_prediction(str(folder / "pred.zarr")), open_dataset(str(folder / "test.zarr"))
    units, variances, n = TargetUnits(prediction), ScoredVariances.of(prediction, False), prediction.n_samples
    assert variances is not None
    truth, scale = dataset.targets(0, n, standardised=False), np.array(prediction.attributes["target_std"])
    errors, read = units.forward(truth, 0) - prediction.read("mean", 0, n), variances.read(0, n)
    losses = np.empty(n)
    for row in range(n):
        part = slice(row, row + 1)
        tally = VarianceTally(scale, False, variances.student)
        tally.add(errors[part], type(read)(*(values[part] for values in read)))
        losses[row] = tally.figures(1, np.log(scale) - units.log_slopes(truth[part]))["nlpd_raw"]
    return np.asarray((truth - units.point(0, n))[:, 0] ** 2), losses


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


@dataclass(frozen=True)
class _Standardised:
    """Samples standardised by the training samples."""

    inputs: FloatArray
    targets: FloatArray
    test_inputs: FloatArray
    mean: float
    scale: float

    @classmethod
    def of(cls, samples: TableSamples) -> _Standardised:
        centre, spread = samples.inputs.mean(axis=0), samples.inputs.std(axis=0)
        spread = np.where(spread > 0.0, spread, 1.0)
        mean, scale = float(samples.targets.mean()), float(samples.targets.std())
        inside, outside = ((rows - centre) / spread for rows in (samples.inputs, samples.test_inputs))
        return cls(inside, (samples.targets - mean) / scale, outside, mean, scale)

    def outcome(self, samples: TableSamples, mean: FloatArray, variance: FloatArray, remark: str) -> Outcome:
        """Scores of normal predictions of observations, which are standardised."""
        mean, variance = self.mean + self.scale * mean, self.scale**2 * variance
        half = 1.959963984540054 * np.sqrt(variance)
        return _scored(samples, mean, variance, (mean - half, mean + half), remark)


def gpboost(
    samples: TableSamples, seconds: float, seed: int, kernel: str = "matern_ard", *, inducing: int = INDUCING
) -> Outcome:
    """GPBoost's maximum of the likelihood of all samples, and its predictions; Vecchia without inducing points."""
    import gpboost

    table = _Standardised.of(samples)
    few = table.inputs.shape[1] <= FEW_FEATURES or not inducing
    model = gpboost.GPModel(
        gp_coords=table.inputs,
        cov_function=kernel,
        cov_fct_shape=1.5,
        likelihood="gaussian",
        gp_approx="vecchia" if few else "full_scale_vecchia",
        num_neighbors=NEIGHBOURS,
        num_ind_points=None if few else min(inducing, len(table.inputs) - 1),
        seed=seed,
    )
    model.fit(y=table.targets)
    found = model.predict(gp_coords_pred=table.test_inputs, predict_var=True, predict_response=True)
    remark = "Vecchia" if few else "VIF"
    return table.outcome(samples, np.asarray(found["mu"]), np.asarray(found["var"]), remark)


def svgp(samples: TableSamples, seconds: float, seed: int) -> Outcome:
    """GPyTorch's stochastic variational model, by Adam."""
    import gpytorch
    import torch

    torch.manual_seed(seed)
    table = _Standardised.of(samples)
    x, y, new = (torch.tensor(each, dtype=torch.float32) for each in (table.inputs, table.targets, table.test_inputs))
    n, d = x.shape

    class Model(gpytorch.models.ApproximateGP):  # type: ignore[misc]  # the library has no types
        def __init__(self, points: Any) -> None:
            distribution = gpytorch.variational.CholeskyVariationalDistribution(len(points))
            super().__init__(gpytorch.variational.VariationalStrategy(self, points, distribution))
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(1.5, ard_num_dims=d))

        def forward(self, rows: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(rows), self.covar_module(rows))

    model = Model(x[torch.randperm(n)[: min(SVGP_INDUCING, n)]].clone())
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=n)
    optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=RATE)
    for _ in range(STEPS):
        rows = torch.randperm(n)[:MINIBATCH]
        optimiser.zero_grad()
        (-bound(model(x[rows]), y[rows])).backward()
        optimiser.step()
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        parts = [likelihood(model(rows)) for rows in torch.split(new, 1000)]
        mean, variance = (torch.cat([getattr(part, name) for part in parts]) for name in ("mean", "variance"))
    return table.outcome(samples, mean.double().numpy(), variance.double().numpy(), f"{SVGP_INDUCING} inducing points")


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
    "gpboost": gpboost,
    "gpboost vecchia": partial(gpboost, inducing=0),
    "gpboost default": partial(gpboost, kernel="matern", inducing=0),
    "svgp": svgp,
    "boosting": boosting,
    "linear": linear,
}


def available(names: Sequence[str], warn: Callable[[str], None]) -> list[str]:
    """Return the contenders whose library can be imported; warn of the others."""
    kept = []
    for name in names:
        try:
            importlib.import_module(MODULES.get(name, "sklearn"))
        except ImportError as error:
            warn(f"{name} is left out, because its library cannot be imported: {error}")
        else:
            kept.append(name)
    return kept


def measure(name: str, method: str, samples: TableSamples, seconds: float, seed: int, limit: int) -> dict[str, Any]:
    """Row of a contender on a problem, measured in a process that ends after `limit` processor seconds."""
    row = {
        "problem": name,
        "kind": samples.kind,
        "method": method,
        "n": len(samples.inputs),
        "d": samples.inputs.shape[1],
    }
    began = time.perf_counter()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return row | pool.submit(_measured, method, samples, seconds, seed, limit).result()
        except BrokenProcessPool:
            remark = f"ended: more than {limit:,} processor seconds, or no memory"
            return {**row, "seconds": time.perf_counter() - began, "remark": remark}


def _measured(method: str, samples: TableSamples, seconds: float, seed: int, limit: int) -> dict[str, Any]:
    """Figures of a contender, and its seconds; the process is ended at its limit."""
    os.environ["OMP_NUM_THREADS"] = "1"
    importlib.import_module(MODULES.get(method, "sklearn"))
    spent = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (spent + limit, spent + limit + 5))
    began, cores = time.perf_counter(), time.process_time()
    outcome = CONTENDERS[method](samples, seconds, seed)
    return {**vars(outcome), "seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cores}


def compared(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows without figures of samples, with paired differences to GPBoost's best setting on the same problem.

    `nlpd_gain` is in nats a sample, `rmse_gain` in per cent of the reference's error, each with its standard error;
    positive gains are improvements.
    """
    references: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        best = references.get(row["problem"])
        if MODULES.get(row["method"]) == "gpboost" and row.get("losses"):
            references[row["problem"]] = row if best is None or row["nlpd"] < best["nlpd"] else best
    return [_without_samples(row) | _gains(row, references.get(row["problem"])) for row in rows]


def _without_samples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("squares", "losses")}


def _gains(row: Mapping[str, Any], reference: Mapping[str, Any] | None) -> dict[str, Any]:
    if reference is None or not row.get("losses") or row is reference:
        return {}
    losses = np.subtract(reference["losses"], row["losses"])
    nlpd, error = float(losses.mean()), float(losses.std(ddof=1) / np.sqrt(len(losses)))
    # The ratio of mean squares, its standard error as that of a ratio of means, and those of its root.
    squares, others = np.array(row["squares"]), np.array(reference["squares"])
    ratio = float(squares.mean() / others.mean())
    spread = float((squares - ratio * others).std(ddof=1) / np.sqrt(len(squares)) / others.mean())
    rmse, doubt = 100.0 * (1.0 - np.sqrt(ratio)), 50.0 * spread / np.sqrt(ratio)
    return {"nlpd_gain": nlpd, "nlpd_gain_error": error, "rmse_gain": rmse, "rmse_gain_error": doubt}


def _scored(
    samples: TableSamples,
    mean: FloatArray,
    variance: float | FloatArray,
    ends: tuple[FloatArray, FloatArray] | None,
    remark: str,
) -> Outcome:
    """Scores of means under a variance, one or (t,), whose own 95 % interval is used if no `ends` are known."""
    truth = samples.test_targets
    half = 1.959963984540054 * np.sqrt(variance)
    lower, upper = ends if ends is not None else (mean - half, mean + half)
    squares = (truth - mean) ** 2
    squared = float(np.mean(squares))
    losses = 0.5 * (np.log(2.0 * np.pi * variance) + squares / variance)
    covered = float(np.mean((lower <= truth) & (truth <= upper)))
    figures = float(np.sqrt(squared)), float(np.mean(losses)), covered, float(np.mean(upper - lower))
    return Outcome(*figures, remark, tuple(squares.tolist()), tuple(losses.tolist()))


def _intervals(prediction: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """95 % intervals of a stored prediction, in the targets' units: two of (t,)."""
    opened = open_prediction(str(prediction))
    columns = PredictionTable(opened).rows(0, opened.n_samples)
    return columns["lower_95"], columns["upper_95"]
