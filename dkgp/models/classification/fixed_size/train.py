"""Training of a fixed-size LS-SVM: a pool of prototypes, a search in passes over the data, and a fit of what it chose.

Each pass sums up fold Grams of a few kernels; noise variances and cardinalities are then cross-validated without the
samples (sections 4.4 and 4.5 of Karsmakers et al. 2011). The prototypes that the best of them takes are fitted to all
samples anew, by triangles; decisions that were not fitted to, those of each fold by the model of the others, tell the
error and calibrate probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.executors.base import BlockExecutor, split_evenly
from dkgp.cluster.threads import single_threaded_blas
from dkgp.data.types import Progress
from dkgp.errors import CheckpointError, InputError
from dkgp.kernels import Kernel, fold_white, kernel_from_json
from dkgp.models.classification.calibration import fit_calibration
from dkgp.models.classification.fixed_size.annealing import AnnealingSearch
from dkgp.models.classification.fixed_size.chosen import Chosen, choose, fold_arrays
from dkgp.models.classification.fixed_size.fit import FixedSizeModel, fit_fixed_size
from dkgp.models.classification.fixed_size.paths import candidate_draws
from dkgp.models.classification.fixed_size.search import Point, ProfileSearch, Search
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.fixed_size.start import start_kernel
from dkgp.models.classification.fixed_size.system import FoldSystem, Targets, fold_systems
from dkgp.models.classification.fixed_size.validation import chosen_noise, validate_noise
from dkgp.models.classification.labelled import LabelledData, Laps, interruption
from dkgp.models.classification.labels import decided, stratified_folds
from dkgp.models.classification.prototypes import choose_prototypes
from dkgp.models.classification.scaling import scaled
from dkgp.models.classification.trained import TrainedClassifier
from dkgp.models.context import RunContext
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.cross.folds import fold_columns_task
from dkgp.operators.inputs import centre_of
from dkgp.solvers.checkpointing import Checkpoints

# Kernels whose Grams are summed in one pass.
TOGETHER = 3
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

    model: FixedSizeModel
    path: list[dict[str, float]]
    indices: IndexArray | None

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


@dataclass
class _State:
    """Everything that a checkpoint holds."""

    start: Kernel
    started_by: str
    prototypes: FloatArray
    indices: IndexArray | None
    search: Search | None
    folds: int
    labels: str  # their digest
    passes: int = 0
    best: Chosen | None = None
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def iteration(self) -> int:
        """Passes done."""
        return self.passes

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays of a checkpoint."""
        arrays: dict[str, NDArray[Any]] = {"prototypes": self.prototypes}
        if self.indices is not None:
            arrays["indices"] = self.indices
        return arrays if self.best is None else arrays | self.best.arrays()

    def metadata(self) -> dict[str, Any]:
        """The rest, in plain JSON types."""
        return {
            "iteration": self.passes,
            "labels": self.labels,
            "start": self.start.to_json(),
            "started_by": self.started_by,
            "search": None if self.search is None else self.search.state(),
            "best": None if self.best is None else self.best.metadata(),
            "history": self.history,
        }

    def restore(self, metadata: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Go on from what a checkpoint holds, but for the start, which is given."""
        self.passes, self.history = int(metadata["iteration"]), list(metadata["history"])
        if self.search is not None:
            self.search.restore(metadata["search"])
        self.best = None if metadata["best"] is None else Chosen.restored(metadata["best"], arrays, self.folds)


def train_fixed_size(
    data: LabelledData,
    settings: FixedSizeSettings,
    context: RunContext | BlockExecutor,
    *,
    kernel: Kernel | None = None,
    noise_variance: float | None = None,
    search: Search | None = None,
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
    search : Search, optional
        In place of the settings' own; of coordinates log scale, or log scale and log s2.
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
            "own_search": None if search is None else search.name,
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
            indices, prototypes = choose_prototypes(
                settings.prototypes, operator, settings.pool, settings.seed, targets=targets.signs
            )
        laps.end("prototypes")
        if search is None:
            search = _search(settings, noise_variance)
        state = _State(start, started_by, prototypes, indices, search, settings.folds, labels_digest)
        if checkpoint is not None:
            state.restore(checkpoint.metadata["state"], checkpoint.arrays)
        _Passes(state, targets, settings, noise_variance, checkpoints, context.callback, check).run(operator, together)
        entries = operator.kernel_evaluations
        laps.end("search")
    best = state.best
    assert best is not None
    with context.operator(best.kernel, best.noise_variance, dataset) as operator:
        with operator.watched(check, context.within):
            order = best.model.order if len(best.model.order) else np.zeros(1, dtype=np.intp)
            # An intercept that competes with the prototypes takes one of their places where it was taken.
            competed = settings.intercept == "selected" and len(best.model.order) < best.cardinality
            if len(best.model.order):
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
    wrong = decided(decisions) != labels.codes
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
        "noise_variance": best.noise_variance,
        "started_by": state.started_by,
        "scale": state.history and min(state.history, key=lambda record: record["score"])["scale"],
        "passes": state.passes,
        "kernel_evaluations": entries,
        **laps.summary(),
        "counts": labels.counts().tolist(),
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
        indices=None if indices is None else indices[order],
    )


def _search(settings: FixedSizeSettings, noise_variance: float | None) -> Search | None:
    if settings.search == "none":
        return None
    if settings.search == "annealing":
        if noise_variance is not None or settings.noise_variances is not None:
            return AnnealingSearch((0.0,), seed=settings.seed)
        return AnnealingSearch((0.0, START_NOISE), seed=settings.seed)
    return ProfileSearch(together=2)


@dataclass(frozen=True)
class _Passes:
    """Passes over the data that score the kernels which a search asks for; without one, the kernel as it starts."""

    state: _State
    targets: Targets
    settings: FixedSizeSettings
    noise_variance: float | None
    checkpoints: Checkpoints
    callback: Callable[[Any], None] | None
    check: Callable[[Progress | None], None]

    def run(self, operator: BlockedKernelOperator, together: int) -> None:
        """Go on to the search's end, `together` kernels a pass at most."""
        state = self.state
        while points := self._next_points():
            scores: list[float] = []
            for batch in split_evenly(points, -(-len(points) // max(1, together))):
                kernels = [scaled(state.start, math.exp(point[0])) for point in batch]
                systems = fold_systems(operator, state.prototypes, kernels, self.targets, self.settings.intercept)
                state.passes += 1
                while systems:
                    point, system = batch[-len(systems)], systems.pop(0)
                    scores.append(self._score(system, point))
            if state.search is not None:
                state.search.tell(scores)
            self.checkpoints.save(state)
            self.check(None)

    def _next_points(self) -> list[Point]:
        if self.state.search is not None:
            return self.state.search.ask()
        return [(0.0,)] if self.state.best is None else []

    def _score(self, system: FoldSystem, point: Point) -> float:
        """The score of a kernel's best noise variance; the best of all is kept."""
        state, settings = self.state, self.settings
        noise_variances = settings.noise_variances
        if self.noise_variance is not None:
            noise_variances = (self.noise_variance,)
        elif len(point) > 1:
            noise_variances = (math.exp(point[1]),)
        most = min(settings.max_basis or system.size, system.size)
        draws = candidate_draws(system.size, most, settings.candidates, settings.seed)
        with single_threaded_blas():
            validations = validate_noise(
                system, noise_variances, stop=settings.rule(), max_basis=most, draws=draws,
                heed=lambda: self.check(None),
            )  # fmt: skip
            best, score = chosen_noise(validations), min(validation.score for validation in validations)
            if state.best is None or score < min(record["score"] for record in state.history):
                state.best = choose(system, best, settings.cardinality, draws)
        record = {
            "pass": state.passes,
            "scale": math.exp(point[0]),
            "noise_variance": best.noise_variance,
            "cardinality": best.best,
            "reached": max(len(validation.scores) for validation in validations) - 1,
            "score": score,
            "noise_variances": [validation.noise_variance for validation in validations],
            "scores": [validation.score for validation in validations],
        }
        state.history.append(record)
        if self.callback is not None:
            self.callback(record)
        return score


def _held_out_decisions(
    operator: BlockedKernelOperator, best: Chosen, prototypes: FloatArray, folds: IndexArray
) -> FloatArray:
    """Decisions at each sample by the model of the other folds: (n, t)."""
    context, executor = operator.context, operator.executor
    bases, weights, intercepts = fold_arrays(best, prototypes)
    groups = split_evenly(range(context.n_blocks), executor.parallelism)
    parts = operator.submit("kfoldcolumns", fold_columns_task, (context, bases, weights, folds), groups).result()
    return np.asarray(np.concatenate(parts) + intercepts[folds])
