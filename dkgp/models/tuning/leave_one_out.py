"""Leave-one-out: the log density of each target given all others, with its gradient; and k-fold predictions.

With A = Kbar^-1, alpha = A Y and c_i = A_ii, the target y_i given all others is normal with mean y_i - alpha_i / c_i
and variance 1 / c_i, so that for p columns that share the hyperparameters

    L = sum_i [p/2 log c_i - s_i / (2 c_i)] - n p/2 log(2 pi),    s_i = sum_t alpha_it^2

(Rasmussen and Williams 2006, equations 5.10 to 5.12). A change dK of the kernel matrix changes A by -A dK A, so that
equation 5.13 for all parameters is one weighted sum of the entries of dK:

    dL = sum_ij W_ij dK_ij,    W = 1/2 (beta alpha' + alpha beta') - A diag(q) A,
    beta = A r,  r_it = alpha_it / c_i,  q_i = p / (2 c_i) + s_i / (2 c_i^2).

It takes twice the arithmetic of the likelihood's gradient. For a fold F of several samples the same holds in blocks:
the mean is y_F - A_FF^-1 alpha_F, the covariance A_FF^-1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import NumericalError
from dkgp.models.noise import Noise
from dkgp.models.tuning.dense_algebra import (
    add_outer_products,
    factor,
    fill_upper,
    invert_factored,
    rank_update,
    solve_factored,
    symmetric_product,
)
from dkgp.models.tuning.marginal_likelihood import DenseObjective, KernelFamily
from dkgp.models.tuning.subsets import SAME_NOISE


class LeaveOneOut(DenseObjective):
    """The sum of log p(y_i | X, y_-i, theta)."""

    n_matrices = 3

    def __call__(self, parameters: FloatArray) -> tuple[float, FloatArray] | None:
        """As of `DenseObjective`."""
        n_samples, n_targets = self._targets.shape
        self._fill(parameters)
        if not factor(self._work):
            return None
        alpha = solve_factored(self._work, self._targets)
        if not invert_factored(self._work):
            return None
        precision = np.diagonal(self._work).copy()
        squares = np.einsum("ij,ij->i", alpha, alpha)
        value = 0.5 * float(
            (n_targets * np.log(precision) - squares / precision).sum()
            - n_samples * n_targets * math.log(2.0 * math.pi)
        )
        if not math.isfinite(value):
            return None
        beta = symmetric_product(self._work, np.asfortranarray(alpha / precision[:, None]))
        share = 0.5 * (n_targets + squares / precision) / precision
        fill_upper(self._work)
        self._work *= np.sqrt(share)
        weights = self._more[0]
        rank_update(weights, self._work, scale=-1.0, keep=0.0)
        add_outer_products(weights, alpha, beta, scale=0.5)
        return value, self._slopes(parameters, weights)


def factored(family: KernelFamily, parameters: FloatArray, out: FloatArray, noise: Noise = SAME_NOISE) -> FloatArray:
    """Put Cholesky's lower factor of Kbar into `out`, and return it; `NumericalError` where there is none."""
    family.matrix(parameters[:-1], out)
    np.einsum("ii->i", out)[:] += noise.with_common(math.exp(parameters[-1])).diagonal
    if not factor(out):
        raise NumericalError(
            "the kernel matrix of a subset is not positive definite with the hyperparameters that were found, so that "
            "it cannot be scored. Raise the lower bound of the noise variance"
        )
    return out


def fold_predictions(
    family: KernelFamily,
    parameters: FloatArray,
    targets: FloatArray,
    folds: Sequence[IntArray],
    matrices: Sequence[FloatArray] | None = None,
    noise: Noise = SAME_NOISE,
) -> tuple[FloatArray, FloatArray]:
    """Predict each fold's targets from all samples outside of it, in closed form.

    `parameters` are logarithms, the noise variance's last; `folds` are indices of samples, together each sample once;
    `matrices` are one array (n, n) in Fortran order to work in; `noise` is that of samples that differ. Returned are
    predictive means (n, p), and predictive variances of a new observation (n,), the sample's noise included.

    Raises `NumericalError`: Kbar is not numerically positive definite.
    """
    n_samples = targets.shape[0]
    work = np.empty((n_samples, n_samples), order="F") if matrices is None else matrices[0]
    ordered = np.asfortranarray(targets)
    alpha = solve_factored(factored(family, parameters, work, noise), ordered)
    invert_factored(work)
    fill_upper(work)
    mean, variance = np.empty_like(ordered), np.empty(n_samples)
    for fold in folds:
        block = np.asfortranarray(work[np.ix_(fold, fold)])
        if not factor(block):  # a principal part of a positive definite matrix: only rounding brings one here
            raise NumericalError("the predictive covariance of a fold is not positive definite; take more folds")
        mean[fold] = ordered[fold] - solve_factored(block, np.asfortranarray(alpha[fold]))
        invert_factored(block)
        variance[fold] = np.diagonal(block)
    return mean, variance
