"""Fast v-fold cross-validation of all cardinalities and all noise variances of one kernel (Algorithm 4), from its sums.

All folds go along together, so that the stopping rule (38) sees the score of each cardinality as it comes. The noise
variances are the given ones, or one a decade, and then finer about the best. No sample is read.

`validate_pool` does the same for models that take the whole pool. The sums serve every class: their targets are
right-hand sides of one matrix, A = T - G_v - s s' / w + s2 K_mm of all but a fold, which is factored once a noise
variance. That is M^3 / 3 operations, a fortieth of the eigenvectors that would serve all noise variances at once, and
there are some eight of these. Nothing is chosen one prototype at a time, so that the number of classes costs next to
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from dkgp.cluster.threads import available_cores, in_parallel
from dkgp.errors import InputError
from dkgp.kernels.compiler import cached_njit
from dkgp.limits import current_finish, should_finish
from dkgp.models.classification.fixed_size.paths import DEPENDENT, Draws, Path, PathModel
from dkgp.models.classification.fixed_size.system import FoldSystem
from dkgp.models.tuning.dense_algebra import factor, solve_factored
from dkgp.operators.base import FloatArray
from dkgp.operators.cross.folds import take_off

# Steps of all folds between two looks at the stopping rule, and the least work that threads share.
STEPS, SHARED_WORK = 16, 2_000_000
# log10 of s2 over k(x, x): where a search starts, how fine it gets, and how far it goes.
DECADES = (-4.0, -3.0, -2.0, -1.0, 0.0, 1.0)
FINER = (0.5, 0.25)
FARTHEST = (-7.0, 4.0)
# Windows without a new least score after which none is expected.
RISING = 3
# Scores of noise variances that differ by less than this share are alike.
ALIKE = 1e-3
# Squared errors of labels -1 and 1 are differences of sums: so much of them is rounding, of either sign.
ROUNDED = 1e-12


def stop_rule(text: str) -> tuple[int, float] | None:
    """Read STEPS,SHARE, or none."""
    if text.strip().lower() == "none":
        return None
    steps, _, share = text.partition(",")
    try:
        return int(steps), float(share)
    except ValueError:
        raise ValueError(f"{text!r} is no pair such as 10,0.001, and not none.") from None


@dataclass(frozen=True)
class Stop:
    """Rule (38): the score of k has moved by less than a share `eps` from the mean over the `window` before it.

    A path whose score has only risen for three windows ends as well: (38) would not end it, and nothing is to come.
    """

    window: int = 10
    eps: float = 1e-3

    def __post_init__(self) -> None:
        if self.window < 1 or math.isnan(self.eps):
            raise InputError(
                f"the stopping rule needs a window of at least 1 and a number; got {self.window} and {self.eps}"
            )

    def first(self, scores: FloatArray, at_least: int = 0) -> int | None:
        """The first cardinality of scores (k + 1,), from 0, at which it is met."""
        for k in range(max(at_least, self.window + 1), len(scores)):
            if abs(scores[k - self.window : k].mean() - scores[k]) < self.eps * abs(scores[k]):
                return k
            if self.eps > 0.0 and k >= RISING * self.window + int(np.argmin(scores[: k + 1])):
                return k
        return None


@dataclass(frozen=True)
class Validation:
    """Cross-validation of one noise variance.

    `errors` (k + 1, v) are the mean squared errors of each fold at cardinalities 0 .. k, `scores` (k + 1,) those over
    all samples, f_cv of eq. 35; `stopped` where rule (38) ended the path.
    """

    noise_variance: float
    errors: FloatArray
    scores: FloatArray
    stopped: bool

    @property
    def best(self) -> int:
        """Cardinality of the best score; from 1 on, where there is any."""
        return int(np.argmin(self.scores[1:])) + 1 if len(self.scores) > 1 else 0

    @property
    def score(self) -> float:
        """The best score."""
        return float(self.scores[self.best])

    @property
    def spread(self) -> FloatArray:
        """Standard deviation over folds of each cardinality."""
        return np.asarray(self.errors.std(axis=1, ddof=1))


def chosen_cardinality(validation: Validation, rule: str) -> int:
    """The cardinality by rule: `best`; the smallest within a `tenth` of the deviation of folds; or within its error.

    Section 4.5 of the paper has the tenth; `one-standard-error` is Hastie's, std / sqrt(folds).
    """
    if rule not in CARDINALITY_RULES:
        raise InputError(f"`cardinality` must be one of {', '.join(CARDINALITY_RULES)}; got {rule!r}")
    best = validation.best
    share = CARDINALITY_RULES[rule](validation.errors.shape[1])
    most = validation.scores[best] + share * validation.spread[best]
    return int(np.argmax(validation.scores[1 : best + 1] <= most)) + 1 if best else 0


CARDINALITY_RULES: dict[str, Callable[[int], float]] = {
    "tenth": lambda folds: 0.1,
    "best": lambda folds: 0.0,
    "one-standard-error": lambda folds: 1.0 / math.sqrt(folds),
}


class Scored(Protocol):
    """Anything that cross-validates one noise variance."""

    @property
    def noise_variance(self) -> float:
        """1 / gamma."""

    @property
    def score(self) -> float:
        """Mean squared error of left-out samples."""


S = TypeVar("S", bound=Scored)


def chosen_noise(validations: Sequence[S]) -> S:
    """The one with the most noise whose score is as good as the best but for a thousandth.

    Scores of little noise are often all alike, and the least of them an accident.
    """
    least = min(validation.score for validation in validations)
    most = least + ALIKE * abs(least) + ROUNDED
    return max(
        (validation for validation in validations if validation.score <= most),
        key=lambda validation: validation.noise_variance,
    )


def validate(
    system: FoldSystem,
    noise_variance: float,
    *,
    stop: Stop | None,
    max_basis: int,
    at_least: int = 0,
    draws: Draws | None = None,
    heed: Callable[[], None] | None = None,
) -> Validation:
    """Cross-validate all cardinalities up to `max_basis`, `at_least` of them; `heed` is called now and then."""
    paths = [Path(system, noise_variance, fold, draws) for fold in range(system.folds)]
    reached, known, met = 0, 0, None
    while True:
        upto = min(reached + STEPS, max_basis)

        def go(fold: int, upto: int = upto) -> None:
            paths[fold].advance(upto)

        shared = system.size * upto * STEPS * system.folds >= SHARED_WORK
        in_parallel(go, len(paths), None if shared else 1)
        if heed is not None:
            heed()
        reached = max(path.count for path in paths)
        errors = np.stack([_held_on(path.errors, reached + 1) for path in paths], axis=1)
        scores = errors.sum(axis=1) / system.weight.sum()
        met = None if stop is None else stop.first(scores, max(at_least, known))
        known = len(scores)
        if met is not None or reached >= max_basis or all(path.ended for path in paths) or reached < upto:
            break
        if should_finish():
            break
    last = reached if met is None else met
    used = np.where(system.weight > 0.0, system.weight, 1.0)
    return Validation(float(noise_variance), errors[: last + 1] / used, scores[: last + 1], met is not None)


def _held_on(errors: FloatArray, length: int) -> FloatArray:
    """Extend the errors of a path that has ended by its last one."""
    return np.concatenate([errors, np.full(length - len(errors), errors[-1])])


def validate_noise(
    system: FoldSystem,
    given: Sequence[float] | None,
    *,
    stop: Stop | None,
    max_basis: int,
    draws: Draws | None = None,
    heed: Callable[[], None] | None = None,
) -> list[Validation]:
    """Cross-validate given noise variances, or a grid that gets finer about the best; by growing noise variance.

    A path goes at least as far as the best one before it: it must not be worse for ending early.
    """
    leader: Validation | None = None

    def at(noise_variance: float) -> Validation:
        nonlocal leader
        far = 0 if leader is None else len(leader.scores) - 1
        found = validate(system, noise_variance, stop=stop, max_basis=max_basis, at_least=far, draws=draws, heed=heed)
        if leader is None or found.score < leader.score:
            leader = found
        return found

    if given is not None:
        values = sorted(given)
        return [at(value) for number, value in enumerate(values) if number == 0 or not should_finish()]
    scale = mean_diagonal(system)
    known: dict[float, Validation] = {}
    for place in DECADES:
        if not known or not should_finish():
            known[place] = at(scale * 10.0**place)
    return spread_noise(lambda place: known.get(place) or at(scale * 10.0**place), tuple(known), FINER, chosen_noise)


def mean_diagonal(system: FoldSystem) -> float:
    """Mean k(x, x) of the prototypes, which noise variances are looked at relative to."""
    return float(np.mean(system.ridge.diagonal()[: system.size - system.selected])) or 1.0


V = TypeVar("V")


def spread_noise(
    at: Callable[[float], V],
    first: Sequence[float],
    finer: Sequence[float],
    chosen: Callable[[Sequence[V]], V],
    outward: float = 1.0,
) -> list[V]:
    """Validate log10 noise variances: the first, farther out while the best is at an end, and finer about the best.

    Steps beyond an end are `outward` long. When the work should finish, only the first are validated. The result is
    ordered by noise variance; `chosen` returns the best.
    """
    found = {place: at(place) for place in first}

    def best() -> float:
        kept = chosen(list(found.values()))
        return next(place for place, validation in found.items() if validation is kept)

    while FARTHEST[0] < best() < FARTHEST[1] and best() in (min(found), max(found)) and not should_finish():
        place = best() + (outward if best() == max(found) else -outward)
        found[place] = at(place)
    for step in finer:
        centre = best()
        for place in (centre - step, centre + step):
            if place not in found and not should_finish():
                found[place] = at(place)
    return [found[place] for place in sorted(found)]


@dataclass(frozen=True, eq=False)
class PoolValidation:
    """Cross-validation of one noise variance.

    `errors` (v,) are the mean squared errors of each fold, `score` that over all samples, infinity where a matrix could
    not be factored; `folds` the models of all but each.
    """

    noise_variance: float
    errors: FloatArray
    score: float
    folds: tuple[PathModel, ...]

    @property
    def spread(self) -> float:
        """Standard deviation over folds."""
        return float(self.errors.std(ddof=1))


@dataclass(frozen=True, eq=False)
class _Part:
    """All that models of all samples, or of all but a fold, share at every noise variance.

    `matrix` (D, D) is the Gram of its samples, `projected` (D, t) in Fortran order, `sums` (D,) and `start` (t,) its
    right side, sums and intercept before any prototype; `weight` 1'D1.
    """

    system: FoldSystem
    fold: int | None
    matrix: FloatArray
    projected: FloatArray
    sums: FloatArray
    start: FloatArray
    weight: float

    @classmethod
    def of(cls, system: FoldSystem, fold: int | None) -> _Part:
        """Take a fold off, or none."""
        training = np.arange(system.folds) != (-1 if fold is None else fold)
        sums, weight = system.sums[training].sum(axis=0), float(system.weight[training].sum())
        targets, projected = system.targets[training].sum(axis=0), system.projected[training].sum(axis=0)
        start = targets / weight if system.centred else np.zeros(system.outputs)
        matrix = system.total
        if fold is not None:
            matrix = matrix.copy()
            take_off(system.held[fold], matrix)
        if system.centred:
            projected = projected - np.outer(sums, start)
        return cls(system, fold, matrix, np.asfortranarray(projected), sums, start, weight)

    def fitted(self, noise_variance: float, ridged: FloatArray) -> tuple[PathModel, float]:
        """The model, and its sum of squares on the fold; `ridged` (D, D) is memory for the factor."""
        system = self.system
        scaled = self.sums / self.weight
        _ridge(self.matrix, system.ridge, noise_variance, self.sums, scaled, system.centred, ridged)
        places = np.arange(system.size)
        ridged[places, places] += DEPENDENT * system.total.diagonal()
        if not np.isfinite(ridged[:, -1]).all():
            raise np.linalg.LinAlgError("not finite")
        # Its upper triangle, which is the lower one in LAPACK's order.
        if not factor(ridged.T):
            raise np.linalg.LinAlgError("not positive definite")
        weights = solve_factored(ridged.T, self.projected)
        level = self.start - self.sums @ weights / self.weight if system.centred else self.start
        squares = 0.0
        if self.fold is not None:
            # |y - K w - b|^2 of the fold, whose Gram was taken off.
            fold, image = self.fold, system.total @ weights - self.matrix @ weights
            right = system.projected[fold] - np.outer(system.sums[fold], level)
            own = system.squares[fold] - 2.0 * level * system.targets[fold] + level**2 * system.weight[fold]
            squares = float(np.sum(own) + np.sum(weights * (image - 2.0 * right)))
        if system.selected:
            return PathModel(places[:-1], weights[:-1], weights[-1]), squares
        return PathModel(places, weights, level), squares


@cached_njit(nogil=True)
def _ridge(
    matrix: FloatArray,
    ridge: FloatArray,
    noise_variance: float,
    sums: FloatArray,
    scaled: FloatArray,
    centred: bool,
    ridged: FloatArray,
) -> None:
    """Fill the upper triangle of s2 K_mm + G - s s' / w."""
    for i in range(matrix.shape[0]):
        # Rows as arrays of their own, and nothing to decide within one: compiled to vectors, in a quarter of the time.
        gram, of_ridge, share, out = matrix[i, i:], ridge[i, i:], scaled[i:], ridged[i, i:]
        if centred:
            for j in range(len(out)):
                out[j] = noise_variance * of_ridge[j] + gram[j] - sums[i] * share[j]
        else:
            for j in range(len(out)):
                out[j] = noise_variance * of_ridge[j] + gram[j]


def pool_model(system: FoldSystem, noise_variance: float, fold: int | None = None) -> tuple[PathModel, float]:
    """The model of all prototypes, fitted to all samples or all but a fold, and its sum of squares on that fold.

    `numpy.linalg.LinAlgError`: the matrix is not positive definite as far as sums can tell.
    """
    return _Part.of(system, fold).fitted(noise_variance, np.empty_like(system.total))


def validate_pool(
    system: FoldSystem,
    noise_variances: Sequence[float],
    heed: Callable[[], None] | None = None,
    *,
    margin: float = math.inf,
    leader: PoolValidation | None = None,
) -> list[PoolValidation]:
    """Cross-validate the model of all prototypes at each noise variance; `heed` is called before.

    A fold's Gram is taken off once for all of them. A noise variance goes on to the other folds only if its error on
    the first one exceeds the least, that of `leader` included, by no more than a share `margin`. The score of any other
    is the best score times that ratio, and it has no models. When the work should finish, remaining noise variances
    have an infinite score, unless no other has a finite one.
    """
    if heed is not None:
        heed()
    count = len(noise_variances)
    models: list[list[PathModel | None]] = [[None] * system.folds for _ in noise_variances]
    squares = np.full((count, system.folds), math.inf)
    used = np.where(system.weight > 0.0, system.weight, 1.0)
    is_late = current_finish()  # helper threads have no deadline of their own

    def fit(part: _Part, fold: int, number: int, ridged: FloatArray) -> None:
        with suppress(np.linalg.LinAlgError):
            models[number][fold], squares[number, fold] = part.fitted(noise_variances[number], ridged)

    def fit_all(folds: Sequence[int], numbers: Sequence[int], ends_early: bool = True) -> None:
        # The middle comes first: it is the likeliest to be of use if there is no time for the others.
        order = sorted(numbers, key=lambda number: abs(number - count / 2))

        def go(index: int) -> None:
            part, ridged = _Part.of(system, folds[index]), np.empty_like(system.total)
            for place, number in enumerate(order):
                if models[number][folds[index]] is None and not (ends_early and place and is_late()):
                    fit(part, folds[index], number, ridged)

        in_parallel(go, len(folds))
        complete = any(all(models[number][fold] is not None for fold in folds) for number in numbers)
        if ends_early and not complete and is_late():
            fit_all(folds, numbers, ends_early=False)

    def fit_first() -> None:
        part = _Part.of(system, 0)
        threads = min(available_cores(), 2 * system.folds)  # of a matrix each
        in_parallel(lambda number: fit(part, 0, number, np.empty_like(system.total)), count, threads)

    def validated(number: int) -> PoolValidation:
        folds = tuple(model for model in models[number] if model is not None)
        score = float(squares[number].sum() / system.weight.sum()) if len(folds) == system.folds else math.inf
        score = score if math.isfinite(score) else math.inf
        return PoolValidation(float(noise_variances[number]), squares[number] / used, score, folds)

    if math.isinf(margin):
        fit_all(range(system.folds), range(count))
        return [validated(number) for number in range(count)]
    fit_first()
    errors = squares[:, 0] / used[0]
    found: dict[int, PoolValidation] = {}
    ahead = leader if leader is not None and math.isfinite(leader.score) else None
    while len(found) < count and (ahead is None or not found):
        rest = [number for number in range(count) if number not in found]
        least = max(min(*errors[rest], math.inf if ahead is None else ahead.errors[0]), ROUNDED)
        on = [number for number in rest if errors[number] <= (1.0 + margin) * least]
        if not on:
            break
        fit_all(range(1, system.folds), on)
        found |= {number: validated(number) for number in on}
        ahead = min((each for each in (*found.values(), ahead) if each), key=lambda each: each.score)
        ahead = ahead if math.isfinite(ahead.score) else None
    for number in set(range(count)) - set(found):
        assert ahead is not None
        score = max(ahead.score, ROUNDED) * float(errors[number] / least)
        found[number] = PoolValidation(float(noise_variances[number]), squares[number] / used, score, ())
    return [found[number] for number in range(count)]


def pool_bytes(size: int, outputs: int, folds: int, threads: int, noises: int) -> int:
    """Bytes of validating a whole pool: matrices of each thread, and the models that are kept."""
    return 8 * (min(threads, folds) * 3 * size**2 + noises * folds * size * (outputs + 1))
