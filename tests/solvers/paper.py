"""Algorithms 1 and 2 of Bo and Sminchisescu (2008), word for word and dense: what the solver is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

# Step 6 of Algorithm 2: O, of those that are in N.
Draw = Callable[[Sequence[int]], list[int]]


def without(taken: Sequence[int], n: int) -> list[int]:
    """Return N, or I: those of n that are not taken."""
    return [i for i in range(n) if i not in taken]


def dealt(n: int, kappa: int, seed: int, number: int) -> Draw:
    """O as dkgp draws it in a round: sample numbers one after the other, until kappa of N are together, each once."""
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, number])))

    def draw(N: Sequence[int]) -> list[int]:
        if len(N) <= kappa:
            return list(N)
        O, left = list[int](), set(N)
        while len(O) < kappa:
            i = int(rng.integers(0, n))
            if i in left and i not in O:
                O.append(i)
        return O

    return draw


def greedy_approximation(Kbar: np.ndarray, g: np.ndarray, m: int, draw: Draw) -> tuple[list[int], np.ndarray]:
    """Algorithm 2.

    Returns
    -------
    list of int, (m,) float64
        B in order of selection, and delta alpha over it.
    """
    diagonal = Kbar.diagonal()
    B: list[int] = []
    N = list(range(len(g)))
    R, step = np.zeros((0, 0)), np.zeros(0)
    O, e = list(N), g.copy()
    for t in range(m):
        s = O[int(np.argmin([-(e[i] ** 2) / (2 * diagonal[i]) for i in O]))]
        if t == 0:
            R, step = np.array([[1 / diagonal[s]]]), np.array([-e[s] / diagonal[s]])
        else:
            k_s = Kbar[B, s]
            beta = R @ k_s
            eta = 1 / (diagonal[s] - k_s @ beta)
            extended = np.append(beta, -1.0)
            R = np.pad(R, (0, 1)) + eta * np.outer(extended, extended)  # (12)
            step = np.append(step, 0.0) - eta * (beta @ g[B] - g[s]) * extended  # (13)
        B.append(s)
        N.remove(s)
        if t + 1 < m:
            O = draw(N)
            e = Kbar[:, B] @ step + g
    return B, step


def block_coordinate_descent(
    Kbar: np.ndarray, y: np.ndarray, m: int, draws: Iterator[Draw]
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """Algorithm 1: active set, alpha and gradient after each round; `draws` gives each round's way to draw O."""
    alpha, g = np.zeros(len(y)), -y
    for draw in draws:
        B, step = greedy_approximation(Kbar, g, m, draw)
        alpha[B] += step
        g = g + Kbar[:, B] @ step
        yield B, alpha.copy(), g.copy()


def best_by_brute_force(Kbar: np.ndarray, g: np.ndarray, B: list[int], *, prefitting: bool) -> int:
    """The variable outside B whose move decreases the objective most: equation (7), or (8) with the step over B held.

    Parameters
    ----------
    g : (n, p) float64
        Objectives of several targets are added up.
    """

    def decrease(i: int) -> float:
        if prefitting:
            active = [*B, i]
            return 0.5 * float(np.sum(g[active] * np.linalg.solve(Kbar[np.ix_(active, active)], g[active])))
        step = -np.linalg.solve(Kbar[np.ix_(B, B)], g[B]) if B else np.zeros((0, g.shape[1]))
        e = Kbar[i, B] @ step + g[i]
        return float(np.sum(e**2) / (2 * Kbar[i, i]))

    return max((i for i in range(len(g)) if i not in B), key=decrease)
