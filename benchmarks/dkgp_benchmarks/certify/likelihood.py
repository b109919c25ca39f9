"""Kernel logistic regression and Gaussian process classifiers: every proof held against dense solutions.

Each problem has at most 2,000 training samples, 1,000 of more than two classes, so that the exact minimiser can be had
by dense Newton steps. It is trained as a user would: to the tolerance, to one that is looser, and for a few
passes only; of all, each certified label, each decision's bound and each probability's interval is held against the
dense solution: of Gaussian processes the interval of the averaged probability, against Laplace's variance by a dense
factor and a quadrature of its own.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

import dkgp
from dkgp.commands.reporting.measurements import Column, report, write_record
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.estimators.scikit_learn import ConvergenceWarning
from dkgp.kernels import TileEvaluator
from dkgp.models import Hyperparameters
from dkgp.models.classification.hyperparameters import LabelTuning, tune_labels
from dkgp.models.classification.labels import LabelledData, Labels
from dkgp.models.classification.metrics import ClassTally
from dkgp_benchmarks.certify.dense import Mode, averaged_logit, latent_variances, logit_mode, softmax_mode
from dkgp_benchmarks.certify.equality import equality
from dkgp_benchmarks.certify.problems import BenchCertifyJob, Judged, Problem, problems

FloatArray = NDArray[np.float64]

# Of the files in a folder these are run where none is named.
FILES = ("banana", "german", "thyroid", "adult")
# Samples of a dense solution, of two classes and of more; test samples that are held against it, and passes of a fit
# that is cut short; and how much looser than the tolerance another is.
LOOSER = 100.0
MOST, MOST_OF_SEVERAL, MOST_TESTS, FEW_PASSES = 2000, 1000, 2000, 2.0
# What a dense solution may be off by beyond its last step.
DENSE = 1e-10

COLUMNS = (
    Column("data", "data", text=True),
    Column("n", "n", ",d"),
    Column("classes", "classes", "d"),
    Column("stopped", "ended by", text=True),
    Column("column_passes", "passes", ".1f"),
    Column("train_seconds", "train, s", ".1f"),
    Column("error", "error", ".2%"),
    Column("log_loss", "log loss", ".3f"),
    Column("judged", "checked labels", ",d"),
    Column("judged_certified", "certified", ",d"),
    Column("wrong", "certified but wrong", "d"),
    Column("beyond", "bounds broken", "d"),
    Column("outside", "intervals broken", "d"),
    Column("bound_used", "share of bound reached", ".1%"),
    Column("width", "mean interval width", ".1e"),
)


@dataclass(frozen=True)
class Exact:
    """The exact solution at test samples: decisions (r, t), probabilities (r, C), and what either may be off by."""

    decisions: FloatArray
    probabilities: FloatArray
    unsure: float

    @property
    def codes(self) -> NDArray[np.int64]:
        """The likeliest classes: (r,); of two a tie is the second."""
        if self.decisions.shape[1] == 1:
            return np.asarray(self.decisions[:, 0] >= 0.0, dtype=np.int64)
        return np.asarray(self.probabilities.argmax(axis=1), dtype=np.int64)


def run(job: BenchCertifyJob, reporter: Reporter) -> Document:
    """Train and judge every problem, to the tolerance and cut short."""
    rows, total = [], Judged()
    for problem in problems(job, FILES):
        for row, judged in _measured(_small(problem, job.seed), job, reporter):
            rows.append(row)
            total += judged
    figures = dict(zip(Judged.NAMES, total.counts, strict=True))
    title = (
        f"Proofs of {job.method} classifiers held against dense solutions: of {total.labels:,} labels "
        f"{total.certified:,} are certified, {total.wrong} of them wrongly; {total.beyond} decisions beyond their "
        f"bounds, {total.outside} probabilities outside their intervals"
    )
    document = report("certify", title, COLUMNS, rows, figures, tolerance=job.tolerance, method=job.method)
    if job.method == "gp":
        document["sections"] = [equality(job.seed)]
    return write_record(document, job.out)


def exact_solution(method: str, inputs: FloatArray, labels: Labels, tests: FloatArray, hyper: Hyperparameters) -> Exact:
    """Solve densely, and predict at tests; of several classes softmax for "logistic", one against the rest for "gp"."""
    evaluator = TileEvaluator(hyper.kernel, "double")
    rows, points = evaluator.prepare(inputs), evaluator.prepare(tests)
    K, across = np.array(evaluator.tile(rows, rows)), np.array(evaluator.tile(points, rows))
    signs = labels.signs()
    several = labels.n_classes > 2
    mode: Mode
    if method == "logistic" and several:
        mode = softmax_mode(K, 0.5 * (signs + 1.0), 1.0)
    else:
        mode = logit_mode(K, signs, 1.0)
    decisions = across @ mode.alpha
    unsure = 10.0 * mode.change + DENSE * max(1.0, float(np.abs(decisions).max()))
    if method == "logistic":
        positive = expit(decisions)
        shares = softmax(decisions, axis=1) if several else np.hstack([1.0 - positive, positive])
        return Exact(decisions, np.asarray(shares), unsure)
    prior = np.array([float(np.asarray(hyper.kernel(each[None], each[None]))[0, 0]) for each in tests])
    averages = []
    for column in range(decisions.shape[1]):
        p = expit(mode.values[:, column])
        variance = latent_variances(K, across, prior, p * (1.0 - p))
        averages.append(averaged_logit(decisions[:, column], variance))
    positive = np.column_stack(averages)
    shares = positive / positive.sum(axis=1, keepdims=True) if several else np.hstack([1.0 - positive, positive])
    return Exact(decisions, shares, unsure)


def held_against(model: Any, tests: FloatArray, exact: Exact) -> tuple[Judged, dict[str, float]]:
    """Count what an estimator proves at raw test samples, and what of it the exact solution contradicts."""
    decisions, bounds = (_columns(each) for each in model.decision_function(tests, return_bounds=True))
    labels, certified = model.predict(tests, return_certified=True)
    _, lower, upper = model.predict_proba(tests, return_intervals=True)
    certified = np.asarray(certified, dtype=bool)
    wrong = certified & (np.asarray(labels) != exact.codes)
    distance = np.abs(decisions - exact.decisions)
    beyond = (distance > bounds + exact.unsure).any(axis=1)
    slack = exact.unsure
    outside = ((exact.probabilities < lower - slack) | (exact.probabilities > upper + slack)).any(axis=1)
    finite = np.isfinite(bounds) & (bounds > 0.0)
    used = float(np.max(distance[finite] / bounds[finite])) if finite.any() else 0.0
    judged = Judged(len(tests), int(certified.sum()), int(wrong.sum()), int(beyond.sum()), int(outside.sum()))
    return judged, {"bound_used": used, "width": float(np.mean(upper - lower)), "bound": float(bounds.max())}


def _measured(problem: Problem, job: BenchCertifyJob, reporter: Reporter) -> list[tuple[dict[str, Any], Judged]]:
    labels, began = problem.labels, time.perf_counter()
    dataset = memory_dataset(problem.inputs, labels.codes.astype(np.float64))
    reporter.note(f"{problem.name}: tuning on {min(job.subset, dataset.n_samples):,} samples")
    search = LabelTuning(job.subset, job.seed, isotropic=job.isotropic, likelihood="logit")
    hyper = tune_labels(LabelledData(dataset, labels), search)
    tune_seconds = time.perf_counter() - began
    tests = np.asarray(dataset.standardisation.inputs(problem.test_inputs))
    exact = exact_solution(job.method, dataset.inputs(0, dataset.n_samples), labels, tests, hyper)
    reporter.note(f"{problem.name}: the dense solution took {time.perf_counter() - began - tune_seconds:.1f} s")
    found_rows = []
    for stopped, given in (
        ("tightly", {"tol": job.tolerance}),
        ("loosely", {"tol": LOOSER * job.tolerance}),
        ("early", {"max_passes": FEW_PASSES}),
    ):
        estimator: Any = dkgp.KernelLogisticClassifier if job.method == "logistic" else dkgp.GPClassifier
        began = time.perf_counter()
        with warnings.catch_warnings():
            # That a fit is cut short is what is asked for.
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = estimator(kernel=hyper, random_state=job.seed, **given).fit(problem.inputs, labels.codes)
        seconds = time.perf_counter() - began
        judged, figures = held_against(model, problem.test_inputs, exact)
        tally = ClassTally(labels.classes)
        tally.add(
            problem.test_codes,
            np.asarray(model.predict(problem.test_inputs), dtype=np.int64),
            probabilities=np.asarray(model.predict_proba(problem.test_inputs)),
        )
        metrics = tally.metrics()
        row: dict[str, Any] = {
            "data": problem.name,
            "method": job.method,
            "n": dataset.n_samples,
            "d": dataset.n_features,
            "classes": labels.n_classes,
            "stopped": stopped,
            "tune_seconds": tune_seconds,
            "train_seconds": seconds,
            "column_passes": model.solution_["column_passes"],
            "error": metrics.error_rate,
            "log_loss": metrics.log_loss,
            **dict(zip(Judged.NAMES, judged.counts, strict=True)),
            **figures,
        }
        found_rows.append((row, judged))
    return found_rows


def _small(problem: Problem, seed: int) -> Problem:
    """At most so many of a problem's samples, drawn at random."""
    rng = np.random.default_rng([seed, 37])
    most = MOST if problem.labels.n_classes == 2 else MOST_OF_SEVERAL
    rows = np.sort(rng.permutation(problem.labels.n_samples)[:most])
    tests = np.sort(rng.permutation(len(problem.test_inputs))[:MOST_TESTS])
    few = problem.labels.subset(rows)
    return Problem(problem.name, problem.inputs[rows], few, problem.test_inputs[tests], problem.test_codes[tests])


def _columns(values: Any) -> FloatArray:
    columns = np.asarray(values, dtype=np.float64)
    return columns[:, None] if columns.ndim == 1 else columns
