"""The model with neighbours by its definition: dense matrices, loops over samples, no factors.

A sample depends on the samples of its halo and on those of its own leaf before it; Sigma^-1 = sum over samples of
u u' / D, u = (-A, 1), and Q is added densely.
"""

from __future__ import annotations

import numpy as np

from dkgp.kernels import Kernel
from dkgp.operators.low_rank.pivots import jittered


def low_rank(kernel: Kernel, left: np.ndarray, right: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """Q between two sets of inputs."""
    if not len(Z):
        return np.zeros((len(left), len(right)))
    inner = jittered(np.array(kernel(Z, Z)))
    return np.asarray(kernel(left, Z) @ np.linalg.solve(inner, kernel(Z, right)))


def precision(C: np.ndarray, leaves: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Vecchia's inverse of C, sample by sample; of each leaf its halo and its own samples."""
    n = len(C)
    total = np.zeros((n, n))
    for halo, own in leaves:
        for place, i in enumerate(own):
            before = np.concatenate([halo, own[:place]]).astype(int)
            u, variance = np.zeros(n), C[i, i]
            if len(before):
                A = np.linalg.solve(C[np.ix_(before, before)], C[before, i])
                u[before] = -A
                variance = variance - A @ C[before, i]
            u[i] = 1.0
            total += np.outer(u, u) / variance
    return total


def covariance(
    kernel: Kernel, noise: np.ndarray | float, X: np.ndarray, Z: np.ndarray, leaves: list[tuple[np.ndarray, np.ndarray]]
) -> np.ndarray:
    """Sigma."""
    Q = low_rank(kernel, X, X, Z)
    C = np.asarray(kernel(X, X)) - Q + np.diag(np.broadcast_to(noise, (len(X),)))
    return np.asarray(np.linalg.inv(precision(C, leaves)) + Q)


def log_likelihood(Sigma: np.ndarray, Y: np.ndarray) -> float:
    """log N(Y; 0, Sigma), summed over targets."""
    _, determinant = np.linalg.slogdet(Sigma)
    n, p = Y.shape
    return float(-0.5 * (p * (n * np.log(2.0 * np.pi) + determinant) + np.sum(Y * np.linalg.solve(Sigma, Y))))
