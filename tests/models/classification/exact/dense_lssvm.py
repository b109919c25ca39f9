"""The exact LS-SVM by other means: one dense solve of its bordered system, in float64 or in 50 digits."""

from __future__ import annotations

from typing import Any

import numpy as np

from dkgp.kernels import Kernel
from tests.models.exact_gp import entry, mp, numbers


def dense_decisions(
    X: np.ndarray, signs: np.ndarray, T: np.ndarray, kernel: Kernel, noise: float | np.ndarray, intercept: bool = True
) -> np.ndarray:
    """Decisions at T (r, d) by equation 22, an LU factor of [[Kbar, 1], [1', 0]] in float64: (r, t)."""
    n = len(X)
    system = np.zeros((n + 1, n + 1))
    system[:n, :n] = kernel(X, X) + np.diag(np.broadcast_to(noise, (n,)))
    system[:n, n] = system[n, :n] = 1.0
    right = np.vstack([signs, np.zeros((1, signs.shape[1]))])
    if not intercept:
        return kernel(T, X) @ np.linalg.solve(system[:n, :n], signs)
    solved = np.linalg.solve(system, right)
    return np.hstack([kernel(T, X), np.ones((len(T), 1))]) @ solved


def digits_decisions(
    X: np.ndarray, signs: np.ndarray, T: np.ndarray, kernel: Kernel, noise: float | np.ndarray, intercept: bool = True
) -> list[list[Any]]:
    """The same in 50 digits: r rows of t numbers."""
    n, rows, tests = len(X), numbers(X), numbers(T)
    each = np.broadcast_to(np.asarray(noise, dtype=np.float64), (n,))
    size = n + int(intercept)
    system, right = mp.matrix(size, size), mp.matrix(size, signs.shape[1])
    for i in range(n):
        for j in range(i + 1):
            system[i, j] = system[j, i] = entry(kernel, rows[i], rows[j])
        system[i, i] += mp.mpf(float(each[i]))
        if intercept:
            system[i, n] = system[n, i] = mp.one
        for column in range(signs.shape[1]):
            right[i, column] = mp.mpf(float(signs[i, column]))
    columns = [mp.lu_solve(system, right[:, column]) for column in range(signs.shape[1])]
    return [
        [
            mp.fsum(entry(kernel, row, x) * solved[j] for j, row in enumerate(rows)) + (solved[n] if intercept else 0)
            for solved in columns
        ]
        for x in tests
    ]
