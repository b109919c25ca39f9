"""The methods that the papers compare theirs with, word for word and dense: steps without an end, from alpha = 0.

Each yields the variables that a step moved, alpha after it, and the gradient g = Kbar alpha - y there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

Steps = Iterator[tuple[list[int], np.ndarray, np.ndarray]]
# The active set of a round, by its number and the gradient.
ActiveSet = Callable[[int, np.ndarray], list[int]]


def cyclic(n: int, m: int, seed: int) -> ActiveSet:
    """BCDC: "selects an active set using the cyclic order", m consecutive ones of it; the order is dkgp's draw."""

    def active(number: int, g: np.ndarray) -> list[int]:
        cycle, position = divmod(number, -(-n // m))
        order = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, cycle]))).permutation(n)
        return [int(i) for i in order[position * m : (position + 1) * m]]

    return active


def by_gradient(m: int) -> ActiveSet:
    """BCDG: equation (4), the m largest |g_i|."""

    def active(number: int, g: np.ndarray) -> list[int]:
        return sorted(range(len(g)), key=lambda i: -abs(g[i]))[:m]

    return active


def block_descent(Kbar: np.ndarray, y: np.ndarray, active: ActiveSet) -> Steps:
    """Section 1: "minimises the objective function along active dimensions while inactive variables are fixed"."""
    alpha, number = np.zeros(len(y)), 0
    while True:
        g = Kbar @ alpha - y
        B = active(number, g)
        alpha[B] -= np.linalg.solve(Kbar[np.ix_(B, B)], g[B])
        number += 1
        yield B, alpha.copy(), Kbar @ alpha - y


def minimal_optimisation(Kbar: np.ndarray, y: np.ndarray) -> Steps:
    """SMO: "the working set only includes two variables", the maximal violating pair, "solved analytically".

    Without a bias there is no equality constraint: the pair is the largest and the smallest gradient.
    """
    alpha = np.zeros(len(y))
    while True:
        g = Kbar @ alpha - y
        pair = [int(np.argmax(g)), int(np.argmin(g))]
        (a, b), (ga, gb) = pair, g[pair]
        determinant = Kbar[a, a] * Kbar[b, b] - Kbar[a, b] ** 2
        alpha[a] += (Kbar[a, b] * gb - Kbar[b, b] * ga) / determinant
        alpha[b] += (Kbar[a, b] * ga - Kbar[a, a] * gb) / determinant
        yield pair, alpha.copy(), Kbar @ alpha - y


def conjugate_gradients(Kbar: np.ndarray, y: np.ndarray) -> Steps:
    """CG on equation (3), as Hestenes and Stiefel have it (and the pursuit paper's Algorithm 5)."""
    n = len(y)
    alpha, g = np.zeros(n), -y
    p = -g
    while True:
        eta = -(g @ p) / (p @ Kbar @ p)
        alpha = alpha + eta * p
        before, g = g, g + eta * Kbar @ p
        p = -g + (g @ g) / (before @ before) * p
        yield list(range(n)), alpha.copy(), g.copy()


def parameter_conjugate_gradients(K: np.ndarray, s2: float, y: np.ndarray) -> Steps:
    """Kernel CG paper's Algorithm 1 with Euclidean inner products and the parameter gradient K gamma (section 2.4).

    The step is section 3's, -alpha'gamma / gamma'A gamma there, with A the Hessian K K' + s2 K of the risk (4).
    """
    n = len(y)
    A, Ky = K @ K + s2 * K, K @ y
    alpha = np.zeros(n)
    slope = A @ alpha - Ky
    h = -slope
    while True:
        alpha = alpha - (slope @ h) / (h @ A @ h) * h
        new = A @ alpha - Ky
        h = -new + ((new - slope) @ new) / (slope @ slope) * h
        slope = new
        yield list(range(n)), alpha.copy(), K @ alpha + s2 * alpha - y
