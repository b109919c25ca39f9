"""`dkgp bench latency`: how long one sample's prediction takes, from a model that was saved and loaded.

Quantiles of many calls, each of another sample, in turns with the same sum written plainly in NumPy. What a model was
trained to is of no consequence for them, so training is cut off after one pass.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp import GPRegressor
from dkgp.cluster.threads import single_threaded_blas
from dkgp.commands.reporting.measurements import Column, check_record_file, median_ratio, report, write_record
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter, WorkProgress
from dkgp.data import open_model
from dkgp.errors import DkgpError
from dkgp.kernels import SquaredExponential
from dkgp.models.prediction.exact import ExactPosterior
from dkgp.models.prediction.gradients import MeanGradients
from dkgp.models.prediction.posterior import Want, forget
from dkgp.models.variance.settings import VarianceSettings
from dkgp_benchmarks.overheads import run_overheads

FloatArray = NDArray[np.float64]
NOISE, GAMMA = 0.05, 0.05
NUMPY, AGAIN = "NumPy", "NumPy, again"
MEAN, GRADIENT, DEVIATION = "mean", "mean's gradient", "mean with std"
COLUMNS = (
    Column("samples", "samples", ",d"),
    Column("by", "by", text=True),
    Column("quantity", "quantity", text=True),
    Column("first_ms", "first call, ms", ",.1f"),
    Column("p50_ms", "p50, ms", ",.2f"),
    Column("p99_ms", "p99, ms", ",.2f"),
    Column("calls", "calls", ",d"),
    Column("to_numpy", "p50 / NumPy's p50", ".2f"),
)


@dataclass(frozen=True)
class BenchLatencyJob:
    """Latencies of models of these sizes; `deviation_seconds` are spent on deviations of each at most, 0: none.

    With `overheads`, commands and small fits are measured instead.
    """

    sizes: tuple[int, ...] = (20_000, 100_000)
    features: int = 10
    calls: int = 200
    deviation_seconds: float = 30.0
    seed: int = 0
    null: bool = False
    overheads: bool = False
    out: str | None = None


@dataclass
class _Contender:
    """One way to predict one sample, and its calls' seconds, of which the first stands by itself."""

    by: str
    quantity: str
    predict: Callable[[FloatArray], Any]
    first: float = 0.0
    seconds: list[float] = field(default_factory=list)

    def run(self, sample: FloatArray) -> float:
        """Predict; return the seconds that it took."""
        began = time.perf_counter()
        self.predict(sample)
        return time.perf_counter() - began


def run_bench_latency(job: BenchLatencyJob, reporter: Reporter) -> Document:
    """Train, save, load and predict, one size after the other; return quantiles, and ratios to NumPy."""
    check_record_file(job.out)
    if job.overheads:
        return run_overheads(vars(job), reporter)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="dkgp-latency-") as folder:
        for n in job.sizes:
            rows += _measured(job, n, str(Path(folder) / f"model-{n}.zarr"), reporter)
    largest = {row["quantity"]: row["to_numpy"] for row in rows if row["samples"] == n and row["by"] == "Predictor"}
    figures = {"mean_to_numpy": largest[MEAN], "gradient_to_numpy": largest[GRADIENT]}
    settings = {name: value for name, value in vars(job).items() if name != "out"}
    title = f"Latency of one sample, {job.features} features, squared exponential"
    return write_record(report("latency", title, COLUMNS, rows, figures, **settings), job.out)


def _measured(job: BenchLatencyJob, n: int, url: str, reporter: Reporter) -> list[dict[str, Any]]:
    rng = np.random.default_rng(job.seed)
    X = rng.uniform(size=(n, job.features))
    y = np.sin(X @ rng.normal(size=job.features) * 3.0) + 0.1 * rng.normal(size=n)
    kernel = SquaredExponential((GAMMA,) * job.features)
    with reporter.work(f"training on {n:,} samples"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it does not converge is meant
        GPRegressor(kernel, noise_variance=NOISE, max_passes=1).fit(X, y).save(url)
    tests = rng.uniform(size=(job.calls + 1, 1, job.features))
    contenders = _contenders(url, n, null=job.null)
    with reporter.work(f"one sample of {n:,}") as show:
        for contender in contenders:
            contender.first = contender.run(tests[0])
        for call, sample in enumerate(tests[1:]):
            for contender in contenders:
                contender.seconds.append(contender.run(sample))
            show(WorkProgress("calls", call + 1, job.calls, "calls"))
    if job.deviation_seconds > 0.0:
        contenders += _with_deviations(url, tests, job.deviation_seconds, reporter)
    return [_row(n, contender, contenders) for contender in contenders]


def _contenders(url: str, n: int, *, null: bool) -> list[_Contender]:
    """All but deviations; each with what it takes of the model in its own hands."""
    loaded, record = GPRegressor.load(url), open_model(url)
    predictor, gradients = ExactPosterior(record, Want.in_memory(f"latency-{n}")), MeanGradients(record, f"latency-{n}")
    to = record.standardisation
    inputs, alpha = np.ascontiguousarray(record.inputs(0, n)), record.alpha[:, 0]

    def columns(x: FloatArray) -> tuple[FloatArray, FloatArray]:
        differences = inputs - (x - to.input_mean) / to.input_std
        return differences, np.exp(-(differences**2 @ np.full(len(differences[0]), GAMMA)))

    def mean(x: FloatArray) -> float:
        with single_threaded_blas():
            return float(columns(x)[1] @ alpha) * float(to.target_std[0]) + float(to.target_mean[0])

    def gradient(x: FloatArray) -> FloatArray:
        with single_threaded_blas():
            differences, k = columns(x)
            slopes = 2.0 * GAMMA * ((k * alpha) @ differences)
            return np.asarray(slopes * float(to.target_std[0]) / to.input_std)

    return [
        _Contender(NUMPY, MEAN, mean),
        *([_Contender(AGAIN, MEAN, mean)] if null else []),
        _Contender("Predictor", MEAN, predictor),
        _Contender("GPRegressor", MEAN, loaded.predict),
        _Contender(NUMPY, GRADIENT, gradient),
        *([_Contender(AGAIN, GRADIENT, gradient)] if null else []),
        _Contender("Predictor", GRADIENT, gradients),
        _Contender("GPRegressor", GRADIENT, loaded.predict_gradients),
    ]


def _with_deviations(url: str, tests: FloatArray, seconds: float, reporter: Reporter) -> list[_Contender]:
    """Deviations, as long as there is time; NumPy has none, since K does not fit."""
    loaded, record = GPRegressor.load(url), open_model(url)
    started: list[ExactPosterior] = []

    def by_predictor(x: FloatArray) -> Any:
        if not started:  # what variances take is part of the first call
            started.append(ExactPosterior(record, Want.in_memory("latency-deviations", VarianceSettings())))
        return started[0](x)

    contenders = [
        _Contender("Predictor", DEVIATION, by_predictor),
        _Contender("GPRegressor", DEVIATION, lambda x: loaded.predict(x, return_std=True)),
    ]
    with reporter.work("deviations") as show:
        for contender in contenders:
            try:
                contender.first = contender.run(tests[0])
            except DkgpError as error:
                reporter.warn(f"{contender.by} has no deviations: {error}")
                continue
            began = time.perf_counter()
            for call, sample in enumerate(tests[1:]):
                contender.seconds.append(contender.run(sample))
                show(WorkProgress(contender.by, call + 1, len(tests) - 1, "calls"))
                if time.perf_counter() - began > seconds / 2.0:
                    break
    forget("latency-deviations")
    return [contender for contender in contenders if contender.seconds]


def _row(n: int, contender: _Contender, contenders: list[_Contender]) -> dict[str, Any]:
    references = {(each.by, each.quantity): each.seconds for each in contenders}
    plain, again = (references.get((by, contender.quantity)) for by in (NUMPY, AGAIN))
    null = (again, plain) if again is not None and plain is not None else None
    return {
        "samples": n,
        "by": contender.by,
        "quantity": contender.quantity,
        "first_ms": 1e3 * contender.first,
        "p50_ms": 1e3 * float(np.percentile(contender.seconds, 50)),
        "p99_ms": 1e3 * float(np.percentile(contender.seconds, 99)),
        "calls": len(contender.seconds),
        "to_numpy": None if plain is None else median_ratio(contender.seconds, plain, null),
    }
