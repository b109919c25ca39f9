"""Training of a fixed-size LS-SVM: a pool of prototypes, a search in passes over the data, and a fit of its choice.

Each pass sums up fold Grams of a few kernels; noise variances and cardinalities are then cross-validated without the
samples (sections 4.4 and 4.5 of Karsmakers et al. 2011). The prototypes that the best of them takes are fitted to all
samples anew, by triangles; decisions that were not fitted to, those of each fold by the model of the others, tell the
error and calibrate probabilities.

The reported fit is eq. 29 on the chosen prototypes, by triangles, for any condition. Normal equations square the
condition; here R of Q R = sqrt(D) [K_nm, 1, Y] is put together from the runs' own triangles in their order, and [R;
sqrt(s2) E], E'E = K_mm, is solved as a least-squares problem.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from dkgp.cluster.executors.base import BlockExecutor, split_evenly
from dkgp.cluster.threads import single_threaded_blas
from dkgp.codec import identity
from dkgp.data import Dataset
from dkgp.data.stores.models.classifier import ClassifierForm, Support
from dkgp.errors import CheckpointError, InputError, NumericalError
from dkgp.kernels import Kernel, SquaredExponential, TileEvaluator, fold_white, kernel_from_json
from dkgp.models.classification.calibration import fit_calibration
from dkgp.models.classification.fixed_size.plans import AnnealingSearch, GridSearch, ProfileSearch, RecordedSearch
from dkgp.models.classification.fixed_size.search import (
    SMOOTH,
    Chosen,
    KernelSearch,
    PathSearch,
    PoolSearch,
    of_a_mistake,
    scaled,
)
from dkgp.models.classification.fixed_size.settings import (
    DEFAULT_SEARCH,
    FEWEST_RUNS,
    MOST_RUNS,
    RUN_WIDTHS,
    FixedSizeSettings,
    foresee_search,
    most_widths,
)
from dkgp.models.classification.fixed_size.system import Targets
from dkgp.models.classification.hyperparameters import LabelTuning, draw_labelled, tune_labels
from dkgp.models.classification.labels import (
    LabelledData,
    decided,
    stratified_folds,
)
from dkgp.models.classification.prototypes import choose_prototypes
from dkgp.models.classification.trained import TrainedClassifier
from dkgp.models.context import RunContext
from dkgp.models.tuning.subsets import draw_subset
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import centre_of
from dkgp.operators.cross.folds import fold_columns_task, merge_triangles, triangle_task
from dkgp.operators.cross.tasks import runs_of
from dkgp.solvers.base import Clock
from dkgp.solvers.driver import Loop

# Kernels whose Grams are summed in one pass.
TOGETHER = 3
# Of widths that a shared search looks at: logarithms that are near enough, scores that are alike.
WIDTHS_APART, WIDTHS_ALIKE = 0.3, 5e-3
# log s2 that annealing starts at.
START_NOISE = math.log(0.1)


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainedFixedSize(TrainedClassifier):
    """A fixed-size LS-SVM, and how it came about.

    Attributes
    ----------
    model : FixedSizeModel
    path : list of dict
        cardinality, score (mean squared error of cross-validation) and std (over folds) of the best kernel and noise.
    indices : (k,) int or None
        Which samples the prototypes are, in the order of choice; None where they are none.
    history : list of dict
        Every kernel that the search looked at: pass, scale, noise_variance, cardinality, score.
    """

    support: ClassVar[Support] = "prototypes"

    form: ClassifierForm = "fixed-size"
    model: FixedSizeModel
    path: list[dict[str, float]]
    indices: IndexArray | None

    def fields(self) -> dict[str, Any]:
        """Return the prototypes with their weights, in place of the samples'."""
        return {
            **super().fields(),
            "intercept": self.model.intercept,
            "prototypes": self.model.prototypes,
            "weights": self.model.weights,
        }


def train_fixed_size(
    data: LabelledData,
    settings: FixedSizeSettings,
    context: RunContext | BlockExecutor,
    *,
    kernel: Kernel | None = None,
    noise_variance: float | None = None,
    together: int = TOGETHER,
) -> TrainedFixedSize:
    """Train a fixed-size LS-SVM.

    Parameters
    ----------
    data : LabelledData
        Weights, D, are of mean one.
    settings : FixedSizeSettings
    context : RunContext or BlockExecutor
        Who computes, and who watches: a checkpoint follows each pass, the callback takes each record of the history.
    kernel : Kernel, optional
        Where the search for the scale of its length scales starts. By default the marginal likelihood of a subset
        tells, or the median distance (`dkgp.models.classification.fixed_size.train`).
    noise_variance : float, optional
        s2 = 1 / gamma_K, if it is known; no other is looked at.
    together : int
        Kernels of a pass over the data at most; each takes memory, and no bit depends on it.

    Raises
    ------
    InputError
        A class rarer than the folds, or settings and kernels that do not fit.
    NumericalError
        See `fit_fixed_size`.
    CheckpointError
        A checkpoint of another run.
    InterruptedRunError
        The context asked for the end; passes that were done are saved.
    """
    if noise_variance is not None and not (math.isfinite(noise_variance) and noise_variance > 0.0):
        raise InputError(f"`noise_variance` must be positive and finite; got {noise_variance}")
    if kernel is not None:
        # A fit removes the white noise of a kernel; it does not predict it.
        kernel, white = fold_white(kernel, 0.0)
        if noise_variance is None and white > 0.0:
            noise_variance = white
    return _Training(data, settings, RunContext.of(context), kernel, noise_variance, together).run()


@dataclass
class _Training:
    """One training: its arguments are those of `train_fixed_size`, the kernel without white noise."""

    data: LabelledData
    settings: FixedSizeSettings
    context: RunContext
    kernel: Kernel | None
    noise_variance: float | None
    together: int

    def run(self) -> TrainedFixedSize:
        data, settings, context, clock = self.data, self.settings, self.context, Clock()
        dataset, labels = data.dataset, data.labels
        folds = stratified_folds(labels, settings.folds, settings.seed)
        targets = Targets(labels.signs(), folds.astype(np.intp), settings.folds, data.weights)
        # The search shows its records with the passes and the time to come, which no history has.
        loop = Loop(replace(context, callback=None), self._identity(), unit="pass", waits=False)
        checkpoint = loop.latest()
        start, started_by = self._start(None if checkpoint is None else checkpoint.metadata["state"])
        clock.lap("start")
        with context.operator(start, 1.0, dataset) as operator, operator.watched(loop.pass_on):
            if checkpoint is not None:
                prototypes, indices = checkpoint.arrays["prototypes"], checkpoint.arrays.get("indices")
            else:
                size = settings.pool_size(data.n, targets.outputs)
                indices, prototypes = choose_prototypes(
                    settings.prototypes, operator, size, settings.seed, targets=targets.signs
                )
            clock.lap("prototypes")
            search = self._search(
                operator=operator, targets=targets, start_kernel=start, started_by=started_by,
                prototypes=prototypes, indices=indices, heed=loop.heed_within,
            )  # fmt: skip
            if checkpoint is not None:
                search.resume(checkpoint)
            loop.run(search)
            entries = operator.kernel_evaluations
            clock.lap("search")
        best = search.best
        assert best is not None
        with context.operator(best.kernel, best.noise_variance, dataset) as operator:
            with operator.watched(loop.pass_on):
                order, fitted, level = self._fitted(operator, prototypes, best, targets)
                clock.lap("fit")
                decisions = _held_out_decisions(operator, best, prototypes, targets.folds)
            entries += operator.kernel_evaluations
        clock.lap("decisions")
        calibration = fit_calibration(decisions, labels.codes, data.weights) if settings.probability else None
        wrong, seconds = decided(decisions) != labels.codes, round(clock.total, 3)
        effort = {"kernel_evaluations": entries, "seconds": seconds, "seconds_by_part": clock.rounded()}
        return TrainedFixedSize(
            kernel=best.kernel,
            noise_variance=best.noise_variance,
            classes=labels.classes,
            calibration=calibration,
            history=search.history,
            summary=self._summary(search, best, wrong, effort),
            model=FixedSizeModel(
                best.kernel, best.noise_variance, prototypes[order], fitted, level, centre_of(dataset)
            ),
            path=best.path,
            indices=None if indices is None else indices[order],
        )

    def _identity(self) -> dict[str, Any]:
        """Return the settings that a checkpoint must share, in the form of the first versions."""
        return {
            **identity(self.settings),
            "kernel": None if self.kernel is None else self.kernel.to_json(),
            "noise_variance": self.noise_variance,
            "weights": self.data.identity["weights"],
            "own_search": None,
        }

    def _start(self, saved: dict[str, Any] | None) -> tuple[Kernel, str]:
        """Return the kernel that the search starts from, and its origin: a checkpoint's, the given, or one of the data.

        Raises `CheckpointError` where the checkpoint is of other labels.
        """
        if saved is not None:
            labels = self.data.identity["labels"]
            # The first versions saved no labels: their commands had the fingerprint of the data, labels included.
            if saved.get("labels", labels) != labels:
                raise CheckpointError(
                    "the checkpoint belongs to another run: its samples have other labels. Resume with the same data "
                    "and options, or start afresh without `resume`"
                )
            return kernel_from_json(saved["start"]), str(saved["started_by"])
        if self.kernel is not None:
            return self.kernel, "given"
        return start_kernel(self.data, isotropic=self.settings.isotropic, seed=self.settings.seed)

    def _search(self, **more: Any) -> KernelSearch:
        data, settings, context, pool = self.data, self.settings, self.context, len(more["prototypes"])
        common = {
            "labels": data.labels,
            "labels_digest": str(data.identity["labels"]),
            "settings": settings,
            "noise_variance": self.noise_variance,
            "plan": _plan(settings, self.noise_variance),
            "together": self.together,
            "callback": context.callback,
            **more,
        }
        if not settings.judges_by_pools:
            return PathSearch(**common)
        foreseen = foresee_search(
            (data.n, data.dataset.n_features, data.labels.n_outputs), pool, folds=settings.folds,
            threads=context.executor.parallelism, together=self.together, search=settings.search,
        )  # fmt: skip
        return PoolSearch(**common, foreseen=foreseen)

    def _fitted(
        self,
        operator: BlockedKernelOperator,
        prototypes: FloatArray,
        best: Chosen,
        targets: Targets,
    ) -> tuple[IndexArray, FloatArray, FloatArray]:
        """Fit the chosen prototypes to all samples: their places in the pool, weights and intercept."""
        model, intercept = best.model, self.settings.intercept
        if best.whole:
            # With thousands of columns triangles cost far more than a ridge that mends them.
            return model.order, model.weights, model.intercept
        if not len(model.order):
            # Inputs that are all the same tell nothing: the mean, and a prototype of no weight.
            return np.zeros(1, dtype=np.intp), np.zeros((1, targets.outputs)), model.intercept
        # An intercept that competes with the prototypes takes one of their places where it was taken.
        competed = intercept == "selected" and len(model.order) < best.cardinality
        fitted, level = fit_fixed_size(
            operator, prototypes[model.order], targets.signs, best.noise_variance,
            intercept=intercept == "first" or competed, weights=targets.weights,
        )  # fmt: skip
        return model.order, fitted, level

    def _summary(
        self,
        search: KernelSearch,
        best: Chosen,
        wrong: NDArray[np.bool_],
        effort: dict[str, Any],
    ) -> dict[str, Any]:
        data, counts, history = self.data, self.data.labels.counts(), search.history
        # A search by whole pools records its choice last.
        chosen = history[-1] if self.settings.judges_by_pools else min(history, key=lambda record: record["score"])
        return {
            "n": data.n,
            "d": data.dataset.n_features,
            "classes": list(data.labels.classes),
            "method": "fixed-size",
            "prototypes": self.settings.prototypes,
            "pool": len(search.prototypes),
            "cardinality": max(1, len(best.model.order)),
            "best_cardinality": best.best,
            "stopped": best.stopped,
            "score": best.score,
            "misclassification": float(np.average(wrong, weights=data.weights)),
            "balanced_error": float(np.mean(np.bincount(data.labels.codes, wrong)[counts > 0] / counts[counts > 0])),
            "weighted": data.weights is not None,
            "noise_variance": best.noise_variance,
            "started_by": search.started_by,
            "scale": float(chosen["scale"]),
            "passes": search.iteration,
            **effort,
            "counts": counts.tolist(),
            "converged": True,
            **({"ended_early": True} if search.ended_early else {}),
        }


def _plan(settings: FixedSizeSettings, noise_variance: float | None) -> RecordedSearch | None:
    if settings.search == "annealing":
        known = noise_variance is not None or settings.noise_variances is not None
        return AnnealingSearch((0.0,) if known else (0.0, START_NOISE), seed=settings.seed)
    if settings.search == DEFAULT_SEARCH:
        return ProfileSearch(
            together=2, tolerance=WIDTHS_APART, negligible=WIDTHS_ALIKE, evaluations=most_widths(DEFAULT_SEARCH)
        )
    if settings.search == "grid":
        return GridSearch(most_widths("grid"))
    return ProfileSearch(together=2) if settings.search == "profile" else None


def _held_out_decisions(
    operator: BlockedKernelOperator, best: Chosen, prototypes: FloatArray, folds: IndexArray
) -> FloatArray:
    """Evaluate the decisions at each sample by the model of the other folds: (n, t)."""
    context, executor = operator.context, operator.executor
    bases = tuple(prototypes[model.order] for model in best.folds)
    arguments = (context, bases, tuple(model.weights for model in best.folds), folds)
    groups = split_evenly(range(context.n_blocks), executor.parallelism)
    parts = operator.submit("kfoldcolumns", fold_columns_task, arguments, groups).result()
    return np.asarray(np.concatenate(parts) + np.stack([model.intercept for model in best.folds])[folds])


# A column's own share of its length below which the others say all that float64 can tell of it.
LEAST_SHARE = 1e-12


@dataclass(frozen=True)
class FixedSizeModel:
    """A fixed-size LS-SVM, on the standardised scale: f(x) = k_m(x)' W + b0 (eq. 33).

    Attributes
    ----------
    kernel : Kernel
    noise_variance : float
        s2 = 1 / gamma_K.
    prototypes : (k, d) float64
    weights : (k, t) float64
    intercept : (t,) float64
    centre : (d,) float64 or None
        Of the inputs; see `TileEvaluator`.
    """

    kernel: Kernel
    noise_variance: float
    prototypes: FloatArray
    weights: FloatArray
    intercept: FloatArray
    centre: FloatArray | None = None

    def decisions(self, inputs: FloatArray) -> FloatArray:
        """f at standardised inputs (r, d): (r, t)."""
        if inputs.ndim != 2 or inputs.shape[1] != self.kernel.n_features:
            raise InputError(f"expected inputs of shape (r, {self.kernel.n_features}); got {inputs.shape}")
        evaluator = TileEvaluator(self.kernel, "double", centre=self.centre)
        if not len(inputs):
            return np.zeros((0, len(self.intercept)))
        image = evaluator.matmat(evaluator.prepare(inputs), evaluator.prepare(self.prototypes), self.weights)
        return np.asarray(image + self.intercept)


def fit_triangle(
    operator: BlockedKernelOperator,
    prototypes: FloatArray,
    right: FloatArray,
    weights: FloatArray | None,
    intercept: bool,
) -> FloatArray:
    """Return R of Q R = sqrt(D) [K_nm, 1, V], V = `right`: (c, c) at most, upper. Bits do not depend on the workers.

    Triangles of a few runs at a time come to the coordinator.
    """
    width = len(prototypes) + intercept + right.shape[1]
    most = int(np.clip(operator.n // (RUN_WIDTHS * width), FEWEST_RUNS, MOST_RUNS))
    runs = runs_of(operator.context, {"right": right, "weights": weights}, most=most)
    at_once, parts = operator.executor.parallelism, []
    for first in range(0, len(runs), at_once):
        groups = [[run] for run in runs[first : first + at_once]]
        arguments = (operator.context, prototypes, intercept)
        parts += operator.submit("kqr", triangle_task, arguments, groups).result()
        while len(parts) > 1:
            parts[:2] = [merge_triangles(parts[0], parts[1])]
        operator.tell("fit", first + len(groups), len(runs), "parts of the data")
    return np.asarray(parts[0])


def fit_fixed_size(
    operator: BlockedKernelOperator,
    prototypes: FloatArray,
    signs: FloatArray,
    noise_variance: float,
    *,
    intercept: bool = True,
    weights: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Solve eq. 29 on all samples, in one pass over them: weights (k, t) and the intercept (t,).

    `prototypes` (k, d) are one at least, `signs` (n, t); `weights` (n,) are D. `NumericalError`: prototypes that are
    dependent on each other as far as float64 tells.
    """
    k, columns = len(prototypes), len(prototypes) + intercept
    with single_threaded_blas():
        triangle = fit_triangle(operator, prototypes, signs, weights, intercept)
        features = operator.double.prepare(prototypes)
        matrix = np.asarray(operator.double.tile(features, features))
        values, vectors = scipy.linalg.eigh(0.5 * (matrix + matrix.T), check_finite=False)
        # Eigenvalues that rounding made negative are zero.
        root = np.sqrt(noise_variance * np.maximum(values, 0.0))[:, None] * vectors.T
        stacked = np.concatenate([triangle[:, :columns], np.pad(root, ((0, 0), (0, columns - k)))])
        right = np.concatenate([triangle[:, columns:], np.zeros((k, signs.shape[1]))])
        lengths = np.sqrt(np.einsum("ij,ij->j", stacked, stacked))
        scale = np.where(lengths > 0.0, lengths, 1.0)
        q, r = np.linalg.qr(stacked / scale)
        shares = np.abs(r.diagonal())
        if not (len(shares) and shares.min() > LEAST_SHARE):
            raise NumericalError(
                f"{k:,} prototypes are dependent on each other as far as float64 tells, with noise variance "
                f"{noise_variance:.3g} (a column keeps {shares.min(initial=1.0):.1g} of its length). Take fewer "
                "prototypes, or a larger noise variance"
            )
        solution = scipy.linalg.solve_triangular(r, q.T @ right, check_finite=False) / scale[:, None]
    return solution[:k], solution[k] if intercept else np.zeros(signs.shape[1])


# The paper's kernel has one length scale; with few features or samples no more can be learned beforehand.
FEW_FEATURES, FEW_SAMPLES = 3, 1000
MEDIAN_SAMPLES, TUNED_SAMPLES = 1000, 1000
# Samples that two starts are judged at, at most and at least, and the models that judge them.
JUDGED_SAMPLES, FEWEST_JUDGED = 1000, 250
START_SCALES, START_NOISES = (0.25, 1.0, 4.0), (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
# A start wants no more than this of a search that ends with another one.
TUNING = LabelTuning(subset=TUNED_SAMPLES, tolerance=1e-2, max_evaluations=60)


def median_kernel(dataset: Dataset, seed: int = 0) -> Kernel:
    """exp(-r^2 / sigma^2), sigma^2 the median of the squared distances between a thousand samples."""
    subset = draw_subset(dataset.n_samples, MEDIAN_SAMPLES, seed)
    inputs = dataset.input_rows(subset)
    inputs = inputs - (inputs.mean(axis=0) if (centre := centre_of(dataset)) is None else centre)
    with single_threaded_blas():
        squares = np.einsum("id,id->i", inputs, inputs)
        distances = squares[:, None] + squares - 2.0 * (inputs @ inputs.T)
    apart = distances[np.triu_indices(len(inputs), 1)]
    apart = apart[apart > 1e-12 * squares.max(initial=1e-300)]
    middle = float(np.median(apart)) if len(apart) else 1.0
    return SquaredExponential(gamma=(1.0 / middle,), n_features=dataset.n_features)


def start_kernel(data: LabelledData, *, isotropic: bool, seed: int = 0) -> tuple[Kernel, str]:
    """Return a kernel to start from, and its origin: "median" or "likelihood".

    One length scale for each feature, by the likelihood of a subset, is worse than one for all where features are many
    and alike, such as pixels. Both are judged at samples that the likelihood did not see, if there are enough of them.
    """
    dataset = data.dataset
    median = median_kernel(dataset, seed)
    if isotropic or dataset.n_features <= FEW_FEATURES or dataset.n_samples <= FEW_SAMPLES:
        return median, "median"
    tuned = tune_labels(data, replace(TUNING, seed=seed)).kernel
    subset = draw_labelled(data.labels, TUNED_SAMPLES, seed)
    others = np.setdiff1d(np.arange(data.n), subset)
    if len(others) > JUDGED_SAMPLES:
        others = np.sort(np.random.default_rng(seed).choice(others, JUDGED_SAMPLES, replace=False))
    if len(others) >= FEWEST_JUDGED:
        with single_threaded_blas():
            if _start_value(data, median, subset, others) < _start_value(data, tuned, subset, others):
                return median, "median"
    return tuned, "likelihood"


def _start_value(data: LabelledData, kernel: Kernel, subset: IndexArray, others: IndexArray) -> float:
    """Return the least value of LS-SVMs of the subset at the other samples, as the search values a width."""
    dataset, labels, signs = data.dataset, data.labels, data.labels.signs()
    inputs, tested = dataset.input_rows(subset), dataset.input_rows(others)
    weights = None if data.weights is None else data.weights[others]
    mean = signs[subset].mean(axis=0)
    values = []
    for factor in START_SCALES:
        evaluator = TileEvaluator(scaled(kernel, factor), "double", centre=centre_of(dataset))
        rows = evaluator.prepare(inputs)
        matrix, cross = evaluator.tile(rows, rows), evaluator.tile(evaluator.prepare(tested), rows)
        for noise_variance in START_NOISES:
            matrix_with_noise = matrix + noise_variance * np.eye(len(matrix))
            solution = scipy.linalg.solve(matrix_with_noise, signs[subset] - mean, assume_a="pos", check_finite=False)
            decisions = cross @ solution + mean
            error = np.average(decided(decisions) != labels.codes[others], weights=weights)
            squares = np.average(np.sum((decisions - signs[others]) ** 2, axis=1), weights=weights)
            values.append(float(error + SMOOTH * squares / of_a_mistake(signs.shape[1])))
    return min(values)
