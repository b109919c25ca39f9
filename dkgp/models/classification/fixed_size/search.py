"""The search of a fixed-size LS-SVM: passes over the samples, each scoring the kernels that a plan asks for.

One pass sums up the fold Grams of a few kernels. All noise variances, cardinalities and classes are cross-validated
from these sums (`validation`). `PathSearch` is the paper's: the score of a kernel is that of the best path of
prototypes. `PoolSearch` judges each width by the whole pool, or by the beginning of a large one. At the best width one
more pass has all prototypes; those that pursuit takes stand in their place where they do nearly as well. The most
passes that it takes are known before the first.

When the work should finish (`dkgp.limits`), a search tries no more widths and penalties and concludes with the best.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.executors.base import split_evenly
from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel, kernel_from_json
from dkgp.limits import Clock, elapsed_clock, seconds_to_finish, should_finish
from dkgp.models.classification.fixed_size.paths import Draws, Path, PathModel, candidate_draws
from dkgp.models.classification.fixed_size.plans import Point, RecordedSearch
from dkgp.models.classification.fixed_size.settings import (
    MOST_STEPS,
    PENALTIES,
    WIDTHS,
    FixedSizeSettings,
    ForeseenSearch,
)
from dkgp.models.classification.fixed_size.system import FoldSystem, Targets, fold_systems
from dkgp.models.classification.fixed_size.validation import (
    PoolValidation,
    Scored,
    Validation,
    chosen_cardinality,
    chosen_noise,
    mean_diagonal,
    pool_model,
    spread_noise,
    validate,
    validate_noise,
    validate_pool,
)
from dkgp.models.classification.labels import Labels
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.cross.folds import fold_errors_task
from dkgp.solvers.driver import Iteration
from dkgp.solvers.stopping import StopReason

# log10 of s2 over k(x, x) for each width, and the steps about the best of them.
DECADES, FINER = (-5.0, -4.0, -3.0, -2.0, -1.0, 0.0), (0.5,)
# log10 of the whole pool's s2 over the best of its width. Each takes a factor of all prototypes for each fold.
ABOUT, ABOUT_STEP = (-0.5, 0.0, 0.5), 0.5
# The same of every width of a grid.
GRID = tuple(0.5 * half - 3.5 for half in range(PENALTIES["grid"]))
# Score of a kernel that could not be fitted, in records.
WORST = 1e300
# Weight of the squared error beside the error, in the search.
SMOOTH = 0.25
# A few prototypes are taken where their squared error is no greater than the whole pool's by more than this share. They
# are not looked for any further where it is greater by the second one after so many steps.
WORTH, HOPELESS, FIRST_STEPS = 0.1, 0.5, 200
# Penalties of three or more classes that are this share behind on the first fold are not fitted to the other folds, if
# a fold has so many samples. Between folds of 1,000 samples, ratios of two penalties' errors differ by 0.01 for 26
# classes, and by up to 0.2 for two, one of them rare.
BEHIND, TELLING = 0.05, 500


@dataclass(frozen=True)
class Chosen:
    """The best model so far: its hyperparameters, its path, and its fits to all samples and to all but each fold.

    `cardinality` is that of the rule and `best` that of the best score, which a plan goes by. `path` has score and
    standard deviation over folds by cardinality; `stopped` where rule (38) ended it. `model` is of all samples, by the
    sums: its choice counts, not its weights, unless it is of the `whole` pool. `folds` are of all but each fold.
    """

    kernel: Kernel
    noise_variance: float
    cardinality: int
    best: int
    score: float
    path: list[dict[str, float]]
    stopped: bool
    model: PathModel
    folds: tuple[PathModel, ...]
    whole: bool = False

    def metadata(self) -> dict[str, Any]:
        """Return everything but the models, as JSON."""
        plain = {name: value for name, value in vars(self).items() if name not in ("model", "folds")}
        return {**plain, "kernel": self.kernel.to_json()}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the models, by fold and part."""
        models = {"model": self.model, **{str(fold): model for fold, model in enumerate(self.folds)}}
        return {f"{name} {part}": getattr(model, part) for name, model in models.items() for part in _PARTS}

    @classmethod
    def restored(cls, metadata: dict[str, Any], arrays: Mapping[str, NDArray[Any]], folds: int) -> Chosen:
        """Rebuild from a checkpoint."""
        model, *others = (
            PathModel(*(arrays[f"{name} {part}"] for part in _PARTS)) for name in ("model", *map(str, range(folds)))
        )
        fields = {**metadata, "kernel": kernel_from_json(metadata["kernel"])}
        return cls(**fields, model=model, folds=tuple(others))


_PARTS = ("order", "weights", "intercept")


def choose(system: FoldSystem, validation: Validation, rule: str, draws: Draws | None) -> Chosen:
    """Take the cardinality by rule, and go its paths once more."""
    k = chosen_cardinality(validation, rule)
    models = []
    for fold in (None, *range(system.folds)):
        path = Path(system, validation.noise_variance, fold, draws)
        path.advance(k)
        models.append(path.model(k))
    records = [
        {"cardinality": cardinality, "score": float(score), "std": float(spread)}
        for cardinality, (score, spread) in enumerate(zip(validation.scores, validation.spread, strict=True))
    ]
    return Chosen(
        system.kernel, validation.noise_variance, k, validation.best, validation.score, records, validation.stopped,
        models[0], tuple(models[1:]),
    )  # fmt: skip


def choose_whole(system: FoldSystem, pool: PoolValidation) -> Chosen:
    """Fit all prototypes to all samples."""
    with single_threaded_blas():
        model, _ = pool_model(system, pool.noise_variance)
    size = len(model.order)
    path = [{"cardinality": size, "score": pool.score, "std": pool.spread}]
    return Chosen(
        system.kernel, pool.noise_variance, size, size, pool.score, path, False, model, pool.folds, whole=True
    )


@dataclass(eq=False, kw_only=True)
class KernelSearch(Iteration, ABC):
    """Passes over the data that score the kernels of a plan; without a plan, the kernel as it starts.

    Parameters
    ----------
    start, started_by : Kernel, str
        The kernel whose length scales are multiplied, and its origin.
    prototypes, indices : (M, d) float64, (M,) int or None
        The pool.
    plan : RecordedSearch or None
    noise_variance : float or None
        The only one that is looked at.
    together : int
        Kernels of a pass at most.
    callback : callable or None
        Takes each record of the history.
    heed : callable
        Raises `InterruptedRunError` where the run is to end.
    """

    saved = ("prototypes", "indices")
    counted = ("iteration", "labels_digest", "started_by", "history")
    save_now = True

    operator: BlockedKernelOperator
    targets: Targets
    labels: Labels
    labels_digest: str
    settings: FixedSizeSettings
    noise_variance: float | None
    start_kernel: Kernel
    started_by: str
    prototypes: FloatArray
    indices: IndexArray | None
    plan: RecordedSearch | None
    together: int
    callback: Callable[[Any], None] | None
    heed: Callable[[], None]
    best: Chosen | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    ended_early: bool = False

    def metadata(self) -> dict[str, Any]:
        """Return the JSON of a checkpoint; `iteration` counts passes."""
        document = super().metadata()
        return {
            **document,
            "labels": document.pop("labels_digest"),
            "start": self.start_kernel.to_json(),
            "search": None if self.plan is None else self.plan.state(),
            "best": None if self.best is None else self.best.metadata(),
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of a checkpoint."""
        return super().arrays() | ({} if self.best is None else self.best.arrays())

    def restore(self, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> None:
        """Take over a checkpoint; the first versions had no labels."""
        super().restore(arrays, {"labels_digest": self.labels_digest, **metadata})
        if self.plan is not None:
            self.plan.restore(metadata["search"])
        if metadata["best"] is not None:
            self.best = Chosen.restored(metadata["best"], arrays, self.settings.folds)

    def stop(self) -> StopReason | None:
        """Return the end, once the best model is known and the plan asks for no more points."""
        ended = self.best is not None and not self._points()
        return StopReason("search", True, f"{self.iteration} passes") if ended else None

    def advance(self) -> None:
        """Score the points that the plan asks for, `together` kernels a pass; after the last of them, conclude."""
        points, scores = self._points(), list[float]()
        if not points:
            self._conclude()
            return
        for batch in split_evenly(points, -(-len(points) // max(1, self.together))):
            if scores and self._ends_early():
                break
            scores += self._scores(batch, [scaled(self.start_kernel, math.exp(point[0])) for point in batch])
        if self.plan is not None:
            self.plan.tell([*scores, *[WORST] * (len(points) - len(scores))])

    def _ends_early(self) -> bool:
        """Return True once the search has a usable record and should finish."""
        some = any(record["score"] < WORST for record in self.history)
        self.ended_early = self.ended_early or (some and self._is_out_of_time())
        return self.ended_early

    def _is_out_of_time(self) -> bool:
        return should_finish()

    @abstractmethod
    def _points(self) -> list[Point]:
        """Return the points to score next; none at the end."""

    @abstractmethod
    def _scores(self, points: list[Point], kernels: list[Kernel]) -> list[float]:
        """Score kernels in one pass, and record them; fewer if the search ends early."""

    def _conclude(self) -> None:
        """Find the best model after the last point."""
        raise AssertionError("every pass finds one")

    def _noise_variances(self, point: Point = ()) -> tuple[float, ...] | None:
        """Return the noise variances to choose among: the known one, the point's, or the settings', or None."""
        if self.noise_variance is not None:
            return (self.noise_variance,)
        return (math.exp(point[1]),) if len(point) > 1 else self.settings.noise_variances

    def _draws(self, system: FoldSystem, most: int) -> Draws | None:
        return candidate_draws(system.size, most, self.settings.candidates, self.settings.seed)

    def _record(self, record: dict[str, Any], **shown: Any) -> None:
        """Add to the history; `shown` is for the callback alone."""
        self.history.append(record)
        if self.callback is not None:
            self.callback({**record, **shown} if shown else record)


class PathSearch(KernelSearch):
    """The paper's search: paths of every kernel, all cardinalities and noise variances from one pass."""

    def _points(self) -> list[Point]:
        if self.plan is not None:
            points = self.plan.ask()
            return [] if points and self._ends_early() else points
        return [(0.0,)] if self.best is None else []

    def _scores(self, points: list[Point], kernels: list[Kernel]) -> list[float]:
        systems = fold_systems(self.operator, self.prototypes, kernels, self.targets, self.settings.intercept)
        self.iteration += 1
        # A system is let go of before the next one is gone through.
        scores = list[float]()
        for point in points:
            if scores and self._ends_early():
                break
            scores.append(self._score(systems.pop(0), point))
        return scores

    def _score(self, system: FoldSystem, point: Point) -> float:
        """Return the score of a kernel's best noise variance; the best of all is kept."""
        settings = self.settings
        most = min(settings.max_basis or system.size, system.size)
        draws = self._draws(system, most)
        with single_threaded_blas():
            validations = validate_noise(
                system, self._noise_variances(point), stop=settings.rule(), max_basis=most, draws=draws, heed=self.heed
            )
            best, score = chosen_noise(validations), min(validation.score for validation in validations)
            if self.best is None or score < min(record["score"] for record in self.history):
                self.best = choose(system, best, settings.cardinality, draws)
        self._record(
            {
                "pass": self.iteration,
                "scale": math.exp(point[0]),
                "noise_variance": best.noise_variance,
                "cardinality": best.best,
                "reached": max(len(validation.scores) for validation in validations) - 1,
                "score": score,
                "noise_variances": [validation.noise_variance for validation in validations],
                "scores": [validation.score for validation in validations],
            }
        )
        return score


@dataclass(eq=False, kw_only=True)
class PoolSearch(KernelSearch):
    """Passes over the data that find width, penalty and prototypes, each width judged by a whole pool.

    The callback takes a record for each width and for the model of the best; with it go `passes_at_most` and
    `seconds_left`, which no history has.
    """

    foreseen: ForeseenSearch
    _clock: Clock = field(default_factory=elapsed_clock)
    _began: float = 0.0
    _done: float = 0.0
    _before: float = 0.0  # of an earlier process, in seconds that were foreseen

    def __post_init__(self) -> None:
        """Start the clock."""
        self._began = self._clock()

    def restore(self, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> None:
        """Take over a checkpoint, whose widths took time too."""
        super().restore(arrays, metadata)
        self._before = len(self.history) * self.foreseen.width_seconds

    def _points(self) -> list[Point]:
        assert self.plan is not None
        points = self.plan.ask() if self.plan.passes < len(WIDTHS[self.settings.search]) else []
        return [] if points and self._ends_early() else points

    def _is_out_of_time(self) -> bool:
        """Return True if only the time for the conclusion is left, at the measured speed."""
        spent = self._clock() - self._began
        conclusion = self.foreseen.pool_seconds * spent / self._done if self._done else 0.0
        return seconds_to_finish() <= conclusion

    def _scores(self, points: list[Point], kernels: list[Kernel]) -> list[float]:
        """Score a few widths by the pool's beginning."""
        prototypes = self.prototypes[: self.foreseen.judging]
        systems = self._systems(prototypes, kernels, self.targets, "search")
        tried: list[list[PoolValidation]] = []
        while systems and not (tried and should_finish()):
            tried.append(self._penalties(systems.pop(0)))
        points, kernels = points[: len(tried)], kernels[: len(tried)]
        best = [chosen_noise(validations) for validations in tried]
        wrong = self._wrong(kernels, [_prepared(prototypes, validation.folds) for validation in best])
        self._done += len(points) * self.foreseen.width_seconds
        for point, validations, kept, missed in zip(points, tried, best, wrong, strict=True):
            self._tell(math.exp(point[0]), kept.noise_variance, len(prototypes), validations, missed)
        return [self._value(record) for record in self.history[-len(points) :]]

    def _value(self, record: dict[str, Any]) -> float:
        """Return the value that the plan goes by: the error, and a quarter of the squared error, which is smooth.

        The squared error alone asks for less width than labels want: it goes on where they are certain.
        """
        return float(record["error"] + SMOOTH * record["score"] / of_a_mistake(self.targets.outputs))

    def _chosen_width(self) -> dict[str, Any]:
        """Return the record of least squared error whose error is within one standard error of the least."""
        usable = [record for record in self.history if record["score"] < WORST]
        if not usable:
            raise NumericalError(
                "no width and penalty could be fitted: the prototypes depend on each other as far as float64 tells. "
                "Take fewer (`pool`), or larger `noise_variances`"
            )
        least = min(record["error"] for record in usable)
        most = least + math.sqrt(least * (1.0 - least) / self.labels.n_samples)
        return min((record for record in usable if record["error"] <= most), key=lambda record: record["score"])

    def _penalties(self, system: FoldSystem, about: float | None = None) -> list[PoolValidation]:
        """Validate the whole pool at each penalty that there is to choose from, or at those about one."""
        given = self._noise_variances()
        with single_threaded_blas():
            if given is not None:
                return validate_pool(system, sorted(given), self.heed)
            scale = mean_diagonal(system) if about is None else about
            places = ABOUT if about is not None else GRID if self.settings.search == "grid" else DECADES
            finer, outward = (FINER, 1.0) if about is None else ((), ABOUT_STEP)

            leader: PoolValidation | None = None

            def at(places: Sequence[float]) -> list[PoolValidation]:
                nonlocal leader
                noises = [scale * 10.0**place for place in places]
                found = validate_pool(system, noises, self.heed, margin=self._margin(), leader=leader)
                leader = min([*found, *([leader] if leader else [])], key=lambda validation: validation.score)
                return found

            known = dict(zip(places, at(places), strict=True))
            if places is GRID:
                return list(known.values())
            return spread_noise(lambda place: known.get(place) or at([place])[0], places, finer, chosen_noise, outward)

    def _margin(self) -> float:
        """Return the lag on the first fold that ends a penalty's validation; infinite if one fold tells too little."""
        tells = self.targets.outputs > 1 and np.bincount(self.targets.folds).min() >= TELLING
        return BEHIND if tells else math.inf

    def _conclude(self) -> None:
        """Fit all prototypes at the best width, or the few of them that do nearly as well."""
        width = self._chosen_width()
        # A search that ended early leaves only the pass of all prototypes.
        self._before = self.foreseen.seconds - self._done - self.foreseen.pool_seconds
        kernel = scaled(self.start_kernel, width["scale"])
        system = self._systems(self.prototypes, [kernel], self.targets, "all prototypes")[0]
        validations = self._penalties(system, width["noise_variance"])
        pool = chosen_noise(validations)
        few, paths = self._few(system, pool)
        self.best = few or choose_whole(system, pool)
        wrong = self._wrong([kernel], [_prepared(self.prototypes, self.best.folds)])[0]
        self._done += self.foreseen.pool_seconds
        tried = paths if few else validations
        self._tell(width["scale"], self.best.noise_variance, self.best.cardinality, tried, wrong)

    def _few(self, system: FoldSystem, pool: PoolValidation) -> tuple[Chosen | None, list[Validation]]:
        """Return the model of a few prototypes that pursuit takes, None where the whole pool does better; its paths."""
        settings, competes = self.settings, self.settings.takes_whole_pool
        most = min(settings.max_basis or system.size, system.size)
        most = min(most, MOST_STEPS) if competes else most
        draws = self._draws(system, most)
        options: dict[str, Any] = {"stop": settings.rule(), "draws": draws, "heed": self.heed}
        if competes and should_finish():
            self.ended_early = True
            return None, []
        with single_threaded_blas():
            if competes:
                tried = validate(system, pool.noise_variance, max_basis=min(most, FIRST_STEPS), **options)
                if tried.score > (1.0 + HOPELESS) * pool.score:
                    return None, []
                if should_finish():
                    self.ended_early = True
                    return None, []
            paths = validate_noise(system, self._noise_variances(), max_basis=most, **options)
            self.ended_early = self.ended_early or should_finish()
            best = chosen_noise(paths)
            if competes and best.score > (1.0 + WORTH) * pool.score:
                return None, []
            return choose(system, best, settings.cardinality, draws), paths

    def _systems(self, prototypes: FloatArray, kernels: list[Kernel], targets: Targets, phase: str) -> list[FoldSystem]:
        """Sum up the systems of a few kernels in the next pass."""
        self.iteration += 1
        phase = f"{phase}, pass {self.iteration} of at most {self.foreseen.passes}"
        return fold_systems(self.operator, prototypes, kernels, targets, self.settings.intercept, phase)

    def _wrong(self, kernels: list[Kernel], models: list[tuple[Any, ...]]) -> IndexArray:
        """Count the samples of each class that the models of the other folds err on, by kernel: (q, C)."""
        operator, context, codes = self.operator, self.operator.context, self.labels.codes.astype(np.intp)
        arguments = (context, tuple(kernels), tuple(models), self.targets.folds, codes, self.labels.n_classes)
        groups = split_evenly(range(context.n_blocks), operator.executor.parallelism)
        parts = operator.submit("kfolderrors", fold_errors_task, arguments, groups).result()
        return np.asarray(np.sum(parts, axis=0), dtype=np.intp)

    def _error(self, wrong: IndexArray) -> float:
        """Return the share of wrong samples, each counted by the mean weight of its class."""
        if self.targets.weights is None:
            return float(wrong.sum() / self.labels.n_samples)
        counts, totals = self.labels.counts(), np.bincount(self.labels.codes, self.targets.weights)
        return float(np.sum(totals * wrong / np.maximum(counts, 1)) / totals.sum())

    def _balanced(self, wrong: IndexArray) -> float:
        """Return the mean over classes of the share of wrong samples."""
        counts = self.labels.counts()
        return float(np.mean(wrong[counts > 0] / counts[counts > 0]))

    def _tell(
        self,
        scale: float,
        noise_variance: float,
        prototypes: int,
        validations: Sequence[Scored],
        wrong: IndexArray,
    ) -> None:
        spent = self._clock() - self._began
        remaining = max(0.0, self.foreseen.seconds - self._before - self._done)
        self._record(
            {
                "pass": self.iteration,
                "scale": scale,
                "width": scale**-0.5,
                "noise_variance": noise_variance,
                "cardinality": prototypes,
                "score": min(WORST, *(validation.score for validation in validations)),
                "error": self._error(wrong),
                "balanced_error": self._balanced(wrong),
                "weighted": self.targets.weights is not None,
                "noise_variances": [validation.noise_variance for validation in validations],
                "scores": [min(WORST, validation.score) for validation in validations],
            },
            passes_at_most=self.foreseen.passes,
            seconds_left=remaining * spent / self._done if self._done else None,
        )


def _prepared(prototypes: FloatArray, models: Sequence[PathModel]) -> tuple[Any, ...]:
    """Return models as tasks take them: prototypes, weights and intercept of each."""
    return tuple((prototypes[model.order], model.weights, model.intercept) for model in models)


def of_a_mistake(outputs: int) -> float:
    """Return the squared error of a decision for a wrong class: of signs, one for two classes, or one a class."""
    return 4.0 if outputs == 1 else 8.0


def scaled(kernel: Kernel, factor: float) -> Kernel:
    """Multiply all inverse squared length scales of a kernel by one factor; `InputError` where it has none."""
    if factor == 1.0:
        return kernel
    parameters = kernel.parameters()
    scales = [item.name.split(".")[-1] == "gamma" for item in parameters]
    if not any(scales):
        raise InputError(
            f"the kernel {kernel.type_name} has no length scale to search for; choose `search` none, or another kernel"
        )
    return kernel.with_parameters(
        [item.value * factor if is_scale else item.value for item, is_scale in zip(parameters, scales, strict=True)]
    )
