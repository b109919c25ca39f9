"""Training of a fixed-size LS-SVM: a pool of prototypes, a search in passes over the data, and a fit of what it chose.

Each pass sums up fold Grams of a few kernels; noise variances and cardinalities are then cross-validated without the
samples (sections 4.4 and 4.5 of Karsmakers et al. 2011). The prototypes that the best of them takes are fitted to all
samples anew, by triangles; decisions that were not fitted to, those of each fold by the model of the others, tell the
error and calibrate probabilities.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.executors.base import BlockExecutor, split_evenly
from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset
from dkgp.data.types import Progress, ProgressCallback
from dkgp.errors import InputError, InterruptedRunError
from dkgp.kernels import Kernel, fold_white, kernel_from_json
from dkgp.models.classification.calibration import Calibration, fit_calibration
from dkgp.models.classification.fixed_size.annealing import AnnealingSearch
from dkgp.models.classification.fixed_size.chosen import Chosen, choose, fold_arrays
from dkgp.models.classification.fixed_size.fit import FixedSizeModel, fit_fixed_size
from dkgp.models.classification.fixed_size.paths import candidate_draws
from dkgp.models.classification.fixed_size.search import ProfileSearch, Search
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.fixed_size.start import start_kernel
from dkgp.models.classification.fixed_size.system import FoldSystem, Targets, fold_systems
from dkgp.models.classification.fixed_size.validation import chosen_noise, validate_noise
from dkgp.models.classification.labels import Labels, decided, stratified_folds
from dkgp.models.classification.prototypes import choose_prototypes
from dkgp.models.classification.scaling import scaled
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES
from dkgp.operators.cross.folds import fold_columns_task
from dkgp.operators.inputs import centre_of
from dkgp.solvers import Checkpointing
from dkgp.solvers.checkpointing import Checkpoints

__all__ = ["TrainedFixedSize", "described", "train_fixed_size"]

# Kernels whose Grams are summed in one pass.
TOGETHER = 3
# log s2 that annealing starts at.
START_NOISE = math.log(0.1)


@dataclass(frozen=True)
class TrainedFixedSize:
    """A fixed-size LS-SVM, and how it came about.

    Attributes
    ----------
    model : FixedSizeModel
    classes : tuple of str
    calibration : Calibration or None
        Of decisions to probabilities, by cross-validated decisions.
    path : list of dict
        cardinality, score (mean squared error of cross-validation) and std (over folds) of the best kernel and noise.
    indices : (k,) int or None
        Which samples the prototypes are, in the order of choice; None where they are none.
    summary : dict
        n, d, classes, method, pool, cardinality, score, misclassification (of cross-validation), seconds by part and
        more.
    history : list of dict
        What the search looked at: pass, scale, noise_variance, cardinality, score.
    """

    model: FixedSizeModel
    classes: tuple[str, ...]
    calibration: Calibration | None
    path: list[dict[str, float]]
    indices: IndexArray | None
    summary: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class _State:
    """Everything that a checkpoint holds."""

    start: Kernel
    started_by: str
    prototypes: FloatArray
    indices: IndexArray | None
    search: Search | None
    folds: int
    passes: int = 0
    best: Chosen | None = None
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def iteration(self) -> int:
        """Passes done."""
        return self.passes

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays of a checkpoint."""
        found: dict[str, NDArray[Any]] = {"prototypes": self.prototypes}
        if self.indices is not None:
            found["indices"] = self.indices
        return found if self.best is None else found | self.best.arrays()

    def metadata(self) -> dict[str, Any]:
        """The rest, in plain JSON types."""
        return {
            "iteration": self.passes,
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
    dataset: Dataset,
    labels: Labels,
    settings: FixedSizeSettings,
    executor: BlockExecutor,
    *,
    kernel: Kernel | None = None,
    noise_variance: float | None = None,
    weights: FloatArray | None = None,
    search: Search | None = None,
    together: int = TOGETHER,
    checkpointing: Checkpointing | None = None,
    callback: Callable[[dict[str, Any]], None] | None = None,
    within: ProgressCallback | None = None,
    interrupted: Callable[[], bool] | None = None,
    coordinator_input_bytes: int = DEFAULT_COORDINATOR_INPUT_BYTES,
) -> TrainedFixedSize:
    """Train a fixed-size LS-SVM.

    Parameters
    ----------
    dataset : Dataset
        Standardised inputs are read from it by whoever needs them.
    labels : Labels
        Of its samples.
    settings : FixedSizeSettings
    executor : BlockExecutor
    kernel : Kernel, optional
        Where the search for the scale of its length scales starts. By default the marginal likelihood of a subset
        tells, or the median distance (`dkgp.models.classification.fixed_size.start`).
    noise_variance : float, optional
        s2 = 1 / gamma_K, if it is known; no other is looked at.
    weights : (n,) float64, optional
        D: what each sample counts, of mean one.
    search : Search, optional
        In place of the settings' own; of coordinates log scale, or log scale and log s2.
    together : int
        Kernels of a pass over the data at most; each takes memory, and no bit depends on it.
    checkpointing : Checkpointing, optional
        A checkpoint follows each pass.
    callback : callable, optional
        Called with each record of the history.
    within, interrupted
        See `dkgp.solvers.solve`.
    coordinator_input_bytes : int
        See `BlockedKernelOperator`.

    Raises
    ------
    InputError
        A class rarer than the folds, or settings, kernels and weights that do not fit.
    NumericalError
        See `fit_fixed_size`.
    CheckpointError
        A checkpoint of another run.
    InterruptedRunError
        As was wished; passes that were done are saved.
    """
    _check(dataset, labels, noise_variance, weights)
    timings, began = {}, time.perf_counter()

    def lap(part: str) -> None:
        nonlocal began
        timings[part], began = round(time.perf_counter() - began, 3), time.perf_counter()

    folds = stratified_folds(labels, settings.folds, settings.seed)
    targets = Targets(labels.signs(), folds.astype(np.intp), settings.folds, weights)
    # Noise of a kernel's own is what a fit takes off, not what it predicts.
    given, white = (None, 0.0) if kernel is None else fold_white(kernel, 0.0)
    if noise_variance is None and white > 0.0:
        noise_variance = white
    state: _State | None = None
    checkpoints = Checkpoints(checkpointing, described(settings, given, noise_variance, weights, search), dict)

    def heed(progress: Progress | None) -> None:
        if interrupted is not None and interrupted():
            where = None if checkpoints.saved_iteration is None else checkpoints.url
            kept = (
                "nothing was saved" if where is None else f"{checkpoints.saved_iteration} passes are saved in {where}"
            )
            raise InterruptedRunError(f"interrupted in the search; {kept}", where)

    found = checkpoints.latest()
    options = {"coordinator_input_bytes": coordinator_input_bytes}
    if found is not None:
        held = found.metadata["state"]
        start, started_by = kernel_from_json(held["start"]), str(held["started_by"])
    elif given is not None:
        start, started_by = given, "given"
    else:
        start, started_by = start_kernel(dataset, labels, isotropic=settings.isotropic, seed=settings.seed)
    lap("start")
    entries = 0
    with BlockedKernelOperator(start, 1.0, dataset, executor, **options) as operator, operator.watched(heed, within):
        if found is not None:
            prototypes, indices = found.arrays["prototypes"], found.arrays.get("indices")
        else:
            indices, prototypes = choose_prototypes(
                settings.prototypes, operator, settings.pool, settings.seed, targets=targets.signs
            )
        lap("prototypes")
        own = search if search is not None else _search(settings, noise_variance)
        state = _State(start, started_by, prototypes, indices, own, settings.folds)
        if found is not None:
            state.restore(found.metadata["state"], found.arrays)
        _search_passes(operator, state, targets, settings, noise_variance, together, checkpoints, callback, heed)
        entries += operator.kernel_evaluations
        lap("search")
    best = state.best
    assert best is not None
    with BlockedKernelOperator(best.kernel, best.noise_variance, dataset, executor, **options) as operator:
        with operator.watched(heed, within):
            order = best.model.order if len(best.model.order) else np.zeros(1, dtype=np.intp)
            own_intercept = settings.intercept == "first" or _intercept_chosen(settings, best)
            if len(best.model.order):
                fitted, level = fit_fixed_size(
                    operator, prototypes[order], targets.signs, best.noise_variance, intercept=own_intercept,
                    weights=weights,
                )  # fmt: skip
            else:
                # Inputs that are all the same tell nothing: the mean, and a prototype of no weight.
                fitted, level = np.zeros((1, targets.outputs)), best.model.intercept
            lap("fit")
            decisions = _held_out_decisions(operator, best, prototypes, targets.folds)
        entries += operator.kernel_evaluations
        centre = centre_of(dataset)
    lap("decisions")
    model = FixedSizeModel(best.kernel, best.noise_variance, prototypes[order], fitted, level, centre)
    calibration = fit_calibration(decisions, labels.codes, weights) if settings.probability else None
    wrong = decided(decisions) != labels.codes
    summary = {
        "n": dataset.n_samples,
        "d": dataset.n_features,
        "classes": list(labels.classes),
        "method": "fixed-size",
        "prototypes": settings.prototypes,
        "pool": len(prototypes),
        "cardinality": len(model.prototypes),
        "best_cardinality": best.best,
        "stopped": best.stopped,
        "score": best.score,
        "misclassification": float(np.average(wrong, weights=weights)),
        "noise_variance": best.noise_variance,
        "started_by": state.started_by,
        "scale": state.history and min(state.history, key=lambda record: record["score"])["scale"],
        "passes": state.passes,
        "kernel_evaluations": entries,
        "seconds": round(sum(timings.values()), 3),
        "seconds_by_part": timings,
    }
    return TrainedFixedSize(
        model,
        labels.classes,
        calibration,
        best.path,
        None if indices is None else indices[order],
        summary,
        state.history,
    )


def _check(dataset: Dataset, labels: Labels, noise_variance: float | None, weights: FloatArray | None) -> None:
    if len(labels.codes) != dataset.n_samples:
        raise InputError(
            f"there are {len(labels.codes):,} labels; expected one for each of {dataset.n_samples:,} samples"
        )
    if noise_variance is not None and not (math.isfinite(noise_variance) and noise_variance > 0.0):
        raise InputError(f"`noise_variance` must be positive and finite; got {noise_variance}")
    if weights is not None:
        if weights.shape != (dataset.n_samples,):
            raise InputError(f"expected a weight for each of {dataset.n_samples:,} samples; got shape {weights.shape}")
        if not (np.isfinite(weights) & (weights >= 0.0)).all():
            raise InputError("weights must be finite and not negative")
        none = np.bincount(labels.codes, weights=weights, minlength=labels.n_classes) <= 0.0
        if none.any():
            name = labels.classes[int(np.argmax(none))]
            raise InputError(f"the samples of the class '{name}' have weight 0 in all; give some a positive one")


def described(
    settings: FixedSizeSettings,
    kernel: Kernel | None = None,
    noise_variance: float | None = None,
    weights: FloatArray | None = None,
    search: Search | None = None,
) -> dict[str, Any]:
    """Everything that determines what is trained, beside data and labels, in plain JSON types."""
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(settings).items()}
    digest = None if weights is None else sha256(np.ascontiguousarray(weights, dtype="<f8").tobytes()).hexdigest()
    given = {"kernel": None if kernel is None else kernel.to_json(), "noise_variance": noise_variance}
    return {**plain, **given, "weights": digest, "own_search": None if search is None else search.name}


def _search(settings: FixedSizeSettings, noise_variance: float | None) -> Search | None:
    if settings.search == "none":
        return None
    if settings.search == "annealing":
        if noise_variance is not None or settings.noise_variances is not None:
            return AnnealingSearch((0.0,), seed=settings.seed)
        return AnnealingSearch((0.0, START_NOISE), seed=settings.seed)
    return ProfileSearch(together=2)


def _search_passes(
    operator: BlockedKernelOperator,
    state: _State,
    targets: Targets,
    settings: FixedSizeSettings,
    noise_variance: float | None,
    together: int,
    checkpoints: Checkpoints,
    callback: Callable[[dict[str, Any]], None] | None,
    heed: Callable[[Progress | None], None],
) -> None:
    """Evaluate what the search asks for; without one, the kernel as it starts."""
    search = state.search
    while points := (search.ask() if search is not None else [(0.0,)] if state.best is None else []):
        scores: list[float] = []
        for some in split_evenly(points, -(-len(points) // max(1, together))):
            kernels = [scaled(state.start, math.exp(point[0])) for point in some]
            systems = fold_systems(operator, state.prototypes, kernels, targets, settings.intercept)
            state.passes += 1
            while systems:
                point, system = some[-len(systems)], systems.pop(0)
                scores.append(_evaluated(system, point, state, settings, noise_variance, callback, heed))
        if search is not None:
            search.tell(scores)
        checkpoints.save(state)
        heed(None)


def _evaluated(
    system: FoldSystem,
    point: tuple[float, ...],
    state: _State,
    settings: FixedSizeSettings,
    noise_variance: float | None,
    callback: Callable[[dict[str, Any]], None] | None,
    heed: Callable[[Progress | None], None],
) -> float:
    """The score of a kernel's best noise variance; the best of all is kept."""
    given = settings.noise_variances
    if noise_variance is not None:
        given = (noise_variance,)
    elif len(point) > 1:
        given = (math.exp(point[1]),)
    most = min(settings.max_basis or system.size, system.size)
    draws = candidate_draws(system.size, most, settings.candidates, settings.seed)
    with single_threaded_blas():
        found = validate_noise(
            system, given, stop=settings.rule(), max_basis=most,
            draws=draws,
            heed=lambda: heed(None),
        )  # fmt: skip
        best, score = chosen_noise(found), min(validation.score for validation in found)
        if state.best is None or score < min(record["score"] for record in state.history):
            state.best = choose(system, best, settings.cardinality, draws)
    record = {
        "pass": state.passes,
        "scale": math.exp(point[0]),
        "noise_variance": best.noise_variance,
        "cardinality": best.best,
        "reached": max(len(validation.scores) for validation in found) - 1,
        "score": score,
        "noise_variances": [validation.noise_variance for validation in found],
        "scores": [validation.score for validation in found],
    }
    state.history.append(record)
    if callback is not None:
        callback(record)
    return score


def _intercept_chosen(settings: FixedSizeSettings, best: Chosen) -> bool:
    """True if an intercept that competes with the prototypes was taken: then it takes one of the places."""
    return settings.intercept == "selected" and len(best.model.order) < best.cardinality


def _held_out_decisions(
    operator: BlockedKernelOperator, best: Chosen, prototypes: FloatArray, folds: IndexArray
) -> FloatArray:
    """Decisions at each sample by the model of the other folds: (n, t)."""
    context, executor = operator.context, operator.executor
    bases, weights, intercepts = fold_arrays(best, prototypes)
    groups = split_evenly(range(context.n_blocks), executor.parallelism)
    parts = operator.submit("kfoldcolumns", fold_columns_task, (context, bases, weights, folds), groups).result()
    return np.asarray(np.concatenate(parts) + intercepts[folds])
