"""Plans of a search for the kernel's scale: each asks for points, and is told their scores.

The score of a point is that of cross-validation; smaller is better. The points of one `ask` can share one pass over the
data. Coordinates are logarithms relative to the start of the search: the first is that of the factor which all inverse
squared length scales share. A plan is a function of its settings and of the scores that it was told. So its state is
these scores, and a plan that is restored from them goes on to the same bits.

References
----------
S. Xavier-de-Souza, J. A. K. Suykens, J. Vandewalle, D. Bolle, Coupled simulated annealing, IEEE Transactions on
Systems, Man, and Cybernetics B 40 (2010). P. Karsmakers, K. Pelckmans, K. De Brabanter, H. Van hamme, J. A. K. Suykens,
Sparse conjugate directions pursuit with application to fixed-size kernel models, Machine Learning 85 (2011), section 5.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from dkgp.codec import to_json
from dkgp.errors import InputError

Point = tuple[float, ...]
# A plan yields points, and is sent their scores.
Plan = Generator[list[Point], list[float], None]

# Of the interval beside the best point, from the point.
GOLDEN = (3.0 - math.sqrt(5.0)) / 2.0
PROBES = 5
# A step that leads farther than this from the start is drawn again, so often at most.
REACH, DRAWS = 10.0, 15
# The variance of acceptances that is aimed at, in units of its greatest, and the temperature's factors.
VARIANCE, WARMER, COLDER = 0.995, 1.1, 0.9
# Edge of the simplex, and where it is small enough: in logarithms, and as a share of the score.
SIMPLEX, NEAR, ALIKE = 0.5, 0.02, 1e-4
# Nelder-Mead compares values, and subtracts them only to see whether they are alike.
WORST = 1e300


@dataclass(eq=False)
class RecordedSearch(ABC):
    """A plan with a name, and the scores that it was told. Its fields are its settings."""

    name: ClassVar[str]
    _told: list[tuple[list[Point], list[float]]] = field(init=False, repr=False)
    _plan: Plan = field(init=False, repr=False)
    _wanted: list[Point] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.first or not all(math.isfinite(value) for value in self.first):
            raise InputError(f"a search starts at a point of finite coordinates, one at least; got {self.first}")
        self._begin()

    def _begin(self) -> None:
        self._told = []
        self._plan = self.plan()
        self._wanted = next(self._plan, [])

    @property
    @abstractmethod
    def first(self) -> Point:
        """The point that the search starts at."""

    @abstractmethod
    def plan(self) -> Plan:
        """Yield the points whose scores are wanted; each is sent back, infinity for those without one."""

    def ask(self) -> list[Point]:
        """Points whose scores are wanted next, the same until they are told; none once the search has ended."""
        return list(self._wanted)

    def tell(self, values: Sequence[float]) -> None:
        """Take in the scores of the points of the last `ask`, in their order; `InputError` for more or fewer."""
        if len(values) != len(self._wanted) or not values:
            raise InputError(f"the search asked for {len(self._wanted)} points; it was told {len(values)} scores")
        scores = [float(value) if math.isfinite(value) else math.inf for value in values]
        self._told.append((self._wanted, scores))
        try:
            self._wanted = self._plan.send(scores)
        except StopIteration:
            self._wanted = []

    @property
    def passes(self) -> int:
        """Number of times that scores were told."""
        return len(self._told)

    @property
    def trail(self) -> list[tuple[Point, float]]:
        """All points and their scores, in order."""
        return [pair for points, scores in self._told for pair in zip(points, scores, strict=True)]

    @property
    def best(self) -> tuple[Point, float]:
        """The point of the least score so far, the first of equals, and its score; the start before any was told."""
        return min(self.trail, key=lambda pair: pair[1], default=(self.first, math.inf))

    def state(self) -> dict[str, Any]:
        """Settings and scores, as JSON; null stands for a score that was not finite."""
        scores = [[value if math.isfinite(value) else None for value in values] for _, values in self._told]
        return {"name": self.name, "settings": to_json(self), "scores": scores}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from the scores of another search of the same settings; `InputError` for the state of another one."""
        mine = {"name": self.name, "settings": to_json(self)}
        theirs = {"name": state.get("name"), "settings": state.get("settings")}
        if mine != theirs:
            raise InputError(f"a search of {mine} cannot go on from the state of {theirs}; give the same settings")
        self._begin()
        for values in state["scores"]:
            self.tell([math.inf if value is None else value for value in values])


@dataclass(eq=False)
class ProfileSearch(RecordedSearch):
    """The least of a score over the one scale that all inverse squared length scales share.

    The noise is no coordinate: the score of a point is that of the best noise there, which costs no further pass over
    the data. Three points bracket the minimum, or show where it is downhill. The search then goes outwards, two points
    a pass, until there is a bracket, and then inwards: the vertex of the parabola through the best three, and where
    `together` allows it a golden section of the other side.

    Places are logarithms of a scale: the search begins at `start`, with a bracket of half width `step`, and goes no
    farther than `reach`. It ends once the best point's neighbours are nearer than `tolerance`, are as good but for the
    share `negligible` of the score, or the parabola promises no more; or after so many `evaluations`, three at least.
    `together` points of a pass within the bracket are 1 or 2.
    """

    name = "profile"

    start: float = 0.0
    _: KW_ONLY
    step: float = math.log(4.0)
    reach: float = 5.0 * math.log(4.0)
    tolerance: float = 0.1
    negligible: float = 1e-3
    evaluations: int = 12
    together: int = 1

    def __post_init__(self) -> None:
        if not (0.0 < self.tolerance < self.step <= self.reach) or self.evaluations < 3 or self.together not in (1, 2):
            raise InputError(
                "a profile search needs 0 < tolerance < step <= reach, 3 evaluations at least, and 1 or 2 points "
                f"together; got tolerance {self.tolerance}, step {self.step}, reach {self.reach}, evaluations "
                f"{self.evaluations}, together {self.together}"
            )
        super().__post_init__()

    @property
    def first(self) -> Point:
        """The logarithm of the scale that the search starts at."""
        return (self.start,)

    def plan(self) -> Plan:
        """Bracket, then close in."""
        start, step = self.start, self.step
        known: dict[float, float] = {}
        points = [start, start - step, start + step]
        while points:
            points = points[: self.evaluations - len(known)]
            scores = yield [(place,) for place in points]
            known.update(zip(points, scores, strict=True))
            points = self._next(known) if len(known) < self.evaluations else []

    def _next(self, known: dict[float, float]) -> list[float]:
        """Points to look at after these; none where the search has ended."""
        places = sorted(known)
        # The first told of equals: a flat score stays at the start.
        best = min(known, key=lambda place: known[place])
        if not math.isfinite(known[best]):
            return []
        index = places.index(best)
        if index in (0, len(places) - 1):
            return self._outwards(best, -1.0 if index == 0 else 1.0)
        left, right = places[index - 1], places[index + 1]
        if right - left <= 2.0 * self.tolerance:
            return []
        if max(known[left], known[right]) - known[best] <= self.negligible * abs(known[best]):
            return []
        vertex = _vertex((left, best, right), (known[left], known[best], known[right]))
        if vertex is not None:
            place, promised = vertex
            if right - left < 1.5 * self.step and promised <= self.negligible * abs(known[best]):
                return []
            if abs(place - best) < 0.5 * self.tolerance:
                # The parabola is done: the wider side of the best point remains to be looked at.
                vertex = None
        return self._inwards(left, best, right, None if vertex is None else vertex[0])

    def _outwards(self, edge: float, sign: float) -> list[float]:
        farthest = self.start + sign * self.reach
        ahead = [edge + sign * self.step, edge + sign * 2.0 * self.step]
        inside = [place for place in ahead if sign * (farthest - place) > 0.5 * self.step]
        if not inside and sign * (farthest - edge) > 1e-9 * self.reach:
            return [farthest]
        return inside

    def _inwards(self, left: float, best: float, right: float, vertex: float | None) -> list[float]:
        sections = [best - GOLDEN * (best - left), best + GOLDEN * (right - best)]
        if vertex is None:
            side = int(right - best > best - left)
        else:
            side = int(vertex > best)
            end = right if side else left
            # Not at the end of its side: a neighbour that is hardly nearer says nothing new.
            sections[side] = min(max(vertex, best - 0.9 * (best - left)), best + 0.9 * (right - best))
            if abs(sections[side] - end) < 0.5 * self.tolerance:
                sections[side] = 0.5 * (best + end)
        gaps = (best - left, right - best)
        if self.together == 1 or gaps[1 - side] <= 2.0 * self.tolerance:
            return [sections[side]]
        return [sections[side], sections[1 - side]]


@dataclass(eq=False)
class GridSearch(RecordedSearch):
    """`count` scales that all inverse squared length scales share, in factors of two, as far below `start` as above.

    Places are their logarithms. They are asked for two at a time, independent of their scores.
    """

    name = "grid"

    count: int
    start: float = 0.0
    _: KW_ONLY
    step: float = math.log(2.0)

    def __post_init__(self) -> None:
        if self.count < 1 or not self.step > 0.0:
            raise InputError(f"a grid needs one place at least, and a step above 0; got {self.count} and {self.step}")
        super().__post_init__()

    @property
    def first(self) -> Point:
        """The middle of the grid."""
        return (self.start,)

    def plan(self) -> Plan:
        """Go from the smallest scale to the largest."""
        middle = 0.5 * (self.count - 1)
        places: list[Point] = [(self.start + self.step * (place - middle),) for place in range(self.count)]
        for first in range(0, self.count, 2):
            yield places[first : first + 2]


def _vertex(places: tuple[float, float, float], values: tuple[float, float, float]) -> tuple[float, float] | None:
    """Return the minimum of the parabola through three points, and its depth below the middle one; None without one."""
    if not all(math.isfinite(value) for value in values):
        return None
    (a, b, c), (fa, fb, fc) = places, values
    left, right = (fb - fa) / (b - a), (fc - fb) / (c - b)
    curvature = (right - left) / (c - a)
    if not curvature > 0.0:
        return None
    slope = (left * (c - b) + right * (b - a)) / (c - a)
    place = b - 0.5 * slope / curvature
    if not a < place < c:
        return None
    return place, 0.25 * slope * slope / curvature


@dataclass(eq=False)
class AnnealingSearch(RecordedSearch):
    """Coupled Simulated Annealing with variance control over logarithms, and Nelder-Mead from the best point of it.

    Several probes walk by Cauchy steps. Each takes a step uphill with a probability that depends on the scores of all,
    and the acceptance temperature follows the variance of these probabilities, so that it needs no schedule of its own.
    All probes of a step are one pass over the data. The walk's constants are those of the authors' program (LS-SVMlab),
    which changes the acceptance temperature once for the twenty steps at a generation temperature; here it follows
    every step. The simplex's constants are chosen here.

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

    start: Point
    _: KW_ONLY
    seed: int = 0
    spread: float = 2.0
    steps: int = 20
    temperatures: int = 1
    polish: int = 45

    def __post_init__(self) -> None:
        if not 0.0 < self.spread <= REACH or min(self.steps, self.polish) < 0 or self.temperatures < 1 or self.seed < 0:
            raise InputError(
                f"an annealing search needs 0 < spread <= {REACH:g}, steps and polish of 0 or more, one temperature at "
                f"least and a seed of 0 or more; got {self.spread}, {self.steps}, {self.polish}, {self.temperatures}, "
                f"{self.seed}"
            )
        super().__post_init__()

    @property
    def first(self) -> Point:
        """The place of the first probe."""
        return self.start

    def plan(self) -> Plan:
        """Walk, then close in."""
        yield from self._walk()
        if self.polish and math.isfinite(self.best[1]):
            yield from self._close_in(*self.best)

    def _draws(self, step: int, probe: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, step, probe])))

    def _walk(self) -> Plan:
        spread = self.spread
        others = [self._draws(0, probe).uniform(-spread, spread, len(self.start)) for probe in range(1, PROBES)]
        places = np.asarray([self.start, *(np.asarray(self.start) + offset for offset in others)])
        values = np.asarray((yield _points(places)))
        temperature = 1.0
        for step in range(1, self.temperatures * self.steps + 1):
            accepted = acceptances(values, temperature)
            reach = 1.0 / (1 + (step - 1) // self.steps)
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
        while len(known) <= self.polish:
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
        scipy.optimize.minimize(look_up, np.asarray(simplex[0]), method="Nelder-Mead", options=options)
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
