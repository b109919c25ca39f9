"""Exact LS-SVMs and what is proven of their labels, judged by dense solutions, beside an SVM.

Each problem is trained whole, as a user would: hyperparameters by a subset, one solve for
all classes, decisions with bounds. A part of it, as many samples as a dense factor takes in a moment, is then solved
anew, once to the tolerance and once to a few passes only, and every decision and certified label of these two is held
against Cholesky in float64: "proven" labels of those "judged", "wrong" ones of these, and bounds that are "broken".
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkgp.cluster import BlockExecutor
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import split_evenly
from dkgp.commands.reporting.measurements import Column
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import Dataset, Standardisation
from dkgp.data.stores.memory_dataset import assembled_dataset, memory_dataset
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.models.classification.certificate import certified_decisions, certified_labels
from dkgp.models.classification.exact import ExactSettings, TrainedExact, train_exact
from dkgp.models.classification.hyperparameters import LabelTuning, tune_labels
from dkgp.models.classification.labels import LabelledData, Labels, decided
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers import GreedyBlockCoordinateDescent, MaxPasses
from dkgp_benchmarks.certify.left_out_search import improved_by_left_out, own_units
from dkgp_benchmarks.certify.problems import BenchCertifyJob, Judged, Problem

FloatArray = NDArray[np.float64]

# Of the files in a folder these are run where none is named.
FILES = ("adult", "usps")
# Samples that a dense solution is made of, test samples that are held against it, and passes of a solve cut short.
JUDGED, JUDGED_TESTS, FEW_PASSES = 3000, 5000, 2.0
PIECE_ROWS = 512
SVC_SUBSET, SVC_FOLDS, COSTS, STEPS = 2000, 5, (1.0, 10.0, 100.0), (0.3, 1.0, 3.0)

COLUMNS = (
    Column("data", "data", text=True),
    Column("n", "n", ",d"),
    Column("tune_seconds", "tune, s", ".1f"),
    Column("train_seconds", "train, s", ".1f"),
    Column("column_passes", "passes", ".1f"),
    Column("error", "error", ".2%"),
    Column("certified", "certified", ".2%"),
    Column("judged", "checked labels", ",d"),
    Column("judged_certified", "certified", ",d"),
    Column("wrong", "certified but wrong", "d"),
    Column("beyond", "bounds broken", "d"),
    Column("svc_error", "error of SVC", ".2%"),
    Column("svc_seconds", "SVC, s", ".1f"),
)


def measured(
    problem: Problem, job: BenchCertifyJob, executor: BlockExecutor, reporter: Reporter
) -> tuple[dict[str, Any], Judged]:
    """Train on a problem as a user would, and judge a part of it; a row, and the counts."""
    labels, began = problem.labels, time.perf_counter()
    dataset = memory_dataset(problem.inputs, labels.codes.astype(np.float64))
    data = LabelledData(dataset, labels)
    tests = np.asarray(dataset.standardisation.inputs(problem.test_inputs))
    reporter.note(f"{problem.name}: tuning on {min(job.subset, dataset.n_samples):,} samples")
    if job.own_units:
        start = own_units(dataset, job.seed)
        hyper = improved_by_left_out(dataset, labels, start, subset=job.subset, seed=job.seed)
    else:
        hyper = tune_labels(data, LabelTuning(job.subset, job.seed, isotropic=job.isotropic))
    tuned = time.perf_counter()
    trained = train_exact(data, hyper, executor, ExactSettings(tolerance=job.tolerance, seed=job.seed))
    done = time.perf_counter()
    reporter.note(f"{problem.name}: {trained.summary['solver']}, {trained.summary['reason']}")
    decisions, bounds = _decided(trained, dataset, tests, executor)
    ended = time.perf_counter()
    right, certified = decided(decisions) == problem.test_codes, certified_labels(decisions, bounds)
    judged = judge(dataset, labels, hyper, tests, job, executor)
    row: dict[str, Any] = {
        "data": problem.name,
        "n": dataset.n_samples,
        "n_test": len(tests),
        "d": dataset.n_features,
        "classes": labels.n_classes,
        "tune_seconds": tuned - began,
        "train_seconds": done - tuned,
        "solve_seconds": trained.summary["seconds"],
        "predict_seconds": ended - done,
        "solver": trained.summary["solver"],
        "converged": trained.summary["converged"],
        "column_passes": trained.summary["column_passes"],
        "error": float(1.0 - right.mean()),
        "certified": float(certified.mean()),
        "certified_error": float(1.0 - right[certified].mean()) if certified.any() else None,
        "bound": float(bounds.max()),
        **dict(zip(Judged.NAMES[:4], judged.counts, strict=False)),
    }
    if job.svm:
        reporter.note(f"{problem.name}: an SVM of scikit-learn's")
        units = np.asarray(dataset.standardisation.input_std) if job.own_units else 1.0
        row |= _svc(dataset.inputs(0, dataset.n_samples) * units, labels, tests * units, problem.test_codes, job.seed)
    return row, judged


def _at_pieces(
    context: BlockContext, trained: TrainedExact, tests: FloatArray, pieces: list[tuple[int, int]]
) -> list[tuple[FloatArray, FloatArray]]:
    found = trained.certificate, trained.alpha, trained.ones, trained.intercept
    return [certified_decisions(context, *found, tests[start:stop]) for start, stop in pieces]


def _decided(
    trained: TrainedExact, dataset: Dataset, tests: FloatArray, executor: BlockExecutor
) -> tuple[FloatArray, FloatArray]:
    """Decisions and their bounds at standardised test inputs: (r, t) both."""
    context = BlockContext(f"certify-{time.time_ns():x}", dataset, trained.kernel, dataset.n_samples)
    pieces = [(start, min(start + PIECE_ROWS, len(tests))) for start in range(0, len(tests), PIECE_ROWS)]
    groups = split_evenly(pieces, executor.parallelism)
    try:
        parts = executor.submit("kdecide", _at_pieces, (context, trained, tests), groups).result()
    finally:
        worker_cache().discard_run(context.run_id)
    decisions, bounds = (np.concatenate(values) for values in zip(*parts, strict=True))
    return decisions, bounds


def judge(
    dataset: Dataset,
    labels: Labels,
    hyper: Hyperparameters,
    tests: FloatArray,
    job: BenchCertifyJob,
    executor: BlockExecutor,
) -> Judged:
    """Hold decisions of a part of the samples, solved to the tolerance and cut short, against dense solutions."""
    rng = np.random.default_rng([job.seed, 15])
    rows = np.sort(rng.permutation(dataset.n_samples)[:JUDGED])
    few = labels.subset(rows)
    if not few.counts().all():
        return Judged()
    # As they are standardised already: a feature that does not vary among them stays.
    d, codes = dataset.n_features, few.codes.astype(np.float64)[:, None]
    plain, names = Standardisation.identity(d, 1), tuple(dataset.feature_names)
    part = assembled_dataset(dataset.input_rows(rows), codes, plain, names, ("y",), "")
    points = tests[rng.permutation(len(tests))[:JUDGED_TESTS]]
    exact, unsure = _dense(part.inputs(0, len(rows)), few.signs(), points, hyper.kernel, hyper.noise_variance)
    total = Judged()
    cut: dict[str, Any] = {"solver": GreedyBlockCoordinateDescent(), "limits": MaxPasses(FEW_PASSES)}
    for settings in ({}, cut):
        options = ExactSettings(tolerance=job.tolerance, calibrate=False, **settings)
        trained = train_exact(LabelledData(part, few), hyper, executor, options)
        decisions, bounds = _decided(trained, part, points, executor)
        certified = certified_labels(decisions, bounds)
        wrong = certified & (decided(decisions) != decided(exact))
        beyond = (np.abs(decisions - exact) > bounds + unsure).any(axis=1)
        total += Judged(len(points), int(certified.sum()), int(wrong.sum()), int(beyond.sum()))
    return total


def _dense(
    X: FloatArray, signs: FloatArray, points: FloatArray, kernel: Kernel, noise: float
) -> tuple[FloatArray, float]:
    """Decisions of the exact LS-SVM by Cholesky, refined, and how much refining still changed them."""
    evaluator = TileEvaluator(kernel, "double")
    rows = evaluator.prepare(X)
    matrix = np.array(evaluator.tile(rows, rows))
    matrix[np.diag_indices(len(X))] += noise
    factor = scipy.linalg.cho_factor(matrix, lower=True, check_finite=False)
    right = np.column_stack([signs, np.ones(len(X))])
    across = np.asarray(evaluator.tile(evaluator.prepare(points), rows))
    solved, decisions, change = np.zeros_like(right), np.zeros((len(points), signs.shape[1])), np.inf
    for _ in range(3):
        solved += scipy.linalg.cho_solve(factor, right - matrix @ solved, check_finite=False)
        intercept = solved[:, :-1].sum(axis=0) / solved[:, -1].sum()
        found = across @ (solved[:, :-1] - solved[:, -1:] * intercept) + intercept
        change, decisions = float(np.abs(found - decisions).max()), found
    return decisions, change + 1e-12


def _svc(X: FloatArray, labels: Labels, tests: FloatArray, codes: NDArray[np.int64], seed: int) -> dict[str, Any]:
    """scikit-learn's `SVC` on the same inputs, C and gamma by cross-validation on a subset."""
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    began = time.perf_counter()
    rows = np.random.default_rng([seed, 16]).permutation(len(X))[:SVC_SUBSET]
    grid = {"C": COSTS, "gamma": [step / float(X.var(axis=0).sum()) for step in STEPS]}
    search = GridSearchCV(SVC(cache_size=500), grid, cv=SVC_FOLDS).fit(X[rows], labels.codes[rows])
    tuned = time.perf_counter()
    machine = SVC(cache_size=500, **search.best_params_).fit(X, labels.codes)
    ended = time.perf_counter()
    return {
        "svc_error": float(np.mean(machine.predict(tests) != codes)),
        "svc_seconds": ended - began,
        "svc_fit_seconds": ended - tuned,
        "svc_parameters": {name: float(value) for name, value in search.best_params_.items()},
        "svc_support": int(machine.n_support_.sum()),
    }
