"""Models that take a whole pool, of all classes and any noise variance, cross-validated from a kernel's sums alone.

The sums serve every class: their targets are right-hand sides of one matrix, A = T - G_v - s s' / w + s2 K_mm of all
but a fold, which is factored once a noise variance. That is M^3 / 3 operations, a fortieth of the eigenvectors that
would serve all noise variances at once, and there are some eight of these. Nothing is chosen one prototype at a time,
so that the number of classes costs next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from dkgp.cluster.threads import in_parallel
from dkgp.kernels.tiles.code_cache import cached_njit
from dkgp.models.classification.fixed_size.paths import PathModel
from dkgp.models.classification.fixed_size.steps import DEPENDENT
from dkgp.models.classification.fixed_size.system import FoldSystem
from dkgp.models.tuning.dense_algebra import factor, solve_factored
from dkgp.operators.base import FloatArray
from dkgp.operators.cross.folds import take_off


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
            # |y - K w - b|^2 of the fold, whose Gram is what was taken off.
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
    system: FoldSystem, noise_variances: Sequence[float], heed: Callable[[], None] | None = None
) -> list[PoolValidation]:
    """Cross-validate the model of all prototypes at each noise variance; `heed` is called before.

    A fold's Gram is taken off once for all of them.
    """
    if heed is not None:
        heed()
    models: list[list[PathModel | None]] = [[None] * system.folds for _ in noise_variances]
    squares = np.full((len(noise_variances), system.folds), math.inf)

    def go(fold: int) -> None:
        part, ridged = _Part.of(system, fold), np.empty_like(system.total)
        for number, noise_variance in enumerate(noise_variances):
            with suppress(np.linalg.LinAlgError):
                models[number][fold], squares[number, fold] = part.fitted(noise_variance, ridged)

    in_parallel(go, system.folds)
    used = np.where(system.weight > 0.0, system.weight, 1.0)
    validations = []
    for noise_variance, folds, each in zip(noise_variances, models, squares, strict=True):
        fitted = tuple(model for model in folds if model is not None)
        score = float(each.sum() / system.weight.sum()) if len(fitted) == system.folds else math.inf
        score = score if math.isfinite(score) else math.inf
        validations.append(PoolValidation(float(noise_variance), each / used, score, fitted))
    return validations


def pool_bytes(size: int, outputs: int, folds: int, threads: int, noises: int) -> int:
    """Bytes of validating a whole pool: matrices of each thread, and the models that are kept."""
    return 8 * (min(threads, folds) * 3 * size**2 + noises * folds * size * (outputs + 1))
