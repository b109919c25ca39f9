"""A kernel's common scale and s2 by decisions at samples that are left out, from a kernel that is given.

Squared errors of decisions at samples that are left out (Karsmakers and others 2011, equation 35 with one sample a
fold, in closed form) are minimised over two numbers, a factor of all inverse squared length scales and s2: the scales
of features relative to each other stay. It is for kernels whose relative scales are known, such as features that are
to count in their own units (`own_units`), like the pixels of an image. Where the likelihood had already found scale
and noise, moving on from there has gained nothing on test samples (heart, banana, german and usps; magic a little).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel, SquaredExponential, TileEvaluator, fold_white
from dkgp.models.classification.calibration import drawn_by_class, left_out_decisions
from dkgp.models.classification.fixed_size.search import scaled
from dkgp.models.classification.labels import Labels
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.tuning.subsets import draw_subset

LEFT_OUT_SAMPLES = 1500
# First steps of the two logarithms, how often they are halved, and evaluations in all.
STEPS, HALVINGS, MOST = (math.log(2.0), math.log(10.0)), 2, 32
MEDIAN_SAMPLES = 2000
# A smaller gain is none.
LEAST_GAIN = 1e-4
Point = tuple[float, float]


def improved_by_left_out(
    dataset: Dataset,
    labels: Labels,
    hyper: Hyperparameters,
    *,
    subset: int = LEFT_OUT_SAMPLES,
    seed: int = 0,
    move_scale: bool = True,
    move_noise: bool = True,
) -> Hyperparameters:
    """Move the kernel's common scale and s2 to where decisions at left-out samples err least.

    Parameters
    ----------
    dataset, labels
    found : Hyperparameters
        Where to start.
    subset : int
        Samples that are left out, one at a time.
    seed : int
        Of their draw.
    move_scale, move_noise : bool
        Which of the two may move.

    Returns
    -------
    Hyperparameters
        The same where nothing is better; else without what was said of the likelihood's.
    """
    kernel, noise = fold_white(hyper.kernel, hyper.noise_variance)
    move_scale = move_scale and any(part.name.split(".")[-1] == "gamma" for part in kernel.parameters())
    rows = drawn_by_class(labels, subset, seed)
    inputs, signs = dataset.input_rows(rows), labels.subset(rows).signs()

    def error(point: Point) -> float:
        return _left_out_error(scaled(kernel, math.exp(point[0])), noise * math.exp(point[1]), inputs, signs)

    with single_threaded_blas():
        best, evaluations = compass(error, (move_scale, move_noise))
    if best == (0.0, 0.0):
        return replace(hyper, evaluations=(hyper.evaluations or 0) + evaluations)
    return replace(
        hyper,
        kernel=scaled(kernel, math.exp(best[0])),
        noise_variance=noise * math.exp(best[1]),
        evaluations=(hyper.evaluations or 0) + evaluations,
        log_marginal_likelihood=None,
        parameters=None,
    )


def own_units(dataset: Dataset, seed: int = 0) -> Hyperparameters:
    """One length scale in the features' own units, of the median squared distance, and s2 = 0.1: where to start.

    Inputs are standardised all the same, so that the kernel has gamma_l in proportion to the variance of feature l.

    Raises
    ------
    InputError
        All samples are alike.
    """
    spread = np.asarray(dataset.standardisation.input_std)
    inputs = dataset.input_rows(draw_subset(dataset.n_samples, MEDIAN_SAMPLES, seed)) * spread
    half = len(inputs) // 2
    squares = np.einsum("id,id->i", inputs[:half] - inputs[-half:], inputs[:half] - inputs[-half:])
    middle = float(np.median(squares[squares > 0.0])) if (squares > 0.0).any() else 0.0
    if not middle > 0.0:
        raise InputError(
            f"the samples of '{dataset.url}' that were looked at are alike; there is no scale to start from"
        )
    return Hyperparameters(SquaredExponential(tuple((spread**2 / middle).tolist())), 0.1)


def compass(error: Callable[[Point], float], free: tuple[bool, bool] = (True, True)) -> tuple[Point, int]:
    """Minimise by steps along two axes, doubled while they gain and halved where none does; and count evaluations.

    It starts at the origin, and an error of infinity is a point that cannot be.
    """
    values: dict[Point, float] = {}

    def at(point: Point) -> float:
        if point not in values:
            values[point] = error(point)
        return values[point]

    best, halved = (0.0, 0.0), 0
    at(best)
    while halved <= HALVINGS and len(values) < MOST:
        before = best
        for axis in (0, 1):
            if not free[axis]:
                continue
            for sign in (1.0, -1.0):
                step, moved = sign * STEPS[axis] * 0.5**halved, False
                while len(values) < MOST:
                    tried = (best[0] + step, best[1]) if axis == 0 else (best[0], best[1] + step)
                    if not at(tried) < at(best) * (1.0 - LEAST_GAIN):
                        break
                    best, step, moved = tried, 2.0 * step, True
                if moved:
                    break
        if best == before:
            halved += 1
    return best, len(values)


def _left_out_error(kernel: Kernel, noise: float, inputs: np.ndarray, signs: np.ndarray) -> float:
    """Mean squared error of decisions at samples that are left out; infinite where the matrix cannot be factored."""
    evaluator = TileEvaluator(kernel, "double")
    rows = evaluator.prepare(inputs)
    matrix = np.asfortranarray(evaluator.tile(rows, rows))
    matrix[np.diag_indices(len(matrix))] += noise
    try:
        decisions = left_out_decisions(matrix, signs)
    except NumericalError:
        return math.inf
    error = float(np.mean((decisions - signs) ** 2))
    return error if math.isfinite(error) else math.inf
