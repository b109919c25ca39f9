"""Averages over normal latent functions: of a sigmoid, and of softmax.

E[sigma(F)] of a normal F, for the logistic sigma: small relative error in either tail, at any variance.

For a mean m <= 0 (the other side follows from sigma(-f) = 1 - sigma(f)) and standard deviation s,

    s <= 1:  integral of phi(z) sigma(m + s z) dz,
    s > 1:   integral of sigma'(l) Phi((m - l) / s) dl,

the second is the first by parts: the probability that a logistic variable is below F. Both integrands are
positive, and analytic where |Im| < pi / 2; there they are at most 4 e^(pi^2 / 8) = 13.8 times their values on the real
line:

    |sigma(x + i y)| <= 2 sigma(x),  |sigma'(x + i y)| <= 2 sigma'(x)  for |y| <= pi / 2,
    |phi(x + i y)| = e^(y^2 / 2) phi(x),  |Phi(x + i y)| <= e^(y^2 / 2) Phi(x).

The trapezoidal rule of step h is therefore off by at most 2 * 13.8 / (e^(pi^2 / h) - 1) of the integral (Trefethen and
Weideman, *The exponentially convergent trapezoidal rule*, 2014, theorem 5.1), 2e-16 for h = 1/4: of the integral,
however small. The part beyond the nodes is smaller still: for s <= 1, with |z| <= 10, at most 4 e^(1/2) Q(9) of
it, by sigma(m + s z) <= sigma(m) e^(s |z|) and E >= sigma(m) / 2; for s > 1, with m - 42 <= l <= 42, at most 6 e^-42,
by E >= sigma(m) / 2 and E >= Phi(m / s) / 2.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Literal

import numpy as np
import scipy

from dkgp.data.types import FloatArray, IntArray

STEP = 0.25
FARTHEST, REACH = 10.0, 42.0
# Below it sigma' is zero in float64, and with it all that nodes beyond could add.
LEAST = -760.0
# Range of means that share their nodes.
MEANS_TOGETHER = 32.0
# Values at nodes that are held at a time.
NODES_AT_ONCE = 200_000
# Of the rule 5e-16 by the above; of a sum of positive terms in NumPy's pairs, and of the integrand's functions, a few
# dozen roundings. An argument's rounding moves sigma by |f| u of itself, up to 8e-14 where sigma is above the smallest
# normal number, and Phi by z^2 u, up to 1.7e-13, each time it is rounded: Phi's is carried in two numbers.
RELATIVE_ERROR = 1e-13
# Beyond it the normal tail is below the smallest number.
NO_TAIL = 40.0
# Splits a number of 53 bits into two of 26.
SPLIT = 2.0**27 + 1.0


# Of Sobol's sequence, scrambled with a fixed seed, and their opposites.
SOFTMAX_DRAWS = 4096


def expected_sigmoid(mean: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """E[sigma(F)] and E[sigma(-F)] for F normal, either to `RELATIVE_ERROR` of itself.

    `mean`, `variance` (r,): the mean finite; the variance not negative, perhaps infinite.

    The two arrays, (r,), add up to one. Below the smallest normal number the error is an absolute one of 1e-307.
    """
    unknown = np.isinf(variance)
    variance = np.where(unknown, 0.0, variance)
    below, deviation = -np.abs(mean), np.sqrt(variance)
    small, narrow = np.empty(len(mean)), deviation <= 1.0
    for rows in _pieces(np.flatnonzero(narrow), 2.0 * FARTHEST / STEP):
        small[rows] = _narrow(below[rows], deviation[rows])
    # How far nodes go depends on a row's own mean: no row's bits depend on the others.
    distance = np.minimum(np.ceil(-below / MEANS_TOGETHER) * MEANS_TOGETHER, -LEAST)
    for farthest in np.unique(distance[~narrow]).tolist():
        for rows in _pieces(np.flatnonzero(~narrow & (distance == farthest)), (farthest + 2.0 * REACH) / STEP):
            small[rows] = _wide(below[rows], variance[rows], farthest)
    small[unknown] = 0.5
    large = 1.0 - small
    return np.where(mean > 0.0, large, small), np.where(mean > 0.0, small, large)


def averaged_sigmoid(
    likelihood: Literal["logit", "probit"], mean: FloatArray, variance: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """E[p(+1 | F)] and E[p(-1 | F)] of normal F with means and variances of any one shape, by the likelihood's name."""
    if likelihood == "probit":
        z = mean / np.sqrt(1.0 + variance)
        return np.asarray(scipy.special.ndtr(z)), np.asarray(scipy.special.ndtr(-z))
    positive, negative = expected_sigmoid(mean.reshape(-1), variance.reshape(-1))
    return positive.reshape(mean.shape), negative.reshape(mean.shape)


def averaged_softmax(mean: FloatArray, covariance: FloatArray) -> FloatArray:
    """Means of softmax over normal functions, by `SOFTMAX_DRAWS` fixed draws: (r, C), whose rows sum to one.

    `mean` (r, C). `covariance` (r, C, C): positive semidefinite; where it is not finite, classes have equal shares.
    """
    r, n_classes = mean.shape
    unknown = np.asarray(~np.isfinite(covariance).all(axis=(1, 2)))
    roots = _roots(np.where(unknown[:, None, None], 0.0, covariance))
    draws = _draws(n_classes)
    result = np.empty((r, n_classes))
    step = max(1, NODES_AT_ONCE // (len(draws) * n_classes))
    for start in range(0, r, step):
        rows = slice(start, min(start + step, r))
        values = np.einsum("sj,rij->rsi", draws, roots[rows]) + mean[rows, None, :]
        result[rows] = scipy.special.softmax(values, axis=2).mean(axis=1)
    result[unknown] = 1.0
    return np.asarray(result / result.sum(axis=1, keepdims=True))


def _roots(covariance: FloatArray) -> FloatArray:
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :])


@cache
def _draws(n_classes: int) -> FloatArray:
    """Standard normal draws with mean zero, each with its opposite: (SOFTMAX_DRAWS, C)."""
    from scipy.stats import qmc  # a third of a second, of several classes alone

    points = qmc.Sobol(n_classes, scramble=True, seed=0).random(SOFTMAX_DRAWS // 2)
    half = scipy.special.ndtri(np.clip(points, 1e-12, 1.0 - 1e-12))
    return np.concatenate([half, -half])


def _narrow(mean: FloatArray, deviation: FloatArray) -> FloatArray:
    z = np.arange(-FARTHEST, FARTHEST + STEP / 2.0, STEP)
    values = scipy.special.expit(mean[:, None] + deviation[:, None] * z)
    values *= STEP * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return np.asarray(values.sum(axis=1))


def _wide(mean: FloatArray, variance: FloatArray, farthest: float) -> FloatArray:
    nodes = np.arange(REACH, max(-farthest - REACH, LEAST) - STEP, -STEP)
    values = _normal_below(mean[:, None], nodes, variance[:, None])
    values *= STEP * scipy.special.expit(nodes) * scipy.special.expit(-nodes)
    return np.asarray(values.sum(axis=1))


def _normal_below(mean: FloatArray, nodes: FloatArray, variance: FloatArray) -> FloatArray:
    """Phi((m - l) / sqrt(v)) for v above 1, to a few roundings of itself in its tail: z is there to twice the digits.

    With z the rounded quotient and z + dz the exact one, z^2 = q + r exactly (Dekker, 1971), and
    Phi(z + dz) = erfcx(|z| / sqrt 2) / 2 exp(-q / 2) (1 - r / 2 - z dz), for z < 0, but for terms in u^2 z^4.
    """
    root = np.sqrt(variance)
    square, rest = _product(root, root)
    root_rest = ((variance - square) - rest) / (2.0 * root)
    distance = mean - nodes
    taken = mean - distance
    distance_rest = (mean - (distance + taken)) + (taken - nodes)
    z = distance / root
    tailed = np.abs(z) < NO_TAIL
    z = np.clip(z, -NO_TAIL, NO_TAIL)
    product, rest = _product(z, root)
    z_rest = np.where(tailed, ((distance - product) - rest + distance_rest - z * root_rest) / root, 0.0)
    square, rest = _product(z, z)
    tail = 0.5 * scipy.special.erfcx(np.sqrt(0.5) * np.abs(z)) * np.exp(-0.5 * square)
    tail *= 1.0 - (0.5 * rest + z * z_rest)
    return np.asarray(np.where(z > 0.0, 1.0 - tail, tail))


def _product(a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the rounded product of numbers below 1e299, and its rounding error (Dekker, 1971)."""
    product = a * b
    a_high, b_high = (SPLIT * number - (SPLIT * number - number) for number in (a, b))
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _pieces(rows: IntArray, nodes: float) -> list[IntArray]:
    return np.array_split(rows, -(-len(rows) // max(1, int(NODES_AT_ONCE / nodes)))) if len(rows) else []
