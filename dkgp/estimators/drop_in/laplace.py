"""Laplace's approximation in memory: the mode, the evidence and its gradient, the average of the logistic function.

Rasmussen and Williams, *Gaussian processes for machine learning*, 2006, algorithms 3.1, 3.2 and 5.1, for labels 0 and 1
under the logistic likelihood. At the mode f, with pi = 1 / (1 + exp(-f)), W = pi (1 - pi), B = I + W^1/2 K W^1/2,
g = y - pi and a = K^-1 f, algorithm 5.1's derivative is one sum over pairs:

    dlog Z / dtheta = sum_ij V_ij dK_ij / dtheta,   V = (a a' - R) / 2 + u g',   R = W^1/2 B^-1 W^1/2,
    u = (I - R K) s,   s_i = -(1 - (B^-1)_ii) (1 - 2 pi_i) / 2.

Its s is -Sigma_ii / 2 times the likelihood's third derivative, W_i (1 - 2 pi_i), where Sigma = (K^-1 + W)^-1 has the
diagonal (1 - (B^-1)_ii) / W_i: what algorithm 5.1 solves n systems for comes with B^-1, which R needs anyway.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import erf, expit

from dkgp.errors import NumericalError
from dkgp.estimators.drop_in.likelihood import with_noise
from dkgp.estimators.drop_in.tree import Node, Pair
from dkgp.models.tuning.dense_algebra import factor, fill_upper, invert_factored, solve_factored
from dkgp.operators.base import FloatArray

# Newton's steps end once the objective rises by less.
_LEAST_RISE = 1e-10
# The error functions whose sum scikit-learn takes for the logistic one (Williams and Barber, *Bayesian classification
# with Gaussian processes*, 1998): widths, and weights by which they meet it at 0, 0.6, 2, 3.5, 4.5 and infinity, by
# least squares. Rounded as there, so that a latent mean of zero is below one half, by 5e-9, and of the first class.
_WIDTHS = np.array([0.41, 0.4, 0.37, 0.44, 0.39])
_WEIGHTS = np.array([-1854.8214151, 3516.89893646, 221.29346712, 128.12323805, -2010.49422654])


@dataclass(frozen=True)
class Mode:
    """The posterior's mode.

    Attributes
    ----------
    latent : (n,) float64
        f, where Newton's method ended.
    probabilities, root, coefficients : (n,) float64
        pi and W^1/2 of the last step's start, and a, of which f = K a.
    factor : (n, n) float64
        L of B = L L', in Fortran order; what stands above its diagonal means nothing.
    evidence : float
        log Z, the approximate log marginal likelihood.
    """

    latent: FloatArray
    probabilities: FloatArray
    root: FloatArray
    coefficients: FloatArray
    factor: FloatArray
    evidence: float


def posterior_mode(K: FloatArray, y: FloatArray, start: FloatArray, max_iterations: int) -> Mode:
    """Newton's method from `start`, at most so many steps (algorithm 3.1).

    Parameters
    ----------
    K : (n, n) float64
        Symmetric, with the kernel's own noise.
    y : (n,) float64
        0 or 1.
    start : (n,) float64

    Raises
    ------
    NumericalError
        Entries that are not finite, so that B has no factor.
    """
    n, f, signs, best = len(y), start, 2.0 * y - 1.0, -math.inf
    B = np.empty((n, n))
    for _ in range(max_iterations):
        pi = expit(f)
        W = pi * (1.0 - pi)
        root = np.sqrt(W)
        np.multiply(K, root, out=B)
        B *= root[:, None]
        lower = with_noise(B, np.ones(n))
        if not factor(lower):
            raise NumericalError("the kernel's matrix has entries that are not finite, or is far from definite")
        b = W * f + (y - pi)
        a = b - root * solve_factored(lower, (root * (K @ b))[:, None])[:, 0]
        f = K @ a
        evidence = -0.5 * float(a @ f) - float(np.logaddexp(0.0, -signs * f).sum())
        evidence -= float(np.log(np.diagonal(lower)).sum())
        mode = Mode(f, pi, root, a, lower, max(best, evidence))
        if evidence - best < _LEAST_RISE:
            break
        best = evidence
    return mode


def evidence_gradient(tree: Node, pair: Pair, pull: Any, K: FloatArray, y: FloatArray, mode: Mode) -> FloatArray:
    """Derivatives of log Z with respect to theta, (q,); takes the place of the mode's factor."""
    pi, root, inverse = mode.probabilities, mode.root, mode.factor
    invert_factored(inverse)
    fill_upper(inverse)
    s = -0.5 * (1.0 - np.diagonal(inverse)) * (1.0 - 2.0 * pi)
    R = inverse.T
    R *= root
    R *= root[:, None]
    u = s - R @ (K @ s)
    R *= -0.5
    R += np.outer(0.5 * mode.coefficients, mode.coefficients)
    R += np.outer(u, y - pi)
    return np.asarray(pull(R) + tree.noise_pullback(pair.left, np.diagonal(R)))


def average_logistic(mean: FloatArray, variance: FloatArray) -> FloatArray:
    """E[1 / (1 + exp(-f))] for f normal, (r,) each, by error functions, whose averages are error functions.

    E[erf(l f)] = erf(l m / sqrt(1 + 2 l^2 v)); the sum of five is within 5e-4 of the logistic function's average.
    """
    widths = _WIDTHS[:, None]
    averages = erf(widths * mean / np.sqrt(1.0 + 2.0 * widths**2 * np.maximum(variance, 0.0)))
    return np.asarray(0.5 * (_WEIGHTS @ averages + _WEIGHTS.sum()))
