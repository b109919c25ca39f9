"""The fit of m kernel columns to all samples.

The weights beta minimise the regularised risk on the columns' span,

    R(beta) = (y - K_nm beta)' D (y - K_nm beta) / 2 + beta' L L' beta / 2,      D = diag(1 / s2_i),

in whitened form: with F = K_nm L^-T, L L' = K_mm and a jitter in proportion to rounding, z = L' beta solves
(I + F'DF) z = F'D y. The minimum over all functions, with K_mm, is half of y' Kbar^-1 y. D has FITC's variances in it
where that is the method.

I + F'DF has no eigenvalue below one, and is summed and factored in float64. What the factor gives is judged by a
residual that is evaluated anew, and refined by it: the decrement zeta' (I + F'DF)^-1 zeta / 2, zeta = F'D r - z, is
what the best weights are still better by. Where refinement does not make it small, the fit is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import NumericalError
from dkgp.operators.base import FloatArray, Noise
from dkgp.operators.cross.kernel import CrossKernel, CrossResidual
from dkgp.operators.low_rank.landmark_rows import whiten

__all__ = ["RegressorFit", "fit_regressors", "normal_factor"]

# Refined until the decrement is this share of the risk; accepted, where rounding ends it, up to the second.
REFINED, ACCEPTED = 1e-12, 1e-7
MOST_REFINEMENTS = 6


@dataclass(frozen=True)
class RegressorFit:
    """Weights of m kernel columns, and what they were found with.

    Attributes
    ----------
    cross : CrossKernel
        K_nm.
    variances : float or (n,) float64
        D's inverse: the noise, FITC's terms included.
    weights, whitened : (m, p) float64
        beta, and z = L' beta.
    normal : (m, m) float64, Fortran order
        C C' = I + F'DF.
    squares : (n,) float64
        Squared length of each row of F: what of k(x, x) the basis explains.
    risk : (p,) float64
        R(beta), by residuals.
    decrement : (p,) float64
        By how much the least R on the span is estimated to be below.
    passes : int
        Times that all entries of K_nm were evaluated.
    """

    cross: CrossKernel
    variances: Noise
    weights: FloatArray
    whitened: FloatArray
    normal: FloatArray
    squares: FloatArray
    risk: FloatArray
    decrement: FloatArray
    passes: int


def fit_regressors(cross: CrossKernel, targets: FloatArray, *, fitc: bool = False) -> RegressorFit:
    """Fit kernel columns to standardised targets (n, p); `fitc` by FITC's variances.

    Raises
    ------
    NumericalError
        I + F'DF is not positive definite in float64, or its factor not good enough to refine with.
    """
    noise = cross.operator.noise
    each = None if isinstance(noise, float) and not fitc else np.broadcast_to(noise, (cross.n,)).copy()
    gram = cross.whitened(targets, each, fitc=fitc)
    variances: Noise = noise
    if fitc:
        assert each is not None
        variances = each + np.maximum(cross.operator.prior() - gram.squares, 0.0)
    matrix, projected = gram.matrix, gram.projected
    if each is None:
        matrix /= noise
        projected /= noise
    with single_threaded_blas():
        normal = normal_factor(matrix, float(np.min(noise)))
        lower = cross.lower
        z = _solved(normal, projected)
        beta = whiten(lower, z, transposed=True)
        passes, before = 1, np.full(z.shape[1], np.inf)
        while True:
            passes += 1
            left = _residual(cross, beta, targets, variances)
            z = np.asarray(lower.T @ beta)
            risk = 0.5 * (left.squares + np.einsum("mp,mp->p", z, z))
            zeta = whiten(lower, left.projected, transposed=False) - z
            step = _solved(normal, zeta)
            decrement = 0.5 * np.einsum("mp,mp->p", zeta, step)
            if not np.isfinite(decrement).all():
                raise NumericalError("the fit overflows: bring inputs that are far out closer")
            done = decrement <= REFINED * risk
            stalled = passes > MOST_REFINEMENTS + 1 or bool(np.all((decrement > 0.25 * before) | done))
            if done.all() or stalled:
                break
            before = decrement
            beta = beta + whiten(lower, step, transposed=True)
        if np.any(decrement > ACCEPTED * risk):
            worst = int(np.argmax(decrement / np.maximum(risk, np.finfo(float).tiny)))
            raise NumericalError(
                f"the fit of {cross.m:,} basis functions does not come closer to the best one than a risk of "
                f"{decrement[worst]:.3g} more than {risk[worst]:.6g}, after {passes} passes over the data: rounding "
                f"exceeds the noise variance {float(np.min(noise)):.3g}. Raise it, or take fewer basis functions"
            )
    return RegressorFit(cross, variances, beta, z, normal, gram.squares, risk, np.abs(decrement), passes)


def normal_factor(matrix: FloatArray, noise_variance: float) -> FloatArray:
    """C C' = I + F'DF, C in Fortran order with zeros above its diagonal; the matrix (m, m) is overwritten.

    Raises
    ------
    NumericalError
        It is not positive definite in float64: nothing is added to its diagonal to make it so.
    """
    largest = float(matrix.diagonal().max())
    matrix[np.diag_indices(len(matrix))] += 1.0
    lower, trouble = scipy.linalg.lapack.dpotrf(matrix, lower=1, clean=1, overwrite_a=1)
    if trouble or not np.isfinite(lower).all():
        raise NumericalError(
            f"the normal equations of {len(matrix):,} basis functions are not positive definite in float64: their "
            f"entries go up to {largest:.3g} times the noise variance {noise_variance:.3g}, which rounding exceeds. "
            "Raise the noise variance, or take fewer basis functions"
        )
    return np.asarray(lower)


def _solved(normal: FloatArray, right: FloatArray) -> FloatArray:
    return np.asarray(whiten(normal, whiten(normal, right, transposed=False), transposed=True))


def _residual(cross: CrossKernel, beta: FloatArray, targets: FloatArray, variances: Noise) -> CrossResidual:
    """K_mn D r and r'D r."""
    if not isinstance(variances, float):
        return cross.residual(beta, targets, variances)
    found = cross.residual(beta, targets)
    return CrossResidual(found.projected / variances, found.squares / variances, None)
