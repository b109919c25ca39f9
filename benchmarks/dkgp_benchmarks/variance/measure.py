"""Variances on one problem, measured beside their references, and what comes out: times, gaps, distance from exact.

What is measured is what `dkgp predict --variance` runs: from a model store to a prediction store, means included.
Variances depend on the kernel, the noise variance and the inputs alone, so unless a model is given, one is saved whose
alpha is zero, certified as that: its means are worthless, and cost what any others do.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.bench.contenders import Runs, cholesky_bytes, ratio, room_for_cholesky, take_turns
from dkgp.bench.problem import FRIEDMAN1, BenchProblem, open_whole, prepare_problem
from dkgp.cluster import ClusterOptions
from dkgp.commands.reporting.measurements import median
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import (
    Dataset,
    dataset_from_arrays,
    open_dataset,
    open_model,
    open_prediction,
    save_model,
    write_friedman1,
)
from dkgp.errors import InputError, UsageError
from dkgp.models import Hyperparameters, read_hyperparameters
from dkgp.models.certificate import Certificate
from dkgp.models.rounding import certified_row_errors, middle
from dkgp.models.variance.settings import VarianceSettings
from dkgp.plan.validation import WARM_UP_SAMPLES

FloatArray = NDArray[np.float64]
Figures = dict[str, Any]

REFERENCES = ("cholesky", "plain_pass")
CONTENDERS_MODULE = "dkgp_benchmarks.variance.contenders"
TIMED = (
    "seconds",
    "shared_seconds",
    "factor_seconds",
    "seconds_per_sample",
    "seconds_per_sample_after_factor",
    "peak_memory_bytes",
)
COUNTED = (
    "rank",
    "halo",
    "smooth",
    "batch_size",
    "column_passes",
    "products_float32",
    "products_float64",
    "product_seconds",
    "met",
    "unmet",
)
# Bounds go to the targets' units and back: two roundings each.
UNITS_ROUNDING = 4.0 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class VarianceTrial:
    """A measurement of variances to one gap or several, beside the exact ones.

    Attributes
    ----------
    problem
        The data; with `model` its test samples alone are used.
    model
        A model store to predict with, instead of one made from the problem.
    settings
        Each, with a gap of its own, is a contender.
    cluster
        Where the variances are computed.
    repeats
        Turns that every contender takes; medians are reported.
    null
        Whether Cholesky and the pass are raced against their own copies too, for the noise of the ratios.
    with_cholesky, with_plain_pass
        Whether these contenders take part.
    """

    problem: BenchProblem = field(default_factory=lambda: BenchProblem(n_test=500))
    model: str | None = None
    settings: tuple[VarianceSettings, ...] = (VarianceSettings(),)
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    repeats: int = 3
    null: bool = False
    with_cholesky: bool = True
    with_plain_pass: bool = True

    def __post_init__(self) -> None:
        gaps = [each.gap for each in self.settings]
        if not gaps or len(set(gaps)) < len(gaps):
            raise UsageError(f"give variance gaps that differ from each other; got {gaps}")
        if self.model is not None and (self.problem.n is not None or self.problem.hyper is not None):
            raise UsageError("a model brings its training samples and hyperparameters: leave out --samples and --hyper")


@dataclass(frozen=True)
class Intervals:
    """Intervals made to one gap: bounds (t,), standardised, and the exact variances where Cholesky took part."""

    gap: float
    lower: FloatArray
    upper: FloatArray
    exact: FloatArray | None

    @property
    def relative_gap(self) -> FloatArray:
        """(upper - lower) / upper; zero where both are zero."""
        gap: FloatArray = (self.upper - self.lower) / np.where(self.upper > 0.0, self.upper, 1.0)
        return gap

    def figures(self) -> Figures:
        """Gaps; against exact variances how many lie outside, by how much, and the GBCD paper's equation 17.

        dkgp reports the middle of an interval, and equation 17 is taken of it.
        """
        gap = self.relative_gap
        figures: Figures = {
            "gap_mean": float(gap.mean()),
            "gap_median": float(np.median(gap)),
            "gap_95": float(np.quantile(gap, 0.95)),
            "gap_max": float(gap.max()),
        }
        if self.exact is not None:
            exact = self.exact
            excess = np.maximum(self.lower - exact, exact - self.upper) / np.abs(exact)
            figures["samples_outside_interval"] = int(np.count_nonzero(excess > UNITS_ROUNDING))
            figures["largest_excess"] = float(max(0.0, excess.max()))
            figures["relative_rmse"] = float(np.sqrt(np.mean(((exact - middle(self.lower, self.upper)) / exact) ** 2)))
        return figures


@dataclass(frozen=True)
class MeasuredVariances:
    """All that was measured on one problem.

    Attributes
    ----------
    n, d, n_test
        Of the problem.
    kernel, noise_variance
        Of the model: a smooth kernel and much noise make variances easy.
    runs
        Contender -> the figures of each repeat.
    intervals
        One for each gap, in order.
    """

    n: int
    d: int
    n_test: int
    kernel: dict[str, Any]
    noise_variance: float
    runs: Runs
    intervals: tuple[Intervals, ...]

    def timed(self, contender: str) -> Figures:
        """Medians of a contender's seconds and bytes."""
        runs = self.runs[contender]
        return {name: median([run[name] for run in runs]) for name in TIMED if name in runs[0]}

    def figures(self, intervals: Intervals) -> Figures:
        """All figures of the variances of one gap: their own, and their ratios to the references."""
        name = contender_of(intervals.gap)
        last = self.runs[name][-1]
        timed = self.timed(name)
        figures: Figures = {
            "gap": intervals.gap,
            **timed,
            **{key: last[key] for key in COUNTED},
            "product_share": last["product_seconds"] / last["seconds"],
            "met_share": last["met"] / self.n_test,
            **intervals.figures(),
            "memory_to_cholesky_matrix": timed["peak_memory_bytes"] / cholesky_bytes(self.n),
        }
        if "cholesky" in self.runs:
            figures["memory_to_cholesky"] = ratio(self.runs, name, "cholesky", "peak_memory_bytes")
            figures["seconds_to_cholesky"] = ratio(self.runs, name, "cholesky", "seconds")
            figures["seconds_to_cholesky_factor_alone"] = ratio(
                self.runs, name, "cholesky", "seconds", "factor_seconds"
            )
        if "plain_pass" in self.runs:
            figures["seconds_to_plain_pass"] = ratio(self.runs, name, "plain_pass", "seconds")
        return figures


def contender_of(gap: float) -> str:
    """Name of the contender that computes variances to a gap."""
    return f"dkgp, gap {gap:g}"


def measure_variances(trial: VarianceTrial, folder: Path, reporter: Reporter) -> MeasuredVariances:
    """Prepare the problem in an empty folder and run all contenders on it.

    Raises
    ------
    InputError
        Data without samples left to test on, or that do not fit the model.
    DkgpError
        A contender failed.
    """
    model_url, test = _prepared(trial, folder, reporter)
    model = open_model(model_url)
    runs = _run_all(trial, model_url, model.n_samples, test, folder, reporter)
    exact = np.load(folder / "exact.npy", allow_pickle=False) if "cholesky" in runs else None
    scale = float(model.standardisation.target_std[0]) ** 2
    intervals = tuple(
        _intervals(_store(folder, number, 0), settings, scale, exact, model.noise_variance)
        for number, settings in enumerate(trial.settings)
    )
    for each in intervals:
        figures = each.figures()
        if figures.get("samples_outside_interval"):
            reporter.warn(
                f"gap {each.gap:g}: {figures['samples_outside_interval']:,} of {test.n_samples:,} variances by "
                f"Cholesky lie outside their intervals, by {figures['largest_excess']:.1e} of the variance at most"
            )
    sizes = (model.n_samples, model.n_features, test.n_samples)
    return MeasuredVariances(*sizes, model.kernel, model.noise_variance, runs, intervals)


def _run_all(trial: VarianceTrial, model_url: str, n: int, test: Dataset, folder: Path, reporter: Reporter) -> Runs:
    shared = {"model": model_url, "test": test.url, "exact": str(folder / "exact.npy")}
    gaps = [contender_of(settings.gap) for settings in trial.settings]
    wanted = (trial.with_cholesky and room_for_cholesky(n, reporter.warn), trial.with_plain_pass)

    def describe(name: str, repeat: int) -> Figures:
        if name in REFERENCES:
            return {"contender": name, **shared}
        number = gaps.index(name)
        return {
            "contender": "variances",
            **shared,
            "out": str(_store(folder, number, repeat)),
            "warm_out": str(folder / f"warm-{number}-{repeat}.zarr"),
            "settings": asdict(trial.settings[number]),
            "cluster": asdict(trial.cluster),
        }

    references = tuple(compress(REFERENCES, wanted))
    copied = references if trial.null else ()
    contenders = [*gaps, *references]
    return take_turns("bench variance", contenders, trial.repeats, describe, reporter, CONTENDERS_MODULE, copied=copied)


def _prepared(trial: VarianceTrial, folder: Path, reporter: Reporter) -> tuple[str, Dataset]:
    """Return the model store and the test samples."""
    if trial.model is not None:
        model = open_model(trial.model)
        test = _prepare_test(trial.problem, folder, reporter)
        test.as_seen_by(model.feature_names, model.target_names, model.standardisation)  # has its features, or says so
        return trial.model, test
    prepared = prepare_problem(trial.problem, folder, reporter)
    if prepared.test is None:
        raise InputError(
            f"'{trial.problem.data}' has no samples left to predict at, all {prepared.n:,} are trained on; "
            "lower --samples"
        )
    url = str(folder / "model.zarr")
    train = open_dataset(prepared.train)
    _save_without_solving(url, train, read_hyperparameters(prepared.hyper, n_features=train.n_features))
    return url, open_dataset(prepared.test)


def _prepare_test(problem: BenchProblem, folder: Path, reporter: Reporter) -> Dataset:
    """Write a test store alone into `folder`, for a model that is there: `n_test` samples at most, drawn at random."""
    test_url = str(folder / "test.zarr")
    if problem.data == FRIEDMAN1:
        few = max(2, min(WARM_UP_SAMPLES, problem.n_test))
        test = write_friedman1(folder / "train.zarr", test_url, few, problem.n_test, seed=problem.seed)[1]
        assert test is not None
        return test
    whole = open_whole(problem, folder, reporter)
    chosen = np.random.default_rng(problem.seed).permutation(whole.n_samples)[: problem.n_test]
    inputs = whole.raw_inputs(0, whole.n_samples)[np.sort(chosen)]
    return dataset_from_arrays(
        test_url, inputs, None, feature_names=whole.raw_feature_names, standardisation=whole.standardisation
    )


def _save_without_solving(url: str, train: Dataset, found: Hyperparameters) -> None:
    """Save a model whose alpha is zero, with the certificate that it deserves: the residual is the targets."""
    targets, inputs = train.all_targets(), train.inputs(0, train.n_samples)
    alpha = np.zeros_like(targets)
    diagonal, errors = found.kernel.diagonal(inputs), certified_row_errors(found.kernel, train, inputs)
    save_model(
        url,
        kernel=found.kernel.to_json(),
        noise_variance=found.noise_variance,
        alpha=alpha,
        dataset=train,
        certificate=Certificate.of(alpha, -targets, targets, found.noise_variance, diagonal, errors).to_json(),
        summary={"converged": False, "n": train.n_samples, "d": train.n_features},
    )


def _store(folder: Path, number: int, repeat: int) -> Path:
    return folder / f"prediction-{number}-{repeat}.zarr"


def _intervals(
    store: Path, settings: VarianceSettings, scale: float, exact: FloatArray | None, noise_variance: float
) -> Intervals:
    """Read the bounds of the first target; those of the others differ by its scale alone."""
    prediction = open_prediction(store)
    rows = prediction.n_samples
    lower, upper = (
        np.asarray(prediction.read(name, 0, rows)).reshape(rows, -1)[:, 0] / scale
        for name in ("variance_lower", "variance_upper")
    )
    if exact is not None and settings.latent:
        exact = exact - noise_variance
    return Intervals(settings.gap, lower, upper, exact)
