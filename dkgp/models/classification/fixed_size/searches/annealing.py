"""Coupled Simulated Annealing with variance control, and Nelder-Mead from the best that it found.

Several probes walk by Cauchy steps; each takes a step uphill with a probability that depends on the scores of all, and
the acceptance temperature follows the variance of these probabilities, so that it needs no schedule of its own. All
probes of a step are one pass over the data. The walk's constants are those of the authors' program (LS-SVMlab), which
changes the acceptance temperature once for the twenty steps at a generation temperature; here it follows every step.
The simplex's constants are chosen here.

References
----------
S. Xavier-de-Souza, J. A. K. Suykens, J. Vandewalle, D. Bolle, Coupled simulated annealing, IEEE Transactions on
Systems, Man, and Cybernetics B 40 (2010). P. Karsmakers, K. Pelckmans, K. De Brabanter, H. Van hamme, J. A. K. Suykens,
Sparse conjugate directions pursuit with application to fixed-size kernel models, Machine Learning 85 (2011), section 5.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from dkgp.errors import InputError
from dkgp.models.classification.fixed_size.searches.asked import Plan, Point, RecordedSearch

PROBES = 5
# A step that leads farther than this from the start is drawn again, so often at most.
REACH, DRAWS = 10.0, 15
# The variance of acceptances that is aimed at, in units of its greatest, and what the temperature changes by.
VARIANCE, WARMER, COLDER = 0.995, 1.1, 0.9
# Of the simplex, and where it is small enough: in logarithms, and as a share of the score.
SIMPLEX, NEAR, ALIKE = 0.5, 0.02, 1e-4
# Nelder-Mead compares values, and subtracts them only to see whether they are alike.
WORST = 1e300


class AnnealingSearch(RecordedSearch):
    """Coupled Simulated Annealing over logarithms, then Nelder-Mead.

    Parameters
    ----------
    start : tuple of float
        Logarithms to begin at: of the common scale, and of the noise variance. The first probe stands there, the others
        within `spread` of it in each coordinate.
    seed : int
        Every draw is a function of the seed, the step and the probe.
    steps, temperatures : int
        Steps of each probe at one generation temperature, T_k = 1 / k at the k-th, and how many of these.
    polish : int
        Scores that Nelder-Mead may ask for; 0 leaves it out.
    """

    name = "annealing"

    def __init__(
        self,
        start: Point,
        *,
        seed: int = 0,
        spread: float = 2.0,
        steps: int = 20,
        temperatures: int = 1,
        polish: int = 45,
    ) -> None:
        if not 0.0 < spread <= REACH or min(steps, polish) < 0 or temperatures < 1 or seed < 0:
            raise InputError(
                f"an annealing search needs 0 < spread <= {REACH:g}, steps and polish of 0 or more, one temperature at "
                f"least and a seed of 0 or more; got {spread}, {steps}, {polish}, {temperatures}, {seed}"
            )
        self._seed, self._spread, self._steps = seed, spread, steps
        self._temperatures, self._polish = temperatures, polish
        super().__init__(start)

    def settings(self) -> dict[str, Any]:
        """Everything that determines the search, beside the scores, as JSON."""
        return {
            "start": list(self.start),
            "seed": self._seed,
            "spread": self._spread,
            "steps": self._steps,
            "temperatures": self._temperatures,
            "polish": self._polish,
        }

    def plan(self) -> Plan:
        """Walk, then close in."""
        yield from self._walk()
        if self._polish and math.isfinite(self.best[1]):
            yield from self._close_in(*self.best)

    def _draws(self, step: int, probe: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(np.random.SeedSequence([self._seed, step, probe])))

    def _walk(self) -> Plan:
        spread = self._spread
        others = [self._draws(0, probe).uniform(-spread, spread, len(self.start)) for probe in range(1, PROBES)]
        places = np.asarray([self.start, *(np.asarray(self.start) + offset for offset in others)])
        values = np.asarray((yield _points(places)))
        temperature = 1.0
        for step in range(1, self._temperatures * self._steps + 1):
            accepted = acceptances(values, temperature)
            reach = 1.0 / (1 + (step - 1) // self._steps)
            draws = [self._draws(step, probe) for probe in range(PROBES)]
            tried = np.asarray([self._stepped(place, reach, rng) for place, rng in zip(places, draws, strict=True)])
            scores = np.asarray((yield _points(tried)))
            chances = np.asarray([rng.uniform() for rng in draws])
            taken = (scores < values) | (np.isfinite(scores) & (accepted > chances))
            places[taken], values[taken] = tried[taken], scores[taken]
            aimed = VARIANCE * (PROBES - 1) / PROBES**2
            temperature *= WARMER if float(np.mean(accepted**2)) - 1.0 / PROBES**2 > aimed else COLDER

    def _stepped(self, place: NDArray[np.float64], reach: float, rng: np.random.Generator) -> NDArray[np.float64]:
        """A Cauchy step from a place; a coordinate that is out of reach is drawn again, and stays in the end."""
        new, centre = place.copy(), np.asarray(self.start)
        for coordinate in range(len(place)):
            for _ in range(DRAWS):
                value = place[coordinate] + reach * math.tan(math.pi * (rng.uniform() - 0.5))
                if abs(value - centre[coordinate]) <= REACH:
                    new[coordinate] = value
                    break
        return new

    def _close_in(self, best: Point, value: float) -> Plan:
        """Nelder-Mead, asked for one point after the other: scipy runs anew over the scores known, up to a new one."""
        simplex = [best]
        for coordinate in range(len(best)):
            corner = list(best)
            corner[coordinate] += SIMPLEX
            simplex.append(tuple(corner))
        scores = yield simplex[1:]
        known = dict(zip(simplex, (value, *scores), strict=True))
        while len(known) <= self._polish:
            point = _wanted(known, simplex, value)
            if point is None:
                return
            (score,) = yield [point]
            known[point] = score


class _UntoldError(Exception):
    """A score that Nelder-Mead wants, and nobody told."""

    def __init__(self, point: Point) -> None:
        super().__init__(point)
        self.point = point


def _wanted(known: dict[Point, float], simplex: list[Point], scale: float) -> Point | None:
    """The first point that Nelder-Mead asks for and that is not known; None where it ends without one."""

    def look_up(place: NDArray[np.float64]) -> float:
        point = tuple(place.tolist())
        if point not in known:
            raise _UntoldError(point)
        return min(known[point], WORST)

    options = {
        "initial_simplex": np.asarray(simplex),
        "xatol": NEAR,
        "fatol": ALIKE * abs(scale),
        "maxfev": None,
        "maxiter": 10_000,
    }
    try:
        minimize(look_up, np.asarray(simplex[0]), method="Nelder-Mead", options=options)
    except _UntoldError as untold:
        return untold.point
    return None


def acceptances(values: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Probability of each probe to take a step uphill: exp((E_i - max E) / T) over their sum; (q,).

    The worst probes take it most. Those without a score share all of it.
    """
    lost = ~np.isfinite(values)
    if lost.any():
        return np.asarray(lost / lost.sum())
    weights = np.exp((values - values.max()) / temperature)
    return np.asarray(weights / weights.sum())


def _points(places: NDArray[np.float64]) -> list[Point]:
    return [tuple(place) for place in places.tolist()]
