"""Proven bounds on the exact predictive variance, evaluated in float64 with their own rounding errors added.

The exact variance of a new observation at x is V = k(x, x) + s2 - k_x' Kbar^-1 k_x. For any v with r = k_x - Kbar v,

    V = u - r' Kbar^-1 r,    u = k(x, x) + s2 - v'(k_x + r),

so u is never below V. For any weights beta of the landmarks' kernel columns,

    r' Kbar^-1 r <= ||r - K_nI beta||^2 / s2 + beta' K_II beta,                                     (lower bound)

which is Smola and Bartlett's second quadratic form; its minimum over beta is r' (Q + s2 I)^-1 r with the Nystrom
minorant Q <= K. It holds for whatever beta comes out of float32 work. With E = K - Q, a positive semidefinite matrix
with diagonal e, |v' E v| <= (sum |v_i| sqrt(e_i))^2, and therefore, without any product with K,

    k_x' Kbar^-1 k_x >= 2 v'k_x - ||L^-1 K_In v||^2 - s2 ||v||^2 - (sum |v_i| sqrt(e_i))^2.         (upper bound)

Kernel entries are float64 throughout. A computed sum of products is off by at most `additions` * eps * sum |products|;
products with K run over PIECE_ROWS terms in BLAS and over the pieces outside it. |k(x, x')| is at most sqrt(k(x, x)
k(x', x')): with the factor's `largest` and the weights w of its samples, an entry of Kbar is at most largest w_i w_j,
and k(x, x_i) at most `reach` w_i, reach = sqrt(k(x, x) largest). A stationary kernel's weights are all one, and its
largest and reach are k(x, x).

References
----------
A. J. Smola, P. Bartlett, Sparse greedy Gaussian process regression (2001), section 3, theorem 1 and equation (10).
"""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg

from dkgp.cluster.threads import in_parallel
from dkgp.kernels import Features
from dkgp.models.nystrom import PIECE_ROWS, NystromFactor
from dkgp.models.rounding import ENTRY_ERROR
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.pivots import jitter

__all__ = ["EPS", "additions", "factor_interval", "reaches", "residual_bound"]

EPS = float(np.finfo(np.float64).eps)


def additions(n: int, entry_error: float = ENTRY_ERROR) -> float:
    """Roundings on the way of one entry of K v to its sum over n samples, in units of eps * k * |v|."""
    return PIECE_ROWS + n / PIECE_ROWS + entry_error


def reaches(factor: NystromFactor, prior: FloatArray) -> FloatArray:
    """What k(x, x_i) / w_i does not exceed at test samples with these k(x, x): (t,)."""
    reach: FloatArray = np.sqrt(prior * factor.largest)
    return reach


def factor_interval(
    factor: NystromFactor, test: Features, prior: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Bounds from the factor alone: n R kernel entries and 5 n R multiply-adds a sample, nothing quadratic in n.

    Parameters
    ----------
    factor : NystromFactor
    test : Features
        t test samples, prepared in float64.
    prior : (t,) float64
        k(x, x).

    Returns
    -------
    lower, upper : (t,) float64
        lower <= V <= upper, noise included.
    excess : (t,) float64
        By how much `upper` may exceed V because of what the factor leaves of K; an estimate, not a bound.
    """
    evaluator, s2, t = factor.evaluator, factor.noise_variance, test.n
    projected = np.zeros((factor.rank, t))
    for rows, where in factor.pieces():
        # In float64: F is accurate enough, but float32 sums over n samples cost 1e-4 of the variance at n = 100,000.
        projected += factor.columns[where].T.astype(np.float64) @ evaluator.tile(rows, test)
    z = factor.solve_gram(projected)
    beta = factor.landmark_weights(z)
    square, cross, spread, absolute = np.zeros(t), np.zeros(t), np.zeros(t), np.zeros(t)
    image = np.zeros((factor.rank, t))
    for rows, where in factor.pieces():
        columns = evaluator.tile(rows, factor.landmarks)
        kernel = evaluator.tile(rows, test)
        v = kernel - columns @ beta
        v /= s2
        square += np.einsum("it,it->t", v, v)
        cross += np.einsum("it,it->t", v, kernel)
        np.abs(v, out=kernel)
        spread += np.sqrt(factor.residual_diagonal[where] + _diagonal_slack(factor, where)) @ kernel
        if factor.weights is not None:
            kernel *= factor.weights[where, None]
        absolute += kernel.sum(axis=0)
        image += columns.T @ v
    largest, reach = factor.largest, reaches(factor, prior)
    unit = additions(factor.n, factor.entry_error) * EPS
    lower_triangle = factor.lower
    whitened = scipy.linalg.solve_triangular(lower_triangle, image, lower=True, check_finite=False)
    # L w = c is solved to a residual; what that, and the rounding of c itself, may add to ||w||.
    remainder = np.linalg.norm((image - lower_triangle @ whitened) / factor.landmark_scale[:, None], axis=0)
    rounded = unit * largest * absolute * np.sqrt(factor.rank)
    gain = 1.0 / np.sqrt(jitter(factor.rank, largest))  # ||L^-1 c||: K_II + jitter is at least the jitter
    norm = np.linalg.norm(whitened, axis=0) + gain * (remainder + rounded)
    upper = prior + s2 - 2.0 * cross + norm**2 + s2 * square + spread**2
    upper += 4.0 * unit * (prior + s2 + reach * absolute + s2 * square + spread**2)
    if factor.lower.dtype != np.float64:
        upper = prior + s2  # the Q of a float32 L may exceed K: from above it proves nothing
    # The lower bound is the residual's for v = 0, r = k_x; (k_x - K_nI beta) = s2 v as computed.
    off = _column_rounding(factor, beta) + factor.entry_error * EPS * reach
    quadratic = _landmark_quadratic(factor, beta)
    lower = prior + s2 - (s2 * np.sqrt(square) + factor.weight_norm * off) ** 2 / s2 - quadratic
    lower -= 4.0 * unit * (prior + s2)
    return lower, upper, spread**2


def residual_bound(
    factor: NystromFactor,
    residual: FloatArray,
    z: FloatArray,
    rounding: FloatArray,
    chosen: IndexArray | None = None,
    threads: int = 1,
) -> FloatArray:
    """Upper bound on r' Kbar^-1 r.

    Parameters
    ----------
    factor : NystromFactor
    residual : (n, columns) float64
        r as computed.
    z : (R, t)
        What preconditioning r gave; any other makes the bound wider, not wrong.
    rounding : (t,) float64
        By how much entry i of it may miss the exact r, over w_i.
    chosen : (t,) int, optional
        Which columns of `residual` are meant; all by default.
    threads : int
        Of this process, to share the work.

    Returns
    -------
    (t,) float64
    """
    evaluator, s2 = factor.evaluator, factor.noise_variance
    beta = factor.landmark_weights(z)
    pieces = factor.pieces()
    which = np.arange(residual.shape[1]) if chosen is None else chosen
    squares = np.empty((len(pieces), len(which)))

    def measure(index: int) -> None:
        rows, where = pieces[index]
        left = residual[where][:, which] - evaluator.tile(rows, factor.landmarks) @ beta
        squares[index] = np.einsum("it,it->t", left, left)

    in_parallel(measure, len(pieces), threads)
    square = squares.sum(axis=0)
    off = rounding + _column_rounding(factor, beta)
    norm = np.sqrt(square) * (1.0 + additions(factor.n, factor.entry_error) * EPS) + factor.weight_norm * off
    bound: FloatArray = norm**2 / s2 + _landmark_quadratic(factor, beta)
    return bound


def _landmark_quadratic(factor: NystromFactor, beta: FloatArray) -> FloatArray:
    """Upper bound on beta' K_II beta: ||L' beta||^2 with a float64 L, since the jitter makes L L' the larger one."""
    if factor.lower.dtype == np.float64:
        half = factor.lower.T @ beta
        squared: FloatArray = np.einsum("rt,rt->t", half, half) * (1.0 + 2.0 * (factor.rank + 2) * EPS)
        return squared
    quadratic = np.zeros(beta.shape[1])
    for start in range(0, factor.rank, PIECE_ROWS):
        stop = min(start + PIECE_ROWS, factor.rank)
        columns = factor.evaluator.tile(factor.landmarks.slice(start, stop), factor.landmarks)
        quadratic += np.einsum("rt,rt->t", beta[start:stop], columns @ beta)
    bound: FloatArray = quadratic + 2.0 * _column_rounding(factor, beta) * _scaled_sum(factor, beta)
    return bound


def _column_rounding(factor: NystromFactor, beta: FloatArray) -> FloatArray:
    """Bound on the rounding error of entry i of K_nI beta, over w_i."""
    bound: FloatArray = (factor.rank + factor.entry_error) * EPS * factor.largest * _scaled_sum(factor, beta)
    return bound


def _scaled_sum(factor: NystromFactor, beta: FloatArray) -> FloatArray:
    """Sum over the landmarks of sqrt(k(x, x) / largest) |beta|: (t,)."""
    total: FloatArray = (factor.landmark_scale[:, None] * np.abs(beta)).sum(axis=0)
    return total


def _diagonal_slack(factor: NystromFactor, rows: slice) -> FloatArray | float:
    """By how much computed entries of diag(K - Q) may be too small: 2 |f||df| with f = L^-1 k_i, |f|^2 <= k(x, x)."""
    # A stationary kernel's k(x, x) as L has it, its jitter included.
    largest = float(factor.lower[0, 0] ** 2) if factor.weights is None else factor.largest
    gain = 1.0 / math.sqrt(jitter(factor.rank, largest))
    slack = 2.0 * gain * math.sqrt(factor.rank) * factor.entry_error * EPS * largest * math.sqrt(largest)
    return slack if factor.weights is None else slack * factor.weights[rows] ** 2
