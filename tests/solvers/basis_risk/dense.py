"""Newton's method on a risk in plain NumPy: the judge of the other one, in coordinates of its own."""

from __future__ import annotations

from typing import Any

import numpy as np


def dense_minimum(
    features: np.ndarray, targets: np.ndarray, loss: Any, regularisation: float, weights: np.ndarray, intercept: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (q, t) and values (n, t) by damped Newton steps on all columns together, from zero."""
    n, t = targets.shape
    F = np.column_stack([features, np.ones(n)]) if intercept else features
    q = F.shape[1]
    ridge = np.full(q, regularisation)
    ridge[features.shape[1] :] = 0.0
    z = np.zeros((q, t))

    def risk(at: np.ndarray) -> float:
        return float(np.sum(weights[:, None] * loss.value(targets, F @ at)) + 0.5 * np.sum(ridge[:, None] * at**2))

    for _ in range(200):
        f = F @ z
        gradient = F.T @ (weights[:, None] * loss.slope(targets, f)) + ridge[:, None] * z
        hessian = np.zeros((t, q, t, q))
        for c in range(t):
            unit = np.zeros((n, t))
            unit[:, c] = 1.0
            for other, curved in enumerate(loss.curvature_times(targets, f, unit).T):
                hessian[c, :, other] = F.T @ ((weights * curved)[:, None] * F)
            hessian[c, :, c] += np.diag(ridge)
        matrix = hessian.reshape(t * q, t * q) + 1e-12 * np.eye(t * q)
        step = -np.linalg.solve(matrix, gradient.T.ravel()).reshape(t, q).T
        size = 1.0
        while risk(z + size * step) > risk(z) * (1.0 + 1e-14) and size > 1e-6:
            size *= 0.5
        z = z + size * step
        if np.abs(size * step).max() < 1e-12 * (1.0 + np.abs(z).max()):
            break
    return z, F @ z
