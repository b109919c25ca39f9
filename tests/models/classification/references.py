"""The minimiser of a regularised risk by other means: Newton's method on dense matrices, refined in 50 digits.

Corrections are solved for in float64, gradients evaluated in mpmath's numbers or the C library's long double, so that
what comes out has more digits than float64; how far it is from the minimiser follows from its own gradient.

The exact LS-SVM by other means: one dense solve of its bordered system, in float64 or in 50 digits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg
from scipy.special import erfcx, expit, softmax

from dkgp.kernels import Kernel, SquaredExponential
from tests.models.exact_gp import decimals, entry, in_digits, mp, numbers, of_decimals, solved


def slopes_of(name: str, y: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slopes (n, t) and curvatures (n, t, t) in float64: where Newton's steps come from, nothing more."""
    n, t = f.shape
    curvature = np.zeros((n, t, t))
    if name == "softmax":
        p = softmax(f, axis=1)
        curvature[:] = p[:, :, None] * np.eye(t) - p[:, :, None] * p[:, None, :]
        return p - y, curvature
    margin = y * f
    if name == "probit":
        hazard = np.sqrt(2.0 / np.pi) / erfcx(-margin / np.sqrt(2.0))
        own, slope = np.clip(hazard * (hazard + margin), 1e-12, 1.0), -y * hazard
    else:
        own, slope = expit(margin) * expit(-margin), -y * expit(-margin)
    curvature[:, range(t), range(t)] = own
    return slope, curvature


def losses_of(name: str, y: np.ndarray, f: np.ndarray) -> np.ndarray:
    if name == "softmax":
        top = f.max(axis=1)
        return np.asarray(top + np.log(np.exp(f - top[:, None]).sum(axis=1)) - (y * f).sum(axis=1))[:, None]
    if name == "probit":
        from scipy.special import log_ndtr

        return np.asarray(-log_ndtr(y * f))
    return np.asarray(np.logaddexp(0.0, -y * f))


def newton_correction(K: np.ndarray, W: np.ndarray, lam: float, g: np.ndarray) -> np.ndarray:
    """d with lambda d + W K d = -g, by sample blocks: (n, t)."""
    n, t = g.shape
    system = np.einsum("iab,ij->iajb", W, K).reshape(n * t, n * t)
    system[np.diag_indices(n * t)] += lam
    return np.linalg.solve(system, -g.reshape(-1)).reshape(n, t)


def dense_minimiser(
    K: np.ndarray, y: np.ndarray, name: str, lam: float, weights: np.ndarray | None = None
) -> np.ndarray:
    """Coefficients alpha (n, t) by damped Newton steps in float64."""
    w = np.ones(len(K)) if weights is None else weights
    alpha = np.zeros(y.shape)

    def risk(a: np.ndarray) -> float:
        f = K @ a
        return float((w[:, None] * losses_of(name, y, f)).sum() + 0.5 * lam * (a * f).sum())

    for _ in range(200):
        slope, curvature = slopes_of(name, y, K @ alpha)
        g = w[:, None] * slope + lam * alpha
        step = newton_correction(K, w[:, None, None] * curvature, lam, g)
        length, here = 1.0, risk(alpha)
        while length > 1e-4 and risk(alpha + length * step) > here + 1e-12 * abs(here):
            length /= 2.0
        alpha = alpha + length * step
        if np.abs(step).max() <= 1e-11 * np.abs(alpha).max() and length == 1.0:
            break
    return alpha


def digits_minimiser(
    X: np.ndarray,
    y: np.ndarray,
    T: np.ndarray,
    kernel: Kernel,
    name: str,
    lam: float,
    weights: np.ndarray | None = None,
) -> tuple[list[list[Any]], float]:
    """Decisions at T in 50 digits, and by how much they may miss at most: r rows of t numbers."""
    n, t = y.shape
    rows = numbers(X)
    K = [[entry(kernel, rows[max(i, j)], rows[min(i, j)]) for j in range(n)] for i in range(n)]
    near = np.array([[float(value) for value in row] for row in K])
    w = np.ones(n) if weights is None else weights
    big_w, big_lam = [mp.mpf(float(value)) for value in w], mp.mpf(lam)
    alpha = [[mp.mpf(float(value)) for value in row] for row in dense_minimiser(near, y, name, lam, weights)]
    for _ in range(12):
        f = [[mp.fsum(K[i][j] * alpha[j][c] for j in range(n)) for c in range(t)] for i in range(n)]
        g = [
            [big_w[i] * s + big_lam * alpha[i][c] for c, s in enumerate(exact_slopes(name, y[i], f[i]))]
            for i in range(n)
        ]
        image = [[mp.fsum(K[i][j] * g[j][c] for j in range(n)) for c in range(t)] for i in range(n)]
        square = mp.fsum(g[i][c] * image[i][c] for i in range(n) for c in range(t))
        length = mp.sqrt(max(square, mp.zero))
        if length <= mp.mpf(10) ** -38:
            break
        size = max(abs(value) for row in g for value in row) or mp.one
        scaled = np.array([[float(value / size) for value in row] for row in g])
        _, curvature = slopes_of(name, y, np.array([[float(value) for value in row] for row in f]))
        step = newton_correction(near, w[:, None, None] * curvature, lam, scaled)
        alpha = [[alpha[i][c] + size * mp.mpf(float(step[i, c])) for c in range(t)] for i in range(n)]
    tests = numbers(T)
    cross = [[entry(kernel, x, row) for row in rows] for x in tests]
    decisions = [[mp.fsum(k * a[c] for k, a in zip(line, alpha, strict=True)) for c in range(t)] for line in cross]
    largest = max(mp.sqrt(entry(kernel, x, x)) for x in tests)
    return decisions, float(length / big_lam * largest)


def exact_slopes(name: str, y: np.ndarray, f: list[Any]) -> list[Any]:
    if name == "softmax":
        top = max(f)
        each = [mp.exp(value - top) for value in f]
        return [value / mp.fsum(each) - mp.mpf(float(own)) for value, own in zip(each, y, strict=True)]
    if name == "probit":
        return [-_sign(own) * _hazard(_sign(own) * value) for own, value in zip(y, f, strict=True)]
    return [-_sign(own) / (1 + mp.exp(_sign(own) * value)) for own, value in zip(y, f, strict=True)]


def _sign(own: float) -> Any:
    return mp.mpf(float(own))


def _hazard(margin: Any) -> Any:
    return mp.sqrt(2 / mp.pi) * mp.exp(-margin * margin / 2) / mp.erfc(-margin / mp.sqrt(2))


def long_minimiser(
    X: np.ndarray,
    y: np.ndarray,
    T: np.ndarray,
    kernel: SquaredExponential,
    name: str,
    lam: float,
    weights: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Decisions of a thousand samples or two at T, and by how much they may miss: (r, t) both.

    Entries, values and gradients in the C library's long double; how near they are follows from the gradient.
    """
    n, long = len(X), np.longdouble
    scaled, tests = (rows.astype(long) * np.sqrt(np.asarray(kernel.gamma, long)) for rows in (X, T))

    def entries(rows: np.ndarray) -> np.ndarray:
        square = np.zeros((len(rows), n), long)
        for feature in range(X.shape[1]):
            square += (rows[:, feature, None] - scaled[None, :, feature]) ** 2
        return np.asarray(long(kernel.variance) * np.exp(-square))

    K = entries(scaled)
    near = K.astype(np.float64)
    w = (np.ones(n) if weights is None else weights).astype(long)[:, None]
    alpha = dense_minimiser(near, y, name, lam, weights).astype(long)
    best, where = np.inf, alpha
    for _ in range(6):
        f = K @ alpha
        if name == "softmax":
            p = np.exp(f - f.max(axis=1, keepdims=True))
            slope = p / p.sum(axis=1, keepdims=True) - y
        else:
            assert name == "logit"
            slope = -y / (1.0 + np.exp(y * f))
        g = w * slope + long(lam) * alpha
        length = float(np.sqrt(max(float((g * (K @ g)).sum()), 0.0)))
        if length >= best:
            break
        best, where = length, alpha
        _, curvature = slopes_of(name, y, f.astype(np.float64))
        alpha = alpha + newton_correction(near, w.astype(np.float64)[:, :, None] * curvature, lam, g.astype(np.float64))
    decisions = (entries(tests) @ where).astype(np.float64)
    return decisions, np.full(decisions.shape, best / lam * np.sqrt(kernel.variance)) + 1e-15 * np.abs(decisions)


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
    """Return the decisions in 50 digits: r rows of t numbers."""
    n, rows, tests = len(X), numbers(X), numbers(T)
    each = np.broadcast_to(np.asarray(noise, dtype=np.float64), (n,))
    size = n + int(intercept)
    system, right = np.full((size, size), mp.one), np.full((size, signs.shape[1]), mp.zero)
    for i in range(n):
        for j in range(i + 1):
            system[i, j] = system[j, i] = entry(kernel, rows[i], rows[j])
        system[i, i] += mp.mpf(float(each[i]))
    system[n:, n:] = mp.zero
    right[:n] = numbers(signs)
    cross = [[*(entry(kernel, row, x) for row in rows), mp.one][:size] for x in tests]
    with in_digits():
        return list(of_decimals(decimals(cross) @ solved(decimals(system), decimals(right))))


def refined_decisions(
    X: np.ndarray, signs: np.ndarray, T: np.ndarray, kernel: SquaredExponential, noise: float | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Decisions of a few thousand samples, and their change in the last of a few refinements: (r, t) both.

    A Cholesky factor in float64, and residuals in the C library's long double, whose entries are too: where it
    converges, its digits are more than float64 has.
    """
    n, long = len(X), np.longdouble
    scaled, tests = (rows.astype(long) * np.sqrt(np.asarray(kernel.gamma, long)) for rows in (X, T))

    def entries(rows: np.ndarray) -> np.ndarray:
        square = np.zeros((len(rows), n), long)
        for feature in range(X.shape[1]):
            square += (rows[:, feature, None] - scaled[None, :, feature]) ** 2
        return np.asarray(long(kernel.variance) * np.exp(-square))

    matrix = entries(scaled)
    matrix[np.diag_indices(n)] += np.broadcast_to(np.asarray(noise, long), (n,))
    factor = scipy.linalg.cho_factor(matrix.astype(np.float64), lower=True)
    right = np.column_stack([signs, np.ones(n)]).astype(long)
    cross, solved, before = entries(tests), np.zeros_like(right), np.zeros((len(T), signs.shape[1]), long)
    for _ in range(8):
        solved += scipy.linalg.cho_solve(factor, (right - matrix @ solved).astype(np.float64))
        intercept = solved[:, :-1].sum(axis=0) / solved[:, -1].sum()
        decisions = cross @ (solved[:, :-1] - solved[:, -1:] * intercept) + intercept
        change, before = np.abs(decisions - before), decisions
    return decisions.astype(np.float64), change.astype(np.float64)


@dataclass(frozen=True)
class Approximation:
    """An approximate solution of Kbar E = [Y, 1], as `DecisionCertificate.of` takes it."""

    alpha: np.ndarray
    gradient: np.ndarray
    stepped: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    product_error: float = 0.0

    @property
    def product_errors(self) -> np.ndarray:
        """Return the error of each entry of a product; empty if products are exact."""
        return np.full(self.gradient.shape, self.product_error) if self.product_error else np.zeros((0, 0))
