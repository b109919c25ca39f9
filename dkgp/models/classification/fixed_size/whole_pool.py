"""Models that take a whole pool, of all classes and any noise variance, cross-validated from a kernel's sums alone.

The sums serve every class: their targets are right-hand sides of one matrix, A = T - G_v - s s' / w + s2 K_mm of all
but a fold, which is factored once a noise variance. That is M^3 / 3 operations, a fortieth of the eigenvectors that
would serve all noise variances at once, and there are some eight of these. Nothing is chosen one prototype at a time,
so that the number of classes costs next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dkgp.cluster.threads import in_parallel
from dkgp.models.classification.fixed_size.paths import PathModel
from dkgp.models.classification.fixed_size.steps import DEPENDENT
from dkgp.models.classification.fixed_size.system import FoldSystem
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


def pool_model(system: FoldSystem, noise_variance: float, fold: int | None = None) -> tuple[PathModel, float]:
    """The model of all prototypes, fitted to all samples or all but a fold, and its sum of squares on that fold.

    `numpy.linalg.LinAlgError`: the matrix is not positive definite as far as sums can tell.
    """
    training = np.arange(system.folds) != (-1 if fold is None else fold)
    sums, weight = system.sums[training].sum(axis=0), float(system.weight[training].sum())
    targets, projected = system.targets[training].sum(axis=0), system.projected[training].sum(axis=0)
    start = targets / weight if system.centred else np.zeros(system.outputs)
    matrix = system.total.copy()
    if fold is not None:
        take_off(system.held[fold], matrix)
    ridged = noise_variance * system.ridge
    ridged += matrix
    if system.centred:
        ridged -= np.outer(sums, sums / weight)
        projected = projected - np.outer(sums, start)
    places = np.arange(system.size)
    ridged[places, places] += DEPENDENT * system.total.diagonal()
    if not np.isfinite(ridged[-1]).all():
        raise np.linalg.LinAlgError("not finite")
    # Symmetric, so that its transpose is itself in LAPACK's order.
    factor = scipy.linalg.cho_factor(ridged.T, lower=True, overwrite_a=True, check_finite=False)
    weights = scipy.linalg.cho_solve(factor, projected, check_finite=False)
    level = start - sums @ weights / weight if system.centred else start
    squares = 0.0
    if fold is not None:
        # |y - K w - b|^2 of the fold, whose Gram is what was taken off.
        image = system.total @ weights - matrix @ weights
        right = system.projected[fold] - np.outer(system.sums[fold], level)
        own = system.squares[fold] - 2.0 * level * system.targets[fold] + level**2 * system.weight[fold]
        squares = float(np.sum(own) + np.sum(weights * (image - 2.0 * right)))
    if system.selected:
        return PathModel(places[:-1], weights[:-1], weights[-1]), squares
    return PathModel(places, weights, level), squares


def validate_pool(system: FoldSystem, noise_variance: float, heed: Callable[[], None] | None = None) -> PoolValidation:
    """Cross-validate the model of all prototypes; `heed` is called before."""
    if heed is not None:
        heed()
    models: list[PathModel | None] = [None] * system.folds
    squares = np.full(system.folds, math.inf)

    def go(fold: int) -> None:
        try:
            models[fold], squares[fold] = pool_model(system, noise_variance, fold)
        except np.linalg.LinAlgError:
            models[fold] = None

    in_parallel(go, system.folds)
    fitted = tuple(model for model in models if model is not None)
    score = float(squares.sum() / system.weight.sum()) if len(fitted) == system.folds else math.inf
    used = np.where(system.weight > 0.0, system.weight, 1.0)
    return PoolValidation(float(noise_variance), squares / used, score if math.isfinite(score) else math.inf, fitted)


def pool_bytes(size: int, outputs: int, folds: int, threads: int, noises: int) -> int:
    """Bytes of validating a whole pool: matrices of each thread, and the models that are kept."""
    return 8 * (min(threads, folds) * 3 * size**2 + noises * folds * size * (outputs + 1))
