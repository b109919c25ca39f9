"""Algorithms 1 and 2 of Bo and Sminchisescu (2008), word for word and dense: what the solver is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def greedy_approximation(
    Kbar: np.ndarray, g: np.ndarray, m: int, subsets: Sequence[np.ndarray], kappa: int | None = None
) -> tuple[list[int], np.ndarray]:
    """Algorithm 2; `subsets[t]` is the random draw from which the set O of step t comes (the first is not used).

    A draw may repeat a variable or hold chosen ones: O is what is left of it, the first `kappa` where that is given. A
    step whose O is empty chooses nothing.

    Returns
    -------
    list of int, (|B|,) float64
        B in order of selection, and delta alpha over it.
    """
    n = len(g)
    diagonal = Kbar.diagonal()
    B: list[int] = []
    R, step = np.zeros((0, 0)), np.zeros(0)
    candidates, e = list(range(n)), g.copy()
    for t in range(m):
        if t:
            candidates = [int(i) for i in subsets[t] if i not in B][:kappa]
            e = Kbar[:, B] @ step + g
        if not candidates:
            continue
        s = candidates[int(np.argmin([-(e[i] ** 2) / (2 * diagonal[i]) for i in candidates]))]
        if not B:
            R, step = np.array([[1 / diagonal[s]]]), np.array([-e[s] / diagonal[s]])
        else:
            k_s = Kbar[B, s]
            beta = R @ k_s
            eta = 1 / (diagonal[s] - k_s @ beta)
            extended = np.append(beta, -1.0)
            R = np.pad(R, (0, 1)) + eta * np.outer(extended, extended)  # (12)
            step = np.append(step, 0.0) - eta * (beta @ g[B] - g[s]) * extended  # (13)
        B.append(s)
    return B, step


def block_coordinate_descent(
    Kbar: np.ndarray, y: np.ndarray, m: int, subsets: Iterator[Sequence[np.ndarray]], kappa: int | None = None
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """Algorithm 1: active set, alpha and gradient after each round; `subsets` gives each round's draws."""
    alpha, g = np.zeros(len(y)), -y
    for drawn in subsets:
        B, step = greedy_approximation(Kbar, g, m, drawn, kappa)
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
