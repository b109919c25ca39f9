"""Training of a fixed-size LS-SVM: a pool of prototypes, a search in passes over the data, and a fit of what it chose.

Each pass sums up fold Grams of a few kernels; noise variances and cardinalities are then cross-validated without the
samples (sections 4.4 and 4.5 of Karsmakers et al. 2011). The prototypes that the best of them takes are fitted to all
samples anew, by triangles; decisions that were not fitted to, those of each fold by the model of the others, tell the
error and calibrate probabilities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor, split_evenly
from dkgp.data import ClassifierRecord
from dkgp.errors import CheckpointError, InputError
from dkgp.kernels import Kernel, fold_white, kernel_from_json
from dkgp.models.classification.calibration import fit_calibration
from dkgp.models.classification.fixed_size.budget import foresee_search, most_widths
from dkgp.models.classification.fixed_size.chosen import Chosen, fold_arrays
from dkgp.models.classification.fixed_size.fit import FixedSizeModel, fit_fixed_size
from dkgp.models.classification.fixed_size.searches.annealing import AnnealingSearch
from dkgp.models.classification.fixed_size.searches.asked import GridSearch, ProfileSearch, RecordedSearch
from dkgp.models.classification.fixed_size.searches.of_paths import PathSearch
from dkgp.models.classification.fixed_size.searches.of_pools import PoolSearch
from dkgp.models.classification.fixed_size.settings import DEFAULT_SEARCH, FixedSizeSettings
from dkgp.models.classification.fixed_size.start import start_kernel
from dkgp.models.classification.fixed_size.state import SearchState
from dkgp.models.classification.fixed_size.system import Targets
from dkgp.models.classification.labelled import LabelledData, Laps, digest, interruption
from dkgp.models.classification.labels import decided, stratified_folds
from dkgp.models.classification.prototypes import choose_prototypes
from dkgp.models.classification.trained import TrainedClassifier
from dkgp.models.context import RunContext
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.cross.folds import fold_columns_task
from dkgp.operators.inputs import centre_of
from dkgp.solvers.checkpointing import Checkpoints

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
    weights : (n,) float64 or None
        Of the samples: the data's, or those that were considered.
    history : list of dict
        Every kernel that the search looked at: pass, scale, noise_variance, cardinality, score.
    """

    model: FixedSizeModel
    path: list[dict[str, float]]
    indices: IndexArray | None
    weights: FloatArray | None = None

    def record(self, data: LabelledData, summary: dict[str, Any] | None = None) -> ClassifierRecord:
        """The model as it is stored, its samples weighted as they were in the end."""
        return super().record(replace(data, weights=self.weights), summary)

    def stored(self) -> dict[str, Any]:
        """Prototypes, their weights, and the path that led to so many of them."""
        return {
            "form": "fixed-size",
            "intercept": self.model.intercept,
            "prototypes": self.model.prototypes,
            "weights": self.model.weights,
            "indices": self.indices,
            "path": [dict(record) for record in self.path],
        }


def train_fixed_size(
    data: LabelledData,
    settings: FixedSizeSettings,
    context: RunContext | BlockExecutor,
    *,
    kernel: Kernel | None = None,
    noise_variance: float | None = None,
    considered: FloatArray | None = None,
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
        tells, or the median distance (`dkgp.models.classification.fixed_size.start`).
    noise_variance : float, optional
        s2 = 1 / gamma_K, if it is known; no other is looked at.
    considered : (n,) float64, optional
        Weights of the samples, of mean one, that take the place of the data's where the balanced error of samples that
        were left out is less with them; by a shared search alone.
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
    dataset, labels, weights, laps = data.dataset, data.labels, data.weights, Laps()
    folds = stratified_folds(labels, settings.folds, settings.seed)
    targets = Targets(labels.signs(), folds.astype(np.intp), settings.folds, weights)
    if kernel is not None:
        # Noise of a kernel's own is what a fit takes off, not what it predicts.
        kernel, white = fold_white(kernel, 0.0)
        if noise_variance is None and white > 0.0:
            noise_variance = white
    context, identity = RunContext.of(context), data.identity
    labels_digest = str(identity["labels"])
    checkpoints = Checkpoints(
        context.checkpointing,
        {
            **settings.identity(),
            "kernel": None if kernel is None else kernel.to_json(),
            "noise_variance": noise_variance,
            "weights": identity["weights"],
            "own_search": None,  # as checkpoints of earlier versions have it
            # Not there where nothing is considered: checkpoints of earlier versions have no such name.
            **({} if considered is None else {"considered": digest(considered, "<f8")}),
        },
        dict,
    )
    checkpoint = checkpoints.latest()
    if checkpoint is not None:
        held = checkpoint.metadata["state"]
        # Checkpoints of earlier versions do not tell; those of a command have its data's fingerprint, labels included.
        if held.get("labels", labels_digest) != labels_digest:
            raise CheckpointError(
                "the checkpoint belongs to another run: its samples have other labels. Resume with the same data and "
                "options, or start afresh without `resume`"
            )
        start, started_by = kernel_from_json(held["start"]), str(held["started_by"])
    elif kernel is not None:
        start, started_by = kernel, "given"
    else:
        start, started_by = start_kernel(data, isotropic=settings.isotropic, seed=settings.seed)
    laps.end("start")
    check = interruption(context, checkpoints, "passes", "search")
    with context.operator(start, 1.0, dataset) as operator, operator.watched(check, context.within):
        if checkpoint is not None:
            prototypes, indices = checkpoint.arrays["prototypes"], checkpoint.arrays.get("indices")
        else:
            size = settings.pool_size(data.n, targets.outputs)
            indices, prototypes = choose_prototypes(
                settings.prototypes, operator, size, settings.seed, targets=targets.signs
            )
        laps.end("prototypes")
        shared, search = settings.judges_by_pools, _search(settings, noise_variance)
        state = SearchState(start, started_by, prototypes, indices, search, settings.folds, labels_digest)
        if checkpoint is not None:
            state.restore(checkpoint.metadata["state"], checkpoint.arrays)
        if shared:
            foreseen = foresee_search(
                (data.n, dataset.n_features, targets.outputs), len(prototypes), folds=settings.folds,
                threads=context.executor.parallelism, together=together, search=settings.search,
                weighings=1 if considered is None else 2,
            )  # fmt: skip
            PoolSearch(
                state, targets, labels, settings, foreseen, noise_variance, considered, checkpoints, context.callback,
                check,
            ).run(operator, together)  # fmt: skip
        else:
            PathSearch(state, targets, settings, noise_variance, checkpoints, context.callback, check).run(
                operator, together
            )
        entries = operator.kernel_evaluations
        laps.end("search")
    best = state.best
    assert best is not None
    weights = considered if state.weighted else weights
    with context.operator(best.kernel, best.noise_variance, dataset) as operator:
        with operator.watched(check, context.within):
            order = best.model.order if len(best.model.order) else np.zeros(1, dtype=np.intp)
            # An intercept that competes with the prototypes takes one of their places where it was taken.
            competed = settings.intercept == "selected" and len(best.model.order) < best.cardinality
            if best.whole:
                # Thousands of columns: what triangles would cost is out of proportion to a ridge that mends them.
                fitted, level = best.model.weights, best.model.intercept
            elif len(best.model.order):
                fitted, level = fit_fixed_size(
                    operator, prototypes[order], targets.signs, best.noise_variance,
                    intercept=settings.intercept == "first" or competed, weights=weights,
                )  # fmt: skip
            else:
                # Inputs that are all the same tell nothing: the mean, and a prototype of no weight.
                fitted, level = np.zeros((1, targets.outputs)), best.model.intercept
            laps.end("fit")
            decisions = _held_out_decisions(operator, best, prototypes, targets.folds)
        entries += operator.kernel_evaluations
    laps.end("decisions")
    wrong, counts = decided(decisions) != labels.codes, labels.counts()
    summary = {
        "n": dataset.n_samples,
        "d": dataset.n_features,
        "classes": list(labels.classes),
        "method": "fixed-size",
        "prototypes": settings.prototypes,
        "pool": len(prototypes),
        "cardinality": len(order),
        "best_cardinality": best.best,
        "stopped": best.stopped,
        "score": best.score,
        "misclassification": float(np.average(wrong, weights=weights)),
        "balanced_error": float(np.mean(np.bincount(labels.codes, wrong)[counts > 0] / counts[counts > 0])),
        "weighted": state.weighted,
        "weighings": None if considered is None else _weighings(state.history),
        "noise_variance": best.noise_variance,
        "started_by": state.started_by,
        "scale": _scale(state.history, shared),
        "passes": state.passes,
        "kernel_evaluations": entries,
        **laps.summary(),
        "counts": counts.tolist(),
        "converged": True,
    }
    return TrainedFixedSize(
        kernel=best.kernel,
        noise_variance=best.noise_variance,
        classes=labels.classes,
        calibration=fit_calibration(decisions, labels.codes, weights) if settings.probability else None,
        history=state.history,
        summary=summary,
        model=FixedSizeModel(best.kernel, best.noise_variance, prototypes[order], fitted, level, centre_of(dataset)),
        path=best.path,
        weights=weights,
        indices=None if indices is None else indices[order],
    )


def _scale(history: list[dict[str, Any]], shared: bool) -> float | None:
    """Of the kernel that was chosen: a shared search tells of it last."""
    if not history:
        return None
    return float((history[-1] if shared else min(history, key=lambda record: record["score"]))["scale"])


def _weighings(history: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Errors of samples that were left out without the weights that were considered, and with them."""
    return [{name: record[name] for name in ("error", "balanced_error")} for record in history[-2:]]


def _search(settings: FixedSizeSettings, noise_variance: float | None) -> RecordedSearch | None:
    if settings.search == "none":
        return None
    if settings.search == "annealing":
        if noise_variance is not None or settings.noise_variances is not None:
            return AnnealingSearch((0.0,), seed=settings.seed)
        return AnnealingSearch((0.0, START_NOISE), seed=settings.seed)
    if settings.search == DEFAULT_SEARCH:
        return ProfileSearch(
            together=2, tolerance=WIDTHS_APART, negligible=WIDTHS_ALIKE, evaluations=most_widths(DEFAULT_SEARCH)
        )
    if settings.search == "grid":
        return GridSearch(most_widths("grid"))
    return ProfileSearch(together=2)


def _held_out_decisions(
    operator: BlockedKernelOperator, best: Chosen, prototypes: FloatArray, folds: IndexArray
) -> FloatArray:
    """Decisions at each sample by the model of the other folds: (n, t)."""
    context, executor = operator.context, operator.executor
    bases, weights, intercepts = fold_arrays(best, prototypes)
    groups = split_evenly(range(context.n_blocks), executor.parallelism)
    parts = operator.submit("kfoldcolumns", fold_columns_task, (context, bases, weights, folds), groups).result()
    return np.asarray(np.concatenate(parts) + intercepts[folds])
