"""Dense references: the mode of a regularised logistic risk by Newton's method, and what Laplace's averages are at it.

Written after Rasmussen and Williams (2006), algorithms 3.1 to 3.3, in float64 with Cholesky factors of n x n matrices;
nothing of dkgp's own solvers takes part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.special import expit, log_expit, logsumexp, softmax

FloatArray = NDArray[np.float64]

MOST_STEPS, HALVINGS = 200, 40
# The trapezoidal rule over so many standard deviations, at so many nodes.
REACH, NODES = 12.0, 4001


@dataclass(frozen=True)
class Mode:
    """A minimiser.

    Attributes
    ----------
    alpha, values : (n, t) float64
        Coefficients, and values at the samples.
    risk : float
    change : float
        By how much the last step changed a value.
    """

    alpha: FloatArray
    values: FloatArray
    risk: float
    change: float


def logit_mode(K: FloatArray, signs: FloatArray, regularisation: float) -> Mode:
    """Minimise sum log(1 + exp(-y f)) + lambda |f|^2 / 2, each column of signs (n, t) by itself."""
    columns = [_logit_column(K / regularisation, y) for y in signs.T]
    a, f = (np.column_stack([column[part] for column in columns]) for part in (0, 1))
    risk = float(-np.sum(log_expit(signs * f)) + 0.5 * np.sum(a * f))
    return Mode(a / regularisation, f, risk, max(column[2] for column in columns))


def softmax_mode(K: FloatArray, hot: FloatArray, regularisation: float) -> Mode:
    """Minimise the risk of softmax, all columns of one-hot labels (n, C) together (algorithm 3.3)."""
    prior = K / regularisation
    n, classes = hot.shape
    a, f = np.zeros_like(hot), np.zeros_like(hot)
    change = np.inf
    for _ in range(MOST_STEPS):
        shares = softmax(f, axis=1)
        E, total = [], np.zeros((n, n))
        for c in range(classes):
            root = np.sqrt(shares[:, c])
            factor = scipy.linalg.cho_factor(np.eye(n) + root[:, None] * prior * root, lower=True)
            E.append(root[:, None] * scipy.linalg.cho_solve(factor, np.diag(root)))
            total += E[-1]
        b = shares * f - shares * np.sum(shares * f, axis=1, keepdims=True) + hot - shares
        c_columns = np.column_stack([E[c] @ (prior @ b[:, c]) for c in range(classes)])
        right = scipy.linalg.cho_solve(scipy.linalg.cho_factor(total, lower=True), c_columns.sum(axis=1))
        target = b - c_columns + np.column_stack([E[c] @ right for c in range(classes)])
        a, new = _descended(prior, a, f, target, lambda v: float(-np.sum(hot * v) + np.sum(logsumexp(v, axis=1))))
        now, f = float(np.abs(new - f).max()), new
        if now >= 0.5 * change and now < 1e-6:
            break
        change = now
    risk = float(-np.sum(hot * f) + np.sum(logsumexp(f, axis=1)) + 0.5 * np.sum(a * f))
    return Mode(a / regularisation, f, risk, now)


def averaged_logit(mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Mean of 1 / (1 + exp(-f)) over normal f, by the trapezoidal rule, (r,) each."""
    nodes = np.linspace(-REACH, REACH, NODES)
    weights = np.exp(-0.5 * nodes**2)
    weights /= weights.sum()
    deviation = np.sqrt(np.maximum(variance, 0.0))
    return np.array([weights @ expit(m + s * nodes) for m, s in zip(mean, deviation, strict=True)])


def latent_variances(K: FloatArray, across: FloatArray, prior: FloatArray, curvature: FloatArray) -> FloatArray:
    """Laplace's variances k(x, x) - k_x' (K + W^-1)^-1 k_x of one column (equation 3.24): (r,).

    Parameters
    ----------
    K, across, prior : (n, n), (r, n) and (r,) float64
    curvature : (n,) float64
        W at the mode.
    """
    root = np.sqrt(curvature)
    lower = np.linalg.cholesky(np.eye(len(K)) + root[:, None] * K * root)
    half = scipy.linalg.solve_triangular(lower, root[:, None] * across.T, lower=True)
    return np.asarray(prior - np.sum(half**2, axis=0))


def _logit_column(prior: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    n = len(y)
    a, f, change = np.zeros(n), np.zeros(n), np.inf
    for _ in range(MOST_STEPS):
        p = expit(f)
        root = np.sqrt(p * (1.0 - p))
        factor = scipy.linalg.cho_factor(np.eye(n) + root[:, None] * prior * root, lower=True)
        b = root**2 * f + 0.5 * (y + 1.0) - p
        target = b - root * scipy.linalg.cho_solve(factor, root * (prior @ b))
        a, new = _descended(prior, a, f, target, lambda v: float(-np.sum(log_expit(y * v))))
        now, f = float(np.abs(new - f).max()), new
        if now >= 0.5 * change and now < 1e-6:
            break
        change = now
    return a, f, now


def _descended(
    prior: FloatArray, a: FloatArray, f: FloatArray, target: FloatArray, loss: Callable[[FloatArray], float]
) -> tuple[FloatArray, FloatArray]:
    """The step to a target, halved until the risk does not rise by more than rounding."""
    value = loss(f) + 0.5 * float(np.sum(a * f))
    share = 1.0
    for _ in range(HALVINGS):
        tried = a + share * (target - a)
        values = prior @ tried
        if loss(values) + 0.5 * float(np.sum(tried * values)) <= value + 1e-12 * abs(value):
            break
        share *= 0.5
    return tried, values
