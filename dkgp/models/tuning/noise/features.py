"""Features of which the logarithm of the noise's variance is a sum: the inputs, or a Gaussian process's.

How a Gaussian process of log s2 varies is learnt from residuals (Kersting, Plagemann, Pfaff and Burgard, *Most Likely
Heteroscedastic Gaussian Process Regression*, ICML 2007, section 4), here from those of each sample given all others,
e_i. Where e_i is normal with variance s2_i, log e_i^2 is log s2_i and the logarithm of a chi-squared variable of one
degree of freedom: its mean, psi(1/2) + log 2 = -1.2704, is taken off, and its variance is pi^2 / 2. The weights
themselves are found by the likelihood, which wastes less of the data than these logarithms do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dkgp.data.types import FloatArray
from dkgp.errors import NumericalError
from dkgp.kernels import Kernel
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.tuning.dense_algebra import invert
from dkgp.models.tuning.tune import tune

MEAN_LOG_CHI_SQUARED, VARIANCE_LOG_CHI_SQUARED = -1.2703628454614782, math.pi**2 / 2.0
# Logarithms are taken of squares that are at least this share of their mean: a residual may be zero.
_LEAST_SHARE = 1e-8
# Samples that the noise's kernel is tuned on; noise that changes within half a deviation of an input is not looked for.
_KERNEL_SAMPLES, _GAMMA_BOUNDS = 1000, (1e-6, 2.0)
# Points of a basis: the most, and the share of the prior variance that may be left at any sample.
_MOST_POINTS, _LEFT = 50, 0.01
# Prior deviations of weights: of a linear model per deviation of an input; a Gaussian process's are normalised.
_LINEAR_DEVIATION, _GP_DEVIATION = 2.0, 1.0


@dataclass(frozen=True)
class NoiseFeatures:
    """Features of the samples of a subset, and of any other input.

    Attributes
    ----------
    design : (n, q) float64
        log s2_i = b + design_i' w.
    deviation : float
        Of the weights' normal prior around zero.
    kernel, points, lower
        Of a Gaussian process: k, the basis z (q, d), and L with L L' = k(z, z); None of the inputs themselves.
    """

    design: FloatArray
    deviation: float
    kernel: Kernel | None = None
    points: FloatArray | None = None
    lower: FloatArray | None = None

    def coefficients(self, weights: FloatArray) -> FloatArray:
        """Coefficients of the inputs, or of k(x, z_j), that weights (q,) of the features stand for: (q,)."""
        if self.lower is None:
            return weights
        return np.asarray(scipy.linalg.solve_triangular(self.lower, weights, lower=True, trans="T"))


def noise_features(kind: str, start: Hyperparameters, inputs: FloatArray, targets: FloatArray) -> NoiseFeatures:
    """Features of `kind` on standardised inputs (n, d) and targets (n, p), as residuals of `start` suggest them.

    Raises `NumericalError` where the kernel matrix of `start` is not positive definite.
    """
    if kind == "linear":
        return NoiseFeatures(inputs, _LINEAR_DEVIATION)
    kernel = _kernel_of(log_noise(start, inputs, targets), inputs, targets.shape[1], start.seed or 0)
    design, pivots = pivoted_factor(kernel, inputs)
    return NoiseFeatures(design, _GP_DEVIATION, kernel, inputs[pivots], design[pivots])


def log_noise(start: Hyperparameters, inputs: FloatArray, targets: FloatArray) -> FloatArray:
    """Estimates of the log variance of each residual given all other samples, (n,), mean over targets: unbiased.

    e_i = alpha_i / (Kbar^-1)_ii (Rasmussen and Williams 2006, equation 5.12); `NumericalError` as `noise_features`.
    """
    matrix = np.asfortranarray(start.kernel.matrix(inputs, inputs))
    np.einsum("ii->i", matrix)[:] += start.noise_variance
    inverted = invert(matrix, np.asfortranarray(targets))
    if inverted is None:
        raise NumericalError(
            "the kernel matrix of a subset is not positive definite with the hyperparameters that were found, so that "
            "no noise model can be found from its residuals. Raise the lower bound of the noise variance"
        )
    squares = (inverted[0] / np.diagonal(matrix)[:, None]) ** 2
    least = np.maximum(_LEAST_SHARE * squares.mean(axis=0), np.finfo(np.float64).tiny)
    return np.asarray((np.log(np.maximum(squares, least)) - MEAN_LOG_CHI_SQUARED).mean(axis=1))


def _kernel_of(logs: FloatArray, inputs: FloatArray, n_targets: int, seed: int) -> Kernel:
    """The squared exponential, amplitude and a length scale for each feature, under which `logs` (n,) are likeliest."""
    scale = max(float(logs.std()), 1e-3)
    found = tune(
        inputs,
        (logs - logs.mean()) / scale,
        subset=_KERNEL_SAMPLES,
        learn_variance=True,
        seed=seed,
        tolerance=1e-3,
        bounds={"gamma*": _GAMMA_BOUNDS},
        fixed={"noise_variance": VARIANCE_LOG_CHI_SQUARED / n_targets / scale**2},
    )
    values = [parameter.value for parameter in found.kernel.parameters()]
    position = found.kernel.amplitude_index
    assert position is not None
    values[position] *= scale**2
    return found.kernel.with_parameters(values)


def pivoted_factor(kernel: Kernel, inputs: FloatArray) -> tuple[FloatArray, list[int]]:
    """F (n, q) with F F' <= K and equality at the pivots, by pivoted Cholesky, greedily; and the q pivots.

    It ends with 50 pivots, or where a hundredth of every prior variance is left.
    """
    left = kernel.diagonal(inputs).astype(np.float64)
    enough = _LEFT * float(left.max())
    columns: list[FloatArray] = []
    pivots: list[int] = []
    while len(pivots) < min(_MOST_POINTS, len(inputs)):
        pivot = int(np.argmax(left))
        if pivots and left[pivot] <= enough:
            break
        column = kernel.matrix(inputs, inputs[[pivot]])[:, 0]
        for before in columns:
            column = column - before * before[pivot]
        column = column / math.sqrt(left[pivot])
        column[pivots] = 0.0  # but for rounding
        columns.append(column)
        pivots.append(pivot)
        left = np.maximum(left - column**2, 0.0)
        left[pivots] = 0.0
    return np.column_stack(columns), pivots
