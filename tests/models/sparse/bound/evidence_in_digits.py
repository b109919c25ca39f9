"""The evidence of a sparse model in many digits, by its definition: no whitening, no derivatives."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np

from dkgp.operators.low_rank.pivots import jitter

DIGITS, STEP = 60, mpmath.mpf(10) ** -25


def evidence(
    logs: list[Any], X: np.ndarray, Y: np.ndarray, Z: np.ndarray, share: float, fitc: bool, amplitude: bool = True
) -> Any:
    """Return the evidence for a squared exponential with parameters log gamma_1 .. log gamma_d, log v, log s2."""
    gamma, v, s2 = [mpmath.exp(value) for value in logs[:-2]], mpmath.exp(logs[-2]), mpmath.exp(logs[-1])

    def kernel(left: np.ndarray, right: np.ndarray) -> Any:
        entries = mpmath.matrix(len(left), len(right))
        for i, a in enumerate(left):
            for j, b in enumerate(right):
                terms = (g * (mpmath.mpf(p) - mpmath.mpf(q)) ** 2 for g, p, q in zip(gamma, a, b, strict=True))
                entries[i, j] = v * mpmath.exp(-sum(terms))
        return entries

    n, p = Y.shape
    inner, across = kernel(Z, Z), kernel(X, Z)
    for j in range(len(Z)):
        inner[j, j] *= 1 + mpmath.mpf(share)
    Q = across * (inner**-1) * across.T
    left = [v - Q[i, i] for i in range(n)]
    S = Q.copy()
    for i in range(n):
        S[i, i] += s2 + (left[i] if fitc else 0)
    lower = mpmath.cholesky(S)
    value = -p * n * mpmath.log(2 * mpmath.pi) / 2 - p * sum(mpmath.log(lower[i, i]) for i in range(n))
    inverse = S**-1
    for column in Y.T:
        y = mpmath.matrix(column.tolist())
        value -= (y.T * inverse * y)[0] / 2
    return value if fitc else value - p * sum(left) / (2 * s2)


def in_digits(
    values: np.ndarray, X: np.ndarray, Y: np.ndarray, Z: np.ndarray, *, fitc: bool
) -> tuple[float, np.ndarray]:
    """Value and gradient, with the jitter that a basis as small as this has."""
    share = jitter(len(Z), 1.0)
    with mpmath.workdps(DIGITS):
        logs = [mpmath.log(mpmath.mpf(value)) for value in values]
        value = evidence(logs, X, Y, Z, share, fitc)
        gradient = []
        for place in range(len(logs)):
            both = []
            for sign in (-1, 1):
                moved = list(logs)
                moved[place] += sign * STEP
                both.append(evidence(moved, X, Y, Z, share, fitc))
            gradient.append(float((both[1] - both[0]) / (2 * STEP)))
        return float(value), np.array(gradient)
