"""Rivals of conjugate directions on A w = b: matching pursuit, forward stagewise, least angles and the LASSO's path.

Orthogonal matching pursuit is `pursue` itself, and orthogonal least squares that with `score="refit"`. Only columns of
A are taken, each once: A may be X'X of rows.

The LASSO, min w'A w / 2 - b'w + lambda |w|_1, is piecewise linear in lambda: between two breaks the active set S and
its signs s stay, all of its |c_j| are lambda, c = b - A w, and w_S moves along A_SS^-1 s_S. A break is a regressor
whose |c_j| reaches lambda, which joins, or a weight that reaches zero, which leaves; least angle regression knows the
first alone.

References
----------
M. R. Osborne, B. Presnell, B. A. Turlach, A new approach to variable selection in least squares problems (2000).
B. Efron, T. Hastie, I. Johnstone, R. Tibshirani, Least angle regression (2004).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.solvers.base import Clock
from dkgp.solvers.cholesky.dense import solve_lower, solve_lower_transposed
from dkgp.solvers.greedy_basis import LEAST_PIVOT
from dkgp.solvers.pursuit.systems import PursuitSystem, as_system, right_hand_sides


class Columns:
    """Columns of A, fetched when they are first asked for."""

    def __init__(self, system: PursuitSystem) -> None:
        self._system = system
        self._held: dict[int, FloatArray] = {}

    def __getitem__(self, index: int) -> FloatArray:
        if index not in self._held:
            (self._held[index],) = self._system.columns(np.asarray([index], dtype=np.intp)).T.copy()
        return self._held[index]


@dataclass(frozen=True)
class RivalPath:
    """Solutions of growing cardinality, the last of each that a rival passed through.

    - `order` (k,): regressors in the order in which they were first used.
    - `weights`: of the first j of the order, when one more was about to be used, or at the end; j = 1, ..., k.
    - `iterations`: steps taken by then.
    """

    order: IndexArray
    weights: list[FloatArray]
    iterations: list[int]
    seconds: list[float]

    def solution(self, k: int, size: int) -> FloatArray:
        """w of cardinality k, with its zeros: (D,)."""
        full = np.zeros(size)
        full[self.order[:k]] = self.weights[k - 1] if k else 0.0
        return full


def matching_pursuit(
    system: PursuitSystem | ArrayLike,
    rhs: ArrayLike,
    *,
    shrinkage: float = 1.0,
    most: int | None = None,
    iterations: int = 100_000,
    tolerance: float = 0.0,
) -> RivalPath:
    """Make the largest gradient zero by its own weight, over and over (Algorithm 1); or go a share of the way.

    With g = A w - b and j = argmax |g_j| the step is w_j -= e g_j / A_jj, g -= e a_j g_j / A_jj: the paper prints the
    second with a plus, which would lead away.

    - `system`, `rhs`: as of `pursue`, with one right-hand side.
    - `shrinkage`: e, 0 < e <= 1; less than 1 is forward stagewise.
    - `most`: regressors at most: it ends when one more would be used.
    - `iterations`: steps at most.
    - `tolerance`: it ends where max |g| is this.

    Raises `InputError`: a shrinkage or `most` out of range, or several right-hand sides.
    """
    if not 0.0 < shrinkage <= 1.0:
        raise InputError(f"`shrinkage` must be above 0, and 1 at most; got {shrinkage}")
    system = as_system(system)
    b, clock = one_right_hand_side(system, rhs), Clock()
    most = most_of(system, most)
    columns, gradient, weights = Columns(system), -b, np.zeros(system.size)
    order: list[int] = []
    out = np.zeros(system.size, dtype=bool)
    solutions: list[FloatArray] = []
    steps: list[int] = []
    seconds: list[float] = []
    done = 0
    for done in range(iterations + 1):
        sizes = np.where(out, -1.0, np.abs(gradient))
        best = int(np.argmax(sizes))
        if done == iterations or sizes[best] <= tolerance:
            break
        if best not in order:
            if not columns[best][best] > 0.0:
                out[best] = True  # a column of zeros
                continue
            if order:
                solutions.append(weights[order])
                steps.append(done)
                seconds.append(clock.seconds)
            if len(order) == most:
                break
            order.append(best)
        step = -shrinkage * gradient[best] / columns[best][best]
        weights[best] += step
        gradient += step * columns[best]
    if len(solutions) < len(order):
        solutions.append(weights[order])
        steps.append(done)
        seconds.append(clock.seconds)
    return RivalPath(np.asarray(order, dtype=np.intp), solutions, steps, seconds)


def one_right_hand_side(system: PursuitSystem, rhs: ArrayLike) -> FloatArray:
    """b (D,) of one right-hand side; `InputError` where there are several."""
    values = right_hand_sides(rhs)
    if values.shape[1] != 1:
        raise InputError(f"one right-hand side at a time has such a path; got {values.shape[1]}")
    return np.asarray(system.project(values)[:, 0])


def most_of(system: PursuitSystem, most: int | None) -> int:
    """Regressors at most, all by default; `InputError` of a negative number."""
    if most is not None and most < 0:
        raise InputError(f"`most` must not be negative; got {most}")
    return system.size if most is None else most


# Shares of lambda: below, a level is rounding, or two are one.
SOLVED, TIED = 1e-14, 1e-12


@dataclass(frozen=True)
class Break:
    """A place where the active set changes.

    - `level`: lambda.
    - `support` (k,): active regressors, in the order in which they joined; a weight that has just become zero is still
      there.
    """

    level: float
    support: IndexArray
    weights: FloatArray
    seconds: float = 0.0


@dataclass(frozen=True)
class HomotopyPath:
    """Breaks by falling lambda; between two of them weights are linear in it."""

    size: int
    breaks: list[Break]

    def __iter__(self) -> Iterator[Break]:
        return iter(self.breaks)

    def __len__(self) -> int:
        return len(self.breaks)

    def solution(self, number: int) -> FloatArray:
        """w of a break, with its zeros: (D,)."""
        full, at = np.zeros(self.size), self.breaks[number]
        full[at.support] = at.weights
        return full

    def at(self, level: float) -> FloatArray:
        """The LASSO's w for a lambda, with its zeros: (D,).

        Raises `InputError`: the path ends above it.
        """
        levels = np.asarray([at.level for at in self.breaks])
        if level < levels[-1] * (1.0 - TIED):
            raise InputError(f"the path ends at lambda = {levels[-1]:.6g}; got {level:.6g}")
        after = int(np.argmax(levels <= level * (1.0 + TIED)))
        if after == 0:
            return np.zeros(self.size)
        above, below = levels[after - 1], levels[after]
        share = 0.0 if above == below else (above - level) / (above - below)
        return np.asarray((1.0 - share) * self.solution(after - 1) + share * self.solution(after))


class _Active:
    """Active regressors with their signs, columns, and the factor of A_SS."""

    def __init__(self, system: PursuitSystem) -> None:
        self._system = system
        self.order: list[int] = []
        self.signs: list[float] = []
        self.weights: list[float] = []
        self.out = np.zeros(system.size, dtype=bool)  # active, or in the span of those that are
        self._rows = np.empty((16, system.size))
        self._lower = np.empty((16, 16))

    def join(self, index: int, sign: float) -> bool:
        """Take a regressor in; False where the others leave nothing of it."""
        k = len(self.order)
        if k == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
            lower = np.empty((2 * k, 2 * k))
            lower[:k, :k] = self._lower
            self._lower = lower
        (row,) = self._system.columns(np.asarray([index], dtype=np.intp)).T
        self.out[index] = True
        corner = np.ascontiguousarray(row[self.order])
        if k:
            solve_lower(self._lower, k, corner[None, :])
        pivot = row[index] - corner @ corner
        if not pivot > LEAST_PIVOT * row[index]:
            return False
        self._rows[k] = row
        self._lower[k, :k], self._lower[k, k] = corner, np.sqrt(pivot)
        self.order.append(index)
        self.signs.append(sign)
        self.weights.append(0.0)
        return True

    def leave(self, place: int) -> None:
        """Let one go; rotations bring the factor of those that stay back to a triangle."""
        k = len(self.order)
        rows = np.delete(np.tril(self._lower[:k, :k]), place, axis=0)
        for j in range(place, k - 1):
            length = np.hypot(rows[j, j], rows[j, j + 1])
            cosine, sine = rows[j, j] / length, rows[j, j + 1] / length
            first, second = rows[j:, j].copy(), rows[j:, j + 1].copy()
            rows[j:, j], rows[j:, j + 1] = cosine * first + sine * second, cosine * second - sine * first
        self._lower[: k - 1, : k - 1] = rows[:, : k - 1]
        self._rows[place : k - 1] = self._rows[place + 1 : k].copy()
        self.out[self.order.pop(place)] = False
        self.signs.pop(place)
        self.weights.pop(place)

    def direction(self) -> tuple[FloatArray, FloatArray]:
        """d of A_SS d = s_S, and A_:S d."""
        k, d = len(self.order), np.asarray(self.signs)
        solve_lower(self._lower, k, d[None, :])
        solve_lower_transposed(self._lower, k, d[None, :])
        return d, self._rows[:k].T @ d

    def image(self) -> FloatArray:
        """A w."""
        return np.asarray(self._rows[: len(self.order)].T @ np.asarray(self.weights))


def homotopy(
    system: PursuitSystem | ArrayLike,
    rhs: ArrayLike,
    *,
    drops: bool = True,
    most: int | None = None,
    until: float = 0.0,
    breaks: int | None = None,
) -> HomotopyPath:
    """Follow the path from w = 0.

    - `system`, `rhs`: as of `pursue`, with one right-hand side; A's columns are taken one by one.
    - `drops`: the LASSO; least angle regression without.
    - `most`: active regressors at most: the path ends at the break where one more would join.
    - `until`: lambda at which it ends.
    - `breaks`: the most of them; some 8 D by default, for paths that turn in circles.

    Raises `InputError`: several right-hand sides, or numbers out of range.
    """
    if not until >= 0.0:
        raise InputError(f"`until` must not be negative; got {until}")
    system = as_system(system)
    b, clock = one_right_hand_side(system, rhs), Clock()
    most = most_of(system, most)
    limit = 8 * system.size + 8 if breaks is None else breaks
    active, c = _Active(system), b.copy()
    top = level = float(np.abs(b).max(initial=0.0))
    path = [Break(level, np.empty(0, dtype=np.intp), np.empty(0))]
    gone: tuple[int, float] | None = None
    with single_threaded_blas():
        waiting = int(np.argmax(np.abs(c)))
        while len(path) < limit and level > max(until, SOLVED * top):
            if waiting >= 0:
                if len(active.order) >= most:
                    break
                active.join(waiting, float(np.sign(c[waiting])))
            if not active.order:
                break
            d, a = active.direction()
            step, waiting = _joining(active, c, a, level, gone)
            step = min(step, level - until)
            if step == level - until:
                waiting = -1
            leaving = -1
            if drops:
                weights = np.asarray(active.weights)
                with np.errstate(divide="ignore", invalid="ignore"):
                    zero = -weights / d
                zero[~((zero > 0.0) & (weights != 0.0))] = np.inf
                place = int(np.argmin(zero))
                if zero[place] < step:
                    step, leaving, waiting = float(zero[place]), place, -1
            active.weights = (np.asarray(active.weights) + step * d).tolist()
            level = max(level - step, 0.0)
            if leaving >= 0:
                active.weights[leaving] = 0.0
            if step > TIED * level or leaving >= 0 or len(path) == 1:
                path.append(_break(active, level, clock.seconds))
            gone = None
            if leaving >= 0:
                gone = (active.order[leaving], active.signs[leaving])
                active.leave(leaving)
            c = b - active.image()
            if waiting < 0 and leaving < 0:
                break
    return HomotopyPath(system.size, path)


def _break(active: _Active, level: float, seconds: float) -> Break:
    return Break(level, np.asarray(active.order, dtype=np.intp), np.asarray(active.weights), seconds)


def _joining(
    active: _Active, c: FloatArray, a: FloatArray, level: float, gone: tuple[int, float] | None
) -> tuple[float, int]:
    """Fall of lambda until a regressor joins, and which one; all the way, and -1, where none does."""
    best, which = level, -1
    for side in (1.0, -1.0):
        left = np.maximum(level - side * c, 0.0)
        slope = 1.0 - side * a
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.where(slope > TIED, left / slope, np.where(left <= TIED * level, 0.0, np.inf))
        steps[active.out] = np.inf
        if gone is not None and gone[1] == side:
            steps[gone[0]] = np.inf  # it has left by this side, where it still stands
        first = int(np.argmin(steps))
        if steps[first] < best:
            best, which = float(steps[first]), first
    return best, which
