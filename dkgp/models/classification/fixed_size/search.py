"""The search of many classes or few: widths by a small pool, then the whole pool at the best of them, or a few of it.

One pass over the samples sums up what all classes and all penalties of a few widths need; they are cross-validated
by `whole_pool`, from these sums. The pool that judges widths is the beginning of the whole one. At the best width one
pass more has all prototypes; those that pursuit takes stand in their place where they do nearly as well. Where weights
of the classes are considered, that pass is taken with them too, and the balanced error of samples that were left out
decides. How many passes there are at most is known before the first.

The paper's search: paths of every kernel that it looks at, all cardinalities and noise variances from one pass.

The state of a run of a fixed-size LS-SVM, as its checkpoints hold it.

The best that a search has met: its hyperparameters, its path, and the models of all samples and of each fold.

Kernels with all length scales multiplied by one factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.executors.base import split_evenly
from dkgp.cluster.threads import single_threaded_blas
from dkgp.data.types import Progress
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel, kernel_from_json
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
from dkgp.solvers.checkpointing import Checkpoints

# log10 of s2 over k(x, x): of every width, and about the best of these for the whole pool.
DECADES, FINER = (-5.0, -4.0, -3.0, -2.0, -1.0, 0.0), (0.5,)
ABOUT = (-1.0, 0.0, 1.0)
# The same of every width of a grid.
GRID = tuple(0.5 * half - 3.5 for half in range(PENALTIES["grid"]))
# Of what could not be fitted, in records.
WORST = 1e300
# Weight of the squared error beside the error, in the search.
SMOOTH = 0.25
# A few prototypes are taken where their squared error is no greater than the whole pool's by more than this share. They
# are not looked for any further where it is greater by the second one after so many steps.
WORTH, HOPELESS, FIRST_STEPS = 0.1, 0.5, 200


@dataclass(frozen=True)
class _Variant:
    """A model of the best width, and the samples of each class (C,) that it errs on where they were left out."""

    best: Chosen
    wrong: IndexArray


@dataclass
class PoolSearch:
    """Passes over the data that find width, penalty and prototypes.

    `considered` are weights of the samples that may take the place of the targets' own. The callback takes a record for
    each width and for each model of the best; with it go `passes_at_most` and `seconds_left`, which no history has.
    """

    state: SearchState
    targets: Targets
    labels: Labels
    settings: FixedSizeSettings
    foreseen: ForeseenSearch
    noise_variance: float | None
    considered: FloatArray | None
    checkpoints: Checkpoints
    callback: Callable[[Any], None] | None
    check: Callable[[Progress | None], None]
    _began: float = field(default_factory=perf_counter)
    _done: float = 0.0
    _before: float = 0.0  # of an earlier process, in seconds that were foreseen

    def run(self, operator: BlockedKernelOperator, together: int) -> None:
        """Go on to the search's end, `together` widths a pass at most."""
        state, search = self.state, self.state.search
        assert search is not None
        self._before = len(state.history) * self.foreseen.width_seconds
        while search.passes < len(WIDTHS[self.settings.search]) and (points := search.ask()):
            scores: list[float] = []
            for batch in split_evenly(points, -(-len(points) // max(1, together))):
                scores += self._widths(operator, batch)
            search.tell(scores)
            self.checkpoints.save(state)
            self.check(None)
        if state.best is None:
            self._conclude(operator)
            self.checkpoints.save(state)
            self.check(None)

    def _widths(self, operator: BlockedKernelOperator, points: list[Point]) -> list[float]:
        """Scores of a few widths, by the pool's beginning."""
        state = self.state
        prototypes = state.prototypes[: self.foreseen.judging]
        scales = [math.exp(point[0]) for point in points]
        kernels = [scaled(state.start, scale) for scale in scales]
        systems = fold_systems(
            operator, prototypes, kernels, self.targets, self.settings.intercept, self._pass("search")
        )
        tried: list[list[PoolValidation]] = []
        while systems:
            tried.append(self._penalties(systems.pop(0)))
        best = [chosen_noise(validations) for validations in tried]
        models = [[prepared(prototypes, model) for model in validation.folds] for validation in best]
        wrong = self._wrong(operator, kernels, models)
        self._done += len(points) * self.foreseen.width_seconds
        for scale, validations, kept, missed in zip(scales, tried, best, wrong, strict=True):
            self._tell(scale, kept.noise_variance, len(prototypes), validations, missed, weighted=False)
        return [self._value(record) for record in self.state.history[-len(points) :]]

    def _value(self, record: dict[str, Any]) -> float:
        """Return the value that the search goes by: the error, and a quarter of the squared error, which is smooth.

        The squared error alone asks for less width than labels want: it goes on where they are certain.
        """
        of_a_mistake = 4.0 if self.targets.outputs == 1 else 8.0
        return float(record["error"] + SMOOTH * record["score"] / of_a_mistake)

    def _chosen_width(self) -> dict[str, Any]:
        """The record of the least squared error among those whose error is within one standard error of the least."""
        usable = [record for record in self.state.history if record["score"] < WORST]
        if not usable:
            raise NumericalError(
                "no width and penalty could be fitted: the prototypes depend on each other as far as float64 tells. "
                "Take fewer (`pool`), or larger `noise_variances`"
            )
        least = min(record["error"] for record in usable)
        most = least + math.sqrt(least * (1.0 - least) / self.labels.n_samples)
        return min((record for record in usable if record["error"] <= most), key=lambda record: record["score"])

    def _penalties(self, system: FoldSystem, about: float | None = None) -> list[PoolValidation]:
        """The whole pool at each penalty that there is to choose from, or at those about one."""
        given = self.settings.noise_variances
        if self.noise_variance is not None:
            given = (self.noise_variance,)
        with single_threaded_blas():
            if given is not None:
                return validate_pool(system, sorted(given), self._heed)
            scale = mean_diagonal(system) if about is None else about
            places = ABOUT if about is not None else GRID if self.settings.search == "grid" else DECADES

            def at(places: Sequence[float]) -> list[PoolValidation]:
                return validate_pool(system, [scale * 10.0**place for place in places], self._heed)

            known = dict(zip(places, at(places), strict=True))
            if places is GRID:
                return list(known.values())
            return spread_noise(lambda place: known.get(place) or at([place])[0], places, FINER, chosen_noise)

    def _conclude(self, operator: BlockedKernelOperator) -> None:
        """All prototypes at the best width, with the samples' weights and with those that are considered."""
        state, width = self.state, self._chosen_width()
        scale, noise_variance = width["scale"], width["noise_variance"]
        # A search that ended early leaves nothing but passes of all prototypes.
        weighings = 1 if self.considered is None else 2
        self._before = self.foreseen.seconds - self._done - weighings * self.foreseen.pool_seconds
        variants = [self._variant(operator, scale, noise_variance, self.targets)]
        if self.considered is not None:
            weighted = replace(self.targets, weights=self.considered)
            variants.append(self._variant(operator, scale, noise_variance, weighted))
        errors = [self.balanced(variant.wrong) for variant in variants]
        state.weighted = len(errors) > 1 and errors[1] < errors[0]
        state.best = variants[state.weighted].best

    def _variant(
        self, operator: BlockedKernelOperator, scale: float, noise_variance: float, targets: Targets
    ) -> _Variant:
        state, settings = self.state, self.settings
        kernel = scaled(state.start, scale)
        phase = self._pass("all prototypes")
        system = fold_systems(operator, state.prototypes, [kernel], targets, settings.intercept, phase)[0]
        validations = self._penalties(system, noise_variance)
        pool = chosen_noise(validations)
        few, paths = self._few(system, pool)
        best = few or whole(system, pool)
        models = [prepared(state.prototypes, model) for model in best.folds]
        wrong = self._wrong(operator, [kernel], [models])[0]
        self._done += self.foreseen.pool_seconds
        weighted = targets.weights is not self.targets.weights
        self._tell(
            scale, best.noise_variance, best.cardinality, paths if few else validations, wrong, weighted=weighted
        )
        return _Variant(best, wrong)

    def _few(self, system: FoldSystem, pool: PoolValidation) -> tuple[Chosen | None, list[Validation]]:
        """The model of a few prototypes that pursuit takes, None where the whole pool does better; and its paths."""
        settings, competes = self.settings, self.settings.takes_whole_pool
        most = min(settings.max_basis or system.size, system.size)
        most = min(most, MOST_STEPS) if competes else most
        draws = candidate_draws(system.size, most, settings.candidates, settings.seed)
        given: tuple[float, ...] | None = settings.noise_variances
        if self.noise_variance is not None:
            given = (self.noise_variance,)
        with single_threaded_blas():
            if competes:
                first = min(most, FIRST_STEPS)
                tried = validate(
                    system, pool.noise_variance, stop=settings.rule(), max_basis=first, draws=draws, heed=self._heed
                )
                if tried.score > (1.0 + HOPELESS) * pool.score:
                    return None, []
            found: list[Validation] = validate_noise(
                system, given, stop=settings.rule(), max_basis=most, draws=draws, heed=self._heed
            )
            best = chosen_noise(found)
            if competes and best.score > (1.0 + WORTH) * pool.score:
                return None, []
            return choose(system, best, settings.cardinality, draws), found

    def _wrong(self, operator: BlockedKernelOperator, kernels: list[Kernel], models: list[list[Any]]) -> IndexArray:
        """Samples of each class that models of other folds err on: (q, C)."""
        context, codes = operator.context, self.labels.codes.astype(np.intp)
        arguments = (
            context, tuple(kernels), tuple(map(tuple, models)), self.targets.folds, codes, self.labels.n_classes
        )  # fmt: skip
        groups = split_evenly(range(context.n_blocks), operator.executor.parallelism)
        parts = operator.submit("kfolderrors", fold_errors_task, arguments, groups).result()
        return np.asarray(np.sum(parts, axis=0), dtype=np.intp)

    def balanced(self, wrong: IndexArray) -> float:
        """Mean over classes of the share that is erred on."""
        counts = self.labels.counts()
        return float(np.mean(wrong[counts > 0] / counts[counts > 0]))

    def _pass(self, what: str) -> str:
        self.state.passes += 1
        return f"{what}, pass {self.state.passes} of {self.foreseen.passes} at most"

    def _heed(self) -> None:
        self.check(None)

    def _tell(
        self,
        scale: float,
        noise_variance: float,
        prototypes: int,
        validations: Sequence[Scored],
        wrong: IndexArray,
        *,
        weighted: bool,
    ) -> None:
        state = self.state
        record = {
            "pass": state.passes,
            "scale": scale,
            "width": scale**-0.5,
            "noise_variance": noise_variance,
            "cardinality": prototypes,
            "score": min(WORST, *(validation.score for validation in validations)),
            "error": float(wrong.sum() / self.labels.n_samples),
            "balanced_error": self.balanced(wrong),
            "weighted": weighted,
            "noise_variances": [validation.noise_variance for validation in validations],
            "scores": [min(WORST, validation.score) for validation in validations],
        }
        state.history.append(record)
        if self.callback is not None:
            spent = perf_counter() - self._began
            remaining = max(0.0, self.foreseen.seconds - self._before - self._done)
            coming = {
                "passes_at_most": self.foreseen.passes,
                "seconds_left": remaining * spent / self._done if self._done else None,
            }
            self.callback({**record, **coming})


def prepared(prototypes: FloatArray, model: PathModel) -> tuple[FloatArray, FloatArray, FloatArray]:
    """A model as tasks take it: prototypes, weights, intercept."""
    return prototypes[model.order], model.weights, model.intercept


def whole(system: FoldSystem, pool: PoolValidation) -> Chosen:
    """The model of all prototypes."""
    with single_threaded_blas():
        model, _ = pool_model(system, pool.noise_variance)
    size = len(model.order)
    path = [{"cardinality": size, "score": pool.score, "std": pool.spread}]
    return Chosen(
        system.kernel, pool.noise_variance, size, size, pool.score, path, False, model, pool.folds, whole=True
    )


@dataclass(frozen=True)
class PathSearch:
    """Passes over the data that score the kernels which a search asks for; without one, the kernel as it starts."""

    state: SearchState
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


@dataclass
class SearchState:
    """Everything that a checkpoint holds."""

    start: Kernel
    started_by: str
    prototypes: FloatArray
    indices: IndexArray | None
    search: RecordedSearch | None
    folds: int
    labels: str  # their digest
    passes: int = 0
    best: Chosen | None = None
    weighted: bool = False  # by the weights that were considered
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
            "weighted": self.weighted,
            "history": self.history,
        }

    def restore(self, metadata: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Go on from what a checkpoint holds, but for the start, which is given."""
        self.passes, self.history = int(metadata["iteration"]), list(metadata["history"])
        self.weighted = bool(metadata.get("weighted", False))
        if self.search is not None:
            self.search.restore(metadata["search"])
        self.best = None if metadata["best"] is None else Chosen.restored(metadata["best"], arrays, self.folds)


@dataclass(frozen=True)
class Chosen:
    """A kernel with the best of its noise variances, and the cardinality by rule.

    `best` is the cardinality of the best score, which a search goes by; `path` has score and standard deviation over
    folds by cardinality; `stopped` where rule (38) ended it. `model` is of all samples, by the sums: what it chooses
    counts, not its weights, unless it is of the `whole` pool. `folds` are of all but each fold.
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
        """Everything but the models, as JSON."""
        plain = {name: value for name, value in vars(self).items() if name not in ("model", "folds")}
        return {**plain, "kernel": self.kernel.to_json()}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The models."""
        arrays: dict[str, NDArray[Any]] = {}
        for name, model in zip(("model", *map(str, range(len(self.folds)))), (self.model, *self.folds), strict=True):
            arrays |= {f"{name} order": model.order, f"{name} weights": model.weights}
            arrays |= {f"{name} intercept": model.intercept}
        return arrays

    @classmethod
    def restored(cls, metadata: dict[str, Any], arrays: dict[str, NDArray[Any]], folds: int) -> Chosen:
        """The same of what a checkpoint holds."""
        models = [
            PathModel(*(arrays[f"{name} {part}"] for part in ("order", "weights", "intercept")))
            for name in ("model", *map(str, range(folds)))
        ]
        fields = {**metadata, "kernel": kernel_from_json(metadata["kernel"])}
        return cls(**fields, model=models[0], folds=tuple(models[1:]))


def choose(system: FoldSystem, validation: Validation, rule: str, draws: Draws | None) -> Chosen:
    """Take the cardinality by rule, and go its paths once more."""
    k = chosen_cardinality(validation, rule)
    models = []
    for fold in (None, *range(system.folds)):
        path = Path(system, validation.noise_variance, fold, draws)
        path.advance(k)
        models.append(path.model(k))
    spread = validation.spread
    path_records = [
        {"cardinality": cardinality, "score": float(score), "std": float(spread[cardinality])}
        for cardinality, score in enumerate(validation.scores)
    ]
    return Chosen(
        system.kernel, validation.noise_variance, k, validation.best, validation.score, path_records,
        validation.stopped, models[0], tuple(models[1:]),
    )  # fmt: skip


def fold_arrays(best: Chosen, prototypes: NDArray[np.float64]) -> tuple[Any, Any, Any]:
    """Prototypes, weights and intercepts of the folds' models."""
    return (
        tuple(prototypes[model.order] for model in best.folds),
        tuple(model.weights for model in best.folds),
        np.stack([model.intercept for model in best.folds]),
    )


def scaled(kernel: Kernel, factor: float) -> Kernel:
    """The kernel with all inverse squared length scales multiplied by one factor; `InputError` where it has none."""
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
