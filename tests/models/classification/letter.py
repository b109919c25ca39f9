"""Coupled simulated annealing with variance control and Nelder and Mead's simplex, word for word, one number at a time.

Xavier-de-Souza and others (2010) and Nelder and Mead (1965), which the pursuit paper's section 4.4 takes; it prints
none of their constants. Those here, the draws and what ends the simplex are dkgp's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

Score = Callable[..., float]


def annealed(score: Score, start: tuple[float, ...], seed: int = 0, steps: int = 20, polish: int = 45) -> None:
    """Ask `score` for one point after the other."""
    q, d = 5, len(start)

    def draws(step: int, i: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, step, i])))

    x = [list(start)]
    for i in range(1, q):
        offset = draws(0, i).uniform(-2.0, 2.0, d)
        x.append([start[j] + offset[j] for j in range(d)])
    E = [score(*point) for point in x]
    best, least = min(zip(x, E, strict=True), key=lambda pair: pair[1])
    T_gen, T_ac = 1.0, 1.0
    for k in range(1, steps + 1):
        rng = [draws(k, i) for i in range(q)]
        y = []
        for i in range(q):
            probe = []
            for j in range(d):
                for _ in range(15):
                    value = x[i][j] + T_gen * math.tan(math.pi * (rng[i].uniform() - 0.5))
                    if abs(value - start[j]) <= 10.0:
                        break
                else:
                    value = x[i][j]
                probe.append(value)
            y.append(probe)
        E_y = [score(*point) for point in y]
        for point, value in zip(y, E_y, strict=True):
            if value < least:
                best, least = point, value
        # The coupling: gamma of all current states, each accepting by its own share of it.
        coupling = sum(math.exp((E[i] - max(E)) / T_ac) for i in range(q))
        A = [math.exp((E[i] - max(E)) / T_ac) / coupling for i in range(q)]
        for i in range(q):
            r = rng[i].uniform()
            if E_y[i] < E[i] or A[i] > r:
                x[i], E[i] = y[i], E_y[i]
        # Variance control: sigma^2 of the acceptances against the wished share of its greatest, (q - 1) / q^2.
        variance = sum(a * a for a in A) / q - 1.0 / q**2
        T_ac *= 1.1 if variance > 0.995 * (q - 1) / q**2 else 0.9
    simplex = [(list(best), least)]
    for j in range(d):
        corner = [best[i] + (0.5 if i == j else 0.0) for i in range(d)]
        simplex.append((corner, score(*corner)))
    nelder_mead(score, simplex, polish - d, 1e-4 * abs(least))


def rounded(place: Sequence[float]) -> tuple[float, ...]:
    """A point up to rounding: two ways to come back to one differ in their last bits."""
    return tuple(round(float(value), 9) for value in place)


class _SpentError(Exception):
    pass


def nelder_mead(score: Score, simplex: list[tuple[list[float], float]], budget: int, alike: float) -> None:
    """Reflect, expand, contract on either side, or shrink, until points are within 0.02 and values alike."""
    known, budget = {rounded(place): value for place, value in simplex}, budget + len(simplex)

    def point(place: list[float]) -> tuple[list[float], float]:
        if rounded(place) not in known:  # a point that it comes back to is not scored again
            if len(known) == budget:
                raise _SpentError
            known[rounded(place)] = score(*place)
        return place, known[rounded(place)]

    d = len(simplex) - 1
    try:
        while True:
            simplex.sort(key=lambda vertex: vertex[1])
            (low, f_low), (high, f_high) = simplex[0], simplex[-1]
            near = all(abs(v[j] - low[j]) <= 0.02 for v, _ in simplex for j in range(d))
            if near and all(abs(f - f_low) <= alike for _, f in simplex):
                return
            centre = [sum(v[j] for v, _ in simplex[:-1]) / d for j in range(d)]

            def away(share: float, centre: list[float] = centre, high: list[float] = high) -> list[float]:
                return [centre[j] + share * (centre[j] - high[j]) for j in range(d)]

            reflected = point(away(1.0))
            if reflected[1] < f_low:
                expanded = point(away(2.0))
                simplex[-1] = expanded if expanded[1] < reflected[1] else reflected
            elif reflected[1] < simplex[-2][1]:
                simplex[-1] = reflected
            else:
                outside = reflected[1] < f_high
                contracted = point(away(0.5 if outside else -0.5))
                if contracted[1] <= reflected[1] if outside else contracted[1] < f_high:
                    simplex[-1] = contracted
                else:
                    simplex[1:] = [point([low[j] + 0.5 * (v[j] - low[j]) for j in range(d)]) for v, _ in simplex[1:]]
    except _SpentError:
        return
